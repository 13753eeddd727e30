"""The tokenizer metadata of a GGUF file, checked: what the builders may rely on.

Invariant: every text of a Vocabulary is valid Unicode and unique, its lists are equally long, and
every id it names exists.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from specrt.runtime.errors import SourceError

T = TypeVar("T")
PREFIX = "tokenizer.ggml."
LONGEST = 2048  # characters; finding the merges of a token takes time quadratic in its length
DEFAULT_IDS = {"llama": {"bos": 1, "eos": 2, "unknown": 0}, "t5": {"eos": 1, "unknown": 2}}


class Kind(IntEnum):
    """What a token is for, as GGUF numbers it."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """tokens[i] is the text of id i, kinds[i] what it is for, scores[i] its SentencePiece score."""

    model: str
    pre: str
    tokens: tuple[str, ...]
    kinds: tuple[Kind, ...]
    scores: tuple[float, ...]
    merges: tuple[tuple[str, str], ...]
    charsmap: bytes
    bos: int | None
    eos: int | None
    unknown: int | None
    add_bos: bool | None
    add_eos: bool | None
    space_prefix: bool | None
    squeeze_spaces: bool | None
    architecture: str


def read_vocabulary(fields: Mapping[str, Any]) -> Vocabulary:
    """Check the metadata and take out what was only padding.

    Padding ("[PAD123]" up to the width of the embedding) is cut at the end. A text met a second
    time, or an empty one, can not be encoded to: it keeps its id under a name of its own.
    """
    tokens = _texts(fields, "tokens")
    if not tokens:
        raise SourceError(f"{PREFIX}tokens is empty or missing; the file has no tokenizer")
    kinds = _kinds(fields, len(tokens))
    while tokens and _is_padding(tokens[-1], kinds[len(tokens) - 1]):
        tokens.pop()
    tokens = _unique(tokens)
    model = _value(fields, "model", str) or ""
    defaults = DEFAULT_IDS.get(model, {})
    special = [
        _id(fields, name, len(tokens), defaults.get(name)) for name in ("bos", "eos", "unknown")
    ]
    return Vocabulary(
        model=model,
        pre=_value(fields, "pre", str) or "default",
        tokens=tuple(tokens),
        kinds=_marked(tokens, kinds, special[:2]),
        scores=_scores(fields, len(kinds))[: len(tokens)],
        merges=_merges(fields, frozenset(tokens)),
        charsmap=_bytes(fields, "precompiled_charsmap"),
        bos=special[0],
        eos=special[1],
        unknown=special[2],
        add_bos=_value(fields, "add_bos_token", bool),
        add_eos=_value(fields, "add_eos_token", bool),
        space_prefix=_value(fields, "add_space_prefix", bool),
        squeeze_spaces=_value(fields, "remove_extra_whitespaces", bool),
        architecture=str(fields.get("general.architecture", "")),
    )


def _value(fields: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    value = fields.get(PREFIX + name)
    if value is not None and not isinstance(value, kind):
        raise SourceError(
            f"{PREFIX}{name} is {value!r:.40}, not a {kind.__name__}; the file is corrupt"
        )
    return value


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(PREFIX + name)
    if value is None:
        return []
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise SourceError(f"{PREFIX}{name} is {value!r:.40}, not a list; the file is corrupt")
    return list(value)


def _texts(fields: Mapping[str, Any], name: str) -> list[str]:
    texts = _list(fields, name)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise SourceError(f"{PREFIX}{name}[{i}] is {text!r:.40}, not a text; re-convert it")
        if len(text) > LONGEST:
            raise SourceError(f"{PREFIX}{name}[{i}] has {len(text)} letters, at most {LONGEST}")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise SourceError(f"{PREFIX}{name} is not valid UTF-8 ({error.reason})") from None
    return texts


def _kinds(fields: Mapping[str, Any], count: int) -> tuple[Kind, ...]:
    numbers = _list(fields, "token_type") or [Kind.NORMAL] * count
    if len(numbers) != count:
        raise SourceError(f"{PREFIX}token_type has {len(numbers)} entries, tokens has {count}")
    try:
        return tuple(Kind(number) for number in numbers)
    except (ValueError, TypeError) as error:
        raise SourceError(f"{PREFIX}token_type: {error}; known are 0 to 6") from None


def _scores(fields: Mapping[str, Any], count: int) -> tuple[float, ...]:
    scores = _list(fields, "scores") or [0.0] * count
    if len(scores) != count:
        raise SourceError(f"{PREFIX}scores has {len(scores)} entries, tokens has {count}")
    for i, score in enumerate(scores):
        if not isinstance(score, int | float) or not math.isfinite(score):
            raise SourceError(f"{PREFIX}scores[{i}] is {score!r:.40}, not a number; re-convert it")
    return tuple(float(score) for score in scores)


def _merges(fields: Mapping[str, Any], tokens: frozenset[str]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for i, merge in enumerate(_texts(fields, "merges")):
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if cut < 0 or not {left, right, left + right} <= tokens:
            raise SourceError(f"{PREFIX}merges[{i}] is {merge!r:.40}, which names no tokens")
        pairs.append((left, right))
    return tuple(pairs)


def _bytes(fields: Mapping[str, Any], name: str) -> bytes:
    try:
        return bytes(number & 255 for number in _list(fields, name))
    except TypeError:
        raise SourceError(f"{PREFIX}{name} is not a list of bytes; the file is corrupt") from None


def _id(fields: Mapping[str, Any], name: str, count: int, default: int | None) -> int | None:
    value = _value(fields, f"{name}_token_id", int)
    if value is None:
        return default if default is not None and default < count else None
    if not 0 <= value < count:
        raise SourceError(f"{PREFIX}{name}_token_id is {value}, but there are {count} tokens")
    return value


def _is_padding(text: str, kind: Kind) -> bool:
    fillers = (Kind.UNKNOWN, Kind.USER_DEFINED, Kind.UNUSED)
    return kind in fillers and re.fullmatch(r"\[PAD\d+\]", text) is not None


def _unique(tokens: Sequence[str]) -> list[str]:
    taken = set(tokens)
    seen: set[str] = {""}
    unique = []
    for i, text in enumerate(tokens):
        while text in seen:
            text = f"[UNREACHABLE {i}]" if f"[UNREACHABLE {i}]" not in taken else text + "'"
        seen.add(text)
        unique.append(text)
    return unique


def _marked(
    tokens: Sequence[str], kinds: Sequence[Kind], ends: Sequence[int | None]
) -> tuple[Kind, ...]:
    """The kinds, put right: a bos or eos like "</s>" is a control token, "[PAD7]" is unused."""
    marked = list(kinds[: len(tokens)])
    for i in ends:
        if i is not None and marked[i] == Kind.NORMAL and re.fullmatch(r"<.+>|\[.+\]", tokens[i]):
            marked[i] = Kind.CONTROL
    for i, text in enumerate(tokens):
        if _is_padding(text, marked[i]):
            marked[i] = Kind.UNUSED
    return tuple(marked)
