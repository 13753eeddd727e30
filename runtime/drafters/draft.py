"""A second, smaller model writes a chain ahead, drawing as the request draws, with the same noise.

It sees only the text: before each proposal its cache is cut to what it shares with the text, and
it reads what it lacks. Tokens accepted last time are the first ones it drafted, so in the usual
step it reads one or two.
"""

from collections.abc import Sequence

import numpy as np

from specrt.runtime.distribution import Distribution
from specrt.runtime.errors import BundleError
from specrt.runtime.interfaces import Context, Session
from specrt.runtime.prefix import common_prefix
from specrt.runtime.proposal import NOTHING, Proposal, chain

PREFILL_CHUNK = 512  # tokens read at once


class DraftModel:
    """limit: the number of real token ids; ids above, which only pad the vocabulary, are never
    proposed. The draft's tokens must mean what the target's mean."""

    stops = True  # see drafters/first.py

    def __init__(self, session: Session, limit: int | None = None, name: str = "draft") -> None:
        if limit is not None and limit > session.vocab:
            raise BundleError(
                f"the draft {name} has {session.vocab} tokens, the target {limit}: it cannot read "
                "the target's text; use a draft of the same tokenizer"
            )
        self._session = session
        self._limit = limit or session.vocab
        self._name = name
        self._seen: list[int] = []  # the tokens its cache has read

    def propose(self, context: Context, budget: int, rng: "np.random.Generator") -> Proposal:
        tokens, session = context.tokens, self._session
        budget = min(budget, session.capacity + 1 - len(tokens))  # the last one drafted is not read
        if budget <= 0:
            return NOTHING
        known = len(tokens) - self.unread(tokens)
        session.keep(known)
        del self._seen[known:]
        drafted: list[int] = []
        laws: list[Distribution] = []
        unread: Sequence[int] = tokens[known:]
        while True:
            logits = self._forward(unread)
            q = context.sampling.distribution(logits, [*tokens, *drafted])
            drafted.append(context.draw(q, len(drafted), rng))
            laws.append(q)
            goes_on = context.go_on is None or context.go_on(_certainty(logits))
            if len(drafted) == budget or not goes_on:
                return chain(drafted, tuple(laws), self._name)
            unread = drafted[-1:]

    def unread(self, tokens: Sequence[int]) -> int:
        """How many last tokens of a text it has to read before it can draft, one or more."""
        known = min(common_prefix(self._seen, tokens), self._session.length, len(tokens) - 1)
        return len(tokens) - known

    def _forward(self, tokens: Sequence[int]) -> np.ndarray:
        """Read tokens; the logits (limit,) after the last."""
        for start in range(0, len(tokens), PREFILL_CHUNK):
            part = tokens[start : start + PREFILL_CHUNK]
            output = self._session.forward(part)
            self._seen += part
        return output.logits[-1, : self._limit]


def _certainty(logits: np.ndarray) -> float:
    """The probability of the best token. logits: (V,)."""
    return 1 / float(np.exp(logits - logits.max()).sum())
