"""Graphs of the recorded tiny models, written on the spot, and the text they are asked about."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from golden.cases import CASES

from specrt.export.build import Packer
from specrt.export.flavour import CPU, Flavour
from specrt.export.graph import Outputs, Weights, write_decoder
from specrt.export.quantize import Packed
from specrt.export.source import Checkpoint, open_source
from specrt.models.config import DecoderConfig
from specrt.runtime.session import Session

MODELS = Path(__file__).parent / "golden" / "models"
NAMES = sorted(CASES)
WINDOWS = ("gemma3", "mistral", "phi3", "qwen2-window")
NO_MORE = Outputs()
ORIGINAL_CONTEXT = {"phi3-longrope": 64}  # its short text was read within this context


def checkpoint(name: str, context: int | None = None) -> Checkpoint:
    return open_source(MODELS / name, context or ORIGINAL_CONTEXT.get(name))


def golden(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The recorded text (48,) and its logits (48, V)."""
    held = np.load(MODELS / name / "golden.npz")
    return held["tokens"], held["logits"]


def opened(folder: Path, config: DecoderConfig) -> Session:
    return Session(folder / "model.onnx", context=config.context, vocab=config.vocab, threads=1)


@dataclass(frozen=True)
class Written:
    """Where a graph was written and of how many nodes."""

    folder: Path
    config: DecoderConfig
    nodes: int

    def session(self) -> Session:
        return opened(self.folder, self.config)


def written(
    folder: Path,
    name: str,
    flavour: Flavour = CPU,
    *,
    weights: str | Weights = "fp32",
    dtype: type[np.generic] = np.float32,
    cache: type[np.generic] | None = None,
    outputs: Outputs = NO_MORE,
) -> Written:
    """The graph of a recorded model. weights: a format, or the weights themselves."""
    model = checkpoint(name)
    if isinstance(weights, str):
        weights = Packer(model, weights, lambda: None, flavour)
    nodes = write_decoder(
        folder, model.config, weights, flavour=flavour, dtype=dtype, cache=cache, outputs=outputs
    )
    return Written(folder, model.config, nodes)


class Dequantised:
    """Weights in float32 that are exactly what a format stands for."""

    def __init__(self, name: str, format: str, flavour: Flavour = CPU) -> None:
        self._packer = Packer(checkpoint(name), format, lambda: None, flavour)

    def packed(self, names: Sequence[str]) -> Packed:
        packed = self._packer.packed(names)
        return Packed("fp32", packed.rows, packed.cols, packed.float32(), np.empty(0))

    def vector(self, names: Sequence[str]) -> np.ndarray:
        return self._packer.vector(names)


def read(session: Session, tokens: np.ndarray, block: int) -> np.ndarray:
    """Logits of every token (n, V), read from an empty cache, `block` at a time."""
    session.keep(0)
    parts = [tokens[i : i + block] for i in range(0, len(tokens), block)]
    return np.concatenate([session.forward(part, last=len(part)).logits for part in parts])


def paths(parents: Sequence[int]) -> list[list[int]]:
    """For each node of a tree, the nodes from the root down to it."""
    found: list[list[int]] = []
    for node, parent in enumerate(parents):
        found.append([*(found[parent] if parent >= 0 else []), node])
    return found


def worst(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max())
