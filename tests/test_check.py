"""Each check of an exported graph finds the fault it is there for, and names itself."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from specrt.export.check import EXACT, check_graph
from specrt.runtime.bundle import read_manifest
from specrt.runtime.errors import CheckError
from specrt.runtime.session import Output, Session

TOKENS = np.random.default_rng(3).integers(3, 270, 64).tolist()


class Healthy:
    """The tiny model as it is; a fault overrides one method."""

    def __init__(self, folder: Path) -> None:
        model = read_manifest(folder).model
        self.inner = Session(
            folder / "target" / "model.onnx", context=model.context, vocab=model.vocab, threads=1
        )
        self.vocab, self.capacity = model.vocab, model.context
        self.verifies_trees = self.inner.verifies_trees

    @property
    def length(self) -> int:
        return self.inner.length

    def forward(
        self, tokens: Sequence[int] | np.ndarray, parents: np.ndarray | None = None, last: int = 1
    ) -> Output:
        return self.inner.forward(tokens, parents, last)

    def keep(self, length: int, path: Sequence[int] = ()) -> None:
        self.inner.keep(length, path)


class RowDependent(Healthy):
    """Blocks of 5 rows alone are summed in another order."""

    def forward(self, tokens, parents=None, last=1):
        output = self.inner.forward(tokens, parents, last)
        return Output(output.logits * np.float32(1.0001)) if len(tokens) == 5 else output


class ChunkDependent(Healthy):
    """Blocks of 7 rows, as only chunks of a prompt have after the first."""

    def forward(self, tokens, parents=None, last=1):
        output = self.inner.forward(tokens, parents, last)
        uneven = len(tokens) == 7 and last == 7
        return Output(output.logits * np.float32(1.0001)) if uneven else output


class Stale(Healthy):
    """What a rollback forgets stays: the keys of the last forgotten token are read again."""

    stale = 0

    def keep(self, length, path=()):
        self.stale = 0 if length == 0 else self.length - length
        self.inner.keep(length, path)

    def forward(self, tokens, parents=None, last=1):
        output = self.inner.forward(tokens, parents, last)
        return Output(output.logits + 0.01 * np.arange(self.vocab)) if self.stale else output


class RowPositions(Healthy):
    """A tree's rows stand at their index in the block: what a chain would say of them."""

    def forward(self, tokens, parents=None, last=1):
        if parents is None or self.inner._tree(len(tokens), parents) is None:
            return self.inner.forward(tokens, parents, last)
        feed = self.inner._feed

        def by_row(name, shape, content):
            if name == "position_ids":
                content = self.length + np.arange(len(tokens))
            feed(name, shape, content)

        self.inner._feed = by_row
        try:
            return self.inner.forward(tokens, parents, last)
        finally:
            self.inner._feed = feed


class LeakingMask(Healthy):
    """A row of a tree sees the siblings before it."""

    def forward(self, tokens, parents=None, last=1):
        if parents is None:
            return self.inner.forward(tokens, parents, last)
        bias = self.inner._bias

        def causal(rows, total, seen):
            return bias(rows, total, np.tri(rows, dtype=bool))

        self.inner._bias = causal
        try:
            return self.inner.forward(tokens, parents, last)
        finally:
            self.inner._bias = bias


class LosesRow(Healthy):
    """Compaction leaves the last entry of the path where another one was."""

    def keep(self, length, path=()):
        path = tuple(path)
        wrong = bool(path) and path[-1] >= len(path)
        self.inner.keep(length, (*path[:-1], len(path) - 1) if wrong else path)


def test_a_right_graph_passes_bit_for_bit(tiny_bundle):
    found = check_graph(Healthy(tiny_bundle), TOKENS, EXACT)
    assert [found[name]["rms"] for name in ("rows", "chunks", "rollback")] == [0.0, 0.0, 0.0]
    assert found["tree"]["agreement"] == 1.0


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (RowDependent, "rows"),
        (ChunkDependent, "chunks"),
        (Stale, "rollback"),
        (RowPositions, "tree"),
        (LeakingMask, "tree"),
        (LosesRow, "tree"),
    ],
)
def test_a_planted_fault_is_found_by_name(tiny_bundle, fault, name):
    with pytest.raises(CheckError, match=f"fails its check '{name}'"):
        check_graph(fault(tiny_bundle), TOKENS, EXACT)
