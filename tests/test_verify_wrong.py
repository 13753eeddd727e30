"""Rules and proposals known to be wrong: each is seen in the enumerated law.

The values are those the mistakes are known to give on the pair G2; on other pairs some of them give
the right law by chance.
"""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction as F
from importlib import import_module
from itertools import product

import numpy as np
import pytest
from drafting import (
    G2,
    chains,
    constant,
    law,
    random_model,
    siblings,
    trees,
    with_replacement,
    without_replacement,
)
from enumeration import Drafts, target_law, text_law, total_variation

from specrt.runtime.distribution import Distribution, point, residual
from specrt.runtime.noise import Chance
from specrt.runtime.proposal import NOTHING, chain
from specrt.runtime.rules import Rule
from specrt.runtime.rules.rejection import rejection
from specrt.runtime.scored import Move, Scored

close = pytest.approx


def pairs(q: Sequence[float]) -> Drafts:
    return trees(constant(q), (2,), without_replacement)


# Proposals that are not what they say


def drops_unlikely_tokens(q: Sequence[float]) -> Drafts:
    for weight, proposal in chains(constant(q), 1):
        yield weight, proposal if q[proposal.tokens[0]] >= 0.3 else NOTHING


def best_of_two(q: Sequence[float]) -> Drafts:
    for a, b in product(range(4), repeat=2):
        best = max((a, b), key=lambda token: min(1, G2[0][token] / q[token]))
        yield q[a] * q[b], chain([best], (law(q),))


def q_not_scaled_up(q: Sequence[float]) -> Drafts:
    for weight, proposal in pairs(q):
        rest = np.array(q)
        rest[proposal.tokens[0]] = 0
        yield weight, siblings(proposal.tokens, [law(q), Distribution(rest)])


def repeated_sibling_skipped(q: Sequence[float]) -> Drafts:
    for a, b in product(range(4), repeat=2):
        tokens = list(dict.fromkeys((a, b)))
        yield q[a] * q[b], siblings(tokens, [law(q)] * len(tokens))


def sorted_by(sign: int) -> Callable[[Sequence[float]], Drafts]:
    def drafts(q: Sequence[float]) -> Drafts:
        for weight, proposal in pairs(q):
            tokens = sorted(proposal.tokens.tolist(), key=lambda token: sign * q[token])
            yield weight, siblings(tokens, [law(q), law(q).without(tokens[0])])

    drafts.__name__ = "rising" if sign > 0 else "falling"
    return drafts


def half_temperature(q: Sequence[float]) -> Drafts:
    sharp = np.square(q) / np.square(q).sum()
    for token, weight in enumerate(sharp):
        yield float(weight), chain([token], (law(q),))


def cut_to_two(q: Sequence[float]) -> Drafts:
    for token in (2, 3):
        yield q[token] / (q[2] + q[3]), chain([token], (law(q),))


def argmax_as_if_drawn(q: Sequence[float]) -> Drafts:
    yield 1.0, chain([3], (law(q),))


def top_two_as_if_drawn(q: Sequence[float]) -> Drafts:
    yield 1.0, siblings([3, 2], [law(q), law(q).without(3)])


def top_two_of_one_law(q: Sequence[float]) -> Drafts:
    yield 1.0, siblings([3, 2], [law(q), law(q)])


WRONG = {
    drops_unlikely_tokens: (F(21, 50), F(19, 100), F(13, 50), F(13, 100)),
    best_of_two: (F(137, 400), F(159, 400), F(11, 50), F(1, 25)),
    q_not_scaled_up: (F(699, 1960), F(673, 1960), F(1, 5), F(1, 10)),
    repeated_sibling_skipped: (F(209, 560), F(183, 560), F(1, 5), F(1, 10)),
    sorted_by(-1): (F(1765, 4032), F(649, 2880), F(199, 1260), F(451, 2520)),
    sorted_by(1): (F(43, 120), F(331, 840), F(26, 105), F(0)),
    half_temperature: (F(49, 120), F(31, 120), F(1, 5), F(2, 15)),
    cut_to_two: (F(3, 7), F(1, 7), F(2, 7), F(1, 7)),
    argmax_as_if_drawn: (F(9, 16), F(3, 16), F(0), F(1, 4)),
    top_two_of_one_law: (F(39, 56), F(3, 56), F(0), F(1, 4)),
}
PROPOSALS = [*WRONG, top_two_as_if_drawn]


