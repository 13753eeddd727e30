"""Weight formats: what is carried over exactly, what is searched, and what the graph reads."""

import gguf
import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from specrt.export import quantize
from specrt.export.quantize import Packed, pack
from specrt.export.rounding import round_to, search, search_symmetric
from specrt.export.source import Tensor
from specrt.runtime.errors import SourceError

FORMATS = ("fp32", "fp16", "int8", "int4", "w8a8")


def tensor(values: np.ndarray, name: str = "w") -> Tensor:
    values = np.ascontiguousarray(values, np.float32)
    return Tensor(name, values.shape, "F32", values.view(np.uint8).reshape(len(values), -1))


def quantised(kind: str, rows: int = 24, cols: int = 128, seed: int = 0) -> Tensor:
    """Random blocks of a type: any codes, steps of either sign."""
    rng = np.random.default_rng(seed)
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = rng.integers(0, 256, (rows, cols // block, size), dtype=np.uint8)
    steps = rng.standard_normal((rows, cols // block)).astype(np.float16)
    raw[:, :, :2] = steps[..., None].view(np.uint8)
    return Tensor("w", (rows, cols), kind, raw.reshape(rows, -1))


def normal(rows: int, cols: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)


def product(packed: Packed, x: np.ndarray, accuracy: int) -> np.ndarray:
    """x times the packed weights, by onnxruntime's own operator."""
    held = {"data": packed.data, "scales": packed.scales}
    if packed.zeros is not None:
        held["zeros"] = packed.zeros
    node = helper.make_node(
        "MatMulNBits",
        ["x", *held],
        ["y"],
        domain="com.microsoft",
        K=packed.cols,
        N=packed.rows,
        bits=packed.bits,
        block_size=packed.block,
        accuracy_level=accuracy,
    )
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, packed.cols])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, packed.rows])],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0", "Q8_0", "IQ4_NL"])
def test_int8_keeps_types_of_one_step_a_block_bit_for_bit(kind):
    source = quantised(kind)
    assert np.array_equal(pack([source], "int8").float32(), source.float32())


def test_int4_keeps_q4_0_bit_for_bit_and_without_zero_codes():
    source = quantised("Q4_0")
    packed = pack([source], "int4")
    assert packed.zeros is None
    assert np.array_equal(packed.float32(), source.float32())


def test_int4_keeps_a_q4_0_tensor_exactly_beside_one_that_is_searched():
    exact, searched = quantised("Q4_0", 5), tensor(normal(3, 128))
    packed = pack([searched, exact], "int4")
    assert packed.zeros is not None
    assert np.array_equal(packed.float32(3), exact.float32())


@pytest.mark.parametrize("format", FORMATS)
def test_several_tensors_are_one_below_the_other(format):
    parts = [tensor(normal(rows, 96, rows)) for rows in (7, 1, 40)]
    packed = pack(parts, format)
    alone = np.concatenate([pack([part], format).float32() for part in parts])
    assert (packed.rows, packed.cols) == (48, 96)
    assert np.array_equal(packed.float32(), alone)


@pytest.mark.parametrize("format", FORMATS)
def test_packing_does_not_depend_on_how_rows_are_cut(format, monkeypatch):
    source = tensor(normal(34, 64))
    whole = pack([source], format).float32()
    monkeypatch.setattr(quantize, "CHUNK", 4 * 64)
    assert np.array_equal(pack([source], format).float32(), whole)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("cols", [33, 95, 96])
def test_a_row_range_reads_back_as_those_rows(format, cols):
    packed = pack([tensor(normal(12, cols))], format)
    assert packed.float32(4, 9).shape == (5, cols)
    assert np.array_equal(packed.float32(4, 9), packed.float32()[4:9])


