"""Texts whose prompts resemble a new one's, and what they say of a draft model's reading."""

from dataclasses import replace

import numpy as np
import pytest

from specrt.bench.simulator import (
    Device,
    Text,
    draft_text,
    joined,
    lookup_text,
    memory,
    run,
    straight,
)
from specrt.runtime import alike
from specrt.runtime.adaptive import IN_VAIN, Adaptive, Memory
from specrt.runtime.alike import KEPT, Past, Told, bins, gain, weights

DEVICE = Device(0.020, straight(0.08), {"draft": (0.007, 0.001)}, noise=0.05)  # 20 tokens: a step
NAMES = ("ngram", "draft")
FRAME = tuple(range(20))  # what every prompt has


def prompts(template: int, count: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Of a template of 100 tokens, each with 60 other ones of its own."""
    rng = np.random.default_rng((template, seed))
    head = tuple(rng.integers(1000 * template, 1000 * template + 900, 100).tolist())
    return [(*FRAME, *head, *rng.integers(50_000, 90_000, 60).tolist()) for _ in range(count)]


def text_of(prompt: tuple[int, ...], found: float, drafted: float, seed: int) -> Text:
    """100 tokens: n-grams right with probability `found`, drafts with `drafted`."""
    rng = np.random.default_rng(seed)
    offers = joined(lookup_text([found] * 100, rng), draft_text([drafted] * 100, rng))
    return replace(offers, prompt=len(prompt), ids=prompt)


def asked_at(text: Text, held: Memory) -> int | None:
    """The first step for which the draft model was asked."""
    steps = run(text, DEVICE, Adaptive(NAMES, held, text.ids), NAMES, 1)
    return next((i for i, step in enumerate(steps) if step.source == "draft"), None)


def after(history: list[Text]) -> Memory:
    held = memory(DEVICE, profiled=True)
    for seed, text in enumerate(history):
        run(text, DEVICE, Adaptive(NAMES, held, text.ids), NAMES, seed)
    return held


def test_prompts_of_a_template_resemble_each_other_and_no_others() -> None:
    those = [*prompts(1, 4), *prompts(2, 4)]
    old = np.array([bins(prompt) for prompt in those])
    found = weights(bins(prompts(1, 5)[4]), old, old.sum(axis=0))
    assert (found[:4].min() > 0.5, found[4:].max() < 0.01) == (True, True), found


def test_what_all_prompts_have_is_no_resemblance() -> None:
    alike = np.array([bins(FRAME)] * 3)
    assert weights(bins(FRAME), alike, alike.sum(axis=0)).tolist() == [0.0] * 3


def test_only_the_latest_texts_are_kept() -> None:
    past = Past()
    first, other = (bins(prompt) for prompt in prompts(1, 2))
    own = past.begin(first)
    for prompt in prompts(3, 3):
        past.begin(bins(prompt))
    assert [one.told is own for one in past.like(other)] == [True]
    for prompt in prompts(2, KEPT):
        past.begin(bins(prompt))
    assert not past.like(other)


@pytest.mark.parametrize("size", [0, 1, 2, 10_000])
def test_a_prompt_of_any_length_has_bins(size: int) -> None:
    assert 0 < bins(range(1, size + 1)).sum() <= 1023 if size else not bins(()).any()


def test_a_draft_that_saves_nothing_gains_nothing() -> None:
    told = Told(written=100, free=0, alone=100.0)
    assert gain(told, emitted=3.0, step=2.0) == pytest.approx(100 / 3)  # 100 rows, or 100 / 3 pairs
    assert gain(told, emitted=3.0, step=3.0) == 0
    assert gain(replace(told, free=100), emitted=3.0, step=2.0) == 0


def test_beside_fast_ngrams_a_draft_must_give_more() -> None:
    fast = Told(written=100, free=50, alone=50.0)
    assert gain(fast, emitted=3.0, step=2.0) == 0


def others(count: int) -> list[Text]:
    """Of no template; drafts hardly pay."""
    return [
        text_of(prompt, 0.5, 0.4, seed)
        for seed, (prompt,) in enumerate(prompts(9 + i, 1, seed=i) for i in range(count))
    ]


def test_where_it_paid_in_texts_of_the_template_the_draft_model_reads_at_once() -> None:
    paid = [text_of(prompt, 0.0, 0.95, i) for i, prompt in enumerate(prompts(1, 4))]
    held = after([*others(4), *paid[:3]])
    new = replace(text_of(prompts(3, 1)[0], 0.0, 0.95, 7), ids=prompts(1, 5)[4])
    assert asked_at(new, held) == 0


def test_where_ngrams_did_as_well_it_is_not_asked() -> None:
    alone = [text_of(prompt, 0.9, 0.6, i) for i, prompt in enumerate(prompts(1, 5))]
    held = after([*others(4), *alone[:4]])
    assert asked_at(alone[4], held) is None
    steps = run(alone[4], DEVICE, Adaptive(NAMES, held, alone[4].ids), NAMES)
    assert any(step.reason == f"plain: nothing to draft; {IN_VAIN}" for step in steps)


def test_prompts_are_compared_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    paid = [text_of(prompt, 0.0, 0.95, i) for i, prompt in enumerate(prompts(1, 5))]
    controller = Adaptive(NAMES, after([*others(4), *paid[:4]]), paid[4].ids)
    monkeypatch.setattr(alike, "weights", None)
    assert run(paid[4], DEVICE, controller, NAMES, 1)[0].source == "draft"


def test_a_prompt_that_resembles_none_is_judged_as_if_there_were_no_others() -> None:
    paid = [text_of(prompt, 0.0, 0.95, i) for i, prompt in enumerate(prompts(1, 4))]
    new = text_of(prompts(5, 1)[0], 0.9, 0.6, 3)
    steps = []
    for forget in (False, True):
        held = after([*others(4), *paid])
        if forget:
            held.habits.past = Past()
        steps.append(run(new, DEVICE, Adaptive(NAMES, held, new.ids), NAMES, 1))
    assert steps[0] == steps[1]
