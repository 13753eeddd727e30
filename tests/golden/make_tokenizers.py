"""Records what the original tokenizers do with tests/golden/tokenizers/corpus.json.

    python tests/golden/make_tokenizers.py ids SMOLLM2.gguf
    python tests/golden/make_tokenizers.py steps qwen2=PATH/tokenizer.json llama-bpe=… …

ids: smollm2.json, the ids that llama.cpp (pip install llama-cpp-python) gives the corpus.
steps: originals.json, everything of each tokenizer.json but its vocabulary.
"""

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "tokenizers"


def record_ids(model: str) -> None:
    from llama_cpp import Llama

    llama = Llama(model, vocab_only=True, verbose=False)
    corpus = json.loads((FOLDER / "corpus.json").read_text(encoding="utf-8"))
    texts = corpus["texts"] + corpus["marks"]
    ids = [llama.tokenize(text.encode(), add_bos=False, special=True) for text in texts]
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in ids)
    (FOLDER / "smollm2.json").write_text(f"[\n{lines}\n]\n")


def record_steps(originals: dict[str, str]) -> None:
    steps = {}
    for name, path in originals.items():
        original = json.loads(Path(path).read_text(encoding="utf-8"))
        steps[name] = {part: original[part] for part in ("normalizer", "pre_tokenizer", "decoder")}
        steps[name]["ignore_merges"] = original["model"].get("ignore_merges", False)
    (FOLDER / "originals.json").write_text(json.dumps(steps, indent=1) + "\n")


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "ids":
        record_ids(*arguments)
    else:
        record_steps(dict(argument.split("=", 1) for argument in arguments))
