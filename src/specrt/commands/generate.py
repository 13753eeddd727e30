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
    open_bundle,
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
            'specrt generate bundle "Write a haiku." --temperature 0.8 --seed 7 -n 3\n'
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
    add("-n", type=int, metavar="N", default=1, help="texts to write, seeds S, S + 1, … (1)")
    add("--logprobs", type=int, metavar="N", default=argparse.SUPPRESS,
        help="with --json: each token's log-probability and the N best")  # fmt: skip
    add("--processed-logprobs", action="store_true", default=argparse.SUPPRESS,
        help="the log-probabilities after penalties and bans")  # fmt: skip
    add_provider(parser)
    add("--stats", action="store_true", help="say how fast it was, on stderr")
    add("--trace", metavar="FILE", type=Path, help="write a JSON line for each step")
    add("--json", action="store_true", help="print a JSON object instead of each text")


def run(args: argparse.Namespace) -> int:
    from specrt.console import TokenPrinter, say, stats
    from specrt.runtime.noise import fresh_seed
    from specrt.runtime.writing import writing_file

    options = request(args)
    if "logprobs" in options and not args.json:
        raise RequestError("--logprobs are shown in JSON only; add --json")
    if "processed_logprobs" in options and "logprobs" not in options:
        raise RequestError("--processed-logprobs says which; ask for them with --logprobs N")
    if args.n < 1:
        raise RequestError(f"-n must be 1 text or more, not {args.n}")
    seed = options.pop("seed", None)
    first = fresh_seed() if seed is None else seed
    prompt = read_prompt(args.prompt)
    model = open_bundle(args.bundle, args.provider, options.get("drafter", "auto"))
    show = None if args.json else TokenPrinter(model.tokenizer)
    with ExitStack() as stack:
        trace = stack.enter_context(writing_file(args.trace)) if args.trace else None
        for i in range(args.n):
            stream = model.stream(prompt, **options, seed=first + i, traced=trace is not None)
            if show and args.n > 1:
                show.title(f"seed {first + i}")
            for piece in stream:
                if show:
                    show.write(piece)
            result = stream.result
            if show:
                show.end()
            else:
                print(json.dumps(_object(result)))
            if args.stats:
                say(stats(result.trace.summary()))
            if trace:
                trace.writelines(json.dumps(step.record()) + "\n" for step in result.trace.steps)
    return 0


def _object(result: Any) -> dict[str, Any]:
    """A text and its figures for a program."""
    from specrt.bench.environment import peak_rss_mb

    logprobs = {"logprobs": [asdict(one) for one in result.logprobs]} if result.logprobs else {}
    texts = {"text": result.text, "token_ids": list(result.tokens)}
    return {**result.trace.summary(), **texts, **logprobs, "peak_rss_mb": peak_rss_mb()}