@pytest.mark.parametrize("drafts", WRONG, ids=lambda drafts: drafts.__name__)
def test_a_wrong_proposal_is_seen_in_the_law(drafts):
    p, q = G2
    found = text_law(drafts(q), constant(p), "rejection", 1)
    assert found == close(np.array([float(value) for value in WRONG[drafts]]), abs=1e-12)
    assert total_variation(found, np.array(p)) > 1e-3


@pytest.mark.parametrize("drafts", PROPOSALS, ids=lambda drafts: drafts.__name__)
@pytest.mark.parametrize("rule", ["membership", "coupled"])
def test_membership_is_exact_for_any_proposal(rule, drafts):
    p, q = G2
    assert text_law(drafts(q), constant(p), rule, 1) == close(np.array(p), abs=1e-12)


def test_a_stop_that_keeps_the_unlikely_token_is_no_mistake():
    """Drafting may end after a token is seen, as long as that token stays."""
    p, q = G2

    def drafts() -> Drafts:
        for weight, proposal in chains(constant(q), 2):
            stops = q[proposal.tokens[0]] < 0.3
            yield weight, chain(proposal.tokens[:1], proposal.probs[:1]) if stops else proposal

    for rule in ("rejection", "block"):
        found = text_law(drafts(), constant(p), rule, 2)
        assert total_variation(found, target_law(constant(p), 2)) < 1e-12


# Mistakes in the rules' own code


def deviation(rule: str | Rule, drafts: Drafts, p: object, horizon: int = 3) -> float:
    return total_variation(text_law(drafts, p, rule, horizon), target_law(p, horizon))


