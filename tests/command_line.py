"""A command line as its user sees it: what went to standard output and error, and the exit code."""

import sys
from dataclasses import dataclass

COMMAND = [sys.executable, "-m", "specrt"]


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def refused(done: Done, message: str) -> None:
    """The command was refused in one line, with nothing on standard output."""
    assert message in done.err
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
