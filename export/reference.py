"""The decoder computed with numpy from the checkpoint's own values: what a graph is measured by.

Tensors are read, dequantised and dropped one slice at a time, so a reference pass over a model
needs little memory beside its activations.
"""

from collections.abc import Callable, Sequence

import numpy as np

from specrt.export.source import Checkpoint
from specrt.models.config import Layer, Rope
from specrt.models.decoder import Normed, decoder

SLICE = 32 << 20  # weights dequantised at a time


def reference_logits(
    checkpoint: Checkpoint,
    tokens: Sequence[int],
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Logits of every position of one text, (len(tokens), vocab) float32, in full precision."""
    config = checkpoint.config
    ops = Reference(checkpoint, np.asarray(tokens, np.int64), progress)
    return decoder(ops, config)[0]


class Reference:
    """The operations of `models.decoder.Ops` on arrays of (tokens, width)."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokens: np.ndarray,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.checkpoint, self.config, self.tokens = checkpoint, checkpoint.config, tokens
        self._progress = progress or (lambda done, total: None)

    def embed(self, table: str) -> np.ndarray:
        tensor = self.checkpoint.tensor(table)
        rows = {int(t): tensor.float32(int(t), int(t) + 1)[0] for t in set(self.tokens.tolist())}
        return np.stack([rows[int(t)] for t in self.tokens]) * np.float32(self.config.embed_scale)

    def norm(self, x: np.ndarray, weight: str) -> np.ndarray:
        return rms_norm(x, self._norm_weight(weight), self.config.norm_eps)

    def add_norm(
        self, x: np.ndarray, update: np.ndarray, weight: str
    ) -> tuple[np.ndarray, np.ndarray]:
        total = x + update
        return self.norm(total, weight), total

    def linear(self, x: np.ndarray, weights: Sequence[str], biased: bool) -> np.ndarray:
        products = [self._product(x, name) for name in weights]
        if biased:
            for product, name in zip(products, weights, strict=True):
                product += self._vector(name.removesuffix("weight") + "bias")
        return np.concatenate(products, axis=1)

    def norm_linear(
        self, rows: Normed[np.ndarray], weights: Sequence[str], biased: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        total = rows.x if rows.update is None else rows.x + rows.update
        return self.linear(self.norm(total, rows.weight), weights, biased), total

    def attention(self, qkv: np.ndarray, index: int, layer: Layer) -> np.ndarray:
        config, rows = self.config, len(qkv)
        groups, head = config.heads // config.kv_heads, config.head_dim
        heads = qkv.reshape(rows, -1, head).transpose(1, 0, 2)  # (heads + 2 kv_heads, rows, head)
        query, key, value = np.split(heads, [config.heads, config.heads + config.kv_heads])
        if config.qk_norm:
            name = f"model.layers.{index}.self_attn"
            query = self.norm(query, f"{name}.q_norm.weight")
            key = self.norm(key, f"{name}.k_norm.weight")
        if layer.rope is not None:
            query, key = rotate(query, layer.rope), rotate(key, layer.rope)
        query = query.reshape(config.kv_heads, groups * rows, head)
        scores = np.matmul(query, key.transpose(0, 2, 1)) * np.float32(config.scale)
        if config.attention_softcap:
            cap = np.float32(config.attention_softcap)
            scores = cap * np.tanh(scores / cap)
        scores = scores.reshape(config.kv_heads, groups, rows, rows)
        scores[:, :, ~visible(rows, layer.window)] = -np.inf
        weights = softmax(scores).reshape(config.kv_heads, groups * rows, rows)
        mixed = np.matmul(weights, value).reshape(config.heads, rows, head)
        self._progress(index + 1, len(config.layers))
        return np.ascontiguousarray(mixed.transpose(1, 0, 2)).reshape(rows, -1)

    def norm_feed_forward(
        self, rows: Normed[np.ndarray], gate_up: Sequence[str], down: Sequence[str], biased: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        both, total = self.norm_linear(rows, gate_up, biased)
        gate, up = np.split(both, 2, axis=1)
        gate = activation(gate, self.config.activation)
        gate *= up
        return self.linear(gate, down, biased), total

    def tap(self, x: np.ndarray, index: int) -> None:
        """Nothing here reads taps."""

    def head(self, x: np.ndarray, table: str) -> np.ndarray:
        logits = self._product(x, table)
        cap = np.float32(self.config.logit_softcap)
        return cap * np.tanh(logits / cap) if cap else logits

    def _product(self, x: np.ndarray, name: str) -> np.ndarray:
        tensor = self.checkpoint.tensor(name)
        rows, cols = tensor.shape
        out = np.empty((len(x), rows), np.float32)
        step = max(1, SLICE // cols)
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            np.matmul(x, tensor.float32(start, stop).T, out=out[:, start:stop])
        return out

    def _vector(self, name: str) -> np.ndarray:
        return self.checkpoint.tensor(name).float32().reshape(-1)

    def _norm_weight(self, name: str) -> np.ndarray:
        return self._vector(name) + np.float32(self.config.norm_offset)


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x / rms(x) * weight along the last axis."""
    mean = np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
    scaled: np.ndarray = x / np.sqrt(mean + eps) * weight
    return scaled.astype(np.float32)


def rotate(heads: np.ndarray, rope: Rope) -> np.ndarray:
    """Rotary embedding of (heads, rows, head_dim); pair i is dimensions (i, i + dims/2)."""
    cos, sin = rope.tables(heads.shape[1])
    half = rope.dims // 2
    first, second = heads[..., :half], heads[..., half : rope.dims]
    turned = [first * cos - second * sin, second * cos + first * sin, heads[..., rope.dims :]]
    return np.concatenate(turned, axis=-1)


def visible(rows: int, window: int) -> np.ndarray:
    """(rows, rows): whether a row sees a column; window 0 = everything before it."""
    distance = np.arange(rows)[:, None] - np.arange(rows)
    seen: np.ndarray = distance >= 0
    return seen & (distance < window) if window else seen


def softmax(scores: np.ndarray) -> np.ndarray:
    """Along the last axis."""
    weights: np.ndarray = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def activation(x: np.ndarray, kind: str) -> np.ndarray:
    """silu, or gelu in its tanh form."""
    bend: np.ndarray
    if kind == "silu":
        bend = 1 / (1 + np.exp(-x))
    else:
        bend = 0.5 * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + 0.044715 * x**3)))
    bend *= x
    return bend
