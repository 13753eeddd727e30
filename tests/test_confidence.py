"""How far a draft model gets, by its own certainty and by the target's."""

import numpy as np
import pytest

from specrt.runtime.confidence import BELIEVED, DEEPEST, Certainty, Stopped, Watch
from specrt.runtime.proposal import NOTHING, ROOT
from specrt.runtime.sampling import GREEDY
from specrt.runtime.scored import Scored

FLOOR = 0.6


def test_certainty_is_believed_until_it_was_counted() -> None:
    certainty = Certainty()
    assert certainty.chance(0.1) < certainty.chance(0.6) < certainty.chance(0.97)
    for _ in range(200):
        certainty.observe([0.97, 0.1], right=0)
    assert certainty.chance(0.97) < 0.2
    assert certainty.chance(0.1) == BELIEVED[0]  # after a wrong token there is nothing to learn


def test_what_was_counted_is_forgotten_with_the_texts() -> None:
    certainty = Certainty()
    for _ in range(200):
        certainty.observe([0.97], right=0)
    counted = certainty.chance(0.97)
    for _ in range(20):
        certainty.forget()
    assert counted + 0.05 < certainty.chance(0.97) < 0.6
    for _ in range(200):
        certainty.forget()
    assert certainty.chance(0.97) == pytest.approx(BELIEVED[5], abs=0.01)


def test_a_watch_stops_below_its_floor() -> None:
    watch = Watch(Certainty(), {1: 0.5, 2: 0.9, 3: 0.93}.__getitem__)
    assert [watch(0.96), watch(0.96), watch(0.96)] == [True, True, False]
    assert watch.seen == [0.96, 0.96, 0.96]
    assert Watch(Certainty(), lambda n: 0.4)(0.6)
    assert not Watch(Certainty(), lambda n: 0.4)(0.1)


def test_drafts_that_are_observed_become_what_is_expected() -> None:
    stopped = Stopped()
    for _ in range(200):
        stopped.observe(4, 3)
    assert stopped.emitted == pytest.approx(3, rel=0.05)
    assert stopped.drafted == pytest.approx(4, rel=0.05)
    for _ in range(200):
        stopped.observe(DEEPEST, DEEPEST + 1)
    assert stopped.emitted == pytest.approx(DEEPEST + 1, rel=0.01)
    assert stopped.drafted <= DEEPEST


def test_a_text_that_is_sure_foresees_long_drafts_and_another_one_short_ones() -> None:
    sure, unsure, usual = Stopped(), Stopped(), Stopped()
    for _ in range(10):
        sure.foresee(0.99, FLOOR)
        unsure.foresee(0.4, FLOOR)
    assert unsure.emitted < usual.emitted - 1
    assert sure.emitted > usual.emitted + 2
    for _ in range(20):
        sure.foresee(0.4, FLOOR)
    assert sure.emitted < usual.emitted  # it changed


def test_what_is_foreseen_is_what_drafts_of_these_chances_would_have_done() -> None:
    rng = np.random.default_rng(0)
    chances = rng.choice([0.995, 0.9, 0.5], 20000, p=[0.7, 0.2, 0.1])
    foreseen = Stopped(fade=1.0)
    means = []
    for chance in chances.tolist():
        foreseen.foresee(chance, FLOOR)
        means.append(foreseen.emitted)
    emitted, place = [], 0
    while place < chances.size:
        right, chance = 0, 1.0
        for one in chances[place : place + DEEPEST].tolist():
            chance *= one
            if rng.random() >= one:
                break
            right += 1
            if chance < FLOOR:
                break
        emitted.append(right + 1)
        place += right + 1
    assert np.mean(means) == pytest.approx(np.mean(emitted), rel=0.15)


def test_a_draft_model_that_was_wrong_where_it_was_foreseen_right_is_not_foreseen_again() -> None:
    stopped = Stopped()
    for _ in range(8):
        stopped.observe(2, 1)
        stopped.show(0.97, False)
    for _ in range(50):
        stopped.foresee(0.97, FLOOR)
    assert stopped.emitted < 1.2


def test_a_draft_model_that_was_always_right_is_soon_found_wrong() -> None:
    always = Stopped(DEEPEST, DEEPEST + 1)
    assert 7 < always.emitted < DEEPEST + 1
    for _ in range(12):
        always.observe(DEEPEST, 1)
    assert always.emitted < 5
    foreseen = Stopped(DEEPEST, DEEPEST + 1)
    for _ in range(20):
        foreseen.foresee(0.3, FLOOR)
    assert foreseen.emitted < 3


def test_doubt_is_for_shorter_drafts_and_less_where_more_was_seen() -> None:
    few, many = Stopped(), Stopped()
    for _ in range(400):
        many.observe(3, 3)
    assert few.doubted(0.0) == (few.drafted, few.emitted)
    assert few.doubted(1.5)[1] / few.emitted < many.doubted(1.5)[1] / many.emitted < 1


@pytest.mark.parametrize("row", [[0.0, 2.0, 1.0], [2.0, 1.0, -5.0], [-9.0, 1.0, 2.0]])
def test_the_targets_certainty_is_the_best_tokens_chance_against_the_second(row) -> None:
    logits = np.array([row], np.float32)
    scored = Scored(NOTHING, logits, GREEDY, (0,))
    best = int(np.argmax(row))
    assert scored.certainty(ROOT, best) == pytest.approx(1 / (1 + np.exp(-1)), rel=1e-6)
    other = int(np.argsort(row)[1])
    assert scored.certainty(ROOT, other) == pytest.approx(1 / (1 + np.exp(1)), rel=1e-6)


def test_a_token_without_a_chance_has_no_certainty() -> None:
    logits = np.array([[0.0, -np.inf]], np.float32)
    scored = Scored(NOTHING, logits, GREEDY, (0,))
    assert scored.certainty(ROOT, 1) == pytest.approx(0, abs=1e-20)
    assert scored.certainty(ROOT, 0) == 1
