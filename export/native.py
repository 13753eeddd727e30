"""Weights and nodes for the native kernels, domain `specrt`.

GGUF types of 4 or 8 bits keep their codes and steps: Q4_0, Q4_1 and Q8_0 exactly, Q4_K with each
step and minimum rounded to float16. All others are rounded to 8 bits. runtime/native/packed.h says
how they lie in the file; the two change together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specrt.export.source import Tensor
from specrt.export.writer import GraphWriter
from specrt.runtime.errors import SourceError
from specrt.runtime.native import DOMAIN

FOUR, FOUR_MINIMUM, EIGHT = range(3)
MAGIC, HEADER, MOST = 0x31515053, 64, 6  # most matrices of one constant
TILE, UNIT, BLOCK = 16, 64, 32
UNIT_BYTES = {FOUR: 576, FOUR_MINIMUM: 640, EIGHT: 1088}
ZERO = {FOUR: 8, FOUR_MINIMUM: 0, EIGHT: 128}  # the code of padding, whose steps are 0
KIND = {"Q4_0": FOUR, "Q4_1": FOUR_MINIMUM, "Q4_K": FOUR_MINIMUM}
CHUNK = 1 << 20  # weights in work at a time
ACTIVATIONS = {"silu": 0, "gelu": 1}


@dataclass(frozen=True, slots=True)
class Codes:
    """Rows of one kind: codes uint8 (rows, cols), steps and minimums float16 (rows, blocks)."""

    kind: int
    codes: np.ndarray
    steps: np.ndarray
    minimums: np.ndarray | None = None


def pack(tensors: Sequence[Tensor]) -> np.ndarray:
    """The tensors, one below the other, as one constant: (bytes,) uint8.

    SourceError if a weight is not finite, or its step too large for float16.
    """
    cols = tensors[0].shape[-1]
    if len(tensors) > MOST or any(tensor.shape[-1] != cols for tensor in tensors):
        raise SourceError(f"{tensors[0].name} and its neighbours cannot be packed side by side")
    units, kinds = -(-cols // UNIT), [KIND.get(tensor.kind, EIGHT) for tensor in tensors]
    sizes = [
        -(-tensor.shape[0] // TILE) * units * UNIT_BYTES[kind]
        for tensor, kind in zip(tensors, kinds, strict=True)
    ]
    packed = np.zeros(HEADER + sum(sizes), np.uint8)
    header = [MAGIC, cols, len(tensors)]
    at = HEADER
    for tensor, kind, size in zip(tensors, kinds, sizes, strict=True):
        header += [tensor.shape[0], kind]
        tiles = packed[at : at + size].reshape(-1, units, UNIT_BYTES[kind])
        for first, codes in _chunks(tensor):
            part = _tiles(codes, units)
            tiles[first // TILE : first // TILE + len(part)] = part
        at += size
    packed[: 4 * len(header)] = np.array(header, "<u4").view(np.uint8)
    return packed


def linear(graph: GraphWriter, x: str, name: str, tensors: Sequence[Tensor], bias: str = "") -> str:
    """x (1, S, cols) times the transposed weights plus bias: (1, S, rows of all tensors)."""
    return graph.call("MatMul", x, _constant(graph, name, tensors), bias, domain=DOMAIN)


def embedding(graph: GraphWriter, ids: str, name: str, tensor: Tensor) -> str:
    """Rows `ids` (1, S) of the table: (1, S, cols). Shares the constant of a tied head."""
    return graph.call("Embedding", ids, _constant(graph, name, [tensor]), domain=DOMAIN)


def gate(graph: GraphWriter, gate_up: str, activation: str) -> str:
    """activation(first half) times second half of each row; "silu", or "gelu" in its tanh form."""
    return graph.call("Gate", gate_up, activation=ACTIVATIONS[activation], domain=DOMAIN)


def norm(graph: GraphWriter, x: str, weight: str, epsilon: float) -> str:
    """RMS norm of each row."""
    return graph.call("RMSNorm", x, weight, epsilon=epsilon, domain=DOMAIN)


def add_norm(
    graph: GraphWriter, x: str, update: str, weight: str, epsilon: float
) -> tuple[str, str]:
    """RMS norm of x + update, and x + update itself."""
    inputs = [x, weight, update]
    normed, total = graph.node("RMSNorm", inputs, 2, epsilon=epsilon, domain=DOMAIN)
    return normed, total


def _constant(graph: GraphWriter, name: str, tensors: Sequence[Tensor]) -> str:
    return name if graph.has(name) else graph.constant(name, pack(tensors))


def _chunks(tensor: Tensor) -> Iterator[tuple[int, Codes]]:
    """Some whole tiles of rows at a time, with the first row."""
    step = max(1, CHUNK // tensor.shape[-1] // TILE) * TILE
    for first in range(0, tensor.shape[0], step):
        codes = _codes(tensor, first, min(first + step, tensor.shape[0]))
        if not np.isfinite(codes.steps).all() or (
            codes.minimums is not None and not np.isfinite(codes.minimums).all()
        ):
            raise SourceError(f"tensor {tensor.name} has weights that float16 steps cannot hold")
        yield first, codes


def _codes(tensor: Tensor, start: int, stop: int) -> Codes:
    raw = tensor.raw[start:stop]
    if tensor.kind == "Q4_0":
        blocks = raw.reshape(len(raw), -1, 18)
        return Codes(FOUR, _nibbles(blocks[..., 2:]), _halves(blocks[..., :2]))
    if tensor.kind == "Q4_1":
        blocks = raw.reshape(len(raw), -1, 20)
        steps, least = _halves(blocks[..., :2]), _halves(blocks[..., 2:4])
        return Codes(FOUR_MINIMUM, _nibbles(blocks[..., 4:]), steps, -least)
    if tensor.kind == "Q8_0":
        blocks = raw.reshape(len(raw), -1, 34)
        codes = (blocks[..., 2:] ^ np.uint8(128)).reshape(len(raw), -1)
        return Codes(EIGHT, codes, _halves(blocks[..., :2]))
    if tensor.kind == "Q4_K":
        return _q4_k(raw.reshape(len(raw), -1, 144))
    return _eight(tensor.float32(start, stop))


def _q4_k(blocks: np.ndarray) -> Codes:
    """Blocks of 256: two float16 scales of eight 6-bit steps and minimums, then 128 bytes."""
    rows = len(blocks)
    scale, least = (_halves(blocks[..., i : i + 2]).astype(np.float32) for i in (0, 2))
    low, high, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    steps = np.concatenate([low & 63, rest & 15 | low >> 6 << 4], -1)
    minimums = np.concatenate([high & 63, rest >> 4 | high >> 6 << 4], -1)
    codes = _nibbles(blocks[..., 16:].reshape(rows, -1, 32))
    with np.errstate(over="ignore"):
        return Codes(
            FOUR_MINIMUM,
            codes,
            (scale[..., None] * steps).astype(np.float16).reshape(rows, -1),
            (least[..., None] * minimums).astype(np.float16).reshape(rows, -1),
        )


def _eight(weights: np.ndarray) -> Codes:
    """Rounded to 8 bits in blocks of 32: (rows, cols) float32."""
    rows, cols = weights.shape
    blocks = np.pad(weights, ((0, 0), (0, -cols % BLOCK))).reshape(rows, -1, BLOCK)
    with np.errstate(over="ignore"):
        steps = (np.abs(blocks).max(-1) / np.float32(127)).astype(np.float16)
    divisors = np.where(steps > 0, steps, np.float16(1)).astype(np.float32)[..., None]
    rounded = np.clip(np.rint(blocks / divisors), -127, 127)
    codes = (rounded + 128).astype(np.uint8).reshape(rows, -1)[:, :cols]
    return Codes(EIGHT, codes, steps)


def _nibbles(blocks: np.ndarray) -> np.ndarray:
    """Bytes of blocks, low halves before high halves: (rows, blocks, n) -> (rows, cols)."""
    return np.concatenate([blocks & 15, blocks >> 4], -1).reshape(len(blocks), -1)


def _halves(blocks: np.ndarray) -> np.ndarray:
    """The float16 in two bytes: (rows, blocks, 2) -> (rows, blocks)."""
    return np.ascontiguousarray(blocks).view(np.float16)[..., 0]


def _tiles(rows: Codes, units: int) -> np.ndarray:
    """In the order of the kernels: (tiles, units, unit bytes)."""
    tiles = -(-len(rows.codes) // TILE)

    def whole(values: np.ndarray, cols: int, filler: int = 0) -> np.ndarray:
        ends = (tiles * TILE - values.shape[0], cols - values.shape[1])
        return np.pad(values, [(0, end) for end in ends], constant_values=filler)

    codes = whole(rows.codes, units * UNIT, ZERO[rows.kind])
    if rows.kind == EIGHT:
        lines = codes.reshape(tiles, TILE, units, 16, 4)
    else:
        pairs = codes.reshape(tiles, TILE, units, 8, 2, 4)
        lines = pairs[..., 0, :] | pairs[..., 1, :] << 4
    parts = [lines.transpose(0, 2, 3, 1, 4).reshape(tiles, units, -1)]
    for values in (rows.steps, rows.minimums):
        if values is not None:
            half = whole(values, 2 * units).reshape(tiles, TILE, units, 2).transpose(0, 2, 3, 1)
            parts.append(np.ascontiguousarray(half).view(np.uint8).reshape(tiles, units, -1))
    return np.concatenate(parts, -1)
