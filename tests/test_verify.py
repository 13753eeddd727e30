"""Verification as an exact law: golden values by enumeration, right ones and wrong ones."""

import heapq
from collections.abc import Iterator, Sequence
from fractions import Fraction as F
from itertools import product

import numpy as np
import pytest
from enumeration import emitted, expected, first_token_law, verdicts
from fakes import fake_logits

from specrt.runtime import verify as verify_module
from specrt.runtime.distribution import Distribution, point
from specrt.runtime.proposal import NOTHING, ROOT, Proposal, chain
from specrt.runtime.sampling import GREEDY, Sampling
from specrt.runtime.verify import Verdict, verify

G1 = ((1 / 3, 2 / 3), (2 / 3, 1 / 3))
G2 = ((0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4))
G3 = ((0.5, 0.3, 0.2), (0.2, 0.3, 0.5))

Drafts = Iterator[tuple[float, Proposal]]
close = pytest.approx


def law(probs: Sequence[float]) -> Distribution:
    return Distribution(np.array(probs, np.float64))


def siblings(tokens: Sequence[int], laws: Sequence[Distribution] | None) -> Proposal:
    parents = np.full(len(tokens), ROOT)
    return Proposal(np.array(tokens, np.int64), parents, None if laws is None else tuple(laws))


def chains(q: Sequence[float], length: int) -> Drafts:
    """Every chain drawn from q, with its probability."""
    for tokens in product(range(len(q)), repeat=length):
        weight = float(np.prod([q[token] for token in tokens]))
        if weight:
            yield weight, chain(tokens, (law(q),) * length)


def with_replacement(q: Sequence[float], k: int) -> Drafts:
    for weight, proposal in chains(q, k):
        yield weight, siblings(proposal.tokens, proposal.probs)


def without_replacement(q: Sequence[float], k: int) -> Drafts:
    """Every list of k different siblings in the order drawn; each law lacks those before."""

    def extend(tokens: tuple[int, ...], laws: tuple[Distribution, ...], weight: float) -> Drafts:
        if len(tokens) == k:
            yield weight, siblings(tokens, laws)
            return
        rest = laws[-1].without(tokens[-1]) if tokens else law(q)
        for token, chance in enumerate(rest.probs):
            if chance:
                yield from extend((*tokens, token), (*laws, rest), weight * float(chance))

    yield from extend((), (), 1.0)


def accepted(verdict: Verdict) -> int:
    return len(verdict.path)


# The chain: token verification


@pytest.mark.parametrize(
    ("pair", "expectations"),
    [
        (G1, [F(2, 3), F(10, 9), F(38, 27), F(130, 81), F(422, 243), F(1330, 729)]),
        (G2, [F(3, 5), F(24, 25), F(147, 125), F(816, 625)]),
    ],
)
def test_a_sampled_chain_is_accepted_as_far_as_token_verification_says(pair, expectations):
    p, q = pair
    for length, value in enumerate(expectations, start=1):
        assert expected(chains(q, length), p, accepted) == close(float(value), abs=1e-12)


@pytest.mark.parametrize("pair", [G1, G2, G3])
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_the_first_token_after_a_sampled_chain_follows_the_target(pair, length):
    p, q = pair
    assert first_token_law(chains(q, length), p) == close(np.array(p), abs=1e-12)


def test_after_a_rejected_chain_the_token_follows_the_residual():
    p, q = G2
    law_of_bonus = np.zeros(4)
    for weight, proposal in chains(q, 1):
        for verdict, chance in verdicts(proposal, np.tile(p, (2, 1))).items():
            if not verdict.path:
                law_of_bonus[verdict.bonus] += weight * chance
    assert law_of_bonus / law_of_bonus.sum() == close(np.array([3 / 4, 1 / 4, 0, 0]))


def test_a_truncated_target_accepts_an_untruncated_draft_by_the_truncated_law():
    p, q = (4 / 9, 3 / 9, 2 / 9, 0), G2[1]
    assert expected(chains(q, 1), p, accepted) == close(47 / 90)
    assert first_token_law(chains(q, 1), p) == close(np.array(p), abs=1e-12)


def test_a_draft_that_lacks_a_token_stays_exact():
    p, q = G3[0], (0, 3 / 8, 5 / 8)
    assert expected(chains(q, 1), p, accepted) == close(1 / 2)
    assert first_token_law(chains(q, 1), p) == close(np.array(p), abs=1e-12)


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("q", [(0.5, 0.5), (0.1, 0.2, 0.3, 0.2, 0.1, 0.1)])
def test_vocabularies_of_different_sizes_stay_exact(q, form):
    def drafts() -> Drafts:
        for token, chance in enumerate(q):
            sparse = Distribution(np.array(q), np.arange(len(q)))
            yield chance, chain([token], (law(q) if form == "dense" else sparse,))

    assert first_token_law(drafts(), G2[0]) == close(np.array(G2[0]), abs=1e-12)


def test_equal_laws_always_accept():
    assert expected(chains(G2[0], 2), G2[0], accepted) == close(2)


