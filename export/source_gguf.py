"""A GGUF file as a checkpoint: its metadata and tensors under their Hugging Face names and forms.

What differs from a Hugging Face checkpoint is undone here: metadata keys become those of
config.json and go through the same family; llama-like files hold query and key rows interleaved;
gemma3 files hold norm weights with 1 already added.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specrt.export.gguf_file import PART, GgufFile, read_gguf
from specrt.export.source import Tensor, check_tensors, checked_tokenizer, sha256
from specrt.models.config import DecoderConfig
from specrt.models.families import FULL, SLIDING, decoder_config
from specrt.models.fields import Fields, UnsupportedError
from specrt.runtime.errors import SourceError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MODEL_TYPES = {  # general.architecture → model_type; mistral is stored as llama
    "gemma3": "gemma3_text",
    "llama": "llama",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "smollm3": "smollm3",
}
INTERLEAVED = ("llama", "smollm3")  # rotate neighbouring rows of a head instead of its halves
KEYS = {  # config.json name → metadata key after the architecture
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
SCALING_KEYS = {  # the same within rope_scaling
    "rope_type": "rope.scaling.type",
    "factor": "rope.scaling.factor",
    "attention_factor": "rope.scaling.attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}
SAMPLING_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
LAYER_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OWN_PARTS = {  # where an architecture means something else by a name
    "gemma3": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
}
OUTER_PARTS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ENDS_OF_TURN = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "</s>",
    "<eos>",
)
GEMMA3_27B_LAYERS = 62  # the one size whose queries are not scaled by the head's
LARGEST_HEAD = 1 << 10
CONTROL, USER_DEFINED = 3, 4  # token types that are not ordinary text


@dataclass(frozen=True)
class GgufCheckpoint:
    """A `Checkpoint` (see source.py). tensors: by Hugging Face name, as stored in the file."""

    path: Path
    metadata: Mapping[str, Any]
    config: DecoderConfig
    tensors: Mapping[str, Tensor]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise SourceError(f"{self.path.name} has no tensor {name}")
        tensor = self.tensors[name]
        part = re.search(r"self_attn\.([qk])_proj\.", name)
        if part is None or self.metadata["general.architecture"] not in INTERLEAVED:
            return tensor
        return _halves(tensor, self.config.heads if part[1] == "q" else self.config.kv_heads)

    def tokenizer(self) -> "Tokenizer":
        from specrt.export.tokenizer import tokenizer_from_gguf

        held = tokenizer_from_gguf(self.metadata)
        return checked_tokenizer(held, self.config.vocab, f"the tokenizer in {self.path.name}")

    @property
    def chat_template(self) -> str | None:
        template = self.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    @property
    def bos_id(self) -> int | None:
        return self._token_id("bos")

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every token that ends an answer, the declared one first."""
        declared = [self._token_id(name) for name in ("eos", "eot", "eom")]
        tokens = _listed(self.metadata, "tokenizer.ggml.tokens")
        types = _listed(self.metadata, "tokenizer.ggml.token_type") or [CONTROL] * len(tokens)
        special = {
            token: i
            for i, (token, type_) in enumerate(zip(tokens, types, strict=False))
            if type_ in (CONTROL, USER_DEFINED) and i < self.config.vocab
        }
        known = [special[text] for text in ENDS_OF_TURN if text in special]
        return tuple(dict.fromkeys([i for i in declared if i is not None] + known))

    @property
    def generation(self) -> dict[str, Any]:
        found = {name: self.metadata.get(key) for name, key in SAMPLING_KEYS.items()}
        return {name: value for name, value in found.items() if isinstance(value, int | float)}

    @cached_property
    def origin(self) -> dict[str, Any]:
        licence = self.metadata.get("general.license")
        licence = licence if isinstance(licence, str) else None
        match = PART.fullmatch(self.path.name)
        parts = sorted(self.path.parent.glob(f"{match[1]}-*-of-{match[3]}.gguf")) if match else []
        digest = sha256(parts or [self.path])
        return {"kind": "gguf", "name": self.path.name, "sha256": digest, "licence": licence}

    def _token_id(self, name: str) -> int | None:
        value = self.metadata.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) and 0 <= value < self.config.vocab else None


def open_gguf(path: Path, context: int | None = None) -> GgufCheckpoint:
    """Read and check a GGUF file; SourceError says what is wrong with it."""
    file = read_gguf(path)
    architecture = file.metadata.get("general.architecture")
    if architecture not in MODEL_TYPES:
        raise SourceError(
            f"{path.name}: architecture {architecture!r} is not supported; "
            f"supported: {', '.join(MODEL_TYPES)}"
        )
    tensors = _canonical(file.tensors, architecture)
    tied = _is_tied(tensors)
    if tied:
        tensors.pop("lm_head.weight", None)
    try:
        fields = _config_fields(file, architecture, tensors)
        config = decoder_config({**fields, "tie_word_embeddings": tied}, context)
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        check_tensors(config, shapes, {name: tensor.kind for name, tensor in tensors.items()})
    except (UnsupportedError, SourceError) as problem:
        raise SourceError(f"{path.name}: {problem}") from None
    if architecture == "gemma3":
        config = replace(config, norm_offset=0.0)
    return GgufCheckpoint(path, file.metadata, config, tensors)


