"""Membership: the target draws its own token, and a child that carries it is accepted.

Exact for every proposal, however its tokens were chosen, because what is emitted is the target's
own draw either way. Of certain tokens it accepts as many as any rule can.
"""

from specrt.runtime.distribution import point
from specrt.runtime.noise import Chance
from specrt.runtime.scored import Move, Scored


def membership(scored: Scored, node: int, chance: Chance) -> Move:
    """One draw from p; the first child that equals it is accepted."""
    token = chance.draw(scored.p(node), scored.place(node))
    for child in scored.proposal.children(node):
        if scored.proposal.tokens[child] == token:
            return Move((child,))
    return Move((), point(token))
