"""Logits to a distribution. Greedy decoding is the point mass of temperature 0.

The order is the one transformers uses: processors, temperature, top-k, top-p, min-p, typical-p.
Each sees what the one before left, scaled to sum 1. Where tokens tie at a cut, the lower id stays,
so exactly top_k tokens remain and a nucleus is the smallest one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specrt.runtime.distribution import Distribution, point
from specrt.runtime.errors import BundleError, RequestError
from specrt.runtime.processors import NONE, Processors

BINS, BINS_A_NAT = 4096, 64  # of typical-p's distances
NEAR = 20.0  # nats below the best: few tokens are nearer, and the others weigh next to nothing
COLUMNS = 2048  # groups whose maxima bound the k-th largest of a long row from below


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. temperature 0: the most likely. top_k 0, top_p 1, min_p 0,
    typical_p 1: off. min_p: drop tokens less likely than min_p times the most likely one.
    typical_p: keep so much of the mass, of tokens whose surprise is nearest the entropy.
    processors: what is changed in the logits first, greedy or not."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    processors: Processors = NONE

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise RequestError(f"temperature must be 0 or more, not {self.temperature}")
        if self.top_k < 0:
            raise RequestError(f"top_k must be 0 (off) or more, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p must be above 0 and at most 1 (off), not {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise RequestError(f"min_p must be between 0 (off) and 1, not {self.min_p}")
        if not 0 < self.typical_p <= 1:
            raise RequestError(
                f"typical_p must be above 0 and at most 1 (off), not {self.typical_p}"
            )

    def within(self, prompt: int, stop: frozenset[int], vocab: int) -> "Sampling":
        """This for a text whose prompt has `prompt` tokens and which `stop` tokens end."""
        if self.processors.idle:
            return self
        return replace(self, processors=self.processors.within(prompt, stop, vocab))

    def processed(self, logits: np.ndarray, text: Sequence[int] = ()) -> np.ndarray:
        """The row of logits (V,) after `text` as the request wants it, before temperature and
        cuts. RequestError where nothing is left to choose from."""
        if self.processors.idle:
            return logits
        row = self.processors.apply(logits, text)
        if not math.isfinite(row.max()) and math.isfinite(logits.max()):
            raise RequestError(
                f"the request's processors leave no token to follow the {len(text)} so far: ban "
                "fewer, or see that the custom one returns finite logits"
            )
        return row

    def distribution(self, logits: np.ndarray, text: Sequence[int] = ()) -> Distribution:
        """The law of the next token after `text`, which gave one row of logits (V,). BundleError
        on rows that give none: NaN or nothing finite."""
        logits = self.processed(logits, text)
        best = int(logits.argmax())  # the first NaN, if there is one
        top = logits[best]
        if not math.isfinite(top):
            raise BundleError(
                f"the model's logits have no finite maximum but {top} at token {best} of "
                f"{logits.size}; its weights or its export are broken: export it again"
            )
        if self.temperature == 0:
            return point(best)
        ids = top_k(logits, self.top_k) if 0 < self.top_k < logits.size else None
        if self.top_p < 1:
            ids, weights = self._nucleus(logits, top, ids)
        else:
            weights = self._weights(logits, top, ids)
        if self.min_p > 0:
            ids, weights = _subset(ids, weights, np.flatnonzero(weights >= self.min_p))
        if self.typical_p < 1:
            ids, weights = _subset(ids, weights, _typical(weights, self.typical_p))
        return Distribution(weights / weights.sum(), ids)

    def probs(self, logits: np.ndarray, text: Sequence[int] = ()) -> np.ndarray:
        """(V,) -> (V,): the same law, one probability a token."""
        return self.distribution(logits, text).dense(logits.size)

    def _weights(self, logits: np.ndarray, top: np.floating, ids: np.ndarray | None) -> np.ndarray:
        """Of the tokens `ids` (None: all) in proportion to the most likely one of all, of logit
        `top`."""
        weights: np.ndarray = (logits if ids is None else logits[ids]) - top
        with np.errstate(over="ignore"):  # far below at a tiny temperature: exp(-inf) = 0
            weights /= weights.dtype.type(self.temperature)
        np.exp(weights, out=weights)
        return weights

    def _nucleus(
        self, logits: np.ndarray, top: np.floating, ids: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The ids that top_p keeps of `ids` (None: of all), and their weights.

        First only tokens near the best are looked at: what the others weigh together is bounded,
        and seldom matters. At 152k tokens this takes about half of the time.
        """
        if ids is None:
            near = _at_least(logits, top - NEAR * logits.dtype.type(self.temperature))
            weights = self._weights(logits, top, near)
            kept = _top_p(weights, self.top_p, (logits.size - near.size) * math.exp(0.01 - NEAR))
            if kept is not None:
                return near[kept], weights[kept]
        weights = self._weights(logits, top, ids)
        kept = _top_p(weights, self.top_p)
        assert kept is not None  # nothing is left out
        return _subset(ids, weights, kept)


