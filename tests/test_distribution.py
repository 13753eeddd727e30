"""Distributions: dense and sparse alike, and draws that invert the running total exactly."""

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrt.runtime import distribution
from specrt.runtime.distribution import Distribution, draw, point, residual, surplus


class Scripted:
    """A generator that returns what it is told."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)


def sparse(row: np.ndarray) -> Distribution:
    ids = np.flatnonzero(row)
    return Distribution(row[ids], ids)


def random_row(rng: np.random.Generator, size: int) -> np.ndarray:
    row = rng.random(size) * (rng.random(size) < 0.6)
    row[rng.integers(size)] += 1
    return row / row.sum()


def test_the_examples_hold():
    assert doctest.testmod(distribution).failed == 0


@pytest.mark.parametrize("seed", range(20))
def test_dense_and_sparse_agree_in_every_operation(seed):
    rng = np.random.default_rng(seed)
    p_row, q_row = random_row(rng, 9), random_row(rng, int(rng.integers(6, 13)))
    for p in (Distribution(p_row), sparse(p_row)):
        assert p.dense(12).tolist() == [*p_row, 0, 0, 0]
        assert [p.of(token) for token in range(12)] == [*p_row, 0, 0, 0]
        assert p.at(np.arange(12)).tolist() == [*p_row, 0, 0, 0]
        for q in (Distribution(q_row), sparse(q_row)):
            wide = np.zeros(9)
            wide[: q_row.size] = q_row[:9]
            left = np.maximum(p_row - wide, 0)
            assert residual(p, q).dense(9) == pytest.approx(left / left.sum(), abs=1e-15)
            wanted = np.maximum(0.7 * p_row - wide, 0)[p.tokens]
            assert surplus(p, q, 0.7) == pytest.approx(wanted, abs=1e-15)
        token = int(p_row.argmax())
        rest = np.where(np.arange(9) == token, 0, p_row)
        assert p.without(token).dense(9) == pytest.approx(rest / rest.sum(), abs=1e-15)


def test_nothing_left_to_want_gives_the_target_itself():
    p = Distribution(np.array([0.25, 0.75]))
    assert residual(p, p) is p
    assert residual(point(3), point(3)).of(3) == 1


def test_taking_out_the_only_token_gives_the_same_law():
    p = point(3)
    assert p.without(3) is p
    assert p.without(2) is p


def test_a_point_is_one_certain_token(rng):
    assert point(7).dense(9).tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert draw(point(7), rng) == 7


@pytest.mark.parametrize("size", [4, 1024, 5000])
def test_draws_over_an_even_grid_give_each_token_its_share(size):
    """Whole weights of sum N and N even steps: each token comes up as often as its weight says."""
    weights = np.random.default_rng(size).integers(0, 4, size)
    steps = int(weights.sum())
    grid = Scripted(*((np.arange(steps) + 0.5) / steps))
    p = Distribution(weights / steps)
    counts = np.bincount([draw(p, grid) for _ in range(steps)], minlength=size)
    assert counts.tolist() == weights.tolist()


@pytest.mark.parametrize("size", [3, 1023, 1024, 1536, 3000])
@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_uniform_number_yields_a_token_of_weight_zero(size, u, dtype):
    for place in (0, 1, size // 2, size - 1):
        row = np.zeros(size, dtype)
        row[place] = 0.3
        assert draw(Distribution(row), Scripted(u)) == place


@given(st.integers(0, 2**32 - 1), st.floats(0, 1, exclude_max=True))
def test_a_long_row_is_searched_as_a_short_one(seed, u):
    rng = np.random.default_rng(seed)
    row = np.maximum(rng.normal(size=3000), 0).astype(np.float32)
    totals = np.cumsum(row, dtype=np.float64)
    found = draw(Distribution(row), Scripted(u))
    before = totals[found - 1] if found else 0
    assert row[found] > 0
    assert before - 1e-9 <= u * totals[-1] <= totals[found] + 1e-9
