"""Linear maps and embedding tables as graph nodes, one function for each weight format.

`export.quantize` packs, this file emits; nothing else knows how a format looks in the graph.
"""

import numpy as np

from specrt.export.quantize import Packed
from specrt.export.writer import GraphWriter

INT8_ACTIVATIONS = 4  # MatMulNBits accuracy level: activations rounded per row and block
U8_ZERO = 128
U8_STEPS = 127.0
SMALLEST_SCALE = 1e-30  # keeps a row of zeros from dividing by zero


def linear(graph: GraphWriter, x: str, name: str, packed: Packed, bias: str = "") -> str:
    """x (1, S, cols) times the transposed weights plus bias: (1, S, rows)."""
    if packed.bits:
        return _block_quantised(graph, x, name, packed, bias)
    if packed.format == "w8a8":
        product = _integer_product(graph, x, name, packed)
    else:
        product = graph.contrib("FusedMatMul", x, graph.constant(name, packed.data), transB=1)
    return graph.call("Add", product, bias) if bias else product


def embedding(graph: GraphWriter, ids: str, name: str, packed: Packed) -> str:
    """Rows `ids` (1, S) of the table: (1, S, cols). Shares the constants of a tied head."""
    if not packed.bits:
        return graph.call("Gather", graph.constant(name, packed.data), ids)
    data, scales, zeros = _block_constants(graph, name, packed)
    by_row = graph.alias(f"{name}.scales.rows", scales, (*packed.scales.shape, 1))
    blocks = graph.contrib(
        "GatherBlockQuantized",
        *(data, ids, by_row, zeros),
        bits=packed.bits,
        block_size=packed.block,
        quantize_axis=2,
        gather_axis=0,
    )
    rows = graph.call("Reshape", blocks, graph.ints(1, -1, packed.block * packed.scales.shape[1]))
    if packed.cols % packed.block == 0:
        return rows
    return graph.call("Slice", rows, graph.ints(0), graph.ints(packed.cols), graph.ints(2))


def _block_constants(graph: GraphWriter, name: str, packed: Packed) -> tuple[str, str, str]:
    """The packed weights, their scales and, where the format has them, zero points."""
    zeros = ""
    if packed.zeros is not None:
        zeros = graph.constant(f"{name}.zeros", packed.zeros)
    data = graph.constant(name, packed.data)
    return data, graph.constant(f"{name}.scales", packed.scales), zeros


def _block_quantised(graph: GraphWriter, x: str, name: str, packed: Packed, bias: str) -> str:
    data, scales, zeros = _block_constants(graph, name, packed)
    return graph.contrib(
        "MatMulNBits",
        *(x, data, scales, zeros, "", bias),
        K=packed.cols,
        N=packed.rows,
        bits=packed.bits,
        block_size=packed.block,
        accuracy_level=INT8_ACTIVATIONS,
    )


def _integer_product(graph: GraphWriter, x: str, name: str, packed: Packed) -> str:
    """Each row of x is rounded to 8 bits by its own largest value, so rows stay independent."""
    largest = graph.call("ReduceMax", graph.call("Abs", x), graph.ints(-1), keepdims=1)
    steps = graph.constant("w8a8.steps", np.array(U8_STEPS, np.float32))
    floor = graph.constant("w8a8.floor", np.array(SMALLEST_SCALE, np.float32))
    scale = graph.call("Div", graph.call("Max", largest, floor), steps)
    rounded = graph.call("Round", graph.call("Div", x, scale))
    zero = graph.constant("w8a8.zero", np.array(U8_ZERO, np.float32))
    codes = graph.call("Cast", graph.call("Add", rounded, zero), to=2)
    product = graph.contrib(
        "MatMulIntegerToFloat",
        codes,
        graph.constant(name, packed.data),
        graph.constant("w8a8.one", np.array(1, np.float32)),
        graph.constant(f"{name}.scales", packed.scales),
        graph.constant("w8a8.zero.code", np.array(U8_ZERO, np.uint8)),
    )
    return graph.call("Mul", product, scale)
