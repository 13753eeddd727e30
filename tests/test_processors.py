"""Processors: each as transformers means it, in its order, and the same under speculation."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from fakes import Drawing, FakeSession, Oracle, RandomTree, fake_logits
from hypothesis import given
from hypothesis import strategies as st

from specrt.runtime.controller import Fixed
from specrt.runtime.decode import Request, decode
from specrt.runtime.drafters.draft import DraftModel
from specrt.runtime.drafters.ngram import Ngram
from specrt.runtime.drafters.none import Plain
from specrt.runtime.errors import RequestError
from specrt.runtime.interfaces import Drafter
from specrt.runtime.processors import NONE, Processors
from specrt.runtime.rules import EXACT
from specrt.runtime.sampling import GREEDY, Sampling
from specrt.runtime.scored import Scored
from specrt.runtime.trace import Step

VOCAB = 7
texts = st.lists(st.integers(0, 4), max_size=12)
rows = st.integers(0, 999).map(lambda seed: fake_logits(seed, 5, (0,)))


def changed(row: np.ndarray, text: Sequence[int], **options: object) -> list[float]:
    return Processors(**options).apply(row, text).tolist()


# Each as its definition says


@given(rows, texts, st.sampled_from([0.5, 1.3, 2.0]))
def test_repetition_divides_what_is_positive_and_multiplies_what_is_negative(row, text, penalty):
    found = changed(row, text, repetition_penalty=penalty)
    for token, logit in enumerate(row):
        scaled = logit * penalty if logit < 0 else logit / penalty
        assert found[token] == (scaled if token in text else logit)


@given(rows, texts, st.integers(0, 12))
def test_presence_is_taken_off_once_and_frequency_each_time_a_token_was_written(row, text, prompt):
    found = changed(row, text, presence_penalty=0.5, frequency_penalty=-0.25, prompt=prompt)
    counts = Counter(text[prompt:])
    exact = [logit - (0.5 - 0.25 * counts[x] if counts[x] else 0) for x, logit in enumerate(row)]
    assert found == pytest.approx(exact, abs=1e-15)


@given(rows, texts, st.integers(1, 4))
def test_no_sequence_of_n_tokens_comes_twice(row, text, n):
    grams = {tuple(text[i : i + n]) for i in range(len(text) - n + 1)}
    found = changed(row, text, no_repeat_ngram=n)
    for token, logit in enumerate(row):
        last = tuple(text[len(text) - n + 1 :]) if len(text) >= n - 1 else None
        repeats = last is not None and (*last, token) in grams
        assert found[token] == (-math.inf if repeats else logit)


@given(rows, texts)
def test_a_bad_word_never_comes_whole(row, text):
    words = ((2,), (0, 1), (1, 1, 3), (0, 4))
    found = changed(row, text, bad_words=words)
    for token, logit in enumerate(row):
        whole = any([*text, token][-len(word) :] == list(word) for word in words)
        assert found[token] == (-math.inf if whole else logit)


@given(rows, texts, st.integers(0, 6), st.integers(0, 6))
def test_no_stop_token_comes_before_min_tokens_are_written(row, text, prompt, least):
    found = changed(row, text, min_tokens=least, prompt=prompt, stop=frozenset({1, 3}))
    early = len(text) - prompt < least
    exact = [-math.inf if early and x in (1, 3) else logit for x, logit in enumerate(row)]
    assert found == exact


@given(rows)
def test_a_bias_is_added(row):
    found = changed(row, [0], logit_bias={1: 2.5, 3: -math.inf})
    assert found == [row[0], row[1] + 2.5, row[2], -math.inf, row[4]]


def test_the_users_own_comes_last_and_sees_the_text():
    seen = []

    def custom(text, row):
        seen.append((list(text), row.tolist()))
        row[4] = 9
        return row

    row = np.zeros(5)
    found = changed(row, [0, 1], logit_bias={0: 1}, bad_words=((2,),), custom=custom)
    assert seen == [([0, 1], [1, 0, -math.inf, 0, 0])]
    assert found == [1, 0, -math.inf, 0, 9]
    assert row.tolist() == [0] * 5


def test_they_come_in_their_order():
    """Bias before repetition, repetition before presence and frequency."""
    found = changed(
        np.array([1.0, -1.0, 0.0]),
        [0, 1, 1],
        logit_bias={0: 3.0, 1: -1.0},
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        prompt=1,
    )
    assert found == [(1 + 3) / 2, (-1 - 1) * 2 - 0.5 - 0.5, 0]


def test_a_padded_row_does_not_know_every_token():
    found = changed(np.zeros(3), [5, 2], repetition_penalty=2.0, stop=frozenset({9}), min_tokens=5)
    assert found == [0, 0, 0]


# Typical-p


def typical(logits: np.ndarray, mass: float) -> list[int]:
    """The definition, word for word."""
    p = np.exp(logits - logits.max())
    p /= p.sum()
    entropy = -sum(x * math.log(x) for x in p if x)
    order = sorted(np.flatnonzero(p), key=lambda i: (abs(-math.log(p[i]) - entropy), i))
    kept, total = [], 0.0
    while total < mass and len(kept) < len(order):
        kept.append(int(order[len(kept)]))
        total += p[kept[-1]]
    return sorted(kept)


@given(st.integers(0, 999), st.sampled_from([0.05, 0.3, 0.9, 0.999]), st.sampled_from([4, 60, 900]))
def test_typical_p_keeps_the_tokens_nearest_the_entropy(seed, mass, size):
    logits = fake_logits(seed, size, (0,))
    found = Sampling(1.0, typical_p=mass).probs(logits)
    assert np.flatnonzero(found).tolist() == typical(logits, mass)
    kept = np.exp(logits) * (found > 0)
    assert found == pytest.approx(kept / kept.sum(), abs=1e-12)


def test_typical_p_sees_what_the_cuts_before_it_left():
    logits = fake_logits(1, 30, (0,))
    cut = Sampling(0.7, top_k=9, top_p=0.9, min_p=0.01)
    with np.errstate(divide="ignore"):
        kept = typical(np.log(cut.probs(logits)), 0.5)
    assert np.flatnonzero(replace(cut, typical_p=0.5).probs(logits)).tolist() == kept
    assert len(kept) < np.count_nonzero(cut.probs(logits))


# Under speculation


def no_neighbours(text: Sequence[int], row: np.ndarray) -> np.ndarray:
    """A user's own: no token that is one more than the last."""
    if text:
        row[(text[-1] + 1) % row.size] = -np.inf
    return row


