"""Lossy rules: they do what their papers say, are marked, and change the law."""

import math

import numpy as np
import pytest
from drafting import G2, G3, certain_tree, chains, constant, law, random_model, siblings
from enumeration import expected, outcomes, scored, target_law, text_law, total_variation

from specrt.runtime.errors import RequestError
from specrt.runtime.noise import Chance
from specrt.runtime.proposal import Proposal, chain
from specrt.runtime.rules import LOSSY, named
from specrt.runtime.rules.lossy import _entropy
from specrt.runtime.verify import Verdict, verify

close = pytest.approx


def decide(proposal: Proposal, rows: np.ndarray, rule: str) -> Verdict:
    return verify(scored(proposal, rows), named(rule), Chance(np.random.default_rng(0)))


@pytest.mark.parametrize("rule", LOSSY)
def test_every_verdict_of_a_lossy_rule_says_so(rule):
    p, q = random_model(1, 3), random_model(2, 3)
    assert {verdict.lossy for _, _, verdict in outcomes(chains(q, 2), p, rule)} == {True}
    assert {verdict.lossy for _, _, verdict in outcomes(chains(q, 2), p, "block")} == {False}


@pytest.mark.parametrize("rule", [*LOSSY, "lenience:0.9", "typical:0.3,1"])
def test_a_lossy_rule_is_seen_in_the_law(rule):
    p, q = random_model(1, 3), random_model(2, 3)
    assert total_variation(text_law(chains(q, 2), p, rule, 3), target_law(p, 3)) > 1e-3


# Lenience


@pytest.mark.parametrize(
    ("rule", "rate", "output"),
    [
        ("lenience:0.5", 0.9, (0.3, 0.3, 0.4)),
        ("lenience:0.1", 1.0, G3[1]),
        ("lenience:1", 0.7, G3[0]),
    ],
)
def test_lenience_accepts_more_and_moves_the_law_towards_the_draft(rule, rate, output):
    p, q = G3
    assert expected(chains(constant(q), 1), constant(p), rule) == close(rate)
    assert text_law(chains(constant(q), 1), constant(p), rule, 1) == close(np.array(output))


# Typical acceptance


def test_entropy_is_in_nats():
    assert _entropy(law(G3[0])) == close(1.02965, abs=1e-5)
    assert _entropy(law((0.5, 0.5, 0))) == close(math.log(2))


@pytest.mark.parametrize(
    ("numbers", "accepted"),  # the bounds are 0.09, 0.03214, 0.25 and 0.3
    [("0.09,0.3", (0, 1, 2)), ("0.3,0.09", (0, 1, 2)), ("0.25,1", (0, 1)), ("0.3,1", (0,))],
)
def test_typical_acceptance_is_by_a_bound_that_falls_with_the_entropy(numbers, accepted):
    rows = np.tile(G3[0], (2, 1))
    taken = [
        token
        for token in range(3)
        if decide(chain([token]), rows, f"typical:{numbers}").path == (0,)
    ]
    assert tuple(taken) == accepted


def test_the_bound_is_exceeded_not_met():
    assert decide(chain([0]), np.tile([0.25] * 4, (2, 1)), "typical:0.25,1").path == ()


def test_of_a_tree_the_longest_accepted_path_is_taken_then_the_likeliest():
    tree = Proposal(np.array([0, 1, 2, 0, 1]), np.array([-1, -1, 0, 1, 1]))
    rows = np.tile(G3[0], (6, 1))
    assert decide(tree, rows, "typical:0.15,1").path == (1, 3)  # .3 .5 before .5 .2 and .3 .3
    assert decide(tree, rows, "typical:0.25,1").path == (1, 3)
    assert decide(tree, rows, "typical:0.4,1").path == (0,)


# Relaxed top-k


def test_topk_accepts_what_is_among_the_targets_best():
    rows = np.tile(G2[0], (4, 1))
    assert decide(chain([1, 0, 2]), rows, "topk:2").path == (0, 1)
    assert decide(chain([1, 0, 2]), rows, "topk:3").path == (0, 1, 2)
    assert decide(chain([1, 0, 2]), rows, "topk:1").path == ()


def test_topk_takes_the_best_of_the_siblings():
    assert decide(siblings([2, 1, 0], None), np.tile(G2[0], (4, 1)), "topk:2").path == (2,)


def test_topk_wider_than_the_vocabulary_accepts_everything():
    tree = next(iter(certain_tree(constant(G2[1]), (1, 1))))[1]
    assert decide(tree, np.tile(G2[0], (3, 1)), "topk:99").path == (0, 1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lenience:0", "lenience must be a number above 0 and at most 1, not '0'"),
        ("lenience:1.5", "at most 1, not '1.5'"),
        ("lenience:x", "not 'x'"),
        ("lenience:nan", "not 'nan'"),
        ("lenience:0.5,0.5", "takes at most 1 numbers, not 2"),
        ("topk:1.5", "k must be a whole number above 0"),
        ("topk:0", "not '0'"),
        ("typical:0.1,2", "delta must be a number above 0 and at most 1, not '2'"),
        ("typical:,", "epsilon must be"),
    ],
)
def test_an_impossible_number_is_refused_by_name(name, message):
    with pytest.raises(RequestError, match=message):
        named(name)
