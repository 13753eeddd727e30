"""For how long a draft model is likely to be asked."""

from dataclasses import replace

import numpy as np
import pytest

from specrt.bench.simulator import Device, draft_text, memory, run, straight
from specrt.runtime.adaptive import Adaptive
from specrt.runtime.staying import Ends, Stays


def test_one_that_was_not_asked_stays_for_what_ngrams_leave() -> None:
    alone, beside = Stays(), Stays()
    for _ in range(40):
        alone.wrote(1, free=False)
        beside.wrote(4, free=True)
    assert alone.steps("draft", 400, 100, 2.0) > 5 * beside.steps("draft", 400, 100, 2.0)


def test_one_that_was_asked_stays_as_long_as_lately() -> None:
    stays = Stays()
    for _ in range(12):
        stays.chose("draft")
    assert stays.steps("draft", 1, 100, 2.0) == 12
    for _ in range(8):
        stays.chose("")
        for _ in range(3):
            stays.chose("draft")
    assert 3 <= stays.steps("draft", 50, 100, 2.0) < 5


def test_it_was_asked_once_it_was_chosen() -> None:
    stays = Stays()
    stays.chose("")
    assert not stays.asked("draft")
    stays.chose("draft")
    assert stays.asked("draft")


def test_texts_go_on_for_as_long_as_others_did_however_much_room_they_have() -> None:
    ends = Ends()
    assert ends.left(16) == pytest.approx(15, abs=0.1)
    for _ in range(30):
        for ended in (False, False, True):
            ends.wrote(10, ended=ended)
    assert 30 < ends.left(4096) < 40  # 30 tokens each, as most lately
    assert ends.left(10) < 10


def test_a_text_that_was_cut_off_tells_that_texts_are_longer() -> None:
    ends = Ends()
    for _ in range(8):
        ends.wrote(500, ended=False)
    assert ends.left(100_000) > 4000


def test_where_answers_are_short_no_draft_model_reads_a_long_prompt_for_them() -> None:
    device = Device(0.020, straight(0.08), {"draft": (0.005, 0.001)}, noise=0.05)
    asked = []
    for most in (24, 2048):
        held, read = memory(device, profiled=True), 0
        for seed in range(12):  # of no template
            rng = np.random.default_rng(seed)
            ids = tuple(rng.integers(0, 150_000, 400).tolist())
            text = replace(draft_text([0.9] * 20, rng), prompt=400, ids=ids, most=most)
            steps = run(text, device, Adaptive(["draft"], held), ["draft"], seed)
            read += any(step.drafted for step in steps)
        asked.append(read)
    assert (asked[0], asked[1] <= 3) == (0, True), asked  # all 12, did it count on all the room
