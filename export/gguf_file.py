"""Reading the GGUF container, trusting nothing: every count, length and offset is checked against
the file before it is used, so a corrupt file costs neither memory nor time.

Layout: header, key-value pairs, tensor descriptions, padding, tensor data.
"""

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from specrt.export.source import Tensor, mapped
from specrt.runtime.errors import SourceError

VERSIONS = (2, 3)
LONGEST_NAME = 1 << 16
LONGEST_ARRAY = 1 << 22
MOST_DIMENSIONS = 4
ALIGNMENTS = tuple(1 << i for i in range(17))
SMALLEST_PAIR, SMALLEST_TENSOR = 13, 32  # bytes that a key-value pair, a tensor description needs
SCALARS = "BbHhIif?"  # struct code of value types 0 to 7
STRING, ARRAY = 8, 9
WIDE = {10: "Q", 11: "q", 12: "d"}
CODES: Mapping[int, str] = {**dict(enumerate(SCALARS)), **WIDE}
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class GgufFile:
    """metadata: plain values by key. tensors: by GGUF name, shapes as (rows, cols)."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def read_gguf(path: Path) -> GgufFile:
    """The contents of a GGUF file, with its further parts if it is the first of several."""
    first = _read_part(path)
    parts = first.metadata.get("split.count")
    if not isinstance(parts, int) or parts < 2:
        return first
    match = PART.fullmatch(path.name)
    if not match or int(match[2]) != 1 or int(match[3]) != parts:
        raise SourceError(
            f"{path.name} is one of {parts} parts; give the first one, *-00001-of-{parts:05}.gguf"
        )
    tensors = dict(first.tensors)
    for i in range(2, parts + 1):
        tensors |= _read_part(path.with_name(f"{match[1]}-{i:05}-of-{match[3]}.gguf")).tensors
    return GgufFile(first.metadata, tensors)


def _read_part(path: Path) -> GgufFile:
    view = mapped(path)
    if bytes(view[:4]) != b"GGUF":
        raise SourceError(f"{path.name} is not a GGUF file: it does not begin with GGUF")
    try:
        return _parse(_Cursor(view))
    except _Corrupt as problem:
        raise SourceError(f"{path.name} is not a valid GGUF file: {problem}") from None


class _Corrupt(Exception):
    """The file contradicts itself or the format."""


class _Cursor:
    """A position in the file that only moves over bytes that are there."""

    def __init__(self, view: "mmap.mmap | bytes") -> None:
        self.view, self.at, self.size = view, 4, len(view)

    def skip(self, count: int) -> int:
        """Move over `count` bytes and return where they begin."""
        start = self.at
        if count > self.size - start:
            raise _Corrupt(f"it ends at byte {self.size}, but {count} bytes at {start} are needed")
        self.at += count
        return start

    def number(self, code: str) -> Any:
        start = self.skip(struct.calcsize("<" + code))
        return struct.unpack_from("<" + code, self.view, start)[0]

    def text(self, limit: int) -> str:
        length = self.number("Q")
        if length > limit:
            raise _Corrupt(f"a name of {length} bytes; at most {limit} make sense")
        start = self.skip(length)
        try:
            return self.view[start : start + length].decode()
        except UnicodeDecodeError:
            raise _Corrupt(f"the text at byte {start} is not UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind in CODES:
            return self.number(CODES[kind])
        if kind == STRING:
            return self.text(self.size)
        if kind == ARRAY:
            return self.array(self.number("I"), self.number("Q"))
        raise _Corrupt(f"value type {kind} at byte {self.at} is unknown")

    def array(self, kind: int, count: int) -> list[Any]:
        if count > LONGEST_ARRAY:
            raise _Corrupt(f"a list of {count} values; at most {LONGEST_ARRAY} make sense")
        if kind in CODES:
            item = np.dtype(CODES[kind]).newbyteorder("<")
            start = self.skip(count * item.itemsize)
            numbers: list[Any] = np.frombuffer(self.view, item, count, start).tolist()
            return numbers
        if kind != STRING:
            raise _Corrupt(f"an array of type {kind} at byte {self.at} is not supported")
        return [self.text(self.size) for _ in range(count)]


def _parse(cursor: _Cursor) -> GgufFile:
    version = cursor.number("I")
    if version not in VERSIONS:
        raise _Corrupt(f"version {version} is not supported, only little-endian 2 and 3")
    tensors, pairs = cursor.number("Q"), cursor.number("Q")
    if tensors * SMALLEST_TENSOR + pairs * SMALLEST_PAIR > cursor.size:
        raise _Corrupt(f"{tensors} tensors and {pairs} values cannot fit in {cursor.size} bytes")
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = cursor.text(LONGEST_NAME)
        if key in metadata:
            raise _Corrupt(f"the key {key} occurs twice")
        metadata[key] = cursor.value(cursor.number("I"))
    described = [_description(cursor) for _ in range(tensors)]
    alignment = metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment not in ALIGNMENTS:
        raise _Corrupt(f"general.alignment is {alignment!r}; it must be a power of two")
    data = cursor.at + -cursor.at % alignment
    found: dict[str, Tensor] = {}
    for name, shape, kind, offset in described:
        if name in found:
            raise _Corrupt(f"the tensor {name} occurs twice")
        if offset % alignment:
            raise _Corrupt(f"tensor {name} at {offset} is not aligned to {alignment} bytes")
        found[name] = _tensor(cursor, name, shape, kind, data + offset)
    return GgufFile(metadata, found)


def _description(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, count = cursor.text(LONGEST_NAME), cursor.number("I")
    if not 1 <= count <= MOST_DIMENSIONS:
        raise _Corrupt(f"tensor {name} has {count} dimensions")
    sizes = [cursor.number("Q") for _ in range(count)]
    if not all(sizes):
        raise _Corrupt(f"tensor {name} is empty: {sizes}")
    shape = tuple(reversed(sizes))
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return name, shape, cursor.number("I"), cursor.number("Q")


def _tensor(cursor: _Cursor, name: str, shape: tuple[int, ...], kind: int, start: int) -> Tensor:
    try:
        type_ = gguf.GGMLQuantizationType(kind)
    except ValueError:
        raise _Corrupt(f"tensor {name} has the unknown type number {kind}") from None
    block, block_bytes = gguf.GGML_QUANT_SIZES[type_]
    if shape[-1] % block:
        raise _Corrupt(
            f"rows of tensor {name} have {shape[-1]} weights, {type_.name} needs {block}s"
        )
    rows, row_bytes = 1, shape[-1] // block * block_bytes
    for size in shape[:-1]:
        rows *= size
    if start + rows * row_bytes > cursor.size:
        raise _Corrupt(f"tensor {name} ends at {start + rows * row_bytes}, after the file's end")
    raw = np.frombuffer(cursor.view, np.uint8, rows * row_bytes, start)
    return Tensor(name, shape, type_.name, raw.reshape(rows, row_bytes))
