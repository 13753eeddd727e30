"""What a decoder is made of besides attention, in three dialects of ONNX.

`Fused` uses onnxruntime's own operators, fewer and faster. `Plain` uses standard operators only,
for engines that read nothing else. `Native` uses those of runtime/native, fewer and faster again
on a CPU. All give the same numbers up to rounding.
"""

from dataclasses import dataclass
from typing import Protocol

import ml_dtypes
import numpy as np

from specrt.export import native
from specrt.export.linear import embedding, linear
from specrt.export.native import Rows
from specrt.export.quantize import Packed
from specrt.export.writer import GraphWriter

INT4_SIGN = np.uint8(0x88)  # codes count from 8 (int8: from 128); flipping the top bit signs them
INT8_SIGN = np.uint8(0x80)


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear map: the name of its constant, its weights, the constant of its bias or "", and how
    many of the checkpoint's matrices stand in it, one below the other."""

    name: str
    packed: Packed
    bias: str = ""
    parts: int = 1


class Operators(Protocol):
    """Nodes for rows x of (1, S, width)."""

    def norm(self, graph: GraphWriter, x: str, weight: str, epsilon: float) -> str:
        """RMS norm of each row."""
        ...

    def add_norm(
        self, graph: GraphWriter, x: str, update: str, weight: str, epsilon: float
    ) -> tuple[str, str]:
        """RMS norm of x + update, and x + update itself."""
        ...

    def gate(self, graph: GraphWriter, gate_up: str, activation: str) -> str:
        """activation(first half) times second half of each row; "silu" or "gelu_tanh"."""
        ...

    def linear(self, graph: GraphWriter, x: str, map: Linear) -> str:
        """x (1, S, cols) times the transposed weights plus bias: (1, S, rows)."""
        ...

    def norm_linear(self, graph: GraphWriter, rows: Rows, map: Linear) -> tuple[str, str]:
        """`linear` of the normed rows, and their sum."""
        ...

    def norm_feed_forward(
        self, graph: GraphWriter, rows: Rows, gate_up: Linear, down: Linear, activation: str
    ) -> tuple[str, str]:
        """The three maps of a layer with the gate between them, of the normed rows; their sum."""
        ...

    def embedding(self, graph: GraphWriter, ids: str, name: str, packed: Packed) -> str:
        """Rows `ids` (1, S) of the table: (1, S, cols)."""
        ...


class Fused:
    """onnxruntime's own operators."""

    def norm(self, graph: GraphWriter, x: str, weight: str, epsilon: float) -> str:
        return graph.call("SimplifiedLayerNormalization", x, weight, axis=-1, epsilon=epsilon)

    def add_norm(
        self, graph: GraphWriter, x: str, update: str, weight: str, epsilon: float
    ) -> tuple[str, str]:
        normed, _, _, total = graph.node(
            "SkipSimplifiedLayerNormalization",
            [x, update, weight],
            [graph.fresh("normed"), "", "", graph.fresh("residual")],
            domain="com.microsoft",
            epsilon=epsilon,
        )
        return normed, total

    def gate(self, graph: GraphWriter, gate_up: str, activation: str) -> str:
        gate, up = graph.node("Split", [gate_up], 2, axis=2, num_outputs=2)
        if activation == "silu":
            return graph.call("Mul", graph.contrib("QuickGelu", gate, alpha=1.0), up)
        return graph.call("Mul", graph.call("Gelu", gate, approximate="tanh"), up)

    def linear(self, graph: GraphWriter, x: str, map: Linear) -> str:
        return linear(graph, x, map.name, map.packed, map.bias)

    def norm_linear(self, graph: GraphWriter, rows: Rows, map: Linear) -> tuple[str, str]:
        return _norm_linear(self, graph, rows, map)

    def norm_feed_forward(
        self, graph: GraphWriter, rows: Rows, gate_up: Linear, down: Linear, activation: str
    ) -> tuple[str, str]:
        return _norm_feed_forward(self, graph, rows, gate_up, down, activation)

    def embedding(self, graph: GraphWriter, ids: str, name: str, packed: Packed) -> str:
        return embedding(graph, ids, name, packed)


