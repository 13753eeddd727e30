"""`specrt verify`: the losslessness certificate of a bundle on this device."""

import argparse
import json
from contextlib import ExitStack
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
    from specrt.console import progress, verdicts
    from specrt.export.check import Limits, check_graph
    from specrt.runtime.writing import writing_file

    manifest = read_manifest(args.bundle)
    names = tuple(args.drafter or ("ngram", *(each.name for each in manifest.drafters)))
    prompts = _prompts(args.prompts)
    Plan(prompts, names, args.tokens, args.seed)  # is it usable?
    with ExitStack() as stack:
        to_file = args.json not in (None, "-")
        file = stack.enter_context(writing_file(Path(args.json))) if to_file else None
        with progress() as show:
            show("hashes", 0, 1)
            check_hashes(args.bundle, manifest.files, up_to=None)
            show("hashes", 1, 1)
            model = specrt.load(args.bundle, drafter=names[0], provider=args.provider)
            plan = Plan(_fitting(prompts, model, args), names, args.tokens, args.seed)
            show("texts", 0, plan.texts)
            findings = certify(model, plan, lambda done, of: show("texts", done, of))
            tokens = model.encode(" ".join(prompt.prompt for prompt in prompts))
            del model
            parts = 1 + len(manifest.drafters)
            show("graphs", 0, parts)
            checked = graphs(
                args.bundle,
                manifest,
                args.provider,
                tokens,
                lambda session, ids: check_graph(session, ids, Limits(rows=0.0, tree=0.1)),
            )
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


def _prompts(file: str | None) -> tuple[Any, ...]:
    from specrt.bench.suite import KINDS, load_suites

    if file:
        return load_suites([file])
    return tuple(prompt for kind in KINDS for prompt in load_suites([kind])[:_OF_EACH_KIND])


def _fitting(prompts: tuple[Any, ...], model: Any, args: argparse.Namespace) -> tuple[Any, ...]:
    """One's own prompts must fit the context; of ours those that do are taken."""
    if args.prompts:
        return prompts
    context = model.manifest.model.context
    fitting = tuple(p for p in prompts if len(model.prompt_ids(p.prompt)) + args.tokens <= context)
    if not fitting:
        raise RequestError(
            f"none of our prompts and {args.tokens} tokens fit the context of {context}: give "
            "shorter ones with --prompts, or fewer --tokens"
        )
    return fitting
