"""Sampling: the fast form equals the plain definition, cuts are exact, bad rows are named."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrt.runtime import sampling as sampling_module
from specrt.runtime.errors import BundleError, RequestError
from specrt.runtime.sampling import GREEDY, Sampling, top_k


def plain(sampling: Sampling, logits: np.ndarray) -> np.ndarray:
    """The definition, word for word: temperature, top-k, top-p, min-p; ties go to the lower id."""
    order = np.lexsort((np.arange(logits.size), -logits))
    weights = np.exp((logits.astype(np.float64) - logits.max()) / sampling.temperature)
    kept = list(order[: sampling.top_k or logits.size])
    share = weights[kept] / weights[kept].sum()
    count = 1
    while count < len(kept) and share[:count].sum() < sampling.top_p:
        count += 1
    kept = [i for i in kept[:count] if weights[i] >= sampling.min_p * weights[kept[0]]]
    row = np.zeros(logits.size)
    row[kept] = weights[kept] / weights[kept].sum()
    return row


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 2, 5, 40, 10**6]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 1e-6]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)


@given(samplings, st.integers(0, 10**6), st.sampled_from([1, 2, 7, 300]))
def test_the_fast_form_equals_the_definition(sampling, seed, size):
    logits = np.random.default_rng(seed).normal(size=size) * 3
    assert sampling.probs(logits) == pytest.approx(plain(sampling, logits), abs=1e-12)


@given(samplings, st.integers(0, 10**6))
def test_ties_at_a_cut_go_to_the_lower_id(sampling, seed):
    logits = np.random.default_rng(seed).integers(0, 3, 30).astype(np.float64)
    assert sampling.probs(logits) == pytest.approx(plain(sampling, logits), abs=1e-12)


@pytest.mark.parametrize("top_k_", [0, 1, 50, 1000, 5000])
@pytest.mark.parametrize("top_p", [1.0, 0.95])
def test_a_long_float32_row_equals_the_definition(top_k_, top_p):
    logits = (np.random.default_rng(1).gumbel(size=20_001) * 2).astype(np.float32)
    sampling = Sampling(0.8, top_k_, top_p)
    found, exact = sampling.probs(logits), plain(sampling, logits)
    assert np.flatnonzero(found).tolist() == np.flatnonzero(exact).tolist()
    assert found == pytest.approx(exact, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("spread", [0.5, 2.0, 3.0, 6.0])
@pytest.mark.parametrize("top_p", [0.5, 0.95, 0.999, 0.9999999])
def test_a_nucleus_found_near_the_best_is_that_of_the_whole_row(spread, top_p, monkeypatch):
    sampling = Sampling(0.8, top_p=top_p)
    for seed in range(10):
        logits = (np.random.default_rng(seed).gumbel(size=5000) * spread).astype(np.float32)
        quick = sampling.distribution(logits)
        with monkeypatch.context() as patch:
            patch.setattr(sampling_module, "NEAR", 1000.0)  # all tokens are near: the slow way
            slow = sampling.distribution(logits)
        assert quick.ids.tolist() == slow.ids.tolist()
        assert quick.probs.tolist() == slow.probs.tolist()


def test_most_nuclei_are_found_near_the_best(monkeypatch):
    logits = (np.random.default_rng(0).gumbel(size=150_000) * 2).astype(np.float32)
    logits[:20] += 20
    looked_at = []
    weights = Sampling._weights

    def watched(self, row, top, ids):
        looked_at.append(row.size if ids is None else ids.size)
        return weights(self, row, top, ids)

    monkeypatch.setattr(Sampling, "_weights", watched)
    Sampling(0.8, top_p=0.95).distribution(logits)
    assert len(looked_at) == 1
    assert looked_at[0] < 3000


@pytest.mark.parametrize("k", [1, 7, 900, 9000, 10_000])
def test_top_k_keeps_exactly_k(k):
    logits = np.random.default_rng(2).integers(0, 50, 10_000).astype(np.float32)
    order = np.lexsort((np.arange(logits.size), -logits))
    assert top_k(logits, k).tolist() == sorted(order[:k].tolist())


def test_a_whole_nucleus_is_kept_where_all_are_alike():
    assert np.flatnonzero(Sampling(1.0, top_p=0.5).probs(np.zeros(4))).tolist() == [0, 1]


def test_temperature_0_is_the_first_of_the_best():
    assert GREEDY.probs(np.array([1.0, 3.0, 3.0])).tolist() == [0, 1, 0]


def test_a_tiny_temperature_is_greedy_and_warns_of_nothing():
    logits = np.array([1.0, 3.0, -3e38], np.float32)
    assert Sampling(1e-30).probs(logits).tolist() == [0, 1, 0]


def test_an_impossible_token_has_no_probability():
    assert Sampling(1.0).probs(np.array([0.0, -np.inf, 0.0])).tolist() == [0.5, 0, 0.5]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0), Sampling(1.0, top_k=2, top_p=0.5)])
@pytest.mark.parametrize(
    "row", [[0, np.nan, 9], [np.nan] * 3, [-np.inf] * 3, [0, np.inf, 0]], ids=str
)
def test_a_row_without_a_finite_best_is_refused(sampling, row):
    with pytest.raises(BundleError, match="no finite maximum"):
        sampling.distribution(np.array(row, np.float32))


def test_the_row_given_is_not_changed():
    logits = np.random.default_rng(0).normal(size=3000).astype(np.float32)
    before = logits.copy()
    Sampling(0.7, 50, 0.9, 0.1).distribution(logits)
    Sampling(0.7).distribution(logits)
    assert (logits == before).all()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("min_p", float("nan")),
    ],
)
def test_an_impossible_option_is_refused_by_name(option, value):
    with pytest.raises(RequestError, match=f"{option} must be .*{value}"):
        Sampling(**{option: value})
