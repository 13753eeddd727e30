"""The command line: parse, run one command, turn errors into one line and an exit code.

0 done, 1 a check or gate did not hold, 2 wrong use or bad input, 130 interrupted, 128 + n ended by
signal n.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import NoReturn

from specrt.commands import bench, chat, demo, export, generate, inspect, pull, tune, verify
from specrt.commands.options import Parser
from specrt.runtime.errors import CheckError, SpecrtError
from specrt.runtime.version import VERSION

COMMANDS = (demo, pull, export, inspect, tune, generate, chat, bench, verify)
DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: this process's) and return its exit code."""
    _open_streams()
    _end_tidily()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows ?
    try:
        try:
            args = parser().parse_args(argv)
            code: int = args.run(args)
            return code
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except CheckError as error:
        return _say(str(error), FAILED)
    except SpecrtError as error:
        return _say(str(error), WRONG_USE)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _say(f"{where}{error.strerror or error}", WRONG_USE)


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    root = Parser(
        prog="specrt",
        usage="specrt COMMAND ...",
        description="Exact, fast text generation on small machines.",
        epilog="examples:\n  specrt demo\n  specrt generate BUNDLE --help",
    )
    root.add_argument("--version", action="version", version=f"specrt {VERSION}")
    commands = root.add_subparsers(
        title="commands", metavar="COMMAND", required=True, prog="specrt"
    )
    for command in COMMANDS:
        command.add(commands)
    return root


def _say(message: str, code: int) -> int:
    with suppress(OSError):  # nobody can be told
        print(f"specrt: {message}", file=sys.stderr)
    return code


def _open_streams() -> None:
    """Standard streams that the caller has closed are empty and take everything."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _end_tidily() -> None:
    """When the system ends this process, what it was writing is removed, as after Ctrl-C."""
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _end)


def _end(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)
