"""Every draft of a form, with its probability, from models small enough for that."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product

import numpy as np
from enumeration import Drafts, Model
from fakes import fake_logits

from specrt.runtime.distribution import Distribution
from specrt.runtime.proposal import ROOT, Proposal, chain
from specrt.runtime.sampling import Sampling

G1 = ((1 / 3, 2 / 3), (2 / 3, 1 / 3))  # p and q with known acceptances
G2 = ((0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4))
G3 = ((0.5, 0.3, 0.2), (0.2, 0.3, 0.5))
WARM = Sampling(1.0)

Siblings = Sequence[tuple[int, Distribution]]
Level = Callable[[Distribution, int], Iterator[tuple[float, Siblings]]]


def law(probs: Sequence[float] | np.ndarray) -> Distribution:
    return Distribution(np.array(probs, np.float64))


def constant(probs: Sequence[float]) -> Model:
    """The same law after every text."""
    row = np.array(probs, np.float64)
    return lambda text: row


def random_model(seed: int, vocab: int, sampling: Sampling = WARM) -> Model:
    """A law that depends on the whole text."""
    return cache(lambda text: sampling.probs(fake_logits(seed, vocab, text)))


def siblings(tokens: Sequence[int], laws: Sequence[Distribution] | None) -> Proposal:
    parents = np.full(len(tokens), ROOT)
    return Proposal(np.array(tokens, np.int64), parents, None if laws is None else tuple(laws))


def with_replacement(q: Distribution, k: int) -> Iterator[tuple[float, Siblings]]:
    """Every list of k tokens drawn from q, all with the one law q."""
    for tokens in product(np.flatnonzero(q.probs).tolist(), repeat=k):
        yield float(np.prod(q.probs[list(tokens)])), [(token, q) for token in tokens]


def without_replacement(q: Distribution, k: int) -> Iterator[tuple[float, Siblings]]:
    """Every list of different tokens in the order drawn; each law lacks the tokens before."""

    def extend(drawn: list[tuple[int, Distribution]], weight: float) -> Iterator:
        rest = drawn[-1][1].without(drawn[-1][0]) if drawn else q
        if len(drawn) == k or (drawn and rest is drawn[-1][1]):
            yield weight, drawn
            return
        for token in np.flatnonzero(rest.probs).tolist():
            yield from extend([*drawn, (token, rest)], weight * float(rest.probs[token]))

    yield from extend([], 1.0)


def trees(q: Model, widths: Sequence[int], level: Level) -> Drafts:
    """Every tree whose nodes at depth d have widths[d] children, drawn as `level` draws."""

    def below(text: tuple[int, ...], depth: int) -> Iterator[tuple[float, list]]:
        """Subtrees as lists of (token, law, subtree)."""
        if depth == len(widths):
            yield 1.0, []
            return
        for weight, drawn in level(law(q(text)), widths[depth]):
            options = [list(below((*text, token), depth + 1)) for token, _ in drawn]
            for choice in product(*options):
                nodes = [
                    (token, laws, sub)
                    for (token, laws), (_, sub) in zip(drawn, choice, strict=True)
                ]
                yield weight * float(np.prod([w for w, _ in choice])), nodes

    for weight, nodes in below((), 0):
        yield weight, _flat(nodes)


def chains(q: Model, length: int) -> Drafts:
    return trees(q, (1,) * length, with_replacement)


def certain_tree(q: Model, widths: Sequence[int]) -> Drafts:
    """The most likely tokens at each node, without laws: one tree."""

    def best(row: Distribution, k: int) -> Iterator[tuple[float, Siblings]]:
        yield 1.0, [(int(token), row) for token in np.argsort(-row.probs)[:k]]

    for weight, tree in trees(q, widths, best):
        yield weight, Proposal(tree.tokens, tree.parents)


def _flat(nodes: list) -> Proposal:
    """Level by level, as drafters number their nodes."""
    tokens: list[int] = []
    parents: list[int] = []
    laws: list[Distribution] = []
    level = [(ROOT, node) for node in nodes]
    while level:
        deeper = []
        for parent, (token, q, sub) in level:
            deeper += [(len(tokens), node) for node in sub]
            tokens.append(token)
            parents.append(parent)
            laws.append(q)
        level = deeper
    if not tokens:
        return chain(())
    return Proposal(np.array(tokens), np.array(parents), tuple(laws))
