"""Rows in any of GGUF's tensor types: encoded where the gguf package can, else random valid blocks.

The gguf package dequantises every type but quantises only some. For the others the bytes are drawn
at random, all but the scales, and what they mean is whatever the package says they mean.
"""

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize, quantize

# Byte offsets of a block's float16 scales, and of the float16 minimum beside it with the mean of
# the codes it is subtracted from (so that the weights are centred).
_SCALE = {
    "Q2_K": 80,
    "Q3_K": 108,
    "Q4_K": 0,
    "Q5_K": 0,
    "Q6_K": 208,
    "IQ1_S": 0,
    "IQ2_XXS": 0,
    "IQ2_XS": 0,
    "IQ2_S": 0,
    "IQ3_XXS": 0,
    "IQ3_S": 0,
    "IQ4_NL": 0,
    "IQ4_XS": 0,
}
_MINIMUM = {"Q2_K": (82, 1.5), "Q4_K": (2, 7.5), "Q5_K": (2, 15.5)}
ENCODED = ("F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "MXFP4", "TQ1_0", "TQ2_0")
DRAWN = (*_SCALE, "IQ1_M", "NVFP4")


def block_length(kind: str) -> int:
    """Values in one block of this type."""
    return int(GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0])


def encode(values: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """Rows of this type: (rows, columns) float32 -> (rows, bytes) uint8 or float.

    For a type of `DRAWN` only the spread of the values survives.
    """
    if kind == "F32":
        return values
    if kind in ENCODED:
        return np.asarray(quantize(values, GGMLQuantizationType[kind]))
    return _draw(values.shape, float(values.std()), kind, rng)


def decode(stored: np.ndarray, kind: str) -> np.ndarray:
    """What rows of this type mean: (rows, columns) float32."""
    return np.asarray(dequantize(stored, GGMLQuantizationType[kind]), np.float32)


def _draw(shape: tuple[int, ...], spread: float, kind: str, rng: np.random.Generator) -> np.ndarray:
    length, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    rows, blocks = shape[0], shape[1] // length
    drawn = rng.integers(0, 256, (rows * blocks, size), dtype=np.uint8)
    unit = decode(_with_scale(drawn, kind, np.ones(len(drawn))), kind)
    scales = spread / unit.std() * rng.uniform(0.7, 1.3, len(drawn))
    return _with_scale(drawn, kind, scales).reshape(rows, blocks * size)


def _with_scale(blocks: np.ndarray, kind: str, scales: np.ndarray) -> np.ndarray:
    """The blocks with these scales: (n, bytes) uint8 and (n,) -> (n, bytes) uint8."""
    blocks = blocks.copy()
    if kind == "NVFP4":  # four e4m3 scales, one for each 16 values
        exponent = np.clip(np.round(np.log2(scales)) + 7, 0, 14).astype(np.uint8)
        blocks[:, :4] = blocks[:, :4] & 7 | exponent[:, None] << 3
        return blocks
    half = scales.astype(np.float16)
    if kind == "IQ1_M":  # a quarter of the float16 in the top bits of each 16-bit word
        words = blocks[:, 48:56].copy().view(np.uint16)
        quarters = half.view(np.uint16)[:, None] << np.array([12, 8, 4, 0], np.uint16)
        blocks[:, 48:56] = (words & 0x0FFF | quarters & 0xF000).view(np.uint8)
        return blocks
    _put(blocks, _SCALE[kind], half)
    if kind in _MINIMUM:
        at, mean = _MINIMUM[kind]
        _put(blocks, at, (scales * mean).astype(np.float16))
    return blocks


def _put(blocks: np.ndarray, at: int, halves: np.ndarray) -> None:
    blocks[:, at : at + 2] = halves[:, None].view(np.uint8)
