"""Several drafters in order of preference, cheapest first."""

from collections.abc import Sequence

import numpy as np

from specrt.runtime.interfaces import Context, Drafter
from specrt.runtime.proposal import NOTHING, Proposal


class First:
    """Asks each drafter in turn; the first that proposes something wins."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = tuple(drafters)

    def propose(self, context: Context, budget: int, rng: np.random.Generator) -> Proposal:
        for drafter in self._drafters:
            proposal = drafter.propose(context, budget, rng)
            if proposal.size:
                return proposal
        return NOTHING