class Plain:
    """Standard operators. Quantised weights are dequantised in the graph, symmetric ones only."""

    def __init__(self) -> None:
        self._made: dict[str, str] = {}  # a tied head shares the table

    def norm(self, graph: GraphWriter, x: str, weight: str, epsilon: float) -> str:
        return graph.call("RMSNormalization", x, weight, axis=-1, epsilon=epsilon)

    def add_norm(
        self, graph: GraphWriter, x: str, update: str, weight: str, epsilon: float
    ) -> tuple[str, str]:
        total = graph.call("Add", x, update)
        return self.norm(graph, total, weight, epsilon), total

    def gate(self, graph: GraphWriter, gate_up: str, activation: str) -> str:
        gate, up = graph.node("Split", [gate_up], 2, axis=2, num_outputs=2)
        if activation == "silu":
            bent = graph.call("Mul", gate, graph.call("Sigmoid", gate))
        else:
            bent = graph.call("Gelu", gate, approximate="tanh")
        return graph.call("Mul", bent, up)

    def linear(self, graph: GraphWriter, x: str, map: Linear) -> str:
        weights = graph.call("Transpose", self._weights(graph, map.name, map.packed), perm=[1, 0])
        product = graph.call("MatMul", x, weights)
        return graph.call("Add", product, map.bias) if map.bias else product

    def norm_linear(self, graph: GraphWriter, rows: Rows, map: Linear) -> tuple[str, str]:
        return _norm_linear(self, graph, rows, map)

    def norm_feed_forward(
        self, graph: GraphWriter, rows: Rows, gate_up: Linear, down: Linear, activation: str
    ) -> tuple[str, str]:
        return _norm_feed_forward(self, graph, rows, gate_up, down, activation)

    def embedding(self, graph: GraphWriter, ids: str, name: str, packed: Packed) -> str:
        return graph.call("Gather", self._weights(graph, name, packed), ids)

    def _weights(self, graph: GraphWriter, name: str, packed: Packed) -> str:
        """The weights as numbers, (rows, cols)."""
        if not packed.bits:
            return graph.constant(name, packed.data)
        if name not in self._made:
            assert packed.zeros is None, f"{name} has zero codes, which TensorRT refuses"
            scales = graph.constant(f"{name}.scales", packed.scales)
            numbers = (_from_int8 if packed.bits == 8 else _from_int4)(graph, name, packed, scales)
            if packed.cols % packed.block:
                ends = graph.ints(packed.cols)
                numbers = graph.call("Slice", numbers, graph.ints(0), ends, graph.ints(1))
            self._made[name] = numbers
        return self._made[name]


class Native:
    """Operators of domain `specrt`; weights that it has no format for are onnxruntime's."""

    def norm(self, graph: GraphWriter, x: str, weight: str, epsilon: float) -> str:
        return native.norm(graph, x, weight, epsilon)

    def add_norm(
        self, graph: GraphWriter, x: str, update: str, weight: str, epsilon: float
    ) -> tuple[str, str]:
        return native.add_norm(graph, x, update, weight, epsilon)

    def gate(self, graph: GraphWriter, gate_up: str, activation: str) -> str:
        return native.gate(graph, gate_up, activation)

    def linear(self, graph: GraphWriter, x: str, map: Linear) -> str:
        if map.packed.format != native.PACKED:
            return linear(graph, x, map.name, map.packed, map.bias)
        return native.linear(graph, x, graph.constant(map.name, map.packed.data), map.bias)

    def norm_linear(self, graph: GraphWriter, rows: Rows, map: Linear) -> tuple[str, str]:
        if map.packed.format != native.PACKED:
            return _norm_linear(self, graph, rows, map)
        weights = graph.constant(map.name, map.packed.data)
        return native.norm_linear(graph, rows, [weights, map.bias])

    def norm_feed_forward(
        self, graph: GraphWriter, rows: Rows, gate_up: Linear, down: Linear, activation: str
    ) -> tuple[str, str]:
        maps = (gate_up, down)
        whole_tiles = gate_up.parts == 2 or gate_up.packed.rows % (2 * native.TILE) == 0
        if not whole_tiles or any(map.packed.format != native.PACKED for map in maps):
            return _norm_feed_forward(self, graph, rows, gate_up, down, activation)
        weights = (native.in_turns(gate_up.packed.data), down.packed.data)
        inputs = [graph.constant(map.name, data) for map, data in zip(maps, weights, strict=True)]
        inputs += [map.bias for map in maps]
        return native.norm_feed_forward(graph, rows, inputs, activation)

    def embedding(self, graph: GraphWriter, ids: str, name: str, packed: Packed) -> str:
        if packed.format != native.PACKED:
            return embedding(graph, ids, name, packed)
        return native.embedding(graph, ids, graph.constant(name, packed.data))


def _normed(use: Operators, graph: GraphWriter, rows: Rows) -> tuple[str, str]:
    if not rows.update:
        return use.norm(graph, rows.x, rows.weight, rows.epsilon), rows.x
    return use.add_norm(graph, rows.x, rows.update, rows.weight, rows.epsilon)


def _norm_linear(use: Operators, graph: GraphWriter, rows: Rows, map: Linear) -> tuple[str, str]:
    normed, total = _normed(use, graph, rows)
    return use.linear(graph, normed, map), total


def _norm_feed_forward(
    use: Operators, graph: GraphWriter, rows: Rows, gate_up: Linear, down: Linear, activation: str
) -> tuple[str, str]:
    both, total = _norm_linear(use, graph, rows, gate_up)
    return use.linear(graph, use.gate(graph, both, activation), down), total


def _from_int8(graph: GraphWriter, name: str, packed: Packed, scales: str) -> str:
    """Each block is a channel with its scale; TensorRT knows no blocks of 8-bit numbers."""
    codes = (packed.data ^ INT8_SIGN).view(np.int8).reshape(-1, packed.block)
    flat = graph.alias(f"{scales}.flat", scales, (len(codes),))
    numbers = graph.call("DequantizeLinear", graph.constant(name, codes), flat, axis=0)
    return graph.call("Reshape", numbers, graph.ints(packed.rows, -1))


def _from_int4(graph: GraphWriter, name: str, packed: Packed, scales: str) -> str:
    codes = (packed.data ^ INT4_SIGN).view(ml_dtypes.int4)  # two a byte, whatever numpy believes
    shape = (packed.rows, packed.scales.shape[1] * packed.block)
    constant = graph.constant(name, codes, shape)
    return graph.call("DequantizeLinear", constant, scales, axis=1, block_size=packed.block)