# Siblings


@pytest.mark.parametrize(
    ("pair", "values"), [(G2, [F(3, 5), F(18, 25), F(96, 125)]), (G3, [F(7, 10), F(19, 25)])]
)
def test_siblings_with_replacement_are_accepted_as_recursive_rejection_says(pair, values):
    p, q = pair
    for k, value in enumerate(values, start=1):
        assert expected(with_replacement(q, k), p, accepted) == close(float(value), abs=1e-12)
        assert first_token_law(with_replacement(q, k), p) == close(np.array(p), abs=1e-12)


@pytest.mark.parametrize(
    ("pair", "by_rank"),
    [(G2, [F(3, 5), F(23, 140), F(1277, 16800)]), (G3, [F(7, 10), F(3, 25), F(9, 50)])],
)
def test_siblings_without_replacement_are_accepted_rank_by_rank(pair, by_rank):
    p, q = pair
    for k in range(1, len(by_rank) + 1):
        for rank, value in enumerate(by_rank[:k]):
            share = expected(without_replacement(q, k), p, lambda v, rank=rank: v.path == (rank,))
            assert share == close(float(value), abs=1e-12)
        assert first_token_law(without_replacement(q, k), p) == close(np.array(p), abs=1e-12)


@pytest.mark.parametrize(
    ("pair", "values"), [(G2, [F(1, 10), F(3, 10), F(3, 5)]), (G3, [F(1, 5), F(1, 2), F(1)])]
)
def test_certain_siblings_are_accepted_with_the_targets_own_probability(pair, values):
    p, q = pair
    order = np.argsort(-np.array(q))
    for k, value in enumerate(values, start=1):
        proposal = siblings(order[:k], None)
        assert expected([(1.0, proposal)], p, accepted) == close(float(value), abs=1e-12)
        assert first_token_law([(1.0, proposal)], p) == close(np.array(p), abs=1e-12)


def test_a_repeated_certain_sibling_changes_nothing():
    once = first_token_law([(1.0, siblings([1], None))], G2[0])
    twice = first_token_law([(1.0, siblings([1, 1], None))], G2[0])
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