PROCESSORS = {
    "bias": Processors(logit_bias={1: 2.0, 3: -math.inf}),
    "repetition": Processors(repetition_penalty=1.8),
    "presence": Processors(presence_penalty=1.5),
    "frequency": Processors(frequency_penalty=0.7),
    "no repeat": Processors(no_repeat_ngram=3),
    "bad words": Processors(bad_words=((2,), (1, 4), (0, 0))),
    "min tokens": Processors(min_tokens=13),
    "custom": Processors(custom=no_neighbours),
    "all": Processors({1: 1.0}, 1.3, 0.4, 0.2, 3, ((1, 4),), 9, custom=no_neighbours),
}
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram": lambda: Ngram(2, 1),
    "draft": lambda: DraftModel(FakeSession(1, vocab=VOCAB)),
    "drawing": lambda: Drawing(1, VOCAB),
    "oracle": lambda: Oracle(0, VOCAB),
    "tree": lambda: RandomTree(0, VOCAB, 3),
    "certain tree": lambda: RandomTree(0, VOCAB, 3, certain=True),
}


def run(drafter: Drafter, sampling: Sampling, budget: int = 5, **options: object) -> list[Step]:
    request = Request((1, 2, 3), max_tokens=20, sampling=sampling, **options)
    return list(decode(FakeSession(0, vocab=VOCAB), drafter, Fixed(budget), request))


