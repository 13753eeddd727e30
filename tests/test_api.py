"""Texts written by a whole bundle: the same whatever drafts, and whatever happened before."""

import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import specrt.runtime.api as api
from specrt.export.build import export
from specrt.runtime.api import load
from specrt.runtime.bundle import read_manifest
from specrt.runtime.errors import RequestError
from specrt.runtime.evenness import plain_reason, unevenness
from specrt.runtime.policies import POLICIES

TINY = Path(__file__).parent / "golden" / "models" / "llama"
PROMPT = [0, *([5, 9, 17, 33] * 5), 5, 9]
OTHER = [0, 40, 41, 42, 43, 44, 45]
DRAFTERS = ["ngram", "draft", "ngram+draft", "auto"]


@pytest.fixture(scope="session", params=["fp32", "int8", "int4"])
def bundle(request, tmp_path_factory):
    """A bundle whose draft is the same model in the same format, with a context of 96 tokens."""
    out = tmp_path_factory.mktemp("api") / "b"
    export(TINY, out, drafts=[TINY], weights=request.param, context=96, check=False)
    return out


@pytest.fixture
def model(tiny_bundle):
    return load(tiny_bundle, threads=1)


def fresh(folder, prompt, **options):
    return load(folder, threads=1).generate(prompt, drafter="none", **options)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_text_is_the_same_with_every_drafter(bundle, drafter):
    model = load(bundle, threads=1)
    plain = model.generate(PROMPT, drafter="none", max_tokens=60)
    drafted = model.generate(PROMPT, drafter=drafter, max_tokens=60)
    assert (drafted.tokens, drafted.text) == (plain.tokens, plain.text)


@pytest.mark.parametrize("drafter", ["none", *DRAFTERS])
def test_a_seed_repeats_a_sampled_text(model, drafter):
    options = {"drafter": drafter, "temperature": 1.0, "seed": 7, "max_tokens": 30}
    first = model.generate(PROMPT, **options)
    model.generate(OTHER, max_tokens=3)
    assert model.generate(PROMPT, **options).tokens == first.tokens


@pytest.mark.parametrize("drafter", ["none", "ngram", "draft"])
def test_a_stop_string_ends_the_text_wherever_it_stands(model, drafter):
    whole = model.generate(PROMPT, drafter="none", max_tokens=40).text
    for start in range(0, max(1, len(whole) - 3), 5):
        stop = whole[start : start + 3]
        result = model.generate(PROMPT, drafter=drafter, max_tokens=40, stop=stop, logprobs=1)
        assert result.text == whole[: whole.index(stop)]
        assert len(result.tokens) == len(result.from_draft) == len(result.logprobs)
        assert result.finish_reason == "stop"


@pytest.mark.parametrize("count", [0, 1])
def test_few_tokens_are_that_few(model, count):
    result = model.generate(PROMPT, max_tokens=count)
    assert (len(result.tokens), result.finish_reason) == (count, "length")


def test_a_prompt_too_long_is_refused(model):
    size = model.manifest.model.context
    with pytest.raises(RequestError, match=f"the prompt has {size} tokens and the context {size}"):
        model.generate([5] * size)


@pytest.mark.parametrize("drafter", ["none", *DRAFTERS])
def test_the_end_of_the_context_ends_the_text(model, drafter):
    prompt = ([5, 9, 17, 33] * 64)[: model.manifest.model.context - 10]
    plain = model.generate(prompt, drafter="none").tokens
    result = model.generate(prompt, drafter=drafter)
    assert result.tokens == plain
    assert len(result.tokens) <= 10


@pytest.mark.parametrize("drafter", ["none", "auto"])
def test_a_stream_left_at_any_point_leaves_the_model_right(tiny_bundle, model, drafter):
    wanted = fresh(tiny_bundle, OTHER, max_tokens=12).tokens
    for pieces in range(6):
        stream = model.stream(PROMPT, drafter=drafter, max_tokens=30)
        for _ in range(pieces):
            next(stream, None)
        assert model.generate(OTHER, drafter=drafter, max_tokens=12).tokens == wanted


@pytest.mark.parametrize("which", ["target", "draft"])
def test_an_interrupt_at_any_call_leaves_the_model_right(tiny_bundle, model, which):
    wanted = fresh(tiny_bundle, PROMPT, max_tokens=16).tokens
    session = model._held.session if which == "target" else model._drafter("draft")._session
    forward = session.forward
    for at in range(12):
        for late in (False, True):
            calls = iter(range(1000))

            def interrupted(*args, calls=calls, at=at, late=late, **kwargs):
                now = next(calls) == at
                if now and not late:
                    raise KeyboardInterrupt
                output = forward(*args, **kwargs)
                if now:
                    raise KeyboardInterrupt
                return output

            session.forward = interrupted
            try:
                model.generate(PROMPT, drafter="draft", max_tokens=16)
            except KeyboardInterrupt:
                pass
            finally:
                session.forward = forward
            assert model.generate(PROMPT, drafter="draft", max_tokens=16).tokens == wanted


