"""Rotary embeddings of every supported scaling, resolved to one form: divisors and a scale.

A scaling changes each plain frequency f to f / factor and may multiply cos and sin; so linear,
llama3, yarn and longrope all become `Rope.factors` and `Rope.scale`, and nothing later knows them.
"""

import math

import numpy as np

from specrt.models.config import Rope
from specrt.models.fields import Fields, UnsupportedError

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope")


def resolve_rope(parameters: Fields, head_dim: int, context: int, trained: int) -> Rope:
    """The rotary embedding that `parameters` (rope_type, rope_theta, factor, …) describe.

    context: tokens the text may have; longrope takes its short factors if it is within the
    original context. trained: max_position_embeddings, the default of the original context.
    """
    base = parameters.number("rope_theta")
    if base <= 1:
        raise UnsupportedError(f"rope_theta is {base}; it must be above 1")
    dims = int(head_dim * parameters.number("partial_rotary_factor", 1.0))
    if dims % 2 or not 2 <= dims <= head_dim:
        raise UnsupportedError(
            f"{dims} of {head_dim} head dimensions rotate; it must be an even number of them"
        )
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if kind == "su" or parameters.has("long_factor"):  # names that early phi3 files use
        kind = "longrope"
    original = parameters.size("original_max_position_embeddings", trained)
    match kind:
        case "default":
            return Rope(base, dims)
        case "linear":
            return Rope(base, dims, (parameters.number("factor"),) * (dims // 2))
        case "llama3":
            return Rope(base, dims, _llama3(parameters, Rope(base, dims), original))
        case "yarn":
            factor = parameters.number("factor", trained / original)
            scale = parameters.number("attention_factor", _yarn_scale(parameters, factor))
            return Rope(base, dims, _yarn(parameters, Rope(base, dims), factor, original), scale)
        case "longrope":
            name = "short_factor" if context <= original else "long_factor"
            factor = parameters.number("factor", trained / original)
            scale = parameters.number("attention_factor", _longrope_scale(factor, original))
            return Rope(base, dims, parameters.numbers(name, dims // 2), scale)
    raise UnsupportedError(
        f"rope type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}"
    )


def _llama3(parameters: Fields, plain: Rope, original: int) -> tuple[float, ...]:
    """Long waves are stretched by `factor`, short ones kept, those between blended."""
    factor = parameters.number("factor")
    low, high = parameters.number("low_freq_factor"), parameters.number("high_freq_factor")
    if high <= low:
        raise UnsupportedError(f"high_freq_factor {high} must be above low_freq_factor {low}")
    turns = original * plain.frequencies() / (2 * math.pi)  # (dims/2,) in the original context
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return tuple((1 / (keep + (1 - keep) / factor)).tolist())


def _yarn(parameters: Fields, plain: Rope, factor: float, original: int) -> tuple[float, ...]:
    """As llama3, with the blend linear in the dimension instead of the number of turns."""

    def dimension(turns: float) -> float:
        rotations = math.log(original / (turns * 2 * math.pi))
        return plain.dims * rotations / (2 * math.log(plain.base))

    low = dimension(parameters.number("beta_fast", 32.0))
    high = dimension(parameters.number("beta_slow", 1.0))
    if parameters.flag("truncate", True):
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0), min(high, plain.dims - 1)
    width = high - low if high != low else 0.001
    stretch = np.clip((np.arange(plain.dims // 2) - low) / width, 0, 1)
    return tuple((1 / (stretch / factor + (1 - stretch))).tolist())


def _longrope_scale(factor: float, original: int) -> float:
    if factor <= 1 or original <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original))


def _yarn_scale(parameters: Fields, factor: float) -> float:
    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if parameters.has("mscale") and parameters.has("mscale_all_dim"):
        return scale(parameters.number("mscale")) / scale(parameters.number("mscale_all_dim"))
    return scale(1.0)
