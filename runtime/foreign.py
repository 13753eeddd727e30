"""A decoder graph of another exporter, run as it is: its cache grows, it reads chains only.

Such a graph takes `input_ids` and `past_key_values.<layer>.key/value` of the tokens read so far,
and some of `attention_mask`, `position_ids` and `use_cache_branch` (a graph merged from two); it
gives `logits` of every row and `present.<layer>.key/value`, longer by the rows of the call.

Kernels differ between one row and several: such a graph's one-row logits are off in the last bit,
which 8-bit rounding grows to 0.05 of their spread. Hence a single token is read as two rows, and
the second is dropped, so that plain and speculative steps see the same kernels.

The invariant: the first `length` entries of every past are those of the tokens read; leftovers
after them are cut off before the next call. A call that fails changes nothing.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from specrt.runtime.errors import BundleError, CapacityError, RequestError
from specrt.runtime.providers import open_graph
from specrt.runtime.session import Output

PAST, PRESENT = "past_key_values.", "present."
TYPES = {
    "tensor(bool)": np.bool_,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}


class ForeignSession:
    """A graph as described above; the interface is `runtime/interfaces.py`'s Session.

    context: most tokens the model may read. vocab: width of the logits.
    """

    def __init__(
        self, path: Path, *, context: int, vocab: int, provider: str = "cpu", threads: int = 0
    ) -> None:
        self.length, self.capacity, self.vocab = 0, context - 1, vocab  # room for a dropped row
        self.verifies_trees = False
        self._session = open_graph(path, provider, threads)
        self._types = {i.name: TYPES[i.type] for i in self._session.get_inputs()}
        self._past: dict[str, ort.OrtValue] = {}  # all of one length, at least self.length
        for item in self._session.get_inputs():
            if item.name.startswith(PAST):
                empty = np.zeros((1, item.shape[1], 0, item.shape[3]), TYPES[item.type])
                self._past[item.name] = ort.OrtValue.ortvalue_from_numpy(empty)
        self._results = ["logits", *(name.replace(PAST, PRESENT, 1) for name in self._past)]

    @property
    def providers(self) -> list[str]:
        """The execution providers onnxruntime really uses for this graph."""
        return list(self._session.get_providers())

    def forward(
        self, tokens: Sequence[int] | np.ndarray, parents: np.ndarray | None = None, last: int = 1
    ) -> Output:
        """Read tokens (m,) after the cache; give logits of the last `last` rows.

        Appends m entries. CapacityError if the context has no room for them, RequestError for
        parents that are no chain, BundleError if the graph does not do what it is described to.
        """
        ids = np.asarray(tokens, np.int64)
        rows, total = ids.size, self.length + ids.size
        if total > self.capacity:
            raise CapacityError(
                f"{total} tokens do not fit the context of {self.capacity}; "
                "shorten the prompt or export with a larger --context"
            )
        if parents is not None and not np.array_equal(parents, np.arange(rows) - 1):
            raise RequestError(
                "this graph was made by another exporter and verifies chains only, not trees; "
                "choose a drafter that proposes chains, or export the original checkpoint"
            )
        logits = self._run(ids if rows > 1 else np.repeat(ids, 2))
        self.length = total
        return Output(logits[rows - last : rows].astype(np.float32))

    def keep(self, length: int, path: Sequence[int] = ()) -> None:
        """Keep the first length entries, then entries length + i for i in path; forget the rest."""
        assert list(path) == list(range(len(path))), "a chain has no other path"
        self.length = length + len(path)

    def _run(self, ids: np.ndarray) -> np.ndarray:
        """Logits (m, V) of the tokens (m,) read after the first `length`; takes their entries."""
        self._cut()
        rows, total = ids.size, self.length + ids.size
        binding = self._session.io_binding()
        held = []  # before onnxruntime 1.30 a binding does not keep what it reads
        for name, array in {
            "input_ids": ids[None],
            "attention_mask": np.ones((1, total)),
            "position_ids": np.arange(self.length, total)[None],
            "use_cache_branch": np.array([self.length > 0]),
        }.items():
            if name in self._types:
                value = ort.OrtValue.ortvalue_from_numpy(array.astype(self._types[name]))
                binding.bind_ortvalue_input(name, value)
                held.append(value)
        for name, value in self._past.items():
            binding.bind_ortvalue_input(name, value)
        for name in self._results:
            binding.bind_output(name, "cpu")
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime raises its own types, all of them private
            reason = str(error).strip().splitlines()[0][:300]
            raise BundleError(
                f"the graph cannot read {rows} tokens after {self.length}: {reason}"
            ) from None
        logits, *presents = binding.get_outputs()
        self._check(rows, total, logits, presents)
        self._past = dict(zip(self._past, presents, strict=True))
        return np.asarray(logits.numpy()[0])

    def _cut(self) -> None:
        """Cut leftovers off: the graph takes every entry of its past as read."""
        for name, value in self._past.items():
            if value.shape()[2] > self.length:
                kept = np.ascontiguousarray(value.numpy()[:, :, : self.length])
                self._past[name] = ort.OrtValue.ortvalue_from_numpy(kept)

    def _check(
        self, rows: int, total: int, logits: ort.OrtValue, presents: Sequence[ort.OrtValue]
    ) -> None:
        """BundleError unless the outputs have the shapes that verification and roll back need."""
        if (found := logits.shape()) != [1, rows, self.vocab]:
            raise BundleError(
                f"the graph gives logits {found} for {rows} tokens, expected "
                f"{[1, rows, self.vocab]}; export it with the logits of every row"
            )
        for name, value in zip(self._results[1:], presents, strict=True):
            if (held := value.shape()[2]) != total:
                raise BundleError(
                    f"the graph's {name} holds {held} entries after {total} tokens; "
                    "a cache that does not keep every token cannot be rolled back"
                )