GREEDY = Sampling()


def top_k(logits: np.ndarray, k: int) -> NDArray[np.intp]:
    """The ids (k,), ascending, of the k largest logits."""
    candidates = _at_least(logits, _floor(logits, k))
    values = logits[candidates]
    cut = np.partition(values, values.size - k)[values.size - k]
    return candidates[_largest(values, cut, k)]


def _top_p(weights: np.ndarray, top_p: float, outside: float = 0.0) -> NDArray[np.intp] | None:
    """The indices, ascending, of the fewest largest weights that make up top_p of their sum; None
    where that could depend on smaller weights left out, `outside` together at most."""
    wanted = top_p * weights.sum(dtype=np.float64)
    # All weights below this floor together are too few to matter: at most 1 - top_p of the sum.
    floor = (1 - top_p) * wanted / weights.size
    candidates = _at_least(weights, weights.dtype.type(floor))
    values = weights[candidates]
    falling = np.sort(values)[::-1]
    totals = np.cumsum(falling, dtype=np.float64)
    least, most = np.searchsorted(totals, (wanted, wanted + top_p * outside)).tolist()
    if least != most:
        return None
    count = min(least + 1, values.size)
    return candidates[_largest(values, falling[count - 1], count)]


def _typical(weights: np.ndarray, mass: float) -> NDArray[np.intp]:
    """The indices, ascending, of the fewest weights that make up `mass` of their sum, taken in the
    order of how far their surprise, -log p, is from its mean. Only the bin of distances in which
    the sum passes `mass` is sorted: to sort 152k distances takes 70 ms."""
    possible = np.flatnonzero(weights)
    p = weights[possible] / weights.sum(dtype=np.float64)
    surprise = -np.log(p)
    distance = abs(surprise - (p * surprise).sum())  # no BLAS: its threads wait for each other
    bins = np.minimum(distance * BINS_A_NAT, BINS).astype(np.intp)
    totals = np.cumsum(np.bincount(bins, p))
    last = min(int(np.searchsorted(totals, mass)), totals.size - 1)
    tied = np.flatnonzero(bins == last)
    order = tied[np.argsort(distance[tied], kind="stable")]
    before = totals[last - 1] if last else 0.0
    count = int(np.searchsorted(before + np.cumsum(p[order]), mass)) + 1
    return np.sort(possible[np.append(np.flatnonzero(bins < last), order[:count])])


def _floor(logits: np.ndarray, k: int) -> np.floating:
    """A value that at least k logits reach: the k-th largest of the maxima of disjoint groups."""
    columns = COLUMNS if 2 * k <= COLUMNS <= logits.size // 4 else logits.size
    grouped = logits[: logits.size // columns * columns].reshape(-1, columns)
    maxima = grouped.max(axis=0)
    bound: np.floating = np.partition(maxima, columns - k)[columns - k]
    return bound


def _at_least(values: np.ndarray, floor: np.floating) -> NDArray[np.intp]:
    return np.flatnonzero(values >= floor)


def _largest(values: np.ndarray, cut: np.floating, count: int) -> NDArray[np.intp]:
    """The indices, ascending, of the `count` largest values, of which `cut` is the smallest."""
    above = values > cut
    tied = np.flatnonzero(values == cut)
    above[tied[: count - int(above.sum())]] = True
    return np.flatnonzero(above)


def _subset(
    ids: np.ndarray | None, weights: np.ndarray, kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    return (kept if ids is None else ids[kept]), weights[kept]
