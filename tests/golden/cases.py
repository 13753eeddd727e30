"""The tiny decoders of the golden files: one hub-style config.json each, as data.

`CASES[name]` is a `Case`: the configuration as the hub's own checkpoints spell it (transformers
4.x unless the case says otherwise), how the weights are stored and what the tokenizer is like.
Every head has a size that is a multiple of 16, every matrix a row length that is a multiple of 32.
"""

from dataclasses import dataclass, field
from typing import Any

BYTE_LEVEL, SENTENCEPIECE = 272, 320  # vocabulary sizes of the two tokenizers


@dataclass(frozen=True)
class Case:
    """One recorded model. dtype: how model.safetensors stores it. shards: files it is split into.
    long: tokens of a second recorded prompt, past the original context, or 0.
    gguf: whether a GGUF file can say all that the configuration says."""

    config: dict[str, Any]
    dtype: str = "float16"
    shards: int = 1
    long: int = 0
    gguf: bool = True
    generation: dict[str, Any] = field(default_factory=dict)


def _config(model_type: str, architecture: str, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-05,
        "vocab_size": BYTE_LEVEL,
        "bos_token_id": 0,
        "eos_token_id": [1, 2],
        "use_cache": True,
        "torch_dtype": "float16",
        "transformers_version": "4.55.0",
    }
    return base | changes


def _llama(**changes: Any) -> dict[str, Any]:
    own = {"hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": False}
    return _config("llama", "LlamaForCausalLM", **own | changes)


def _mistral(**changes: Any) -> dict[str, Any]:
    own = {
        "vocab_size": SENTENCEPIECE,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "head_dim": 32,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "sliding_window": 16,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    return _config("mistral", "MistralForCausalLM", **own | changes)


def _gemma3(**changes: Any) -> dict[str, Any]:
    own = {
        "vocab_size": SENTENCEPIECE,
        "bos_token_id": 2,
        "eos_token_id": [1, 5],
        "intermediate_size": 32,
        "num_hidden_layers": 7,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 16,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 16,
        "sliding_window_pattern": 6,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "torch_dtype": "bfloat16",
    }
    return _config("gemma3_text", "Gemma3ForCausalLM", **own | changes)


def _phi3(**changes: Any) -> dict[str, Any]:
    own = {
        "vocab_size": SENTENCEPIECE,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "original_max_position_embeddings": 256,
        "rope_scaling": None,
        "sliding_window": 20,
    }
    return _config("phi3", "Phi3ForCausalLM", **own | changes)


def _vision() -> dict[str, Any]:
    """The smallest image tower transformers accepts; a text model must step over its weights."""
    return {
        "model_type": "siglip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 28,
        "patch_size": 14,
    }


def _gemma3_multimodal(text: dict[str, Any]) -> dict[str, Any]:
    """As google/gemma-3-4b-it has it: the text model is nested and leaves defaults out."""
    drop = {
        *("architectures", "bos_token_id", "eos_token_id", "torch_dtype", "transformers_version"),
        *("hidden_activation", "query_pre_attn_scalar", "rms_norm_eps", "rope_theta"),
        *("rope_local_base_freq", "sliding_window_pattern", "max_position_embeddings"),
        *("attn_logit_softcapping", "final_logit_softcapping"),
    }
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "eos_token_id": [1, 5],
        "boi_token_index": 3,
        "eoi_token_index": 4,
        "image_token_index": 6,
        "mm_tokens_per_image": 4,
        "text_config": {key: value for key, value in text.items() if key not in drop},
        "vision_config": _vision(),
        "torch_dtype": "bfloat16",
        "transformers_version": "4.50.0.dev0",
    }


_LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_type": "llama3",
}
_YARN = {"factor": 4.0, "original_max_position_embeddings": 2048, "rope_type": "yarn"}
_LONG = [1.0, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.5, 7.0, 9.0, 12.0]  # per pair: 24 of 32 turn
_SHORT = [1.0, 1.0, 1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6]
_QWEN = {"hidden_act": "silu", "rope_theta": 1000000.0, "eos_token_id": 1, "rms_norm_eps": 1e-06}
_QWEN2 = _QWEN | {"use_sliding_window": False, "sliding_window": 128, "max_window_layers": 2}
_SAMPLED = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8}

