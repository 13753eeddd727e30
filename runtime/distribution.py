"""Probabilities over the vocabulary, kept where there are any.

Everything that draws or compares tokens works on a Distribution, so dense and sparse rows, point
masses and vocabularies padded to different sizes need no special case elsewhere. A token outside
what is kept has probability 0.
"""

from dataclasses import dataclass, replace

import numpy as np

BLOCK = 512  # weights summed together when a draw searches a long row
CERTAIN = np.ones(1)
CERTAIN.flags.writeable = False  # every point mass shares it


@dataclass(frozen=True, slots=True)
class Distribution:
    """probs: (s,) float, not negative, of sum 1. ids: (s,) int64 ascending, the tokens they belong
    to; None: probs[x] belongs to token x."""

    probs: np.ndarray
    ids: np.ndarray | None = None

    @property
    def tokens(self) -> np.ndarray:
        """(s,) int64 ascending, the tokens that are kept."""
        return np.arange(self.probs.size) if self.ids is None else self.ids

    def of(self, token: int) -> float:
        """The probability of one token."""
        index = self._find(token)
        return 0.0 if index is None else float(self.probs[index])

    def at(self, ids: np.ndarray) -> np.ndarray:
        """The probabilities (m,) of tokens (m,)."""
        if self.ids is None:
            inside = ids < self.probs.size
            return np.where(inside, self.probs[np.where(inside, ids, 0)], 0)
        places = np.minimum(np.searchsorted(self.ids, ids), self.ids.size - 1)
        return np.where(self.ids[places] == ids, self.probs[places], 0)

    def dense(self, size: int) -> np.ndarray:
        """(size,) one probability a token."""
        row = np.zeros(size, self.probs.dtype)
        row[self.tokens] = self.probs
        return row

    def without(self, token: int) -> "Distribution":
        """The law of a second, different draw: `token` taken out, the rest scaled up. If nothing
        else is left, returns itself."""
        index = self._find(token)
        if index is None:
            return self
        rest = self.probs.copy()
        rest[index] = 0
        return scaled(self, rest)

    def _find(self, token: int) -> int | None:
        if self.ids is None:
            return token if token < self.probs.size else None
        index = int(np.searchsorted(self.ids, token))
        return index if index < self.ids.size and self.ids[index] == token else None


def point(token: int) -> Distribution:
    """All the probability on one token."""
    return Distribution(CERTAIN, np.array([token], np.int64))


def residual(p: Distribution, q: Distribution) -> Distribution:
    """The distribution to draw from after rejecting a token drawn from q.

    Proportional to max(p - q, 0): the mass the target wants and the draft did not offer. If
    rounding leaves nothing, returns p.

    >>> residual(Distribution(np.array([0.5, 0.5])), Distribution(np.array([0.9, 0.1]))).probs
    array([0., 1.])
    """
    return scaled(p, surplus(p, q))


def surplus(p: Distribution, q: Distribution, share: float = 1.0) -> np.ndarray:
    """max(share p - q, 0), (s,) at p's places: what p wants of each token and q did not offer."""
    rest: np.ndarray = p.probs * p.probs.dtype.type(share)
    if p.ids is not None:
        rest = rest - q.at(p.ids)
    elif q.ids is None:
        shared = min(rest.size, q.probs.size)
        rest[:shared] -= q.probs[:shared]
    else:
        shared = int(np.searchsorted(q.ids, rest.size))
        rest[q.ids[:shared]] -= q.probs[:shared].astype(rest.dtype)
    np.maximum(rest, 0, out=rest)
    return rest


def draw(p: Distribution, rng: "np.random.Generator") -> int:
    """One token: the inverse of the running total at a uniform number scaled by the total itself,
    so rounding never yields a token of weight zero. A single token needs no number."""
    if p.ids is not None and p.ids.size == 1:
        return int(p.ids[0])
    index = invert(p.probs, rng.random())
    return index if p.ids is None else int(p.ids[index])


def scaled(p: Distribution, weights: np.ndarray) -> Distribution:
    """p with other weights (same places), scaled to sum 1; p itself if there is no weight."""
    total = weights.sum()
    return replace(p, probs=weights / total) if total > 0 else p


def invert(weights: np.ndarray, u: float) -> int:
    """The first index whose running total exceeds u (in [0, 1)) of the whole. Long rows are
    searched by block sums first: a running total over 152k tokens costs over 1 ms."""
    if weights.size < 2 * BLOCK:
        totals = np.cumsum(weights, dtype=np.float64)
        index = int(np.searchsorted(totals, u * totals[-1], side="right"))
        return index if index < weights.size else int(np.flatnonzero(weights)[-1])
    whole = weights.size // BLOCK * BLOCK
    sums = weights[:whole].reshape(-1, BLOCK).sum(axis=1, dtype=np.float64)
    sums = np.append(sums, weights[whole:].sum(dtype=np.float64))
    block = invert(sums, u)
    left = max(u * sums.sum() - sums[:block].sum(), 0.0)
    inside = weights[block * BLOCK : (block + 1) * BLOCK]
    return block * BLOCK + invert(inside, left / sums[block])
