"""A checkpoint's configuration becomes the decoder that transformers would build from it."""

import math
from typing import Any

import pytest

from specrt.models.families import FAMILIES, decoder_config
from specrt.models.fields import UnsupportedError

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LONGROPE = {"type": "longrope", "short_factor": [1.5] * 8, "long_factor": [4.0] * 8}


def config(model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    base = {
        "model_type": model_type,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "vocab_size": 300,
        "rope_theta": 10000.0,
    }
    return base | changes


def test_sizes_are_read_under_their_usual_names():
    decoder = decoder_config(config())
    assert (decoder.hidden, decoder.intermediate, decoder.vocab) == (64, 96, 300)
    assert (decoder.heads, decoder.kv_heads, decoder.head_dim) == (4, 2, 16)
    assert (len(decoder.layers), decoder.context) == (4, 4096)


def test_what_is_left_out_is_derived():
    left_out = config()
    del left_out["head_dim"], left_out["num_key_value_heads"], left_out["rope_theta"]
    decoder = decoder_config(left_out)
    assert (decoder.head_dim, decoder.kv_heads) == (16, 4)
    assert decoder.layers[0].rope.base == 10000.0


def test_a_shorter_context_can_be_asked_for():
    assert decoder_config(config(), context=128).context == 128


def test_a_longer_context_than_the_models_is_refused():
    with pytest.raises(UnsupportedError, match="context 5000 is longer than the model's 4096"):
        decoder_config(config(), context=5000)


# How a family differs


def flags(decoder: Any) -> set[str]:
    names = ("qkv_bias", "output_bias", "mlp_bias", "qk_norm", "fused", "sandwich", "tied")
    return {name for name in names if getattr(decoder, name)}


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("llama", set()),
        ("mistral", set()),
        ("qwen2", {"qkv_bias"}),
        ("qwen3", {"qk_norm"}),
        ("gemma3_text", {"qk_norm", "sandwich", "tied"}),
        ("phi3", {"fused"}),
        ("smollm3", {"tied"}),
    ],
)
def test_a_family_has_the_parts_of_its_architecture(model_type, expected):
    assert flags(decoder_config(config(model_type))) == expected


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text", "smollm3"])
def test_attention_bias_means_all_four_maps(model_type):
    added = flags(decoder_config(config(model_type, attention_bias=True)))
    assert added - flags(decoder_config(config(model_type))) == {"qkv_bias", "output_bias"}


def test_gemma3_scales_what_transformers_scales():
    decoder = decoder_config(config("gemma3_text", query_pre_attn_scalar=64))
    assert (decoder.embed_scale, decoder.norm_offset, decoder.attention_scale) == (8.0, 1.0, 0.125)
    assert decoder.activation == "gelu_tanh"


def test_gemma3_with_images_is_its_text_half():
    text = config("gemma3_text")
    assert decoder_config({"model_type": "gemma3", "text_config": text}) == decoder_config(text)


def test_gemma3_takes_the_familys_sizes_where_a_checkpoint_leaves_them_out():
    text = {"hidden_size": 2560, "num_hidden_layers": 34}
    decoder = decoder_config({"model_type": "gemma3", "text_config": text})
    assert (decoder.vocab, decoder.heads, decoder.kv_heads, decoder.head_dim) == (262208, 8, 4, 256)


# Windows


def windows(decoder: Any) -> list[int]:
    return [layer.window for layer in decoder.layers]


def test_mistral_has_a_window_everywhere():
    assert windows(decoder_config(config("mistral", sliding_window=32))) == [32] * 4


@pytest.mark.parametrize("model_type", ["mistral", "phi3"])
def test_a_window_of_null_is_none(model_type):
    assert windows(decoder_config(config(model_type, sliding_window=None))) == [0] * 4


def test_a_window_no_shorter_than_the_context_is_none():
    assert windows(decoder_config(config("mistral", sliding_window=4096))) == [0] * 4
    assert windows(decoder_config(config("mistral", sliding_window=64), context=64)) == [0] * 4


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_qwen_windows_are_off_unless_switched_on_and_start_late(model_type):
    given = {"sliding_window": 32, "max_window_layers": 3}
    assert windows(decoder_config(config(model_type, **given))) == [0] * 4
    on = config(model_type, **given, use_sliding_window=True)
    assert windows(decoder_config(on)) == [0, 0, 0, 32]


def test_layer_types_decide_where_they_are_given():
    kinds = ["full_attention", "sliding_attention"] * 2
    given = config("qwen2", sliding_window=32, use_sliding_window=True, layer_types=kinds)
    assert windows(decoder_config(given)) == [0, 32, 0, 32]
    assert windows(decoder_config({**given, "use_sliding_window": False})) == [0] * 4


def test_gemma3_layers_alternate_in_window_and_base():
    given = config("gemma3_text", sliding_window=32, sliding_window_pattern=2, rope_theta=1e6)
    layers = decoder_config(given).layers
    assert [layer.window for layer in layers] == [32, 0, 32, 0]
    assert [layer.rope.base for layer in layers] == [1e4, 1e6, 1e4, 1e6]


def test_smollm3_leaves_positions_out_of_every_fourth_layer():
    assert [x.rope is None for x in decoder_config(config("smollm3")).layers] == [0, 0, 0, 1]
    listed = config("smollm3", no_rope_layers=[0, 1, 1, 0])
    assert [x.rope is None for x in decoder_config(listed).layers] == [1, 0, 0, 1]
    spaced = config("smollm3", no_rope_layer_interval=2)
    assert [x.rope is None for x in decoder_config(spaced).layers] == [0, 1, 0, 1]


# Rotary embeddings


def rope(**changes: Any) -> Any:
    return decoder_config(config(**changes)).layers[0].rope


