"""auto against plain decoding and the best fixed setting: real runs, priced, with intervals."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import specrt
from specrt.bench import hindsight
from specrt.bench.hindsight import (
    AUTO,
    PLAIN,
    Run,
    candidates,
    measure,
    off,
    priced,
    ratio,
    report,
    usual_devices,
)
from specrt.bench.replay import Recorded
from specrt.bench.simulator import Device, draft_text, joined, lookup_text, memory, straight
from specrt.bench.simulator import run as simulate
from specrt.bench.suite import Prompt
from specrt.runtime.adaptive import Adaptive
from specrt.runtime.controller import Fixed
from specrt.runtime.drafters.first import parts
from specrt.runtime.trace import Step

DEVICE = Device(0.02, straight(0.08), {"draft": (0.007, 0.0001)})
PROMPT = Prompt("chat-1", "chat", "the cat on the mat and the cat on the")


def recorded(kind: str, rates: tuple[float, float], size: int = 200) -> Recorded:
    rng = np.random.default_rng(0)
    lookup, draft = rates
    parts = lookup_text([lookup] * size, rng), draft_text([draft] * size, rng)
    return Recorded(f"{kind}-1", kind, joined(*parts))


def test_the_best_of_each_kind_are_found_by_replay() -> None:
    texts = [recorded("copy", (0.95, 0.1)), recorded("write", (0.05, 0.9))]
    found = candidates(texts, DEVICE, 2)
    assert [label.split()[0] for label in found["copy"]] == ["ngram", "ngram"]
    assert all("draft" in label for label in found["write"])


def run(prompt: str, setting: str, tokens: int, seconds: float, predicted: float = 1.0) -> Run:
    return Run(prompt, "chat", setting, tokens, seconds, seconds, seconds, predicted)


def test_speeds_are_compared_on_the_same_prompts_by_all_their_tokens_and_seconds() -> None:
    runs = [run("a", PLAIN, 10, 10.0), run("b", PLAIN, 10, 30.0)]
    runs += [run("a", AUTO, 10, 5.0), run("b", AUTO, 10, 15.0), run("a", "ngram 2", 10, 1.0)]
    found, low, high = ratio(runs, AUTO, PLAIN, lambda one: one.seconds)
    assert (found, low, high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(("seconds", "end"), [(10.2, ""), (10.8, ": too slow")])
def test_a_kind_at_which_auto_is_too_slow_is_told(seconds: float, end: str) -> None:
    runs = [run("a", label, 10, 10.0) for label in (PLAIN, "ngram 2")]
    lines = list(report([*runs, run("a", AUTO, 10, seconds)]))
    assert lines[-1].endswith(f"of ngram 2{end}")


def test_what_the_simulator_said_is_told_over_what_was_measured() -> None:
    runs = [run("a", PLAIN, 10, 12.0, predicted=12.0)]
    runs += [run("a", label, 10, 11.0, predicted=10.0) for label in (AUTO, "ngram 2")]
    runs = [replace(one, priced=one.seconds * 0.9) for one in runs]
    found = [line.split()[-3:] for line in list(report(runs))[1:3]]
    assert found == [["1.20", "0.99", "1.10"]] * 2


def test_long_runs_count_for_more_in_how_far_the_simulator_was_off() -> None:
    runs = [run("a", AUTO, 10, 10.0, predicted=20.0), run("b", AUTO, 90, 90.0, predicted=80.0)]
    assert off(runs, AUTO, lambda one: one.seconds) == 1.0


@pytest.fixture
def model(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> specrt.Model:
    """Whose only question is PROMPT."""
    monkeypatch.setattr(hindsight, "load_suites", lambda names: (PROMPT,))
    return specrt.load(tiny_bundle)


def test_every_setting_is_run_for_real_and_priced_by_rows(model: specrt.Model) -> None:
    raws = list(measure(model, [recorded("chat", (0.9, 0.1), 24)], 24, best=2, rounds=2))
    runs = priced(raws, usual_devices(raws))
    assert {one.setting for one in runs} >= {PLAIN, AUTO}
    assert len(runs) == 8
    for one, raw in zip(runs, raws, strict=True):
        if one.setting == PLAIN:
            assert one.priced == pytest.approx(len(raw.steps))  # a step each, and no draft
    assert model._habits.past._begun == 2  # what is between the runs taught auto nothing


def test_no_run_finds_the_prompt_in_a_draft_models_cache(
    model: specrt.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = model.prompt_ids(messages=PROMPT.messages)
    unread: list[int] = []

    class Notes(Fixed):
        def draft(self, drafter, context, room, rng):
            if len(context.tokens) == len(ids):
                unread.extend(part.unread(context.tokens) for part in parts(drafter)[1:])
            return Fixed.draft(self, drafter, context, room, rng)

    monkeypatch.setattr(hindsight, "candidates", lambda *_: {"chat": ("ngram+draft 4",)})
    monkeypatch.setattr(model, "_controller", lambda *_: Notes(4))
    list(measure(model, [recorded("chat", (0.9, 0.1), 24)], 24, best=1, rounds=2))
    assert (len(unread), min(unread) >= len(ids) - 1) == (4, True), unread  # they begin alike


def test_what_the_bundle_no_longer_writes_is_recorded_anew(model: specrt.Model) -> None:
    raws = list(measure(model, [recorded("chat", (0.9, 0.1), 24)], 24, best=1, rounds=1))
    for one in priced(raws, usual_devices(raws)):
        if one.setting != AUTO:  # a fixed setting takes the same steps in the simulator
            assert one.steps == one.simulated


@pytest.mark.parametrize("setting", [AUTO, "ngram+draft 4", "draft 2"])
def test_the_simulator_says_what_a_run_takes_that_it_knows_all_of(setting: str) -> None:
    one = recorded("chat", (0.6, 0.8))
    names = ("ngram", "draft") if setting == AUTO else tuple(setting.split()[0].split("+"))
    held = memory(DEVICE, profiled=True)
    for _ in range(3):  # what it learned before is known too
        simulate(one.text, DEVICE, Adaptive(("ngram", "draft"), held), ("ngram", "draft"))
    controller = (
        Adaptive(names, held) if setting == AUTO else Fixed(int(setting.rpartition(" ")[2]))
    )
    before = deepcopy(controller)
    steps = simulate(one.text, DEVICE, controller, names)
    raws = [hindsight._Raw(one, setting, steps, before, DEVICE)]
    (found,) = priced(raws, usual_devices(raws))
    assert found.steps == found.simulated
    assert found.predicted == pytest.approx(found.spent)


def test_a_draft_model_is_priced_by_its_tokens_and_by_what_it_had_to_read() -> None:
    def step(drafted: int, accepted: int, source: str = "draft") -> Step:
        emitted = tuple(range(accepted + 1))
        return Step(emitted, drafted, accepted, drafted, (9.0, 0.02, 0.0), source)

    steps = [step(0, 0, ""), step(4, 4), step(4, 1), step(2, 1, "ngram"), step(1, 0)]
    text = recorded("chat", (0.5, 0.5))
    raw = hindsight._Raw(text, AUTO, steps, Fixed(0), DEVICE)
    # places 64, 65, 70, 72, 74; known to it before: 0, 0, 68, 71, 71
    token, read = 0.007 / 0.02, 0.0001 / 0.02
    rows = sum(DEVICE.step(n + 1) for n in (0, 4, 4, 2, 1)) / 0.02
    assert priced([raw], usual_devices([raw]))[0].priced == pytest.approx(
        rows + 9 * token + (64 + 1 + 2) * read
    )


def test_each_kind_is_priced_by_what_was_measured_beside_it() -> None:
    """A machine's memory may be fast in one kind and slow in the next."""
    steps = [Step((0, 1, 2), 3, 2, 3, (0.0, 0.02, 0.0), "ngram")]
    raws = [
        hindsight._Raw(recorded(kind, (0.5, 0.5)), AUTO, steps, Fixed(0), Device(0.02, curve, {}))
        for kind, curve in (("chat", [1.0, 1.1, 1.2, 1.3]), ("code", [1.0, 2.0, 3.0, 4.0]))
        for _ in range(2)
    ]
    prices = [one.priced for one in priced(raws, usual_devices(raws))]
    assert prices == pytest.approx([1.3, 1.3, 4.0, 4.0])
