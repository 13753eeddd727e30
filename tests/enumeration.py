"""The exact law of a function that draws at random: every branch taken once, with its weight.

`verify` draws in two ways only, "u q < p" and `draw`; both are replaced by a choice whose options
have known probabilities, and the function is run again for every choice not yet taken.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import pytest

from specrt.runtime import verify as verify_module
from specrt.runtime.distribution import Distribution
from specrt.runtime.proposal import Proposal
from specrt.runtime.sampling import Sampling
from specrt.runtime.verify import Verdict, verify

T = TypeVar("T")


class Uniform:
    """A uniform number that is only known by the comparison it decides."""

    def __init__(self, branches: "Branches", scale: float = 1.0) -> None:
        self.branches, self.scale = branches, scale

    def __mul__(self, scale: float) -> "Uniform":
        return Uniform(self.branches, self.scale * scale)

    def __lt__(self, bound: float) -> bool:
        chance = min(1.0, bound / self.scale)
        return self.branches.choose([chance, 1 - chance]) == 0


class Branches:
    """Stands in for the random generator: follows a script, then takes the first way open."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script, self.taken, self.weight = script, [], 1.0
        self.open: list[list[int]] = []  # at each choice, the ways not taken

    def random(self) -> Uniform:
        return Uniform(self)

    def choose(self, chances: Sequence[float]) -> int:
        ways = [i for i, chance in enumerate(chances) if chance > 0]
        scripted = len(self.taken) < len(self.script)
        way = self.script[len(self.taken)] if scripted else ways[0]
        self.open.append([] if scripted else ways[1:])
        self.taken.append(way)
        self.weight *= chances[way]
        return way


def branching_draw(p: Distribution, rng: Branches) -> int:
    index = rng.choose(list(p.probs))
    return index if p.ids is None else int(p.ids[index])


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


def verdicts(proposal: Proposal, rows: np.ndarray) -> dict[Verdict, float]:
    """The law of the verdict where the target's probabilities are rows (n + 1, V)."""
    with np.errstate(divide="ignore"):
        logits = np.log(np.asarray(rows, np.float64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_module, "draw", branching_draw)
        return law_of(lambda branches: verify(proposal, logits, Sampling(1.0), branches))


def emitted(proposal: Proposal, verdict: Verdict) -> tuple[int, ...]:
    return (*(int(proposal.tokens[node]) for node in verdict.path), verdict.bonus)


def first_token_law(drafts: Iterable[tuple[float, Proposal]], p: Sequence[float]) -> np.ndarray:
    """(V,): the law of the first token emitted, over proposals given with their probabilities,
    where the target's law is p after every text."""
    law = np.zeros(len(p))
    for weight, proposal in drafts:
        for verdict, chance in verdicts(proposal, np.tile(p, (proposal.size + 1, 1))).items():
            law[emitted(proposal, verdict)[0]] += weight * chance
    return law


def expected(
    drafts: Iterable[tuple[float, Proposal]], p: Sequence[float], count: Callable[[Verdict], float]
) -> float:
    """The mean of count(verdict), likewise."""
    return sum(
        weight * chance * count(verdict)
        for weight, proposal in drafts
        for verdict, chance in verdicts(proposal, np.tile(p, (proposal.size + 1, 1))).items()
    )
