"""Tokens to text and back: text that can be shown as it comes, and the stop strings in it.

Invariant: what push and finish gave so far, put together, is a prefix of the decoded tokens; in the
end it is all of them, or all before a stop string, however the tokens were split into pushes.
"""

import ctypes
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specrt.runtime.errors import BundleError, RequestError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HALF = "\N{REPLACEMENT CHARACTER}"  # what a decoder makes of a character that is not complete
RESYNC = 8  # tokens after which broken text is cut: a UTF-8 character has at most 4 bytes


def load_tokenizer(path: Path) -> "Tokenizer":
    """The tokenizer of a tokenizer.json, which neither cuts nor pads what it is given."""
    from tokenizers import Tokenizer  # 3 MB that a session alone does not need

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise BundleError(f"{path} is not a tokenizer ({error}); export the model again") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _give_back()
    return tokenizer


def _give_back() -> None:
    """Return what reading has freed to the system, where glibc would keep it: of a vocabulary of
    152k tokens 40 MB, as much as the tokenizer itself."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def real_ids(tokenizer: "Tokenizer", vocab: int) -> int:
    """One more than the last id below vocab that is a token; those from there on are padding.

    Not the number of tokens: some tokenizers leave ids out before their special tokens.
    """
    last = (i for i in range(vocab - 1, -1, -1) if tokenizer.id_to_token(i) is not None)
    return next(last, -1) + 1


def encode(tokenizer: "Tokenizer", text: str, add_bos: bool) -> list[int]:
    """The ids of a text. add_bos: begin with what the tokenizer begins a text with, once.

    A chat template may have written the bos token already; then no second one is added. Nothing
    is added at the end: the model is to go on from here.
    """
    try:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    except (TypeError, UnicodeError):
        raise RequestError("the text is not valid Unicode; give it as UTF-8") from None
    start = _opening(tokenizer) if add_bos else []
    return ids if ids[: len(start)] == start else start + ids


def _opening(tokenizer: "Tokenizer") -> list[int]:
    probe: list[int] = tokenizer.encode("a", add_special_tokens=False).ids
    whole: list[int] = tokenizer.encode("a", add_special_tokens=True).ids
    starts = range(len(whole) - len(probe) + 1)
    return next((whole[:i] for i in starts if whole[i : i + len(probe)] == probe), [])


@dataclass(frozen=True, slots=True)
class Fragment:
    """Text to show, and which token brought it: token counts from the first one pushed."""

    token: int
    text: str


class TextStream:
    """Turns tokens into text piece by piece, holding back what is not certain yet.

    Held back are half characters and whatever may be the beginning of a stop string. The text ends
    right before the stop string that is complete first.
    """

    def __init__(self, tokenizer: "Tokenizer", stop: Sequence[str] = ()) -> None:
        if isinstance(stop, str) or not all(stop):
            raise RequestError(f"stop strings are {stop!r}; give a list of texts, none empty")
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._bytes = _byte_tokens(tokenizer)
        self._window: list[int] = []  # tokens whose decoding the next ones depend on
        self._told = 0  # characters of the window's text that are out of it
        self._pending = False  # the window ends in a half character or in bytes
        self._held: deque[Fragment] = deque()  # may be the beginning of a stop string
        self._count = 0
        self._settled = 0
        self._hit: str | None = None

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._hit

    @property
    def settled(self) -> int:
        """How many of the tokens pushed are in the text for good; it never falls.

        After a stop string: how many belong to the text, the last of them perhaps in part.
        """
        return self._settled

    def push(self, tokens: Iterable[int]) -> str:
        """The text that can be shown now that these tokens have come."""
        return "".join(fragment.text for fragment in self.fragments(tokens))

    def fragments(self, tokens: Iterable[int]) -> list[Fragment]:
        """As push, told apart by the token that brought the text."""
        out: list[Fragment] = []
        for token in tokens:
            self._count += 1
            if self._hit is None and (text := self._decoded(int(token))):
                out += self._released(text)
            self._settle()
        return out

    def finish(self) -> str:
        """The rest of the text, when no more tokens will come."""
        rest = self._text(self._window)[self._told :]
        self._window, self._told, self._pending = [], 0, False
        out = self._released(rest) if rest and self._hit is None else []
        if self._hit is None:
            out += self._held
            self._held.clear()
        self._settle()
        return "".join(fragment.text for fragment in out)

    def _settle(self) -> None:
        """Everything is settled when nothing is held back."""
        if self._hit is None and not self._held and not self._pending:
            self._settled = self._count

    def _text(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text

    def _decoded(self, token: int) -> str:
        """What the token adds to the text of those before it, as far as that is certain."""
        alone = self._text([token])
        if not alone and self._is_silent(token):
            return ""
        self._window.append(token)
        self._pending = True
        if token in self._bytes:  # a run of bytes is decoded as one, good or bad as a whole
            return ""
        text = self._text(self._window)
        certain = len(text) - text.endswith(HALF)
        new, self._told = text[self._told : certain], max(self._told, certain)
        if certain == len(text):
            self._window, self._pending = [token], False
            self._told = len(alone)
        elif len(self._window) > RESYNC:
            self._window = self._window[-RESYNC // 2 :]
            self._told = len(self._text(self._window)) - 1
        return new

    def _is_silent(self, token: int) -> bool:
        """A token without text is special, or a padding id: decoding passes over it."""
        if self._tokenizer.id_to_token(token) is None:
            return True
        return bool(self._tokenizer.decode([token], skip_special_tokens=False))

    def _released(self, text: str) -> list[Fragment]:
        """Hold new text of the last token, and let go what no stop string can begin in."""
        self._held.append(Fragment(self._count - 1, text))
        if not self._stop:
            return self._taken(len(text))
        held = "".join(fragment.text for fragment in self._held)
        found = [(held.find(s) + len(s), -len(s), s) for s in self._stop if s in held]
        if found:
            end, _, self._hit = min(found)
            out = self._taken(end - len(self._hit))
            self._held.clear()
            return out
        return self._taken(len(held) - _beginning(held, self._stop))

    def _taken(self, size: int) -> list[Fragment]:
        """The first size characters held, by token."""
        out = []
        while size:
            first = self._held.popleft()
            if len(first.text) > size:
                self._held.appendleft(Fragment(first.token, first.text[size:]))
                first = Fragment(first.token, first.text[:size])
            out.append(first)
            size -= len(first.text)
            self._settled = max(self._settled, first.token + 1)
        return out


def _beginning(text: str, stop: Sequence[str]) -> int:
    """The length of the longest end of the text that a stop string begins with.

    >>> _beginning("say us", ["user:"])
    2
    """
    longest = max((len(s) for s in stop), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(s.startswith(text[-size:]) for s in stop):
            return size
    return 0


def _byte_tokens(tokenizer: "Tokenizer") -> frozenset[int]:
    """The ids of "<0x00>" to "<0xFF>", if the tokenizer decodes them as bytes."""
    names = (f"<0x{byte:02X}>" for byte in range(256))
    ids = [i for i in map(tokenizer.token_to_id, names) if i is not None]
    known = [i for i in ids if tokenizer.decode([i]) != tokenizer.id_to_token(i)]
    return frozenset(known)
