"""The recorded tiny llama with one thing changed, as a Hugging Face folder to export."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

LLAMA = Path(__file__).parent / "golden" / "models" / "llama"
VOCAB = 272
TABLES = ("model.embed_tokens.weight", "lm_head.weight")

Tensors = dict[str, np.ndarray]
Change = Callable[[Tensors], None]


def variant(
    folder: Path,
    *changes: Change,
    config: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
) -> Path:
    """The model in `folder`, its tensors in float32, with other settings where they are given."""
    shutil.copytree(LLAMA, folder, ignore=shutil.ignore_patterns("golden.npz", "*.safetensors*"))
    for name, more in (("config.json", config), ("generation_config.json", generation)):
        held = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**held, **(more or {})}))
    tensors = {k: v for part in LLAMA.glob("*.safetensors") for k, v in load_file(part).items()}
    for change in changes:
        change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def padded(vocab: int, tempting: Sequence[int]) -> Change:
    """Ids from VOCAB to `vocab` that mean nothing, and that the head wants five times as much as
    the tokens `tempting`: where one of these is likely, a padding id is likelier."""

    def change(tensors: Tensors) -> None:
        more = [tempting[i % len(tempting)] for i in range(vocab - VOCAB)]
        for name in TABLES:
            table = tensors[name]
            tensors[name] = np.concatenate([table, 5 * table[more]])

    return change


def readable(tensors: Tensors) -> None:
    """Only printable ASCII is ever likely, so no text ends by itself."""
    tokenizer = Tokenizer.from_file(str(LLAMA / "tokenizer.json"))
    for token in range(VOCAB):
        text = tokenizer.decode([token])
        if not (text.isascii() and text.isprintable() and text):
            tensors["lm_head.weight"][token] = 0


def noisy(size: float) -> Change:
    """Weights off by random errors, relative to their spread: a draft that is often wrong."""

    def change(tensors: Tensors) -> None:
        rng = np.random.default_rng(11)
        for name, held in tensors.items():
            if held.ndim > 1:
                error = rng.standard_normal(held.shape, np.float32)
                tensors[name] = held + np.float32(size * held.std()) * error

    return change
