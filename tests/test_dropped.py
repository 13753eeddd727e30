"""A draft model of random weights is no longer asked after 20 steps, real graphs and all."""

import json
import shutil
from pathlib import Path

import pytest
from variants import LLAMA, noisy, readable, variant
from wide_llama import write_wide_llama

from specrt.export.build import export
from specrt.pull import home
from specrt.runtime.api import load
from specrt.runtime.costs import Costs, DraftCost
from specrt.runtime.trace import Step

GGUF = home() / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
PROBED = 0.03  # the share of later steps in which it may be tried again


class Settled(Costs):
    """Costs that no step changes."""

    def observe(self, rows: int, seconds: float) -> None:
        pass

    def observe_draft(self, name: str, tokens: int, unread: int, seconds: float) -> None:
        pass


def steps_of(bundle: Path, prompt: str) -> list[Step]:
    """Of a text, as if on a device where the draft pays if it is right: a token of it takes a
    quarter of a step, a row more a twentieth."""
    model = load(bundle, tune=False)
    model._costs = Settled(
        {"draft": DraftCost(0.25, 0.001)}, {n: 0.95 + n / 20 for n in range(1, 34)}
    )
    answer = model.generate(prompt, drafter="draft", policy="cost", max_tokens=200)
    return list(answer.trace.steps)


def check(steps: list[Step]) -> None:
    assert steps[0].source == "draft"
    late = [step for step in steps[20:] if step.drafted]
    assert len(late) <= PROBED * len(steps[20:])


def test_a_tiny_one_is_dropped(tmp_path: Path) -> None:
    target = variant(tmp_path / "target", readable)
    draft = variant(tmp_path / "draft", noisy(20.0))
    export(target, tmp_path / "b", drafts=[draft], weights="fp32", kernels="stock", check=False)
    check(steps_of(tmp_path / "b", "the cat"))


def test_one_that_is_right_is_kept(tiny_bundle: Path) -> None:
    steps = steps_of(tiny_bundle, "the cat")
    assert sum(step.source == "draft" for step in steps) > 0.9 * len(steps)


@pytest.mark.skipif(not GGUF.is_file(), reason="specrt pull smollm2")
def test_one_that_drafts_for_smollm2_is_dropped(tmp_path: Path) -> None:
    export(GGUF, tmp_path / "plain", context=512, check=False)
    manifest = json.loads((tmp_path / "plain" / "specrt.json").read_text())
    write_random(tmp_path / "draft", tmp_path / "plain", manifest["model"]["vocab"])
    shutil.rmtree(tmp_path / "plain")
    export(GGUF, tmp_path / "b", drafts=[tmp_path / "draft"], context=512, check=False)
    check(steps_of(tmp_path / "b", "Write a Python function that reverses a list."))
    shutil.rmtree(tmp_path / "b")  # large


def write_random(folder: Path, bundle: Path, vocab: int) -> None:
    """A checkpoint of random weights with the tokenizer of a bundle."""
    made = folder.with_name("made")
    shutil.copytree(LLAMA, made)
    shutil.copy(bundle / "tokenizer.json", made)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, "vocab_size": vocab}))
    write_wide_llama(folder, made)
