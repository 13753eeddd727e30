"""Attention over the cache, in the forms that execution providers run well.

`GroupQuery` appends to a shared buffer in place (CPU, CUDA). `attention_standard.Standard` says the
same with standard operators over a buffer of fixed capacity (TensorRT), and
`attention_native.NativeAttention` with the CPU operator of runtime/native. All read packed queries,
keys and values.

Rows must not depend on how many rows stand beside them, but the CPU kernel of GroupQueryAttention
for a single row differs in the last bits from the one for several. So `GroupQuery` can let
attention see one spare row after the block, whatever its size; later rows cannot influence earlier
ones.
"""

import zlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from specrt.export.writer import GraphWriter
from specrt.models.config import DecoderConfig, Layer, Rope

KERNEL_DIMS = 16  # GroupQueryAttention rotates multiples of this many dimensions
TREE_LIMIT = 64  # most rows of a tree block in a model with sliding windows
INT64 = 7  # onnx.TensorProto.INT64


class Attention(Protocol):
    """Emits attention of one layer: packed (1, S, width) to (1, S, heads * head_dim)."""

    def __call__(self, graph: GraphWriter, qkv: str, index: int, layer: Layer) -> str: ...


def declare_cache(
    graph: GraphWriter,
    layers: int,
    dtype: type[np.generic],
    keys: Sequence[int | str],
    values: Sequence[int | str],
) -> None:
    """Declare past and present of every layer, keys and values in these shapes."""
    for index in range(layers):
        for part, shape in (("key", keys), ("value", values)):
            graph.input(f"past.{index}.{part}", dtype, shape)
            graph.output(f"present.{index}.{part}", dtype, shape)


def rope_tables(
    graph: GraphWriter, rope: Rope, positions: int, dtype: type[np.generic]
) -> tuple[str, str]:
    """Constants of cos and sin, (positions, dims/2), shared by all layers with this rotation."""
    name = f"rope.{zlib.crc32(repr(rope).encode()):08x}"
    if not graph.has(f"{name}.cos"):
        cos, sin = rope.tables(positions)
        graph.constant(f"{name}.cos", cos.astype(dtype))
        graph.constant(f"{name}.sin", sin.astype(dtype))
    return f"{name}.cos", f"{name}.sin"


