"""What a peer's process runs: load one engine, warm it up, ask each prompt once, time what comes.

    python worker.py < job.json

It may be run by a Python that has the engine but not specrt, so this file and those of the engines
beside it need the standard library only. An engine is a file with a function

    open(module, job) -> ask            module: the package job["module"] names, imported
    ask(ids, count, emit) -> facts      write `count` tokens after ids, greedily, no fewer
    emit(tokens, joined=False)          called with tokens as they come; joined: by the same run of
                                        the model as those before
    facts                               what the engine counted: drafted, accepted; pid and version
                                        where another process holds the model

Results are lines of JSON on standard output: the engine's load, once it is warm, then an answer for
each prompt. When answers have taken longer than job["seconds"] together, what is left is not asked.
What the engine itself prints goes to standard error.
"""

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

WARMUP_TOKENS = 16

Ask = Callable[..., dict[str, Any]]  # ids, count, emit -> facts


def main() -> None:
    """Do the job that comes on standard input."""
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever an engine prints, in Python or below, is no result

    def tell(result: Mapping[str, Any]) -> None:
        results.write(json.dumps(result) + "\n")
        results.flush()

    here = Path(__file__).resolve().parent  # its files' names must hide no package
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != here]
    work(json.load(sys.stdin), tell)


def work(job: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> None:
    """Load the engine, then tell each answer as soon as it is there, while there is time."""
    start = perf_counter()
    module = importlib.import_module(job["module"]) if job["module"] else None
    imported = perf_counter()
    ask = load(job["engine"]).open(module, job)
    loaded = perf_counter()
    other = job["prompts"][0]["ids"][::-1]  # shares no beginning with a prompt that is timed
    answer(ask, other, WARMUP_TOKENS)
    version = str(getattr(module, "__version__", ""))
    tell({"import_s": imported - start, "load_s": loaded - imported, "version": version})
    left, spent = list(job["prompts"]), 0.0
    while left and spent <= job["seconds"]:
        prompt, began = left.pop(0), perf_counter()
        try:
            found = answer(ask, prompt["ids"], prompt["count"])
        except Exception as error:  # one prompt too long, say: the others can be answered
            message = f"{type(error).__name__}: {error}"
            found = {"error": message, "wall_s": perf_counter() - began}
        tell({"id": prompt["id"], **found})
        spent += found["wall_s"]
    if left:
        tell({"unasked": [prompt["id"] for prompt in left]})


def answer(ask: Ask, ids: list[int], count: int) -> dict[str, Any]:
    """The tokens of one prompt, a block for each run of the model, and when each block came."""
    blocks: list[list[int]] = []
    times: list[float] = []

    def emit(tokens: list[int], joined: bool = False) -> None:
        if joined and blocks:
            blocks[-1] += tokens
        else:
            times.append(perf_counter() - start)
            blocks.append(list(tokens))

    start = perf_counter()
    facts = dict(ask(ids, count, emit))
    wall_s = perf_counter() - start
    peak = peak_rss_mb(facts.pop("pid", "self"))
    return {"blocks": blocks, "times": times, "wall_s": wall_s, "peak_rss_mb": peak, **facts}


def load(file: str) -> Any:
    """The engine in a file, which need not be in a package."""
    spec = importlib.util.spec_from_file_location("engine", file)
    assert spec is not None
    assert spec.loader is not None
    engine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(engine)
    return engine


def peak_rss_mb(pid: int | str) -> float | None:
    """The most memory a process ever held, in MB (10^6 bytes); None where nothing tells."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    peaks = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return peaks[0] * 1024 / 1e6 if peaks else None


if __name__ == "__main__":
    main()
