"""A proposal with the target's answer: what a rule decides upon, and what it decides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf

import numpy as np

from specrt.runtime.distribution import Distribution
from specrt.runtime.noise import Chance
from specrt.runtime.proposal import Proposal
from specrt.runtime.sampling import Sampling

FAR = 60.0  # nats; a token so far behind has no chance


@dataclass(frozen=True, slots=True)
class Scored:
    """logits: (n + 1, V) as the model gave them, row 0 the root, row i + 1 node i. tokens: the text
    so far, its last one the root. A row becomes probabilities only when a rule asks for them."""

    proposal: Proposal
    logits: np.ndarray
    sampling: Sampling
    tokens: Sequence[int]

    def raw(self, node: int) -> np.ndarray:
        """(V,) the target's own logits after a node."""
        row: np.ndarray = self.logits[node + 1]
        return row

    def processed(self, node: int) -> np.ndarray:
        """(V,) the same, as the request's processors change them."""
        return self.sampling.processed(self.raw(node), self._text(node))

    def p(self, node: int) -> Distribution:
        """The target's law after a node."""
        return self.sampling.distribution(self.raw(node), self._text(node))

    def certainty(self, node: int, token: int) -> float:
        """How likely a token after a node is for the target itself, against the best other one
        alone: two passes over the row instead of a softmax."""
        row = self.raw(node)
        others = [part.max() for part in (row[:token], row[token + 1 :]) if part.size]
        behind = float(max(others, default=-inf) - row[token])
        return 1 / (1 + exp(min(behind, FAR)))

    def _text(self, node: int) -> Sequence[int]:
        """What the row of a node has read: the text, and the tokens down to the node. Nothing where
        no processor asks, for it is a copy."""
        if self.sampling.processors.idle:
            return ()
        path = self.proposal.path(node)
        return [*self.tokens, *self.proposal.tokens[list(path)].tolist()]

    def place(self, node: int) -> int:
        """The place in the text of the token after a node."""
        return len(self.tokens) + len(self.proposal.path(node))


@dataclass(frozen=True, slots=True)
class Move:
    """What is decided at a node. nodes: accepted below it, each a child of the one before. end:
    what the token after them is drawn from; None: the walk goes on from the last of them."""

    nodes: tuple[int, ...] = ()
    end: Distribution | None = None


Follow = Callable[[Scored, int, Chance], Move]  # the decision at one node
