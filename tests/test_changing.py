"""A stream that changes its character, of real models: code, then a poem, then code.

Recorded of Qwen2.5-Coder-1.5B with its 0.5B by golden/make_changing.py: a Python class, a poem
(temperature 1.1), a program in C, each written by the 1.5B, one after another; how certain it was
of each token, what the 0.5B and n-grams would have offered there, and how much of it is right.
"""

from pathlib import Path

import numpy as np
import pytest

from specrt.bench.replay import load_texts
from specrt.bench.simulator import Device, memory, run
from specrt.runtime.adaptive import Adaptive
from specrt.runtime.controller import Fixed
from specrt.runtime.trace import Step

TEXT = load_texts(Path(__file__).parent / "golden" / "code-poem-code.jsonl")[0].text
CURVE = (21.5, 22.1, 23.4, 23.8, 25.3, 27.1, 29.2, 31.8, 33.2, 36.3, 39.8, 43.1, 47.6, 50.9, 53.2)
DEVICE = Device(0.0215, [ms / 21.5 for ms in CURVE], {"draft": (0.007, 0.00072)}, noise=0.05)
PARTS = {"code": (0, 207), "poem": (207, 349), "again": (349, 558)}


def part(steps: list[Step], name: str) -> list[Step]:
    """The steps that begin in a part of the text."""
    places = np.cumsum([0, *(len(step.emitted) for step in steps)])[:-1]
    start, end = PARTS[name]
    return [step for step, place in zip(steps, places, strict=True) if start <= place < end]


def pace(steps: list[Step]) -> float:
    """Tokens in the time of a step of one row."""
    seconds = sum(sum(step.seconds) for step in steps)
    return sum(len(step.emitted) for step in steps) * DEVICE.plain / seconds


@pytest.mark.parametrize("seed", range(5))
def test_the_draft_model_is_turned_off_in_the_poem_and_comes_back_in_code(seed: int) -> None:
    names = ("ngram", "draft")
    steps = run(TEXT, DEVICE, Adaptive(names, memory(DEVICE, profiled=True)), names, seed)
    code, poem, again = (part(steps, name) for name in PARTS)
    shares = [
        sum(step.source == "draft" for step in those) / len(those)
        for those in (code, poem[20:], again[20:])
    ]
    assert (shares[0] > 0.7, shares[1] == 0, shares[2] > 0.7) == (True, True, True), shares
    off = [step.reason for step in poem[20:] if step.reason.startswith("plain: 1.00")]
    assert all("draft up to" in reason for reason in off)  # why it is not asked
    assert not any("probe after" in step.reason for step in steps)  # the target's certainty tells


@pytest.mark.parametrize("seed", range(5))
def test_without_a_sign_of_ngrams_the_poem_ends_it(seed: int) -> None:
    steps = run(TEXT, DEVICE, Adaptive(["draft"], memory(DEVICE, profiled=True)), ["draft"], seed)
    poem = part(steps, "poem")[40:]
    assert sum(step.source == "draft" for step in poem) / len(poem) < 0.25


@pytest.mark.parametrize("seed", range(5))
def test_no_part_is_much_slower_than_plain_and_code_is_faster_than_any_fixed_draft(
    seed: int,
) -> None:
    names = ("ngram", "draft")
    steps = run(TEXT, DEVICE, Adaptive(names, memory(DEVICE, profiled=True)), names, seed)
    assert pace(part(steps, "poem")) > 0.95
    for budget in (2, 4, 8):
        fixed = run(TEXT, DEVICE, Fixed(budget), names, seed)
        assert pace(part(steps, "poem")) > pace(part(fixed, "poem"))
        assert pace(steps) > pace(fixed)
