"""A decoder-only transformer, written once over a handful of operations.

Who gives the operations decides what comes out: `export.graph` writes ONNX nodes,
`export.reference` computes with numpy. Every architecture is this function with other values in
`DecoderConfig`.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from specrt.models.config import DecoderConfig, Layer

Value = TypeVar("Value")


class Ops(Protocol[Value]):
    """What a decoder needs. A Value stands for an array of (rows, width)."""

    def embed(self, table: str) -> Value:
        """The input tokens' rows of the table, times the embedding scale: (rows, hidden)."""
        ...

    def norm(self, x: Value, weight: str) -> Value:
        """RMS norm of each row."""
        ...

    def add_norm(self, x: Value, update: Value, weight: str) -> tuple[Value, Value]:
        """RMS norm of x + update, and x + update itself."""
        ...

    def linear(self, x: Value, weights: Sequence[str], biased: bool) -> Value:
        """x times the transposed weights, whose output columns stand side by side."""
        ...

    def attention(self, qkv: Value, index: int, layer: Layer) -> Value:
        """Attention of packed queries, keys and values over the cache: (rows, heads * head_dim)."""
        ...

    def feed_forward(
        self, x: Value, gate_up: Sequence[str], down: Sequence[str], biased: bool
    ) -> Value:
        """x times gate and up side by side, activation(gate) * up, times down: (rows, hidden)."""
        ...

    def tap(self, x: Value, index: int) -> None:
        """The residual stream entering layer `index`; len(layers) means leaving the last one."""
        ...

    def head(self, x: Value, table: str) -> Value:
        """Logits of the rows that are asked for: (n, vocab)."""
        ...


def layer_weights(config: DecoderConfig, index: int) -> dict[str, tuple[str, ...]]:
    """Tensor names of one layer's linear maps, each the parts that stand side by side."""
    name = f"model.layers.{index}"
    qkv: tuple[str, ...] = tuple(f"{name}.self_attn.{p}_proj.weight" for p in "qkv")
    gate_up: tuple[str, ...] = tuple(f"{name}.mlp.{p}_proj.weight" for p in ("gate", "up"))
    if config.fused:
        qkv = (f"{name}.self_attn.qkv_proj.weight",)
        gate_up = (f"{name}.mlp.gate_up_proj.weight",)
    return {
        "qkv": qkv,
        "output": (f"{name}.self_attn.o_proj.weight",),
        "gate_up": gate_up,
        "down": (f"{name}.mlp.down_proj.weight",),
    }


def decoder(ops: Ops[Value], config: DecoderConfig) -> tuple[Value, Value]:
    """Logits of the last rows, and the hidden states after the last norm."""
    x = ops.embed("model.embed_tokens.weight")
    update: Value | None = None
    for index, layer in enumerate(config.layers):
        name, weights = f"model.layers.{index}", layer_weights(config, index)
        first_norm = f"{name}.input_layernorm.weight"
        if update is None:
            normed = ops.norm(x, first_norm)
        else:
            normed, x = ops.add_norm(x, update, first_norm)
        ops.tap(x, index)

        qkv = ops.linear(normed, weights["qkv"], config.qkv_bias)
        update = ops.linear(ops.attention(qkv, index, layer), weights["output"], config.output_bias)
        second_norm = f"{name}.post_attention_layernorm.weight"
        if config.sandwich:
            update = ops.norm(update, second_norm)
            second_norm = f"{name}.pre_feedforward_layernorm.weight"
        normed, x = ops.add_norm(x, update, second_norm)

        update = ops.feed_forward(normed, weights["gate_up"], weights["down"], config.mlp_bias)
        if config.sandwich:
            update = ops.norm(update, f"{name}.post_feedforward_layernorm.weight")
    assert update is not None, "a decoder has at least one layer"
    normed, x = ops.add_norm(x, update, "model.norm.weight")
    ops.tap(x, len(config.layers))
    table = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
    return ops.head(normed, table), normed
