"""One running ONNX graph and its cache: tokens in, logits out.

The invariant: `length` tokens have been read, and the cache's first `length` entries are theirs.
The graph itself says what it is: by its inputs whether it verifies trees, by their types and shapes
what its cache is made of, and by a few numbers stored with it what it needs besides.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort

from specrt.runtime.cache import SMALLEST, Buffer, KVCache, SharedCache
from specrt.runtime.errors import CapacityError, RequestError
from specrt.runtime.providers import PROVIDERS, open_graph

TYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}
CACHED, BIAS, PARENTS, POSITIONS = "past.", "attention_bias", "parents", "position_ids"
MOST_ZEROS = 1 << 20  # numbers of an empty bias that are kept from step to step


@dataclass(frozen=True, slots=True)
class Output:
    """logits: (last, V) float32. hidden: (last, H) float32, or None if the graph has none."""

    logits: np.ndarray
    hidden: np.ndarray | None = None


class Session:
    """A decoder graph that specrt exported (see `runtime/bundle.py` for its inputs and outputs).

    context: most tokens the model may read. vocab: width of the logits.
    """

    def __init__(
        self, path: Path, *, context: int, vocab: int, provider: str = "cpu", threads: int = 0
    ) -> None:
        self.capacity, self.vocab = context, vocab
        self._session = open_graph(path, provider, threads, context=context)
        facts = self._session.get_modelmeta().custom_metadata_map
        self._spare = int(facts.get("specrt.spare", 0))
        self._tree_limit = int(facts.get("specrt.tree_limit", 0)) or context
        self._inputs = {i.name: i for i in self._session.get_inputs()}
        self._binding = self._session.io_binding()
        self._cache: KVCache = self._make_cache(context + self._spare, PROVIDERS[provider].device)
        self._copies = PROVIDERS[provider].device != "cpu"
        self._buffers: dict[str, tuple[np.ndarray, ort.OrtValue]] = {}
        self._bound: dict[str, ort.OrtValue] = {}
        self._zeros = np.zeros(0, np.float32)
        self._outputs: dict[str, tuple[np.ndarray, int, ort.OrtValue]] = {}
        hidden = [o.shape[2] for o in self._session.get_outputs() if o.name == "hidden"]
        self._hidden: int | None = hidden[0] if hidden else None

    @property
    def length(self) -> int:
        """Tokens the cache has read."""
        return self._cache.length

    @property
    def providers(self) -> list[str]:
        """The execution providers onnxruntime really uses for this graph."""
        return list(self._session.get_providers())

    @property
    def verifies_trees(self) -> bool:
        """Whether a call may have parents that are no chain."""
        return BIAS in self._inputs or PARENTS in self._inputs

    def forward(
        self, tokens: Sequence[int] | np.ndarray, parents: np.ndarray | None = None, last: int = 1
    ) -> Output:
        """Read tokens (m,) after the cache; give logits of the last `last` rows.

        parents: (m,), the row each token follows, -1 = the cache's end; None is a chain.
        Appends m entries. CapacityError if the context has no room for them, RequestError for a
        tree that the graph cannot verify.
        """
        ids = np.asarray(tokens, np.int64)
        rows = ids.size
        total = self.length + rows
        if total > self.capacity:
            raise CapacityError(
                f"{total} tokens do not fit the context of {self.capacity}; "
                "shorten the prompt or export with a larger --context"
            )
        if PARENTS in self._inputs:
            self._feed(PARENTS, (1, rows), np.arange(rows) - 1 if parents is None else parents)
            return self._read(ids, None, last)
        seen = self._tree(rows, parents)
        if seen is None or self.length:
            return self._read(ids, seen, last)
        # onnxruntime counts the positions of a cache's first block itself, so a tree waits for one
        root = self._read(ids[:1], None, 1)
        rest = self._read(ids[1:], seen[1:], min(last, rows - 1))
        return rest if last < rows else _joined(root, rest)

    def keep(self, length: int, path: Sequence[int] = ()) -> None:
        """Keep the first length entries, then entries length + i for i in path; forget the rest."""
        self._cache.keep(length, path)

    def _read(self, ids: np.ndarray, seen: np.ndarray | None, last: int) -> Output:
        """Run the graph once. seen: for each of the m rows which of the last w entries it sees, its
        own included, (m, w) bool; None for a chain."""
        rows, total = ids.size, self.length + ids.size
        self._cache.bind(self._binding, rows + self._spare)
        self._feed("input_ids", (1, rows), ids)
        if POSITIONS in self._inputs:
            self._feed(POSITIONS, (1, rows), _positions(rows, total, seen))
        self._feed("seqlens_k", (1,), total - 1)
        self._feed("total_sequence_length", (), total)
        self._feed("num_logits", (1,), last)
        if BIAS in self._inputs:
            self._bind(BIAS, self._bias(rows, total, seen))
        logits = self._output("logits", (1, last, self.vocab))
        hidden = None if self._hidden is None else self._output("hidden", (1, rows, self._hidden))
        self._session.run_with_iobinding(self._binding)
        self._cache.absorb({}, rows)
        return Output(logits[0], None if hidden is None else hidden[0, rows - last :])

    def _tree(self, rows: int, parents: np.ndarray | None) -> np.ndarray | None:
        """Which rows of the block each row sees, (m, m) bool; None for a chain."""
        if parents is None or np.array_equal(parents, np.arange(rows) - 1):
            return None
        if not self.verifies_trees:
            raise RequestError(
                "this graph verifies chains only, not trees; choose a drafter that proposes "
                "chains, or export with --flavour cpu or tensorrt"
            )
        if rows > self._tree_limit:
            raise RequestError(
                f"a tree of {rows} rows is more than the {self._tree_limit} that this graph's "
                "sliding windows allow; draft less in a step"
            )
        seen = np.eye(rows, dtype=bool)
        for row, parent in enumerate(parents):
            if parent >= 0:
                seen[row] |= seen[parent]
        return seen

    def _bias(self, rows: int, total: int, seen: np.ndarray | None) -> np.ndarray:
        """What is added to the scores, (1, 1, m, T): 0 for seen entries, the least number else.

        Graphs whose bias is as wide as the cache mask nothing by themselves; the others see to it
        that no row looks ahead.
        """
        width = self._inputs[BIAS].shape[3]
        dtype = TYPES[self._inputs[BIAS].type]
        fixed = isinstance(width, int)
        if seen is None and not fixed:
            size, shape = rows * total, (1, 1, rows, total)
            if size > MOST_ZEROS:
                return np.zeros(shape, dtype)
            if self._zeros.size < size:
                self._zeros = np.zeros(2 * size, dtype)
            return self._zeros[:size].reshape(shape)
        if seen is None:
            seen = np.tri(rows, dtype=bool)
        start = total - seen.shape[1]
        shape = (1, 1, rows, width if fixed else total)
        bias = np.full(shape, np.finfo(np.dtype(dtype)).min, dtype)
        bias[0, 0, :, :start] = 0
        bias[0, 0, :, start:total][seen] = 0
        return bias

    def _feed(self, name: str, shape: tuple[int, ...], content: np.ndarray | int) -> None:
        """Bind a small input, if the graph has it. Its buffer is reused while the shape holds; on
        another device than the CPU it is bound at each call, which copies it."""
        if name not in self._inputs:
            return
        bound = self._buffers.get(name)
        if bound is None or bound[0].shape != shape:
            array = np.empty(shape, TYPES[self._inputs[name].type])
            self._buffers.pop(name, None)  # an interrupt before the end leaves nothing half bound
            bound = array, ort.OrtValue.ortvalue_from_numpy(array)
            self._binding.bind_ortvalue_input(name, bound[1])
            self._buffers[name] = bound
        bound[0][...] = content
        if self._copies:
            self._binding.bind_ortvalue_input(name, bound[1])

    def _output(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Where the graph writes an output: where it wrote the last one, if that has this shape and
        nobody holds any of it."""
        bound = self._outputs.get(name)
        if bound is None or bound[0].shape != shape or sys.getrefcount(bound[0]) > bound[1]:
            array = np.empty(shape, np.float32)
            value = ort.OrtValue.ortvalue_from_numpy(array)
            self._outputs.pop(name, None)
            self._binding.bind_ortvalue_output(name, value)
            free = sys.getrefcount(array)  # with this function in the place of the dict
            self._outputs[name] = array, free, value
            return array
        return bound[0]

    def _bind(self, name: str, array: np.ndarray) -> None:
        value = ort.OrtValue.ortvalue_from_numpy(array)
        self._binding.bind_ortvalue_input(name, value)
        self._bound[name] = value  # before onnxruntime 1.30 a binding does not keep what it reads

    def _make_cache(self, limit: int, device: str) -> KVCache:
        buffers = [
            Buffer(name, name.replace("past", "present", 1), tuple(item.shape))
            for name, item in self._inputs.items()
            if name.startswith(CACHED)
        ]
        values = next(buffer for buffer in buffers if buffer.tile == 1)
        capacity = values.dims[2]
        return SharedCache(
            buffers,
            TYPES[self._inputs[values.past].type],
            limit=limit,
            capacity=capacity if isinstance(capacity, int) else SMALLEST,
            device=device,
        )


def _positions(rows: int, total: int, seen: np.ndarray | None) -> np.ndarray:
    """(m,) of the last rows of a text of `total` tokens, by what each row sees."""
    if seen is None:
        return np.arange(total - rows, total)
    positions: np.ndarray = total - seen.shape[1] + seen.sum(axis=1) - 1
    return positions


def _joined(first: Output, second: Output) -> Output:
    """The rows of two calls as if of one."""
    hidden = None
    if first.hidden is not None and second.hidden is not None:
        hidden = np.concatenate([first.hidden, second.hidden])
    return Output(np.concatenate([first.logits, second.logits]), hidden)
