"""Draft tokens as a tree. A chain is a tree in which each token follows the one before.

Siblings stand in the order in which they were drawn; verification depends on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specrt.runtime.distribution import Distribution, point

ROOT = -1  # the last committed token, as a parent


@dataclass(frozen=True, slots=True)
class Proposal:
    """n draft tokens.

    tokens: (n,) int64. parents: (n,) int64, parents[i] < i, ROOT for the first level.
    probs: n laws, each what its token was drawn from at the moment it was drawn, so that of a
    second sibling drawn without replacement lacks the first; None: every token was certain.
    source: the drafter's name. kind: proposals of one kind are about equally likely right; "" where
    the source is all there is to say.
    """

    tokens: np.ndarray
    parents: np.ndarray
    probs: tuple[Distribution, ...] | None = None
    source: str = ""
    kind: str = ""

    def __post_init__(self) -> None:
        assert self.tokens.shape == self.parents.shape == (self.tokens.size,)
        assert self.probs is None or len(self.probs) == self.tokens.size
        assert (self.parents < np.arange(self.size)).all(), "a node stands before its parent"

    @property
    def size(self) -> int:
        return self.tokens.size

    @property
    def is_chain(self) -> bool:
        return bool(self.parents.tolist() == [*range(-1, self.size - 1)])

    @property
    def depth(self) -> int:
        """Levels of nodes: the most that can be accepted."""
        depths: list[int] = []
        for parent in self.parents.tolist():
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return max(depths, default=0)

    def children(self, node: int) -> list[int]:
        """The nodes that follow `node`, in the order drawn."""
        return np.flatnonzero(self.parents == node).tolist() if self.size else []

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the first level down to `node`; none for the root."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = int(self.parents[node])
        return tuple(reversed(path))

    def first(self, n: int) -> "Proposal":
        """Its first n nodes."""
        probs = None if self.probs is None else self.probs[:n]
        return Proposal(self.tokens[:n], self.parents[:n], probs, self.source, self.kind)

    def line(self, node: int) -> tuple[int, ...] | None:
        """All nodes below `node` where they are a chain; None where they branch."""
        line: list[int] = []
        while children := self.children(line[-1] if line else node):
            if len(children) > 1:
                return None
            line += children
        return tuple(line)

    def law(self, node: int) -> Distribution:
        """What the token of `node` was drawn from."""
        return point(int(self.tokens[node])) if self.probs is None else self.probs[node]


def chain(
    tokens: Sequence[int],
    probs: tuple[Distribution, ...] | None = None,
    source: str = "",
    kind: str = "",
) -> Proposal:
    """Tokens that follow each other."""
    parents = np.arange(-1, len(tokens) - 1, dtype=np.int64)
    return Proposal(np.array(tokens, np.int64), parents, probs, source, kind)


NOTHING = chain(())
