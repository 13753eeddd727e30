"""Measuring what a bundle costs on this device: the target by rows, draft models by tokens.

Other programs disturb single measurements, and a machine's speed drifts. So everything is measured
in rounds that go through all cases in another order each time. What counts of a number of rows is
its time over that of one row in the same round, the median over the rounds; and of one row, which
has several turns in a round, the lower quartile: what it takes when little disturbs it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from specrt.runtime.bundle import Manifest, ModelInfo, read_manifest
from specrt.runtime.controller import Fixed
from specrt.runtime.decode import Request, decode
from specrt.runtime.drafters.draft import DraftModel
from specrt.runtime.drafters.none import Plain
from specrt.runtime.interfaces import Context, Drafter, Session
from specrt.runtime.open import open_session
from specrt.runtime.profile import FORMAT, Curve, Drafting, Key, Profile, key
from specrt.runtime.providers import choose, physical_cores

DRAFTED, UNREAD = 4, 64  # tokens of the drafts that are timed, and that are read in one go
THREADS_ROWS = (1, 4)  # what threads are compared by
COMMON = 512  # ids from here on may be missing from a draft model

Progress = Callable[[str, int, int], None]  # stage, done, total


def quiet(stage: str, done: int, total: int) -> None:
    """Shows nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How thoroughly to measure. rows: those that are timed, 1 first; what is between them is
    interpolated. contexts: tokens of text before the step. threads: those to compare, 0 = one per
    physical core. rounds: fewest and most of a curve. seconds: for all curves, of which each takes
    its share; for drafts a tenth. ones: turns of one row in a round. steps: of plain decoding, for
    what the loop takes."""

    rows: tuple[int, ...] = tuple(range(1, 34))  # the root and 32 drafted tokens
    contexts: tuple[int, ...] = (64, 512, 2048)
    threads: tuple[int, ...] = (0,)
    rounds: tuple[int, int] = (5, 15)
    seconds: float = 40.0
    ones: int = 4
    steps: int = 32


BRIEF = Plan(rows=(1, 2, 3, 5, 9, 17), contexts=(128,), rounds=(3, 9), seconds=0.6, ones=2, steps=6)


def tune(folder: Path, provider: str, plan: Plan, show: Progress) -> Profile:
    """Measure a bundle. show: told what is measured, how far, of how much."""
    manifest = read_manifest(folder)
    opener = _opener(folder, manifest, provider)
    threads = _fastest(opener, manifest, plan, show)
    target = opener("target", manifest.model, threads)
    drafters = {
        info.name: DraftModel(opener(info.path, info.model, threads), name=info.name)
        for info in manifest.drafters
    }
    wanted = key(folder, choose(provider, manifest.flavour).provider)
    return measure(target, drafters, plan, wanted, threads, show)


def measure(
    target: Session,
    drafters: Mapping[str, Drafter],
    plan: Plan,
    wanted: Key,
    threads: int,
    show: Progress = quiet,
) -> Profile:
    """Measure graphs that are open; the target's holds no text afterwards. drafters: those that
    take time."""
    room = target.capacity - max(plan.rows) - 1
    contexts = tuple(dict.fromkeys(min(c, room) for c in plan.contexts if min(c, room) > 0))
    curves, prefill = [], 0.0
    for done, context in enumerate(contexts):
        show("curves", done, len(contexts))
        began = perf_counter()
        _read(target, context)
        prefill = max(prefill, context / (perf_counter() - began))
        curves.append(_curve(target, context, plan, plan.seconds / len(contexts)))
    show("curves", len(contexts), len(contexts))
    middle, drafts = curves[len(curves) // 2], []
    for done, (name, drafter) in enumerate(drafters.items()):
        show("drafts", done, len(drafters))
        if found := _drafting(name, drafter, target, middle, plan):
            drafts.append(found)
    if drafts:
        show("drafts", len(drafts), len(drafts))
    overhead = _overhead(target, plan.steps)
    target.keep(0)
    return Profile(
        format=FORMAT,
        key=wanted,
        brief=plan == BRIEF,
        threads=threads,
        curves=tuple(curves),
        drafts=tuple(drafts),
        prefill=round(prefill),
        overhead_us=_us(overhead),
    )


def rounds(
    cases: Sequence[Callable[[], object]], least: int, most: int, until: float
) -> np.ndarray:
    """Seconds of each case in each round, (rounds, cases): `least` rounds, and more until the clock
    says `until`, at most `most`. A first round is run and forgotten."""
    taken: list[np.ndarray] = []
    rng = np.random.default_rng(0)
    for number in range(most + 1):
        row = np.zeros(len(cases))
        for case in rng.permutation(len(cases)):
            began = perf_counter()
            cases[case]()
            row[case] = perf_counter() - began
        taken.append(row)
        if number >= least and perf_counter() > until:
            break
    return np.array(taken[1:])


def _opener(
    folder: Path, manifest: Manifest, provider: str
) -> Callable[[str, ModelInfo, int], Session]:
    def opener(graph: str, model: ModelInfo, threads: int) -> Session:
        path = folder / graph / "model.onnx"
        return open_session(path, model, manifest.flavour, provider=provider, threads=threads)

    return opener


def _fastest(
    opener: Callable[[str, ModelInfo, int], Session],
    manifest: Manifest,
    plan: Plan,
    show: Progress,
) -> int:
    """Of the numbers of threads the one that is fastest over a step of one row and one of a few."""
    counts = [count or physical_cores() for count in plan.threads]
    if len(counts) == 1:
        return counts[0]
    taken: dict[int, float] = {}
    for done, count in enumerate(counts):
        show("threads", done, len(counts))
        session = opener("target", manifest.model, count)
        _read(session, 64)
        cases = [_step(session, 64, rows) for rows in THREADS_ROWS]
        least, most = plan.rounds
        found = rounds(cases, least, 2 * most, perf_counter() + plan.seconds / 10)
        quartile = np.percentile(found, 25, axis=0)
        taken[count] = float(quartile.sum())
    show("threads", len(counts), len(counts))
    return min(taken, key=lambda count: taken[count])


def _curve(target: Session, context: int, plan: Plan, seconds: float) -> Curve:
    cases = [_step(target, context, rows) for rows in (*[1] * (plan.ones - 1), *plan.rows)]
    found = rounds(cases, *plan.rounds, perf_counter() + seconds)
    ones, ratios = found[:, : plan.ones], found[:, plan.ones - 1 :]
    ratios = ratios / ones.mean(axis=1, keepdims=True)
    lower, middle, upper = np.percentile(ratios, [25, 50, 75], axis=0)
    every = np.arange(1, max(plan.rows) + 1)
    v = np.interp(every, plan.rows, rising([1.0, *middle[1:]]))
    one = float(np.percentile(ones, 25))
    spread = float(np.median((upper - lower) / middle))
    return Curve(context, tuple(_us(one * x) for x in v), round(1000 * spread))


def rising(values: Sequence[float]) -> np.ndarray:
    """The values, moved as little as makes none less than the one before it: more rows never take
    less time.

    >>> rising([1.0, 3.0, 2.0, 4.0])
    array([1. , 2.5, 2.5, 4. ])
    """
    up = np.maximum.accumulate(values)
    down = np.minimum.accumulate(values[::-1])[::-1]
    middle: np.ndarray = (up + down) / 2
    return middle


def _drafting(
    name: str, drafter: Drafter, target: Session, curve: Curve, plan: Plan
) -> Drafting | None:
    """Times of a draft model after the text of a curve, told by those of the target's one row in
    the same rounds; None if it cannot hold a text so long."""
    text, unread = _tokens(target.vocab, curve.context), min(UNREAD, curve.context // 2)
    other = [*text[: len(text) - unread], *text[::-1][:unread]]
    rng, turns = np.random.default_rng(0), [text, other]

    def draft() -> None:
        drafter.propose(Context(turns[0]), DRAFTED, rng)

    def catch_up() -> None:
        turns.reverse()
        drafter.propose(Context(turns[0]), 1, rng)

    if not drafter.propose(Context(text), DRAFTED, rng).size:
        return None
    cases = [_step(target, curve.context, 1), draft, catch_up]
    found = rounds(cases, *plan.rounds, perf_counter() + plan.seconds / 10)
    drafting, reading = np.median(found[:, 1:] / found[:, :1], axis=0) * curve.us[0]
    token = drafting / DRAFTED
    return Drafting(name, max(round(token), 1), max(round((reading - token) / (unread - 1)), 1))


def _overhead(target: Session, steps: int) -> float:
    """Seconds of a plain step that are not the graph's."""
    request = Request(tuple(_tokens(target.vocab, 16)), max_tokens=steps)
    outside, began = [], perf_counter()
    for step in decode(target, Plain(), Fixed(0), request):
        outside.append(perf_counter() - began - step.seconds[1] - step.prefill_s)
        began = perf_counter()
    return float(np.percentile(outside[1:], 25))


def _read(target: Session, context: int) -> None:
    """Have the cache hold a text of `context` tokens."""
    target.keep(0)
    tokens = _tokens(target.vocab, context)
    for start in range(0, context, 512):
        target.forward(tokens[start : start + 512])


def _step(target: Session, context: int, rows: int) -> Callable[[], None]:
    tokens = _tokens(target.vocab, context + rows)[context:]

    def step() -> None:
        target.keep(context)
        target.forward(tokens, last=rows)

    return step


def _tokens(vocab: int, count: int) -> list[int]:
    """A text of no meaning, which does not change what it costs."""
    tokens: list[int] = np.random.default_rng(0).integers(0, min(vocab, COMMON), count).tolist()
    return tokens


def _us(seconds: float) -> int:
    return max(round(1e6 * seconds), 1)
