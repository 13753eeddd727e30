"""A real model, exported once: it passes its checks and writes one text, with and without drafts.

Skipped where the checkpoint was not pulled: specrt pull smollm2.
"""

import json
from pathlib import Path

import pytest

from specrt.export.build import export
from specrt.pull import home
from specrt.runtime.api import load

GGUF = home() / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
pytestmark = pytest.mark.skipif(not GGUF.is_file(), reason="specrt pull smollm2")
PROMPTS = [
    "Write a Python function that reverses a list, then explain it line by line.",
    "Repeat this sentence three times: the cat sat on the mat.",
    "What is the capital of France?",
    "List the days of the week, then list them backwards.",
    "Rewrite in capitals: a small boat crossed the quiet lake.",
]


@pytest.fixture(scope="module")
def int8(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("smollm2") / "int8"
    export(GGUF, out, drafts=[GGUF], weights="int8", context=1024)
    return out


def test_the_export_is_good_and_bit_for_bit_the_same_in_every_block(int8):
    checks = json.loads((int8 / "specrt.json").read_text(encoding="utf-8"))["checks"]
    assert checks["quality"]["kl"] <= 0.01
    assert [checks[name]["rms"] for name in ("rows", "chunks", "rollback")] == [0.0, 0.0, 0.0]


def test_greedy_text_is_the_same_with_ngram_drafts(int8):
    model = load(int8)
    for prompt in PROMPTS:
        plain = model.generate(prompt, drafter="none", max_tokens=48)
        assert model.generate(prompt, drafter="ngram", max_tokens=48).tokens == plain.tokens


def test_a_model_that_drafts_for_itself_is_always_right(int8):
    model = load(int8)
    summary = model.generate(PROMPTS[0], drafter="draft", max_tokens=24).trace.summary()
    assert summary["accepted"] == summary["drafted"] > 0


def test_greedy_text_is_the_same_in_int4(tmp_path):
    export(GGUF, tmp_path / "int4", weights="int4", context=1024, check=False)
    model = load(tmp_path / "int4")
    for prompt in PROMPTS[:2]:
        plain = model.generate(prompt, drafter="none", max_tokens=48)
        assert model.generate(prompt, drafter="ngram", max_tokens=48).tokens == plain.tokens
