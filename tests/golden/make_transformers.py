"""Writes tests/golden/models: tiny random decoders and the logits transformers gives for them.

    python tests/golden/make_transformers.py [NAME]…

For each case of `cases.py`: a Hugging Face folder (config.json, safetensors, generation_config,
tokenizer) and golden.npz, the float32 logits of transformers' eager forward after loading that
folder. Needs torch, transformers, tokenizers, safetensors; see README.md beside this file.
The same versions and names always give the same files.
"""

import json
import shutil
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from cases import CASES, SENTENCEPIECE, Case
from safetensors.torch import save_file
from tiny_tokenizer import write_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, Gemma3ForConditionalGeneration

MODELS = Path(__file__).parent / "models"
PROMPT = 48  # tokens; longer than every sliding window of the cases
KEPT = 8  # rows of logits kept of a long prompt
NORM_SPREAD = 0.3  # a norm weight of one would hide a norm that is left out
SHARPNESS = 1.5  # of queries and keys: attention must look at some rows more than at others
LOGIT_SPREAD = 3.0  # standard deviation of the logits
MADE_WITH = f"transformers {transformers.__version__}, torch {torch.__version__}"
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def model_class(config: dict[str, Any]) -> Any:
    """The class that reads this folder, with its text logits on top."""
    nested = config["model_type"] == "gemma3"
    return Gemma3ForConditionalGeneration if nested else AutoModelForCausalLM


def draw(name: str, shape: tuple[int, ...], config: dict[str, Any], rng: Any) -> np.ndarray:
    """Random values for one parameter, scaled so that a mistake anywhere moves the logits."""
    values = rng.standard_normal(shape)
    if "norm" in name:
        centre = 0.0 if "gemma3" in config["model_type"] else 1.0  # gemma3 stores weight - 1
        return centre + NORM_SPREAD * values
    if len(shape) == 1:
        return NORM_SPREAD * values
    if "embed_tokens" in name or "lm_head" in name:
        return LOGIT_SPREAD * shape[-1] ** -0.5 * values
    sharp = any(part in name for part in ("q_proj", "k_proj", "qkv_proj"))
    return (SHARPNESS if sharp else 1.0) * shape[-1] ** -0.5 * values


def hub_name(name: str) -> str:
    """gemma3's hub checkpoints keep the names of transformers 4.50: language_model.model.*"""
    for new, old in (
        ("model.language_model.", "language_model.model."),
        ("model.vision_tower.", "vision_tower."),
        ("model.multi_modal_projector.", "multi_modal_projector."),
    ):
        name = name.replace(new, old)
    return name


def weights(name: str, case: Case, folder: Path) -> dict[str, torch.Tensor]:
    """Seeded weights for every parameter the folder's configuration asks for, by stored name."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    config = AutoConfig.from_pretrained(folder)
    build = model_class(case.config)
    model = build(config) if build is Gemma3ForConditionalGeneration else build.from_config(config)
    drawn = {}
    for key, parameter in model.named_parameters():  # lists a tied table once
        values = draw(key, tuple(parameter.shape), case.config, rng)
        drawn[hub_name(key)] = torch.from_numpy(values).to(DTYPES[case.dtype]).contiguous()
    return drawn


def shards(tensors: dict[str, torch.Tensor], count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """File names and their share of the tensors, as the hub splits them."""
    if count == 1:
        yield "model.safetensors", tensors
        return
    names = sorted(tensors)
    for part, chosen in enumerate(np.array_split(np.array(names), count), 1):
        yield (
            f"model-{part:05}-of-{count:05}.safetensors",
            {str(name): tensors[str(name)] for name in chosen},
        )


def write_weights(folder: Path, tensors: dict[str, torch.Tensor], count: int) -> None:
    """Store the tensors, with an index when there is more than one file."""
    index = {}
    for file, share in shards(tensors, count):
        save_file(share, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)  # save_file writes it for its owner alone
        index |= {key: file for key in sorted(share)}
    if count > 1:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        write_json(
            folder / "model.safetensors.index.json",
            {"metadata": {"total_size": size}, "weight_map": dict(sorted(index.items()))},
        )


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def tokenizer_kind(config: dict[str, Any]) -> str:
    if config["vocab_size"] != SENTENCEPIECE:
        return "byte_level"
    return "gemma" if config["model_type"].startswith("gemma") else "sentencepiece"


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("text_config", config)


def record(name: str, case: Case, folder: Path) -> dict[str, np.ndarray]:
    """Load the folder as anyone would and note what transformers says: (rows, vocab) float32."""
    model, report = model_class(case.config).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[problem], (name, problem, report[problem])
    model.eval()
    rng = np.random.default_rng(zlib.crc32(name.encode()) + 1)
    vocab = text_config(case.config)["vocab_size"]
    golden = {"versions": np.array(MADE_WITH)}
    for suffix, length in (("", PROMPT), ("_long", case.long)):
        if not length:
            continue
        tokens = rng.integers(7, vocab, length)
        with torch.no_grad():
            logits = model(torch.from_numpy(tokens)[None]).logits[0].float().numpy()
        golden[f"tokens{suffix}"] = tokens.astype(np.int64)
        golden[f"logits{suffix}"] = logits[-KEPT:] if suffix else logits
    return golden


def make(name: str) -> None:
    """Write one folder anew."""
    case, folder = CASES[name], MODELS / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", case.config)
    text = text_config(case.config)
    ids = {key: case.config[key] for key in ("bos_token_id", "eos_token_id") if key in case.config}
    write_json(folder / "generation_config.json", ids | case.generation)
    write_tokenizer(folder, text["vocab_size"], tokenizer_kind(text), apart="dtype" in case.config)
    write_weights(folder, weights(name, case, folder), case.shards)
    golden = record(name, case, folder)
    np.savez_compressed(folder / "golden.npz", **golden)
    size = sum(file.stat().st_size for file in folder.iterdir())
    top = np.sort(golden["logits"], axis=-1)
    print(
        f"{name:20} {size / 1000:5.0f} kB  logits {golden['logits'].std():.2f} "
        f"median lead {np.median(top[:, -1] - top[:, -2]):.2f}"
    )


if __name__ == "__main__":
    for chosen in sys.argv[1:] or CASES:
        make(chosen)
