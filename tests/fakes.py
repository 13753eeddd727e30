"""Models and drafters for tests, small enough to enumerate and honest enough to expose mistakes.

FakeSession's cache is a plain list of tokens, and its logits are a fixed random function of the
whole text a row can see. So an entry kept too long, dropped too early or moved to the wrong place
is a wrong answer, not a slightly different one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from specrt.runtime.distribution import Distribution, point
from specrt.runtime.errors import CapacityError
from specrt.runtime.interfaces import Context, Drafter
from specrt.runtime.proposal import NOTHING, ROOT, Proposal, chain


@lru_cache(maxsize=200_000)
def fake_logits(seed: int, vocab: int, text: tuple[int, ...]) -> np.ndarray:
    """(vocab,) float64: what the fake model `seed` says after `text`. Read-only."""
    row = np.random.default_rng([seed, vocab, *text]).normal(size=vocab) * 1.5
    row.flags.writeable = False
    return row


@dataclass(frozen=True)
class FakeOutput:
    logits: np.ndarray
    hidden: np.ndarray | None


class FakeSession:
    """hidden: each row's (text length, last token), so that a wrong row is seen at once."""

    def __init__(self, seed: int = 0, *, vocab: int = 5, capacity: int = 1000) -> None:
        self.seed, self.vocab, self.capacity = seed, vocab, capacity
        self.verifies_trees = True
        self.entries: list[int] = []
        self.reads: list[int] = []  # rows of each forward

    @property
    def length(self) -> int:
        return len(self.entries)

    def forward(
        self, tokens: Sequence[int] | np.ndarray, parents: np.ndarray | None = None, last: int = 1
    ) -> FakeOutput:
        ids = [int(token) for token in tokens]
        assert ids, "a forward of no tokens"
        assert all(0 <= token < self.vocab for token in ids), f"{ids} outside 0..{self.vocab - 1}"
        if len(self.entries) + len(ids) > self.capacity:
            raise CapacityError(f"{len(self.entries)} + {len(ids)} > {self.capacity}")
        if parents is None:
            parents = np.arange(-1, len(ids) - 1)
        seen: list[tuple[int, ...]] = []
        for token, parent in zip(ids, parents, strict=True):
            before = tuple(self.entries) if parent == -1 else seen[parent]
            seen.append((*before, token))
        self.entries += ids
        self.reads.append(len(ids))
        rows = seen[len(seen) - last :]
        return FakeOutput(
            np.array([fake_logits(self.seed, self.vocab, row) for row in rows]),
            np.array([[len(row), row[-1]] for row in rows], np.float32),
        )

    def keep(self, length: int, path: Sequence[int] = ()) -> None:
        assert 0 <= length <= len(self.entries)
        assert list(path) == sorted(set(path)), f"a path goes down the tree, not {path}"
        self.entries = self.entries[:length] + [self.entries[length + i] for i in path]


class Oracle:
    """Proposes what the fake target writes greedily; wrong where the length divides by `miss`."""

    def __init__(self, seed: int, vocab: int, miss: int = 0) -> None:
        self.seed, self.vocab, self.miss = seed, vocab, miss

    def propose(self, context: Context, budget: int, rng: np.random.Generator) -> Proposal:
        text, tokens = tuple(context.tokens), []
        for _ in range(budget):
            token = int(fake_logits(self.seed, self.vocab, text).argmax())
            if self.miss and (len(text) % self.miss == 0):
                token = (token + 1) % self.vocab
            tokens.append(token)
            text = (*text, token)
        return Proposal(np.array(tokens, np.int64), np.arange(-1, len(tokens) - 1), source="oracle")


class Drawing:
    """A chain drawn from the fake model `seed`, as a draft model draws it."""

    def __init__(self, seed: int, vocab: int) -> None:
        self.seed, self.vocab = seed, vocab

    def propose(self, context: Context, budget: int, rng: np.random.Generator) -> Proposal:
        tokens: list[int] = []
        laws: list[Distribution] = []
        while len(tokens) < budget:
            text = (*context.tokens, *tokens)
            row = fake_logits(self.seed, self.vocab, text)
            laws.append(context.sampling.distribution(row, text))
            tokens.append(context.draw(laws[-1], len(tokens), rng))
        return chain(tokens, tuple(laws), "drawing")


class Burning:
    """Takes random numbers and proposes what `inner` does."""

    def __init__(self, inner: Drafter, count: int) -> None:
        self.inner, self.count = inner, count

    def propose(self, context: Context, budget: int, rng: np.random.Generator) -> Proposal:
        rng.random(self.count)
        return self.inner.propose(context, budget, rng)


class RandomTree:
    """A tree of `width` children a node, drawn without replacement from the fake model `seed`;
    nodes are numbered level by level. certain: the most likely ones, without laws."""

    def __init__(self, seed: int, vocab: int, width: int = 2, *, certain: bool = False) -> None:
        self.seed, self.vocab, self.width, self.certain = seed, vocab, width, certain

    def propose(self, context: Context, budget: int, rng: np.random.Generator) -> Proposal:
        nodes: list[tuple[int, int, Distribution]] = []  # token, parent, law
        texts = {ROOT: tuple(context.tokens)}
        node = ROOT
        while len(nodes) < budget:
            row = fake_logits(self.seed, self.vocab, texts[node])
            if self.certain:
                children = self._best(context.sampling.processed(row, texts[node]))
            else:
                q = context.sampling.distribution(row, texts[node])
                children = self._drawn(q, context, len(texts[node]) - len(context.tokens), rng)
            for token, law in children[: budget - len(nodes)]:
                texts[len(nodes)] = (*texts[node], token)
                nodes.append((token, node, law))
            node += 1
        if not nodes:
            return NOTHING
        tokens, parents, laws = zip(*nodes, strict=True)
        probs = None if self.certain else laws
        return Proposal(np.array(tokens), np.array(parents), probs, "tree")

    def _best(self, row: np.ndarray) -> list[tuple[int, Distribution]]:
        return [(int(x), point(int(x))) for x in np.argsort(-row, kind="stable")[: self.width]]

    def _drawn(
        self, q: Distribution, context: Context, ahead: int, rng: np.random.Generator
    ) -> list[tuple[int, Distribution]]:
        children: list[tuple[int, Distribution]] = []
        while len(children) < self.width:
            children.append((context.draw(q, ahead, rng), q))
            rest = q.without(children[-1][0])
            if rest is q:  # nothing else is left
                break
            q = rest
        return children
