"""Records of a benchmark -> figures, tables of plain text, the last line of output.

Every figure is derived here. Runs that failed, and runs too short to have a speed, are counted
but enter no median. A speed-up compares each drafter with plain decoding in two ways: the ratio of
the medians over all runs, and the median over the prompts of each prompt's own ratio.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

FORMAT = 2  # of the document
RESAMPLES = 2000  # of the bootstrap
COVERAGE = 95  # per cent, of its interval
PARTS = (
    "prompt",
    "draft",
    "target",
    "verify",
    "overhead",
)  # of a run's time, and there is no other
DEPTHS = 4  # of a draft, that a table shows

Record = Mapping[str, Any]
Figures = Mapping[str, Any]
Summary = dict[str, dict[str, dict[str, Any]]]  # drafter -> kind of work or "all" -> figures
Column = tuple[str, Callable[[Figures], str]]


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


def around(document: Mapping[str, Any]) -> str:
    """What is of the whole benchmark, in a line."""
    peak = document["peak_rss_mb"]
    memory = f"{peak:.0f} MB" if peak else "unknown"
    energy = document["energy_source"] or "not told by this machine"
    return f"loaded in {document['load_s']:.2f} s, peak memory {memory}, energy {energy}"


def last_line(document: Mapping[str, Any]) -> str:
    """The document on one line of JSON."""
    return json.dumps(document, allow_nan=False)


# Figures


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


def token_ms(step_ms: Sequence[float], step_tokens: Sequence[int]) -> np.ndarray:
    """Milliseconds of each token: a step's are shared equally by the tokens it emitted.

    >>> token_ms([6.0, 2.0], [3, 1])
    array([2., 2., 2., 2.])
    """
    tokens = np.array(step_tokens, dtype=np.int64)
    return np.repeat(np.array(step_ms, dtype=float) / np.maximum(tokens, 1), tokens)


def percentiles(step_ms: Sequence[float], step_tokens: Sequence[int]) -> dict[str, float | None]:
    """Median, 95th and 99th percentile of a token's milliseconds, None of no token."""
    names = ("token_ms_p50", "token_ms_p95", "token_ms_p99")
    each = token_ms(step_ms, step_tokens)
    if not each.size:
        return dict.fromkeys(names)
    return dict(zip(names, np.percentile(each, [50, 95, 99]).tolist(), strict=True))


def shares(runs: Sequence[Record]) -> dict[str, float] | None:
    """Of the time of all runs, how much each part took; together they are 1. None of no time."""
    total = sum(run["wall_s"] for run in runs)
    if not total:
        return None
    return {part: sum(run[f"{part}_s"] for run in runs) / total for part in PARTS}


def accepted_at(runs: Sequence[Record]) -> list[float]:
    """By depth, of the steps that drafted so deep, in how many the draft was accepted so deep."""
    tried, right = Counter[int](), Counter[int]()
    for run in runs:
        for depth, (steps, share) in enumerate(
            zip(run["tried_at"], run["accepted_at"], strict=True)
        ):
            tried[depth] += steps
            right[depth] += round(steps * share)
    return [right[depth] / tried[depth] for depth in sorted(tried)]


def joules_per_token(runs: Iterable[Record]) -> float | None:
    """None where the machine does not tell."""
    told = [run for run in runs if run["energy_j"] is not None]
    tokens = sum(run["tokens"] for run in told)
    return sum(run["energy_j"] for run in told) / tokens if tokens else None


def ratios(runs: Sequence[Record], plain: Sequence[Record], speed: str) -> dict[str, float]:
    """By prompt, how many times as fast as plain; the speed of a prompt is its runs' median."""
    ours, plains = _by_prompt(runs, speed), _by_prompt(plain, speed)
    return {prompt: ours[prompt] / plains[prompt] for prompt in ours if plains.get(prompt)}


def speedup(runs: Sequence[Record], plain: Sequence[Record], speed: str) -> dict[str, Any] | None:
    """How many times as fast as plain; None where the two have no prompt in common."""
    by_prompt = ratios(runs, plain, speed)
    if not by_prompt:
        return None
    slowest = min(by_prompt, key=lambda prompt: by_prompt[prompt])
    each = list(by_prompt.values())
    return {
        "of_medians": median(run[speed] for run in runs) / median(run[speed] for run in plain),
        "median": median(each),
        "interval": interval(each),
        "prompts": len(each),
        "slowest": {"prompt": slowest, "ratio": by_prompt[slowest]},
    }


def _pick(records: Sequence[Record], drafter: str, kind: str | None = None) -> list[Record]:
    return [r for r in records if r["drafter"] == drafter and kind in (None, r["kind"])]


