"""Rejection sampling: of a chain token by token, of siblings one after the other.

Leviathan et al. 2211.17192 and Chen et al. 2302.01318 for a chain; SpecInfer 2305.09781, RSD
2402.14160 and Sequoia 2402.12374 for siblings. Exact where each token was drawn from its law, and
siblings stand in the order drawn: with replacement their laws are alike, without it each lacks the
tokens before.
"""

from specrt.runtime.distribution import residual
from specrt.runtime.noise import Chance
from specrt.runtime.scored import Move, Scored


def rejection(scored: Scored, node: int, chance: Chance, lenience: float = 1.0) -> Move:
    """Child x, drawn from q, is accepted with probability min(1, p(x) / q(x)); after a refusal p
    becomes the residual of p and q. lenience below 1 scales q in the ratio, and is not exact."""
    p, proposal = scored.p(node), scored.proposal
    for child in proposal.children(node):
        token, q = int(proposal.tokens[child]), proposal.law(child)
        if chance.accepts(p.of(token), lenience * q.of(token)):
            return Move((child,))
        p = residual(p, q)
    return Move((), p)
