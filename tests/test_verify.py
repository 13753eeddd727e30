"""Golden values of the exact rules, by enumeration over their own code, and greedy targets."""

import heapq
from collections.abc import Sequence
from fractions import Fraction as F

import numpy as np
import pytest
from drafting import (
    G1,
    G2,
    G3,
    chains,
    constant,
    law,
    siblings,
    trees,
    with_replacement,
    without_replacement,
)
from enumeration import Drafts, expected, outcomes, scored, text_law, verdicts

from specrt.runtime.distribution import Distribution
from specrt.runtime.errors import RequestError
from specrt.runtime.noise import Chance
from specrt.runtime.proposal import ROOT, Proposal, chain
from specrt.runtime.rules import EXACT, LOSSY, named
from specrt.runtime.sampling import GREEDY
from specrt.runtime.scored import Scored
from specrt.runtime.verify import Verdict, verify

close = pytest.approx


def accepts(drafts: Drafts, p: Sequence[float], rule: str) -> float:
    """The mean number of accepted tokens, where p is the target's law after every text."""
    return expected(drafts, constant(p), rule)


def first_token(drafts: Drafts, p: Sequence[float], rule: str) -> np.ndarray:
    return text_law(drafts, constant(p), rule, 1)


def of_one_law(q: Sequence[float], k: int) -> Drafts:
    return trees(constant(q), (k,), with_replacement)


def different(q: Sequence[float], k: int) -> Drafts:
    return trees(constant(q), (k,), without_replacement)


# Chains

TOKEN = {
    G1: [F(2, 3), F(10, 9), F(38, 27), F(130, 81), F(422, 243), F(1330, 729)],
    G2: [F(3, 5), F(24, 25), F(147, 125), F(816, 625)],
}
BLOCK = {
    G1: [F(2, 3), F(11, 9), F(5, 3), F(166, 81), F(64, 27), F(1933, 729)],
    G2: [F(3, 5), F(103, 100), F(673, 500), F(7947, 5000)],
}


@pytest.mark.parametrize(("rule", "values"), [("rejection", TOKEN), ("block", BLOCK)])
@pytest.mark.parametrize("pair", [G1, G2])
def test_a_drawn_chain_is_accepted_as_far_as_the_papers_say(rule, values, pair):
    p, q = pair
    for length, value in enumerate(values[pair], start=1):
        assert accepts(chains(constant(q), length), p, rule) == close(float(value), abs=1e-12)


@pytest.mark.parametrize(("pair", "value"), [(G2, F(1, 5)), (G3, F(29, 100))])
def test_a_drawn_token_is_a_member_by_the_chance_that_two_draws_agree(pair, value):
    p, q = pair
    assert accepts(chains(constant(q), 1), p, "membership") == close(float(value))


@pytest.mark.parametrize("rule", ["rejection", "block", "kseq"])
def test_after_a_refused_token_the_next_follows_the_residual(rule):
    p, q = G2
    bonus = np.zeros(4)
    for weight, _, verdict in outcomes(chains(constant(q), 1), constant(p), rule):
        bonus[verdict.bonus] += 0 if verdict.path else weight
    assert bonus / bonus.sum() == close(np.array([3 / 4, 1 / 4, 0, 0]))


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_truncated_target_accepts_an_untruncated_draft_by_the_truncated_law(rule):
    p, q = (4 / 9, 3 / 9, 2 / 9, 0), G2[1]
    assert accepts(chains(constant(q), 1), p, rule) == close(47 / 90)
    assert first_token(chains(constant(q), 1), p, rule) == close(np.array(p), abs=1e-12)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_draft_that_lacks_a_token_stays_exact(rule):
    p, q = G3[0], (0, 3 / 8, 5 / 8)
    assert accepts(chains(constant(q), 1), p, rule) == close(1 / 2)
    assert first_token(chains(constant(q), 1), p, rule) == close(np.array(p), abs=1e-12)


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("q", [(0.5, 0.5), (0.1, 0.2, 0.3, 0.2, 0.1, 0.1)])
def test_vocabularies_of_different_sizes_stay_exact(rule, q, form):
    def drafts() -> Drafts:
        laws = law(q) if form == "dense" else Distribution(np.array(q), np.arange(len(q)))
        for a, first in enumerate(q):
            for b, second in enumerate(q):
                yield first * second, siblings([a, b], [laws, laws])
        for token, chance in enumerate(q):
            yield chance, chain([token], (laws,))

    assert first_token(drafts(), G2[0], rule) == close(2 * np.array(G2[0]), abs=1e-12)


