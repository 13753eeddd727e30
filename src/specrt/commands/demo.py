"""`specrt demo`: one answer twice, plainly and speculatively, side by side."""

import argparse
import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from specrt.commands.options import add_command, open_bundle, text
from specrt.runtime.bundle import read_manifest
from specrt.runtime.errors import BundleError, CheckError
from specrt.runtime.version import VERSION

_CHECKPOINT = "smollm2"
_PLAIN = "none"
_WARM_UP = 8  # tokens
_HEADER = ("", "tokens/s", "first token", "tokens/step", "accepted")
_PROMPT = (
    "Rewrite this list with every line ending in a full stop:\n"
    "- Measure the device before choosing a draft length\n"
    "- Draft a few tokens with something cheap\n"
    "- Verify them with the model in one pass\n"
    "- Keep the longest prefix that the model agrees with\n"
    "- Take one more token from the model itself"
)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "demo",
        run,
        arguments="[options]",
        does="write one answer plainly and speculatively, side by side",
        examples='specrt demo\nspecrt demo --prompt "Write a poem about rivers." --max-tokens 200',
    )
    add = parser.add_argument
    add(
        "--prompt", type=text, default=_PROMPT, metavar="TEXT", help="what to ask (an editing task)"
    )
    add("--max-tokens", type=int, default=128, metavar="N", help="most tokens to write (128)")
    add("--drafter", default="auto", metavar="D", help="the speculative side's drafter (auto)")
    add("--fresh", action="store_true", help="export the model again")
    add("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    from specrt.console import say, side_by_side, table

    bundle = ensure_bundle(args.fresh)
    model = open_bundle(bundle, "cpu", args.drafter)
    drafters = {"plain": _PLAIN, "speculative": args.drafter}
    for drafter in drafters.values():
        model.generate(args.prompt, drafter=drafter, max_tokens=_WARM_UP)
    say(f"> {args.prompt}\n")
    shown = nullcontext(_quiet) if args.json else side_by_side(list(drafters), model.tokenizer)
    results = {}
    with shown as add_piece:
        for column, (name, drafter) in enumerate(drafters.items()):
            stream = model.stream(args.prompt, drafter=drafter, max_tokens=args.max_tokens)
            for piece in stream:
                add_piece(column, piece)
            results[name] = stream.result
    summaries = {name: result.trace.summary() for name, result in results.items()}
    same = results["plain"].tokens == results["speculative"].tokens
    if args.json:
        print(json.dumps({**summaries, "identical": same}))
    else:
        print()
        table(_HEADER, [_row(name, summary) for name, summary in summaries.items()])
    if not same:
        raise CheckError("the speculative text is not the plain one; please report this")
    say("the same text, token for token; on a terminal, what the drafter proposed is green")
    return 0


def ensure_bundle(fresh: bool) -> Path:
    """The demo's bundle, made by this version of specrt; fetched and exported if need be."""
    from specrt.console import progress, say
    from specrt.export.build import export
    from specrt.pull import home, pull

    out = home() / "bundles" / _CHECKPOINT
    if not fresh and _made_by(out) == f"specrt {VERSION}":
        return out
    say(f"once only: fetching and exporting {_CHECKPOINT} to {out}")
    with progress() as show:
        export(pull(_CHECKPOINT, progress=show), out, progress=show)
    return out


def _made_by(bundle: Path) -> str | None:
    try:
        return read_manifest(bundle).created_by
    except BundleError:
        return None


def _row(name: str, summary: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        name,
        f"{summary['tokens_per_s']:.1f}",
        f"{summary['ttft_s']:.2f} s",
        f"{summary['tokens_per_step']:.2f}",
        f"{summary['accepted']} of {summary['drafted']} drafted",
    )


def _quiet(column: int, piece: object) -> None:
    pass
