"""`specrt verify`: the losslessness certificate of a bundle on this device."""

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from specrt.commands.options import add_command, add_provider
from specrt.runtime.bundle import check_hashes, read_manifest
from specrt.runtime.errors import CheckError, RequestError

_OF_EACH_KIND = 2  # of the prompts that come with the package


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "verify",
        run,
        arguments="BUNDLE [options]",
        does="prove that drafts change no text: a certificate, exit code 0 if every claim holds",
        examples=(
            "specrt verify bundle\n"
            "specrt verify bundle --drafter draft --prompts mine.jsonl --tokens 128\n"
            "specrt verify bundle --json certificate.json"
        ),
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="an exported folder")
    add = parser.add_argument
    add("--drafter", metavar="D", action="append", help="may be given again (each there is)")
    add("--prompts", metavar="FILE", help="FILE.jsonl as for specrt bench (10 of ours)")
    add("--tokens", type=int, metavar="N", default=32, help="of each text (32)")
    add("--seed", type=int, metavar="S", default=0, help="of the draws (0)")
    add_provider(parser)
    add(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write the certificate as JSON (stdout)",
    )


def run(args: argparse.Namespace) -> int:
    import specrt
    from specrt.bench.certificate import Plan, certify, document, graphs
    from specrt.bench.suite import load_suites
    from specrt.console import progress, verdicts
    from specrt.runtime.writing import writing_file

    manifest = read_manifest(args.bundle)
    names = tuple(args.drafter or ("ngram", *(each.name for each in manifest.drafters)))
    ours = _ours()
    plan = Plan(
        load_suites([args.prompts]) if args.prompts else ours, names, args.tokens, args.seed
    )
    with ExitStack() as stack:
        to_file = args.json not in (None, "-")
        file = stack.enter_context(writing_file(Path(args.json))) if to_file else None
        check_hashes(args.bundle, manifest.files, up_to=None)
        model = specrt.load(args.bundle, provider=args.provider, tune="auto" in names)
        for name in names:
            model.generate([0], drafter=name, max_tokens=1)  # is it there?
        plan = replace(plan, prompts=_fitting(plan.prompts, model, args))
        text = model.encode(" ".join(prompt.prompt for prompt in ours))
        parts = 1 + len(manifest.drafters)
        with progress() as show:
            show("texts", 0, plan.texts)
            findings = certify(model, plan, lambda done, of: show("texts", done, of))
            del model
            show("graphs", 0, parts)
            checked = graphs(args.bundle, manifest, args.provider, text, _check)
            for done, finding in enumerate(checked, start=1):
                findings.append(finding)
                show("graphs", done, parts)
        certificate = document(args.bundle, manifest, plan, findings)
        if args.json == "-":
            print(json.dumps(certificate))
        else:
            verdicts(findings)
        if file:
            file.write(json.dumps(certificate, indent=1) + "\n")
    if failed := [finding for finding in findings if not finding.holds]:
        why = certificate["uneven"]
        raise CheckError(
            f"{len(failed)} of {len(findings)} claims do not hold: text with drafts may not be "
            f"text without{f'; {why}' if why else ''}"
        )
    return 0


def _ours() -> tuple[Any, ...]:
    from specrt.bench.suite import KINDS, load_suites

    return tuple(prompt for kind in KINDS for prompt in load_suites([kind])[:_OF_EACH_KIND])


def _fitting(prompts: tuple[Any, ...], model: Any, args: argparse.Namespace) -> tuple[Any, ...]:
    """One's own prompts must all fit the context; of ours, those that do are taken."""
    context = model.manifest.model.context
    fitting = tuple(p for p in prompts if len(model.prompt_ids(p.prompt)) + args.tokens <= context)
    if not fitting or (args.prompts and fitting != prompts):
        raise RequestError(
            f"{len(prompts) - len(fitting)} of {len(prompts)} prompts and {args.tokens} tokens do "
            f"not fit the context of {context}: give shorter ones with --prompts, or fewer --tokens"
        )
    return fitting


def _check(session: Any, tokens: Sequence[int]) -> Mapping[str, Any]:
    """Bit for bit in blocks of any size; a tree sums in another order, which 8 bits amplify."""
    from specrt.export.check import Limits, check_graph

    return check_graph(session, tokens, Limits(rows=0.0, tree=0.1))
