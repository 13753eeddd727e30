"""Writes tests/golden/optimum: a tiny llama exported by optimum-onnx, with its own logits.

    python tests/golden/make_optimum.py

The decoder's cache grows (past_key_values.N.key/value in, present.N.key/value out), and it wants
attention_mask and position_ids. Its weights are those of models/llama-small, whose golden.npz it
must agree with. Needs torch and optimum-onnx; see README.md beside this file.
"""

import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnxruntime
from optimum.exporters.onnx import main_export

HERE = Path(__file__).parent
SOURCE = HERE / "models" / "llama-small"
OUT = HERE / "optimum"
KEPT = (
    "model.onnx",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
MADE_WITH = ("optimum-onnx", "optimum", "transformers", "torch", "onnx", "onnxruntime")
SPLIT = 20  # tokens read first; the rest are read one at a time on the grown cache
ROUNDING = 1e-4  # between two float32 implementations; 2e-5 was seen


def run(model: Path, tokens: np.ndarray) -> np.ndarray:
    """Logits (tokens, vocab) of the graph, read in one block and then token by token."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    shapes = {item.name: item.shape for item in session.get_inputs()}
    results = [item.name for item in session.get_outputs()]
    past = {
        name: np.zeros((1, shape[1], 0, shape[3]), np.float32)
        for name, shape in shapes.items()
        if name.startswith("past_key_values.")
    }
    rows = []
    for start, stop in [(0, SPLIT), *((at, at + 1) for at in range(SPLIT, len(tokens)))]:
        feeds = {
            "input_ids": tokens[None, start:stop],
            "attention_mask": np.ones((1, stop), np.int64),
            "position_ids": np.arange(start, stop)[None],
        }
        answer = dict(zip(results, session.run(None, feeds | past), strict=True))
        rows.append(answer["logits"][0])
        past = {name: answer[name.replace("past_key_values", "present")] for name in past}
    return np.concatenate(rows)


def make() -> None:
    """Export into a scratch folder, keep what a user's folder has, record and compare logits."""
    golden = np.load(SOURCE / "golden.npz")
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        main_export(str(SOURCE), output=scratch, task="text-generation-with-past", dtype="fp32")
        for name in KEPT:
            shutil.copyfile(Path(scratch) / name, OUT / name)
    logits = run(OUT / "model.onnx", golden["tokens"])
    distance = float(np.abs(logits - golden["logits"]).max())
    assert distance < ROUNDING, distance
    versions = np.array(", ".join(f"{name} {version(name)}" for name in MADE_WITH))
    np.savez_compressed(
        OUT / "golden.npz", tokens=golden["tokens"], logits=logits, versions=versions
    )
    size = sum(file.stat().st_size for file in OUT.iterdir())
    print(f"optimum {size / 1000:.0f} kB, {distance:.1e} from transformers' logits")


if __name__ == "__main__":
    make()
