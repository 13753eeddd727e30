"""`specrt bench`: drafters against plain decoding, on your bundle and device."""

import argparse
import operator
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from specrt.commands.options import add_command, add_provider
from specrt.runtime.errors import CheckError, RequestError

_KINDS = "chat,summarise,edit,code,extract"
_GATE = re.compile(r"(speedup|tokens_per_s|acceptance_rate|tokens_per_step)(>=|<=|>|<)(\d+\.?\d*)")
_COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


@dataclass(frozen=True, slots=True)
class Gate:
    """A figure that every drafter must reach over all prompts, as in "speedup>=1.3"."""

    figure: str
    sign: str
    bound: float


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "bench",
        run,
        arguments="BUNDLE [options]",
        does="measure drafters against plain decoding; the last line is one JSON object",
        examples=(
            "specrt bench bundle\n"
            "specrt bench bundle --drafters ngram,draft --suite code,edit --repeat 5\n"
            "specrt bench bundle --suite mine.jsonl --json result.json\n"
            'specrt bench bundle --gate "speedup>=1.3"'
        ),
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="an exported folder")
    add = parser.add_argument
    add("--drafters", type=_names, metavar="D,D", default=("auto",), help="what to compare (auto)")
    add(
        "--suite",
        type=_names,
        metavar="S,S",
        default=_names(_KINDS),
        help=f"{_KINDS} or FILE.jsonl (all)",
    )
    add("--repeat", type=int, metavar="N", default=3, help="rounds over all prompts (3)")
    add("--max-tokens", type=int, metavar="N", default=128, help="most tokens of an answer (128)")
    add("--temperature", type=float, metavar="T", default=0.0, help="0 is greedy (0)")
    add("--seed", type=int, metavar="S", default=0, help="of the draws (0)")
    add_provider(parser)
    add("--json", type=Path, metavar="FILE", help="write the JSON object to a file as well")
    add("--gate", type=_gate, metavar="TEST", help="exit with 1 unless every drafter passes")


def run(args: argparse.Namespace) -> int:
    import specrt
    from specrt.bench.latency import BASELINE, Plan, document, measure
    from specrt.bench.report import HEADER, last_line, rows
    from specrt.bench.suite import load_suites
    from specrt.console import progress, table
    from specrt.runtime.writing import writing_file

    plan = Plan(
        load_suites(args.suite),
        args.drafters,
        args.repeat,
        args.max_tokens,
        args.temperature,
        args.seed,
    )
    if args.gate and plan.methods == (BASELINE,):
        raise RequestError("--gate is for drafters, and there is none; name one with --drafters")
    with ExitStack() as stack:
        file = stack.enter_context(writing_file(args.json)) if args.json else None
        start = perf_counter()
        model = specrt.load(args.bundle, provider=args.provider)
        load_s = perf_counter() - start
        records = []
        with progress() as show:
            show("measure", 0, plan.runs)
            for record in measure(model, plan):
                records.append(record)
                show("measure", len(records), plan.runs)
        result = document(args.bundle, plan, records, load_s)
        table(HEADER, rows(result["summary"]))
        line = last_line(result)
        print(line)
        if file:
            file.write(line + "\n")
    if args.gate:
        check(args.gate, result["summary"])
    return 0


def check(gate: Gate, summary: Mapping[str, Any]) -> None:
    """CheckError, naming drafter and figure, unless each drafter but the baseline passes."""
    for drafter, works in summary.items():
        if drafter == "none":
            continue
        figure = works["all"][gate.figure]
        found = figure["median"] if isinstance(figure, Mapping) else figure
        if found is None or not _COMPARE[gate.sign](found, gate.bound):
            shown = "not measured" if found is None else f"{found:.3f}"
            raise CheckError(
                f"gate {gate.figure}{gate.sign}{gate.bound} does not hold: {drafter} has {shown}"
            )


def _names(argument: str) -> tuple[str, ...]:
    names = tuple(name for name in argument.split(",") if name)
    if not names:
        raise argparse.ArgumentTypeError("give one name or more, with commas between them")
    return names


def _gate(argument: str) -> Gate:
    match = _GATE.fullmatch(argument.replace(" ", ""))
    if match is None:
        raise argparse.ArgumentTypeError(f"{argument!r} is not of the form speedup>=1.3")
    return Gate(match[1], match[2], float(match[3]))
