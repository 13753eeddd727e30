"""Several drafters in order of preference, cheapest first; and what to know before asking one."""

from collections.abc import Sequence

import numpy as np

from specrt.runtime.interfaces import Context, Drafter
from specrt.runtime.proposal import NOTHING, Proposal


class First:
    """Asks each drafter in turn; the first that proposes something wins."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = tuple(drafters)

    def propose(self, context: Context, budget: int, rng: "np.random.Generator") -> Proposal:
        for drafter in self.drafters:
            proposal = drafter.propose(context, budget, rng)
            if proposal.size:
                return proposal
        return NOTHING


def parts(drafter: Drafter) -> tuple[Drafter, ...]:
    """The drafters that one combines, or the one itself."""
    return drafter.drafters if isinstance(drafter, First) else (drafter,)


def is_free(drafter: Drafter) -> bool:
    """Whether it proposes in next to no time, so that it may be asked before anything is decided;
    its attribute `free` says so."""
    return bool(getattr(drafter, "free", False))


def unread(drafter: Drafter, tokens: Sequence[int]) -> int:
    """How many tokens of a text it has to read before it can draft, by its method `unread`; 1 for
    a drafter that reads nothing."""
    ask = getattr(drafter, "unread", None)
    return int(ask(tokens)) if ask else 1


def stops(drafter: Drafter) -> bool:
    """Whether it asks the context after each token whether to go on; its attribute `stops` says
    so."""
    return bool(getattr(drafter, "stops", False))
