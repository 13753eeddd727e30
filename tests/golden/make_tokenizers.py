"""Records what the original tokenizers do with tests/golden/tokenizers/corpus.json.

    python tests/golden/make_tokenizers.py ids SMOLLM2.gguf
    python tests/golden/make_tokenizers.py steps qwen2=PATH/tokenizer.json llama-bpe=… …
    python tests/golden/make_tokenizers.py templates

ids: smollm2.json, the ids that llama.cpp (pip install llama-cpp-python) gives the corpus.
steps: originals.json, everything of each tokenizer.json but its vocabulary.
templates: templates.json, what transformers writes with templates/*.jinja; they are those of
SmolLM2, SmolLM3, Qwen2.5-Coder, Qwen3 and Mistral Nemo (Apache-2.0) and Phi-3 (MIT).
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


CHATS = [
    [{"role": "user", "content": 'Hi <b>&"é"'}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\n2"},
        {"role": "user", "content": " and 2+2? "},
    ],
    [{"role": "assistant", "content": "out of turn"}],
]
PARAMETERS = {"type": "object", "properties": {"town": {"type": "string", "description": "é"}}}
TOOL = {"name": "weather", "description": "<now>", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": TOOL}]


def record_templates() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    rows = []
    for path in sorted((FOLDER / "templates").glob("*.jinja")):
        for chat in CHATS:
            for tools, asks in ((None, True), (None, False), (TOOLS, True)):
                row = {"template": path.name, "messages": chat, "tools": tools, "asks": asks}
                try:
                    rendered, _ = render_jinja_template(
                        conversations=[chat],
                        chat_template=path.read_text(encoding="utf-8"),
                        tools=tools,
                        add_generation_prompt=asks,
                        bos_token="<BOS>",
                        eos_token="<EOS>",
                    )
                    rows.append(row | {"text": rendered[0]})
                except Exception as error:
                    rows.append(row | {"text": None, "error": str(error)})
    lines = ",\n".join(json.dumps(row) for row in rows)
    (FOLDER / "templates.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "ids":
        record_ids(*arguments)
    elif what == "templates":
        record_templates()
    else:
        record_steps(dict(argument.split("=", 1) for argument in arguments))
