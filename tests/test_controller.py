"""The controller that chooses by cost, run for whole texts on devices that are only described."""

from dataclasses import replace
from itertools import pairwise
from statistics import median
from time import thread_time

import numpy as np
import pytest

from specrt.bench.replay import Timed
from specrt.bench.simulator import (
    Device,
    compare,
    draft_text,
    joined,
    lookup_text,
    memory,
    run,
    speed,
    straight,
)
from specrt.runtime.adaptive import REACH, Adaptive
from specrt.runtime.controller import Fixed
from specrt.runtime.costs import Costs
from specrt.runtime.drafters.ngram import Ngram
from specrt.runtime.interfaces import Context
from specrt.runtime.policies import LONGEST_WAIT, POLICIES, CostOptimal
from specrt.runtime.proposal import NOTHING
from specrt.runtime.trace import Step

FLAT = Device(0.020, straight(0.08), {"draft": (0.007, 0.001)}, noise=0.1)
STEEP = Device(0.006, straight(0.25), {"draft": (0.004, 0.001)}, noise=0.1)
DEVICES = {"flat": FLAT, "steep": STEEP}
RATES = (0.05, 0.3, 0.5, 0.7, 0.9)
BEGINNINGS = {"": "plain: ", "ngram": "ngram {}: ", "draft": "draft up to "}
READER = Device(0.020, straight(0.08), {"draft": (0.007, 0.0001)}, noise=0.1)  # reads fast
LONG = 600  # tokens


def text_of(kind: str, rates, seed: int):
    rng = np.random.default_rng(seed)
    lookup, draft = lookup_text(rates, rng), draft_text(rates, rng)
    return {"lookup": lookup, "draft": draft, "both": joined(lookup, draft)}[kind]


def drafted_by(steps, source: str) -> float:
    """The share of the steps in which a drafter's tokens were verified."""
    return sum(step.source == source for step in steps) / len(steps)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["lookup", "draft", "both"])
def test_it_is_as_fast_as_plain_decoding_whatever_the_drafts(device: str, kind: str) -> None:
    ratios = []
    for seed in range(6):
        for rate in RATES:
            text = text_of(kind, [rate] * LONG, seed)
            names, held = tuple(text.offers), memory(DEVICES[device])
            plain = run(text, DEVICES[device], Fixed(0), names, seed)
            chosen = [
                step
                for _ in range(2)
                for step in run(text, DEVICES[device], Adaptive(names, held), names, seed)
            ]
            ratios.append(speed(chosen) / speed(plain))
    assert min(ratios) >= 0.97


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["lookup", "draft", "both"])
@pytest.mark.parametrize("rate", RATES)
def test_it_comes_near_the_best_fixed_setting(device: str, kind: str, rate: float) -> None:
    ratios = []
    for seed in range(3):
        texts = [text_of(kind, [rate] * LONG, 10 * seed + i) for i in range(2)]
        found = compare(texts, DEVICES[device], ["cost"], seed)
        ratios.append(found["cost"] / found["best fixed"])
    assert median(ratios) >= 0.95


@pytest.mark.parametrize("seed", range(5))
def test_a_useless_draft_is_dropped_within_20_steps(seed: int) -> None:
    text = text_of("draft", [0.0] * 300, seed)
    steps = run(text, FLAT, Adaptive(["draft"], memory(FLAT)), ["draft"], seed)
    assert drafted_by(steps[20:], "draft") < 0.03


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["draft", "ngram"])
def test_a_stream_that_changes_turns_drafts_off_and_on_again(name: str, seed: int) -> None:
    rates = [0.9] * 400 + [0.05] * 400 + [0.9] * 800
    text = text_of({"draft": "draft", "ngram": "lookup"}[name], rates, seed)
    steps = run(text, READER, Adaptive([name], memory(READER)), [name], seed)
    places = np.cumsum([0, *(len(step.emitted) for step in steps)])[:-1]
    code, poetry, again = (
        [step for step, place in zip(steps, places, strict=True) if start <= place < end]
        for start, end in ((50, 400), (450, 800), (1300, 1600))
    )
    often = {"draft": 0.9, "ngram": 0.4}[name]  # an n-gram is not always there
    shares = [drafted_by(part, name) for part in (code, poetry, again)]
    assert (shares[0] > often, shares[1] < 0.25, shares[2] > often) == (True, True, True), shares


def test_probes_of_a_draft_that_never_pays_come_at_growing_intervals() -> None:
    text = text_of("draft", [0.0] * 3000, 0)
    offers = [offer and offer._replace(sure=()) for offer in text.offers["draft"]]
    text = replace(text, offers={"draft": offers})  # one that does not tell its certainty
    steps = run(text, READER, Adaptive(["draft"], memory(READER)), ["draft"])
    probes = [i for i, step in enumerate(steps) if "probe" in step.reason]
    waits = [b - a for a, b in pairwise(probes)]
    assert min(waits[:3]) < LONGEST_WAIT < min(waits[-3:])


