"""Drafters: what they propose depends on the text and the random numbers alone."""

import doctest
from collections.abc import Sequence

import numpy as np
import pytest
from fakes import FakeSession, fake_logits
from hypothesis import given
from hypothesis import strategies as st

from specrt.runtime import prefix
from specrt.runtime.drafters import named, ngram
from specrt.runtime.drafters.draft import DraftModel
from specrt.runtime.drafters.first import First
from specrt.runtime.drafters.ngram import Ngram
from specrt.runtime.drafters.none import Plain
from specrt.runtime.errors import BundleError, RequestError
from specrt.runtime.interfaces import Context, Drafter
from specrt.runtime.prefix import common_prefix
from specrt.runtime.sampling import GREEDY, Sampling

WARM = Sampling(0.9, top_k=4, top_p=0.95)
texts = st.lists(st.integers(0, 3), min_size=1, max_size=25)

MAKERS = {
    "none": Plain,
    "ngram": lambda: Ngram(3, 1),
    "draft": lambda: DraftModel(FakeSession(1)),
    "ngram+draft": lambda: First([Ngram(3, 2), DraftModel(FakeSession(1))]),
}


def ask(
    drafter: Drafter, tokens: Sequence[int], budget: int = 4, sampling: Sampling = GREEDY
) -> tuple[list[int], list[list[float]]]:
    context = Context(list(tokens), sampling=sampling)
    proposal = drafter.propose(context, budget, np.random.default_rng(7))
    assert proposal.size <= budget
    laws = [] if proposal.probs is None else [q.dense(5).tolist() for q in proposal.probs]
    return proposal.tokens.tolist(), laws


@pytest.mark.parametrize("module", [ngram, prefix])
def test_the_examples_hold(module):
    assert doctest.testmod(module).failed == 0


@given(st.sampled_from(sorted(MAKERS)), st.lists(texts, max_size=4), texts)
def test_a_proposal_depends_on_the_text_alone(name, earlier, text):
    used = MAKERS[name]()
    for tokens in earlier:
        ask(used, tokens, sampling=WARM)
    assert ask(used, text, sampling=WARM) == ask(MAKERS[name](), text, sampling=WARM)


@given(st.sampled_from(sorted(MAKERS)), texts, st.lists(texts, max_size=4), st.integers(0, 9))
def test_a_proposal_does_not_depend_on_how_the_text_grew(name, text, parts, cut):
    used = MAKERS[name]()
    for part in parts:
        ask(used, text, sampling=WARM)
        text = [*text[: len(text) - cut], *part]
    assert ask(used, text, sampling=WARM) == ask(MAKERS[name](), text, sampling=WARM)


@pytest.mark.parametrize("name", MAKERS)
def test_a_budget_of_0_proposes_nothing(name):
    assert ask(MAKERS[name](), [1, 2, 1, 2], budget=0) == ([], [])


@given(texts, texts)
def test_a_common_prefix_is_as_long_as_both_agree(a, b):
    length = common_prefix(a, b)
    assert a[:length] == b[:length]
    assert length == min(len(a), len(b)) or a[length] != b[length]
    assert common_prefix(tuple(a), b) == length


# Prompt lookup


def looked_up(text: list[int], longest: int, shortest: int, budget: int) -> list[int]:
    """The definition: search backwards for each length, the longest first."""
    for length in range(min(longest, len(text) - 1), shortest - 1, -1):
        for start in range(len(text) - length - 1, -1, -1):
            if text[start : start + length] == text[len(text) - length :]:
                copy = list(text)
                for i in range(budget):
                    copy.append(copy[start + length + i])
                return copy[len(text) :]
    return []


@given(texts, st.integers(1, 4), st.integers(0, 3), st.integers(1, 6))
def test_lookup_equals_a_search_of_the_whole_text(text, shortest, more, budget):
    found, laws = ask(Ngram(shortest + more, shortest), text, budget)
    assert found == looked_up(text, shortest + more, shortest, budget)
    assert laws == []


def test_the_longest_match_comes_before_a_more_recent_one():
    assert ask(Ngram(3, 1), [1, 2, 3, 9, 0, 3, 8, 1, 2, 3], budget=2)[0] == [9, 0]


def test_of_equal_matches_the_most_recent_one_is_taken():
    assert ask(Ngram(2, 1), [1, 2, 7, 1, 2, 8, 1, 2], budget=1)[0] == [8]


def test_a_repeating_text_is_drafted_to_the_full_budget():
    assert ask(Ngram(3, 2), [1, 2, 1, 2, 1], budget=6)[0] == [2, 1, 2, 1, 2, 1]


def test_a_new_text_proposes_nothing():
    assert ask(Ngram(3, 2), [1, 2, 3, 4])[0] == []


def test_each_token_is_indexed_once():
    drafter, text = Ngram(3, 2), [1, 2, 3]
    reads: list[int] = []

    class Counting(dict):
        def __setitem__(self, key, value):
            reads.append(value)
            super().__setitem__(key, value)

    drafter._held = ([], Counting())
    for token in [0, 3, 2, 1, 4]:
        text.append(token)
        ask(drafter, text)
    assert reads == [2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]  # a pair, then a pair and a triple each


