"""The target's decision on a proposal: how far it is followed, and the token after that.

One rule for chain and tree, greedy and sampled: at each node its children are tried in the order
drawn; child x, drawn from q, is accepted with probability min(1, p(x) / q(x)), and after a
rejection p becomes the residual of p and q. So every emitted token follows the target's law
exactly, whatever was proposed. A certain child is one drawn from a point mass; a greedy target is
a point mass itself.
"""

from dataclasses import dataclass

import numpy as np

from specrt.runtime.distribution import draw, residual
from specrt.runtime.proposal import ROOT, Proposal
from specrt.runtime.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Verdict:
    """path: the accepted nodes, root first. bonus: the target's own token after them."""

    path: tuple[int, ...]
    bonus: int


def verify(
    proposal: Proposal, logits: np.ndarray, sampling: Sampling, rng: np.random.Generator
) -> Verdict:
    """logits: (n + 1, V), row 0 the root, row i + 1 node i. A row becomes probabilities only when
    its node is reached."""
    path: list[int] = []
    while True:
        node = path[-1] if path else ROOT
        p = sampling.distribution(logits[node + 1])
        for child in proposal.children(node):
            token, q = int(proposal.tokens[child]), proposal.law(child)
            if rng.random() * q.of(token) < p.of(token):
                path.append(child)
                break
            p = residual(p, q)
        else:
            return Verdict(tuple(path), draw(p, rng))