def _figures(runs: Sequence[Record], plain: Sequence[Record]) -> dict[str, Any]:
    done = [run for run in runs if run["error"] is None]
    timed = _timed(runs)
    drafted = sum(run["drafted"] for run in done)
    steps = sum(run["steps"] for run in done)
    compared = [run["identical"] for run in done if run["identical"] is not None]
    step_ms = [ms for run in timed for ms in run["step_ms"]]
    step_tokens = [tokens for run in timed for tokens in run["step_tokens"]]
    return {
        "runs": len(runs),
        "planned": len(plain),
        "failed": len(runs) - len(done),
        "untimed": len(done) - len(timed),
        "tokens": sum(run["tokens"] for run in done),
        "tokens_per_s": quartiles([run["tokens_per_s"] for run in timed]),
        "answer_tokens_per_s": quartiles([run["answer_tokens_per_s"] for run in timed]),
        "ttft_s": quartiles([run["ttft_s"] for run in done]),
        **percentiles(step_ms, step_tokens),
        "acceptance_rate": sum(run["accepted"] for run in done) / drafted if drafted else None,
        "accepted_at": accepted_at(done),
        "tokens_per_step": sum(run["tokens"] for run in done) / steps if steps else 0.0,
        "shares": shares(done),
        "joules_per_token": joules_per_token(done),
        "same_text": sum(compared),
        "other_text": len(compared) - sum(compared),
        "speedup": speedup(timed, _timed(plain), "tokens_per_s"),
        "answer_speedup": speedup(timed, _timed(plain), "answer_tokens_per_s"),
    }


def _timed(runs: Sequence[Record]) -> list[Record]:
    """Runs that have a speed: they did not fail, and took more than one step."""
    return [run for run in runs if run["error"] is None and run["decode_s"] > 0]


def _by_prompt(runs: Sequence[Record], speed: str) -> dict[str, float]:
    """Median speed of each prompt."""
    speeds: dict[str, list[float]] = {}
    for run in runs:
        speeds.setdefault(run["prompt"], []).append(run[speed])
    return {prompt: median(values) for prompt, values in speeds.items()}


# Tables


def _or_dash(name: str, text: Callable[[Any], str]) -> Callable[[Figures], str]:
    return lambda figures: "-" if figures[name] is None else text(figures[name])


def _speed(of: Mapping[str, float]) -> str:
    return f"{of['median']:.1f} ({of['q1']:.1f}-{of['q3']:.1f})"


def _times(of: Mapping[str, Any]) -> str:
    bounds = of["interval"]
    return f"{of['median']:.2f}" + (f" ({bounds[0]:.2f}-{bounds[1]:.2f})" if bounds else "")


def _latency(figures: Figures) -> str:
    found = [figures[f"token_ms_p{p}"] for p in (50, 95, 99)]
    return "-" if None in found else "/".join(f"{ms:.1f}" for ms in found)


def _compared(figures: Figures) -> str:
    compared = figures["same_text"] + figures["other_text"]
    return f"{figures['same_text']}/{compared}" if compared else "-"


def _answered(figures: Figures) -> str:
    """Of those that were planned, where some were not asked."""
    runs, planned = (
        figures["runs"],
        figures.get("planned", figures["runs"]),
    )  # old documents lack it
    return "-" if runs >= planned else f"{runs - figures['failed']} of {planned}"


def _depths(figures: Figures) -> str:
    return " ".join(f"{100 * share:.0f}" for share in figures["accepted_at"][:DEPTHS]) or "-"


def _parts(of: Mapping[str, float]) -> str:
    return "/".join(f"{100 * of[part]:.0f}" for part in PARTS)


SPEED: tuple[Column, ...] = (
    ("decode tok/s (quartiles)", _or_dash("tokens_per_s", _speed)),
    ("decode speed-up (95 %)", _or_dash("speedup", _times)),
    ("slowest", _or_dash("speedup", lambda of: f"{of['slowest']['ratio']:.2f}")),
    ("whole-answer speed-up (95 %)", _or_dash("answer_speedup", _times)),
    ("first token ms", _or_dash("ttft_s", lambda of: f"{1000 * of['median']:.0f}")),
    ("same text", _compared),
    ("answered", _answered),
    ("failed", lambda figures: str(figures["failed"])),
)
STEPS: tuple[Column, ...] = (
    ("token ms p50/p95/p99", _latency),
    ("tokens/step", lambda figures: f"{figures['tokens_per_step']:.2f}"),
    ("accepted", _or_dash("acceptance_rate", lambda rate: f"{rate:.0%}")),
    (f"% at depth 1-{DEPTHS}", _depths),
    (f"time % {'/'.join(PARTS)}", _or_dash("shares", _parts)),
    ("J/token", _or_dash("joules_per_token", lambda joules: f"{joules:.2f}")),
)


def header(columns: Sequence[Column], summary: Summary) -> tuple[str, ...]:
    """The titles of a table."""
    return ("drafter", "work", *(title for title, _ in _told(columns, summary)))


def rows(columns: Sequence[Column], summary: Summary) -> list[tuple[str, ...]]:
    """The cells of a table, a row for each drafter and kind of work."""
    told = _told(columns, summary)
    return [
        (drafter, work, *(text(figures) for _, text in told))
        for drafter, works in summary.items()
        for work, figures in works.items()
    ]


def _told(columns: Sequence[Column], summary: Summary) -> list[Column]:
    """The columns in which anything stands."""
    every = [figures for works in summary.values() for figures in works.values()]
    return [column for column in columns if any(column[1](figures) != "-" for figures in every)]
