"""Attention over a cache of fixed capacity in standard operators alone, as TensorRT reads them.

The cache is an input and an output of the graph at one address (`TensorScatter`), and every shape
but the number of rows is known when the graph is written.
"""

import numpy as np

from specrt.export.attention import INT64, declare_cache, rope_tables, split_heads, window_bias
from specrt.export.writer import GraphWriter
from specrt.models.config import DecoderConfig, Layer


class Standard:
    """Attention, rotation and append as standard operators, over the whole of a fixed capacity.

    Causality and the end of the text are in `attention_bias` (1, 1, S, capacity), which masks every
    entry that a row does not see; the kernel itself masks nothing. The cache must hold finite
    numbers everywhere, since what is masked is still multiplied by zero.
    """

    def __init__(
        self,
        graph: GraphWriter,
        config: DecoderConfig,
        dtype: type[np.generic],
        cache: type[np.generic],
    ) -> None:
        self.config, self.dtype = config, dtype
        graph.input("position_ids", np.int64, (1, "rows"))
        graph.input("seqlens_k", np.int32, (1,))
        graph.input("attention_bias", dtype, (1, 1, "rows", config.context))
        shape = (1, config.kv_heads, config.context, config.head_dim)
        declare_cache(graph, len(config.layers), cache, shape, shape)
        rows = graph.call("Shape", "position_ids", start=1, end=2)
        last = graph.call("Cast", "seqlens_k", to=INT64)
        first = graph.call("Sub", graph.call("Add", last, graph.ints(1)), rows)
        self._length = first  # (1,), where the block begins
        self._biases = {0: "attention_bias"}

    def __call__(self, graph: GraphWriter, qkv: str, index: int, layer: Layer) -> str:
        config = self.config
        query, key, value = split_heads(graph, config, qkv)
        query = self._heads(graph, query, index, "q", layer)
        key = self._heads(graph, key, index, "k", layer)
        value = self._apart(graph, value)
        for part, update in (("key", key), ("value", value)):
            graph.node(
                "TensorScatter",
                [f"past.{index}.{part}", update, self._length],
                [f"present.{index}.{part}"],
                axis=2,
            )
        rows = graph.call(
            "Attention",
            *(query, f"present.{index}.key", f"present.{index}.value"),
            self._window_bias(graph, layer.window),
            is_causal=0,
            scale=config.scale,
            softcap=config.attention_softcap,
        )
        together = graph.call("Transpose", rows, perm=[0, 2, 1, 3])
        return graph.call("Reshape", together, graph.ints(1, -1, config.heads * config.head_dim))

    def _apart(self, graph: GraphWriter, rows: str, norm: str = "") -> str:
        """Rows (1, S, heads * head_dim) as (1, heads, S, head_dim), RMS-normed if norm names a
        weight."""
        apart = graph.call("Reshape", rows, graph.ints(1, 0, -1, self.config.head_dim))
        if norm:
            apart = graph.call(
                "RMSNormalization", apart, norm, axis=-1, epsilon=self.config.norm_eps
            )
        return graph.call("Transpose", apart, perm=[0, 2, 1, 3])

    def _heads(self, graph: GraphWriter, rows: str, index: int, part: str, layer: Layer) -> str:
        """Queries or keys, (1, heads, S, head_dim), normed and rotated."""
        name = f"model.layers.{index}.self_attn.{part}_norm.weight"
        apart = self._apart(graph, rows, name if self.config.qk_norm else "")
        if layer.rope is None:
            return apart
        cos, sin = rope_tables(graph, layer.rope, self.config.context, self.dtype)
        dims = layer.rope.dims if layer.rope.dims < self.config.head_dim else 0
        return graph.call(
            "RotaryEmbedding", apart, cos, sin, "position_ids", rotary_embedding_dim=dims
        )

    def _window_bias(self, graph: GraphWriter, window: int) -> str:
        """The bias with everything out of the window masked."""
        if window not in self._biases:
            indices = graph.constant("indices", np.arange(self.config.context, dtype=np.int64))
            block = graph.call("Squeeze", "position_ids", graph.ints(0))
            first = graph.call("Slice", indices, graph.ints(0), graph.call("Shape", block))
            places = graph.call("Add", first, self._length)
            columns = graph.call("ScatterElements", indices, places, block)  # (capacity,)
            self._biases[window] = window_bias(
                graph, "attention_bias", "position_ids", columns, window, self.dtype
            )
        return self._biases[window]
