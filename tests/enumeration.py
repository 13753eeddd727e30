"""The exact law of a verification rule: every branch of its own code taken once, with its weight.

A rule decides by chance in two ways only, `draw` and `accepts`. Branches stands in for the source
of both: each is a choice whose options have known probabilities, and the rule is run again for
every choice not yet taken.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TypeVar

import numpy as np

from specrt.runtime.distribution import Distribution
from specrt.runtime.proposal import NOTHING, Proposal
from specrt.runtime.rules import Rule, named
from specrt.runtime.sampling import Sampling
from specrt.runtime.scored import Scored
from specrt.runtime.verify import Verdict, verify

T = TypeVar("T")
Drafts = Iterator[tuple[float, Proposal]]  # proposals with their probabilities
Model = Callable[[tuple[int, ...]], np.ndarray]  # text -> (V,) the law of the next token
Rows = Sequence[Sequence[float]] | np.ndarray  # (n + 1, V) the target's laws


class Branches:
    """Stands in for Chance: follows a script, then takes the first way open."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script, self.taken, self.weight = script, [], 1.0
        self.open: list[list[int]] = []  # at each choice, the ways not taken

    def draw(self, p: Distribution, place: int) -> int:
        return int(p.tokens[self._choose(list(p.probs))])

    def accepts(self, p: float, q: float) -> bool:
        chance = min(1.0, p / q) if q else float(p > 0)
        return self._choose([chance, 1 - chance]) == 0

    def _choose(self, chances: Sequence[float]) -> int:
        ways = [i for i, chance in enumerate(chances) if chance > 0]
        scripted = len(self.taken) < len(self.script)
        way = self.script[len(self.taken)] if scripted else ways[0]
        self.open.append([] if scripted else ways[1:])
        self.taken.append(way)
        self.weight *= chances[way]
        return way


def law_of(run: Callable[[Branches], T]) -> dict[T, float]:
    """The probability of every outcome of `run`."""
    law: dict[T, float] = defaultdict(float)
    scripts: list[list[int]] = [[]]
    while scripts:
        branches = Branches(scripts.pop())
        law[run(branches)] += branches.weight
        for place, ways in enumerate(branches.open):
            scripts += [[*branches.taken[:place], way] for way in ways]
    return law


def scored(proposal: Proposal, rows: Rows) -> Scored:
    """A proposal before a target whose probabilities are `rows`."""
    with np.errstate(divide="ignore"):
        logits = np.log(np.asarray(rows, np.float64))
    return Scored(proposal, logits, Sampling(1.0), (0,))


def verdicts(proposal: Proposal, rows: Rows, rule: str | Rule) -> dict[Verdict, float]:
    """The law of the verdict."""
    answer, rule = scored(proposal, rows), named(rule) if isinstance(rule, str) else rule
    return law_of(lambda branches: verify(answer, rule, branches))


def emitted(proposal: Proposal, verdict: Verdict) -> tuple[int, ...]:
    return (*(int(proposal.tokens[node]) for node in verdict.path), verdict.bonus)


def texts(proposal: Proposal) -> list[tuple[int, ...]]:
    """What each row of the target has read since the root: nothing, then each node's path."""
    rows: list[tuple[int, ...]] = [()]
    for token, parent in zip(proposal.tokens.tolist(), proposal.parents.tolist(), strict=True):
        rows.append((*rows[parent + 1], token))
    return rows


def outcomes(
    drafts: Iterable[tuple[float, Proposal]], target: Model, rule: str
) -> Iterator[tuple[float, Proposal, Verdict]]:
    """Every draft with every verdict on it, and the probability of both."""
    for weight, proposal in drafts:
        rows = np.array([target(text) for text in texts(proposal)])
        for verdict, chance in verdicts(proposal, rows, rule).items():
            yield weight * chance, proposal, verdict


def text_law(
    drafts: Iterable[tuple[float, Proposal]], target: Model, rule: str | Rule, horizon: int
) -> np.ndarray:
    """(V,) * horizon: the law of the first `horizon` tokens, where the target writes on alone after
    the step."""

    @cache
    def written(start: tuple[int, ...]) -> np.ndarray:
        """The law of the target's own tokens from `start` up to the horizon."""
        if len(start) == horizon:
            return np.array(1.0)
        row = target(start)
        return np.array([row[token] * written((*start, token)) for token in range(row.size)])

    law = np.zeros_like(written(()))
    for weight, proposal, verdict in outcomes(drafts, target, rule):
        start = emitted(proposal, verdict)[:horizon]
        law[start] += weight * written(start)
    return law


def target_law(target: Model, horizon: int) -> np.ndarray:
    """(V,) * horizon: what the target writes alone."""
    return text_law([(1.0, NOTHING)], target, "membership", horizon)


def total_variation(a: np.ndarray, b: np.ndarray) -> float:
    return float(abs(a - b).sum() / 2)


def expected(
    drafts: Iterable[tuple[float, Proposal]],
    target: Model,
    rule: str | Rule,
    count: Callable[[Verdict], float] = lambda verdict: len(verdict.path),
) -> float:
    """The mean of count(verdict); as it stands, of accepted tokens."""
    return sum(chance * count(verdict) for chance, _, verdict in outcomes(drafts, target, rule))
