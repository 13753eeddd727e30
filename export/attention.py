"""Attention over the cache, in the two forms that execution providers run well.

`GroupQuery` appends to a shared buffer in place (CPU, CUDA). `Standard` says the same with standard
operators over a buffer of fixed capacity (TensorRT). Both read packed queries, keys and values.

Rows must not depend on how many rows stand beside them, but the CPU kernel of GroupQueryAttention
for a single row differs in the last bits from the one for several. So `GroupQuery` lets attention
see one spare row after the block, whatever its size; later rows cannot influence earlier ones.
"""

import zlib
from typing import Protocol

import numpy as np
from specrt.export.writer import GraphWriter
from specrt.models.config import DecoderConfig, Layer, Rope

KERNEL_DIMS = 16  # GroupQueryAttention rotates multiples of this many dimensions
TREE_LIMIT = 64  # most rows of a tree block in a model with sliding windows
MASKED = np.float32(np.finfo(np.float32).min)


class Attention(Protocol):
    """Emits attention of one layer: packed (1, S, width) to (1, S, heads * head_dim)."""

    def __call__(self, graph: GraphWriter, qkv: str, index: int, layer: Layer) -> str: ...


def declare_cache(
    graph: GraphWriter, config: DecoderConfig, dtype: type[np.generic], capacity: int | str
) -> None:
    """Declare past and present of every layer, each (1, kv_heads, capacity, head_dim)."""
    shape = (1, config.kv_heads, capacity, config.head_dim)
    for index in range(len(config.layers)):
        for part in ("key", "value"):
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
        self, graph: GraphWriter, config: DecoderConfig, dtype: type[np.generic], spare: int
    ) -> None:
        self.config, self.dtype, self.spare = config, dtype, spare
        self._biases: dict[int, str] = {}
        graph.input("seqlens_k", np.int32, (1,))
        graph.input("total_sequence_length", np.int32, ())
        graph.input("attention_bias", dtype, (1, 1, "rows", "total"))
        declare_cache(graph, config, dtype, "capacity")
        self.lengths, self.total = "seqlens_k", "total_sequence_length"
        self.positions, self._bias = "position_ids", "attention_bias"
        graph.facts["spare"] = str(spare)
        if any(layer.window for layer in config.layers):
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
        pads = graph.ints(0, 0, 0, 0, 0, 0, self.spare, self.spare)
        self._bias = graph.call("Pad", "attention_bias", pads)

    def __call__(self, graph: GraphWriter, qkv: str, index: int, layer: Layer) -> str:
        config = self.config
        cos = sin = ""
        if layer.rope is not None:
            cos, sin = rope_tables(graph, layer.rope, config.context, self.dtype)
        query, key, value = qkv, "", ""
        if self.spare:
            query = graph.call("Concat", qkv, "spare.row", axis=1)
        inside = layer.rope is not None and layer.rope.dims % KERNEL_DIMS == 0
        if config.qk_norm or (layer.rope and not inside):
            query, key, value = split_heads(graph, config, query)
        if config.qk_norm:
            query, key = normed_heads(graph, config, query, key, index)
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
            local_window_size=layer.window + TREE_LIMIT if layer.window else -1,
        )
        if not self.spare:
            return rows
        ends = graph.ints(-self.spare)
        return graph.call("Slice", rows, graph.ints(0), ends, graph.ints(1))

    def _rotated(self, graph: GraphWriter, rows: str, heads: int, rope: Rope) -> str:
        """Rows rotated by an operator of their own, for sizes that the attention kernel refuses."""
        cos, sin = rope_tables(graph, rope, self.config.context, self.dtype)
        return graph.contrib(
            "RotaryEmbedding",
            *(rows, self.positions, cos, sin),
            num_heads=heads,
            rotary_embedding_dim=rope.dims if rope.dims < self.config.head_dim else 0,
        )

    def _window_bias(self, graph: GraphWriter, window: int) -> str:
        """The bias with everything out of the window masked.

        The kernel counts its window by rows; the rows of a tree are further on than their
        positions. So the kernel's window is wider by TREE_LIMIT and the exact cut is made here.
        """
        if not window:
            return self._bias
        if window not in self._biases:
            self._biases[window] = window_bias(
                graph, self._bias, self.positions, self.total, window, self.dtype
            )
        return self._biases[window]


def window_bias(
    graph: GraphWriter, bias: str, positions: str, total: str, window: int, dtype: type[np.generic]
) -> str:
    """bias (1, 1, S, T) with columns masked whose token is `window` or more before the row's.

    The last S columns are the block's own rows, whose positions are `positions` (1, S); a column
    before them is at the position equal to its index.
    """
    rows = graph.call("Shape", positions, start=1, end=2)
    length = graph.call("Sub", graph.call("Cast", total, to=7), rows)
    zero, one = graph.ints(0), graph.ints(1)
    past = graph.call(
        "Range",
        graph.constant("int.0", np.array(0, np.int64)),
        graph.call("Squeeze", length, zero),
        graph.constant("int.1", np.array(1, np.int64)),
    )
    block = graph.call("Squeeze", positions, zero)
    columns = graph.call("Concat", past, block, axis=0)  # (T,)
    distance = graph.call("Sub", graph.call("Unsqueeze", block, one), columns)  # (S, T)
    visible = graph.call("Less", distance, graph.ints(window))
    masked = graph.constant("masked", np.array([np.finfo(dtype).min], dtype))
    return graph.call("Where", visible, bias, masked)


def split_heads(graph: GraphWriter, config: DecoderConfig, qkv: str) -> list[str]:
    """Packed rows as queries, keys and values, (1, S, heads * head_dim) each."""
    keys = config.kv_heads * config.head_dim
    widths = graph.ints(config.heads * config.head_dim, keys, keys)
    return graph.node("Split", [qkv, widths], 3, axis=2)


def normed_heads(
    graph: GraphWriter, config: DecoderConfig, query: str, key: str, index: int
) -> tuple[str, str]:
    """Queries and keys, (1, S, heads * head_dim) each, every head RMS-normed."""
    head = config.head_dim

    def normed(rows: str, part: str, heads: int) -> str:
        apart = graph.call("Reshape", rows, graph.ints(1, -1, heads, head))
        weight = f"model.layers.{index}.self_attn.{part}_norm.weight"
        scaled = graph.call(
            "SimplifiedLayerNormalization", apart, weight, axis=-1, epsilon=config.norm_eps
        )
        return graph.call("Reshape", scaled, graph.ints(1, -1, heads * head))

    return normed(query, "q", config.heads), normed(key, "k", config.kv_heads)
