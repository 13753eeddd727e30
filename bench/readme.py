"""README.md's tables, out of what `make bench` has measured.

    python bench/readme.py RESULTS README.md

RESULTS: a folder of JSON documents, `specrt bench`'s as MODEL.json and same-MODEL-WIDTH.json, with
peers peers-MODEL.json and genai-MODEL-WIDTH.json, bench/kernels.py's as kernels-MODEL.json,
bench/exports.py's as export-MODEL.json and export-MODEL-WIDTH.json, bench/overhead.py's as
overhead.json. What stands in README.md
between the marks is replaced.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from textwrap import wrap
from typing import Any

BEGIN, END = "<!-- measured: by make bench -->", "<!-- end of measured -->"
MODELS = {"smollm2": "SmolLM2-135M from its Q4_1", "coder": "Qwen2.5-Coder-1.5B from its Q4_K_M"}
WIDTHS = ("int8", "int4")
PEER = "onnxruntime-genai"
ROWS = ("1", "4", "8")

Document = Mapping[str, Any]


def lines(results: Mapping[str, Document]) -> Iterator[str]:
    """What stands between the marks. results: documents by the names of their files."""
    benchmarks = {name: results[name] for name in MODELS if name in results}
    yield from _machine([*benchmarks.values()])
    for name, document in benchmarks.items():
        yield from ("", *_speeds(MODELS[name], document))
    others = _of_models(results, "peers")
    if others:
        yield from _paragraph(_others(others.values()))
    for name, document in others.items():
        yield from ("", *_engines(MODELS[name], document))
    if kernels := _of_models(results, "kernels"):
        yield from _paragraph(
            "A step of `k` rows after 256 tokens, in milliseconds, all forms taking turns, where "
            f"the memory gives {_rates(kernels)} GB/s (v(8) is the median of the rounds' own); KL "
            "is the mean to the checkpoint:"
        )
        yield from ("", *_table(_kernels(kernels)))
    if "overhead" in results:
        yield from _paragraph(
            "What of a step is not ONNX Runtime (Python, numpy, sampling, text), in milliseconds, "
            f"with a vocabulary of {results['overhead']['vocab']} tokens:"
        )
        yield from ("", *_table(_overhead(results["overhead"])))
    if widths := list(_widths(results)):
        yield from _paragraph(
            f"In each width that {PEER} exports: runs with drafts whose tokens are plain's, and, "
            "in processes that hold no draft, plain decoding over that engine's:"
        )
        titles = ("specrt", "same text", "tokens/s", "first token", "load", "peak memory")
        yield from ("", *_table([titles, *widths]))
    if exports := list(_exports(results)):
        yield from _paragraph(
            "Exports, each in a process of its own; how near the text is to the checkpoint's is "
            "measured on a text that comes with specrt:"
        )
        titles = ("export", "weights", "mean KL", "top-1 agreement", "time", "peak memory")
        yield from ("", *_table([titles, *exports]))


def replaced(page: str, new: Sequence[str]) -> str:
    """The page with `new` between its marks.

    >>> replaced(f"a\\n{BEGIN}\\nold\\n{END}\\n", ["new"]).splitlines()[1:]
    ['<!-- measured: by make bench -->', 'new', '<!-- end of measured -->']
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"readme: the page lacks the lines {BEGIN} and {END}")
    return "\n".join((before + BEGIN, *new, END + after))


def _machine(documents: Sequence[Document]) -> Iterator[str]:
    dates = sorted(document["date"][:10] for document in documents)
    about, options = documents[0]["environment"], documents[0]["options"]
    yield from _paragraph(
        f"{about['cpu']}, {about['threads']} threads, {about['platform']}; "
        f"Python {about['python']}, ONNX Runtime {about['onnxruntime']}; {dates[-1]}. "
        f"By `make bench`: {len(options['prompts'])} questions of five kinds, greedy, up to "
        f"{options['max_tokens']} tokens, plain decoding taking turns in the same process. "
        "Tokens a second while decoding, medians; *same text*: runs whose tokens are plain's."
    )


