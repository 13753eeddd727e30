"""What a decoder is, as data: sizes, and for each layer its window and its rotation.

Families (`families.py`) turn a checkpoint's own configuration into this form; everything after
reads only this form. The differences between architectures are values here, not branches later.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary embedding. Dimension pairs (i, i + dims/2) of each head turn with the position.

    base: the frequency base. dims: how many leading dimensions of a head rotate.
    factors: (dims/2,) divisors of the plain frequencies (llama3, linear, yarn and longrope scaling
    are all of this form), or empty. scale: multiplies cos and sin (yarn, longrope).
    """

    base: float
    dims: int
    factors: tuple[float, ...] = ()
    scale: float = 1.0

    def frequencies(self) -> np.ndarray:
        """Radians per position of each pair: (dims/2,) float64."""
        plain = self.base ** -(np.arange(0, self.dims, 2, dtype=np.float64) / self.dims)
        return plain / np.asarray(self.factors, np.float64) if self.factors else plain

    def tables(self, positions: int) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin of the first `positions` positions: two (positions, dims/2) float32."""
        angles = np.arange(positions, dtype=np.float64)[:, None] * self.frequencies()
        return (
            (np.cos(angles) * self.scale).astype(np.float32),
            (np.sin(angles) * self.scale).astype(np.float32),
        )


@dataclass(frozen=True, slots=True)
class Layer:
    """What may differ from layer to layer. window: tokens a row sees, itself included; 0 = all.
    rope: None for a layer without positions."""

    rope: Rope | None
    window: int = 0


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """One decoder-only transformer.

    Shapes: hidden states are (rows, hidden); queries (rows, heads * head_dim); keys and values
    (rows, kv_heads * head_dim). `context` is the longest text the model may see, in tokens.
    """

    architecture: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int
    layers: tuple[Layer, ...]
    norm_eps: float = 1e-5
    tied: bool = False  # the head is the embedding table
    activation: str = "silu"  # or "gelu_tanh"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norm of each query and key head
    fused: bool = False  # the checkpoint stores qkv and gate_up as one tensor each
    sandwich: bool = False  # norms after attention and MLP as well as before
    norm_offset: float = 0.0  # added to every stored norm weight
    embed_scale: float = 1.0
    attention_scale: float = 0.0  # 0: head_dim ** -0.5
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0

    @property
    def scale(self) -> float:
        """What query-key products are multiplied with."""
        return self.attention_scale or self.head_dim**-0.5
