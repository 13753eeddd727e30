"""Measuring what a bundle costs on this device: the target by rows, draft models by tokens.

Other programs disturb single measurements, and a machine's speed drifts. So everything is measured
in rounds that go through all cases in another order each time, and of each case's rounds the lower
quartile counts: what it takes when little disturbs it. One row, by which all others are judged, has
several turns in a round.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from specrt.runtime.bundle import Manifest, ModelInfo, read_manifest
from specrt.runtime.controller import Fixed
from specrt.runtime.costs import MOST_ROWS
from specrt.runtime.decode import Request, decode
from specrt.runtime.drafters.draft import DraftModel
from specrt.runtime.drafters.none import Plain
from specrt.runtime.interfaces import Context, Session
from specrt.runtime.open import open_session
from specrt.runtime.profile import FORMAT, Curve, Drafting, Profile, key
from specrt.runtime.providers import choose, physical_cores

CONTEXTS = (64, 512, 2048)  # tokens of text before the step
ROUNDS = range(5, 16)  # fewest and most of a curve
ONES = 4  # turns of one row in a round
DRAFTED, UNREAD = 4, 64  # tokens of the drafts that are timed, and that are read in one go
OVERHEAD_STEPS = 32
SECONDS = 40.0  # for all curves, of which each takes its share
THREADS_ROWS = (1, 4)  # what threads are compared by

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How thoroughly to measure. threads: those to compare, 0 = one per physical core."""

    rows: int = MOST_ROWS
    contexts: tuple[int, ...] = CONTEXTS
    threads: tuple[int, ...] = (0,)
    seconds: float = SECONDS


def tune(folder: Path, provider: str, plan: Plan, show: Progress) -> Profile:
    """Measure a bundle. show: told what is measured, how far, of how much."""
    manifest = read_manifest(folder)
    opener = _opener(folder, manifest, provider)
    threads = _fastest(opener, manifest, plan, show)
    target = opener("target", manifest.model, threads)
    room = target.capacity - plan.rows - 1
    contexts = tuple(dict.fromkeys(min(c, room) for c in plan.contexts if min(c, room) > 0))
    curves, prefill = [], 0.0
    for done, context in enumerate(contexts):
        show("curves", done, len(contexts))
        began = perf_counter()
        _read(target, context)
        prefill = max(prefill, context / (perf_counter() - began))
        curves.append(_curve(target, context, plan, plan.seconds / len(contexts)))
    show("curves", len(contexts), len(contexts))
    overhead = _overhead(target)
    drafts = []
    for done, info in enumerate(manifest.drafters):
        show("drafts", done, len(manifest.drafters))
        session = opener(info.path, info.model, threads)
        drafts.append(_drafting(info.name, session, min(contexts[len(contexts) // 2], room)))
    if drafts:
        show("drafts", len(drafts), len(drafts))
    return Profile(
        format=FORMAT,
        key=key(folder, choose(provider, manifest.flavour).provider),
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
        found = rounds(cases, ROUNDS[0], 2 * ROUNDS[-1], perf_counter() + plan.seconds / 10)
        quartile = np.percentile(found, 25, axis=0)
        taken[count] = float(quartile.sum())
    show("threads", len(counts), len(counts))
    return min(taken, key=lambda count: taken[count])


def _curve(target: Session, context: int, plan: Plan, seconds: float) -> Curve:
    more = ONES - 1
    cases = [_step(target, context, max(rows, 1)) for rows in range(1 - more, plan.rows + 1)]
    found = rounds(cases, ROUNDS[0], ROUNDS[-1], perf_counter() + seconds)
    lower, upper = np.percentile(found, [25, 75], axis=0)[:, more:]
    lower[0], upper[0] = np.percentile(found[:, : more + 1], [25, 75])
    spread = float(np.median((upper - lower) / lower))
    return Curve(context, tuple(_us(x) for x in lower), round(1000 * spread))


def _drafting(name: str, session: Session, context: int) -> Drafting:
    """Times of a draft model after a text of `context` tokens, or as many as it can hold."""
    context = min(context, session.capacity - DRAFTED - 1)
    text, rng = _tokens(session.vocab, context), np.random.default_rng(0)
    draft, unread = DraftModel(session, name=name), min(UNREAD, context // 2)

    def propose() -> None:
        draft.propose(Context(text), DRAFTED, rng)

    def catch_up() -> None:
        session.keep(context - unread)
        session.forward(text[context - unread :])

    propose()
    found = np.percentile(rounds([propose, catch_up], 9, 15, perf_counter() + 3), 25, axis=0)
    token = float(found[0]) / DRAFTED
    return Drafting(name, _us(token), _us(float(found[1]) / unread))


def _overhead(target: Session) -> float:
    """Seconds of a plain step that are not the graph's."""
    target.keep(0)
    request = Request(tuple(_tokens(target.vocab, 16)), max_tokens=OVERHEAD_STEPS)
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
    """A text of no meaning; what it says does not change what it costs."""
    tokens: list[int] = np.random.default_rng(0).integers(0, vocab, count).tolist()
    return tokens


def _us(seconds: float) -> int:
    return max(round(1e6 * seconds), 1)