class GroupQuery:
    """GroupQueryAttention with rotation inside, keys and values appended in place."""

    def __init__(
        self,
        graph: GraphWriter,
        config: DecoderConfig,
        dtype: type[np.generic],
        cache: type[np.generic],
        *,
        spare: int,
        trees: bool,
    ) -> None:
        """spare: rows attention sees after the block. trees: whether blocks may be trees; CUDA
        takes its fast kernels only where there is no bias to say so."""
        self.config, self.dtype, self.spare = config, dtype, spare
        self.positions_end = config.context + spare  # the kernel counts the spare row as well
        self._biases: dict[int, str] = {}
        graph.input("position_ids", np.int64, (1, "rows"))
        graph.input("seqlens_k", np.int32, (1,))
        graph.input("total_sequence_length", np.int32, ())
        self._bias = ""
        if trees:
            self._bias = graph.input("attention_bias", dtype, (1, 1, "rows", "total"))
        shape = (1, config.kv_heads, "capacity", config.head_dim)
        declare_cache(graph, len(config.layers), cache, shape, shape)
        self.lengths, self.total = "seqlens_k", "total_sequence_length"
        self.positions = "position_ids"
        graph.facts["spare"] = str(spare)
        if trees and any(layer.window for layer in config.layers):
            graph.facts["tree_limit"] = str(TREE_LIMIT)
        if spare:
            self._add_spare_row(graph)

    def _add_spare_row(self, graph: GraphWriter) -> None:
        one = graph.constant("spare.count", np.array(self.spare, np.int32))
        self.lengths = graph.call("Add", "seqlens_k", one)
        self.total = graph.call("Add", "total_sequence_length", one)
        zeros = graph.constant("spare.position", np.zeros((1, self.spare), np.int64))
        self.positions = graph.call("Concat", "position_ids", zeros, axis=1)
        width = self.config.heads + 2 * self.config.kv_heads
        shape = (1, self.spare, width * self.config.head_dim)
        graph.constant("spare.row", np.zeros(shape, self.dtype))
        if self._bias:
            pads = graph.ints(0, 0, 0, 0, 0, 0, self.spare, self.spare)
            self._bias = graph.call("Pad", self._bias, pads)

    def __call__(self, graph: GraphWriter, qkv: str, index: int, layer: Layer) -> str:
        config = self.config
        cos = sin = ""
        if layer.rope is not None:
            cos, sin = rope_tables(graph, layer.rope, self.positions_end, self.dtype)
        query, key, value = qkv, "", ""
        if self.spare:
            query = graph.call("Concat", qkv, "spare.row", axis=1)
        inside = layer.rope is not None and layer.rope.dims % KERNEL_DIMS == 0
        if config.qk_norm or (layer.rope and not inside):
            query, key, value = split_heads(graph, config, query)
        if config.qk_norm:
            query = self._normed(graph, query, index, "q")
            key = self._normed(graph, key, index, "k")
        if layer.rope and not inside:
            query = self._rotated(graph, query, config.heads, layer.rope)
            key = self._rotated(graph, key, config.kv_heads, layer.rope)
            cos = sin = ""
        past = [f"past.{index}.key", f"past.{index}.value"]
        rows, *_ = graph.node(
            "GroupQueryAttention",
            [
                *(query, key, value, *past, self.lengths, self.total, cos, sin),
                *(self.positions, self._window_bias(graph, layer.window)),
            ],
            [f"attention.{index}", f"present.{index}.key", f"present.{index}.value"],
            domain="com.microsoft",
            num_heads=config.heads,
            kv_num_heads=config.kv_heads,
            scale=config.scale,
            softcap=config.attention_softcap,
            do_rotary=int(inside),
            local_window_size=self._kernel_window(layer.window),
        )
        if not self.spare:
            return rows
        ends = graph.ints(-self.spare)
        return graph.call("Slice", rows, graph.ints(0), ends, graph.ints(1))

    def _rotated(self, graph: GraphWriter, rows: str, heads: int, rope: Rope) -> str:
        """Rows rotated by an operator of their own, for sizes that the attention kernel refuses."""
        cos, sin = rope_tables(graph, rope, self.positions_end, self.dtype)
        return graph.contrib(
            "RotaryEmbedding",
            *(rows, self.positions, cos, sin),
            num_heads=heads,
            rotary_embedding_dim=rope.dims if rope.dims < self.config.head_dim else 0,
        )

    def _normed(self, graph: GraphWriter, rows: str, index: int, part: str) -> str:
        """Rows (1, S, heads * head_dim) with every head RMS-normed."""
        config = self.config
        apart = graph.call("Reshape", rows, graph.ints(1, 0, -1, config.head_dim))
        normed = graph.call(
            "SimplifiedLayerNormalization",
            *(apart, f"model.layers.{index}.self_attn.{part}_norm.weight"),
            axis=-1,
            epsilon=config.norm_eps,
        )
        heads = config.heads if part == "q" else config.kv_heads
        return graph.call("Reshape", normed, graph.ints(1, -1, heads * config.head_dim))

    def _kernel_window(self, window: int) -> int:
        """The kernel counts its window by rows; the rows of a tree are further on than their
        positions. So for trees it is wider by TREE_LIMIT, and the exact cut is made in the bias."""
        if not window:
            return -1
        return window + TREE_LIMIT if self._bias else window

    def _window_bias(self, graph: GraphWriter, window: int) -> str:
        """The bias with everything out of the window masked."""
        if not window or not self._bias:
            return self._bias
        if window not in self._biases:
            rows = graph.call("Shape", self.positions, start=1, end=2)
            length = graph.call("Sub", graph.call("Cast", self.total, to=INT64), rows)
            past = graph.call(
                "Range",
                graph.constant("int.0", np.array(0, np.int64)),
                graph.call("Squeeze", length, graph.ints(0)),
                graph.constant("int.1", np.array(1, np.int64)),
            )
            block = graph.call("Squeeze", self.positions, graph.ints(0))
            columns = graph.call("Concat", past, block, axis=0)  # (T,)
            self._biases[window] = window_bias(
                graph, self._bias, self.positions, columns, window, self.dtype
            )
        return self._biases[window]


def window_bias(
    graph: GraphWriter,
    bias: str,
    positions: str,
    columns: str,
    window: int,
    dtype: type[np.generic],
) -> str:
    """bias (1, 1, S, T) with columns masked whose token is `window` or more before the row's.

    positions: (1, S), of the rows. columns: (T,), positions of the tokens in the cache.
    """
    block = graph.call("Squeeze", positions, graph.ints(0))
    distance = graph.call("Sub", graph.call("Unsqueeze", block, graph.ints(1)), columns)  # (S, T)
    visible = graph.call("Less", distance, graph.ints(window))
    masked = graph.constant("masked", np.array([np.finfo(np.dtype(dtype)).min], dtype))
    return graph.call("Where", visible, bias, masked)


def split_heads(graph: GraphWriter, config: DecoderConfig, qkv: str) -> list[str]:
    """Packed rows as queries, keys and values, (1, S, heads * head_dim) each."""
    keys = config.kv_heads * config.head_dim
    widths = graph.ints(config.heads * config.head_dim, keys, keys)
    return graph.node("Split", [qkv, widths], 3, axis=2)
