"""What commands share: the parser's manners, and the options of a request.

The options of a request have no default here: what is not given is not passed on, so the defaults
are those of the Python API alone.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from specrt.runtime.errors import RequestError

Run = Callable[[argparse.Namespace], int]

PROVIDERS = ("auto", "cpu", "cuda", "tensorrt")
REQUEST = (
    *("drafter", "max_tokens", "temperature", "top_k", "top_p", "min_p"),
    *("seed", "stop", "logprobs", "raw"),
)


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, takes no abbreviation, and keeps the examples' lines."""

    def __init__(self, **settings: Any) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(**settings, allow_abbrev=False, formatter_class=formatter)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def add_command(
    commands: Any, name: str, run: Run, *, arguments: str, does: str, examples: str, notes: str = ""
) -> argparse.ArgumentParser:
    """A new command's parser. arguments: what follows its name in the usage line. notes: text that
    ends its help."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        usage=f"specrt {name} {arguments}".strip(),
        help=does,
        description=f"{does[0].upper()}{does[1:]}.",
        epilog="\n".join(["examples:", *(f"  {line}" for line in examples.splitlines()), notes]),
    )
    parser.set_defaults(run=run)
    return parser


def add_request(parser: argparse.ArgumentParser) -> None:
    """The options of one text, named as in the Python API."""
    add = parser.add_argument_group("what to write").add_argument
    none = argparse.SUPPRESS
    add("--drafter", metavar="D", default=none, help="none, auto, ngram, draft, or a+b (auto)")
    add("--max-tokens", type=int, metavar="N", default=none, help="most tokens to write (256)")
    add("--temperature", type=float, metavar="T", default=none, help="0 is greedy (0)")
    add("--top-k", type=int, metavar="K", default=none, help="only the K most likely (0: off)")
    add("--top-p", type=float, metavar="P", default=none, help="only the likeliest mass P (1: off)")
    add(
        "--min-p",
        type=float,
        metavar="P",
        default=none,
        help="only above P times the best (0: off)",
    )
    add("--seed", type=int, metavar="S", default=none, help="of the draws (a fresh one)")
    help = "end before this text; may be given again"
    add("--stop", type=text, metavar="STR", action="append", default=none, help=help)


def add_provider(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--provider", choices=PROVIDERS, default="auto", help="where the graphs run (auto)"
    )


def request(args: argparse.Namespace) -> dict[str, Any]:
    """The options of add_request that were given, as arguments of `Model.stream`."""
    return {name: getattr(args, name) for name in REQUEST if hasattr(args, name)}


def text(argument: str) -> str:
    """An argument that is text; bytes that are no UTF-8 reach Python as lone surrogates."""
    try:
        argument.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"character {error.start} is not UTF-8") from None
    return argument


def read_prompt(argument: str) -> str:
    """The prompt itself, or for `-` all of standard input without its last line end."""
    prompt = decoded(sys.stdin.buffer.read()).removesuffix("\n") if argument == "-" else argument
    if not prompt:
        raise RequestError("the prompt is empty: give it as an argument or on standard input")
    return prompt


def decoded(raw: bytes) -> str:
    """Bytes from standard input as text."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise RequestError(
            f"standard input is not UTF-8: byte 0x{byte:02x} at {error.start}; convert it first"
        ) from None
