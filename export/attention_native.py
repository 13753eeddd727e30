"""Attention by the operator of runtime/native: any block, chain or tree, gives a row the same bits.

The operator reads the tree from `parents` and counts positions along each path itself, so there is
nothing to mask and no row to spare.
"""

import numpy as np

from specrt.export.attention import declare_cache, rope_tables
from specrt.export.writer import GraphWriter
from specrt.models.config import DecoderConfig, Layer
from specrt.runtime.native import DOMAIN

TILE = 16  # entries of a key tile, side by side; KEYS of runtime/native/attention.h
BLOCK = 32  # numbers of an int8 key that share a scale; CACHE_BLOCK there
SCALE = 4  # bytes of a scale


class NativeAttention:
    """Norms of heads, rotation, append and attention in one operator."""

    def __init__(
        self,
        graph: GraphWriter,
        config: DecoderConfig,
        dtype: type[np.generic],
        cache: type[np.generic],
    ) -> None:
        self.config, self.dtype = config, dtype
        graph.input("seqlens_k", np.int32, (1,))
        graph.input("parents", np.int64, (1, "rows"))
        declare_cache(graph, len(config.layers), cache, *cache_shapes(config, cache))

    def __call__(self, graph: GraphWriter, qkv: str, index: int, layer: Layer) -> str:
        config, cos, sin = self.config, "", ""
        if layer.rope is not None:
            cos, sin = rope_tables(graph, layer.rope, config.context, self.dtype)
        name = f"model.layers.{index}.self_attn"
        norms = [f"{name}.{part}_norm.weight" for part in "qk"] if config.qk_norm else []
        past = [f"past.{index}.key", f"past.{index}.value"]
        rows, *_ = graph.node(
            "Attention",
            [qkv, *past, "seqlens_k", "parents", cos, sin, *norms],
            [f"attention.{index}", f"present.{index}.key", f"present.{index}.value"],
            domain=DOMAIN,
            num_heads=config.heads,
            kv_num_heads=config.kv_heads,
            window=layer.window,
            scale=config.scale,
            softcap=config.attention_softcap,
            epsilon=config.norm_eps,
        )
        return rows


def cache_shapes(
    config: DecoderConfig, cache: type[np.generic]
) -> tuple[tuple[int | str, ...], tuple[int | str, ...]]:
    """Of keys and values, as runtime/native/attention.h has them.

    int8 ones carry their scales: a key one for each block of 32 numbers, a value one.
    """
    heads, size = config.kv_heads, config.head_dim
    if cache is not np.int8:
        return (1, heads, "tiles", size, TILE), (1, heads, "capacity", size)
    blocks = -(-size // BLOCK)
    lines = blocks * (BLOCK + SCALE) // 4  # of 4 bytes of each entry
    return (1, heads, "tiles", lines, TILE, 4), (1, heads, "capacity", blocks * BLOCK + SCALE)
