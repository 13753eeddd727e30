"""README.md's tables, out of what `make bench` has measured.

    python bench/readme.py RESULTS README.md

RESULTS: a folder of JSON documents, `specrt bench`'s as MODEL.json, with peers peers-MODEL.json and
genai-MODEL-WIDTH.json, bench/kernels.py's as kernels-MODEL.json. What stands in README.md
between the marks is replaced.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from textwrap import wrap
from typing import Any

BEGIN, END = "<!-- measured: by make bench -->", "<!-- end of measured -->"
MODELS = {"smollm2": "SmolLM2-135M from its Q4_1", "coder": "Qwen2.5-Coder-1.5B from its Q4_K_M"}
PEER = "onnxruntime-genai"
ROWS = ("1", "4", "8")

Document = Mapping[str, Any]


def lines(results: Mapping[str, Document]) -> Iterator[str]:
    """What stands between the marks. results: documents by the names of their files."""
    benchmarks = {name: results[name] for name in MODELS if name in results}
    yield from _machine([*benchmarks.values()])
    for name, document in benchmarks.items():
        yield from ("", *_speeds(MODELS[name], document))
    others = {name: results[f"peers-{name}"] for name in MODELS if f"peers-{name}" in results}
    if others:
        most = max(doc["options"]["max_tokens"] for doc in others.values())
        yield from _paragraph(
            f"Other engines on the same questions, up to {most} tokens, in processes of their own "
            "that took turns ([what is the same and what is not](docs/peers.md)):"
        )
    for name, document in others.items():
        yield from ("", *_engines(MODELS[name], document))
    kernels = {name: results.get(f"kernels-{name}") for name in MODELS}
    if any(kernels.values()):
        yield from _paragraph(
            "A step of `k` rows after 256 tokens, in milliseconds, all forms taking turns; KL is "
            "the mean to the checkpoint:"
        )
        yield ""
        yield from _table(_kernels({name: doc for name, doc in kernels.items() if doc}))
    ratios = [row for name in results for row in _widths(name, results[name])]
    if ratios:
        yield from _paragraph(f"Plain decoding over {PEER}'s, of its own export, as wide:")
        yield ""
        titles = ("specrt over it", "tokens/s", "first token", "load", "peak memory")
        yield from _table([titles, *ratios])


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
    table = [(title, "tokens/s", "over specrt plain", "of whole answers", "load s", "peak MB")]
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
                f"{ms['8'] / ms['1']:.2f}",
                f"{512_000 / ms['512']:.0f}",
                f"{fact['kl']:.4f}" if fact else "",
                f"{load['load_s']:.2f}" if load else "",
                f"{load['own_mb']:.0f}" if load else "",
                f"{fact['bytes'] / 1e6:.0f}" if fact else "",
            )


def _widths(name: str, document: Document) -> Iterator[tuple[str, ...]]:
    """The ratios of a run beside the peer."""
    kind, _, rest = name.partition("-")
    model, _, width = rest.partition("-")
    if kind != "genai" or PEER not in document["summary"]:
        return
    plain, peer = (document["summary"][engine]["all"] for engine in ("none", PEER))
    runs = _runs(document, PEER)
    ratios = [plain[f]["median"] / peer[f]["median"] for f in ("tokens_per_s", "ttft_s")]
    ratios.append(document["load_s"] / median(_known(runs, "load_s")))
    ratios.append(document["peak_rss_mb"] / max(_known(runs, "peak_rss_mb")))
    yield (f"{MODELS[model]}, {width}", *(f"{ratio:.2f}" for ratio in ratios))


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