def test_generates_of_two_threads_take_turns(tiny_bundle, model):
    wanted = [fresh(tiny_bundle, p, max_tokens=20).tokens for p in (PROMPT, OTHER)]
    found: dict[int, tuple[int, ...]] = {}

    def write(i):
        found[i] = model.generate((PROMPT, OTHER)[i], max_tokens=20).tokens

    threads = [threading.Thread(target=write, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[0], found[1]] == wanted


def test_a_second_threads_stream_is_refused(model):
    stream = model.stream(PROMPT, max_tokens=20)
    next(stream)
    refused = []

    def other():
        try:
            model.stream(OTHER)
        except RequestError as error:
            refused.append(str(error))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert "another thread is streaming" in refused[0]


def test_a_longer_prompt_reads_only_what_is_new(tiny_bundle, model, monkeypatch):
    first = model.generate(PROMPT, drafter="none", max_tokens=8)
    longer = [*PROMPT, *first.tokens, 50, 51, 52]
    read = []
    forward = model._held.session.forward

    def counting(tokens, *args, **kwargs):
        read.append(len(tokens))
        return forward(tokens, *args, **kwargs)

    monkeypatch.setattr(model._held.session, "forward", counting)
    result = model.generate(longer, drafter="none", max_tokens=8)
    assert sum(read) == 4 + len(result.trace.steps) - 1  # the last token, three new, then one each
    assert result.tokens == fresh(tiny_bundle, longer, max_tokens=8).tokens


def test_plain_steps_write_their_logits_in_one_place(model, monkeypatch):
    places = []
    forward = model._held.session.forward

    def watched(*args, **kwargs):
        output = forward(*args, **kwargs)
        places.append(output.logits.ctypes.data)
        return output

    monkeypatch.setattr(model._held.session, "forward", watched)
    model.generate(PROMPT, drafter="none", max_tokens=12)
    assert len(places) > 8
    assert len({*places}) == 1


def test_a_drafter_that_is_not_there_is_refused(tiny_bundle):
    with pytest.raises(RequestError, match="no drafter 'eagle': there are draft, ngram, none"):
        load(tiny_bundle, drafter="eagle")


def test_two_models_do_not_disturb_each_other(tiny_bundle, model):
    one = model.stream(PROMPT, max_tokens=20)
    next(one)
    load(tiny_bundle, threads=1).generate(OTHER, max_tokens=5)
    list(one)
    assert one.result.tokens == fresh(tiny_bundle, PROMPT, max_tokens=20).tokens


EVEN = {"rows": {"rms": 0.0}, "chunks": {"rms": 0.0}}


@pytest.mark.parametrize(
    ("flavour", "checks", "uneven", "plain"),
    [
        ("optimum", EVEN, "", False),
        ("optimum", {"rows": {"rms": 0.0}}, "the graph was not checked for chunks", True),
        ("optimum", {**EVEN, "rows": {"rms": 0.02}}, "logits differ .*rows.rms is 0.02", True),
        ("cpu", EVEN, "", False),
        ("cpu", {}, "", False),
        ("optimum", {**EVEN, "rows": {"rms": "0"}}, "the graph was not checked for rows", True),
        ("cpu", {**EVEN, "rows": {"rms": 0.02}}, "logits differ .*rows.rms is 0.02", True),
        ("cuda", EVEN, "the kernels of a GPU differ", False),
        ("tensorrt", {}, "the kernels of a GPU differ", False),
    ],
)
def test_auto_drafts_where_text_with_drafts_is_the_same(
    tiny_bundle, flavour, checks, uneven, plain
):
    manifest = replace(read_manifest(tiny_bundle), flavour=flavour, checks=checks)
    found = unevenness(manifest)
    assert re.match(uneven, found) if uneven else found == ""
    assert plain_reason(manifest) == (f"plain: {found}" if plain else "")


def test_the_trace_says_why_auto_did_not_draft(model, monkeypatch):
    monkeypatch.setattr(api, "plain_reason", lambda manifest: "plain: uneven")
    steps = model.generate(PROMPT, max_tokens=5).trace.steps
    assert {(step.drafted, step.reason) for step in steps} == {(0, "plain: uneven")}


def test_a_changed_bundle_is_refused(tiny_bundle, tmp_path):
    shutil.copytree(tiny_bundle, tmp_path / "b")
    path = tmp_path / "b" / "tokenizer.json"
    path.write_text(path.read_text().replace("a", "b", 1))
    with pytest.raises(Exception, match=r"tokenizer\.json"):
        load(tmp_path / "b")


def test_auto_and_named_policies_choose_by_themselves_and_change_no_text(model) -> None:
    plain = model.generate(PROMPT, drafter="none", max_tokens=40).tokens
    for policy in (None, *POLICIES):
        result = model.generate(PROMPT, drafter="auto", policy=policy, max_tokens=40)
        assert result.tokens == plain


def test_a_budget_and_a_policy_exclude_each_other(model) -> None:
    with pytest.raises(RequestError, match=r"give a budget \(2\) or a policy \(cost\), not both"):
        model.generate(PROMPT, budget=2, policy="cost")


def test_an_unknown_policy_is_refused_with_those_there_are(model) -> None:
    with pytest.raises(
        RequestError, match="no policy 'x': there are cost, heuristic, confidence, ucb"
    ):
        model.generate(PROMPT, policy="x")


def test_every_step_of_auto_has_a_reason(model) -> None:
    steps = model.generate(PROMPT, drafter="auto", max_tokens=40).trace.steps
    assert [step for step in steps if not step.reason] == []
