"""What stands on a benchmark's page, section by section. All of it is taken from the document."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specrt.bench import plots
from specrt.bench.markup import Markup, joined, table, tag
from specrt.bench.report import SPEED, STEPS, Column, header, rows

BASELINE, ALL = "none", "all"
SHOWN = 8  # of the slowest prompts
TIMES, DASH = "\N{MULTIPLICATION SIGN}", "\N{EN DASH}"

Document = Mapping[str, Any]


def sections(document: Document) -> Iterator[Markup]:
    yield _head(document)
    yield _cards(document)
    yield _facts(document)
    yield _section(
        "Speed",
        "Each prompt's speed over plain decoding's of the same prompt, both in one process and "
        "taking turns; the median of the prompts, with its 95 % bootstrap interval. Decoding "
        "leaves the first token out; the whole answer has it, and with it what a drafter takes to "
        "read the prompt."
        + " Other engines ran in processes of their own."
        * bool(_peers(document)),
        plots.speed(document),
        _table(SPEED, document, "Speed by drafter and kind of work"),
    )
    yield _section(
        "Where the time goes",
        "A step's time is shared equally by the tokens it gives. Accepted: of all drafted tokens. "
        "Overhead is whatever is outside of the steps.",
        tag(
            "div",
            plots.latency(document),
            plots.acceptance(document),
            class_="plots",
        ),
        _table(STEPS, document, "Steps by drafter and kind of work"),
    )
    yield _costs(document)
    yield _choices(document)
    yield _slowest(document)
    yield _failed(document)


def _head(document: Document) -> Markup:
    around = document["environment"]
    versions = f"specrt {around['specrt']}, ONNX Runtime {around['onnxruntime']}"
    words = f"{bundle(document)} · {around['cpu']}, {around['threads']} threads · {versions}"
    return tag(
        "header",
        tag("p", "specrt benchmark · ", tag("time", _date(document)), class_="eyebrow"),
        tag("h1", _result(document)),
        tag("p", words, class_="soft"),
        tag("pre", tag("code", document["command"])),
    )


def _result(document: Document) -> str:
    """The key result in a sentence: of `auto`, or else of the fastest drafter."""
    summary = document["summary"]
    speedups = {name: summary[name][ALL]["speedup"] for name in _drafters(document)}
    known = {name: of["median"] for name, of in speedups.items() if of}
    if not known:
        return "No drafter was measured" if not speedups else "No drafter finished a run"
    best = "auto" if "auto" in known else max(known, key=lambda name: known[name])
    figures = summary[best][ALL]
    return f"{best} decodes {known[best]:.2f} times as fast as plain, {_identity(figures)}"


def _identity(figures: Mapping[str, Any]) -> str:
    same, other = figures["same_text"], figures["other_text"]
    if not same + other:
        return "its texts not compared"
    return "with the same text" if not other else f"but {other} of {same + other} texts differ"


def _cards(document: Document) -> Markup:
    summary = document["summary"]
    plain = summary[BASELINE][ALL]["tokens_per_s"]
    cards = (_card(name, summary[name][ALL], plain) for name in _drafters(document))
    return tag("ul", *cards, class_="cards")


def _card(name: str, figures: Mapping[str, Any], plain: Mapping[str, float] | None) -> Markup:
    speedup, answer = figures["speedup"], figures["answer_speedup"]
    if speedup is None or plain is None:
        told = [tag("p", DASH, class_="big"), tag("p", "not measured", class_="soft")]
        return tag("li", tag("p", name, class_="name"), *told)
    speed = f"{figures['tokens_per_s']['median']:.1f} tokens/s, plain {plain['median']:.1f}"
    slowest = speedup["slowest"]
    lines = (
        f"decoding{_between(speedup)}",
        f"{answer['median']:.2f}{TIMES} for whole answers{_between(answer)}",
        speed,
        f"slowest prompt {slowest['ratio']:.2f}{TIMES} ({slowest['prompt']})",
    )
    return tag(
        "li",
        tag("p", name, class_="name"),
        tag("p", f"{speedup['median']:.2f}{TIMES}", class_="big"),
        *(tag("p", line, class_="soft") for line in lines),
    )


def _between(of: Mapping[str, Any]) -> str:
    return f", 95 % {of['interval'][0]:.2f}{DASH}{of['interval'][1]:.2f}" if of["interval"] else ""


def _facts(document: Document) -> Markup:
    around, options = document["environment"], document["options"]
    memory = f"{around['memory_mb'] / 1000:.1f} GB" if around["memory_mb"] else "unknown memory"
    peak = document["peak_rss_mb"]
    temperature = options["temperature"]
    how = "greedy" if temperature == 0 else f"temperature {temperature}, seed {options['seed']}"
    facts = {
        "Machine": f"{around['cpu']}, {around['cores']} processors, {memory}, {around['platform']}",
        "Versions": f"specrt {around['specrt']} ({_commit(around['commit'])}), "
        f"ONNX Runtime {around['onnxruntime']}, numpy {around['numpy']}, Python {around['python']}",
        "Bundle": f"{document['bundle']['path']}, SHA-256 {document['bundle']['sha256'][:16]}…",
        "Runs": f"{len(options['prompts'])} prompts, {options['repeat']} of each, up to "
        f"{options['max_tokens']} tokens, {how}",
        "Loaded in": f"{document['load_s']:.2f} s",
        "Peak memory": f"{peak:.0f} MB" if peak else "unknown",
        **_peers(document),
        "Energy": document["energy_source"] or "this machine does not tell",
    }
    pairs = (joined([tag("dt", name), tag("dd", fact)]) for name, fact in facts.items())
    return tag("dl", *pairs)


def _peers(document: Document) -> dict[str, str]:
    """Other engines that took part: their versions and models."""
    told = [record for record in document["records"] if record.get("version")]
    peers = {r["drafter"]: f"{r['drafter']} {r['version']} on {r['model']}" for r in told}
    return {"Peers": ", ".join(peers.values())} if peers else {}


def _costs(document: Document) -> Markup:
    title, tune = "When drafts pay", tag("code", "specrt tune")
    if document["curve"] is None:
        return _section(title, joined(["Not shown: too few steps of several rows, and no ", tune]))
    words = (
        "A draft of n tokens is verified in a step of n + 1 rows. The flatter v(k), the fewer of "
        "its tokens must be right. "
    )
    source = {
        "profile": ["From this device's profile; ", tune, " renews it."],
        "steps": ["From this benchmark's own steps; ", tune, " measures it better."],
    }[document["curve"]["source"]]
    both = (plots.costs(document), plots.breakeven(document))
    return _section(title, joined([words, *source]), tag("div", *both, class_="plots"))


def _choices(document: Document) -> Markup:
    """A run of each kind of work, step by step."""
    told = [record for record in document["records"] if record.get("example")]
    names = _drafters(document)
    name = "auto" if "auto" in names else next(iter(names), BASELINE)
    runs = [
        tag(
            "section",
            tag("h3", f"{record['kind']}: {record['prompt']}"),
            plots.timeline(document, record, number),
            tag("details", tag("summary", "Question, answer, and why each step"), *_words(record)),
        )
        for number, record in enumerate(told)
        if record["drafter"] == name
    ]
    words = (
        f"One run of {name} for each kind of work. A bar is a step, as wide as its time: pale what "
        "was drafted, full what was accepted; low and grey where nothing was drafted."
    )
    told_of = words if runs else "No run to show."
    return _section("What was drafted", told_of, tag("div", *runs, class_="plots"))


def _words(record: Mapping[str, Any]) -> Iterator[Markup]:
    yield tag("pre", record["example"]["asked"])
    yield tag("pre", record["text"])
    steps = (
        (str(i), f"{s['accepted']} of {s['drafted']}", f"{s['ms']:.1f}", s["reason"])
        for i, s in enumerate(record["example"]["steps"], start=1)
    )
    titles = ("step", "accepted", "ms", "why")
    yield tag("div", table(titles, steps, f"Steps of {record['prompt']}"), class_="texts words")


def _slowest(document: Document) -> Markup:
    """The slowest prompt of each drafter and kind of work, the slowest of all first."""
    found = sorted(
        (of["slowest"]["ratio"], drafter, work, of["slowest"]["prompt"])
        for drafter, works in document["summary"].items()
        for work, figures in works.items()
        if drafter != BASELINE and work != ALL and (of := figures["speedup"])
    )[:SHOWN]
    lines = ((prompt, work, drafter, f"{ratio:.2f}") for ratio, drafter, work, prompt in found)
    titles = ("prompt", "work", "drafter", "times plain decoding")
    return _section(
        "Slowest prompts",
        "Of each drafter and kind of work the prompt that gained least. Below 1 it lost.",
        tag("div", table(titles, lines, "Slowest prompts"), class_="texts"),
    )


def _failed(document: Document) -> Markup:
    failed = [record for record in document["records"] if record["error"] is not None]
    if not failed:
        return _section("Failed runs", "None.")
    lines = (
        (r["prompt"], r["kind"], r["drafter"], str(r["repeat"] + 1), r["error"]) for r in failed
    )
    titles = ("prompt", "work", "drafter", "round", "error")
    return _section(
        "Failed runs",
        "They are in no median.",
        tag("div", table(titles, lines, "Failed runs"), class_="texts words"),
    )


def _section(title: str, words: str, *inside: Markup) -> Markup:
    return tag("section", tag("h2", title), tag("p", words, class_="soft"), *inside)


def _table(columns: Sequence[Column], document: Document, label: str) -> Markup:
    summary = document["summary"]
    _, _, *titles = header(columns, summary)
    lines = ((f"{drafter} · {work}", *cells) for drafter, work, *cells in rows(columns, summary))
    return table(("drafter · work", *titles), lines, label)


def _drafters(document: Document) -> list[str]:
    """specrt's own that were measured; other engines are none."""
    own = document["options"]["drafters"]
    return [name for name in document["summary"] if name in own and name != BASELINE]


def bundle(document: Document) -> str:
    return Path(document["bundle"]["path"]).name


def _commit(found: str | None) -> str:
    """A commit's first digits, and whether files differed from it."""
    return re.sub(r"^(\w{12})\w*", r"\1", found) if found else "no checkout"


def _date(document: Document) -> str:
    return str(document["date"]).replace("T", " ").replace("+00:00", " UTC")
