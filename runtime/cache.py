"""Key-value caches: what a graph reads, what it wrote, what to keep.

A cache only counts what it has read: entries [0, length) are valid, anything after is leftovers
that the next call overwrites. Rolling back is a smaller length and copies nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnxruntime as ort

from specrt.runtime.errors import CapacityError

SMALLEST = 256  # entries a cache starts with


@dataclass(frozen=True, slots=True)
class Buffer:
    """Keys or values of one layer, by the names of the graph's input and output.

    dims: of the input; what stands third is the capacity. (1, kv_heads, capacity, size) has entries
    one after the other. (1, kv_heads, capacity / tile, size, tile) and (…, tile, 4) have them side
    by side in tiles. What an entry is made of, numbers or codes and scales, is the graph's own.
    """

    past: str
    present: str
    dims: tuple[int | str, ...]

    @property
    def tile(self) -> int:
        """Entries of a tile."""
        return int(self.dims[4]) if len(self.dims) > 4 else 1

    def shape(self, capacity: int) -> tuple[int, ...]:
        _, heads, _, *entry = self.dims
        return 1, int(heads), capacity // self.tile, *map(int, entry)

    def move(self, array: np.ndarray, entries: np.ndarray, to: int) -> None:
        """Copy the entries (n,) to the places from `to` on."""
        array[self._at(np.arange(to, to + entries.size))] = array[self._at(entries)]

    def _at(self, entries: np.ndarray) -> tuple[slice | np.ndarray, ...]:
        every = slice(None)
        if self.tile == 1:
            return every, every, entries
        return every, every, entries // self.tile, every, entries % self.tile


class KVCache(Protocol):
    """Per layer keys and values of the tokens read so far."""

    length: int

    def bind(self, binding: ort.IOBinding, rows: int) -> None:
        """Make room for `rows` more entries and bind what the graph reads and writes."""
        ...

    def absorb(self, outputs: Mapping[str, ort.OrtValue], rows: int) -> None:
        """Take over what a call has written: the cache is `rows` entries longer."""
        ...

    def keep(self, length: int, path: Sequence[int] = ()) -> None:
        """Keep the first `length` entries, then entries length + i for i in path; forget the rest.

        A contiguous path (0, 1, 2, …) copies nothing.
        """
        ...


class SharedCache:
    """Buffers that the graph appends to in place.

    They start small and double, so that a long context costs memory only when it is used.
    limit: entries never needed beyond. capacity: entries to begin with. Both are rounded up to
    whole tiles. device: where the buffers live.
    """

    def __init__(
        self,
        buffers: Sequence[Buffer],
        dtype: type[np.generic],
        *,
        limit: int,
        capacity: int = SMALLEST,
        device: str = "cpu",
    ) -> None:
        self.length = 0
        self._buffers, self._dtype, self._limit = tuple(buffers), dtype, limit
        self._tile = max(buffer.tile for buffer in buffers)
        self._device = device
        self._values: list[ort.OrtValue] = []
        self._bound: ort.IOBinding | None = None
        self._resize(min(capacity, limit))

    @property
    def capacity(self) -> int:
        """Entries the buffers have room for now."""
        return self._capacity

    def bind(self, binding: ort.IOBinding, rows: int) -> None:
        needed = self.length + rows
        if needed > self._limit:
            raise CapacityError(f"{needed} entries do not fit a cache of {self._limit}")
        if needed > self._capacity:
            self._resize(min(max(needed, 2 * self._capacity), self._limit))
        if self._bound is not binding:
            for buffer, value in zip(self._buffers, self._values, strict=True):
                binding.bind_ortvalue_input(buffer.past, value)
                binding.bind_ortvalue_output(buffer.present, value)
            self._bound = binding

    def absorb(self, outputs: Mapping[str, ort.OrtValue], rows: int) -> None:
        self.length += rows

    def keep(self, length: int, path: Sequence[int] = ()) -> None:
        if tuple(path) != tuple(range(len(path))):
            rows = np.asarray(path, np.int64)
            for buffer, value in zip(self._buffers, self._values, strict=True):
                array = value.numpy()  # on the CPU the buffer itself, else a copy
                buffer.move(array, length + rows, length)
                if self._device != "cpu":
                    value.update_inplace(array)
        self.length = length + len(path)

    def _resize(self, capacity: int) -> None:
        capacity = -(-capacity // self._tile) * self._tile
        grown = []
        for index, buffer in enumerate(self._buffers):
            array = np.zeros(buffer.shape(capacity), self._dtype)
            if self._values:
                used = -(-self.length // buffer.tile)
                array[:, :, :used] = self._values[index].numpy()[:, :, :used]
            grown.append(ort.OrtValue.ortvalue_from_numpy(array, self._device))
        self._bound = None  # first: what is bound is never taken for what is there
        self._values, self._capacity = grown, capacity