MISTAKES = {  # module, name in it, what stands there instead
    "a refusal draws from p": ("rejection", "residual", lambda p, q: p),
    "a refusal draws from q": ("rejection", "residual", lambda p, q: q),
    "a block forgets how far its prefix is backed": (
        *("block", "surplus"),
        lambda p, q, share: np.maximum(p.probs - q.at(p.tokens), 0),
    ),
    "a block's refusal draws from p": ("block", "scaled", lambda p, weights: p),
    "k-SEQ tests with q itself": ("kseq", "_rho", lambda p, q, k: 1.0),
    "k-SEQ tests as if there were more": ("kseq", "_rho", lambda p, q, k: 0.5 * k),
    "k-SEQ's refusal draws from p": ("kseq", "scaled", lambda p, weights: p),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_rule_is_seen_in_the_law(name, monkeypatch):
    rule, function, wrong = MISTAKES[name]
    p, q = random_model(1, 3), random_model(2, 3)

    def drafts() -> Drafts:
        return trees(q, (3,), with_replacement) if rule == "kseq" else chains(q, 2)

    assert deviation(rule, drafts(), p) < 1e-12
    monkeypatch.setattr(import_module(f"specrt.runtime.rules.{rule}"), function, wrong)
    assert deviation(rule, drafts(), p) > 1e-3


def test_a_residual_left_out_gives_the_law_it_is_known_to_give(monkeypatch):
    monkeypatch.setattr(import_module("specrt.runtime.rules.rejection"), "residual", lambda p, q: p)
    found = text_law(chains(constant(G2[1]), 1), constant(G2[0]), "rejection", 1)
    assert found == close(np.array([13 / 50, 8 / 25, 7 / 25, 7 / 50]), abs=1e-12)


# Rules that were published or are easily written, and are wrong


def bonus_is_argmax(scored: Scored, node: int, chance: Chance) -> Move:
    move = rejection(scored, node, chance)
    ended = move.end is not None and not scored.proposal.children(node)
    return Move((), point(int(move.end.probs.argmax()))) if ended else move


def bonus_of_the_row_before(scored: Scored, node: int, chance: Chance) -> Move:
    if node >= 0 and not scored.proposal.children(node):
        return Move((), scored.p(node - 1))
    return rejection(scored, node, chance)


def residual_of_the_next_row(scored: Scored, node: int, chance: Chance) -> Move:
    move = rejection(scored, node, chance)
    if move.end is None or not scored.proposal.children(node):
        return move
    return Move((), residual(scored.p(node + 1), scored.proposal.law(node + 1)))


def ratio_of_the_next_row(scored: Scored, node: int, chance: Chance) -> Move:
    """The fault of a row shifted by one: p is that of the token after."""
    children = scored.proposal.children(node)
    return rejection(scored, children[0], chance) if children else rejection(scored, node, chance)


def certain_tokens_by_their_probability(scored: Scored, node: int, chance: Chance) -> Move:
    """p / q with the draft's probability of a token that was not drawn."""
    p = scored.p(node)
    for child in scored.proposal.children(node):
        if chance.accepts(p.of(int(scored.proposal.tokens[child])), 0.5):
            return Move((child,))
    return Move((), p)


def a_second_draw_ends(scored: Scored, node: int, chance: Chance) -> Move:
    """Membership whose token after a miss is drawn once more."""
    token = chance.draw(scored.p(node), 0)
    hit = [c for c in scored.proposal.children(node) if scored.proposal.tokens[c] == token]
    return Move(tuple(hit[:1])) if hit else Move((), scored.p(node))


def a_draw_for_each_child(scored: Scored, node: int, chance: Chance) -> Move:
    """Each candidate is compared with a draw of its own, as REST and Medusa do by row."""
    token = chance.draw(scored.p(node), 0)
    for child in scored.proposal.children(node):
        if scored.proposal.tokens[child] == token:
            return Move((child,))
        token = chance.draw(scored.p(node), 0)
    return Move((), point(token))


def block_stops_at_the_first_refusal(scored: Scored, node: int, chance: Chance) -> Move:
    """Block verification's ratios, token by token."""
    joint, line, at = 1.0, scored.proposal.line(node), node
    for i, child in enumerate(line):
        p, q = scored.p(at), scored.proposal.law(child)
        token = int(scored.proposal.tokens[child])
        joint = min(joint * p.of(token) / q.of(token), 1.0)
        if not chance.accepts(joint, 1.0):
            return Move(line[:i], residual(p, q))
        at = child
    return Move(line, scored.p(at))


PUBLISHED = (
    *(bonus_is_argmax, bonus_of_the_row_before, residual_of_the_next_row, ratio_of_the_next_row),
    *(a_second_draw_ends, block_stops_at_the_first_refusal),
)


@pytest.mark.parametrize("follow", PUBLISHED, ids=lambda follow: follow.__name__)
def test_a_wrong_rule_is_seen_in_the_law_of_a_chain(follow):
    p, q = random_model(1, 3), random_model(2, 3)
    assert deviation(Rule("wrong", follow), chains(q, 2), p) > 1e-3


@pytest.mark.parametrize(
    "follow",
    [certain_tokens_by_their_probability, a_draw_for_each_child],
    ids=lambda follow: follow.__name__,
)
def test_a_wrong_rule_is_seen_in_the_law_of_certain_siblings(follow):
    p = random_model(1, 4)

    def certain() -> Iterator:
        yield 1.0, siblings([0, 1, 2], None)

    assert deviation("membership", certain(), p, 2) < 1e-12
    assert deviation(Rule("wrong", follow), certain(), p, 2) > 1e-3
