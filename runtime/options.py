"""How a text is chosen, as keywords: the fields of `Sampling` and of its `Processors` in one list.

So `stream` and `generate` take temperature and penalties alike, and an unknown name is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, TypedDict

from specrt.runtime.processors import Custom, Processors
from specrt.runtime.sampling import Sampling
from specrt.runtime.text import encode

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Word = str | Sequence[int]


class How(TypedDict, total=False):
    """What each means stands in `Sampling` and `Processors`; what is not given is off. bad_words:
    texts, each barred as it stands and after a blank, or token ids."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    logit_bias: Mapping[int, float]
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram: int
    bad_words: Sequence[Word]
    min_tokens: int
    custom: Custom | None


def sampling(how: How, tokenizer: "Tokenizer") -> Sampling:
    """How a request draws. TypeError for a name that is none of these, RequestError for values
    that cannot be used."""
    given = {**how, "bad_words": _words(how.get("bad_words", ()), tokenizer)}
    names = {field.name for field in fields(Processors)} & How.__annotations__.keys()
    changes = {name: given.pop(name) for name in names & given.keys()}
    return Sampling(**given, processors=Processors(**changes))  # type: ignore[arg-type]


def _words(words: Sequence[Word], tokenizer: "Tokenizer") -> tuple[tuple[int, ...], ...]:
    """Token sequences, each once; a word alone is another token than after a blank."""
    if isinstance(words, str):
        words = (words,)
    found: list[tuple[int, ...]] = []
    for word in words:
        forms = (word, f" {word}") if isinstance(word, str) and word else (word,)
        found += [tuple(_ids(form, tokenizer)) for form in forms]
    return tuple(dict.fromkeys(found))


def _ids(word: Word, tokenizer: "Tokenizer") -> Sequence[int]:
    return encode(tokenizer, word, add_bos=False) if isinstance(word, str) else word