def test_linear_scaling_divides_every_frequency():
    assert rope(rope_scaling={"type": "linear", "factor": 4}).factors == (4.0,) * 8


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones():
    factors = rope(rope_scaling=LLAMA3).factors
    turns = 64 * 10000.0 ** (-1 / 8) / (2 * math.pi)  # of the second pair, the blended one
    keep = (turns - 1) / (4 - 1)
    assert factors[0] == 1
    assert factors[1] == pytest.approx(1 / (keep + (1 - keep) / 8))
    assert factors[3:] == (8.0,) * 5


def test_yarn_scaling_blends_by_dimension_and_scales_by_its_logarithm():
    scaled = rope(rope_scaling=YARN)
    low = math.floor(16 * math.log(1024 / (32 * 2 * math.pi)) / (2 * math.log(10000.0)))
    high = math.ceil(16 * math.log(1024 / (2 * math.pi)) / (2 * math.log(10000.0)))
    assert (low, high) == (1, 5)
    assert scaled.factors[:2] == (1, 1)
    assert scaled.factors[2] == pytest.approx(1 / (0.25 / 4 + 0.75))
    assert scaled.factors[5:] == (4, 4, 4)
    assert scaled.scale == pytest.approx(0.1 * math.log(4) + 1)


@pytest.mark.parametrize(("context", "factor"), [(256, 1.5), (257, 4.0), (None, 4.0)])
def test_longrope_takes_short_factors_within_the_original_context(context, factor):
    given = config("phi3", rope_scaling=LONGROPE, original_max_position_embeddings=256)
    scaled = decoder_config(given, context).layers[0].rope
    assert scaled.factors == (factor,) * 8
    assert scaled.scale == pytest.approx(math.sqrt(1 + math.log(16) / math.log(256)))


def test_part_of_a_head_may_rotate():
    given = config("phi3", partial_rotary_factor=0.75)
    assert decoder_config(given).layers[0].rope.dims == 12


@pytest.mark.parametrize("scaling", [None, LLAMA3, YARN])
def test_both_spellings_of_the_rotary_embedding_mean_the_same(scaling):
    old = config(rope_theta=5e5, rope_scaling=scaling)
    new = config(rope_parameters={"rope_theta": 5e5, **(scaling or {"rope_type": "default"})})
    del new["rope_theta"]
    assert decoder_config(new) == decoder_config(old)


def test_both_spellings_of_gemma3s_two_embeddings_mean_the_same():
    linear = {"rope_type": "linear", "factor": 8.0}
    old = config("gemma3_text", rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling=linear)
    new = config("gemma3_text") | {
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, **linear},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        }
    }
    assert decoder_config(new) == decoder_config(old)


# Refusals


def test_an_unknown_architecture_is_refused_with_what_is_known():
    with pytest.raises(UnsupportedError) as caught:
        decoder_config(config("mamba"))
    known = ", ".join(sorted(FAMILIES))
    assert str(caught.value) == f"architecture 'mamba' is not supported; supported: {known}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": None}, "model_type is missing"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size is '64'; it must be a whole number from 1 to 65536"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"num_hidden_layers": 1025}, "num_hidden_layers is 1025; .* from 1 to 1024"),
        ({"vocab_size": 1 << 23}, "vocab_size is 8388608; .* from 1 to 4194304"),
        ({"num_attention_heads": [4, 4]}, r"num_attention_heads is \[4, 4\]"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3 key and value heads evenly"),
        ({"num_key_value_heads": 8}, "num_key_value_heads is 8; .* from 1 to 4"),
        ({"head_dim": 15}, "head_dim is 15; it must be even"),
        ({"head_dim": None, "num_attention_heads": 6, "num_key_value_heads": 3}, "not a multiple"),
        ({"hidden_act": "relu"}, "activation 'relu' is not supported; supported: silu, gelu_py"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; it must be finite and above 0"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps is -1e-05; it must be finite and above 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; it must be true or false"),
        ({"layer_types": ["linear_attention"] * 4}, "'linear_attention', which is not supported"),
        ({"layer_types": ["full_attention"]}, "layer_types is 1 values; it must be a list of 4"),
        ({"rope_scaling": 4}, "rope_scaling is 4; it must be a mapping"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_theta": 1.0}, "rope_theta is 1.0; it must be above 1"),
        ({"rope_scaling": LONGROPE | {"short_factor": [1.0] * 7}}, "must be a list of 8"),
        ({"rope_scaling": LONGROPE | {"short_factor": [1.0] * 9}}, "has 9 values, not 8"),
        ({"rope_scaling": LONGROPE | {"short_factor": [0.0] * 8}}, r"short_factor\[0\] is 0.0"),
        (
            {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
            "high_freq_factor 1.0 must be above",
        ),
        ({"partial_rotary_factor": 0.2}, "3 of 16 head dimensions rotate"),
        ({"partial_rotary_factor": 2.0}, "32 of 16 head dimensions rotate"),
    ],
)
def test_a_configuration_that_cannot_be_right_is_refused(changes, message):
    with pytest.raises(UnsupportedError, match=message):
        decoder_config(config(**changes))


@pytest.mark.parametrize("kind", ["dynamic", "proportional", "mrope"])
def test_an_unknown_rope_type_is_refused_with_what_is_known(kind):
    with pytest.raises(UnsupportedError) as caught:
        decoder_config(config(rope_scaling={"rope_type": kind, "factor": 2.0}))
    assert str(caught.value) == (
        f"rope type {kind!r} is not supported; supported: default, linear, llama3, yarn, longrope"
    )


def test_gemma3_that_looks_ahead_is_refused():
    with pytest.raises(UnsupportedError, match="use_bidirectional_attention is true"):
        decoder_config(config("gemma3_text", use_bidirectional_attention=True))
