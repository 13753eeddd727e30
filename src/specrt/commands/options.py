"""What commands share: the parser's manners, and the options of a request.

The options of a request have no default here: what is not given is not passed on, so the defaults
are those of the Python API alone.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from specrt.runtime.errors import RequestError

if TYPE_CHECKING:
    from specrt import Model

WIDTH = 11  # of the left column of what is told in lines
Run = Callable[[argparse.Namespace], int]

PROVIDERS = ("auto", "cpu", "cuda", "tensorrt")
REQUEST = (
    *("drafter", "budget", "policy", "rule", "max_tokens", "seed", "stop"),
    *("logprobs", "processed_logprobs", "raw"),
    *("temperature", "top_k", "top_p", "min_p", "typical_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram"),
    *("min_tokens", "logit_bias", "bad_words", "regex", "json_schema"),
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
    add = _adding(parser, "what to write")
    add("--drafter", "D", "none, auto, ngram, draft, or a+b (auto)")
    add("--budget", "N", "tokens to draft in each step (auto chooses; 4 for a named one)", type=int)
    add("--policy", "P", "what chooses them: see docs/controller.md (cost)")
    add("--max-tokens", "N", "most tokens to write (256)", type=int)
    add("--min-tokens", "N", "fewest, before a stop token may come (0)", type=int)
    add("--seed", "S", "of the draws (a fresh one)", type=int)
    add("--stop", "STR", "end before this text; may be given again", type=text, action="append")
    add("--regex", "RE", "only a text that this matches whole (extra grammar)", type=text)
    add("--json-schema", "FILE", "only JSON of this schema (extra grammar)", type=_schema)
    add = _adding(parser, "how to choose tokens")
    add("--temperature", "T", "0 is greedy (0)", type=float)
    add("--top-k", "K", "only the K most likely (0: off)", type=int)
    add("--top-p", "P", "only the likeliest mass P (1: off)", type=float)
    add("--min-p", "P", "only above P times the best (0: off)", type=float)
    add("--typical-p", "P", "only the mass P of typical surprise (1: off)", type=float)
    add("--repetition-penalty", "R", "scale down tokens in prompt and text (1: off)", type=float)
    add("--presence-penalty", "X", "off tokens already written (0)", type=float)
    add("--frequency-penalty", "X", "the same for each time written (0)", type=float)
    add("--no-repeat-ngram", "N", "no N tokens in a row come twice (0: off)", type=int)
    help = "add B to a token's logit; may be given again"
    add("--logit-bias", "ID=B", help, type=_bias, action=_Biases)
    help = "never write this; may be given again"
    add("--bad-words", "STR", help, type=text, action="append")
    add("--rule", "R", "how drafts are verified, see docs/verification.md (coupled)")


def _adding(parser: argparse.ArgumentParser, title: str) -> Callable[..., None]:
    """A function that adds an option without a default to a new group."""
    group = parser.add_argument_group(title)

    def add(name: str, metavar: str, help: str, **more: Any) -> None:
        group.add_argument(name, metavar=metavar, help=help, default=argparse.SUPPRESS, **more)

    return add


def _bias(argument: str) -> tuple[int, float]:
    token, _, bias = argument.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        message = f"{argument!r} is not of the form 17=-2.5, a token id and a number"
        raise argparse.ArgumentTypeError(message) from None


def _schema(argument: str) -> str:
    try:
        return Path(argument).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise argparse.ArgumentTypeError(f"{argument} cannot be read: {reason}") from None


class _Biases(argparse.Action):
    """Gathers biases in one mapping."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        held = getattr(namespace, self.dest, {})
        setattr(namespace, self.dest, {**held, values[0]: values[1]})


def line(name: str, value: str) -> str:
    """A fact in a line of text, its name in a column of its own."""
    return f"{name:<{WIDTH}}{value}"


def add_provider(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--provider", choices=PROVIDERS, default="auto", help="where the graphs run (auto)"
    )


def open_bundle(bundle: Path, provider: str, drafter: str = "auto") -> "Model":
    """Load a bundle, with a line where this device is measured first."""
    import specrt
    from specrt.console import say

    def show(stage: str, done: int, total: int) -> None:
        if not done:
            say(stage)

    return specrt.load(bundle, drafter=drafter, provider=provider, progress=show)


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
