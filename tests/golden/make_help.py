"""The help text of every command, as 80 columns show it.

python tests/golden/make_help.py      # rewrites tests/golden/help/*.txt; read the difference
"""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from specrt.cli import parser

FOLDER = Path(__file__).parent / "help"


def help_texts() -> Mapping[str, str]:
    """Command name -> its help; "specrt" itself is the list of commands."""
    root = parser()
    commands = next(a for a in root._actions if isinstance(a, argparse._SubParsersAction))
    parsers = {"specrt": root, **commands.choices}
    return {name: each.format_help() for name, each in parsers.items()}


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    FOLDER.mkdir(exist_ok=True)
    for name, text in help_texts().items():
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")
