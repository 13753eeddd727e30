"""A decoder folder of another exporter (optimum-onnx, onnxruntime-genai) as a bundle, run as it is.

The graph and its data are copied unchanged: chains only, no change of weights, no drafts. Checked
is what speculation needs: logits of every row, a cache that can be rolled back, and the same text
whatever it is cut into. Where rows depend on their block (graphs quantised dynamically), that is
no reason to refuse the model: `checks.rows.rms` in the manifest says how much. Where it is 0,
speculative greedy text equals plain text; above 0 that is not promised. Dynamic int8 of
SmolLM2-135M: 0.16 of the spread of the logits, and 0.83 between the whole text and its parts.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import specrt.runtime.bundle as bundle
from specrt.export.build import Progress
from specrt.export.check import MOST_ROWS, PREFIX, Limits, check_graph
from specrt.export.foreign_graph import ForeignGraph, read_graph
from specrt.export.quality import sample_text
from specrt.export.source import model_info
from specrt.export.source_hf import FolderCheckpoint, read_json
from specrt.models.config import DecoderConfig, Layer
from specrt.models.fields import Fields, UnsupportedError
from specrt.runtime.errors import BundleError, CheckError, SourceError
from specrt.runtime.foreign import ForeignSession
from specrt.runtime.version import VERSION
from specrt.runtime.writing import writing

USUAL = ("model.onnx", "decoder_model_merged.onnx", "decoder_with_past_model.onnx")  # best first
OTHER_NAMES = {  # ours, which are those of llama's config.json → those of others
    "head_dim": ("head_size",),
    "hidden_size": ("n_embd", "d_model"),
    "max_position_embeddings": ("context_length", "n_positions", "n_ctx", "max_seq_len"),
    "model_type": ("type",),
    "num_attention_heads": ("n_head", "n_heads"),
}
ROUNDED = 0.1  # rms over the spread of the logits; 0.05 seen where 8-bit rounding amplifies kernels
LONGEST_PROBE = 1024  # most tokens read to see whether a sliding window forgets
ROWS = 64  # read at once for that


def find_graph(source: str | Path) -> Path | None:
    """The decoder graph that `source` names or holds; None if it is no ONNX file or folder.

    A folder with safetensors is none: from the weights themselves export makes a better graph. Of
    several files the first of USUAL is taken; SourceError if none has such a name.
    """
    path = Path(source).expanduser()
    if path.suffix == ".onnx" and path.is_file():
        return path
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return None
    for place in (path, path / "onnx"):
        if (place / "encoder_model.onnx").is_file():
            raise SourceError(f"{path.name} has an encoder; only decoder-only models are run")
        found = sorted(x.name for x in place.glob("*.onnx"))
        for name in USUAL:
            if name in found:
                return place / name
        if len(found) > 1:
            raise SourceError(f"{path.name} has several graphs; give one: {', '.join(found)}")
        if found:
            return place / found[0]
    return None


def export_foreign(
    path: Path,
    out: str | Path,
    *,
    context: int | None = None,
    check: bool = True,
    progress: Progress | None = None,
) -> bundle.Manifest:
    """Write the decoder graph at `path` and the tokenizer beside it as the bundle `out`.

    Raises SourceError for a graph that cannot be run, CheckError for one that fails, BundleError
    if `out` cannot be written.
    """
    step = progress or (lambda stage, done, total: None)
    graph = read_graph(path)
    model = _checkpoint(graph, context)
    with writing(out) as folder:
        step(f"target: copying {path.name}", 0, 1)
        files = _copy(graph, model.config, folder / "target")
        step(f"target: copying {path.name}", 1, 1)
        reach, checks = _run(graph, model, folder / "target" / "model.onnx", check, step)
        model.tokenizer().save(str(folder / "tokenizer.json"))
        template = None
        if model.chat_template:
            (folder / "chat_template.jinja").write_text(model.chat_template, encoding="utf-8")
            template = bundle.describe(folder, "chat_template.jinja", "chat_template")
        manifest = bundle.Manifest(
            format=bundle.FORMAT,
            name=Path(out).name,
            created_by=f"specrt {VERSION}",
            source=bundle.Source(**{**model.origin, "kind": "optimum"}),
            model=replace(model_info(model), context=reach),
            weights="unchanged",
            flavour="optimum",
            graphs=tuple(bundle.describe(folder, f"target/{x}", role) for x, role in files.items()),
            tokenizer=bundle.describe(folder, "tokenizer.json", "tokenizer"),
            chat_template=template,
            generation=model.generation,
            checks={"graph": path.name, **checks},
        )
        (folder / bundle.MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def _checkpoint(graph: ForeignGraph, context: int | None) -> FolderCheckpoint:
    """Everything about the model but its weights: sizes, tokenizer, template, special tokens."""
    path = graph.path
    places = [x for x in (path.parent, path.parent.parent) if _config(x)]
    if not places:
        raise SourceError(f"{path.name} has no config.json or genai_config.json beside it")
    folder = places[0]
    settings = {
        name: read_json(folder / name)
        for name in ("generation_config.json", "tokenizer_config.json")
    }
    settings["config.json"] = config = _config(folder)
    fields = Fields(config)
    try:
        if fields.flag("is_encoder_decoder"):
            raise UnsupportedError("it has an encoder; only decoder-only models are run")
        trained = fields.size("max_position_embeddings", context)
        if context is not None and context > trained:
            raise UnsupportedError(f"context {context} is longer than the model's {trained} tokens")
        if (limit := context or trained) <= PREFIX:
            raise UnsupportedError(f"context {limit} is too short, at least {PREFIX + 1} is needed")
        hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
        decoder = DecoderConfig(
            architecture=fields.text("model_type"),
            hidden=hidden,
            heads=heads,
            kv_heads=graph.kv_heads or fields.size("num_key_value_heads", heads),
            head_dim=graph.head_dim or fields.size("head_dim", hidden // heads),
            intermediate=0,
            vocab=graph.vocab or fields.size("vocab_size"),
            context=limit,
            layers=(Layer(None, _window(config, limit)),) * graph.layers,
        )
    except UnsupportedError as problem:
        raise SourceError(f"{folder.name}: {problem}") from None
    files = (path, *(path.parent / name for name in graph.data))
    return FolderCheckpoint(folder, files, settings, decoder, {})


def _config(folder: Path) -> dict[str, Any]:
    """The configuration under the names that llama's has; empty if there is none."""
    config = read_json(folder / "config.json")
    if not config:
        config = read_json(folder / "genai_config.json").get("model", {})
    for part in ("text_config", "decoder"):
        if isinstance(config.get(part), dict):
            config = {**config, **config[part]}
    for ours, others in OTHER_NAMES.items():
        held = [config[name] for name in (ours, *others) if config.get(name) is not None]
        config = {**config, **({ours: held[0]} if held else {})}
    return config


