"""Records of a benchmark -> figures, a table of plain text, the last line of output.

Every figure is derived here. Runs that failed, and runs too short to have a speed, are counted
but enter no median. A speed-up compares each drafter with plain decoding in two ways: the ratio of
the medians over all runs, and the median over the prompts of each prompt's own ratio.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

RESAMPLES = 2000  # of the bootstrap
COVERAGE = 95  # per cent, of its interval
HEADER = (
    "drafter",
    "work",
    "tok/s (quartiles)",
    "first token ms",
    "token ms p50/p95",
    "accepted",
    "tokens/step",
    "speed-up (95 %)",
    "same text",
    "failed",
)

Record = Mapping[str, Any]
Summary = dict[str, dict[str, dict[str, Any]]]  # drafter -> kind of work or "all" -> figures


def summarise(records: Sequence[Record], baseline: str = "none") -> Summary:
    """Figures of each drafter, over all prompts and by kind of work."""
    kinds = list(dict.fromkeys(record["kind"] for record in records))
    drafters = list(dict.fromkeys(record["drafter"] for record in records))
    summary: Summary = {}
    for drafter in drafters:
        groups = {"all": _pick(records, drafter)}
        plains = {"all": _pick(records, baseline)}
        for kind in kinds:
            groups[kind] = _pick(records, drafter, kind)
            plains[kind] = _pick(records, baseline, kind)
        summary[drafter] = {name: _figures(groups[name], plains[name]) for name in groups}
    return summary


def table(summary: Summary) -> str:
    """The summary as aligned lines of text."""
    lines = [HEADER, *rows(summary)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def rows(summary: Summary) -> list[tuple[str, ...]]:
    """The cells of the table, a row for each drafter and kind of work, in HEADER's order."""
    return [
        _row(drafter, work, figures)
        for drafter, works in summary.items()
        for work, figures in works.items()
    ]


def last_line(document: Mapping[str, Any]) -> str:
    """The document on one line of JSON."""
    return json.dumps(document, allow_nan=False)


def quartiles(values: Sequence[float]) -> dict[str, float] | None:
    """Median and quartiles, None of nothing.

    >>> quartiles([1.0, 2.0, 3.0])
    {'q1': 1.5, 'median': 2.0, 'q3': 2.5}
    """
    if not values:
        return None
    q1, middle, q3 = np.percentile(values, [25, 50, 75]).tolist()
    return {"q1": q1, "median": middle, "q3": q3}


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The bootstrap interval of the median; None of fewer than two values."""
    if len(values) < 2:
        return None
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(values, (RESAMPLES, len(values))), axis=1)
    tail = (100 - COVERAGE) / 2
    low, high = np.percentile(medians, [tail, 100 - tail]).tolist()
    return low, high


def _pick(records: Sequence[Record], drafter: str, kind: str | None = None) -> list[Record]:
    return [r for r in records if r["drafter"] == drafter and kind in (None, r["kind"])]


def _figures(runs: Sequence[Record], plain: Sequence[Record]) -> dict[str, Any]:
    done = [run for run in runs if run["error"] is None]
    timed = _timed(runs)
    drafted = sum(run["drafted"] for run in done)
    steps = sum(run["steps"] for run in done)
    compared = [run["identical"] for run in done if run["identical"] is not None]
    return {
        "runs": len(runs),
        "failed": len(runs) - len(done),
        "untimed": len(done) - len(timed),
        "tokens": sum(run["tokens"] for run in done),
        "tokens_per_s": quartiles([run["tokens_per_s"] for run in timed]),
        "ttft_s": quartiles([run["ttft_s"] for run in done]),
        "token_ms_p50": _median(timed, "token_ms_p50"),
        "token_ms_p95": _median(timed, "token_ms_p95"),
        "acceptance_rate": sum(run["accepted"] for run in done) / drafted if drafted else 0.0,
        "tokens_per_step": sum(run["tokens"] for run in done) / steps if steps else 0.0,
        "same_text": sum(compared),
        "other_text": len(compared) - sum(compared),
        "speedup": _speedup(timed, _timed(plain)),
    }


def _timed(runs: Sequence[Record]) -> list[Record]:
    """Runs that have a speed: they did not fail, and took more than one step."""
    return [run for run in runs if run["error"] is None and run["decode_s"] > 0]


def _median(runs: Sequence[Record], name: str) -> float | None:
    return median(run[name] for run in runs) if runs else None


def _speedup(runs: Sequence[Record], plain: Sequence[Record]) -> dict[str, Any] | None:
    """How many times as fast as plain; None where the two have no prompt in common."""
    speeds, plain_speeds = _by_prompt(runs), _by_prompt(plain)
    ratios = [speeds[p] / plain_speeds[p] for p in speeds if p in plain_speeds]
    if not ratios:
        return None
    of_medians = median(r["tokens_per_s"] for r in runs) / median(r["tokens_per_s"] for r in plain)
    return {
        "of_medians": of_medians,
        "median": median(ratios),
        "interval": interval(ratios),
        "prompts": len(ratios),
    }


def _by_prompt(runs: Sequence[Record]) -> dict[str, float]:
    """Median speed of each prompt."""
    speeds: dict[str, list[float]] = {}
    for run in runs:
        speeds.setdefault(run["prompt"], []).append(run["tokens_per_s"])
    return {prompt: median(values) for prompt, values in speeds.items()}


def _row(drafter: str, work: str, f: Mapping[str, Any]) -> tuple[str, ...]:
    speed, speedup, compared = f["tokens_per_s"], f["speedup"], f["same_text"] + f["other_text"]
    return (
        drafter,
        work,
        _or_dash(speed, lambda s: f"{s['median']:.1f} ({s['q1']:.1f}-{s['q3']:.1f})"),
        _or_dash(f["ttft_s"], lambda s: f"{1000 * s['median']:.0f}"),
        _or_dash(f["token_ms_p50"], lambda ms: f"{ms:.1f}/{f['token_ms_p95']:.1f}"),
        f"{f['acceptance_rate']:.0%}",
        f"{f['tokens_per_step']:.2f}",
        _or_dash(speedup, _speedup_cell),
        f"{f['same_text']}/{compared}" if compared else "-",
        str(f["failed"]),
    )


def _speedup_cell(speedup: Mapping[str, Any]) -> str:
    bounds = speedup["interval"]
    return f"{speedup['median']:.2f}" + (f" ({bounds[0]:.2f}-{bounds[1]:.2f})" if bounds else "")


def _or_dash(value: Any, text: Callable[[Any], str]) -> str:
    return "-" if value is None else text(value)
