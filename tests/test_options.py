"""How a text is chosen, through the whole bundle: options by name, samples, lossy rules marked."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import refused

from specrt.runtime.api import Model, load
from specrt.runtime.errors import RequestError
from specrt.runtime.options import How, sampling
from specrt.runtime.processors import Processors
from specrt.runtime.rules import EXACT
from specrt.runtime.sampling import Sampling

PROMPT = [0, *([5, 9, 17, 33] * 5), 5, 9]
TEXT = "the model the model the model"
WARM = {"temperature": 1.0, "max_tokens": 30}
CHANGES: dict[str, dict[str, Any]] = {
    "bias": {"logit_bias": {40: 3.0, 5: -9.0}},
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.7},
    "ngram": {"no_repeat_ngram": 1},
    "words": {"bad_words": ["the", [245]]},
    "least": {"min_tokens": 20, "logit_bias": {1: 60.0, 2: 60.0}},  # stop tokens
    "custom": {"custom": lambda text, row: row - 0.1 * np.arange(row.size) * (text[-1] % 2)},
    "typical": {"typical_p": 0.5},
}


@pytest.fixture
def model(tiny_bundle: Path) -> Model:
    return load(tiny_bundle, threads=1)


def test_the_options_are_the_fields_of_sampling_and_processors() -> None:
    known = {field.name for each in (Sampling, Processors) for field in fields(each)}
    assert set(How.__annotations__) == known - {"processors", "prompt", "stop"}


def test_no_option_is_no_change(model: Model) -> None:
    assert sampling({}, model.tokenizer) == Sampling()


def test_an_unknown_option_is_refused(model: Model) -> None:
    with pytest.raises(TypeError, match="'topk'"):
        model.generate(PROMPT, topk=3)


def test_one_text_is_asked_for_without_a_number_of_texts(model: Model) -> None:
    with pytest.raises(TypeError, match="'n'"):
        model.generate([1], n=3)


def test_a_bad_word_is_barred_alone_and_after_a_blank(model: Model) -> None:
    words = sampling({"bad_words": ["model", [7, 8]]}, model.tokenizer).processors.bad_words
    ids = [
        tuple(model.tokenizer.encode(word, add_special_tokens=False).ids)
        for word in ("model", " model")
    ]
    assert words == (*dict.fromkeys(ids), (7, 8))


def test_an_empty_bad_word_is_refused(model: Model) -> None:
    with pytest.raises(RequestError, match="empty sequence"):
        model.generate(PROMPT, bad_words=[""])


@pytest.mark.parametrize("name", CHANGES)
def test_an_option_changes_the_text_and_drafts_do_not(model: Model, name: str) -> None:
    options = {**WARM, **CHANGES[name], "seed": 5}
    plain = model.generate(PROMPT, drafter="none", **options)
    for drafter in ("draft", "ngram", "ngram+draft"):
        assert model.generate(PROMPT, drafter=drafter, **options).tokens == plain.tokens
    unchanged = model.generate(PROMPT, drafter="none", **WARM, seed=5)
    assert plain.tokens != unchanged.tokens
    assert name != "least" or len(plain.tokens) == 20


@pytest.mark.parametrize("name", CHANGES)
def test_a_draft_model_is_changed_alike_so_that_no_draft_is_wasted(model: Model, name: str) -> None:
    """The draft is the same model, and draws with the same noise."""
    options = {**WARM, **CHANGES[name], "seed": 5}
    steps = model.generate(PROMPT, drafter="draft", **options).trace.steps[:-1]
    assert [step.accepted for step in steps] == [step.drafted for step in steps]


def test_processed_logprobs_are_those_after_the_penalties(model: Model) -> None:
    options: dict[str, Any] = {"logit_bias": {40: 50.0}, "max_tokens": 6, "logprobs": 0}
    raw = model.generate(PROMPT, **options).logprobs
    processed = model.generate(PROMPT, processed_logprobs=True, **options).logprobs
    assert {one.token for one in raw} == {one.token for one in processed} == {40}
    assert max(one.logprob for one in raw) < -1
    assert min(one.logprob for one in processed) > -1e-6


# Samples


def test_samples_have_seeds_that_follow_each_other(model: Model) -> None:
    results = model.samples(PROMPT, 3, seed=7, **WARM)
    assert [result.trace.seed for result in results] == [7, 8, 9]
    assert len({result.tokens for result in results}) == 3
    assert [result.tokens for result in results] == [
        model.generate(PROMPT, seed=seed, **WARM).tokens for seed in (7, 8, 9)
    ]


def test_samples_read_their_prompt_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    forward = model._held.session.forward

    def counting(tokens: Any, *args: Any, **kwargs: Any) -> Any:
        read.append(len(tokens))
        return forward(tokens, *args, **kwargs)

    monkeypatch.setattr(model._held.session, "forward", counting)
    results = model.samples(PROMPT, 4, drafter="none", **WARM)
    steps = sum(len(result.trace.steps) for result in results)
    assert sum(read) == len(PROMPT) - 1 + steps


def test_no_sample_is_refused(model: Model) -> None:
    with pytest.raises(RequestError, match="n must be 1 text or more, not 0"):
        model.samples(PROMPT, 0)


# Rules


@pytest.mark.parametrize("rule", EXACT)
def test_greedy_text_is_the_same_under_every_exact_rule(model: Model, rule: str) -> None:
    plain = model.generate(PROMPT, drafter="none", max_tokens=30)
    result = model.generate(PROMPT, drafter="ngram+draft", rule=rule, max_tokens=30)
    assert result.tokens == plain.tokens
    assert (result.trace.summary()["rule"], result.trace.summary()["lossy"]) == (rule, False)


def test_a_rule_that_is_not_there_is_refused(model: Model) -> None:
    with pytest.raises(RequestError, match="no verification rule 'hope'"):
        model.generate(PROMPT, rule="hope")


# Commands


def test_a_lossy_rule_is_marked_in_stats_and_json(specrt_run: Any, tiny_bundle: Path) -> None:
    options = ("--rule", "topk:3", "--max-tokens", "8", "--stats")
    assert "LOSSY by rule topk:3" in specrt_run("generate", tiny_bundle, TEXT, *options).err
    found = json.loads(specrt_run("generate", tiny_bundle, TEXT, *options, "--json").out)
    assert (found["rule"], found["lossy"]) == ("topk:3", True)


def test_an_exact_rule_is_not(specrt_run: Any, tiny_bundle: Path) -> None:
    done = specrt_run("generate", tiny_bundle, TEXT, "--max-tokens", "8", "--stats")
    assert "LOSSY" not in done.err


def test_every_option_reaches_the_text(specrt_run: Any, tiny_bundle: Path) -> None:
    options = {
        "temperature": 1.1, "top_k": 90, "top_p": 0.98, "min_p": 0.001, "typical_p": 0.97,
        "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1,
        "no_repeat_ngram": 3, "min_tokens": 4, "seed": 3, "rule": "block", "max_tokens": 12,
    }  # fmt: skip
    given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    more = ["--logit-bias=40=2.5", "--logit-bias", "41=-3", "--bad-words", "the"]
    # Under this rule the text depends on the drafts, and those of auto on time.
    done = specrt_run("generate", tiny_bundle, TEXT, "--drafter", "ngram", *given, *more)
    wanted = load(tiny_bundle, drafter="ngram").generate(
        TEXT, **options, logit_bias={40: 2.5, 41: -3.0}, bad_words=["the"]
    )
    assert done.out == wanted.text + "\n"


def test_several_texts_stand_below_their_seeds(specrt_run: Any, tiny_bundle: Path) -> None:
    options = ("--temperature", "1", "--seed", "4", "--max-tokens", "8")
    texts = [
        r.text for r in load(tiny_bundle).samples(TEXT, 2, seed=4, temperature=1, max_tokens=8)
    ]
    done = specrt_run("generate", tiny_bundle, TEXT, *options, "-n", "2")
    assert done.out == f"--- seed 4\n{texts[0]}\n--- seed 5\n{texts[1]}\n"
    lines = specrt_run("generate", tiny_bundle, TEXT, *options, "-n", "2", "--json").out
    assert [json.loads(line)["text"] for line in lines.splitlines()] == texts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--logit-bias", "cat=3"], "'cat=3' is not of the form 17=-2.5"),
        (["--logit-bias", "9000=3"], "name token 9000; the model has tokens 0 to 271"),
        (["--repetition-penalty", "0"], "repetition_penalty must be above 0"),
        (["--bad-words", ""], "bad_words holds an empty sequence"),
        (["--rule", "hope"], "no verification rule 'hope'"),
        (["--typical-p", "0"], "typical_p must be above 0"),
        (["-n", "0"], "-n must be 1 text or more, not 0"),
        (["--processed-logprobs"], "ask for them with --logprobs N"),
    ],
)
def test_an_unusable_choice_is_one_line(
    specrt_run: Any, tiny_bundle: Path, options: list[str], message: str
) -> None:
    refused(specrt_run("generate", tiny_bundle, TEXT, *options), message)