@pytest.mark.parametrize("rule", ["rejection", "block", "kseq"])
def test_equal_laws_always_accept(rule):
    assert accepts(chains(constant(G2[0]), 2), G2[0], rule) == close(2)


def test_a_prefix_that_is_wholly_backed_is_never_given_up():
    """Where p and q differ by rounding, nothing is left to want and nothing may be refused."""
    even = np.array([0.5, 0.5])
    laws = (Distribution(even), Distribution(even * (1 + 2**-40)))
    paths = {v.path for v in verdicts(chain([0, 1], laws), np.tile(even, (3, 1)), "block")}
    assert paths == {(0,), (0, 1)}


def test_certain_tokens_are_left_to_membership_by_the_block_rule():
    for seed in range(20):
        verdict = [
            verify(
                scored(chain([0, 1]), np.tile(G2[0], (3, 1))),
                named(rule),
                Chance(np.random.default_rng(seed)),
            )
            for rule in ("block", "membership")
        ]
        assert verdict[0] == verdict[1]


# Siblings


@pytest.mark.parametrize(
    ("pair", "values"),
    [(G2, [F(3, 5), F(18, 25), F(96, 125)]), (G3, [F(7, 10), F(19, 25), F(101, 125)])],
)
def test_siblings_of_one_law_are_accepted_as_recursive_rejection_says(pair, values):
    p, q = pair
    for k, value in enumerate(values, start=1):
        for rule in ("rejection", "block"):
            assert accepts(of_one_law(q, k), p, rule) == close(float(value), abs=1e-12)


@pytest.mark.parametrize(
    ("pair", "values"),
    [(G2, [0.6, 0.75, 0.79395, 0.831438]), (G3, [0.7, 0.791355, 0.858519])],
)
def test_siblings_of_one_law_are_accepted_as_kseq_says(pair, values):
    p, q = pair
    for k, value in enumerate(values, start=1):
        assert accepts(of_one_law(q, k), p, "kseq") == close(value, abs=1e-5)


@pytest.mark.parametrize(("k", "residual"), [(2, 0.25), (3, 0.20605), (4, 0.168562)])
def test_what_kseq_leaves_is_what_it_wants(k, residual):
    p, q = G2
    bonus = np.zeros(4)
    for weight, _, verdict in outcomes(of_one_law(q, k), constant(p), "kseq"):
        bonus[verdict.bonus] += 0 if verdict.path else weight
    assert bonus == close(np.array([residual, 0, 0, 0]), abs=1e-5)


@pytest.mark.parametrize(
    ("pair", "by_rank"),
    [(G2, [F(3, 5), F(23, 140), F(1277, 16800)]), (G3, [F(7, 10), F(3, 25), F(9, 50)])],
)
def test_different_siblings_are_accepted_rank_by_rank(pair, by_rank):
    p, q = pair
    for k in range(1, len(by_rank) + 1):
        for rank, value in enumerate(by_rank[:k]):
            share = expected(
                different(q, k),
                constant(p),
                "rejection",
                lambda verdict, rank=rank: verdict.path == (rank,),
            )
            assert share == close(float(value), abs=1e-12)


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize(
    ("pair", "values"), [(G2, [F(1, 10), F(3, 10), F(3, 5)]), (G3, [F(1, 5), F(1, 2), F(1)])]
)
def test_certain_siblings_are_accepted_with_the_targets_own_probability(rule, pair, values):
    p, q = pair
    order = np.argsort(-np.array(q))
    for k, value in enumerate(values, start=1):
        proposal = siblings(order[:k], None)
        assert accepts([(1.0, proposal)], p, rule) == close(float(value), abs=1e-12)
        assert first_token([(1.0, proposal)], p, rule) == close(np.array(p), abs=1e-12)


@pytest.mark.parametrize("rule", EXACT)
def test_a_repeated_certain_sibling_changes_nothing(rule):
    once = first_token([(1.0, siblings([1], None))], G2[0], rule)
    twice = first_token([(1.0, siblings([1, 1], None))], G2[0], rule)
    assert twice == close(once, abs=1e-12)


# Trees


BEST_TREES = {  # expected tokens of the best tree of 1.. nodes, root included, by depth limit
    2: [1, 1.6, 1.8, 1.9],
    3: [1, 1.6, 1.96, 2.16, 2.28, 2.4, 2.5, 2.56, 2.62, 2.66, 2.68, 2.7],
    4: [1, 1.6, 1.96, 2.176, 2.376, 2.496, 2.616, 2.716, 2.788, 2.86, 2.932, 2.992],
    99: [1, 1.6, 1.96, 2.176, 2.376, 2.5056, 2.6256, 2.7456, 2.8456, 2.92336, 2.99536, 3.06736],
}


