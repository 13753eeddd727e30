"""Random numbers, for the target's decisions and for drafts.

Noise belongs to the places of a text: which token a law gives at a place depends on the seed, the
place and the law, and on nothing else. So whoever draws there, in whichever step, after however
many other draws, draws the same token, and text written with drafts is text written without.
"""

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specrt.runtime.distribution import Distribution, draw, invert

LIKELY = 2.0**-15  # tokens less likely than this share one number: few tokens, little mass
REST, WITHIN, FIRST = 0, 1, 2  # counters at a place: all unlikely tokens, one of them, token 0
PLACE, STEP = 0xD1342543DE82EF95, np.uint64(0x9E3779B97F4A7C15)  # odd, of no pattern
MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Noise:
    """An exponential number for each token at each place of the text. start: from `noise`."""

    start: int

    def draw(self, p: Distribution, place: int) -> int:
        """The winner of a race in which token x arrives at its own exponential number over p(x):
        an exact draw from p, and the same token for similar laws as far as can be. (It is the
        Gumbel-max draw; log p(x) plus Gumbel noise orders the tokens alike.)

        The tokens below LIKELY run as one; if that one wins, a number picks among them. Without
        this a row of 152k tokens would need as many numbers.
        """
        if p.ids is not None and p.ids.size == 1:
            return int(p.ids[0])
        likely = np.flatnonzero(p.probs >= LIKELY)
        weights = p.probs[likely].astype(np.float64)
        counters = (likely if p.ids is None else p.ids[likely]) + FIRST
        if likely.size < p.probs.size:
            rest = max(float(p.probs.sum(dtype=np.float64)) - float(weights.sum()), 0.0)
            weights, counters = np.append(weights, rest), np.append(counters, REST)
        with np.errstate(divide="ignore"):  # a weight of 0 never arrives
            times = -np.log(self._uniform(place, counters)) / weights
        winner = int(times.argmin())
        if counters[winner] == REST:
            unlikely = p.probs.copy()
            unlikely[likely] = 0
            if unlikely.any():
                u = float(self._uniform(place, np.array([WITHIN]))[0])
                return int(p.tokens[invert(unlikely, u)])
            winner = int(times[:-1].argmin())  # the rest's weight was rounding
        return int(counters[winner]) - FIRST

    def _uniform(self, place: int, counters: NDArray[np.int64]) -> NDArray[np.float64]:
        """(m,) independent numbers, above 0 and below 1, for counters (m,) at a place: SplitMix64
        at the counters' steps, which any one of them reaches alone."""
        x = counters.astype(np.uint64) * STEP + np.uint64((self.start + place * PLACE) & MASK)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        uniform: NDArray[np.float64] = ((x >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        return uniform


def fresh_seed() -> int:
    """A seed for a request that gave none: 32 bits from the system."""
    return int.from_bytes(os.urandom(4))


def noise(seed: int) -> Noise:
    """The noise of a request."""
    return Noise(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]))


@dataclass(frozen=True, slots=True)
class Chance:
    """What decides: a generator, and under coupling the text's noise, which then draws all tokens
    of the target."""

    rng: "np.random.Generator"
    noise: Noise | None = None

    def draw(self, p: Distribution, place: int) -> int:
        """A token from p for a place of the text."""
        return draw(p, self.rng) if self.noise is None else self.noise.draw(p, place)

    def accepts(self, p: float, q: float) -> bool:
        """True with probability min(1, p / q); with q 0, wherever p is more."""
        return float(self.rng.random()) * q < p
