"""A checkpoint wide enough for every tensor type of GGUF, made on the spot."""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def write_wide_llama(folder: Path, tokenizer_of: Path) -> None:
    """A one-layer llama with rows of 256, which the K and IQ types need. Seeded, in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(tokenizer_of / name, folder / name)
    config = json.loads((tokenizer_of / "config.json").read_text(encoding="utf-8"))
    wide = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
    config |= wide | {"num_key_value_heads": 1, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    layer = "model.layers.0."
    shapes = {"model.embed_tokens": (config["vocab_size"], 256), "model.norm": (256,)}
    shapes |= {f"{layer}{name}": (256,) for name in ("input_layernorm", "post_attention_layernorm")}
    shapes |= {f"{layer}self_attn.{name}_proj": (256, 256) for name in "qo"}
    shapes |= {f"{layer}self_attn.{name}_proj": (64, 256) for name in "kv"}
    shapes |= {f"{layer}mlp.{name}_proj": (256, 256) for name in ("gate", "up", "down")}
    rng = np.random.default_rng(256)
    tensors = {
        f"{name}.weight": (len(shape) == 1)
        + rng.standard_normal(shape, np.float32) * np.float32(0.3 if len(shape) == 1 else 1 / 16)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")
