"""For how long a draft model is likely to be asked."""

from specrt.runtime.staying import Stays


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
