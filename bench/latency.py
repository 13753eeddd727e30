"""Drafters against plain decoding on one bundle: one process, the same prompts, interleaved.

The baseline is the same loop without a drafter. It is always run, and every drafter's text is
compared with the baseline's of the same prompt and round. Each run gives one record (a JSON
object); a run that fails gives one too.
"""

import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np

import specrt
from specrt.bench.environment import environment, peak_rss_mb
from specrt.bench.report import summarise
from specrt.bench.suite import KINDS, Prompt, load_suites
from specrt.runtime.bundle import MANIFEST
from specrt.runtime.errors import RequestError, SpecrtError

BASELINE = "none"
WARMUP_TOKENS = 16
OTHER_PROMPT = (0,)  # token ids of a text that shares no prefix worth keeping with a prompt
OTHER_TOKENS = 4  # enough for a draft model to read it too
FORMAT = 1

Record = dict[str, Any]


class Model(Protocol):
    """What a benchmark asks of a loaded bundle."""

    def generate(
        self,
        prompt: Sequence[int] | None = None,
        *,
        messages: Sequence[dict[str, str]] | None = None,
        drafter: str,
        max_tokens: int,
        temperature: float,
        seed: int,
    ) -> Any: ...  # .text, .tokens, .trace


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run: each prompt, `repeat` times, by the baseline and by each drafter."""

    prompts: tuple[Prompt, ...]
    drafters: tuple[str, ...]
    repeat: int = 3
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.repeat < 1:
            raise RequestError(f"repeat is {self.repeat}; give 1 or more")
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}; give 1 or more")

    @property
    def methods(self) -> tuple[str, ...]:
        """The baseline, then each drafter once."""
        return tuple(dict.fromkeys((BASELINE, *self.drafters)))

    @property
    def runs(self) -> int:
        """How many records it will give."""
        return len(self.prompts) * len(self.methods) * self.repeat


@dataclass(frozen=True, slots=True)
class Run:
    """One request as its caller saw it; result is None where it failed."""

    result: Any
    wall_s: float
    error: Exception | None = None


def run(
    bundle: str | Path,
    drafters: Sequence[str] = ("auto",),
    suites: Sequence[str] = KINDS,
    repeat: int = 3,
    *,
    max_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
    provider: str = "auto",
) -> dict[str, Any]:
    """Load the bundle, run everything, and return the document: records, summary, circumstances."""
    plan = Plan(load_suites(suites), tuple(drafters), repeat, max_tokens, temperature, seed)
    start = perf_counter()
    model = specrt.load(bundle, provider=provider)
    load_s = perf_counter() - start
    return document(bundle, plan, list(measure(model, plan)), load_s)


def measure(model: Model, plan: Plan) -> Iterator[Record]:
    """Warm up, then yield a record for each run; the methods take turns at going first."""
    methods = plan.methods
    for method in methods:
        warm_up = _attempt(model, plan, plan.prompts[0], method, WARMUP_TOKENS)
        if isinstance(warm_up.error, SpecrtError):  # wrong use, as an unknown drafter
            raise warm_up.error
        if warm_up.error and method == BASELINE:  # nothing to compare with
            raise warm_up.error
    for turn in range(plan.repeat):
        for index, prompt in enumerate(plan.prompts):
            first = (turn + index) % len(methods)
            runs = {
                method: _attempt(model, plan, prompt, method, prompt.max_tokens or plan.max_tokens)
                for method in methods[first:] + methods[:first]
            }
            for method in methods:
                yield _record(plan, prompt, method, turn, runs)


def document(
    bundle: str | Path, plan: Plan, records: Sequence[Record], load_s: float
) -> dict[str, Any]:
    """All that is known of a benchmark, as one JSON object."""
    manifest = (Path(bundle) / MANIFEST).read_bytes()
    return {
        "format": FORMAT,
        "argv": sys.argv,
        "bundle": {"path": str(bundle), "sha256": hashlib.sha256(manifest).hexdigest()},
        "environment": environment(),
        "options": {
            "drafters": list(plan.methods),
            "prompts": [prompt.id for prompt in plan.prompts],
            "repeat": plan.repeat,
            "max_tokens": plan.max_tokens,
            "temperature": plan.temperature,
            "seed": plan.seed,
        },
        "load_s": load_s,
        "peak_rss_mb": peak_rss_mb(),
        "records": list(records),
        "summary": summarise(records, BASELINE),
    }


def _attempt(model: Model, plan: Plan, prompt: Prompt, method: str, limit: int) -> Run:
    """One request, timed. Before it the model reads another text, so that neither it nor a draft
    model still holds the prompt from the method that went before."""
    generate = partial(model.generate, drafter=method, temperature=plan.temperature, seed=plan.seed)
    start = perf_counter()
    try:
        generate(OTHER_PROMPT, max_tokens=OTHER_TOKENS)
        start = perf_counter()
        result = generate(messages=prompt.messages, max_tokens=limit)
    except Exception as error:  # one failing drafter must not lose the other runs
        return Run(None, perf_counter() - start, error)
    return Run(result, perf_counter() - start)


def _record(plan: Plan, prompt: Prompt, method: str, turn: int, runs: dict[str, Run]) -> Record:
    """One JSON object: the trace's summary between what was asked and what the caller saw."""
    run, plain = runs[method], runs[BASELINE]
    asked = {"prompt": prompt.id, "kind": prompt.kind, "repeat": turn}
    seen = {"drafter": method, "wall_s": run.wall_s, "peak_rss_mb": peak_rss_mb()}
    if run.result is None:
        error = f"{type(run.error).__name__}: {run.error}"
        return {**asked, **seen, "finish_reason": "error", "error": error, "text": ""}
    summary = run.result.trace.summary()
    comparable = plan.temperature == 0 and plain.result is not None
    return {
        **asked,
        **summary,
        **seen,
        "other_s": run.wall_s - summary["ttft_s"] - summary["decode_s"],
        **token_latency(run.result.trace.steps),
        "identical": list(run.result.tokens) == list(plain.result.tokens) if comparable else None,
        "text": run.result.text,
        "error": None,
    }


def token_latency(steps: Sequence[Any]) -> dict[str, float | None]:
    """Median and 95th percentile of milliseconds a token, the first step left out; a step's time
    is shared equally by the tokens it emitted."""
    each = [
        1000 * sum(step.seconds) / len(step.emitted) for step in steps[1:] for _ in step.emitted
    ]
    if not each:
        return {"token_ms_p50": None, "token_ms_p95": None}
    p50, p95 = np.percentile(each, [50, 95]).tolist()
    return {"token_ms_p50": p50, "token_ms_p95": p95}
