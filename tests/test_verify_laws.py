"""Every exact rule gives every text the target's probability, enumerated over the rule's own code.

Models are random and depend on the whole text; all drafts of a form are taken with their
probabilities, and every way the rule can decide. What is left is rounding: 1e-12.
"""

import numpy as np
import pytest
from drafting import (
    WARM,
    certain_tree,
    chains,
    random_model,
    trees,
    with_replacement,
    without_replacement,
)
from enumeration import expected, target_law, text_law, total_variation

from specrt.runtime.proposal import NOTHING
from specrt.runtime.rules import EXACT
from specrt.runtime.sampling import Sampling

CUT = Sampling(1.3, top_p=0.8)
SHAPES = {  # name -> vocabulary, the drafts from a model
    "nothing": (5, lambda q: [(1.0, NOTHING)]),
    "chain of 1": (12, lambda q: chains(q, 1)),
    "chain of 2": (8, lambda q: chains(q, 2)),
    "chain of 3": (4, lambda q: chains(q, 3)),
    "chain of 4": (3, lambda q: chains(q, 4)),
    "certain chain": (12, lambda q: certain_tree(q, (1, 1))),
    "certain tree": (9, lambda q: certain_tree(q, (3, 2))),
    "2 of one law": (10, lambda q: trees(q, (2,), with_replacement)),
    "3 of one law": (5, lambda q: trees(q, (3,), with_replacement)),
    "2 different": (10, lambda q: trees(q, (2,), without_replacement)),
    "3 different": (5, lambda q: trees(q, (3,), without_replacement)),
    "all different": (4, lambda q: trees(q, (4,), without_replacement)),
    "tree of one law": (3, lambda q: trees(q, (2, 2), with_replacement)),
    "tree of different": (3, lambda q: trees(q, (2, 2), without_replacement)),
    "chain, then fork": (4, lambda q: trees(q, (1, 2), without_replacement)),
    "fork, then chains": (3, lambda q: trees(q, (2, 1, 1), without_replacement)),
    "fork of one law, then chains": (3, lambda q: trees(q, (2, 1, 1), with_replacement)),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("cut", ["neither", "target", "draft"])
def test_every_text_has_the_targets_probability(rule, shape, cut):
    vocab, drafts = SHAPES[shape]
    p = random_model(len(shape), vocab, CUT if cut == "target" else WARM)
    q = random_model(len(rule) + 100, vocab, CUT if cut == "draft" else WARM)
    horizon = 3 if vocab > 5 else 4
    found = text_law(drafts(q), p, rule, horizon)
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert total_variation(found, target_law(p, horizon)) < 1e-12


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("vocab", range(3, 13))
def test_a_chain_is_exact_at_every_size_of_vocabulary(rule, vocab):
    p, q = random_model(1, vocab), random_model(2, vocab)
    found = text_law(chains(q, 2), p, rule, 3)
    assert total_variation(found, target_law(p, 3)) < 1e-12


# How much is accepted


def accepted_together(p, q, length, share):
    """The sum over all paths of at most `length` tokens of the product of share(p, q) along it."""

    def below(text):
        if len(text) == length:
            return 0.0
        shares = share(p(text), q(text))
        return sum(
            float(chance) * (1 + below((*text, token))) for token, chance in enumerate(shares)
        )

    return below(())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cut", [WARM, CUT])
def test_rejection_accepts_what_both_laws_share(seed, cut):
    p, q = random_model(seed, 4, cut), random_model(seed + 50, 4)
    shared = accepted_together(p, q, 3, np.minimum)
    for rule in ("rejection", "kseq"):
        assert expected(chains(q, 3), p, rule) == pytest.approx(shared, abs=1e-12)


@pytest.mark.parametrize("rule", ["membership", "coupled"])
def test_membership_accepts_what_two_independent_draws_share(rule):
    p, q = random_model(1, 4), random_model(51, 4)
    shared = accepted_together(p, q, 3, np.multiply)
    assert expected(chains(q, 3), p, rule) == pytest.approx(shared, abs=1e-12)


def joint(model, length):
    return target_law(model, length).ravel()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("vocab", "length"), [(3, 3), (4, 2), (2, 5), (5, 1)])
@pytest.mark.parametrize("cut", [WARM, CUT])
def test_block_verification_lies_between_token_verification_and_the_best_there_is(
    seed, vocab, length, cut
):
    p, q = random_model(seed, vocab, cut), random_model(seed + 50, vocab)
    token = expected(chains(q, length), p, "rejection")
    block = expected(chains(q, length), p, "block")
    best = sum(np.minimum(joint(p, i), joint(q, i)).sum() for i in range(1, length + 1))
    assert token - 1e-12 <= block <= best + 1e-12
    if length == 1:
        assert block == pytest.approx(token, abs=1e-12)
    elif cut is WARM:
        assert block > token + 1e-6


@pytest.mark.parametrize("rule", EXACT)
def test_certain_drafts_are_accepted_alike_by_every_rule(rule):
    p, q = random_model(3, 6), random_model(53, 6)
    least = expected(certain_tree(q, (2, 2)), p, "membership")
    assert expected(certain_tree(q, (2, 2)), p, rule) == pytest.approx(least, abs=1e-12)