CASES: dict[str, Case] = {
    "llama": Case(_llama(), dtype="float32", shards=3),
    "llama-tied": Case(
        _llama(
            tie_word_embeddings=True,
            torch_dtype="bfloat16",
            num_attention_heads=3,
            num_key_value_heads=1,
            hidden_size=96,
        )
        | {"rope_theta": 100000},
        dtype="bfloat16",
    ),
    "llama-small": Case(  # exported by make_optimum.py too
        _llama(
            hidden_size=32,
            intermediate_size=32,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=True,
        )
    ),
    "llama-llama3": Case(_llama(rope_scaling=_LLAMA3, rope_theta=10000.0, head_dim=16)),
    "llama-linear": Case(_llama(rope_scaling={"type": "linear", "factor": 4.0})),
    "llama-yarn": Case(_llama(rope_scaling=_YARN, max_position_embeddings=8192)),
    "llama-biased": Case(_llama(attention_bias=True, mlp_bias=True)),
    "llama-v5": Case(
        {
            key: value
            for key, value in _llama(tie_word_embeddings=True, head_dim=32).items()
            if key not in ("rope_theta", "torch_dtype")
        }
        | {
            "dtype": "bfloat16",
            "rope_parameters": _LLAMA3 | {"rope_theta": 5000.0},
            "transformers_version": "5.24.0",
        },
        dtype="bfloat16",
    ),
    "mistral": Case(_mistral(), dtype="bfloat16", gguf=False),
    "mistral-full": Case(_mistral(sliding_window=None, num_key_value_heads=1), dtype="bfloat16"),
    "qwen2": Case(
        _config("qwen2", "Qwen2ForCausalLM", tie_word_embeddings=True, **_QWEN2),
        generation=_SAMPLED,
    ),
    "qwen2-window": Case(
        _config(
            "qwen2",
            "Qwen2ForCausalLM",
            tie_word_embeddings=False,
            **_QWEN2
            | {
                "use_sliding_window": True,
                "sliding_window": 12,
                "max_window_layers": 1,
                "num_hidden_layers": 3,
            },
        ),
        gguf=False,
    ),
    "qwen3": Case(
        _config(
            "qwen3",
            "Qwen3ForCausalLM",
            head_dim=32,
            attention_bias=False,
            rope_scaling=None,
            tie_word_embeddings=True,
            **_QWEN2 | {"sliding_window": None},
        ),
        generation=_SAMPLED,
    ),
    "gemma3": Case(_gemma3(), dtype="bfloat16"),
    "gemma3-multimodal": Case(_gemma3_multimodal(_gemma3()), dtype="bfloat16", gguf=False),
    "gemma3-v5": Case(
        {
            key: value
            for key, value in _gemma3(
                num_hidden_layers=4, query_pre_attn_scalar=24, final_logit_softcapping=5.0
            ).items()
            if key
            not in (
                "rope_theta",
                "rope_local_base_freq",
                "rope_scaling",
                "sliding_window_pattern",
                "torch_dtype",
            )
        }
        | {
            "dtype": "bfloat16",
            "layer_types": [
                "sliding_attention",
                "full_attention",
                "full_attention",
                "sliding_attention",
            ],
            "rope_parameters": {
                "full_attention": {"rope_theta": 50000.0, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 500.0, "rope_type": "default"},
            },
            "transformers_version": "5.24.0",
        },
        dtype="bfloat16",
        gguf=False,
    ),
    "phi3": Case(_phi3()),
    "phi3-longrope": Case(
        _phi3(
            num_attention_heads=2,
            num_key_value_heads=1,
            partial_rotary_factor=0.75,
            original_max_position_embeddings=64,
            rope_scaling={"type": "longrope", "long_factor": _LONG, "short_factor": _SHORT},
            sliding_window=262144,
            tie_word_embeddings=True,
        ),
        long=96,
    ),
    "smollm3": Case(
        _config(
            "smollm3",
            "SmolLM3ForCausalLM",
            pad_token_id=2,
            num_hidden_layers=4,
            intermediate_size=64,
            num_attention_heads=4,
            num_key_value_heads=1,
            attention_bias=False,
            mlp_bias=False,
            hidden_act="silu",
            layer_types=["full_attention"] * 4,
            no_rope_layer_interval=4,
            no_rope_layers=[1, 1, 1, 0],
            rope_scaling=None,
            rope_theta=5000000.0,
            sliding_window=None,
            use_sliding_window=False,
            torch_dtype="bfloat16",
        ),
        dtype="bfloat16",
    ),
}
