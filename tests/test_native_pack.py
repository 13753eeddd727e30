"""What the native formats keep of a checkpoint's weights, and in how many bits."""

import numpy as np
import pytest
from gguf_blocks import decode, encode

from specrt.export import native, quantize
from specrt.export.source import Tensor
from specrt.runtime.errors import SourceError

ROWS, COLS = 20, 256
FOUR_BITS = (native.FOUR, native.FOUR_MINIMUM)


def tensor(kind: str, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((ROWS, COLS)).astype(np.float32)
    raw = np.ascontiguousarray(encode(values, kind, rng)).view(np.uint8).reshape(ROWS, -1)
    return Tensor("weights", (ROWS, COLS), kind, raw)


def kind_of(packed: np.ndarray) -> int:
    """Of the first matrix of a constant."""
    return int(packed[:20].view("<u4")[4])


def held(tensor: Tensor, kind: int) -> np.ndarray:
    """The weights that the codes of this kind stand for, (rows, cols) float32."""
    codes = native._codes(tensor, 0, ROWS, kind)
    assert codes.kind == kind
    blocks = codes.codes.astype(np.float32).reshape(ROWS, -1, native.RUN[kind]) - native.ZERO[kind]
    steps, minimums = codes.sizes
    weights = blocks * steps[..., None]
    if minimums is not None:
        weights -= minimums[..., None]
    return weights.reshape(ROWS, COLS)


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Root mean square, over that of the weights."""
    return float(np.sqrt(np.mean(np.square(found - wanted)) / np.mean(np.square(wanted))))


@pytest.mark.parametrize(
    ("stored", "format", "kind"),
    [
        ("Q4_0", "carried", native.FOUR),
        ("Q4_1", "carried", native.FOUR_MINIMUM),
        ("Q4_K", "carried", native.FOUR_K),
        ("Q5_0", "carried", native.SIX),
        ("Q6_K", "carried", native.SIX_K),
        ("Q5_K", "carried", native.EIGHT),
        ("F32", "carried", native.EIGHT),
        ("Q4_0", "int4", native.FOUR),
        ("Q4_1", "int4", native.FOUR_MINIMUM),
        ("Q6_K", "int4", native.FOUR_MINIMUM),
        ("Q4_0", "int8", native.EIGHT),
        ("Q4_K", "int8", native.EIGHT),
    ],
)
def test_a_format_has_its_bits_for_every_type(stored, format, kind):
    assert kind_of(native.pack([tensor(stored)], format)) == kind


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        ("Q4_0", native.FOUR),
        ("Q4_1", native.FOUR_MINIMUM),
        ("Q4_K", native.FOUR_K),
        ("Q4_0", native.EIGHT),
        ("Q5_0", native.SIX),
        ("Q5_0", native.EIGHT),
        ("Q6_K", native.SIX_K),
        ("Q8_0", native.EIGHT),
    ],
)
def test_some_types_are_kept_exactly(stored, kind):
    made = tensor(stored)
    assert np.array_equal(held(made, kind), decode(made.raw, stored))


@pytest.mark.parametrize("stored", ["F32", "Q4_1", "Q5_1", "Q5_K", "Q6_K", "IQ4_NL"])
def test_all_others_are_rounded_to_8_bits(stored):
    made = tensor(stored)  # 1/254 of a block's largest weight at most: measured 0.003 to 0.006
    assert error(held(made, native.EIGHT), decode(made.raw, stored)) < 0.008


def test_rounding_to_4_bits_loses_what_the_stock_format_loses():
    made = tensor("F32")
    wanted = decode(made.raw, "F32")
    stock = error(quantize.pack([made], "int4").float32(), wanted)
    ours = error(held(made, native.FOUR_MINIMUM), wanted)
    assert ours == pytest.approx(stock, rel=1e-3)  # steps are float16 here
    assert ours < 0.09


@pytest.mark.parametrize(("value", "format"), [(3e38, "int8"), (3e38, "int4"), (np.nan, "int8")])
def test_weights_that_cannot_be_held_are_refused(value, format):
    values = np.ones((ROWS, COLS), np.float32)
    values[3, 5] = value
    made = Tensor("weights", (ROWS, COLS), "F32", values.view(np.uint8))
    with pytest.raises(SourceError, match=r"tensor weights (has|holds)"):
        native.pack([made], format)
