"""What a request changes in the target's logits before they become a law.

In this order, which is transformers': logit bias, repetition, presence and frequency penalties,
no-repeat n-grams, bad words, min tokens, the user's own function. Then, in `Sampling`, temperature,
top-k, top-p, min-p and typical-p. Each row is changed by the text that the row has read: prompt,
what is written, and in a draft the tokens before it. So a drafted row is changed as it would be in
plain decoding.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from specrt.runtime.errors import RequestError

Custom = Callable[[Sequence[int], np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Processors:
    """As it stands nothing is changed.

    logit_bias: token -> what is added. repetition_penalty: logits of tokens in the text, prompt
    included, are divided by it where positive and multiplied where negative. presence_penalty,
    frequency_penalty: taken off tokens already written, once and for each time. no_repeat_ngram:
    no sequence of so many tokens comes twice. bad_words: sequences of tokens that never come whole.
    min_tokens: so many are written before a stop token may come. custom: (text, logits (V,)) ->
    logits (V,), a function of these two alone, called for drafted texts too; it may change the
    array it is given.

    prompt, stop: how long the prompt is and what ends a text, which `decode` fills in.
    """

    logit_bias: Mapping[int, float] = field(default_factory=dict)
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    custom: Custom | None = None
    prompt: int = 0
    stop: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not 0 < self.repetition_penalty < math.inf:
            raise RequestError(f"repetition_penalty must be above 0, not {self.repetition_penalty}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise RequestError(f"{name} must be a number, not {getattr(self, name)}")
        for name in ("no_repeat_ngram", "min_tokens"):
            if getattr(self, name) < 0:
                raise RequestError(f"{name} must be 0 (off) or more, not {getattr(self, name)}")
        for token, bias in self.logit_bias.items():
            if math.isnan(bias) or bias == math.inf:
                raise RequestError(f"logit_bias of token {token} must be a number, not {bias}")
        if not all(self.bad_words):
            raise RequestError("bad_words holds an empty sequence: leave it out")

    def within(self, prompt: int, stop: frozenset[int], vocab: int) -> "Processors":
        """These for a text whose prompt has `prompt` tokens. RequestError for tokens that the
        model does not have."""
        named = {*self.logit_bias, *(token for word in self.bad_words for token in word)}
        if named and not 0 <= min(named) <= max(named) < vocab:
            wrong = max(named) if max(named) >= vocab else min(named)
            raise RequestError(
                f"logit_bias or bad_words name token {wrong}; the model has tokens 0 to {vocab - 1}"
            )
        return replace(self, prompt=prompt, stop=stop)

    @property
    def idle(self) -> bool:
        """Whether no row is ever changed."""
        penalised = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1
        banned = self.no_repeat_ngram or self.bad_words or self.min_tokens
        return not (self.logit_bias or penalised or banned or self.custom)

    def apply(self, logits: np.ndarray, text: Sequence[int]) -> np.ndarray:
        """The logits (V,) after `text`, changed; those given stay as they are."""
        row = logits.copy()
        if self.logit_bias:
            row[list(self.logit_bias)] += np.array(list(self.logit_bias.values()), row.dtype)
        if self.repetition_penalty != 1:
            seen = _known(set(text), row.size)
            kept, by = row[seen], row.dtype.type(self.repetition_penalty)
            row[seen] = np.where(kept < 0, kept * by, kept / by)
        if self.presence_penalty or self.frequency_penalty:
            written, counts = np.unique(_known(text[self.prompt :], row.size), return_counts=True)
            penalty = self.presence_penalty + self.frequency_penalty * counts
            row[written] -= penalty.astype(row.dtype)
        row[_known(self._banned(text), row.size)] = -math.inf
        return row if self.custom is None else self._customised(text, row)

    def _banned(self, text: Sequence[int]) -> set[int]:
        """Tokens that must not come after `text`."""
        banned = _repeats(text, self.no_repeat_ngram) if self.no_repeat_ngram else set()
        for word in self.bad_words:
            start = len(text) - len(word) + 1
            if start >= 0 and tuple(text[start:]) == word[:-1]:
                banned.add(word[-1])
        if len(text) - self.prompt < self.min_tokens:
            banned |= self.stop
        return banned

    def _customised(self, text: Sequence[int], row: np.ndarray) -> np.ndarray:
        assert self.custom is not None
        changed = np.asarray(self.custom(text, row))
        if changed.shape != row.shape:
            raise RequestError(
                f"the custom processor made {row.shape} logits to {changed.shape}: it must return "
                "one for each token"
            )
        return changed


NONE = Processors()


def _repeats(text: Sequence[int], n: int) -> set[int]:
    """Tokens that would end an n-gram that `text` has already."""
    read = np.asarray(text, np.int64)
    places = read.size - n + 1  # where an n-gram starts
    if places <= 0:
        return set()
    same = np.ones(places, bool)
    for i in range(n - 1):
        same &= read[i : i + places] == read[read.size - n + 1 + i]
    return set(read[n - 1 :][same].tolist())


def _known(tokens: Sequence[int] | set[int], vocab: int) -> np.ndarray:
    """Tokens as an index, without ids that a smaller vocabulary does not have."""
    ids = np.fromiter(tokens, np.int64, len(tokens))
    return ids[ids < vocab]
