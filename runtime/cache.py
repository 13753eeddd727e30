"""Key-value caches: what a graph reads, what it wrote, what to keep.

A cache only counts what it has read: entries [0, length) are valid, anything after is leftovers
that the next call overwrites. Rolling back is a smaller length and copies nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import onnxruntime as ort

from specrt.runtime.errors import CapacityError

SMALLEST = 256  # entries a cache starts with


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
    """Buffers of (1, kv_heads, capacity, head_dim) that the graph appends to in place.

    They start small and double, so that a long context costs memory only when it is used.
    names: the graph's (past, present) pairs. shape: (kv_heads, head_dim). limit: entries never
    needed beyond. capacity: entries to begin with. device: where the buffers live.
    """

    def __init__(
        self,
        names: Sequence[tuple[str, str]],
        shape: tuple[int, int],
        dtype: type[np.generic],
        *,
        limit: int,
        capacity: int = SMALLEST,
        device: str = "cpu",
    ) -> None:
        self.length = 0
        self._names, self._dtype, self._limit = tuple(names), dtype, limit
        self._kv_heads, self._head_dim = shape
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
            for (past, present), value in zip(self._names, self._values, strict=True):
                binding.bind_ortvalue_input(past, value)
                binding.bind_ortvalue_output(present, value)
            self._bound = binding

    def absorb(self, outputs: Mapping[str, ort.OrtValue], rows: int) -> None:
        self.length += rows

    def keep(self, length: int, path: Sequence[int] = ()) -> None:
        rows = np.asarray(path, np.int64)
        if not np.array_equal(rows, np.arange(rows.size)):
            for value in self._values:
                array = value.numpy()  # on the CPU the buffer itself, else a copy
                array[:, :, length : length + rows.size] = array[:, :, length + rows]
                if self._device != "cpu":
                    value.update_inplace(array)
        self.length = length + rows.size

    def _resize(self, capacity: int) -> None:
        shape = (1, self._kv_heads, capacity, self._head_dim)
        old, self._values = self._values, []
        for index in range(len(self._names)):
            array = np.zeros(shape, self._dtype)
            if old:
                array[:, :, : self.length] = old[index].numpy()[:, :, : self.length]
            self._values.append(ort.OrtValue.ortvalue_from_numpy(array, self._device))
        self._capacity, self._bound = capacity, None
