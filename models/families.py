"""Model families: a checkpoint's own configuration (config.json) → `DecoderConfig`.

A family is one short function over shared parts, listed in `FAMILIES` under its `model_type`.
Values a configuration leaves out are those that transformers would take.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from specrt.models.config import DecoderConfig, Layer, Rope
from specrt.models.fields import Fields, UnsupportedError
from specrt.models.rope import resolve_rope

ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
FULL, SLIDING = "full_attention", "sliding_attention"


def decoder_config(config: Mapping[str, Any], context: int | None = None) -> DecoderConfig:
    """The decoder that a Hugging Face configuration describes; UnsupportedError if it cannot be.

    context: the longest text wanted, in tokens; at most (and by default) what the model allows.
    """
    name = Fields(config).text("model_type")
    if name not in FAMILIES:
        raise UnsupportedError(
            f"architecture {name!r} is not supported; supported: {', '.join(sorted(FAMILIES))}"
        )
    wanted = {} if context is None else {"context": context}
    return FAMILIES[name](Fields({**config, **wanted}))


def _llama(c: Fields) -> DecoderConfig:
    bias = c.flag("attention_bias")
    return replace(_base(c), qkv_bias=bias, output_bias=bias, mlp_bias=c.flag("mlp_bias"))


def _mistral(c: Fields) -> DecoderConfig:
    c = c.defaults({"sliding_window": 4096, "max_position_embeddings": 131072})
    return _base(c, [SLIDING] * _depth(c))


def _qwen2(c: Fields) -> DecoderConfig:
    c = c.defaults({"max_position_embeddings": 32768})
    return replace(_base(c, _late_windows(c)), qkv_bias=True)


def _qwen3(c: Fields) -> DecoderConfig:
    c = c.defaults({"max_position_embeddings": 32768, "head_dim": 128})
    bias = c.flag("attention_bias")
    return replace(_base(c, _late_windows(c)), qkv_bias=bias, output_bias=bias, qk_norm=True)


def _phi3(c: Fields) -> DecoderConfig:
    positions = {"max_position_embeddings": 4096, "original_max_position_embeddings": 4096}
    c = c.defaults({**positions, "rms_norm_eps": 1e-5})
    return replace(_base(c, [SLIDING] * _depth(c)), fused=True)


def _smollm3(c: Fields) -> DecoderConfig:
    positions = {"max_position_embeddings": 32768, "rope_theta": 2e6}
    c = c.defaults({**positions, "num_key_value_heads": 4, "tie_word_embeddings": True})
    depth, interval = _depth(c), c.size("no_rope_layer_interval", 4)
    rotates = [(i + 1) % interval != 0 for i in range(depth)]
    if c.has("no_rope_layers"):  # despite the name, 1 marks a layer with positions
        rotates = [bool(x) for x in c.choices("no_rope_layers", depth, (0, 1))]
    windows = c.flag("use_sliding_window")
    kinds = [SLIDING if windows and not rotating else FULL for rotating in rotates]
    decoder, bias = _base(c, kinds), c.flag("attention_bias")
    layers = zip(decoder.layers, rotates, strict=True)
    return replace(
        decoder,
        layers=tuple(x if rotating else replace(x, rope=None) for x, rotating in layers),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=c.flag("mlp_bias"),
    )


def _gemma3(c: Fields) -> DecoderConfig:
    if c.flag("use_bidirectional_attention"):
        raise UnsupportedError("use_bidirectional_attention is true; only causal models can write")
    c = c.defaults(GEMMA3_DEFAULTS)
    c = Fields({**c.values, "hidden_act": c.text("hidden_activation", "gelu_pytorch_tanh")})
    interval = c.size("sliding_window_pattern", c.size("_sliding_window_pattern", 6))
    kinds = [SLIDING if (i + 1) % interval else FULL for i in range(_depth(c))]
    decoder, bias = _base(c, kinds), c.flag("attention_bias")
    return replace(
        decoder,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        sandwich=True,
        norm_offset=1.0,
        embed_scale=decoder.hidden**0.5,
        attention_scale=c.number("query_pre_attn_scalar", 256) ** -0.5,
        attention_softcap=_optional(c, "attn_logit_softcapping"),
        logit_softcap=_optional(c, "final_logit_softcapping"),
    )


def _gemma3_nested(c: Fields) -> DecoderConfig:
    """The text half of a model of images and text."""
    outer = {k: c.values[k] for k in ("context", "tie_word_embeddings") if c.has(k)}
    return _gemma3(c.nested("text_config").defaults(outer))


FAMILIES: dict[str, Callable[[Fields], DecoderConfig]] = {
    "gemma3": _gemma3_nested,
    "gemma3_text": _gemma3,
    "llama": _llama,
    "mistral": _mistral,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "smollm3": _smollm3,
}
GEMMA3_DEFAULTS = {  # checkpoints of this family leave out what equals the defaults
    "model_type": "gemma3_text",
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}


def _base(c: Fields, kinds: Sequence[str] | None = None) -> DecoderConfig:
    """What all families share. kinds: each layer's attention type where layer_types is absent."""
    depth, hidden = _depth(c), c.size("hidden_size", limit=1 << 16)
    heads = c.size("num_attention_heads", limit=1 << 10)
    kv_heads = c.size("num_key_value_heads", heads, limit=heads)
    if heads % kv_heads:
        raise UnsupportedError(f"{heads} heads cannot share {kv_heads} key and value heads evenly")
    if not c.has("head_dim") and hidden % heads:
        raise UnsupportedError(f"hidden_size {hidden} is not a multiple of {heads} heads")
    head_dim = c.size("head_dim", hidden // heads, limit=1 << 10)
    if head_dim % 2:
        raise UnsupportedError(f"head_dim is {head_dim}; it must be even")
    activation = c.text("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise UnsupportedError(
            f"activation {activation!r} is not supported; supported: {', '.join(ACTIVATIONS)}"
        )
    trained = c.size("max_position_embeddings", 2048)
    context = c.size("context", trained)
    if context > trained:
        raise UnsupportedError(f"context {context} is longer than the model's {trained} tokens")
    if c.has("layer_types") and c.flag("use_sliding_window", True):
        kinds = c.choices("layer_types", depth, (FULL, SLIDING))
    kinds = kinds or [FULL] * depth
    ropes = {kind: _rope(c, kind, head_dim, context) for kind in dict.fromkeys(kinds)}
    window = c.size("sliding_window", context) if SLIDING in kinds else context
    windows = {FULL: 0, SLIDING: window if window < context else 0}
    return DecoderConfig(
        architecture=c.text("model_type").removesuffix("_text"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=c.size("intermediate_size", limit=1 << 20),
        vocab=c.size("vocab_size", limit=1 << 22),
        context=context,
        layers=tuple(Layer(ropes[kind], windows[kind]) for kind in kinds),
        norm_eps=c.number("rms_norm_eps", 1e-6),
        tied=c.flag("tie_word_embeddings"),
        activation=ACTIVATIONS[activation],
    )


def _depth(c: Fields) -> int:
    return c.size("num_hidden_layers", limit=1 << 10)


def _optional(c: Fields, name: str) -> float:
    return c.number(name) if c.has(name) else 0.0


def _late_windows(c: Fields) -> list[str]:
    """Qwen's windows: none unless switched on, and then only in the last layers."""
    if not c.flag("use_sliding_window"):
        return [FULL] * _depth(c)
    first = c.values.get("max_window_layers", 28)
    return [SLIDING if i >= first else FULL for i in range(_depth(c))]


def _rope(c: Fields, kind: str, head_dim: int, context: int) -> Rope:
    """The rotary embedding of layers of this attention type.

    transformers 4 writes rope_theta and rope_scaling (and rope_local_base_freq for windows),
    transformers 5 rope_parameters, either one mapping or one for each attention type.
    """
    given = c.nested("rope_scaling" if c.has("rope_scaling") else "rope_parameters")
    local = kind == SLIDING and c.has("rope_local_base_freq")
    theta = c.number("rope_local_base_freq" if local else "rope_theta", 10000.0)
    if FULL in given.values or SLIDING in given.values:
        given = given.nested(kind)
    elif local:
        given = Fields({})  # a single scaling belongs to the layers without a window
    original = "original_max_position_embeddings"
    fixed = {original: c.values[original]} if c.has(original) else {}
    partial = c.values.get("partial_rotary_factor")
    given = Fields({"rope_theta": theta, "partial_rotary_factor": partial, **given.values, **fixed})
    trained = c.size("max_position_embeddings", 2048)
    return resolve_rope(given, head_dim, context, trained)
