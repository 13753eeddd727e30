"""A text being written: steps in, pieces of text out."""

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from specrt.runtime.controller import Controller
from specrt.runtime.decode import Request, decode
from specrt.runtime.detail import Logprob
from specrt.runtime.interfaces import Drafter, Session
from specrt.runtime.prefix import common_prefix
from specrt.runtime.text import TextStream
from specrt.runtime.trace import Step, Trace


@dataclass(frozen=True, slots=True)
class Piece:
    """New text and the tokens it came from. from_draft: for each token whether a drafter proposed
    it. logprobs: for each token, if asked for."""

    text: str
    tokens: tuple[int, ...]
    from_draft: tuple[bool, ...]
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """A finished text. tokens end before a stop token or stop string; finish_reason is "stop" or
    "length". trace: the steps, and all figures as trace.summary()."""

    text: str
    tokens: tuple[int, ...]
    from_draft: tuple[bool, ...]
    logprobs: tuple[Logprob, ...]
    finish_reason: str
    trace: Trace


@dataclass(slots=True)
class Held:
    """A target, how many of its ids are tokens, and those that its cache has read."""

    session: Session
    limit: int
    read: Sequence[int] = ()


class Stream(Iterator[Piece]):
    """A text being written. May be left or closed at any point; `result` is what there is so far,
    the whole once the iteration has ended."""

    def __init__(
        self,
        held: Held,
        request: Request,
        text: TextStream,
        drafter: Drafter,
        controller: Controller,
        name: str,
    ) -> None:
        self.thread = threading.current_thread()
        self.finished = False
        self._text, self._request = text, request
        self._tokens: list[int] = []
        self._from_draft: list[bool] = []
        self._logprobs: list[Logprob] = []
        self._shown, self._given = "", 0
        self._trace = Trace(len(request.prompt), name, request.seed)
        self._pieces = self._write(held, drafter, controller)

    def __next__(self) -> Piece:
        return next(self._pieces)

    def close(self) -> None:
        """End the text here; the model is free for the next request."""
        self._pieces.close()
        self.finished = True

    @property
    def result(self) -> Result:
        """The text so far, with its tokens and figures."""
        reason = self._trace.steps[-1].finish if self._trace.steps else None
        return Result(
            text=self._shown,
            tokens=tuple(self._tokens[: self._given]),
            from_draft=tuple(self._from_draft[: self._given]),
            logprobs=tuple(self._logprobs[: self._given]),
            finish_reason=reason or "length",
            trace=self._trace,
        )

    def _write(
        self, held: Held, drafter: Drafter, controller: Controller
    ) -> Generator[Piece, None, None]:
        target, prompt = held.session, self._request.prompt
        cached = common_prefix(held.read, prompt)
        held.read, written = (), list[int]()
        try:
            target.keep(cached)  # from here on, whatever happens, the cache holds a prefix of this
            written += prompt
            steps = decode(
                target, drafter, controller, self._request, limit=held.limit, cached=cached
            )
            with closing(steps):
                for step in steps:
                    written += step.emitted
                    piece = self._piece(step)
                    if piece.tokens or piece.text:
                        yield piece
                    if self._text.stopped is not None:
                        return
        finally:
            self.finished = True
            held.read = written[: target.length]

    def _piece(self, step: Step) -> Piece:
        """Everything that is settled with this step and was not given out yet."""
        self._tokens += step.text_tokens
        self._from_draft += step.from_draft[: len(step.text_tokens)]
        self._logprobs += step.logprobs[: len(step.text_tokens)]
        text = self._text.push(step.text_tokens)
        if self._text.stopped is not None:
            step = replace(step, finish="stop")
        elif step.finish is not None:
            text += self._text.finish()
        self._trace.add(step)
        start, self._given = self._given, self._text.settled
        self._shown += text
        part = slice(start, self._given)
        return Piece(
            text,
            tuple(self._tokens[part]),
            tuple(self._from_draft[part]),
            tuple(self._logprobs[part]),
        )
