"""From a checkpoint to a bundle: read, pack, write the graph, check it, measure it, deliver.

Nothing is delivered that failed a check, and nothing half written is left behind.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import specrt.runtime.bundle as bundle
from specrt.export.check import check_graph
from specrt.export.flavour import CPU, Flavour, find_flavour
from specrt.export.graph import write_decoder
from specrt.export.quality import GOOD, measure, sample_length, sample_text
from specrt.export.quantize import Packed
from specrt.export.reference import reference_logits
from specrt.export.source import Checkpoint, model_info, open_draft, open_source
from specrt.models.decoder import layer_weights
from specrt.runtime import native
from specrt.runtime.errors import SourceError
from specrt.runtime.session import Session
from specrt.runtime.version import VERSION
from specrt.runtime.writing import writing

Progress = Callable[[str, int, int], None]  # stage, done, total
TABLES = ("model.embed_tokens.weight", "lm_head.weight")


class Packer:
    """A checkpoint's weights in one format (`graph.Weights`), counted as they are packed."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        format: str,
        counted: Callable[[], None],
        flavour: Flavour = CPU,
    ) -> None:
        self._checkpoint, self._format, self._counted = checkpoint, format, counted
        self._flavour = flavour
        self._tables: dict[str, Packed] = {}

    def packed(self, names: Sequence[str]) -> Packed:
        if names[0] in self._tables:  # a tied head
            return self._tables[names[0]]
        tensors = [self._checkpoint.tensor(name) for name in names]
        is_table = names[0] in TABLES
        packed = (self._flavour.table if is_table else self._flavour.pack)(tensors, self._format)
        if is_table and self._checkpoint.config.tied:
            self._tables[names[0]] = packed
        self._counted()
        return packed

    def vector(self, names: Sequence[str]) -> np.ndarray:
        return np.concatenate([self._checkpoint.tensor(name).float32() for name in names])


