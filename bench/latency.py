"""Drafters against plain decoding on one bundle: one process, the same prompts, interleaved.

The baseline is the same loop without a drafter. It is always run, and every drafter's text is
compared with the baseline's of the same prompt and round. Each run gives one record (a JSON
object); a run that fails gives one too. Where a question has several turns, all methods are asked
each of them after the same conversation: the baseline's answers stand between them.
"""

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from specrt.bench.begin import BASELINE, Circumstances, begin
from specrt.bench.curve import curve
from specrt.bench.energy import Meter
from specrt.bench.environment import environment, peak_rss_mb
from specrt.bench.report import FORMAT, percentiles, summarise
from specrt.bench.suite import KINDS, Prompt, load_suites
from specrt.runtime.bundle import MANIFEST, sha256
from specrt.runtime.errors import RequestError, SpecrtError

WARMUP_TOKENS = 16
OTHER_PROMPT = (0,)  # token ids of a text that shares no prefix worth keeping with a prompt
OTHER_TOKENS = 4  # enough for a draft model to read it too

Messages = Sequence[dict[str, str]]
Record = dict[str, Any]


class Model(Protocol):
    """What a benchmark asks of a loaded bundle."""

    def generate(
        self,
        prompt: Sequence[int] | None = None,
        *,
        messages: Messages | None = None,
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
    def kinds(self) -> tuple[str, ...]:
        """The sorts of work, each once."""
        return tuple(dict.fromkeys(prompt.kind for prompt in self.prompts))

    @property
    def examples(self) -> frozenset[str]:
        """The first prompt of each kind of work."""
        return frozenset({prompt.kind: prompt.id for prompt in reversed(self.prompts)}.values())

    @property
    def runs(self) -> int:
        """How many records it will give."""
        return sum(len(prompt.turns) for prompt in self.prompts) * len(self.methods) * self.repeat


@dataclass(frozen=True, slots=True)
class Question:
    """A turn of a prompt, as it is asked. example: drafters' runs are kept step by step."""

    id: str
    kind: str
    messages: Messages
    max_tokens: int
    repeat: int
    example: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One request as its caller saw it; result is None where it failed. joules: None where the
    machine does not tell."""

    result: Any
    wall_s: float
    joules: float | None = None
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
    model, around = begin(bundle, provider, plan.methods)
    return document(around, plan, list(measure(model, plan, around.meter)))


def measure(model: Model, plan: Plan, meter: Meter | None = None) -> Iterator[Record]:
    """Warm up, then yield a record for each run; the methods take turns at going first."""
    methods, ask = plan.methods, partial(_attempt, model, plan, meter)
    warm_up = Question("", "", plan.prompts[0].messages, WARMUP_TOKENS, 0)
    for method in methods:
        error = ask(warm_up, method).error
        if isinstance(error, SpecrtError):  # wrong use, as an unknown drafter
            raise error
        if error and method == BASELINE:  # nothing to compare with
            raise error
    for repeat in range(plan.repeat):
        for index, prompt in enumerate(plan.prompts):
            yield from _converse(ask, plan, prompt, repeat, index)


def question(plan: Plan, prompt: Prompt, answers: Sequence[str], repeat: int = 0) -> Question:
    """The prompt's next turn, as it is asked after the answers to those before."""
    turn = len(answers)
    messages = [{"role": "user", "content": prompt.prompt}]
    for answer, says in zip(answers, prompt.then, strict=False):
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": says}]
    return Question(
        id=f"{prompt.id}, turn {turn + 1}" if turn else prompt.id,
        kind=prompt.kind,
        messages=messages,
        max_tokens=prompt.max_tokens or plan.max_tokens,
        repeat=repeat,
        example=prompt.id in plan.examples and repeat == turn == 0,
    )


def _converse(
    ask: Callable[[Question, str], Run], plan: Plan, prompt: Prompt, repeat: int, index: int
) -> Iterator[Record]:
    """Ask the prompt's turns one after another, each of all methods."""
    methods, answers = plan.methods, list[str]()
    for turn in range(len(prompt.turns)):
        asked = question(plan, prompt, answers, repeat)
        first = (repeat + index + turn) % len(methods)
        runs = {method: ask(asked, method) for method in methods[first:] + methods[:first]}
        for method in methods:
            yield _record(asked, method, runs)
        plain = runs[BASELINE].result
        answers.append(plain.text if plain else "")


def document(around: Circumstances, plan: Plan, records: Sequence[Record]) -> dict[str, Any]:
    """All that is known of a benchmark, as one JSON object."""
    return {
        "format": FORMAT,
        "date": around.date,
        "command": shlex.join(around.command),
        "bundle": {"path": str(around.bundle), "sha256": sha256(around.bundle / MANIFEST)},
        "environment": environment(around.profile.threads if around.profile else None),
        "options": {
            "drafters": list(plan.methods),
            "prompts": [prompt.id for prompt in plan.prompts],
            "repeat": plan.repeat,
            "max_tokens": plan.max_tokens,
            "temperature": plan.temperature,
            "seed": plan.seed,
        },
        "load_s": around.load_s,
        "peak_rss_mb": peak_rss_mb(),
        "energy_source": around.meter.source if around.meter else None,
        "curve": curve(around.profile, records),
        "records": list(records),
        "summary": summarise(records, BASELINE),
    }


def _attempt(model: Model, plan: Plan, meter: Meter | None, question: Question, method: str) -> Run:
    """One request, measured. Before it the model reads another text, so that neither it nor a draft
    model still holds the prompt from the method that went before."""
    generate = partial(model.generate, drafter=method, temperature=plan.temperature, seed=plan.seed)
    result, error, stop = None, None, None
    start = perf_counter()
    try:
        generate(OTHER_PROMPT, max_tokens=OTHER_TOKENS)
        stop = meter.start() if meter else None
        start = perf_counter()
        result = generate(messages=question.messages, max_tokens=question.max_tokens)
    except Exception as failure:  # one failing drafter must not lose the other runs
        error = failure
    wall_s = perf_counter() - start
    return Run(result, wall_s, stop() if stop else None, error)


def _record(question: Question, method: str, runs: dict[str, Run]) -> Record:
    """One JSON object: the trace's summary between what was asked and what the caller saw."""
    run, plain = runs[method], runs[BASELINE]
    asked = {"prompt": question.id, "kind": question.kind, "repeat": question.repeat}
    seen = {"drafter": method, "wall_s": run.wall_s, "peak_rss_mb": peak_rss_mb()}
    if run.result is None:
        error = f"{type(run.error).__name__}: {run.error}"
        return {**asked, **seen, "finish_reason": "error", "error": error, "text": ""}
    steps = run.result.trace.steps
    summary = run.result.trace.summary()
    answer_s = summary["ttft_s"] + summary["decode_s"]
    comparable = plain.result is not None and not summary["lossy"]  # the seed decides the text
    return {
        **asked,
        **summary,
        **seen,
        "answer_s": answer_s,
        "answer_tokens_per_s": summary["tokens"] / answer_s if answer_s else 0.0,
        "prompt_s": steps[0].prefill_s if steps else 0.0,
        "overhead_s": run.wall_s - answer_s,  # whatever was outside of the steps
        "energy_j": run.joules,
        **of_steps(steps),
        "identical": list(run.result.tokens) == list(plain.result.tokens) if comparable else None,
        "example": _example(question, steps) if question.example and method != BASELINE else None,
        "text": run.result.text,
        "error": None,
    }


def of_steps(steps: Sequence[Any]) -> dict[str, Any]:
    """What is kept of each step: milliseconds and tokens, the first step left out; how many steps
    drafted to each depth; and by the rows that the target read, how many steps did and the median
    of the target's milliseconds."""
    step_ms = [round(1000 * sum(step.seconds), 3) for step in steps[1:]]
    step_tokens = [len(step.emitted) for step in steps[1:]]
    deepest = max((step.depth for step in steps), default=0)
    by_rows: dict[int, list[float]] = defaultdict(list)
    for step in steps:
        by_rows[step.drafted + 1].append(1000 * step.seconds[1])
    return {
        "step_ms": step_ms,
        "step_tokens": step_tokens,
        **percentiles(step_ms, step_tokens),
        "tried_at": [sum(step.depth > d for step in steps) for d in range(deepest)],
        "rows": {
            str(rows): {"steps": len(ms), "target_ms": float(np.median(ms))}
            for rows, ms in sorted(by_rows.items())
        },
    }


def _example(question: Question, steps: Sequence[Any]) -> dict[str, Any]:
    """What was asked, and each step of the answer with the controller's reason."""
    return {
        "asked": question.messages[-1]["content"],
        "steps": [
            {
                "drafted": step.drafted,
                "accepted": step.accepted,
                "tokens": len(step.emitted),
                "ms": round(1000 * sum(step.seconds), 3),
                "source": step.source,
                "reason": step.reason,
            }
            for step in steps
        ],
    }
