"""What a draft model's own certainty is worth, and where its drafts stop by it.

A draft model's certainty of a token is the probability it gives to its best one. How often such a
token is then right is learned, certainty by certainty; before that it is believed as it stands.
"""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

EDGES = (0.3, 0.5, 0.7, 0.85, 0.95, 0.99)  # of what is counted together
BELIEVED = (0.25, 0.42, 0.62, 0.8, 0.92, 0.97, 0.99)  # right, where nothing was counted
TRUST = 10.0  # counts that this is worth
FADE, SLOWLY = 0.95, 0.995  # of the past, within a text and over all
DRAFTED, EMITTED = 2.5, 2.8  # tokens of a step, where nothing is known; a 0.5B for its 1.5B emits
SPREAD = 0.4**2  # 2.0 to 2.5 in a chat or a summary, 3.5 in code, 7 where it extracts
WEIGHT = 4.0  # steps that this, or what all texts so far say, is worth in a new text


@dataclass(slots=True)
class Certainty:
    """Of one draft model."""

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


@dataclass(slots=True)
class Stopped:
    """Drafts that stopped by themselves: how long they were, what their steps emitted. spread:
    twice the mean square by which those of a text emitted less than that; a text whose steps
    emitted more is no reason for doubt."""

    drafted: float = DRAFTED
    emitted: float = EMITTED
    fade: float = FADE
    spread: float = SPREAD
    _weight: float = WEIGHT

    def observe(self, drafted: int, emitted: int, in_text: float | None = None) -> None:
        """Of a step; in_text: the mean of what its text's steps emitted, where these are all."""
        self._weight = self.fade * self._weight + 1
        self.drafted += (drafted - self.drafted) / self._weight
        self.emitted += (emitted - self.emitted) / self._weight
        if in_text is not None:
            less = max(self.emitted - in_text, 0.0)
            self.spread += (1 - self.fade) * (2 * less**2 - self.spread)


@dataclass(slots=True)
class Watch:
    """Says after each drafted token whether to draft on: while all so far are right with a chance
    of `floor` or more."""

    certainty: Certainty
    floor: float
    seen: list[float] = field(default_factory=list)
    chance: float = 1.0

    def __call__(self, certainty: float) -> bool:
        self.seen.append(certainty)
        self.chance *= self.certainty.chance(certainty)
        return self.chance >= self.floor
