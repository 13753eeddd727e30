"""How far a draft model gets: by its own certainty where it drafts, else by the target's.

A draft model's certainty of a token is the probability it gives to its best one; it drafts on while
all its tokens are likely right. Where it is not asked, the target's certainty of what it wrote
tells as much: what the target is sure of, a smaller model of its kind gets right too. So a text
shows while it is written plainly what a draft model would do for it, before that has read anything.
How often tokens of a certainty are right is learned; before that it is believed as it stands.
"""

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt

EDGES = (0.3, 0.5, 0.7, 0.85, 0.95, 0.99)  # of what is counted together
BELIEVED = (0.25, 0.42, 0.62, 0.8, 0.92, 0.97, 0.99)  # right, where nothing was counted
TRUST = 10.0  # counts that this is worth
FADE, SLOWLY = 0.9, 0.995  # of the past, within a text and over all
FORGOTTEN = 0.05  # of what was counted, with each text, so that no draft model is given up for good
DEEPEST = 8  # tokens asked of a drafter that costs time
DRAFTED, EMITTED = 2.5, 2.8  # tokens of a step, where nothing is known; a 0.5B for its 1.5B emits
# 2.0 to 2.5 in a chat or a summary, 3.5 in code, 7 where it extracts
WEIGHT = 4.0  # steps that this, or what all texts so far say, is worth in a new text
LATELY = 0.9  # of a text's tokens, at each that was written without the draft model
WASTED = DRAFTED - EMITTED + 1  # tokens of a draft that are in vain
SHOWN = 4.0  # drafts that it counts in a text that first tokens are right as often as foreseen
FEW, MANY = 1e-3, 1e6  # ends of drafts, where none was seen; tokens to an end, at most
LONGEST = 20.0  # the same in what a text starts from, so that it soon learns otherwise


@dataclass(slots=True)
class Certainty:
    """Of one draft model: what its certainty is worth, or the target's."""

    _right: list[float] = field(default_factory=lambda: [TRUST * p for p in BELIEVED])
    _all: list[float] = field(default_factory=lambda: [TRUST] * len(BELIEVED))

    def chance(self, certainty: float) -> float:
        """How likely a token of that certainty is right, if those before it were."""
        place = bisect(EDGES, certainty)
        return self._right[place] / self._all[place]

    def observe(self, certainties: Sequence[float], right: int) -> None:
        """Of tokens of these certainties the first `right` were; the next one, if any, was not."""
        rights, alls = self._right, self._all
        for i, certainty in enumerate(certainties[: right + 1]):
            place = bisect(EDGES, certainty)
            rights[place] = SLOWLY * rights[place] + (i < right)
            alls[place] = SLOWLY * alls[place] + 1

    def forget(self) -> None:
        """A little of what was counted, for what was believed before."""
        for place, believed in enumerate(BELIEVED):
            self._right[place] += FORGOTTEN * (TRUST * believed - self._right[place])
            self._all[place] += FORGOTTEN * (TRUST - self._all[place])


@dataclass(slots=True)
class Stopped:
    """Drafts of at most DEEPEST tokens that stop by themselves: how long they are, what their steps
    emit. A draft ends at a token that is wrong or uncertain, so what is counted are the tokens of a
    text and such ends among them."""

    drafted: float = DRAFTED
    emitted: float = EMITTED
    fade: float = FADE
    _ends: float = WEIGHT
    _tokens: float = field(init=False)
    _wasted: float = field(init=False)  # tokens of a draft that were wrong, or cut off by these
    _chance: float = 1.0  # that all is right since the latest end, in a draft that is foreseen
    going: int = 0  # tokens of it
    _right: float = SHOWN  # first tokens of drafts in this text, and how many were foreseen to be
    _foreseen: float = SHOWN

    def __post_init__(self) -> None:
        self._tokens = WEIGHT * between(self.emitted)
        self._wasted = self.drafted - (self.emitted - 1)
        self.drafted, self.emitted = self._steps(self._ends)

    def observe(self, drafted: int, emitted: int) -> None:
        """Of a step."""
        self._tokens = self.fade * self._tokens + emitted
        self._ends = self.fade * self._ends + (emitted <= DEEPEST)
        self._wasted += (drafted - (emitted - 1) - self._wasted) / (self._ends + 1)
        self.drafted, self.emitted = self._steps(self._ends)

    def show(self, chance: float, right: bool) -> None:
        """Of a draft's first token, whether it was right where that was foreseen with a chance."""
        self._right += right
        self._foreseen += chance

    def foresee(self, chance: float, floor: float) -> None:
        """Of a token that was written without the draft model, which would have had it right with
        such a chance, and stopped at all chances below a floor."""
        self._chance *= chance * min(1.0, self._right / self._foreseen)
        self.going += 1
        self._wasted += (1 - LATELY) * (WASTED - self._wasted)
        self._tokens = LATELY * self._tokens + 1
        self._ends *= LATELY
        if self._chance < floor:
            self._ends += 1
            self.going = DEEPEST
        if self.going == DEEPEST:
            self._chance, self.going = 1.0, 0
        self.drafted, self.emitted = self._steps(self._ends)

    def doubted(self, deviations: float) -> tuple[float, float]:
        """Drafted and emitted, if ends were more by so many of their standard deviations, as for
        events at random (Poisson)."""
        return self._steps(self._ends + deviations * sqrt(self._ends))

    def _steps(self, ends: float) -> tuple[float, float]:
        emitted = emits(self._tokens / max(ends, FEW))
        return min(max(self._wasted + emitted - 1, 1.0), DEEPEST), emitted


def emits(tokens: float) -> float:
    """Tokens of a step, where one of so many ends a draft: the sum of a geometric series.

    >>> emits(1.0), round(emits(1e9), 3)
    (1.0, 9.0)
    """
    end = 1 / min(max(tokens, 1.0), MANY)
    return (1 - (1 - end) ** (DEEPEST + 1)) / end


def between(emitted: float) -> float:
    """The inverse of `emits`, by bisection; LONGEST at most.

    >>> round(emits(between(3.5)), 2)
    3.5
    """
    low, high = 1.0, LONGEST
    while high > 1.001 * low:
        middle = sqrt(low * high)
        low, high = (middle, high) if emits(middle) < emitted else (low, middle)
    return low


@dataclass(slots=True)
class Watch:
    """Says after each drafted token whether to draft on: while all n so far are right with a chance
    of floor(n) or more."""

    certainty: Certainty
    floor: Callable[[int], float]
    seen: list[float] = field(default_factory=list)
    chance: float = 1.0

    def __call__(self, certainty: float) -> bool:
        self.seen.append(certainty)
        self.chance *= self.certainty.chance(certainty)
        return self.chance >= self.floor(len(self.seen))
