"""`specrt pull`: a known checkpoint by name."""

import argparse
from pathlib import Path
from typing import Any

from specrt.commands.options import add_command
from specrt.pull import CHECKPOINTS

_KNOWN = "\n".join(
    f"  {name:<20}{c.file:<41}{c.size / 1e6:>5.0f} MB  {c.licence}"
    for name, c in CHECKPOINTS.items()
)

_CACHE = "The cache is $SPECRT_HOME if set, else the platform's: ~/.cache/specrt on Linux."


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "pull",
        run,
        arguments="NAME [DIR]",
        does="fetch a known checkpoint, SHA-256 checked, and print its path",
        examples="specrt pull smollm2\nspecrt pull qwen2.5-coder-1.5b models",
        notes=f"\ncheckpoints:\n{_KNOWN}\n\n{_CACHE}",
    )
    parser.add_argument("name", metavar="NAME", choices=tuple(CHECKPOINTS), help="see below")
    parser.add_argument(
        "folder", metavar="DIR", nargs="?", type=Path, help="where to put it (models in the cache)"
    )


def run(args: argparse.Namespace) -> int:
    from specrt.console import progress
    from specrt.pull import pull

    with progress() as show:
        path = pull(args.name, args.folder, show)
    print(path)
    return 0
