"""Plain decoding: nothing is ever proposed."""

import numpy as np

from specrt.runtime.interfaces import Context
from specrt.runtime.proposal import NOTHING, Proposal


class Plain:
    """Proposes nothing."""

    def propose(self, context: Context, budget: int, rng: "np.random.Generator") -> Proposal:
        return NOTHING
