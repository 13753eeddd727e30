"""The loop: draft, score, accept, commit. Plain decoding is the same loop with empty proposals.

The loop owns the text; caches only count what they have read. Between steps, whatever happens,

    target.length == len(tokens) - 1

and the target's cache holds exactly the first tokens of the text, in order.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from specrt.runtime.controller import Controller
from specrt.runtime.detail import detail, logprobs
from specrt.runtime.errors import RequestError
from specrt.runtime.interfaces import Context, Drafter, Session
from specrt.runtime.noise import Chance, noise
from specrt.runtime.proposal import ROOT, Proposal
from specrt.runtime.rules import COUPLED, named
from specrt.runtime.sampling import GREEDY, Sampling
from specrt.runtime.scored import Scored
from specrt.runtime.trace import Finish, Step
from specrt.runtime.verify import verify

PREFILL_CHUNK = 512  # prompt tokens read at once; bounds the memory of a long prompt


@dataclass(frozen=True, slots=True)
class Request:
    """One text to write. prompt: token ids. stop: ids that end the text. logprobs: None, or how
    many of the best tokens to report beside each emitted one. traced: fill Step.detail. rule: the
    verification rule's name; under the default the seed alone decides the text.
    processed_logprobs: of what the processors make of the logits, instead of the model's own."""

    prompt: tuple[int, ...]
    max_tokens: int = 256
    sampling: Sampling = GREEDY
    seed: int = 0
    stop: frozenset[int] = frozenset()
    logprobs: int | None = None
    traced: bool = False
    rule: str = COUPLED.name
    processed_logprobs: bool = False

    def __post_init__(self) -> None:
        if not self.prompt:
            raise RequestError("the prompt is empty: give at least one token")
        if self.max_tokens < 0:
            raise RequestError(f"max_tokens must be 0 or more, not {self.max_tokens}")
        if self.seed < 0:
            raise RequestError(f"seed must be 0 or more, not {self.seed}")
        if self.logprobs is not None and self.logprobs < 0:
            raise RequestError(f"logprobs must be 0 or more, not {self.logprobs}")
        named(self.rule)


def decode(
    target: Session,
    drafter: Drafter,
    controller: Controller,
    request: Request,
    *,
    limit: int | None = None,
    cached: int = 0,
) -> Generator[Step, None, None]:
    """Write the text, a Step at a time; the last Step says why it ended.

    limit: the number of real token ids, where the target's vocabulary is padded beyond them; no
    other is emitted. cached: how many of the prompt's first tokens the target's cache holds
    already; everything after them is forgotten. Closing the iterator at any point, or an
    exception, leaves the cache holding a prefix of the text.
    """
    prompt, vocab = request.prompt, limit or target.vocab
    if len(prompt) >= target.capacity:
        raise RequestError(
            f"the prompt has {len(prompt)} tokens and the context {target.capacity}: shorten the "
            "prompt or export with a longer --context"
        )
    if not 0 <= min(prompt) <= max(prompt) < vocab:
        wrong = max(prompt) if max(prompt) >= vocab else min(prompt)
        raise RequestError(f"the prompt holds token {wrong}; the model has tokens 0 to {vocab - 1}")
    request = replace(request, sampling=request.sampling.within(len(prompt), request.stop, vocab))
    return _steps(target, drafter, controller, request, limit=vocab, cached=cached)


def _steps(
    target: Session,
    drafter: Drafter,
    controller: Controller,
    request: Request,
    *,
    limit: int,
    cached: int,
) -> Generator[Step, None, None]:
    tokens, sampling = list(request.prompt), request.sampling
    end = min(len(tokens) + request.max_tokens, target.capacity)
    rule = named(request.rule)
    decisions, drafts = np.random.SeedSequence(request.seed).spawn(2)
    chance = Chance(np.random.default_rng(decisions), noise(request.seed) if rule.coupled else None)
    drafts_rng = np.random.default_rng(drafts)  # its draws do not touch the target's
    hidden: np.ndarray | None = None
    finish: Finish | None = None
    prefill_s = _prefill(target, tokens, cached)
    while len(tokens) < end and finish is None:
        with _undone_on_error(target):
            began = perf_counter()
            room = end - len(tokens) - 1
            context = Context(tokens, hidden, sampling, chance.noise)
            proposal = controller.draft(drafter, context, room, drafts_rng)
            root, n = target.length, proposal.size
            assert n <= room, f"{proposal.source} proposed {n} tokens where {room} fit"
            drafted = perf_counter()
            output = target.forward(*_block(tokens[-1], proposal), last=n + 1)
            logits = output.logits[:, :limit]  # (n + 1, V)
            scored = perf_counter()
            answer = Scored(proposal, logits, sampling, tokens)
            verdict = verify(answer, rule, chance)
            block = (*proposal.tokens[list(verdict.path)].tolist(), verdict.bonus)
            emitted, finish = cut(block, end - len(tokens), request.stop)
            nodes = (ROOT, *verdict.path)[: len(emitted)]  # after which these tokens came
            rows = [node + 1 for node in nodes]
            row = answer.processed if request.processed_logprobs else answer.raw
            top = request.logprobs
            chances = () if top is None else logprobs([row(n) for n in nodes], emitted, top)
            hidden = None if output.hidden is None else output.hidden[rows]
            target.keep(root + 1, verdict.path[: len(emitted) - 1])  # all but the last token
            verified = perf_counter()
            step = Step(
                emitted=emitted,
                drafted=n,
                accepted=min(len(verdict.path), len(emitted)),
                depth=proposal.depth,
                seconds=(drafted - began, scored - drafted, verified - scored),
                source=proposal.source,
                reason=controller.reason,
                finish=finish,
                prefill_s=prefill_s,
                logprobs=chances,
                detail=detail(answer, verdict) if request.traced else None,
                rule=rule.name,
                lossy=verdict.lossy,
                certainty=answer.certainty(ROOT, emitted[0]),
            )
            tokens += emitted
            del output, logits, answer, row  # so that the target may write there again
        prefill_s = 0.0
        controller.observe(step)
        yield step


def _prefill(target: Session, tokens: Sequence[int], cached: int) -> float:
    """Read all but the last token, keeping what the cache has of them; the seconds it took."""
    began = perf_counter()
    last = len(tokens) - 1
    target.keep(min(cached, target.length, last))
    for start in range(target.length, last, PREFILL_CHUNK):
        target.forward(tokens[start : min(start + PREFILL_CHUNK, last)])
    return perf_counter() - began


@contextmanager
def _undone_on_error(target: Session) -> Iterator[None]:
    """An exception inside, an interrupt too, takes back what the cache read inside."""
    length = target.length
    try:
        yield
    except BaseException:
        target.keep(length)
        raise


def _block(root: int, proposal: Proposal) -> tuple[np.ndarray, np.ndarray | None]:
    """What the target reads: the root, then the draft, and their parents (None for a chain)."""
    ids = np.array([root, *proposal.tokens.tolist()], np.int64)
    if proposal.is_chain:
        return ids, None
    return ids, np.concatenate([[-1], proposal.parents + 1])


def cut(
    block: Sequence[int], room: int, stop: frozenset[int]
) -> tuple[tuple[int, ...], Finish | None]:
    """What of a block becomes text, its stop token included, and whether the text ends with it. A
    stop comes before a length cap later in the block."""
    for index, token in enumerate(block[:room]):
        if token in stop:
            return tuple(block[: index + 1]), "stop"
    return tuple(block[:room]), "length" if len(block) >= room else None
