"""`specrt chat`: a conversation. Between turns the model keeps what it has read."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specrt.commands.options import (
    add_command,
    add_provider,
    add_request,
    decoded,
    open_bundle,
    request,
    text,
)
from specrt.runtime.errors import SpecrtError

_PROMPT = "> "
_PROBE = {"role": "user", "content": "?"}


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "chat",
        run,
        arguments="BUNDLE [options]",
        does="talk with a model, a line a turn",
        examples=(
            "specrt chat bundle\n"
            'specrt chat bundle --system "Answer in one sentence." --temperature 0.7'
        ),
        notes="\n/clear forgets the conversation, Ctrl-C ends an answer, Ctrl-D ends the command.",
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="an exported folder")
    parser.add_argument("--system", type=text, metavar="TEXT", help="what the model shall be like")
    add_request(parser)
    add_provider(parser)
    parser.add_argument("--stats", action="store_true", help="say how fast it was, on stderr")


def run(args: argparse.Namespace) -> int:
    from specrt.console import TokenPrinter, say

    options = request(args)
    model = open_bundle(args.bundle, args.provider, options.get("drafter", "auto"))
    printer = TokenPrinter(model.tokenizer)
    opening = [{"role": "system", "content": args.system}] if args.system else []
    model.stream(messages=[*opening, _PROBE], **options).close()  # are the options usable?
    messages = list(opening)
    for line in _lines():
        if line == "/clear":
            messages = list(opening)
            continue
        messages.append({"role": "user", "content": line})
        try:
            messages.append(
                {"role": "assistant", "content": _answer(model, messages, args, printer)}
            )
        except SpecrtError as error:  # this turn cannot be answered, the conversation stands
            if not sys.stdin.isatty():
                raise
            messages.pop()
            say(f"specrt: {error}")
    return 0


def _answer(
    model: Any, messages: list[dict[str, str]], args: argparse.Namespace, printer: Any
) -> str:
    """Stream the answer to messages and return it; Ctrl-C on a terminal returns what there is."""
    from specrt.console import say, stats

    written, summary = "", None
    try:
        stream = model.stream(messages=messages, **request(args))
        for piece in stream:
            printer.write(piece)
            written += piece.text
        summary = stream.result.trace.summary()
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
    printer.end()
    if summary and args.stats:
        say(stats(summary))
    return written


def _lines() -> Iterator[str]:
    """The lines of standard input that hold something, with a prompt on a terminal."""
    while True:
        if sys.stdin.isatty():
            try:
                line = input(_PROMPT) + "\n"
            except EOFError:
                line = ""
        else:
            line = decoded(sys.stdin.buffer.readline())
        if not line:
            return
        if line.strip():
            yield line.strip()
