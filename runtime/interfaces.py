"""The seams of the runtime: what the loop asks of a model and of a drafter.

A model only counts what its cache has read; the loop owns the text. Annotations quote
"np.random.Generator": numpy.random is 3 MB, and 4 more of OpenSSL, that a session does not need.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from specrt.runtime.distribution import Distribution, draw
from specrt.runtime.noise import Noise
from specrt.runtime.proposal import Proposal
from specrt.runtime.sampling import GREEDY, Sampling


class Output(Protocol):
    """What one forward pass gives for its last rows."""

    @property
    def logits(self) -> np.ndarray: ...  # (last, V)
    @property
    def hidden(self) -> np.ndarray | None: ...  # (last, H), where a drafter needs it


class Session(Protocol):
    """A running model and its cache; target and draft model alike."""

    @property
    def length(self) -> int: ...  # tokens the cache has read
    @property
    def capacity(self) -> int: ...  # tokens it can hold
    @property
    def vocab(self) -> int: ...  # V, padding included
    @property
    def verifies_trees(self) -> bool: ...  # whether parents may be no chain

    def forward(
        self, tokens: Sequence[int] | np.ndarray, parents: np.ndarray | None = None, last: int = 1
    ) -> Output:
        """Read tokens (m,) after the cache; parents (m,), -1 = the cache's end, None = a chain.
        Appends m entries; CapacityError if they do not fit."""

    def keep(self, length: int, path: Sequence[int] = ()) -> None:
        """Keep the first length entries, then entries length + i for i in path; forget the rest."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a drafter may know. tokens: the text so far, prompt included; not to be changed.
    hidden: (emitted, H), the target's rows that gave the last step's tokens, or None.
    sampling: how the request draws, so that a draft model can draw alike. noise: what the target
    will draw with, where the rule couples, else None; numbers of a drafter's own must not come
    from the same. go_on: told after each token how certain a draft model is of it, says whether to
    draft another; None: always."""

    tokens: Sequence[int]
    hidden: np.ndarray | None = None
    sampling: Sampling = GREEDY
    noise: Noise | None = None
    go_on: Callable[[float], bool] | None = None

    def draw(self, q: Distribution, ahead: int, rng: "np.random.Generator") -> int:
        """A draft token from q, `ahead` tokens after the text's end: with the target's noise if
        there is any, so that both draw the same token as often as can be, else with rng. Siblings
        come one by one, each from the law without those before it."""
        if self.noise is None:
            return draw(q, rng)
        return self.noise.draw(q, len(self.tokens) + ahead)


class Drafter(Protocol):
    """Guesses what comes next. It sees the text, and owns and repairs its own cache."""

    def propose(self, context: Context, budget: int, rng: "np.random.Generator") -> Proposal:
        """At most budget tokens, fewer or none if it has nothing. Depends on the context and rng
        alone, not on what was asked before."""
