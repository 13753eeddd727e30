"""A decoder as an ONNX graph: `models.decoder` with nodes as its operations.

Inputs and outputs are the graph contract, described in `runtime/bundle.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from specrt.export.flavour import CPU, Flavour
from specrt.export.native import Rows
from specrt.export.operators import Linear
from specrt.export.quantize import Packed
from specrt.export.writer import GraphWriter
from specrt.models.config import DecoderConfig, Layer
from specrt.models.decoder import Normed, decoder


class Weights(Protocol):
    """What a graph asks of a checkpoint."""

    def packed(self, names: Sequence[str]) -> Packed:
        """The named matrices, stacked along their rows, in the format of this export."""
        ...

    def vector(self, names: Sequence[str]) -> np.ndarray:
        """The named vectors end to end, float32."""
        ...


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a graph gives besides logits. taps: layers whose entering residual stream is wanted."""

    hidden: bool = False
    taps: tuple[int, ...] = ()


class DecoderGraph:
    """The operations of `models.decoder.Ops`, each appending nodes; a Value is a node's result."""

    def __init__(
        self,
        graph: GraphWriter,
        config: DecoderConfig,
        weights: Weights,
        flavour: Flavour,
        dtype: type[np.generic],
        cache: type[np.generic],
    ) -> None:
        self.graph, self.config, self.weights = graph, config, weights
        self.use, self.attend = flavour.operators(), flavour.attention(graph, config, dtype, cache)
        self.dtype = dtype
        self.taps: dict[int, str] = {}

    def embed(self, table: str) -> str:
        rows = self.use.embedding(self.graph, "input_ids", table, self._packed([table]))
        if self.config.embed_scale == 1.0:
            return rows
        scale = np.asarray(self.config.embed_scale, self.dtype)
        return self.graph.call("Mul", rows, self.graph.constant("embed_scale", scale))

    def norm(self, x: str, weight: str) -> str:
        return self.use.norm(self.graph, x, self._norm_weight(weight), self.config.norm_eps)

    def add_norm(self, x: str, update: str, weight: str) -> tuple[str, str]:
        epsilon = self.config.norm_eps
        return self.use.add_norm(self.graph, x, update, self._norm_weight(weight), epsilon)

    def linear(self, x: str, weights: Sequence[str], biased: bool) -> str:
        return self.use.linear(self.graph, x, self._linear(weights, biased))

    def norm_linear(
        self, rows: Normed[str], weights: Sequence[str], biased: bool
    ) -> tuple[str, str]:
        return self.use.norm_linear(self.graph, self._rows(rows), self._linear(weights, biased))

    def attention(self, qkv: str, index: int, layer: Layer) -> str:
        if self.config.qk_norm:
            for part in "qk":
                self._norm_weight(f"model.layers.{index}.self_attn.{part}_norm.weight")
        return self.attend(self.graph, qkv, index, layer)

    def norm_feed_forward(
        self, rows: Normed[str], gate_up: Sequence[str], down: Sequence[str], biased: bool
    ) -> tuple[str, str]:
        maps = self._linear(gate_up, biased), self._linear(down, biased)
        normed, activation = self._rows(rows), self.config.activation
        return self.use.norm_feed_forward(self.graph, normed, *maps, activation)

    def tap(self, x: str, index: int) -> None:
        self.taps[index] = x

    def head(self, x: str, table: str) -> str:
        first = self.graph.call("Neg", "num_logits")
        end = self.graph.ints(np.iinfo(np.int64).max)
        rows = self.graph.call("Slice", x, first, end, self.graph.ints(1))
        logits = self.use.linear(self.graph, rows, self._linear([table], False))
        cap = self.config.logit_softcap
        if cap:
            limit = self.graph.constant("logit_softcap", np.asarray(cap, self.dtype))
            bent = self.graph.call("Tanh", self.graph.call("Div", logits, limit))
            logits = self.graph.call("Mul", bent, limit)
        return logits

    def _rows(self, rows: Normed[str]) -> Rows:
        weight, epsilon = self._norm_weight(rows.weight), self.config.norm_eps
        return Rows(rows.x, rows.update or "", weight, epsilon)

    def _linear(self, weights: Sequence[str], biased: bool) -> Linear:
        bias = ""
        if biased:
            names = [name.removesuffix("weight") + "bias" for name in weights]
            bias = self.graph.constant(names[0], self.weights.vector(names).astype(self.dtype))
        return Linear(weights[0], self._packed(weights), bias, len(weights))

    def _packed(self, names: Sequence[str]) -> Packed:
        """The named matrices, their scales of the type of the activations."""
        packed = self.weights.packed(names)
        return replace(packed, scales=packed.scales.astype(self.dtype, copy=False))

    def _norm_weight(self, name: str) -> str:
        if not self.graph.has(name):
            weight = self.weights.vector([name]) + np.float32(self.config.norm_offset)
            self.graph.constant(name, weight.astype(self.dtype))
        return name


def write_decoder(
    folder: Path,
    config: DecoderConfig,
    weights: Weights,
    *,
    flavour: Flavour = CPU,
    dtype: type[np.generic] = np.float32,
    cache: type[np.generic] | None = None,
    outputs: Outputs = Outputs(),
) -> int:
    """Write the graph of one decoder into `folder`; returns its number of nodes.

    dtype: of activations. cache: of keys and values, None = dtype. The cache of flavours with
    standard attention has room for config.context tokens, always.
    """
    with GraphWriter(folder, flavour.opset) as graph:
        graph.input("input_ids", np.int64, (1, "rows"))
        graph.input("num_logits", np.int64, (1,))
        ops = DecoderGraph(graph, config, weights, flavour, dtype, cache or dtype)
        logits, hidden = decoder(ops, config)
        _result(graph, "logits", logits, dtype, (1, "logit_rows", config.vocab))
        if outputs.hidden:
            _result(graph, "hidden", hidden, dtype, (1, "rows", config.hidden))
        if outputs.taps:
            taps = [ops.taps[index] for index in outputs.taps]
            joined = graph.call("Concat", *taps, axis=2)
            _result(graph, "taps", joined, dtype, (1, "rows", config.hidden * len(taps)))
        graph.save()
        return graph.node_count


def _result(
    graph: GraphWriter, name: str, value: str, dtype: type[np.generic], shape: Sequence[int | str]
) -> None:
    """Give a value out as float32 under `name`."""
    graph.node(
        "Identity" if dtype is np.float32 else "Cast",
        [value],
        [name],
        **({} if dtype is np.float32 else {"to": 1}),
    )
    graph.output(name, np.float32, shape)
