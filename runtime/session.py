"""One running ONNX graph and its cache: tokens in, logits out.

The invariant: `length` tokens have been read, and the cache's first `length` entries are theirs.
Buffers are bound once; a call binds only what changes with the number of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from specrt.runtime.cache import KVCache, SharedCache
from specrt.runtime.errors import CapacityError
from specrt.runtime.providers import open_graph

MASKED = np.float32(np.finfo(np.float32).min)
CHAIN = None  # parents of a chain


@dataclass(frozen=True, slots=True)
class Output:
    """logits: (last, V) float32. hidden: (rows, H) or None. Both valid until the next call."""

    logits: np.ndarray
    hidden: np.ndarray | None = None


class Session:
    """A decoder graph that specrt exported (see `runtime/bundle.py` for its inputs and outputs).

    context: most tokens the model may read. vocab: width of the logits. The graph itself says how
    many spare cache entries it writes, and how many rows a tree may have if that is limited.
    """

    def __init__(
        self, path: Path, *, context: int, vocab: int, provider: str = "cpu", threads: int = 0
    ) -> None:
        self.capacity, self.vocab = context, vocab
        self._session = open_graph(path, provider, threads)
        facts = self._session.get_modelmeta().custom_metadata_map
        self._spare = int(facts.get("specrt.spare", 0))
        self._tree_limit = int(facts.get("specrt.tree_limit", 0))
        self._inputs = {i.name: i for i in self._session.get_inputs()}
        self._binding = self._session.io_binding()
        self._cache: KVCache = self._make_cache(context + self._spare)
        self._scalars = {
            "seqlens_k": np.zeros(1, np.int32),
            "total_sequence_length": np.zeros((), np.int32),
        }
        for name, array in self._scalars.items():
            self._bind(name, array)
        self._zeros = np.zeros(0, np.float32)
        self._has_hidden = any(o.name == "hidden" for o in self._session.get_outputs())

    @property
    def length(self) -> int:
        """Tokens the cache has read."""
        return self._cache.length

    @property
    def providers(self) -> list[str]:
        """The execution providers onnxruntime really uses for this graph."""
        return list(self._session.get_providers())

    def forward(
        self, tokens: Sequence[int] | np.ndarray, parents: np.ndarray | None = None, last: int = 1
    ) -> Output:
        """Read tokens (m,) after the cache; give logits of the last `last` rows.

        parents: (m,), the row each token follows, -1 = the cache's end; None is a chain.
        Appends m entries. CapacityError if the context has no room for them.
        """
        ids = np.asarray(tokens, np.int64)[None]
        rows = ids.shape[1]
        total = self.length + rows
        if total > self.capacity:
            raise CapacityError(
                f"{total} tokens do not fit the context of {self.capacity}; "
                "shorten the prompt or export with a larger --context"
            )
        depths, bias = self._tree(rows, total, parents)
        self._cache.bind(self._binding, rows + self._spare)
        self._scalars["seqlens_k"][...] = total - 1
        self._scalars["total_sequence_length"][...] = total
        logits = np.empty((1, last, self.vocab), np.float32)
        feeds = {
            "input_ids": ids,
            "position_ids": (self.length + depths)[None],
            "num_logits": np.array([last], np.int64),
            "attention_bias": bias,
        }
        for name, array in feeds.items():
            self._bind(name, array)
        self._binding.bind_ortvalue_output("logits", ort.OrtValue.ortvalue_from_numpy(logits))
        if self._has_hidden:
            self._binding.bind_output("hidden", "cpu")
        self._session.run_with_iobinding(self._binding)
        self._cache.absorb({}, rows)
        return Output(logits[0])

    def keep(self, length: int, path: Sequence[int] = ()) -> None:
        """Keep the first length entries, then entries length + i for i in path; forget the rest."""
        self._cache.keep(length, path)

    def _tree(
        self, rows: int, total: int, parents: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Depth of each row (m,), and the attention bias (1, 1, m, total): 0 seen, MASKED not."""
        if self._zeros.size < rows * total:
            self._zeros = np.zeros(2 * rows * total, np.float32)
        chain = np.arange(rows)
        if parents is None or np.array_equal(parents, chain - 1):
            return chain, self._zeros[: rows * total].reshape(1, 1, rows, total)
        depths = np.zeros(rows, np.int64)
        seen = np.eye(rows, dtype=bool)
        for row, parent in enumerate(parents):
            if parent >= 0:
                depths[row] = depths[parent] + 1
                seen[row] |= seen[parent]
        bias = np.zeros((1, 1, rows, total), np.float32)
        bias[0, 0, :, total - rows :][~seen] = MASKED
        return depths, bias

    def _bind(self, name: str, array: np.ndarray) -> None:
        self._binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))

    def _make_cache(self, limit: int) -> KVCache:
        pairs = [(n, n.replace("past", "present", 1)) for n in self._inputs if n.startswith("past")]
        first = self._inputs[pairs[0][0]]
        dtype = np.float16 if first.type == "tensor(float16)" else np.float32
        _, kv_heads, _, head_dim = first.shape
        return SharedCache(pairs, (kv_heads, head_dim), dtype, limit=limit)