def _others(documents: Iterable[Document]) -> str:
    """What is said of the peers' tables; how long an engine had, where that was too short."""
    options = [document["options"] for document in documents]
    most = max(of["max_tokens"] for of in options)
    seconds = dict.fromkeys(f"{of['peer_seconds']:g}" for of in options if of.get("peer_seconds"))
    bound = f", each mode having {' and '.join(seconds)} s for all" if seconds else ""
    return (
        f"Other engines on the same questions, up to {most} tokens, in processes of their own that "
        "took turns ([what is the same and what is not](docs/peers.md)); *answered*: of how many "
        f"questions the figures are{bound}:"
    )


def _paragraph(text: str) -> Iterator[str]:
    yield from ("", *wrap(text, 100, break_on_hyphens=False))


def _speeds(title: str, document: Document) -> Iterator[str]:
    """Tokens a second by drafter and kind, then the speed-ups."""
    summary = {name: document["summary"][name] for name in document["options"]["drafters"]}
    works = [*summary["none"]]
    table = [(title, *works, "same text")]
    for name, by_work in summary.items():
        speeds = [_median(by_work[work]["tokens_per_s"], ".0f") for work in works]
        every = by_work["all"]
        same = f"{every['same_text']} of {every['same_text'] + every['other_text']}"
        table.append((_named(name), *speeds, "" if name == "none" else same))
    for name in [*summary][1:]:
        for figure, what in (("speedup", "speed-up"), ("answer_speedup", "of whole answers")):
            found = [_median(summary[name][work][figure], ".2f") for work in works]
            table.append((f"{what}, {_named(name)}", f"**{found[0]}**", *found[1:], ""))
    yield from _table(table)


def _engines(title: str, document: Document) -> Iterator[str]:
    """Every mode of specrt and of its peers: tokens a second, memory, time to load."""
    ours = document["options"]["drafters"]
    figures = ("tokens/s", "over specrt plain", "of whole answers", "answered", "load s", "peak MB")
    table, planned = [(title, *figures)], len(_runs(document, "none"))
    for name, by_work in document["summary"].items():
        every, runs = by_work["all"], _runs(document, name)
        own = name in ours
        load = [document["load_s"]] if own else _known(runs, "load_s")
        peak = [document["peak_rss_mb"]] if own else _known(runs, "peak_rss_mb")
        table.append(
            (
                f"specrt {_named(name)}" if own else name,
                _median(every["tokens_per_s"], ".0f"),
                _median(every["speedup"], ".2f"),
                _median(every["answer_speedup"], ".2f"),
                f"{sum(run['error'] is None for run in runs)} of {planned}",
                f"{median(load):.2f}" if load else "-",
                f"{max(peak):.0f}" if peak else "-",
            )
        )
    yield from _table(table)


def _kernels(documents: Mapping[str, Document]) -> Iterator[tuple[str, ...]]:
    rows = [f"k={k}" for k in ROWS]
    yield ("", *rows, "v(8)", "prefill tok/s", "KL", "load s", "own MB", "file MB")
    for name, document in documents.items():
        yield (f"**{MODELS[name]}**", *[""] * (len(rows) + 6))
        for form, ms in document["ms"].items():
            fact, load = document["facts"].get(form), document["load"].get(form)
            yield (
                "specrt's kernels, the GGUF's blocks" if form == "native" else form,
                *(f"{ms[k]:.1f}" for k in ROWS),
                f"{document['ratios'][form]['v8']:.2f}",
                f"{512_000 / ms['512']:.0f}",
                f"{fact['kl']:.4f}" if fact else "",
                f"{load['load_s']:.2f}" if load else "",
                f"{load['own_mb']:.0f}" if load else "",
                f"{fact['bytes'] / 1e6:.0f}" if fact else "",
            )


def _rates(documents: Mapping[str, Document]) -> str:
    """How much memory was read in a second, before any of the rounds."""
    found = [rate for document in documents.values() for rate in document["memory_gb_per_s"]]
    return f"{min(found):.0f} to {max(found):.0f}"


