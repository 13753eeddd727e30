"""Prompt lookup: what followed the last time these tokens came up, in the prompt or the output.

The longest matching ending is taken, and of its occurrences the most recent one. The index grows
with the text, a few dictionary entries a token; it is built anew only for a different text.
"""

from collections.abc import Sequence

import numpy as np

from specrt.runtime.errors import RequestError
from specrt.runtime.interfaces import Context
from specrt.runtime.prefix import common_prefix
from specrt.runtime.proposal import NOTHING, Proposal, chain

Places = dict[tuple[int, ...], int]  # n-gram -> place of the token after its latest occurrence
Index = tuple[list[int], Places]  # a text and the places in it


class Ngram:
    """longest, shortest: how many last tokens of the text must match."""

    free = True  # see drafters/first.py

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        if not 1 <= shortest <= longest:
            raise RequestError(
                f"n-gram lengths must be 1 <= shortest <= longest, not {shortest} and {longest}"
            )
        self._lengths = range(longest, shortest - 1, -1)
        self._held: Index = ([], {})

    def propose(self, context: Context, budget: int, rng: "np.random.Generator") -> Proposal:
        tokens = context.tokens
        places = self._read(tokens)
        for length in self._lengths:
            start = places.get(tuple(tokens[-length:])) if length <= len(tokens) else None
            if start is not None and budget > 0:
                return chain(
                    _continue(tokens, start, budget), source="ngram", kind=f"ngram {length}"
                )
        return NOTHING

    def _read(self, tokens: Sequence[int]) -> Places:
        """Index every n-gram of the text that has a token after it."""
        seen, places = self._held
        self._held = ([], {})  # an interrupt below leaves no index, not one ahead of its text
        if common_prefix(seen, tokens) < len(seen):
            seen, places = [], {}
        for place in range(max(len(seen), 1), len(tokens)):
            for length in self._lengths:
                if length <= place:
                    places[tuple(tokens[place - length : place])] = place
        seen += tokens[len(seen) :]
        self._held = (seen, places)
        return places


def _continue(tokens: Sequence[int], start: int, count: int) -> list[int]:
    """count tokens copied from `start` on; past the end of the text the copy copies itself, so a
    repeating text is drafted as long as wanted.

    >>> _continue([7, 1, 2, 1, 2], 3, 5)
    [1, 2, 1, 2, 1]
    """
    copied = list(tokens[start : start + count])
    period = len(copied)
    return [copied[i % period] for i in range(count)]
