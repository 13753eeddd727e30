"""Writes the GGUF file that llama.cpp's converter would write for a Hugging Face folder.

`write_gguf(folder, path, kind)` covers the text architectures that specrt reads. It is made for
small checkpoints: every tensor is in memory at once. Keys and tensor names follow
convert_hf_to_gguf, llama's interleaved rotary order and gemma's norm weights + 1 included.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import (
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    GGUFWriter,
    RopeScalingType,
    TokenType,
    get_tensor_name_map,
)
from gguf_blocks import block_length, decode, encode

_ARCHITECTURES = {
    "llama": MODEL_ARCH.LLAMA,
    "mistral": MODEL_ARCH.LLAMA,
    "qwen2": MODEL_ARCH.QWEN2,
    "qwen3": MODEL_ARCH.QWEN3,
    "gemma3_text": MODEL_ARCH.GEMMA3,
    "phi3": MODEL_ARCH.PHI3,
    "smollm3": MODEL_ARCH.SMOLLM3,
}
_INTERLEAVED = ("llama", "mistral", "smollm3")  # llama.cpp turns neighbours, not halves
_SAFETENSORS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def write_gguf(folder: Path, path: Path, kind: str = "F32") -> dict[str, np.ndarray]:
    """Write `folder` as `path`, its matrices in `kind` where the rows divide into its blocks.

    Returns what the file now holds, by Hugging Face name, in float32: the truth for a lossy kind.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    arch = _ARCHITECTURES[config["model_type"]]
    writer = GGUFWriter(path, MODEL_ARCH_NAMES[arch])
    _add_sizes(writer, config)
    _add_rope(writer, config)
    _add_tokenizer(writer, folder, gemma=config["model_type"].startswith("gemma"))
    names = get_tensor_name_map(arch, config["num_hidden_layers"])
    rng = np.random.default_rng(len(kind))
    held = {}
    for name, values in read_tensors(folder).items():
        stored_as = kind if _fits(values, kind) else "F32"
        stored = encode(_to_gguf(name, values, config), stored_as, rng)
        held[name] = _from_gguf(name, decode(stored, stored_as), config)
        new_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(new_name, stored, raw_dtype=GGMLQuantizationType[stored_as])
    for new_name, factors in _rope_tensors(config).items():
        writer.add_tensor(new_name, np.asarray(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of a folder's safetensors files, in float32."""
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        data = file.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            low, high = entry["data_offsets"]
            flat = np.frombuffer(data[start + low : start + high], _SAFETENSORS[entry["dtype"]])
            if entry["dtype"] == "BF16":
                flat = (flat.astype(np.uint32) << 16).view(np.float32)
            tensors[name] = flat.astype(np.float32).reshape(entry["shape"])
    return tensors


def head_size(config: dict[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def rope_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Base and scaling of the rotary embedding, whichever transformers spelt them."""
    settings = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    settings.setdefault("rope_type", settings.get("type", "default"))
    settings.setdefault("rope_theta", config.get("rope_theta"))
    return settings


def _fits(values: np.ndarray, kind: str) -> bool:
    return values.ndim == 2 and values.shape[1] % block_length(kind) == 0


def _to_gguf(name: str, values: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """llama: rows (half, pair) of each head become (pair, half). gemma: norm weights + 1."""
    if heads := _interleaved_heads(name, config):
        rows = values.reshape(heads, 2, -1, *values.shape[1:])
        return rows.swapaxes(1, 2).reshape(values.shape)
    return values + _norm_shift(name, config)


def _from_gguf(name: str, values: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """Undoes `_to_gguf`."""
    if heads := _interleaved_heads(name, config):
        rows = values.reshape(heads, -1, 2, *values.shape[1:])
        return rows.swapaxes(1, 2).reshape(values.shape)
    return values - _norm_shift(name, config)


def _interleaved_heads(name: str, config: dict[str, Any]) -> int:
    """Heads of a tensor whose rows change their order, or 0."""
    if config["model_type"] not in _INTERLEAVED:
        return 0
    if ".q_proj." in name:
        return int(config["num_attention_heads"])
    return int(config["num_key_value_heads"]) if ".k_proj." in name else 0


def _norm_shift(name: str, config: dict[str, Any]) -> np.float32:
    shifted = config["model_type"].startswith("gemma") and name.endswith("norm.weight")
    return np.float32(1.0 if shifted else 0.0)


def _add_sizes(writer: GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_name("tiny")
    writer.add_license("apache-2.0")
    writer.add_quantization_version(2)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if config["model_type"] in _INTERLEAVED:
        writer.add_vocab_size(config["vocab_size"])
    if config["model_type"] in ("gemma3_text", "phi3"):  # 0 tells phi3 without a window
        writer.add_sliding_window(config["sliding_window"] or 0)
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _add_rope(writer: GGUFWriter, config: dict[str, Any]) -> None:
    settings = rope_settings(config)
    writer.add_rope_freq_base(settings["rope_theta"])
    if config["model_type"] in (*_INTERLEAVED, "phi3"):
        writer.add_rope_dimension_count(_rope_dimensions(config))
    if settings["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(RopeScalingType(settings["rope_type"]))
        writer.add_rope_scaling_factor(settings["factor"])
    if settings["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(settings["original_max_position_embeddings"])
    if config["model_type"] == "phi3":
        original = config["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        stretch = config["max_position_embeddings"] / original
        if settings["rope_type"] == "longrope":
            factor = np.sqrt(1 + np.log(stretch) / np.log(original)) if stretch > 1 else 1.0
            writer.add_rope_scaling_attn_factors(float(factor))


def _rope_dimensions(config: dict[str, Any]) -> int:
    return int(head_size(config) * config.get("partial_rotary_factor", 1.0))


def _rope_tensors(config: dict[str, Any]) -> dict[str, Any]:
    """Divisors of the rotary frequencies that GGUF keeps as tensors of their own."""
    settings = rope_settings(config)
    if settings["rope_type"] == "longrope":
        return {
            "rope_factors_long.weight": settings["long_factor"],
            "rope_factors_short.weight": settings["short_factor"],
        }
    if settings["rope_type"] != "llama3":
        return {}
    dims = _rope_dimensions(config)
    waves = 2 * np.pi * settings["rope_theta"] ** (np.arange(0, dims, 2) / dims)
    turns = settings["original_max_position_embeddings"] / waves
    low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return {"rope_freqs.weight": 1 / ((1 - smooth) / settings["factor"] + smooth)}


def _add_tokenizer(writer: GGUFWriter, folder: Path, *, gemma: bool) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ids = tokenizer["model"]["vocab"] | special
    tokens = sorted(ids, key=lambda token: int(ids[token]))
    writer.add_token_list(tokens)
    if tokenizer["model"]["byte_fallback"]:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_scores([-float(index) for index in range(len(tokens))])
        writer.add_add_space_prefix(not gemma)
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_token_types([_token_type(token, special) for token in tokens])
    writer.add_add_bos_token(settings["add_bos_token"])
    apart = folder / "chat_template.jinja"
    writer.add_chat_template(
        apart.read_text("utf-8") if apart.exists() else settings["chat_template"]
    )
    for role, add in {
        "bos_token": writer.add_bos_token_id,
        "eos_token": writer.add_eos_token_id,
        "unk_token": writer.add_unk_token_id,
        "pad_token": writer.add_pad_token_id,
    }.items():
        if settings.get(role):
            add(ids[settings[role]])


def _token_type(token: str, special: dict[str, int]) -> TokenType:
    if token == "<unk>":
        return TokenType.UNKNOWN
    if token in special:
        return TokenType.CONTROL
    is_byte = len(token) == 6 and token.startswith("<0x")
    return TokenType.BYTE if is_byte else TokenType.NORMAL
