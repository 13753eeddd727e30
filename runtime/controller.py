"""What is drafted in a step. An empty proposal is plain decoding.

A controller sees the text and what earlier steps gave and took, never the target's answer to the
draft it is choosing; so it may choose as it likes, and the text keeps its law.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from specrt.runtime.errors import RequestError
from specrt.runtime.interfaces import Context, Drafter
from specrt.runtime.proposal import Proposal
from specrt.runtime.trace import Step

AUTO_BUDGET = 4  # small: 4 rows cost 1.1 to 1.6 times one row on the CPUs measured


class Controller(Protocol):
    """Chooses before each step, learns from each step."""

    @property
    def reason(self) -> str: ...  # why the latest draft, for the trace

    def draft(
        self, drafter: Drafter, context: Context, room: int, rng: "np.random.Generator"
    ) -> Proposal:
        """What the drafter proposes, of at most room tokens; or less of it, or nothing."""

    def observe(self, step: Step) -> None:
        """Learn from the step of the latest draft."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same budget at every step. why: the reason to give instead of the number."""

    tokens: int = AUTO_BUDGET
    why: str = ""

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise RequestError(f"the draft budget must be 0 or more tokens, not {self.tokens}")

    @property
    def reason(self) -> str:
        return self.why or f"fixed budget {self.tokens}"

    def draft(
        self, drafter: Drafter, context: Context, room: int, rng: "np.random.Generator"
    ) -> Proposal:
        budget = min(self.tokens, room)
        proposal = drafter.propose(context, budget, rng)
        assert proposal.size <= budget, (
            f"{proposal.source} proposed {proposal.size} tokens on a budget of {budget}"
        )
        return proposal

    def observe(self, step: Step) -> None:
        """Learns nothing."""