@pytest.mark.parametrize(("longest", "shortest"), [(2, 3), (2, 0), (0, 0)])
def test_impossible_match_lengths_are_refused(longest, shortest):
    with pytest.raises(RequestError, match=f"{shortest} and {longest}"):
        Ngram(longest, shortest)


# The draft model


def test_a_draft_writes_what_its_model_would():
    session = FakeSession(1)
    tokens, laws = ask(DraftModel(session), [1, 2], 3)
    fresh, text = FakeSession(1), [1, 2]
    for _ in range(3):
        fresh.keep(0)
        text.append(int(fresh.forward(text).logits[0].argmax()))
    assert tokens == text[2:]
    assert laws == [[float(token == i) for i in range(5)] for token in tokens]


def test_a_draft_reports_the_law_its_tokens_were_drawn_from():
    drafter, text, rng = DraftModel(FakeSession(1)), [1, 2], np.random.default_rng(0)
    proposal = drafter.propose(Context(text, sampling=WARM), 3, rng)
    fresh = FakeSession(1)
    for token, q in zip(proposal.tokens.tolist(), proposal.probs, strict=True):
        fresh.keep(0)
        row = fresh.forward(text).logits[0]
        assert q.dense(5).tolist() == WARM.probs(row).tolist()
        text.append(token)


def test_a_draft_catches_up_by_the_tokens_it_lacks():
    session = FakeSession(1)
    drafter = DraftModel(session)
    text = [1, 2, 3]
    drafts = ask(drafter, text, 3)[0]
    assert session.reads == [3, 1, 1]
    session.reads.clear()
    text += [*drafts, 4]  # all accepted: the last drafted one was never read
    drafts = ask(drafter, text, 3)[0]
    assert session.reads == [2, 1, 1]
    session.reads.clear()
    text += [drafts[0], (drafts[1] + 1) % 5]  # one accepted, one the target's own
    ask(drafter, text, 3)
    assert session.reads == [1, 1, 1]


@pytest.mark.parametrize(("length", "drafted"), [(7, 3), (8, 3), (9, 2), (10, 1), (11, 0), (30, 0)])
def test_a_draft_of_a_shorter_context_proposes_nothing_past_its_end(length, drafted):
    drafter = DraftModel(FakeSession(1, capacity=10))
    assert len(ask(drafter, [1] * length, 3)[0]) == drafted
    assert len(ask(drafter, [1, 2], 3)[0]) == 3


def test_a_padding_id_is_never_drafted():
    drafter = DraftModel(FakeSession(1, vocab=50), limit=5)
    for seed in range(50):
        proposal = drafter.propose(
            Context([1, 2], sampling=Sampling(3.0)), 5, np.random.default_rng(seed)
        )
        assert proposal.tokens.max() < 5
        assert all(q.probs.size == 5 for q in proposal.probs)


def test_a_draft_that_cannot_read_every_token_is_refused():
    with pytest.raises(BundleError, match="has 4 tokens, the target 5"):
        DraftModel(FakeSession(1, vocab=4), limit=5)


def test_a_long_prompt_reaches_the_draft_in_chunks():
    session = FakeSession(1, capacity=3000)
    ask(DraftModel(session), [1, 2, 3] * 400, 1)
    assert session.reads == [512, 512, 176]


# By name


def test_the_first_drafter_that_proposes_something_wins():
    drafter = MAKERS["ngram+draft"]()
    context = Context([1, 2, 3, 1, 2])
    rng = np.random.default_rng(0)
    assert drafter.propose(context, 3, rng).source == "ngram"
    assert drafter.propose(Context([1, 2, 3, 4]), 3, rng).source == "draft"


def test_drafters_are_made_by_name_and_combined_by_plus():
    makers = {"a": Plain, "b": lambda: Ngram(3, 1)}
    assert isinstance(named("a", makers), Plain)
    assert ask(named("a+b", makers), [1, 2, 1])[0] == ask(Ngram(3, 1), [1, 2, 1])[0]


@pytest.mark.parametrize("name", ["c", "a+", "", "a+c"])
def test_an_unknown_drafter_is_refused_with_those_there_are(name):
    with pytest.raises(RequestError, match="there are a, b"):
        named(name, {"a": Plain, "b": Plain})


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_draft_model_is_told_after_each_token_whether_to_draft_on(rng, stop: int) -> None:
    certainties: list[float] = []

    def go_on(certainty: float) -> bool:
        certainties.append(certainty)
        return len(certainties) < stop

    drafter = DraftModel(FakeSession(1, vocab=5))
    whole = drafter.propose(Context([1, 2, 3]), 5, rng)
    proposal = drafter.propose(Context([1, 2, 3], go_on=go_on), 5, rng)
    assert proposal.tokens.tolist() == whole.tokens.tolist()[:stop]
    text = [1, 2, 3, *whole.tokens.tolist()]
    rows = [fake_logits(1, 5, tuple(text[: 3 + i])) for i in range(stop)]
    assert certainties == pytest.approx([np.exp(r).max() / np.exp(r).sum() for r in rows])
