"""A graph of a bundle as a session, whichever exporter and flavour it is of."""

from pathlib import Path

from specrt.runtime.bundle import ModelInfo
from specrt.runtime.foreign import ForeignSession
from specrt.runtime.interfaces import Session
from specrt.runtime.providers import choose
from specrt.runtime.session import Session as DecoderSession


def open_session(
    path: Path, model: ModelInfo, flavour: str, *, provider: str = "auto", threads: int = 0
) -> Session:
    """The graph at path. provider "auto": the one the flavour is made for, if it is there; the
    reason is `choose(provider, flavour).reason`."""
    kind = ForeignSession if flavour == "optimum" else DecoderSession
    return kind(
        path,
        context=model.context,
        vocab=model.vocab,
        provider=choose(provider, flavour).provider,
        threads=threads,
    )
