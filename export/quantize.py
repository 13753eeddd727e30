"""Tensors → the weight formats of the graph, a few rows at a time.

fp32, fp16   as they are, in another width.
int8, int4   blocks of 32 weights in a row share a step; int4 blocks may have a zero code too.
w8a8         each output has one step; made for integer products with 8-bit activations.

A GGUF type that is itself a step times small integers is carried over without a second rounding.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from specrt.export.rounding import round_to, search, search_symmetric, widest_step
from specrt.export.source import Tensor
from specrt.runtime.errors import SourceError

BLOCK = 32
CHUNK = 1 << 17  # weights in work at a time and thread; they stay in the processor's cache
INT8_ZERO, INT4_ZERO = 128, 8  # the codes of 0 where a format stores no zero codes
STEP_FIRST = {  # types of 32-weight blocks that begin with a float16 step, and their largest code
    "Q4_0": 8,
    "Q5_0": 16,
    "Q8_0": 128,
    "IQ4_NL": 127,
}


@dataclass(frozen=True, slots=True)
class Packed:
    """A linear map or table of `rows` outputs and `cols` inputs, in the layout of its graph nodes.

    fp32, fp16  data (rows, cols).
    int8        data uint8 (rows, blocks, 32), scales (rows, blocks); 128 is zero.
    int4        data uint8 (rows, blocks, 16), two codes a byte, low half first; scales (rows,
                blocks); zeros uint8 (rows, (blocks + 1) / 2) packed alike, or None: 8 is zero.
    w8a8        data int8 (cols, rows), scales (rows,).
    cols that do not fill their last block are followed by zeros.
    """

    format: str
    rows: int
    cols: int
    data: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None = None

    @property
    def bits(self) -> int:
        """Bits of a code of the block formats; 0 for the others."""
        return {"int8": 8, "int4": 4}.get(self.format, 0)

    @property
    def block(self) -> int:
        return BLOCK

    def float32(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """The weights these codes stand for, rows start to stop: (stop - start, cols)."""
        rows = slice(start, stop)
        if self.format == "w8a8":
            return np.ascontiguousarray(self.data[:, rows].T * self.scales[rows, None])
        if not self.bits:
            return self.data[rows].astype(np.float32)
        codes, zeros = self.data[rows], np.full((1, 1, 1), INT8_ZERO, np.uint8)
        if self.format == "int4":
            codes, zeros = _nibbles(codes), np.full((1, 1, 1), INT4_ZERO, np.uint8)
            if self.zeros is not None:
                zeros = _nibbles(self.zeros[rows])[:, : codes.shape[1], None]
        weights: np.ndarray = (codes.astype(np.float32) - zeros) * self.scales[rows, :, None]
        return weights.reshape(len(weights), -1)[:, : self.cols]


def pack(tensors: Sequence[Tensor], format: str, *, zeros: bool = True) -> Packed:
    """The tensors, one below the other, as one map in this format.

    zeros: whether int4 blocks may have zero codes. SourceError if a weight is not finite.
    """
    if format not in FORMATS:
        raise ValueError(f"weight format {format!r} is not one of {', '.join(FORMATS)}")
    cols = {tensor.shape[-1] for tensor in tensors}
    if len(cols) != 1:
        raise SourceError(f"{tensors[0].name} and its neighbours have rows of {sorted(cols)}")
    if format == "int4" and not zeros:
        return _int4(tensors, search_symmetric)
    return FORMATS[format](tensors)


def _plain(tensors: Sequence[Tensor], kind: type[np.floating]) -> Packed:
    rows, cols = _size(tensors)
    data = np.empty((rows, cols), kind)

    def work(tensor: Tensor, start: int, stop: int, at: int) -> None:
        with np.errstate(over="ignore"):
            data[at : at + stop - start] = tensor.float32(start, stop)

    _each_chunk(tensors, work)
    return Packed("fp32" if kind is np.float32 else "fp16", rows, cols, data, np.empty(0))


def _fp32(tensors: Sequence[Tensor]) -> Packed:
    return _plain(tensors, np.float32)


def _fp16(tensors: Sequence[Tensor]) -> Packed:
    packed = _plain(tensors, np.float16)
    for tensor, start in _starts(tensors):
        if not np.isfinite(packed.data[start : start + tensor.shape[0]].sum(dtype=np.float32)):
            raise SourceError(f"tensor {tensor.name} has weights that float16 cannot hold")
    return packed


def _int8(tensors: Sequence[Tensor]) -> Packed:
    rows, cols = _size(tensors)
    blocks = -(-cols // BLOCK)
    data = np.empty((rows, blocks, BLOCK), np.uint8)
    scales = np.empty((rows, blocks), np.float32)

    def work(tensor: Tensor, start: int, stop: int, at: int) -> None:
        x = _columns(tensor.float32(start, stop))
        step = _stored_steps(tensor, start, stop, INT8_ZERO)
        step = widest_step(x, INT8_ZERO - 1) if step is None else step
        codes = round_to(x, step, float(INT8_ZERO), 255).astype(np.uint8)
        data[at : at + stop - start] = codes.T.reshape(-1, blocks, BLOCK)
        scales[at : at + stop - start] = step.reshape(-1, blocks)

    _each_chunk(tensors, work)
    return Packed("int8", rows, cols, data, scales)


Search = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray, np.ndarray]]


def _int4(tensors: Sequence[Tensor], find: Search = search) -> Packed:
    rows, cols = _size(tensors)
    blocks = -(-cols // BLOCK)
    data = np.empty((rows, blocks, BLOCK // 2), np.uint8)
    scales = np.empty((rows, blocks), np.float32)
    zeros = np.empty((rows, -(-blocks // 2)), np.uint8)

    def work(tensor: Tensor, start: int, stop: int, at: int) -> None:
        x = _columns(tensor.float32(start, stop))
        step = _stored_steps(tensor, start, stop, INT4_ZERO)
        if step is None:
            codes, step, zero = find(x, 15)
        else:
            codes = round_to(x, step, float(INT4_ZERO), 15)
            zero = np.full(step.shape, INT4_ZERO, np.float32)
        lines = slice(at, at + stop - start)
        data[lines] = _pairs(codes.astype(np.uint8).T).reshape(-1, blocks, BLOCK // 2)
        scales[lines] = step.reshape(-1, blocks)
        zero = zero.astype(np.uint8).reshape(-1, blocks)
        zeros[lines] = _pairs(np.pad(zero, [(0, 0), (0, blocks % 2)], constant_values=INT4_ZERO))

    _each_chunk(tensors, work)
    default = np.uint8(INT4_ZERO * 17)  # the default zero code in both halves
    return Packed("int4", rows, cols, data, scales, None if (zeros == default).all() else zeros)


def _w8a8(tensors: Sequence[Tensor]) -> Packed:
    rows, cols = _size(tensors)
    data = np.empty((cols, rows), np.int8)
    scales = np.empty(rows, np.float32)

    def work(tensor: Tensor, start: int, stop: int, at: int) -> None:
        x = np.ascontiguousarray(tensor.float32(start, stop).T)
        step = widest_step(x, INT8_ZERO - 1)  # a search for a smaller one brought no gain
        codes = round_to(x, step, float(INT8_ZERO), 255) - np.float32(INT8_ZERO)
        data[:, at : at + stop - start] = codes
        scales[at : at + stop - start] = step

    _each_chunk(tensors, work)
    return Packed("w8a8", rows, cols, data, scales)


FORMATS: dict[str, Callable[[Sequence[Tensor]], Packed]] = {
    "fp32": _fp32,
    "fp16": _fp16,
    "int8": _int8,
    "int4": _int4,
    "w8a8": _w8a8,
}


def _stored_steps(tensor: Tensor, start: int, stop: int, reach: int) -> np.ndarray | None:
    """The steps (blocks,) of a type whose weights are a step times at most `reach`; else None."""
    if STEP_FIRST.get(tensor.kind, reach + 1) > reach:
        return None
    rows = np.ascontiguousarray(tensor.raw[start:stop])
    blocks = rows.reshape(-1, rows.shape[1] * BLOCK // tensor.shape[-1])
    return np.ascontiguousarray(blocks[:, :2]).view(np.float16)[:, 0].astype(np.float32)


def _columns(values: np.ndarray) -> np.ndarray:
    """Rows cut into blocks, a block to a column: (32, rows * blocks)."""
    values = np.pad(values, [(0, 0), (0, -values.shape[1] % BLOCK)])
    return np.ascontiguousarray(values.reshape(-1, BLOCK).T)


def _pairs(codes: np.ndarray) -> np.ndarray:
    """4-bit codes (…, 2n) → bytes (…, n), the first of two in the low half."""
    pairs: np.ndarray = codes[..., ::2] | codes[..., 1::2] << 4
    return pairs


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """The opposite of `_pairs`."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def _size(tensors: Sequence[Tensor]) -> tuple[int, int]:
    return sum(tensor.shape[0] for tensor in tensors), tensors[0].shape[-1]


def _starts(tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, int]]:
    """Each tensor with the row where it begins."""
    start = 0
    for tensor in tensors:
        yield tensor, start
        start += tensor.shape[0]


def _each_chunk(tensors: Sequence[Tensor], work: Callable[[Tensor, int, int, int], None]) -> None:
    """Call work(tensor, start, stop, place of start in the result) for all rows, on all cores."""
    step = max(1, CHUNK // tensors[0].shape[-1])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = []
        for tensor, at in _starts(tensors):
            bounds = [*range(0, tensor.shape[0], step), tensor.shape[0]]
            for start, stop in pairwise(bounds):
                jobs.append(pool.submit(work, tensor, start, stop, at + start))
        for job in jobs:
            job.result()
