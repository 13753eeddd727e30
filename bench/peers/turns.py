"""Peers and specrt take turns: a kind of work by specrt, then by a process of each peer; the next.

So a machine that others slow down for minutes slows down what is compared alike.

A peer is given the very token ids that specrt reads, and writes as many tokens as specrt's plain
decoding wrote for them. What it tells becomes a record like specrt's own, so one summary serves
both; what no peer tells is left at nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any

from tokenizers import Tokenizer

from specrt.bench.begin import BASELINE
from specrt.bench.latency import Plan, of_steps, question
from specrt.bench.peers.known import Entrant
from specrt.bench.peers.process import Outcome, run_worker
from specrt.runtime.text import TextStream
from specrt.runtime.trace import Step, Trace

SECONDS = 240  # for the questions of a peer's mode
SPARE = 64  # entries of a cache beyond the longest prompt with its answer

Record = dict[str, Any]
Run = Callable[[str, Mapping[str, Any]], Outcome]  # python, job -> outcome


@dataclass(frozen=True, slots=True)
class Asked:
    """A question of a round: its token ids, and how many tokens are to be written."""

    id: str
    kind: str
    ids: tuple[int, ...]
    count: int


def take_turns(
    own: Iterator[Record],
    plan: Plan,
    model: Any,
    entrants: Sequence[Entrant],
    threads: int,
    *,
    seconds: float = SECONDS,
    run: Run = run_worker,
) -> Iterator[Record]:
    """specrt's own records with the peers' between its rounds, of a kind of work each. model: the
    bundle, loaded. seconds: for the questions of a peer's mode, a like part of them in each round,
    and for any one question. A peer whose process fails has an error in each record of that round
    and is not started again."""
    kinds = [tuple(prompts) for _, prompts in groupby(plan.prompts, lambda prompt: prompt.kind)]
    rounds = [(repeat, prompts) for repeat in range(plan.repeat) for prompts in kinds]
    left, spent = list(entrants), defaultdict[Entrant, float](float)
    for number, (repeat, prompts) in enumerate(rounds, start=1):
        part, plain = replace(plan, prompts=prompts, repeat=1), dict[str, Record]()
        for record in islice(own, part.runs):
            if record["drafter"] == BASELINE:
                plain[record["prompt"]] = record
            yield record
        asked, going_on = questions(part, plain, model) if left else [], []
        for entrant in left:
            room = seconds * number / len(rounds) - spent[entrant]
            if room <= 0:
                going_on.append(entrant)
                continue
            limits = {"seconds": room, "longest_s": seconds}
            outcome = run(entrant.python, {**job(entrant, asked, threads), **limits})
            yield from records(entrant, asked, repeat, outcome, model.tokenizer)
            spent[entrant] += sum(told.get("wall_s", 0.0) for told in outcome.told)
            if not outcome.error:
                going_on.append(entrant)
        left = going_on[1:] + going_on[:1]  # none always runs first


def questions(plan: Plan, plain: Mapping[str, Record], model: Any) -> list[Asked]:
    """What specrt was asked in a round. plain: its plain records by question."""
    asked = []
    for prompt in plan.prompts:
        answers: list[str] = []
        for _ in prompt.turns:
            turn = question(plan, prompt, answers)
            record = plain[turn.id]
            ids = model.prompt_ids(messages=turn.messages)
            count = record.get("tokens") or turn.max_tokens
            asked.append(Asked(turn.id, turn.kind, ids, count))
            answers.append(record["text"])
    return asked


def job(entrant: Entrant, asked: Sequence[Asked], threads: int) -> dict[str, Any]:
    """What worker.py reads, but how long it may take."""
    return {
        "engine": str(entrant.peer.engine),
        "module": entrant.peer.module,
        "mode": entrant.mode,
        "program": entrant.program,
        "model": str(entrant.model),
        "draft": str(entrant.draft) if entrant.draft else None,
        "threads": threads,
        "context": max(len(a.ids) + a.count for a in asked) + SPARE,
        "prompts": [{"id": a.id, "ids": a.ids, "count": a.count} for a in asked],
    }


def records(
    entrant: Entrant, asked: Sequence[Asked], repeat: int, outcome: Outcome, tokenizer: Tokenizer
) -> Iterator[Record]:
    """A record for each question that was asked, of an answer or an error."""
    unasked = {id for told in outcome.told for id in told.get("unasked", ())}
    answers = {told.get("id"): told for told in outcome.told}
    loaded: dict[str, Any] = next((told for told in outcome.told if "load_s" in told), {})
    missing = {"error": outcome.error or "it gave no answer"}
    for one in asked:
        if one.id in unasked:
            continue
        told = answers.get(one.id, missing)
        yield {
            "prompt": one.id,
            "kind": one.kind,
            "repeat": repeat,
            "drafter": entrant.name,
            **_answer(told, entrant.name, one, tokenizer),
            "model": entrant.model.name,
            "version": told.get("version", loaded.get("version", "")),
            "import_s": loaded.get("import_s"),
            "load_s": loaded.get("load_s"),
        }


def _answer(
    told: Mapping[str, Any], name: str, question: Asked, tokenizer: Tokenizer
) -> dict[str, Any]:
    """The figures of an answer, as specrt has them of its own."""
    seen = {"wall_s": told.get("wall_s"), "peak_rss_mb": told.get("peak_rss_mb")}
    error = told.get("error")
    try:
        steps = [] if error else _steps(told["blocks"], told["times"], question.count)
        wall_s = 0.0 if error else float(told["wall_s"])
        drafted, accepted = int(told.get("drafted", 0)), int(told.get("accepted", 0))
    except (KeyError, TypeError, ValueError) as unread:
        error = f"it gave an answer that cannot be read: {type(unread).__name__}: {unread}"
    if error:
        return {**seen, "finish_reason": "error", "error": str(error), "text": ""}
    summary = Trace(len(question.ids), name, steps=steps).summary()
    answer_s = summary["ttft_s"] + summary["decode_s"]
    text = TextStream(tokenizer)
    return {
        **summary,
        **seen,
        "choices": {},
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": accepted / drafted if drafted else 0.0,
        "answer_s": answer_s,
        "answer_tokens_per_s": summary["tokens"] / answer_s if answer_s else 0.0,
        "prompt_s": summary["ttft_s"],
        "overhead_s": wall_s - answer_s,
        "energy_j": None,
        **of_steps(steps),
        "rows": {},  # their costs are not specrt's
        "identical": None,
        "example": None,
        "text": text.push(token for step in steps for token in step.emitted) + text.finish(),
        "error": None,
    }


def _steps(blocks: Sequence[Sequence[int]], times: Sequence[float], count: int) -> list[Step]:
    """A step for each run of the model, up to the last token that was asked for."""
    if not blocks or len(blocks) != len(times):
        raise ValueError(f"{len(blocks)} blocks of tokens and {len(times)} times")
    steps: list[Step] = []
    before = None
    for block, now in zip(blocks, times, strict=True):
        room = count - sum(len(step.emitted) for step in steps)
        emitted = tuple(int(token) for token in block[:room])
        if before is None:  # the first block's time is the prompt's
            steps.append(Step(emitted, 0, 0, 0, (0.0, 0.0, 0.0), prefill_s=float(now)))
        elif emitted:
            steps.append(Step(emitted, 0, 0, 0, (0.0, now - before, 0.0)))
        before = now
    return steps
