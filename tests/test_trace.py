"""Every number of a run derives from its steps."""

import json
import math

import numpy as np
import pytest
from fakes import FakeSession, Oracle, RandomTree, fake_logits

from specrt.runtime.controller import Fixed
from specrt.runtime.decode import Request, decode
from specrt.runtime.drafters.none import Plain
from specrt.runtime.sampling import Sampling
from specrt.runtime.trace import Step, Trace

STEPS = (
    Step((5, 6, 7), drafted=4, accepted=2, depth=4, seconds=(0.5, 1.0, 0.25), prefill_s=3.0),
    Step((8,), drafted=0, accepted=0, depth=0, seconds=(0.0, 1.0, 0.0)),
    Step((9, 1), drafted=2, accepted=1, depth=2, seconds=(0.5, 1.0, 0.5)),
    Step((2,), drafted=2, accepted=0, depth=2, seconds=(0.5, 1.0, 0.5), finish="stop"),
)


def trace_of(steps: tuple[Step, ...]) -> Trace:
    trace = Trace(prompt_tokens=11, drafter="ngram", seed=3)
    for step in steps:
        trace.add(step)
    return trace


def test_the_summary_counts_and_times_every_step():
    assert trace_of(STEPS).summary() == {
        "prompt_tokens": 11,
        "tokens": 7,
        "finish_reason": "stop",
        "ttft_s": 4.75,
        "decode_s": 5.0,
        "tokens_per_s": 0.8,  # 4 tokens after the first step
        "steps": 4,
        "drafted": 8,
        "accepted": 3,
        "acceptance_rate": 0.375,
        "tokens_per_step": 1.75,
        "accepted_at": [2 / 3, 1 / 3, 0.0, 0.0],
        "choices": {" 2": 2, " 4": 1, "plain": 1},
        "reason": "",
        "draft_s": 1.5,
        "target_s": 4.0,
        "verify_s": 1.25,
        "drafter": "ngram",
        "seed": 3,
        "rule": "",
        "lossy": False,
    }


def test_a_run_without_steps_has_a_summary():
    summary = trace_of(()).summary()
    assert (summary["tokens"], summary["tokens_per_s"], summary["finish_reason"]) == (
        0,
        0,
        "length",
    )
    assert summary["accepted_at"] == []


def test_accepted_tokens_are_from_the_draft_and_the_bonus_is_not():
    assert STEPS[0].from_draft == (True, True, False)
    assert STEPS[1].from_draft == (False,)


def test_a_stop_token_is_emitted_but_is_not_text():
    assert STEPS[3].text_tokens == ()
    assert STEPS[0].text_tokens == (5, 6, 7)


# What is computed only when asked for


def one_step(drafter: object, **options: object) -> Step:
    request = Request((1, 2), max_tokens=4, **options)
    return next(decode(FakeSession(0), drafter, Fixed(3), request))


def test_nothing_extra_is_computed_unless_asked_for():
    step = one_step(Oracle(0, 5))
    assert step.detail is None
    assert step.logprobs == ()


def test_the_log_probabilities_are_those_of_the_raw_logits():
    step = one_step(Oracle(0, 5), logprobs=2, sampling=Sampling(0.3, top_k=1))
    assert len(step.emitted) == 4
    text = (1, 2)
    for token, found in zip(step.emitted, step.logprobs, strict=True):
        row = fake_logits(0, 5, text)
        exact = row - np.log(np.exp(row).sum())
        best = np.argsort(-exact)[:2]
        assert found.token == token
        assert found.logprob == pytest.approx(exact[token])
        assert [i for i, _ in found.top] == best.tolist()
        assert [value for _, value in found.top] == pytest.approx(exact[best])
        text = (*text, token)


def test_a_block_cut_by_a_stop_has_a_log_probability_for_each_token_left():
    stop = one_step(Oracle(0, 5)).emitted[1]
    step = one_step(Oracle(0, 5), logprobs=1, stop=frozenset({stop}))
    assert [found.token for found in step.logprobs] == list(step.emitted)
    assert step.emitted[-1] == stop
    assert len(step.emitted) <= step.drafted


def test_log_probabilities_without_alternatives_have_none():
    assert one_step(Plain(), logprobs=0).logprobs[0].top == ()


def test_the_detail_tells_what_was_tried_and_how_likely_it_was():
    sampling = Sampling(1.0)
    step = one_step(RandomTree(1, 5), sampling=sampling, traced=True, seed=5)
    detail = step.detail
    texts = {-1: (1, 2)}
    for node, (token, parent) in enumerate(zip(detail.tokens, detail.parents, strict=True)):
        texts[node] = (*texts[parent], token)
        reached = parent == -1 or parent in detail.path
        p = sampling.probs(fake_logits(0, 5, texts[parent]))[token] if reached else None
        assert detail.p[node] == p
    q = sampling.distribution(fake_logits(1, 5, (1, 2)))
    assert detail.q[:2] == (
        q.of(detail.tokens[0]),
        q.without(detail.tokens[0]).of(detail.tokens[1]),
    )
    assert step.emitted == (*(detail.tokens[node] for node in detail.path), detail.bonus)


@pytest.mark.parametrize("seed", range(20))
def test_the_rejected_are_the_siblings_tried_before_the_accepted(seed):
    step = one_step(RandomTree(1, 5), sampling=Sampling(1.0), traced=True, seed=seed)
    detail = step.detail
    tried = []
    for parent in (-1, *detail.path):
        for node in (i for i, above in enumerate(detail.parents) if above == parent):
            if node in detail.path:
                break
            tried.append(node)
    assert detail.rejected == tuple(tried)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_step_tells_how_certain_the_target_was_of_its_first_token(temperature: float) -> None:
    step = one_step(RandomTree(1, 5), sampling=Sampling(temperature), logprobs=2)
    first = step.logprobs[0]
    other = max(value for token, value in first.top if token != first.token)
    expected = 1 / (1 + math.exp(other - first.logprob))
    assert step.certainty == pytest.approx(expected, rel=1e-5)


def test_a_record_is_json_and_names_the_drafter_and_the_reason():
    step = one_step(RandomTree(1, 5), sampling=Sampling(1.0), traced=True, logprobs=1)
    record = json.loads(json.dumps(step.record()))
    assert (record["source"], record["reason"]) == ("tree", "fixed budget 3")
    assert record["detail"]["tokens"] == list(step.detail.tokens)
    assert record["seconds"] == list(step.seconds)


def test_the_summary_says_what_was_chosen_how_often_and_why_at_last() -> None:
    drafted = Step((1, 2), 2, 1, 2, (0.1, 0.1, 0.0), "ngram", "ngram 2: 1.50 in 9.0 ms")
    plain = Step((1,), 0, 0, 0, (0.0, 0.1, 0.0), "", "plain: nothing to draft")
    summary = trace_of((drafted, plain, plain)).summary()
    assert summary["choices"] == {"plain": 2, "ngram 2": 1}
    assert summary["reason"] == "plain: nothing to draft"