def best_tree(shares: Sequence[float], nodes: int, depth: int) -> Proposal:
    """The `nodes` most likely to be accepted, where a rank's share is its token's probability."""
    tokens: list[int] = []
    parents: list[int] = []
    heap = [(-shares[0], 1, ROOT, 0)]
    while heap and len(tokens) < nodes:
        value, level, parent, rank = heapq.heappop(heap)
        if level < depth:
            heapq.heappush(heap, (value * shares[0], level + 1, len(tokens), 0))
        if rank + 1 < len(shares):
            later = value / shares[rank] * shares[rank + 1]
            heapq.heappush(heap, (later, level, parent, rank + 1))
        tokens.append(rank)
        parents.append(parent)
    return Proposal(np.array(tokens, np.int64), np.array(parents, np.int64))


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("depth", BEST_TREES)
def test_a_tree_emits_the_sum_of_its_paths_shares(rule, depth):
    p = (0.6, 0.2, 0.1, 0.1)
    for nodes, value in enumerate(BEST_TREES[depth]):
        proposal = best_tree(p[:3], nodes, depth - 1)  # the root is the first level
        assert 1 + accepts([(1.0, proposal)], p, rule) == close(value, abs=1e-9)


# Greedy


def greedy(proposal: Proposal, logits: np.ndarray, rule: str) -> Verdict:
    chance = Chance(np.random.default_rng(0))
    return verify(Scored(proposal, logits, GREEDY, (0,)), named(rule), chance)


@pytest.mark.parametrize("rule", EXACT)
def test_a_greedy_target_accepts_exactly_its_own_choices(rule):
    logits = np.array([[0, 3, 1], [2, 0, 1], [0, 1, 2.0]])
    assert greedy(chain([1, 0]), logits, rule) == Verdict((0, 1), 2)
    assert greedy(chain([1, 2]), logits, rule) == Verdict((0,), 0)
    assert greedy(chain([2, 0]), logits, rule) == Verdict((), 1)


@pytest.mark.parametrize("rule", EXACT)
def test_a_greedy_target_accepts_its_own_choices_of_a_drawn_chain(rule):
    logits = np.array([[0, 3, 1], [2, 0, 1], [0, 1, 2.0]])
    laws = (law((0.2, 0.5, 0.3)), law((0.1, 0.2, 0.7)))
    assert greedy(chain([1, 0], laws), logits, rule) == Verdict((0, 1), 2)
    assert greedy(chain([1, 2], laws), logits, rule) == Verdict((0,), 0)
    assert greedy(chain([2, 0], laws), logits, rule) == Verdict((), 1)


@pytest.mark.parametrize("rule", EXACT)
def test_a_greedy_target_finds_its_path_in_a_tree(rule):
    tree = Proposal(np.array([0, 1, 2, 2]), np.array([-1, -1, 0, 1]))
    logits = np.array([[0, 9, 0], [9, 0, 0], [0, 0, 9], [9, 0, 0], [0, 9, 0.0]])
    assert greedy(tree, logits, rule) == Verdict((1, 3), 1)


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("laws", [None, (law((0.2, 0.5, 0.3)),) * 2], ids=["certain", "drawn"])
def test_rows_that_are_not_reached_are_not_looked_at(rule, laws):
    logits = np.array([[0, 9, 0], [np.nan] * 3, [np.nan] * 3])
    assert greedy(chain([2, 0], laws), logits, rule) == Verdict((), 1)


@pytest.mark.parametrize("rule", ["rejection", "block", "kseq"])
def test_a_greedy_target_takes_no_random_number(rule):
    class Never:
        def random(self):
            raise AssertionError("a number was drawn")

    logits = np.array([[0, 3, 1], [2, 0, 1], [0, 1, 2.0]])
    answer = Scored(chain([]), logits, GREEDY, (0,))
    assert verify(answer, named(rule), Chance(Never())) == Verdict((), 1)


# Names


@pytest.mark.parametrize("name", ["", "none", "Block", "block:1", "topk2", "lossy"])
def test_an_unknown_rule_is_refused_with_those_there_are(name):
    with pytest.raises(RequestError, match=r"there are coupled, block, .*and the lossy lenience"):
        named(name)


def test_a_rule_is_lossy_by_its_name_alone():
    assert [named(name).lossy for name in EXACT] == [False] * len(EXACT)
    assert [named(name).lossy for name in LOSSY] == [True] * len(LOSSY)
    assert [name for name in EXACT if named(name).coupled] == ["coupled"]
