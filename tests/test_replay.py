"""Recorded texts: what drafters would have offered, and policies that choose over it."""

from pathlib import Path

import numpy as np
import pytest

import specrt
from specrt.bench.replay import (
    Recorded,
    compare,
    device_of,
    load_texts,
    offers_of,
    record,
    table,
)
from specrt.bench.simulator import Offer, Text, draft_text, joined, lookup_text, run, speed
from specrt.runtime.controller import Fixed
from specrt.runtime.drafters.ngram import Ngram
from specrt.runtime.errors import RequestError
from specrt.runtime.profile import Curve, Drafting, Key, Profile

KEY = Key("d", "cpu", "0", "0", "0")
PROFILE = Profile(
    2, KEY, False, 2, (Curve(64, tuple(20_000 + 1500 * k for k in range(33)), 10),),
    (Drafting("draft", 7000, 100),), 100, 10,
)  # fmt: skip
SUITE = '{"id": "a", "kind": "chat", "prompt": "the cat on the mat and the cat"}\n'


def test_what_an_ngram_would_offer_at_each_place() -> None:
    offers = offers_of(Ngram(2, 2), [1, 2, 3, 9], [1, 2, 3, 9, 1, 7])
    # "3 9", "9 1" are new; "1 2" was followed by 3 9 1 2 …; from then on what it says comes to pass
    assert [offer and (offer.right, offer.kind) for offer in offers] == [
        None,
        None,
        (3, "ngram 2"),
        (2, "ngram 2"),
        (1, "ngram 2"),
        (0, "ngram 2"),
    ]


def test_offers_are_judged_by_the_text_and_follow_it() -> None:
    offers = offers_of(Ngram(1, 1), [5, 6, 5], [7, 5, 7, 5])
    # after 5 came 6, which is wrong; after 7 nothing yet; after 5 now 7 5 7, right to the end
    assert [offer and (offer.right, offer.size > 1) for offer in offers] == [
        (0, True),
        None,
        (2, True),
        (1, True),
    ]


def test_texts_are_read_as_they_were_written(tmp_path: Path) -> None:
    texts = [
        Recorded("a", "chat", Text({"ngram": [None, Offer(1, 3, "ngram 2")]}, 7)),
        Recorded("b", "code", Text({"ngram": [Offer(0, 1, "ngram 4")]}, 2, (7, 8), 64, (9,))),
    ]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(text.to_json() + "\n" for text in texts))
    assert load_texts(file) == texts


def test_texts_recorded_without_the_prompt_are_read(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('{"id": "a", "kind": "chat", "prompt": 7, "offers": {"ngram": [null]}}')
    assert load_texts(file) == [Recorded("a", "chat", Text({"ngram": [None]}, 7))]


def test_what_was_asked_for_is_what_a_controller_may_hope_for() -> None:
    rooms: list[int] = []

    class Asks(Fixed):
        def draft(self, drafter, context, room, rng):
            rooms.append(room)
            return Fixed.draft(self, drafter, context, room, rng)

    text = Text({"ngram": [None, None]}, 2, (7, 8), most=10)
    run(text, device_of(PROFILE, 0.0), Asks(0), ["ngram"])
    assert rooms == [9, 8]


def test_a_file_without_texts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text("")
    with pytest.raises(RequestError, match="holds no text"):
        load_texts(file)


def test_a_replay_takes_the_steps_that_the_model_took(tiny_bundle: Path, tmp_path: Path) -> None:
    suite = tmp_path / "suite.jsonl"
    suite.write_text(SUITE)
    model = specrt.load(tiny_bundle)
    (recorded,) = record(model, [str(suite)], tokens=24, limit=1)
    for name, budget in (("ngram", 3), ("draft", 2)):
        result = model.generate(
            model.prompt_ids("the cat on the mat and the cat"),
            drafter=name, budget=budget, max_tokens=24,
        )  # fmt: skip
        replayed = run(recorded.text, device_of(PROFILE, 0.0), Fixed(budget), [name])
        assert [(s.drafted, s.accepted, len(s.emitted)) for s in replayed] == [
            (s.drafted, s.accepted, len(s.emitted)) for s in result.trace.steps
        ]


def test_policies_are_compared_by_kind_of_work() -> None:
    rng = np.random.default_rng(0)
    texts = [
        Recorded(kind, kind, joined(*(f([rate] * 300, rng) for f in (lookup_text, draft_text))))
        for kind, rate in (("code", 0.9), ("chat", 0.1))
    ]
    found = compare(texts, device_of(PROFILE, 0.05), ["cost"])
    assert found["code"]["cost"] > 1.3 * found["code"]["plain"]
    assert found["chat"]["cost"] > 0.97 * found["chat"]["plain"]
    lines = table(found, ["cost"]).splitlines()
    assert [line.split()[0] for line in lines] == ["work", "code", "chat"]


def test_the_device_of_a_profile_costs_what_the_profile_says() -> None:
    quiet = device_of(PROFILE, 0.0)
    text = draft_text([1.0] * 401, np.random.default_rng(0))
    steps = run(text, quiet, Fixed(3), ["draft"])[1:-1]
    assert speed(steps) == pytest.approx(4 / (0.0245 + 3 * 0.007), rel=0.01)
