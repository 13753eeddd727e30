"""Rounding groups of weights to a few codes, at the steps that lose least.

A group is a column of a (weights, groups) array, so that every operation runs along whole rows.
A weight w becomes the code q = round(w / step + zero) and reads back as step * (q - zero).
"""

from collections.abc import Iterable

import numpy as np

TINY = 1e-30  # a smaller step or sum of squares counts as 0
STRETCHES = np.linspace(1.1, 0.65, 16, dtype=np.float32)  # of a group's range, each one tried


def round_to(x: np.ndarray, step: np.ndarray, zero: float | np.ndarray, top: int) -> np.ndarray:
    """Codes 0 to top of x (n, groups) at the given step (groups,): (n, groups) float32."""
    codes: np.ndarray = x * _inverse(step)
    codes += zero
    np.rint(codes, out=codes)
    np.clip(codes, 0, top, out=codes)
    return codes


def widest_step(x: np.ndarray, reach: int) -> np.ndarray:
    """The step at which `reach` steps to either side just hold every weight: (groups,)."""
    widest: np.ndarray = np.maximum(x.max(axis=0), -x.min(axis=0))
    return widest / np.float32(reach)


def search_symmetric(x: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `search`, with the middle code as zero; the longer side of a group gets the code more."""
    low, high = x.min(axis=0), x.max(axis=0)
    zero = np.full(x.shape[1], (top + 1) // 2, np.float32)
    step = np.where(-low > high, low, high) / -zero  # negative where the upper side is longer
    return _best(x, ((step * stretch, zero) for stretch in STRETCHES), top)


def search(x: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes (n, groups), steps (groups,) and zero codes (groups,) of least squared error."""
    low, high = np.minimum(x.min(axis=0), 0), np.maximum(x.max(axis=0), 0)
    middle: np.ndarray = (low + high) / 2
    span: np.ndarray = (high - low) / np.float32(top)

    def zero(step: np.ndarray) -> np.ndarray:
        centred: np.ndarray = np.rint(np.float32(top / 2) - middle * _inverse(step))
        np.clip(centred, 0, top, out=centred)
        return centred

    return _best(x, ((span * s, zero(span * s)) for s in STRETCHES), top)


def _best(
    x: np.ndarray, candidates: Iterable[tuple[np.ndarray, np.ndarray]], top: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of all candidate (step, zero), the one whose codes, at their own best step, err least.

    For codes c less their zero the best step is x.c / c.c; it leaves x.x - (x.c)^2 / c.c.
    """
    groups = x.shape[1]
    codes = np.zeros_like(x)
    steps, zeros = np.zeros(groups, np.float32), np.zeros(groups, np.float32)
    most = np.full(groups, -1, np.float32)
    for step, zero in candidates:
        trial = round_to(x, step, zero, top)
        trial -= zero
        along = np.einsum("ng,ng->g", x, trial)
        square = np.maximum(np.einsum("ng,ng->g", trial, trial), np.float32(TINY))
        explained = along * along / square
        better = explained > most
        np.copyto(most, explained, where=better)
        np.copyto(steps, along / square, where=better)
        np.copyto(zeros, zero, where=better)
        trial += zero
        np.copyto(codes, trial, where=better)
    return codes, steps, zeros


def _inverse(step: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(np.abs(step) > TINY, np.float32(1) / step, np.float32(0))