def test_what_a_text_taught_is_known_in_the_next_one() -> None:
    held = memory(FLAT)
    for seed in range(3):
        text = text_of("draft", [0.0] * 200, seed)
        steps = run(text, FLAT, Adaptive(["draft"], held), ["draft"])
    assert [step for step in steps if step.drafted and "probe" not in step.reason] == []


def test_an_ngram_that_is_right_is_preferred_to_a_draft_that_is_right_too() -> None:
    text = text_of("both", [0.9] * LONG, 1)
    steps = run(text, FLAT, Adaptive(["ngram", "draft"], memory(FLAT)), ["ngram", "draft"])
    assert drafted_by(steps[30:], "ngram") > 0.5
    assert drafted_by(steps[30:], "draft") < 0.1


def test_where_rows_cost_much_less_is_drafted() -> None:
    text = text_of("lookup", [0.85] * LONG, 0)

    def most(device: Device) -> float:
        steps = run(text, device, Adaptive(["ngram"], memory(device)), ["ngram"])
        return median(step.drafted for step in steps[100:] if step.drafted)

    assert most(STEEP) < most(FLAT)


def test_every_step_has_a_reason() -> None:
    text = text_of("both", [0.5] * 200, 0)
    steps = run(text, FLAT, Adaptive(["ngram", "draft"], memory(FLAT)), ["ngram", "draft"])
    chosen = {step.reason.partition(":")[0] for step in steps}
    assert "plain" in chosen
    assert all(
        step.reason.startswith(BEGINNINGS[step.source].format(step.drafted)) for step in steps
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_writes_the_whole_text(policy: str) -> None:
    text = text_of("both", [0.6] * 300, 0)
    controller = Adaptive(["ngram", "draft"], memory(FLAT, policy))
    steps = run(text, FLAT, controller, ["ngram", "draft"])
    tokens = [token for step in steps for token in step.emitted]
    assert tokens == [*range(64, 364)]


@pytest.mark.parametrize("policy", ["cost", "thompson"])
def test_policies_that_know_costs_beat_those_that_do_not(policy: str) -> None:
    text = text_of("draft", [0.3] * LONG, 0)
    found = compare([text], FLAT, [policy, "heuristic", "ucb", "exp3"])
    assert found[policy] > max(found["heuristic"], found["ucb"], found["exp3"])


def test_a_drafter_that_has_nothing_is_not_asked_again() -> None:
    class Silent:
        asked = 0

        def propose(self, context, budget, rng):
            self.asked += 1
            return NOTHING

    silent, held = Silent(), memory(FLAT)
    controller = Adaptive(["draft"], held)
    for place in range(20):
        context = Context(range(64 + place))
        assert controller.draft(silent, context, 50, np.random.default_rng(0)).size == 0
        controller.observe(Step((1,), 0, 0, 0, (0.0, 0.02, 0.0)))
    assert silent.asked == 1


def test_a_choice_takes_at_most_50_microseconds() -> None:
    """With two drafters and all there is to choose from; the least of many, since others work on
    this machine too."""
    text = text_of("both", [0.8] * LONG, 0)
    names = ["ngram", "draft"]
    clock = Timed(Adaptive(names, memory(FLAT)))
    run(text, FLAT, clock, names)
    plain = Timed(Fixed(4))
    run(text, FLAT, plain, names)
    taken, least = (np.add(timed.seconds, timed.lessons) for timed in (clock, plain))
    assert min(taken[20:]) - min(least) < 50e-6


def test_a_policy_that_goes_by_worth_chooses_the_same_of_all_cuts_of_a_free_draft() -> None:
    class SeesAll(CostOptimal):
        by_worth = False

    text = text_of("both", [0.7] * LONG, 0)
    names = ("ngram", "draft")
    chosen = []
    for policy in (CostOptimal(), SeesAll()):
        held = replace(memory(FLAT), policy=policy)
        chosen.append(run(text, FLAT, Adaptive(names, held), names))
    assert chosen[0] == chosen[1]


def test_the_time_of_a_choice_is_without_the_drafters() -> None:
    class Slow(Ngram):
        def propose(self, context, budget, rng):
            until = thread_time() + 0.02
            while thread_time() < until:
                pass
            return super().propose(context, budget, rng)

    clock = Timed(Adaptive(["ngram"], memory(FLAT)))
    clock.draft(Slow(), Context([1, 2, 3, 1, 2]), 50, np.random.default_rng(0))
    assert clock.seconds[0] < 0.01


def test_a_fixed_budget_is_the_same_at_every_step() -> None:
    text = text_of("draft", [0.5] * 100, 0)
    steps = run(text, FLAT, Fixed(3), ["draft"])
    assert {step.drafted for step in steps[:-3]} == {3}


def test_the_speed_of_the_simulator_is_what_the_costs_say() -> None:
    quiet = Device(0.020, straight(0.08), {"draft": (0.007, 0.0)})
    steps = run(text_of("draft", [1.0] * 501, 0), quiet, Fixed(4), ["draft"])
    assert speed(steps[:-1]) == pytest.approx(5 / (0.020 * (1.05 + 0.08 * 4) + 4 * 0.007), rel=0.01)


def test_one_slow_step_changes_little() -> None:
    costs = Costs()
    for _ in range(30):
        costs.observe(1, 0.020)
        costs.observe(5, 0.026)
    before = list(costs.by_rows)
    costs.observe(5, 2.0)  # the machine stood still
    assert costs.by_rows[5] == pytest.approx(before[5], rel=0.2)
    assert costs.plain == pytest.approx(before[1], rel=0.2)


def test_a_machine_that_slows_down_leaves_the_curve_as_it_is() -> None:
    costs = Costs()
    for slower in (1.0, 2.0):
        for _ in range(40):
            costs.observe(1, slower * 0.020)
            costs.observe(5, slower * 0.026)
    for _ in range(40):
        costs.observe(5, 3 * 0.026)
    assert costs.by_rows[5] / costs.plain == pytest.approx(1.3, rel=0.05)
    assert costs.plain == pytest.approx(0.060, rel=0.1)


def test_a_step_of_some_rows_tells_of_its_neighbours() -> None:
    costs = Costs()
    for _ in range(40):
        costs.observe(1, 0.020)
        costs.observe(5, 0.020)
        costs.observe(9, 0.020)
    assert costs.by_rows[7] == pytest.approx(0.020, rel=0.1)


def test_a_draft_model_stops_where_another_token_costs_more_than_it_gains() -> None:
    text = text_of("draft", [0.7] * LONG, 0)
    steps = run(text, FLAT, Adaptive(["draft"], memory(FLAT)), ["draft"])
    lengths = {step.drafted for step in steps[20:] if step.drafted}
    assert len(lengths) >= 5


def test_drafts_that_stop_by_themselves_beat_the_best_fixed_length() -> None:
    texts = [text_of("draft", [0.8] * LONG, seed) for seed in range(4)]
    found = compare(texts, FLAT, ["cost"])
    assert found["cost"] > 1.03 * found["best fixed"]


@pytest.mark.parametrize(
    ("prompt", "sure", "first"), [(400, 0.99, 12), (400, 0.6, 400), (20, 0.6, 3)]
)
def test_a_draft_model_reads_a_long_prompt_only_where_the_target_is_sure_of_its_text(
    prompt: int, sure: float, first: int
) -> None:
    text = replace(text_of("draft", [0.9] * 300, 0), prompt=prompt, sure=[sure] * 300)
    steps = run(text, FLAT, Adaptive(["draft"], memory(FLAT)), ["draft"])
    asked = next((i for i, step in enumerate(steps) if step.source == "draft"), 400)
    assert (asked > 0, asked <= first) == (prompt == 400, True)
    assert (asked == 400) == (prompt == 400 and sure < 0.9)


def test_time_is_worth_more_than_plain_decoding_gives_before_anything_is_written() -> None:
    held = memory(FLAT, profiled=True)
    held.costs.observe(1, FLAT.plain)
    assert Adaptive(["ngram"], held).pace * held.costs.plain == pytest.approx(1.3)


def test_a_text_that_becomes_easier_is_drafted_again_without_a_probe() -> None:
    rates = [0.95] * 100 + [0.05] * 150 + [0.95] * 150
    text = text_of("draft", rates, 0)
    steps = run(text, FLAT, Adaptive(["draft"], memory(FLAT)), ["draft"])
    assert not any("probe" in step.reason for step in steps)
    assert drafted_by(steps[-12:], "draft") > 0.8


def test_a_free_draft_is_cut_until_the_text_has_shown_that_long_ones_are_right() -> None:
    text = lookup_text([1.0] * 300, np.random.default_rng(0), share=1.0)
    held = memory(FLAT, profiled=True)
    for _ in range(3):  # so that it is believed
        steps = run(text, FLAT, Adaptive(["ngram"], held), ["ngram"])
    lengths = [step.drafted for step in steps if step.drafted]
    assert lengths[0] == REACH
    assert max(lengths) == 16
    assert all(later <= 1.5 * (now + 1) for now, later in pairwise(lengths))


def test_reading_a_long_prompt_is_no_pace() -> None:
    slow = Device(0.020, straight(0.08), {"draft": (0.007, 0.005)})
    text = replace(text_of("draft", [0.95] * 200, 0), prompt=200)
    controller = Adaptive(["draft"], memory(slow, "confidence", profiled=True))
    steps = run(text, slow, controller, ["draft"])
    without = sum(len(step.emitted) for step in steps[1:]) / sum(
        sum(step.seconds) for step in steps[1:]
    )
    assert speed(steps) < 0.75 * without
    assert controller.pace == pytest.approx(without, rel=0.15)