def _window(config: Mapping[str, Any], context: int) -> int:
    """Tokens a sliding layer sees, 0 if no layer slides or none ever has to."""
    window = config.get("sliding_window")
    slides = config.get("use_sliding_window") is not False and (
        "sliding_attention" in config.get("layer_types", ["sliding_attention"])
    )
    return window if slides and type(window) is int and 0 < window < context else 0


def _copy(graph: ForeignGraph, config: DecoderConfig, folder: Path) -> dict[str, str]:
    """Write model.onnx and its data; each file's role."""
    folder.mkdir()
    (folder / "model.onnx").write_bytes(graph.with_sizes(config.kv_heads, config.head_dim))
    for name in graph.data:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (graph.path.parent / name).open("rb") as held, (folder / name).open("wb") as copy:
            shutil.copyfileobj(held, copy, 1 << 20)
    return {"model.onnx": "decoder", **dict.fromkeys(graph.data, "weights")}


def _run(
    graph: ForeignGraph, model: FolderCheckpoint, path: Path, check: bool, step: Progress
) -> tuple[int, dict[str, Any]]:
    """Run the copy at path: the longest text it can read, and what the checks found."""
    config = model.config
    sample = model.tokenizer().encode(sample_text(), add_special_tokens=False).ids
    tokens = sample[: min(PREFIX + MOST_ROWS, config.context - 1)]
    try:
        session = ForeignSession(path, context=config.context, vocab=config.vocab)
        session.forward(tokens[:3], last=3)
        context = _reach(session, sample, config)
        return context, _check(session, tokens, graph, step) if check else {}
    except BundleError as problem:
        raise SourceError(f"{graph.path.name}: {problem}".replace(str(path), "it")) from None


def _reach(session: ForeignSession, tokens: Sequence[int], config: DecoderConfig) -> int:
    """The context, or the tokens before the first that a layer with a sliding window forgets."""
    window = config.layers[0].window
    if not window:
        return config.context
    if window > LONGEST_PROBE:
        return window - 1
    session.keep(0)
    try:
        for part in np.array_split(np.resize(tokens, window), 1 + window // ROWS):
            session.forward(part)
    except BundleError:
        return window - 1
    return config.context


def _check(
    session: ForeignSession, tokens: Sequence[int], graph: ForeignGraph, step: Progress
) -> dict[str, Any]:
    """Differences found by the checks for chains; CheckError if the graph is wrong."""
    step("target: checks", 0, 1)
    rows = float("inf") if graph.is_dynamic else ROUNDED
    try:
        found = check_graph(session, tokens, Limits(rows=rows, tree=0.0))
    except CheckError as error:
        raise CheckError(
            f"{graph.path.name}: {error}; it cannot read several tokens at once after others, "
            "export the original checkpoint"
        ) from None
    step("target: checks", 1, 1)
    return found
