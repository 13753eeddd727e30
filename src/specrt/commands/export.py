"""`specrt export`: a checkpoint, and drafts for it, to a bundle."""

import argparse
import json
import re
from pathlib import Path
from time import perf_counter
from typing import Any

from specrt.commands.options import add_command
from specrt.runtime.bundle import DRAFTER_KINDS


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "export",
        run,
        arguments="SOURCE OUT [options]",
        does="export a checkpoint, and drafts for it, to a bundle",
        examples=(
            "specrt export model.gguf bundle\n"
            "specrt export Qwen/Qwen2.5-Coder-1.5B-Instruct coder --weights int8\n"
            "specrt export big.gguf pair --draft small.gguf --context 4096"
        ),
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", help="GGUF file, Hugging Face folder, hub id or optimum folder")
    add("out", metavar="OUT", type=Path, help="the bundle's folder; an old bundle is replaced")
    add("--draft", metavar="[KIND:]SOURCE", action="append", type=_draft, default=[],
        help="a smaller model with the same tokenizer; may be given again")  # fmt: skip
    add("--weights", choices=("carried", "int8", "int4", "w8a8", "fp32", "fp16"),
        help="carried: own 4-bit blocks, else 8 bits (the smallest of good quality)")  # fmt: skip
    add("--context", type=int, metavar="N", help="most tokens of a text (the model's own limit)")
    add("--flavour", choices=("cpu", "cuda", "tensorrt"), default="cpu", help="for what (cpu)")
    add("--kernels", choices=("native", "stock"),
        help="specrt's own for the CPU, or onnxruntime's (native where there are any)")  # fmt: skip
    add("--cache", choices=("float16", "int8"),
        help="native KV cache type; int8: half the memory, faster if long (float16)")  # fmt: skip
    add("--check", action="store_true", default=True, help="prove the graphs before delivery (on)")
    add("--no-check", dest="check", action="store_false", help="deliver without checks")
    add("--json", action="store_true", help="print the manifest as JSON")


def run(args: argparse.Namespace) -> int:
    from specrt.bench.environment import peak_rss_mb
    from specrt.commands.inspect import describe
    from specrt.console import progress, say
    from specrt.export.build import export

    start = perf_counter()
    with progress() as show:
        manifest = export(
            args.source,
            args.out,
            drafts=args.draft,
            weights=args.weights,
            context=args.context,
            flavour=args.flavour,
            kernels=args.kernels,
            cache=args.cache,
            check=args.check,
            progress=show,
        )
    seconds, peak = perf_counter() - start, peak_rss_mb()
    if args.json:
        print(
            json.dumps({**json.loads(manifest.to_json()), "seconds": seconds, "peak_rss_mb": peak})
        )
        return 0
    for line in describe(args.out, manifest):
        print(line)
    memory = f", peak memory {peak / 1000:.1f} GB" if peak is not None else ""
    say(f"exported in {seconds:.0f} s{memory}; next: specrt generate {args.out} PROMPT")
    return 0


def _draft(argument: str) -> str:
    """The source of [KIND:]SOURCE; a model is the only kind there is."""
    kind = re.match("([a-z0-9]{2,}):", argument)
    if kind is None:
        return argument
    if kind[1] not in DRAFTER_KINDS:
        raise argparse.ArgumentTypeError(f"{kind[1]!r} is no kind of draft; use {DRAFTER_KINDS[0]}")
    return argument[kind.end() :]