def export(
    source: str | Path,
    out: str | Path,
    *,
    drafts: Sequence[str | Path] = (),
    weights: str | None = None,
    context: int | None = None,
    flavour: str = "cpu",
    kernels: str | None = None,
    cache: str | None = None,
    check: bool = True,
    progress: Progress | None = None,
) -> bundle.Manifest:
    """Export a checkpoint, and drafts with the same tokenizer, into the bundle `out`.

    source, drafts: a GGUF file, a Hugging Face folder or a hub id; source may also be a decoder
    that another exporter made (see foreign.py), which is then run as it is. weights: fp32, fp16,
    int8, int4, carried or w8a8; None takes the smallest whose mean KL to the checkpoint is at most
    GOOD, int4 for drafts, and fp16 for the GPU flavours. flavour: what the graphs are written for.
    kernels: native or stock; None takes native ones where there are any (see flavour.py). cache: of
    keys and values in native graphs, float16 or int8, the drafts' too; None takes float16, for fp32
    weights float32. context: most tokens of a text, None = the model's own limit. Raises
    SourceError for a checkpoint that cannot be used, CheckError for a graph that fails, BundleError
    if `out` cannot be written, ProviderError if native kernels are asked for that this installation
    cannot run.
    """
    from specrt.export.foreign import export_foreign, find_graph  # which builds on this file

    if (graph := find_graph(source)) is not None:
        if drafts or weights or kernels or cache or flavour != "cpu":
            raise SourceError(
                f"{graph.name} is a finished graph and is run as it is: "
                "leave out --draft, --weights and --flavour, --cache and --kernels"
            )
        return export_foreign(graph, out, context=context, check=check, progress=progress)
    step = progress or (lambda stage, done, total: None)
    made_for = find_flavour(flavour, kernels, weights, cache)
    if cache:
        made_for = made_for.with_cache(cache)
    if check and made_for.kernels == "native":
        native.path()  # or ProviderError now, not after the work
    target = open_source(source, context)
    names = ["draft", *(f"draft{i}" for i in range(2, len(drafts) + 1))]
    models = {name: open_draft(draft, context) for name, draft in zip(names, drafts, strict=False)}
    for name, draft in models.items():
        check_same_tokens(target, draft, name)
    with writing(out) as folder:
        target.tokenizer().save(str(folder / "tokenizer.json"))
        template = None
        if target.chat_template:
            (folder / "chat_template.jinja").write_text(target.chat_template, encoding="utf-8")
            template = bundle.describe(folder, "chat_template.jinja", "chat_template")
        written = _deliver(folder, "target", target, weights, made_for, check, step)
        drafters = []
        for name, draft in models.items():
            path = f"drafters/{name}"
            part = _deliver(folder, path, draft, weights or made_for.draft, made_for, check, step)
            drafters.append(
                bundle.DrafterInfo(
                    name=name,
                    kind="draft",
                    path=path,
                    model=model_info(draft),
                    weights=part.format,
                    source=bundle.Source(**draft.origin),
                    graphs=part.files,
                    checks=part.checks,
                )
            )
        manifest = bundle.Manifest(
            format=bundle.FORMAT,
            name=Path(out).name,
            created_by=f"specrt {VERSION}",
            source=bundle.Source(**target.origin),
            model=model_info(target),
            weights=written.format,
            flavour=flavour,
            kernels=made_for.kernels,
            cache=made_for.formats[written.format].cache_name,
            graphs=written.files,
            tokenizer=bundle.describe(folder, "tokenizer.json", "tokenizer"),
            chat_template=template,
            generation=target.generation,
            drafters=tuple(drafters),
            checks=written.checks,
        )
        (folder / bundle.MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


@dataclass(frozen=True, slots=True)
class Part:
    """One graph as delivered."""

    format: str
    files: tuple[bundle.BundleFile, ...]
    checks: Mapping[str, Any]


def _deliver(
    folder: Path,
    path: str,
    model: Checkpoint,
    weights: str | None,
    flavour: Flavour,
    check: bool,
    step: Progress,
) -> Part:
    """Write and check the graph of one model, in the wanted format or the smallest good one."""
    tokens = model.tokenizer().encode(sample_text(), add_special_tokens=False).ids
    tokens = tokens[: sample_length(model.config.vocab, model.config.context)]
    reference = None
    if check:
        reference = reference_logits(model, tokens, lambda i, n: step(f"{path}: reference", i, n))
    for format in [weights] if weights else flavour.candidates(matrix_types(model)):
        shutil.rmtree(folder / path, ignore_errors=True)
        nodes = _write(folder / path, path, model, format, flavour, step)
        checks: dict[str, Any] = {"nodes": nodes}
        for name in model.names:
            model.tensor(name).release()
        if reference is None:
            break
        session = Session(
            folder / path / "model.onnx",
            context=model.config.context,
            vocab=model.config.vocab,
            provider="cpu",
        )
        step(f"{path}: checks", 0, 2)
        checks |= check_graph(session, tokens, flavour.formats[format].limits)
        step(f"{path}: checks", 1, 2)
        quality = measure(session, tokens, reference)
        checks["quality"] = asdict(quality)
        step(f"{path}: checks", 2, 2)
        del session
        if quality.kl <= GOOD:
            break
    files = (
        bundle.describe(folder, f"{path}/model.onnx", "decoder"),
        bundle.describe(folder, f"{path}/model.onnx.data", "weights"),
    )
    return Part(format, files, checks)


def _write(
    folder: Path, path: str, model: Checkpoint, format: str, flavour: Flavour, step: Progress
) -> int:
    """Write one graph; returns its number of nodes."""
    total, done = len(layer_weights(model.config, 0)) * len(model.config.layers) + 2, 0
    total -= model.config.tied

    def counted() -> None:
        nonlocal done
        done += 1
        step(f"{path}: packing {format}", done, total)

    made = flavour.formats[format]
    return write_decoder(
        folder,
        model.config,
        Packer(model, format, counted, flavour),
        flavour=flavour,
        dtype=made.dtype,
        cache=made.cache,
    )


def matrix_types(model: Checkpoint) -> set[str]:
    """What the checkpoint's matrices are stored as."""
    tensors = [model.tensor(name) for name in model.names]
    return {tensor.kind for tensor in tensors if len(tensor.shape) == 2}


def check_same_tokens(target: Checkpoint, draft: Checkpoint, name: str) -> None:
    """SourceError unless every token id means the same text to both models."""
    ours, theirs = _texts(target), _texts(draft)
    for token in sorted(ours.keys() | theirs.keys()):
        if ours.get(token) != theirs.get(token):
            raise SourceError(
                f"{name} has another tokenizer: token {token} is {theirs.get(token)!r}, the "
                f"target's is {ours.get(token)!r}; a draft must share the target's tokenizer"
            )


def _texts(model: Checkpoint) -> dict[int, str]:
    return {token: text for text, token in model.tokenizer().get_vocab().items()}
