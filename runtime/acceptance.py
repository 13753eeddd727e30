"""How often a kind of draft is right, level by level, counted with the past fading.

What is kept is conditional: the share, of the drafts whose first d tokens were right, whose next
one was right too. A level that was seldom reached leans on the one before it.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

from specrt.runtime.alike import Past
from specrt.runtime.confidence import SLOWLY, Certainty, Stopped
from specrt.runtime.costs import MOST_ROWS
from specrt.runtime.staying import Ends

MOST = MOST_ROWS - 1  # levels kept
FADE = 0.95  # of the counts at a level, at each new one: about the last 20 count
TRUST = 4.0  # counts that what is known beforehand is worth, at each level
PRIORS = {
    "ngram 2": 0.4,
    "ngram 3": 0.55,
    "ngram 4": 0.7,
    "draft": 0.65,
    "grammar": 0.95,
}  # first tokens right
UNKNOWN = 0.5  # for any other kind

Believe = Callable[[float, float], float]  # counts of right and wrong -> the probability to act on


def mean(right: float, wrong: float) -> float:
    """The share that is right.

    >>> mean(3, 1)
    0.75
    """
    return right / (right + wrong)


class Acceptance:
    """Of one kind of draft. prior: the probabilities to start from, by level."""

    def __init__(self, prior: Sequence[float], fade: float = FADE) -> None:
        self._prior, self._fade = prior, fade
        self._right, self._wrong = [0.0] * MOST, [0.0] * MOST
        self._means: list[float] = []  # as many as were asked for since the latest observation

    def observe(self, right: int, drafted: int) -> None:
        """Of a draft of so many tokens in a row, the first `right` were."""
        fade, self._means = self._fade, []
        rights, wrongs = self._right, self._wrong
        for level in range(min(right, MOST)):
            rights[level] = rights[level] * fade + 1
            wrongs[level] *= fade
        if right < min(drafted, MOST):
            rights[right] *= fade
            wrongs[right] = wrongs[right] * fade + 1

    def rates(self, levels: int = MOST, believe: Believe = mean) -> list[float]:
        """The probability that a token is right after those before it were, by level."""
        if believe is mean and levels <= len(self._means):
            return self._means[:levels]
        rates: list[float] = []
        moved = 0.0  # how far the level before came away from what was known of it beforehand
        for prior, right, wrong in zip(
            self._prior[:levels], self._right, self._wrong, strict=False
        ):
            known = prior + moved
            known = 0.02 if known < 0.02 else 0.98 if known > 0.98 else known
            right += TRUST * known
            wrong += TRUST * (1 - known)
            rate = right / (right + wrong)
            rates.append(rate if believe is mean else believe(right, wrong))
            moved = rate - prior
        if believe is mean:
            self._means = rates
        return rates[:]


class Habits:
    """What drafts were right how often in all texts so far: where a new text starts from."""

    def __init__(self) -> None:
        self._kinds: dict[str, Acceptance] = {}
        self._certainties = defaultdict[str, Certainty](Certainty)
        self._agreements = defaultdict[str, Certainty](Certainty)
        self._stopped = defaultdict[str, Stopped](partial(Stopped, fade=SLOWLY))
        self.past = Past()
        self.ends = Ends()

    def of(self, kind: str) -> Acceptance:
        if kind not in self._kinds:
            start = PRIORS.get(kind, UNKNOWN)
            self._kinds[kind] = Acceptance([start] * MOST, SLOWLY)
        return self._kinds[kind]

    def certainty(self, kind: str) -> Certainty:
        return self._certainties[kind]

    def agreement(self, kind: str) -> Certainty:
        """How often a draft model is right where the target is so certain."""
        return self._agreements[kind]

    def stopped(self, kind: str) -> Stopped:
        return self._stopped[kind]