@pytest.mark.parametrize("depth", BEST_TREES)
def test_a_tree_emits_the_sum_of_its_paths_shares(depth):
    p = (0.6, 0.2, 0.1, 0.1)
    for nodes, value in enumerate(BEST_TREES[depth]):
        proposal = best_tree(p[:3], nodes, depth - 1)  # the root is the first level
        tokens = expected([(1.0, proposal)], p, lambda v: len(v.path) + 1)
        assert tokens == close(value, abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("certain", [False, True])
def test_a_sampled_tree_gives_every_text_the_targets_probability(seed, certain):
    vocab, width, horizon = 3, 2, 3

    def p(text: tuple[int, ...]) -> np.ndarray:
        return Sampling(1.0).probs(fake_logits(seed, vocab, (seed, *text)))

    def trees() -> Iterator[tuple[float, Proposal]]:
        """Two levels of two, without replacement, from a law that depends on the text."""

        def pairs(text: tuple[int, ...]) -> Iterator[tuple[float, Proposal]]:
            q = Sampling(1.0).probs(fake_logits(seed + 100, vocab, (seed, *text)))
            if certain:
                yield 1.0, siblings([0, 2], [point(0), point(2)])
            else:
                yield from without_replacement(q, width)

        for weight, top in pairs(()):
            first, second = (int(token) for token in top.tokens)
            for (a, left), (b, right) in product(pairs((first,)), pairs((second,))):
                tokens = np.concatenate([top.tokens, left.tokens, right.tokens])
                laws = (*top.probs, *left.probs, *right.probs)
                yield weight * a * b, Proposal(tokens, np.array([-1, -1, 0, 0, 1, 1]), laws)

    text_law = dict.fromkeys(product(range(vocab), repeat=horizon), 0.0)
    for weight, proposal in trees():
        texts = [()] + [(int(t),) for t in proposal.tokens[:2]]
        texts += [(*texts[1 + i // 2], int(t)) for i, t in enumerate(proposal.tokens[2:])]
        for verdict, chance in verdicts(proposal, np.array([p(text) for text in texts])).items():
            start = emitted(proposal, verdict)
            for text in text_law:
                if text[: len(start)] == start:
                    rest = [p(text[:i])[text[i]] for i in range(len(start), horizon)]
                    text_law[text] += weight * chance * float(np.prod(rest))
    for text, share in text_law.items():
        exact = float(np.prod([p(text[:i])[text[i]] for i in range(horizon)]))
        assert share == close(exact, abs=1e-12)


# Wrong rules that must not pass: each gives the law it is known to give, far from the target's


def _drops_unlikely_tokens(q: Sequence[float]) -> Drafts:
    for weight, proposal in chains(q, 1):
        yield weight, proposal if q[proposal.tokens[0]] >= 0.3 else NOTHING


def _best_of_two(q: Sequence[float]) -> Drafts:
    for weight, proposal in chains(q, 2):
        best = max(proposal.tokens, key=lambda token: min(1, G2[0][token] / q[token]))
        yield weight, chain([int(best)], (law(q),))


def _q_not_scaled_up(q: Sequence[float]) -> Drafts:
    for weight, proposal in without_replacement(q, 2):
        rest = np.array(q)
        rest[proposal.tokens[0]] = 0
        yield weight, siblings(proposal.tokens, [law(q), Distribution(rest)])


def _repeated_sibling_skipped(q: Sequence[float]) -> Drafts:
    for weight, proposal in with_replacement(q, 2):
        tokens = list(dict.fromkeys(proposal.tokens.tolist()))
        yield weight, siblings(tokens, [law(q)] * len(tokens))


def _sorted(q: Sequence[float], sign: int) -> Drafts:
    for weight, proposal in without_replacement(q, 2):
        tokens = sorted(proposal.tokens.tolist(), key=lambda token: sign * q[token])
        yield weight, siblings(tokens, [law(q), law(q).without(tokens[0])])


def _half_temperature(q: Sequence[float]) -> Drafts:
    sharp = np.square(q) / np.square(q).sum()
    for token, weight in enumerate(sharp):
        yield float(weight), chain([token], (law(q),))


def _cut_to_two(q: Sequence[float]) -> Drafts:
    for token in (2, 3):
        yield q[token] / (q[2] + q[3]), chain([token], (law(q),))


def _argmax_as_if_drawn(q: Sequence[float]) -> Drafts:
    yield 1.0, chain([3], (law(q),))


def _top_two_as_if_drawn(q: Sequence[float]) -> Drafts:
    yield 1.0, siblings([3, 2], [law(q), law(q)])


WRONG = {
    _drops_unlikely_tokens: (F(21, 50), F(19, 100), F(13, 50), F(13, 100)),
    _best_of_two: (F(137, 400), F(159, 400), F(11, 50), F(1, 25)),
    _q_not_scaled_up: (F(699, 1960), F(673, 1960), F(1, 5), F(1, 10)),
    _repeated_sibling_skipped: (F(209, 560), F(183, 560), F(1, 5), F(1, 10)),
    _half_temperature: (F(49, 120), F(31, 120), F(1, 5), F(2, 15)),
    _cut_to_two: (F(3, 7), F(1, 7), F(2, 7), F(1, 7)),
    _argmax_as_if_drawn: (F(9, 16), F(3, 16), F(0), F(1, 4)),
    _top_two_as_if_drawn: (F(39, 56), F(3, 56), F(0), F(1, 4)),
}


@pytest.mark.parametrize("drafts", WRONG, ids=lambda drafts: drafts.__name__)
def test_a_wrong_proposal_is_seen_in_the_law(drafts):
    p, q = G2
    found = first_token_law(drafts(q), p)
    assert found == close(np.array([float(value) for value in WRONG[drafts]]), abs=1e-12)
    assert abs(found - p).sum() / 2 > 1e-3


def test_siblings_sorted_by_q_are_seen_in_the_law():
    p, q = G2
    falling = (F(1765, 4032), F(649, 2880), F(199, 1260), F(451, 2520))
    rising = (F(43, 120), F(331, 840), F(26, 105), F(0))
    for sign, values in ((-1, falling), (1, rising)):
        found = first_token_law(_sorted(q, sign), p)
        assert found == close(np.array([float(value) for value in values]), abs=1e-12)


def test_a_residual_left_out_is_seen_in_the_law(monkeypatch):
    monkeypatch.setattr(verify_module, "residual", lambda p, q: p)
    found = first_token_law(chains(G2[1], 1), G2[0])
    assert found == close(np.array([13 / 50, 8 / 25, 7 / 25, 7 / 50]), abs=1e-12)


# Greedy


def test_a_greedy_target_accepts_exactly_its_own_choices(rng):
    logits = np.array([[0, 3, 1], [2, 0, 1], [0, 1, 2.0]])
    assert verify(chain([1, 0]), logits, GREEDY, rng) == Verdict((0, 1), 2)
    assert verify(chain([1, 2]), logits, GREEDY, rng) == Verdict((0,), 0)
    assert verify(chain([2, 0]), logits, GREEDY, rng) == Verdict((), 1)


def test_a_greedy_target_finds_its_path_in_a_tree(rng):
    tree = Proposal(np.array([0, 1, 2, 2]), np.array([-1, -1, 0, 1]))
    logits = np.array([[0, 9, 0], [9, 0, 0], [0, 0, 9], [9, 0, 0], [0, 9, 0.0]])
    assert verify(tree, logits, GREEDY, rng) == Verdict((1, 3), 1)


def test_rows_that_are_not_reached_are_not_looked_at(rng):
    logits = np.array([[0, 9, 0], [np.nan] * 3, [np.nan] * 3])
    assert verify(chain([2, 0]), logits, GREEDY, rng) == Verdict((), 1)
