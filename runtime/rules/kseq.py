"""k-SEQ: of k tokens drawn from one law any may be accepted (SpecTr, Sun et al. 2310.15141)."""

import numpy as np

from specrt.runtime.distribution import scaled
from specrt.runtime.noise import Chance
from specrt.runtime.rules.rejection import rejection
from specrt.runtime.scored import Move, Scored

HALVINGS = 60  # rho is then known to the last bit


def kseq(scored: Scored, node: int, chance: Chance) -> Move:
    """Each child x in turn is accepted with probability min(1, p(x) / (rho q(x))), p unchanged
    by refusals. Only for siblings with one law, the same object; others are tried by rejection,
    which is what this is for an only child."""
    proposal = scored.proposal
    children = proposal.children(node)
    if len(children) < 2 or any(proposal.law(c) is not proposal.law(children[0]) for c in children):
        return rejection(scored, node, chance)
    p, q, k = scored.p(node), proposal.law(children[0]), len(children)
    offered = q.at(p.tokens)  # (s,) at p's places
    rho = _rho(p.probs, offered, k)
    for child in children:
        token = int(proposal.tokens[child])
        if chance.accepts(p.of(token), rho * q.of(token)):
            return Move((child,))
    shared = np.minimum(offered, p.probs / rho)
    each = float(shared.sum())  # the chance that one child is accepted
    if not each:
        return Move((), p)
    any_of = 1 - (1 - each) ** k
    return Move((), scaled(p, np.maximum(p.probs - any_of / each * shared, 0)))


def _rho(p: np.ndarray, q: np.ndarray, k: int) -> float:
    """The smallest rho from 1 on at which the accepted mass, with its share of each token, fits
    under p: rho b >= 1 - (1 - b)^k, where b is the sum of min(q, p / rho)."""

    def fits(rho: float) -> bool:
        each = float(np.minimum(q, p / rho).sum())
        return rho * each >= 1 - (1 - each) ** k

    low, high = 1.0, float(k)
    if fits(low):
        return low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
