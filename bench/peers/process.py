"""One process of a peer: started, waited for, ended with all that it started itself."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic
from typing import IO, Any

WORKER = Path(__file__).with_name("worker.py")
PATIENCE_S = 600.0  # without a word: a model's load on a slow machine
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Outcome:
    """told: the objects the worker wrote, in order. error: why it ended before its end."""

    told: tuple[dict[str, Any], ...]
    error: str | None = None


def run_worker(python: str, job: Mapping[str, Any], patience: float = PATIENCE_S) -> Outcome:
    """Run worker.py in `python` with the job; end it when it does not load in so many seconds, or
    when a question takes longer than the job's `longest_s`. That question is an error, and those
    after it are told as not asked."""
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as log:
        given.write(json.dumps(job).encode())
        given.seek(0)
        try:
            child = subprocess.Popen(
                [python, str(WORKER)], stdin=given, stdout=out, stderr=log, start_new_session=True
            )
        except OSError as error:
            return Outcome((), f"{python} cannot be run: {error.strerror}")
        try:
            ended = _wait(child, out, patience, job["longest_s"])
        finally:
            _end(child)
        told, garbage = _objects(out)
        if not ended:
            limit = job["longest_s"] if told else patience
            why = f"it said nothing for {limit:g} s and was ended"
            return Outcome((*told, *_given_up(told, job, why)), why)
        if child.returncode:
            return Outcome(told, f"{_ending(child.returncode)}: {_last_line(log)}")
        return Outcome(told, f"it wrote {garbage!r}, which is no answer" if garbage else None)


def _wait(child: "subprocess.Popen[bytes]", out: IO[bytes], first: float, then: float) -> bool:
    """Whether it ended by itself; False once `out` has not grown for `first` seconds from the
    start, or for `then` seconds after it has."""
    size, since = 0, monotonic()
    while monotonic() - since < (then if size else first):
        with suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_S)
            return True
        if (now := os.fstat(out.fileno()).st_size) > size:
            size, since = now, monotonic()
    return False


def _given_up(
    told: Sequence[Mapping[str, Any]], job: Mapping[str, Any], error: str
) -> Iterator[dict[str, Any]]:
    """What is to be told of the question that a loaded worker was at, and of those after it."""
    answered = {answer.get("id") for answer in told}
    left = [prompt["id"] for prompt in job["prompts"] if prompt["id"] not in answered]
    if told and left:
        yield {"id": left[0], "error": error, "wall_s": job["longest_s"]}
        yield {"unasked": left[1:]}


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End it and what it started, a server say, which is in its process group."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    elif child.poll() is None:
        child.kill()
    child.wait()


def _objects(out: IO[bytes]) -> tuple[tuple[dict[str, Any], ...], str]:
    """The JSON objects, a line each, and the start of the first line that is none."""
    out.seek(0)
    found, garbage = [], ""
    for line in out.read().decode(errors="replace").splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            found.append(value)
        else:
            garbage = garbage or line[:60]
    return tuple(found), garbage


def _ending(code: int) -> str:
    if code > 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"ended by {signal.Signals(-code).name}"
    return f"ended by signal {-code}"


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:300] if lines else "no output"
