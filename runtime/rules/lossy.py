"""Rules that change the text's law: for comparison with others, and used only by their names.

Lenience is `rejection` with another ratio. The two here accept without a toss what seems good
enough to the target.
"""

import math

import numpy as np

from specrt.runtime.distribution import Distribution
from specrt.runtime.noise import Chance
from specrt.runtime.sampling import top_k
from specrt.runtime.scored import Move, Scored


def typical(scored: Scored, node: int, chance: Chance, epsilon: float, delta: float) -> Move:
    """Medusa's typical acceptance (2401.10774): x is accepted where p(x) exceeds the smaller of
    epsilon and delta exp(-entropy of p), so more freely where the target is undecided. Of a tree
    the longest accepted path, and of equally long ones the likeliest, is taken."""
    best: tuple[tuple[int, ...], float, Distribution] = ((), 0.0, scored.p(node))
    paths = [best]
    while paths:
        path, likelihood, p = paths.pop()
        bound = min(epsilon, delta * math.exp(-_entropy(p)))
        for child in scored.proposal.children(path[-1] if path else node):
            chances = p.of(int(scored.proposal.tokens[child]))
            if chances > bound:
                longer = (*path, child), likelihood + math.log(chances), scored.p(child)
                paths.append(longer)
                best = max(best, longer, key=lambda found: (len(found[0]), found[1]))
    return Move(best[0], best[2])


def topk(scored: Scored, node: int, chance: Chance, k: float) -> Move:
    """The relaxed criterion of blockwise parallel decoding (Stern et al. 1811.03115): a child is
    accepted where it is one of the target's k best tokens, the best of them first."""
    row, tokens = scored.processed(node), scored.proposal.tokens
    good = set(top_k(row, min(int(k), row.size)).tolist())
    children = [c for c in scored.proposal.children(node) if int(tokens[c]) in good]
    if not children:
        return Move((), scored.p(node))
    return Move((max(children, key=lambda child: float(row[tokens[child]])),))


def _entropy(p: Distribution) -> float:
    """In nats."""
    kept = p.probs[p.probs > 0]
    return float(-(kept * np.log(kept)).sum())
