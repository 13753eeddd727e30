"""`specrt bench`: drafters against plain decoding, on your bundle and device."""

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from specrt.bench.gate import FIGURES, Gate, failures, parse, unmet
from specrt.commands.options import add_command, add_provider
from specrt.runtime.errors import CheckError, RequestError

_KINDS = "chat,summarise,edit,code,extract"
_NOTES = f"""a gate is DRAFTER/KIND FIGURE>=NUMBER, or with <=, > or <; without a kind it is about
all work together, without a drafter about each; * is any. Figures:
{", ".join(FIGURES[:7])},
{", ".join(FIGURES[7:])}
peers are onnxruntime-genai, llama.cpp, llama-server, openvino-genai and transformers"""


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
            "specrt bench bundle --suite mine.jsonl --json result.json --html result.html\n"
            'specrt bench bundle --gate "speedup>=1.3" --gate "auto/* speedup>=0.97"\n'
            "specrt bench bundle --peers llama.cpp,transformers --peer-program llama.cpp=PYTHON"
        ),
        notes=_NOTES,
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="an exported folder")
    add = parser.add_argument
    add("--drafters", type=_names, metavar="D,D", default=("auto",), help="what to compare (auto)")
    add(
        "--suite",
        type=_names,
        metavar="S,S",
        default=_names(_KINDS),
        help=f"{_KINDS} or FILE.jsonl, as of Spec-Bench (all)",
    )
    add("--repeat", type=int, metavar="N", default=3, help="rounds over all prompts (3)")
    add("--max-tokens", type=int, metavar="N", default=128, help="most tokens of an answer (128)")
    add("--temperature", type=float, metavar="T", default=0.0, help="0 is greedy (0)")
    add("--seed", type=int, metavar="S", default=0, help="of the draws (0)")
    add_provider(parser)
    add("--peers", type=_names, metavar="P,P", default=(), help="engines to ask the same")
    help = "the Python that has it, or its binary (this Python)"
    add("--peer-program", type=_pair, metavar="P=PATH", action="append", default=[], help=help)
    help = "what it loads (the GGUF file that the bundle was made from)"
    add("--peer-model", type=_pair, metavar="P=PATH", action="append", default=[], help=help)
    help = "how long an engine may answer in each of its modes (240)"
    add("--peer-seconds", type=int, metavar="N", help=help)
    add("--json", type=Path, metavar="FILE", help="write the JSON object to a file as well")
    add("--html", type=Path, metavar="FILE", help="write a page with plots (extra: bench)")
    help = "exit with 1 unless it holds; may be given again"
    add("--gate", type=_gate, metavar="TEST", action="append", default=[], help=help)


def run(args: argparse.Namespace) -> int:
    from specrt.bench import page
    from specrt.bench.begin import BASELINE, begin
    from specrt.bench.latency import Plan, document, measure
    from specrt.bench.peers.known import enlist, require_comparable
    from specrt.bench.peers.told import lines
    from specrt.bench.peers.turns import SECONDS, take_turns
    from specrt.bench.report import SPEED, STEPS, around, header, last_line, rows
    from specrt.bench.suite import load_suites
    from specrt.console import progress, say, table
    from specrt.runtime.bundle import read_manifest
    from specrt.runtime.providers import physical_cores
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
    for lack in unmet(args.gate, plan.methods, plan.kinds):
        raise RequestError(f"--gate names {lack}")
    if args.peer_seconds is not None and not args.peers:
        raise RequestError(
            "--peer-seconds is for engines, and there is none; name one with --peers"
        )
    seconds = SECONDS if args.peer_seconds is None else args.peer_seconds
    if seconds < 1:
        raise RequestError(f"--peer-seconds is {seconds}; give 1 or more")
    if args.html:
        page.require_plots()
    with ExitStack() as stack:
        file = stack.enter_context(writing_file(args.json)) if args.json else None
        html = stack.enter_context(writing_file(args.html)) if args.html else None
        manifest = read_manifest(args.bundle)
        field = enlist(args.peers, manifest, args.peer_program, args.peer_model)
        for reason in field.left_out:
            say(reason)
        if field.entrants:
            require_comparable(plan.temperature, args.provider, manifest)
        model, found = begin(args.bundle, args.provider, plan.methods)
        threads = found.profile.threads if found.profile else physical_cores()
        records, runs = [], plan.runs + len(field.entrants) * plan.runs // len(plan.methods)
        with progress() as show:
            show("measure", 0, runs)
            own = measure(model, plan, found.meter)
            took = take_turns(own, plan, model, field.entrants, threads, seconds=seconds)
            for record in took:
                records.append(record)
                show("measure", len(records), runs)
        result = document(found, plan, records)
        if field.entrants:
            result["options"]["peer_seconds"] = seconds
        for columns in (SPEED, STEPS):
            table(header(columns, result["summary"]), rows(columns, result["summary"]))
            print()
        print(around(result))
        for line in lines(records, field.entrants):
            print(line)
        line = last_line(result)
        print(line)
        if file:
            file.write(line + "\n")
        if html:
            html.write(page.page(result))
    ours = {name: result["summary"][name] for name in plan.methods}
    if failed := list(failures(args.gate, ours)):
        raise CheckError(f"gate {'; gate '.join(failed)}")
    return 0


def _names(argument: str) -> tuple[str, ...]:
    names = tuple(name for name in argument.split(",") if name)
    if not names:
        raise argparse.ArgumentTypeError("give one name or more, with commas between them")
    return names


def _pair(argument: str) -> tuple[str, str]:
    name, _, path = argument.partition("=")
    if not (name and path):
        raise argparse.ArgumentTypeError(f"{argument!r} is not of the form llama.cpp=PATH")
    return name, path


def _gate(argument: str) -> Gate:
    gate = parse(argument)
    if gate is None:
        raise argparse.ArgumentTypeError(f"{argument!r} is not of the form speedup>=1.3")
    return gate