def _config_fields(
    file: GgufFile, architecture: str, tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """The metadata in the words of config.json."""
    start = f"{architecture}."
    own = {k.removeprefix(start): v for k, v in file.metadata.items() if k.startswith(start)}
    known = Fields(own)
    if own.get("expert_count") not in (None, 0):
        raise UnsupportedError(f"{architecture} with experts is not supported")
    hidden, heads = known.size("embedding_length"), known.size("attention.head_count")
    head_dim = known.size("attention.key_length", max(1, hidden // heads))
    values = known.size("attention.value_length", head_dim)
    if values != head_dim:
        raise UnsupportedError(f"keys of {head_dim} and values of {values} are not supported")
    fields = {name: own[key] for name, key in KEYS.items() if key in own}
    fields["model_type"] = MODEL_TYPES[architecture]
    fields["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in tensors
    fields["mlp_bias"] = "model.layers.0.mlp.down_proj.bias" in tensors
    fields["sliding_window"] = own.get("attention.sliding_window") or None
    fields["partial_rotary_factor"] = known.size("rope.dimension_count", head_dim) / head_dim
    fields["rope_scaling"] = _rope_scaling(own, file.tensors)
    if "model.embed_tokens.weight" in tensors:
        fields["vocab_size"] = tensors["model.embed_tokens.weight"].shape[0]
    if architecture == "gemma3":  # what converters leave to the reader's knowledge
        largest = own.get("block_count") == GEMMA3_27B_LAYERS
        fields["query_pre_attn_scalar"] = hidden / heads if largest else head_dim
        pattern = own.get("attention.sliding_window_pattern")
        if isinstance(pattern, list):
            fields["layer_types"] = [SLIDING if slides else FULL for slides in pattern]
        else:
            fields["sliding_window_pattern"] = pattern
    return fields


def _rope_scaling(own: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any] | None:
    """Scaling as metadata or as tensors of divisors, which longrope can say exactly."""
    if "rope_freqs.weight" in tensors:
        both = _divisors(tensors["rope_freqs.weight"])
        plain = {"rope_type": "longrope", "attention_factor": 1.0}
        return {**plain, "short_factor": both, "long_factor": both}
    scaling = {name: own.get(key) for name, key in SCALING_KEYS.items()}
    for name in ("short", "long"):
        if f"rope_factors_{name}.weight" in tensors:
            scaling["rope_type"] = "longrope"
            scaling[f"{name}_factor"] = _divisors(tensors[f"rope_factors_{name}.weight"])
    return scaling if scaling["rope_type"] not in (None, "none") else None


def _divisors(tensor: Tensor) -> list[float]:
    if len(tensor.shape) != 1 or tensor.shape[0] > LARGEST_HEAD:
        raise SourceError(f"tensor {tensor.name} has shape {tensor.shape}; it must be a short list")
    divisors: list[float] = tensor.float32().tolist()
    return divisors


def _canonical(tensors: Mapping[str, Tensor], architecture: str) -> dict[str, Tensor]:
    """Tensors by their Hugging Face names; others are left out."""
    parts = LAYER_PARTS | OWN_PARTS.get(architecture, {})
    found = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
        part = match and (parts if match[1] else OUTER_PARTS).get(match[2])
        if match and part:
            layer = f"model.layers.{match[1]}." if match[1] else ""
            canonical = f"{layer}{part}.{match[3]}"
            found[canonical] = replace(tensor, name=canonical)
    return found


def _is_tied(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the head is the embedding table: not stored, or stored a second time."""
    head, table = tensors.get("lm_head.weight"), tensors.get("model.embed_tokens.weight")
    if head is None or table is None:
        return head is None
    return head.kind == table.kind and np.array_equal(head.raw, table.raw)


def _listed(metadata: Mapping[str, Any], key: str) -> list[Any]:
    value = metadata.get(key)
    return value if isinstance(value, list) else []


def _halves(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head in the order (first halves, second halves) instead of in pairs."""
    rows = tensor.raw.reshape(tensor.shape[0], -1)
    pairs = rows.reshape(heads, tensor.shape[0] // heads // 2, 2, -1)
    return replace(tensor, raw=pairs.swapaxes(1, 2).reshape(tensor.raw.shape))