# Relative squared errors of a normal law, as measured; wider by a tenth than the worst of 5 seeds.
@pytest.mark.parametrize(
    ("format", "most"),
    [("fp32", 0.0), ("fp16", 4.8e-8), ("int8", 3.2e-5), ("int4", 6.6e-3), ("w8a8", 6.3e-5)],
)
def test_the_error_of_normal_weights_is_what_the_width_allows(format, most):
    values = normal(64, 512)
    error = pack([tensor(values)], format).float32() - values
    assert (error**2).sum() <= most * (values**2).sum()


def test_the_search_is_never_worse_than_plain_rounding():
    x = normal(32, 500) * np.random.default_rng(1).choice([1, 1, 1, 6], (32, 500))
    x = x.astype(np.float32)
    low, high = np.minimum(x.min(axis=0), 0), np.maximum(x.max(axis=0), 0)
    step = (high - low) / 15
    zero = np.rint(-low / step)
    plain = (((round_to(x, step, zero, 15) - zero) * step - x) ** 2).sum()
    codes, step, zero = search(x, 15)
    assert (((codes - zero) * step - x) ** 2).sum() < 0.95 * plain
    codes, step, zero = search_symmetric(x, 15)
    assert set(zero) == {8}
    assert (((codes - zero) * step - x) ** 2).sum() < 1.4 * plain


@pytest.mark.parametrize("format", FORMATS)
def test_weights_of_zero_stay_zero(format):
    values = normal(4, 64)
    values[1], values[2, 32:] = 0, 0
    back = pack([tensor(values)], format).float32()
    assert not back[1].any()
    assert format == "w8a8" or not back[2, 32:].any()


@pytest.mark.parametrize("format", FORMATS)
def test_weights_smaller_than_any_step_cause_no_harm(format):
    values = np.full((2, 64), 1e-40, np.float32)
    assert np.abs(pack([tensor(values)], format).float32()).max() <= 1e-38


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_refused_by_its_tensors_name(format, bad):
    values = normal(40, 64)
    values[33, 5] = bad
    with pytest.raises(SourceError, match=r"tensor layer\.w holds NaN or infinite"):
        pack([tensor(normal(3, 64)), tensor(values, "layer.w")], format)


def test_a_step_that_is_not_finite_is_refused():
    source = quantised("Q8_0")
    source.raw[2, :2] = np.array([np.inf], np.float16).view(np.uint8)
    with pytest.raises(SourceError, match="holds NaN or infinite"):
        pack([source], "int8")


def test_a_weight_too_large_for_float16_is_refused():
    with pytest.raises(SourceError, match="float16 cannot hold"):
        pack([tensor(np.full((2, 32), 7e4))], "fp16")


def test_an_unknown_format_is_our_own_mistake():
    with pytest.raises(ValueError, match="'int3' is not one of fp32, fp16, int8, int4, w8a8"):
        pack([tensor(normal(1, 32))], "int3")


# The bound is float32 rounding over 96 products.
@pytest.mark.parametrize(("format", "zeros"), [("int8", True), ("int4", True), ("int4", False)])
@pytest.mark.parametrize("cols", [96, 80])
def test_onnxruntime_reads_the_blocks_as_we_do(format, zeros, cols):
    packed = pack([tensor(normal(48, cols))], format, zeros=zeros)
    assert (packed.zeros is not None) == (format == "int4" and zeros)
    x = np.eye(cols, dtype=np.float32)
    assert np.abs(product(packed, x, accuracy=0).T - packed.float32()).max() <= 1e-6


# Each activation is rounded to 1/127 of its block's largest.
@pytest.mark.parametrize("format", ["int8", "int4"])
def test_onnxruntime_with_8_bit_activations_errs_by_their_rounding_alone(format):
    packed, x = pack([tensor(normal(48, 96))], format), normal(5, 96, seed=1)
    exact = x @ packed.float32().T
    steps = np.abs(x.reshape(5, 3, 32)).max(axis=2) / 127
    weights = np.abs(packed.float32()).reshape(48, 3, 32).sum(axis=2)
    assert (np.abs(product(packed, x, accuracy=4) - exact) <= 0.51 * steps @ weights.T + 1e-5).all()