def text_of(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.emitted]


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("processors", PROCESSORS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_does_not_depend_on_the_drafter(name, processors, temperature):
    sampling = Sampling(temperature, top_k=6, processors=PROCESSORS[processors])
    for seed in range(3):
        options = {"seed": seed, "stop": frozenset({6})}
        plain = text_of(run(Plain(), sampling, **options))
        assert text_of(run(DRAFTERS[name](), sampling, **options)) == plain


@pytest.mark.parametrize("processors", PROCESSORS)
@pytest.mark.parametrize("rule", ["coupled", "block", "rejection"])
def test_a_draft_of_the_same_model_is_processed_alike_and_always_accepted(processors, rule):
    sampling = Sampling(1.0, processors=PROCESSORS[processors])
    steps = run(Drawing(0, VOCAB), sampling, rule=rule)
    assert [step.accepted for step in steps] == [5, 5, 5, 1]


@pytest.mark.parametrize("processors", PROCESSORS)
def test_plain_text_is_the_rows_own_choice_after_its_processors(processors):
    """Greedy decoding written out, without the loop."""
    text = [1, 2, 3]
    used = replace(PROCESSORS[processors], prompt=3, stop=frozenset({6}))
    while len(text) < 23 and (len(text) == 3 or text[-1] != 6):
        text.append(int(used.apply(fake_logits(0, VOCAB, tuple(text)), text).argmax()))
    sampling = Sampling(processors=PROCESSORS[processors])
    assert text_of(run(RandomTree(0, VOCAB), sampling, stop=frozenset({6}))) == text[3:]


@pytest.mark.parametrize("rule", sorted(set(EXACT) - {"coupled"}))
def test_processed_text_follows_the_processed_law_under_every_rule(rule):
    """All texts of two tokens, by chi-square at 5 standard deviations: 1 false alarm in 20,000."""
    sampling = Sampling(1.0, processors=Processors({1: 0.5}, 1.5, custom=no_neighbours))
    law = {
        (a, b): sampling.probs(fake_logits(0, VOCAB, (1, 2, 3)), (1, 2, 3))[a]
        * sampling.probs(fake_logits(0, VOCAB, (1, 2, 3, a)), (1, 2, 3, a))[b]
        for a in range(VOCAB)
        for b in range(VOCAB)
    }
    target, runs = FakeSession(0, vocab=VOCAB), 2000
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(runs):
        request = Request((1, 2, 3), max_tokens=3, sampling=sampling, seed=seed, rule=rule)
        steps = list(decode(target, Drawing(1, VOCAB), Fixed(2), request))
        seen[tuple(text_of(steps)[:2])] += 1
    assert all(law[text] > 0 for text in seen)
    cells = [(seen[text], p * runs) for text, p in law.items() if p * runs >= 5]
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    assert (statistic - len(cells)) / np.sqrt(2 * len(cells)) < 5


@pytest.mark.parametrize("processors", ["frequency", "custom", "bad words", "min tokens", "all"])
def test_processors_that_see_the_committed_text_only_are_seen(processors, monkeypatch):
    """The known mistake: a drafted row processed as if the draft before it were not there."""
    sampling = Sampling(1.0, processors=PROCESSORS[processors])
    stop = frozenset({6}) if processors == "min tokens" else frozenset()
    plain = [text_of(run(Plain(), sampling, seed=seed, stop=stop)) for seed in range(5)]
    monkeypatch.setattr(Scored, "_text", lambda self, node: self.tokens)
    wrong = [text_of(run(Drawing(0, VOCAB), sampling, seed=s, stop=stop)) for s in range(5)]
    assert wrong != plain


def test_the_traced_probabilities_are_the_processed_ones():
    sampling = Sampling(1.0, processors=PROCESSORS["all"])
    for step in run(Drawing(0, VOCAB), sampling, traced=True):
        assert step.detail.p == step.detail.q  # the draft is the target's own model


# Log-probabilities


def test_logprobs_are_the_models_own_or_the_processed_ones_as_asked():
    sampling = Sampling(0.5, top_k=3, processors=PROCESSORS["repetition"])
    for processed in (False, True):
        steps = run(RandomTree(0, VOCAB), sampling, logprobs=2, processed_logprobs=processed)
        text = [1, 2, 3]
        for one in (one for step in steps for one in step.logprobs):
            row = fake_logits(0, VOCAB, tuple(text))
            row = sampling.processed(row, text) if processed else row
            exact = row - np.log(np.exp(row).sum())
            assert one.logprob == pytest.approx(exact[one.token], abs=1e-12)
            assert [token for token, _ in one.top] == np.argsort(-row)[:2].tolist()
            text.append(one.token)
        assert text[3:] == text_of(steps)


# What cannot be


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.nan),
        ("presence_penalty", math.inf),
        ("frequency_penalty", math.nan),
        ("no_repeat_ngram", -1),
        ("min_tokens", -1),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: math.inf}),
        ("bad_words", ((1,), ())),
    ],
)
def test_an_impossible_option_is_refused_by_name(option, value):
    with pytest.raises(RequestError, match=option):
        Processors(**{option: value})


@pytest.mark.parametrize("value", [0.0, 1.1, math.nan])
def test_an_impossible_typical_p_is_refused(value):
    with pytest.raises(RequestError, match=f"typical_p must be .*{value}"):
        Sampling(typical_p=value)


@pytest.mark.parametrize("options", [{"logit_bias": {7: 1.0}}, {"bad_words": ((1, -1),)}])
def test_a_token_the_model_does_not_have_is_refused(options):
    with pytest.raises(RequestError, match="the model has tokens 0 to 6"):
        run(Plain(), Sampling(processors=Processors(**options)))


def test_processors_that_leave_no_token_are_named():
    everything = Processors(bad_words=tuple((token,) for token in range(VOCAB)))
    with pytest.raises(RequestError, match="leave no token to follow the 3 so far"):
        run(Plain(), Sampling(processors=everything))


def test_a_custom_processor_of_another_size_is_named():
    odd = Processors(custom=lambda text, row: row[:3])
    with pytest.raises(RequestError, match=r"\(7,\) logits to \(3,\)"):
        run(Plain(), Sampling(processors=odd))


def test_a_request_without_processors_copies_nothing():
    row = fake_logits(0, 5, (0,))
    assert GREEDY.processed(row) is row
    assert [NONE.idle, Processors(min_tokens=1).idle] == [True, False]
