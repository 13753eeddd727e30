"""How far a graph's text is from its checkpoint's: mean KL divergence and top-1 agreement."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from specrt.runtime.interfaces import Session

GOOD = 0.01  # mean KL in nats below which nobody sees a difference; chooses the default format
TOKENS = 640  # of the built-in text; bounds the time and the memory of the reference logits
LOGIT_BYTES = 320 << 20  # most memory for the reference logits
ROWS = 32  # compared at a time


@dataclass(frozen=True, slots=True)
class Quality:
    """kl: mean of KL(checkpoint || graph) in nats over `tokens` positions. agreement: share of
    positions whose most likely token is the same."""

    kl: float
    agreement: float
    tokens: int


def sample_text() -> str:
    """The built-in text that quality is measured on."""
    return files("specrt.export").joinpath("quality.txt").read_text(encoding="utf-8")


def sample_length(vocab: int, context: int) -> int:
    """How many tokens of the text to use."""
    return max(2, min(TOKENS, context, LOGIT_BYTES // (4 * vocab)))


def measure(session: Session, tokens: Sequence[int], reference: np.ndarray) -> Quality:
    """Compare the session's logits on `tokens` with the reference logits (len(tokens), V)."""
    divergence, agreed = 0.0, 0
    for start, logits in _logits(session, tokens):
        wanted = reference[start : start + len(logits)]
        p, q = log_softmax(wanted), log_softmax(logits)
        divergence += float((np.exp(p) * (p - q)).sum())
        agreed += int((wanted.argmax(axis=1) == logits.argmax(axis=1)).sum())
    return Quality(divergence / len(tokens), agreed / len(tokens), len(tokens))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Along the last axis, float64."""
    shifted: np.ndarray = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def _logits(session: Session, tokens: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
    """The session's logits of all positions, ROWS at a time."""
    session.keep(0)
    for start in range(0, len(tokens), ROWS):
        rows = tokens[start : start + ROWS]
        yield start, session.forward(rows, last=len(rows)).logits
