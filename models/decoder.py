"""A decoder-only transformer, written once over a handful of operations.

Who gives the operations decides what comes out: `export.graph` writes ONNX nodes,
`export.reference` computes with numpy. Every architecture is this function with other values in
`DecoderConfig`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

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

    def norm_linear(
        self, rows: "Normed[Value]", weights: Sequence[str], biased: bool
    ) -> tuple[Value, Value]:
        """`linear` of the normed rows, and their sum."""
        ...

    def attention(self, qkv: Value, index: int, layer: Layer) -> Value:
        """Attention of packed queries, keys and values over the cache: (rows, heads * head_dim)."""
        ...

    def norm_feed_forward(
        self, rows: "Normed[Value]", gate_up: Sequence[str], down: Sequence[str], biased: bool
    ) -> tuple[Value, Value]:
        """The normed rows times gate and up side by side, activation(gate) * up, times down:
        (rows, hidden), and the sum of the rows."""
        ...

    def tap(self, x: Value, index: int) -> None:
        """The residual stream entering layer `index`; len(layers) means leaving the last one."""
        ...

    def head(self, x: Value, table: str) -> Value:
        """Logits of the rows that are asked for: (n, vocab)."""
        ...


@dataclass(frozen=True, slots=True)
class Normed(Generic[Value]):
    """The RMS norm, with this weight, of the sum of x and update, or of x where that is None."""

    x: Value
    update: Value | None
    weight: str


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
        rows = Normed(x, update, first_norm)
        qkv, x = ops.norm_linear(rows, weights["qkv"], config.qkv_bias)
        ops.tap(x, index)
        update = ops.linear(ops.attention(qkv, index, layer), weights["output"], config.output_bias)
        second_norm = f"{name}.post_attention_layernorm.weight"
        if config.sandwich:
            update = ops.norm(update, second_norm)
            second_norm = f"{name}.pre_feedforward_layernorm.weight"

        rows = Normed(x, update, second_norm)
        maps = weights["gate_up"], weights["down"]
        update, x = ops.norm_feed_forward(rows, *maps, config.mlp_bias)
        if config.sandwich:
            update = ops.norm(update, f"{name}.post_feedforward_layernorm.weight")
    assert update is not None, "a decoder has at least one layer"
    normed, x = ops.add_norm(x, update, "model.norm.weight")
    ops.tap(x, len(config.layers))
    table = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
    return ops.head(normed, table), normed
