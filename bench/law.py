"""Whether tokens were drawn by the chances that the model gave them.

Of each token it is known with what chance it would be the best of its row, one of the two best, and
so on. Summed over many tokens, of one text or of many, what came and what was to come may differ by
so much and no more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import specrt

RANKS = (1, 2, 3, 5, 10, 20)  # a token may be one of so many best
SIGMA = 5.0  # beyond it no law deviates by accident: 1 of 130,000 at most
ROUNDING, LEAST = 1e-6, 1e-12  # of a chance, and of a variance


@dataclass(frozen=True, slots=True)
class Law:
    """Of n tokens: over (the ranks) how many more were one of the r best than the model's own
    chances say, and the variance of that number."""

    tokens: int
    over: np.ndarray
    variance: np.ndarray

    @classmethod
    def of(cls, results: Sequence[specrt.Result]) -> "Law":
        steps = [step for result in results for step in result.trace.steps]
        seen = [one for step in steps for one in step.logprobs]  # the stop token's too
        over, variance = np.zeros(len(RANKS)), np.zeros(len(RANKS))
        for one in seen:
            chances = np.cumsum(np.exp([chance for _, chance in one.top]))
            best = [token for token, _ in one.top]
            rank = best.index(one.token) if one.token in best else len(best)
            for i, r in enumerate(RANKS):
                p = min(float(chances[min(r, len(best)) - 1]), 1.0)
                over[i] += (rank < r) - p
                variance[i] += p * (1 - p)
        return cls(len(seen), over, variance)

    def __sub__(self, other: "Law") -> "Law":
        return Law(
            self.tokens + other.tokens, self.over - other.over, self.variance + other.variance
        )

    @property
    def sigma(self) -> float:
        """How unlikely the largest deviation is, in standard deviations. An exact law deviates by
        s or more on one side with chance exp(-s²/2) at most: Freedman's inequality, which holds for
        the tokens of one text, each drawn after those before it, and for few and sure ones too."""
        worst = 0.0
        for over, variance in zip(np.abs(self.over), self.variance, strict=True):
            if over > ROUNDING * self.tokens:
                v = max(variance, LEAST)
                u = over / v
                worst = max(worst, 2 * v * ((1 + u) * math.log1p(u) - u))
        return math.sqrt(worst)

    @property
    def noticed(self) -> float:
        """About the share of tokens that must be wrong, all in one way, to be noticed."""
        return SIGMA * math.sqrt(float(self.variance.max())) / max(self.tokens, 1)