def _overhead(document: Document) -> Iterator[tuple[str, ...]]:
    """A row for each drafter, a column for each way of sampling."""
    rows = document["rows"]
    columns = dict.fromkeys(row["sampling"] for row in rows)
    yield ("milliseconds a step", *columns)
    for drafter in dict.fromkeys(row["drafter"] for row in rows):
        outside = {
            row["sampling"]: row["ms"]["outside"] for row in rows if row["drafter"] == drafter
        }
        yield (_named(drafter), *(f"{outside[column]:.2f}" for column in columns))


def _widths(results: Mapping[str, Document]) -> Iterator[tuple[str, ...]]:
    """For each model and width, whose text is plain's, and the ratios of a run beside the peer."""
    for model, width in product(MODELS, WIDTHS):
        own, beside = (results.get(f"{kind}-{model}-{width}") for kind in ("same", "genai"))
        if own or beside:
            yield (f"{MODELS[model]}, {width}", _same(own), *_ratios(beside))


def _same(document: Document | None) -> str:
    """Of all drafters' runs, how many have plain's text."""
    if document is None:
        return "-"
    every = [document["summary"][name]["all"] for name in document["options"]["drafters"][1:]]
    return f"{sum(of['same_text'] for of in every)} of {sum(of['runs'] for of in every)}"


def _ratios(document: Document | None) -> list[str]:
    """Plain decoding over the peer: tokens a second, first token, load, memory."""
    if document is None or not (runs := _runs(document, PEER)):
        return ["-"] * 4
    plain, peer = (document["summary"][engine]["all"] for engine in ("none", PEER))
    ratios = [plain[f]["median"] / peer[f]["median"] for f in ("tokens_per_s", "ttft_s")]
    ratios.append(document["load_s"] / median(_known(runs, "load_s")))
    ratios.append(document["peak_rss_mb"] / max(_known(runs, "peak_rss_mb")))
    return [f"{ratio:.2f}" for ratio in ratios]


def _exports(results: Mapping[str, Document]) -> Iterator[tuple[str, ...]]:
    """Weights, quality, time and memory of each export."""
    for suffix, model in product(("", *(f"-{width}" for width in WIDTHS)), MODELS):
        document = results.get(f"export-{model}{suffix}")
        if document is None:
            continue
        kl, agreement = document["kl"], document["agreement"]
        yield (
            MODELS[model] + (", with its draft" if document["drafts"] else ""),
            document["weights"] + (" (default)" if document["default_weights"] else ""),
            "-" if kl is None else f"{kl:.4f}",
            "-" if agreement is None else f"{100 * agreement:.0f} %",
            f"{document['seconds']:.0f} s",
            f"{document['peak_rss_mb'] / 1000:.1f} GB",
        )


def _of_models(results: Mapping[str, Document], kind: str) -> dict[str, Document]:
    """The documents of a kind by the models they are of."""
    return {name: results[key] for name in MODELS if (key := f"{kind}-{name}") in results}


def _runs(document: Document, name: str) -> list[Mapping[str, Any]]:
    return [record for record in document["records"] if record["drafter"] == name]


def _known(runs: Sequence[Mapping[str, Any]], figure: str) -> list[float]:
    return [run[figure] for run in runs if run.get(figure) is not None]


def _named(drafter: str) -> str:
    return "plain" if drafter == "none" else f"`{drafter}`"


def _median(figure: Mapping[str, float] | None, form: str) -> str:
    return "-" if figure is None else format(figure["median"], form)


def _table(rows: Iterator[tuple[str, ...]] | Sequence[tuple[str, ...]]) -> Iterator[str]:
    for index, row in enumerate(rows):
        yield f"| {' | '.join(row)} |"
        if not index:
            yield "|" + "---|" * len(row)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, help="a folder of JSON documents")
    parser.add_argument("page", type=Path, help="README.md")
    options = parser.parse_args()
    files = sorted(options.results.glob("*.json"))
    results = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
    if not MODELS.keys() & results.keys():
        raise SystemExit(f"readme: {options.results} has none of {', '.join(MODELS)} as .json")
    page = replaced(options.page.read_text(encoding="utf-8"), [*lines(results)])
    options.page.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
