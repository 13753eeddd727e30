"""Text of a given form: a regular expression or a JSON schema decides which tokens may come next.

The grammar is a processor: a fixed function of the text, so drafted rows are cut as plain ones are,
and text with drafts stays text without. It keeps one parser and moves it back and forth to the text
that is asked about. Needs llguidance, which is loaded when a request first asks for a form.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from specrt.runtime.drafters.first import is_free, stops, unread
from specrt.runtime.errors import RequestError
from specrt.runtime.interfaces import Context, Drafter
from specrt.runtime.prefix import common_prefix
from specrt.runtime.proposal import Proposal, chain
from specrt.runtime.sampling import Sampling

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Schema = str | bool | Mapping[str, Any]


class Forms:
    """Makes grammars for one tokenizer. limit: the number of real token ids."""

    def __init__(self, tokenizer: "Tokenizer", limit: int, eos_ids: Sequence[int]) -> None:
        try:
            self._tool: Any = import_module("llguidance")
        except ImportError:
            raise RequestError(
                "regex and json_schema need llguidance: pip install 'specrt[grammar]'"
            ) from None
        if not eos_ids:
            raise RequestError("this model has no stop token, so no text of a given form can end")
        self._vocabulary = self._tool.LLTokenizer(
            tokenizer.to_str(), n_vocab=limit, eos_token=list(eos_ids)
        )

    def grammar(self, regex: str | None, json_schema: Schema | None, prompt: int) -> "Grammar":
        """Of one of the two, for texts that begin after `prompt` tokens."""
        matcher = self._tool.LLMatcher
        if regex is not None and json_schema is not None:
            raise RequestError("give either regex or json_schema, a text has one form")
        if regex is not None:
            form = matcher.grammar_from_regex(regex)
        else:
            written = json_schema if isinstance(json_schema, str) else json.dumps(json_schema)
            form = matcher.grammar_from_json_schema(written)
        parser = matcher(self._vocabulary, form)
        if parser.is_error():
            what = "regex" if regex is not None else "json_schema"
            raise RequestError(f"{what} cannot be used: {' '.join(parser.get_error().split())}")
        return Grammar(parser, prompt)


class Grammar:
    """Which tokens may follow a text. The parser stands after the tokens `_read`."""

    def __init__(self, parser: Any, prompt: int) -> None:
        self._parser, self._prompt = parser, prompt
        self._read: list[int] = []

    def __call__(self, text: Sequence[int], row: np.ndarray) -> np.ndarray:
        """The logits (V,) after `text`, with only what continues it. A text that has ended or left
        the form, which only a refused draft can have, is not cut."""
        if self._move(text[self._prompt :]):
            bits = np.frombuffer(self._parser.compute_bitmask(), np.uint8)
            allowed = np.unpackbits(bits, bitorder="little")[: row.size]
            row[np.flatnonzero(allowed == 0)] = -np.inf
            row[allowed.size :] = -np.inf
        return row

    def forced(self, text: Sequence[int]) -> list[int]:
        """The tokens that come next by the form alone, in their usual spelling."""
        return list(self._parser.compute_ff_tokens()) if self._move(text[self._prompt :]) else []

    def fitting(self, text: Sequence[int], tokens: Sequence[int]) -> int:
        """How many of `tokens` may follow `text`."""
        if not self._move(text[self._prompt :]):
            return 0
        count: int = self._parser.validate_tokens(list(tokens))
        return count

    def _move(self, written: Sequence[int]) -> bool:
        """Take the parser to a text; whether it is the beginning of one of the form."""
        known = common_prefix(self._read, written)
        if known < len(self._read) and not self._parser.rollback(len(self._read) - known):
            self._parser.reset()
            known = 0
        del self._read[known:]
        rest = list(written[known:])
        taken = self._parser.try_consume_tokens(rest) if rest else 0
        self._read += rest[:taken]
        return bool(taken == len(rest))


@dataclass(frozen=True, slots=True)
class Guided:
    """Proposes what the form leaves no choice about; else what another drafter proposes. Of certain
    tokens only those that fit; drawn ones are left alone, since what was drawn must not decide
    whether it is verified."""

    inner: Drafter
    grammar: Grammar

    @property
    def free(self) -> bool:
        """See drafters/first.py."""
        return is_free(self.inner)

    @property
    def stops(self) -> bool:
        """See drafters/first.py."""
        return stops(self.inner)

    def unread(self, tokens: Sequence[int]) -> int:
        """See drafters/first.py."""
        return unread(self.inner, tokens)

    def propose(self, context: Context, budget: int, rng: "np.random.Generator") -> Proposal:
        forced = self.grammar.forced(context.tokens)[:budget] if budget > 0 else []
        if forced:
            return chain(forced, source="grammar")
        proposal = self.inner.propose(context, budget, rng)
        if proposal.probs is not None or not proposal.is_chain:
            return proposal
        fitting = self.grammar.fitting(context.tokens, proposal.tokens.tolist())
        return replace(
            proposal, tokens=proposal.tokens[:fitting], parents=proposal.parents[:fitting]
        )


def constrained(sampling: Sampling, grammar: Grammar) -> Sampling:
    """The same choice among what the grammar leaves, after a processor of the user's own."""
    own = sampling.processors.custom

    def both(text: Sequence[int], row: np.ndarray) -> np.ndarray:
        return grammar(text, np.array(own(text, row)))  # type: ignore[misc]

    custom = grammar if own is None else both
    return replace(sampling, processors=replace(sampling.processors, custom=custom))
