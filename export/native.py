"""Weights and nodes for the native kernels, domain `specrt`.

    carried  GGUF types of 4 and 6 bits keep their codes and steps, all else is rounded to 8 bits.
    int4     4-bit GGUF types keep theirs, all else is rounded to 4 bits.
    int8     everything in 8 bits.

Q4_0, Q4_1, Q4_K, Q5_0, Q6_K, Q8_0, and in 8 bits Q4_0 and Q5_0, are kept exactly.
runtime/native/packed.h says how they lie in the file; they change together.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from specrt.export.rounding import search
from specrt.export.source import Tensor
from specrt.export.writer import GraphWriter
from specrt.runtime.errors import SourceError
from specrt.runtime.native import DOMAIN

FOUR, FOUR_MINIMUM, EIGHT, SIX, FOUR_K, SIX_K = range(6)
PACKED = "native"  # the format of a quantize.Packed whose data is what `pack` gives
MAGIC, TURNS, HEADER, MOST = 0x31515053, 0x32515053, 64, 6  # most matrices of one constant
TILE, BLOCK = 16, 32
UNIT = (64, 64, 64, 64, 256, 256)  # columns, by kind
RUN = (32, 32, 32, 16, 32, 16)  # columns of a step
UNIT_BYTES = (576, 640, 1088, 896, 2304, 3360)
ZERO = (8, 0, 128, 32, 0, 32)  # codes of padding; its steps are 0
SIX_BITS = (SIX, SIX_K)
FOURS = {"Q4_0": FOUR, "Q4_1": FOUR_MINIMUM, "Q4_K": FOUR_K}
CARRIED = {**FOURS, "Q5_0": SIX, "Q6_K": SIX_K}
FORMATS: Mapping[str, tuple[Mapping[str, int], int]] = {  # kinds by GGUF type, and of all others
    "carried": (CARRIED, EIGHT),
    "int4": (FOURS, FOUR_MINIMUM),
    "int8": ({}, EIGHT),
}
CHUNK = 1 << 17  # weights in work at a time and thread; they stay in the processor's cache
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}


@dataclass(frozen=True, slots=True)
class Codes:
    """Rows of one kind: codes uint8 (rows, cols), steps and minimums float16 (rows, runs). Those of
    FOUR_K are uint8, those of SIX_K int8, times scales float16 (rows, units, 1 or 2): of a unit's
    steps and minimums."""

    kind: int
    codes: np.ndarray
    steps: np.ndarray
    minimums: np.ndarray | None = None
    scales: np.ndarray | None = None

    @property
    def sizes(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Steps and minimums, float32 (rows, runs)."""
        parts = [None if p is None else p.astype(np.float32) for p in (self.steps, self.minimums)]
        if self.scales is not None:
            wide = np.repeat(self.scales.astype(np.float32), UNIT[self.kind] // RUN[self.kind], 1)
            parts = [None if p is None else p * wide[..., i] for i, p in enumerate(parts)]
        steps, minimums = parts
        assert steps is not None
        return steps, minimums


def pack(tensors: Sequence[Tensor], format: str = "carried") -> np.ndarray:
    """The tensors, one below the other, as one constant: (bytes,) uint8.

    SourceError if a weight is not finite, or its step too large for float16.
    """
    cols = tensors[0].shape[-1]
    if len(tensors) > MOST or any(tensor.shape[-1] != cols for tensor in tensors):
        raise SourceError(f"{tensors[0].name} and its neighbours cannot be packed side by side")
    carried, others = FORMATS[format]
    kinds = [carried.get(tensor.kind, others) for tensor in tensors]
    shapes = [
        (-(-tensor.shape[0] // TILE), -(-cols // UNIT[kind]), UNIT_BYTES[kind])
        for tensor, kind in zip(tensors, kinds, strict=True)
    ]
    packed = np.zeros(HEADER + sum(map(math.prod, shapes)), np.uint8)
    header = [MAGIC, cols, len(tensors)]
    at = HEADER
    for tensor, kind, shape in zip(tensors, kinds, shapes, strict=True):
        header += [tensor.shape[0], kind]
        size = math.prod(shape)
        _fill(packed[at : at + size].reshape(shape), tensor, kind)
        at += size
    packed[: 4 * len(header)] = np.array(header, "<u4").view(np.uint8)
    return packed


def in_turns(packed: np.ndarray) -> np.ndarray:
    """A packed gate and up, one below the other or one matrix, with their tiles in the order in
    which they are read, two of each in turns; as they are, if their kinds differ or a tile is not
    full. From memory a step of one row then reads them 1.16 times as fast."""
    header = packed[:HEADER].view("<u4").copy()
    count, height, kind = map(int, header[2:5])
    turn = 2 * TILE  # rows of each
    alike = count == 1 or (count == 2 and np.array_equal(header[3:5], header[5:7]))
    if not alike or height * count % (2 * turn):
        return packed
    rows = height * count // 2
    header[0], header[2], header[3:7] = TURNS, 2, (rows, kind, rows, kind)
    tiles = packed[HEADER:].reshape(2, rows // turn, -1)
    return np.concatenate([header.view(np.uint8), tiles.transpose(1, 0, 2).reshape(-1)])


def linear(graph: GraphWriter, x: str, weights: str, bias: str = "") -> str:
    """x (1, S, cols) times a packed constant, transposed, plus bias: (1, S, rows)."""
    return graph.call("MatMul", x, weights, bias, domain=DOMAIN)


def embedding(graph: GraphWriter, ids: str, table: str) -> str:
    """Rows `ids` (1, S) of a packed constant: (1, S, cols)."""
    return graph.call("Embedding", ids, table, domain=DOMAIN)


def gate(graph: GraphWriter, gate_up: str, activation: str) -> str:
    """activation(first half) times second half of each row; "silu" or "gelu_tanh"."""
    return graph.call("Gate", gate_up, activation=ACTIVATIONS[activation], domain=DOMAIN)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows (1, S, n) to be normed with a weight: x + update, or x where update is ""."""

    x: str
    update: str
    weight: str
    epsilon: float


def norm_linear(graph: GraphWriter, rows: Rows, inputs: Sequence[str]) -> tuple[str, str]:
    """The normed rows times packed weights plus bias (the inputs), and the sum of the rows."""
    return _of_normed(graph, "MatMul", rows, inputs)


def norm_feed_forward(
    graph: GraphWriter, rows: Rows, inputs: Sequence[str], activation: str
) -> tuple[str, str]:
    """The normed rows times gate and up side by side, the gate's activation times up, times down,
    and the sum of the rows. inputs: packed gate_up and down, their biases."""
    return _of_normed(graph, "FeedForward", rows, inputs, activation=ACTIVATIONS[activation])


def _of_normed(
    graph: GraphWriter, op: str, rows: Rows, inputs: Sequence[str], **attributes: int
) -> tuple[str, str]:
    y, *total = graph.node(
        op,
        [rows.x, *inputs, rows.weight, rows.update],
        2 if rows.update else 1,
        epsilon=rows.epsilon,
        domain=DOMAIN,
        **attributes,
    )
    return y, total[0] if total else rows.x


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


def _fill(tiles: np.ndarray, tensor: Tensor, kind: int) -> None:
    """Write the tensor into tiles (tiles, units, unit bytes), a few at a time on each core."""
    step = max(1, CHUNK // tensor.shape[-1] // TILE)

    def work(first: int) -> None:
        part = tiles[first : first + step]
        stop = min((first + step) * TILE, tensor.shape[0])
        codes = _codes(tensor, first * TILE, stop, kind)
        floats = codes.steps, codes.minimums, codes.scales
        if not all(np.isfinite(part).all() for part in floats if part is not None):
            raise SourceError(f"tensor {tensor.name} has weights that float16 steps cannot hold")
        part[...] = _tiles(codes, tiles.shape[1])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(work, range(0, len(tiles), step)))


def _codes(tensor: Tensor, start: int, stop: int, kind: int | None = None) -> Codes:
    """Rows start to stop; kind None is that of "carried"."""
    kind = CARRIED.get(tensor.kind, EIGHT) if kind is None else kind
    if kept := KEPT.get((tensor.kind, kind)):
        raw = np.ascontiguousarray(tensor.raw[start:stop])
        return kept(raw.reshape(len(raw), -1, BLOCK_BYTES[tensor.kind]))
    return (_eight if kind == EIGHT else _four)(tensor.float32(start, stop))


def _q4_0(blocks: np.ndarray) -> Codes:
    return Codes(FOUR, _nibbles(blocks[..., 2:]), _halves(blocks[..., :2]))


def _q4_0_wide(blocks: np.ndarray) -> Codes:
    codes = _nibbles(blocks[..., 2:]) + np.uint8(128 - 8)
    return Codes(EIGHT, codes, _halves(blocks[..., :2]))


def _q4_1(blocks: np.ndarray) -> Codes:
    steps, least = _halves(blocks[..., :2]), _halves(blocks[..., 2:4])
    return Codes(FOUR_MINIMUM, _nibbles(blocks[..., 4:]), steps, -least)


def _q5_0(blocks: np.ndarray) -> Codes:
    """A float16 step, a fifth bit for each of 32 codes, then their low halves."""
    fifth = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little").reshape(len(blocks), -1)
    codes = (_nibbles(blocks[..., 6:]) | fifth << 4) + np.uint8(32 - 16)
    return Codes(SIX, codes, np.repeat(_halves(blocks[..., :2]), 2, axis=-1))


def _q5_0_wide(blocks: np.ndarray) -> Codes:
    six = _q5_0(blocks)
    return Codes(EIGHT, six.codes + np.uint8(128 - 32), six.steps[:, ::2])


def _q8_0(blocks: np.ndarray) -> Codes:
    codes = (blocks[..., 2:] ^ np.uint8(128)).reshape(len(blocks), -1)
    return Codes(EIGHT, codes, _halves(blocks[..., :2]))


def _q4_k(blocks: np.ndarray) -> Codes:
    """Blocks of 256: two float16 scales of eight 6-bit steps and minimums, then 128 bytes."""
    rows = len(blocks)
    low, high, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    steps = np.concatenate([low & 63, rest & 15 | low >> 6 << 4], -1)
    minimums = np.concatenate([high & 63, rest >> 4 | high >> 6 << 4], -1)
    codes = _nibbles(blocks[..., 16:].reshape(rows, -1, 32))
    scales = np.stack([_halves(blocks[..., i : i + 2]) for i in (0, 2)], -1)
    return Codes(FOUR_K, codes, steps.reshape(rows, -1), minimums.reshape(rows, -1), scales)


def _q6_k(blocks: np.ndarray) -> Codes:
    """Blocks of 256, in two halves of 128: low halves of codes, two high bits of four codes a byte,
    a signed byte for each step of 16, a float16 scale of the steps."""
    rows = len(blocks)
    low, high = blocks[..., :128].reshape(rows, -1, 2, 64), blocks[..., 128:192]
    low = np.concatenate([low & 15, low >> 4], -1)
    quarters = [high.reshape(rows, -1, 2, 32) >> place & 3 for place in (0, 2, 4, 6)]
    codes = (low | np.concatenate(quarters, -1) << 4).reshape(rows, -1)
    steps, scales = blocks[..., 192:208].view(np.int8), _halves(blocks[..., 208:])[..., None]
    return Codes(SIX_K, codes, steps.reshape(rows, -1), scales=scales)


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


def _four(weights: np.ndarray) -> Codes:
    """Rounded to 4 bits in blocks of 32, with a code for 0: (rows, cols) float32."""
    rows, cols = weights.shape
    blocks = np.pad(weights, ((0, 0), (0, -cols % BLOCK))).reshape(-1, BLOCK)
    codes, steps, zeros = search(np.ascontiguousarray(blocks.T), 15)
    with np.errstate(over="ignore"):
        return Codes(
            FOUR_MINIMUM,
            codes.T.astype(np.uint8).reshape(rows, -1)[:, :cols],
            steps.astype(np.float16).reshape(rows, -1),
            (steps * zeros).astype(np.float16).reshape(rows, -1),
        )


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

    codes = whole(rows.codes, units * UNIT[rows.kind], ZERO[rows.kind])
    runs = UNIT[rows.kind] // RUN[rows.kind]
    if rows.kind == EIGHT:
        lines = codes.reshape(tiles, TILE, units, -1, 4)
    else:
        pairs = codes.reshape(tiles, TILE, units, -1, 2, 4)
        lines = pairs[..., 0, :] & 15 | pairs[..., 1, :] << 4
    if rows.kind in SIX_BITS:
        fours = codes.reshape(tiles, TILE, units, runs, 4, 4) >> 4
        low = lines.reshape(tiles, TILE, units, runs, 2, 4)
        lines = np.concatenate([low, _two_bits(fours)[..., None, :]], -2)
        lines = lines.reshape(tiles, TILE, units, -1, 4)
    parts = [lines.transpose(0, 2, 3, 1, 4).reshape(tiles, units, -1)]
    steps = rows.steps.view(np.uint8) ^ 128 if rows.steps.dtype == np.int8 else rows.steps
    for values in (steps, rows.minimums, rows.scales):
        if values is not None:
            count = runs if values.ndim == 2 else values.shape[2]  # of a unit
            flat = whole(values.reshape(len(values), -1), count * units)
            lanes = flat.reshape(tiles, TILE, units, count).transpose(0, 2, 3, 1)
            parts.append(np.ascontiguousarray(lanes).view(np.uint8).reshape(tiles, units, -1))
    if rows.kind == FOUR_K:
        parts[1:3] = [_six_bits(*parts[1:3])]
    return np.concatenate(parts, -1)


def _six_bits(steps: np.ndarray, minimums: np.ndarray) -> np.ndarray:
    """Bytes below 64, 128 of each, in 6 bits: (..., 192), as packed.h has it."""
    both = np.stack([steps, minimums], -2)
    low, high = both & 15, (both >> 4).reshape(*steps.shape[:-1], 4, -1)
    return np.concatenate([low[..., 0, :] | low[..., 1, :] << 4, _two_bits(high)], -1)


def _two_bits(fours: np.ndarray) -> np.ndarray:
    """Four numbers below 4 in a byte, the first in its lowest bits: (..., 4, n) -> (..., n)."""
    places = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    together: np.ndarray = np.bitwise_or.reduce(fours << places, axis=-2)
    return together


BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q8_0": 34, "Q4_K": 144, "Q6_K": 210}
KEPT: Mapping[tuple[str, int], Callable[[np.ndarray], Codes]] = {  # by GGUF type and kind
    ("Q4_0", FOUR): _q4_0,
    ("Q4_0", EIGHT): _q4_0_wide,
    ("Q4_1", FOUR_MINIMUM): _q4_1,
    ("Q5_0", SIX): _q5_0,
    ("Q5_0", EIGHT): _q5_0_wide,
    ("Q8_0", EIGHT): _q8_0,
    ("Q4_K", FOUR_K): _q4_k,
    ("Q6_K", SIX_K): _q6_k,
}
