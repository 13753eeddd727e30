"""`specrt inspect`: what is in a bundle."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specrt.commands.options import add_command, line
from specrt.runtime import native
from specrt.runtime.bundle import (
    BundleFile,
    Manifest,
    ModelInfo,
    Source,
    check_hashes,
    read_manifest,
)
from specrt.runtime.errors import ProviderError
from specrt.runtime.evenness import unevenness


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "inspect",
        run,
        arguments="BUNDLE [options]",
        does="show what is in a bundle",
        examples="specrt inspect bundle\nspecrt inspect bundle --hashes",
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="an exported folder")
    parser.add_argument("--hashes", action="store_true", help="compare every file's SHA-256")
    parser.add_argument("--json", action="store_true", help="print the manifest as JSON")


def run(args: argparse.Namespace) -> int:
    manifest = read_manifest(args.bundle)
    if args.hashes:
        check_hashes(args.bundle, manifest.files, up_to=None)
    if args.json:
        print(manifest.to_json(), end="")
        return 0
    for told in describe(args.bundle, manifest):
        print(told)
    if args.hashes:
        print(line("hashes", f"all {len(manifest.files)} files are as exported"))
    return 0


def describe(folder: Path, manifest: Manifest) -> Iterator[str]:
    """A bundle in lines of text."""
    yield line("bundle", f"{folder} ({manifest.name}, by {manifest.created_by})")
    yield from _model(manifest.source, manifest.model, manifest.weights, manifest.graphs)
    yield line("flavour", manifest.flavour)
    yield line("kernels", _kernels(manifest))
    if manifest.cache:
        yield line("cache", manifest.cache)
    yield line(
        "template", "yes" if manifest.chat_template else "none, prompts are used as they are"
    )
    yield from _checks(manifest.checks)
    why = unevenness(manifest)
    yield line("drafts", f"may change near ties: {why}" if why else "leave the text as it is")
    for drafter in manifest.drafters:
        yield line("drafter", f"{drafter.name} ({drafter.kind})")
        lines = [
            *_model(drafter.source, drafter.model, drafter.weights, drafter.graphs),
            *_checks(drafter.checks),
        ]
        yield from (f"  {each}" for each in lines)


def _kernels(manifest: Manifest) -> str:
    """Which kernels the graphs have, and what is to be said of native ones on this machine."""
    if manifest.kernels == "stock":
        lacking = manifest.flavour == "cpu" and native.find() is None
        return "stock" + lacking * ", since this installation has no native ones"
    try:
        return f"native, {native.path()} instructions on this machine"
    except ProviderError as error:
        return f"native; {error}"


def _model(
    source: Source, model: ModelInfo, weights: str, graphs: Sequence[BundleFile]
) -> Iterator[str]:
    yield line("source", f"{source.kind} {source.name}, licence {source.licence or 'not stated'}")
    yield line(
        "model",
        f"{model.architecture}, {model.layers} layers, hidden {model.hidden}, {model.heads} heads "
        f"({model.kv_heads} kv) of {model.head_dim}, vocabulary {model.vocab}, "
        f"context {model.context}",
    )
    size = sum(graph.size for graph in graphs)
    yield line("weights", f"{weights}, {size / 1e6:.1f} MB in {len(graphs)} files")


def _checks(checks: Mapping[str, Any]) -> Iterator[str]:
    for name, value in checks.items():
        yield line("check", f"{name} {json.dumps(value)}")
