"""`specrt generate`: text for one prompt, as it is written."""

import argparse
import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specrt.commands.options import (
    add_command,
    add_provider,
    add_request,
    read_prompt,
    request,
    text,
)
from specrt.runtime.errors import RequestError


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "generate",
        run,
        arguments="BUNDLE PROMPT [options]",
        does="write text for a prompt",
        examples=(
            'specrt generate bundle "Explain KV caches."\n'
            'specrt generate bundle "Write a haiku." --temperature 0.8 --seed 7\n'
            "cat notes.txt | specrt generate bundle - --stats\n"
            'specrt generate bundle "def add(a, b):" --raw --stop "def " --json'
        ),
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="an exported folder")
    parser.add_argument(
        "prompt", metavar="PROMPT", type=text, help="the question, - reads it from stdin"
    )
    add_request(parser)
    add = parser.add_argument
    add(
        "--raw",
        action="store_true",
        default=argparse.SUPPRESS,
        help="continue the prompt, no chat template",
    )
    add("--logprobs", type=int, metavar="N", default=argparse.SUPPRESS,
        help="with --json: each token's log-probability and the N best")  # fmt: skip
    add_provider(parser)
    add("--stats", action="store_true", help="say how fast it was, on stderr")
    add("--trace", metavar="FILE", type=Path, help="write a JSON line for each step")
    add("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    import specrt
    from specrt.bench.environment import peak_rss_mb
    from specrt.console import TokenPrinter, say, stats
    from specrt.runtime.writing import writing_file

    options = request(args)
    if "logprobs" in options and not args.json:
        raise RequestError("--logprobs are shown in JSON only; add --json")
    prompt = read_prompt(args.prompt)
    model = specrt.load(args.bundle, provider=args.provider)
    with ExitStack() as stack:
        trace = stack.enter_context(writing_file(args.trace)) if args.trace else None
        stream = model.stream(prompt, **options, traced=trace is not None)
        show = None if args.json else TokenPrinter(model.tokenizer)
        for piece in stream:
            if show:
                show.write(piece)
        result = stream.result
        if trace:
            trace.writelines(json.dumps(step.record()) + "\n" for step in result.trace.steps)
    summary = result.trace.summary()
    if show:
        show.end()
    else:
        logprobs = {"logprobs": [asdict(one) for one in result.logprobs]} if result.logprobs else {}
        ids = {"token_ids": list(result.tokens)}
        print(
            json.dumps(
                {**summary, "text": result.text, **ids, **logprobs, "peak_rss_mb": peak_rss_mb()}
            )
        )
    if args.stats:
        say(stats(summary))
    return 0
