"""A law that tokens follow is not found wrong, one that they do not is."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specrt.bench.law import RANKS, SIGMA, Law
from specrt.runtime.detail import logprobs


def results(drawn: np.ndarray, rows: np.ndarray) -> list[Any]:
    """A text whose tokens (n,) came from rows (n, V) of log-probabilities."""
    chances = logprobs(rows, drawn.tolist(), max(RANKS))
    return [SimpleNamespace(trace=SimpleNamespace(steps=[SimpleNamespace(logprobs=chances)]))]


def drawn(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (rows + rng.gumbel(size=rows.shape)).argmax(axis=1)


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 20.0])
def test_a_law_that_is_followed_stays_below_the_bound(
    spread: float, rng: np.random.Generator
) -> None:
    """By chance it does not in 1 of 130,000 for each of six ranks."""
    for _ in range(20):
        rows = spread * rng.normal(size=(300, 40))
        assert Law.of(results(drawn(rows, rng), rows)).sigma < SIGMA


@pytest.mark.parametrize("temperature", [0.7, 1.4])
def test_a_law_of_another_temperature_is_seen(temperature: float, rng: np.random.Generator) -> None:
    rows = rng.normal(size=(2000, 40)) * 2
    assert Law.of(results(drawn(rows / temperature, rng), rows)).sigma > SIGMA


def test_tokens_that_were_all_but_sure_and_did_not_come_are_seen() -> None:
    rows = np.zeros((10, 40))
    rows[:, 3] = 60.0
    assert Law.of(results(np.full(10, 3), rows)).sigma == 0
    assert Law.of(results(np.full(10, 5), rows)).sigma > SIGMA


def test_many_tokens_deviate_by_standard_deviations() -> None:
    """With a large variance the bound is the normal one."""
    law = Law(10**6, np.array([3000.0]), np.array([250_000.0]))
    assert law.sigma == pytest.approx(3000 / math.sqrt(250_000), rel=0.01)


def test_a_text_without_tokens_deviates_by_nothing() -> None:
    assert Law.of([]).sigma == 0


def test_the_chances_are_those_of_the_best_tokens() -> None:
    rows = np.log([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    law = Law.of(results(np.array([1, 2]), rows))
    assert law.over[:3] == pytest.approx([1 - 0.5 - 0.7, 2 - 0.8 - 0.9, 0.0])
    assert law.variance[:3] == pytest.approx([0.25 + 0.21, 0.16 + 0.09, 0.0])
