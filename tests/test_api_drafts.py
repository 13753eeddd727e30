"""Whole bundles whose draft differs from the target in all that may differ: its context, the
padding of its vocabulary, its weights. The text is the target's alone."""

import json
from pathlib import Path

import numpy as np
import pytest
from variants import LLAMA, TABLES, VOCAB, Tensors, noisy, padded, variant

from specrt.export.build import export
from specrt.runtime.alike import bins
from specrt.runtime.api import Model, load
from specrt.runtime.errors import RequestError
from specrt.runtime.stream import Result

PROMPT = [0, *([5, 9, 17, 33] * 5), 5, 9]
DRAFTERS = ["none", "ngram", "draft", "ngram+draft", "auto"]
SHORT = 40  # tokens of the short draft's context
SAMPLED = {"temperature": 1.0, "seed": 3}


def bundle(folder: Path, target: Path, draft: Path) -> Model:
    export(target, folder / "b", drafts=[draft], weights="fp32", check=False)
    return load(folder / "b", threads=1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The tiny llama, unpadded, with itself as its draft."""
    return bundle(tmp_path_factory.mktemp("plain"), LLAMA, LLAMA)


# A draft of a shorter context


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("short")
    draft = variant(folder / "draft", config={"max_position_embeddings": SHORT})
    return bundle(folder, LLAMA, draft)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("size", [1, SHORT - 6, SHORT - 1, SHORT, SHORT + 1, 200])
def test_a_draft_of_a_shorter_context_changes_no_text(
    plain: Model, short: Model, drafter: str, size: int
) -> None:
    prompt = (PROMPT * 10)[:size]
    wanted = plain.generate(prompt, drafter="none", max_tokens=30).tokens
    assert short.generate(prompt, drafter=drafter, max_tokens=30).tokens == wanted


def test_a_draft_drafts_to_the_end_of_its_own_context_and_then_no_more(short: Model) -> None:
    steps = short.generate(PROMPT, drafter="draft", budget=4, max_tokens=60).trace.steps
    lengths = np.cumsum([len(PROMPT), *(len(step.emitted) for step in steps)])
    # a draft of n tokens after a text of L reads L + n - 1
    wanted = [max(0, min(4, SHORT + 1 - length)) for length in lengths[:-2]]
    assert [step.drafted for step in steps][:-1] == wanted
    assert steps[-1].drafted == 0


def test_a_short_draft_drafts_again_for_the_next_short_prompt(short: Model) -> None:
    first = short.generate(PROMPT[:5], drafter="draft", max_tokens=8)
    short.generate(PROMPT * 5, drafter="draft", max_tokens=8)
    again = short.generate(PROMPT[:5], drafter="draft", max_tokens=8)
    assert [s.drafted for s in again.trace.steps] == [s.drafted for s in first.trace.steps]


# Vocabularies padded beyond the tokenizer

TEMPTING = 16  # of the plain text's own tokens


@pytest.fixture(scope="module")
def lures(plain: Model) -> tuple[int, ...]:
    return plain.generate(PROMPT, drafter="none", max_tokens=TEMPTING).tokens


@pytest.fixture(scope="module", params=[(304, 272), (272, 304), (304, 288)])
def padding(request, plain: Model, lures: tuple[int, ...], tmp_path_factory) -> Model:
    """Target and draft with so many ids, those from 272 on tempting and no tokens."""
    folder = tmp_path_factory.mktemp("padding")
    target, draft = (
        variant(folder / name, padded(vocab, lures), config={"vocab_size": vocab})
        for name, vocab in zip(("target", "draft"), request.param, strict=True)
    )
    return bundle(folder, target, draft)


def test_the_padding_of_these_models_is_what_they_would_write_if_they_could(padding: Model) -> None:
    for session in (padding._held.session, padding._drafter("draft")._session):
        session.keep(0)
        best = session.forward(PROMPT).logits[0].argmax()
        assert (best >= VOCAB) == (session.vocab > VOCAB)
    padding._held.read = ()


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(
    "options", [{}, SAMPLED, {**SAMPLED, "top_p": 0.9}, {**SAMPLED, "top_k": 5}]
)
def test_padding_changes_no_text_and_no_draft(
    plain: Model, padding: Model, drafter: str, options: dict[str, float]
) -> None:
    def told(result: Result) -> object:
        steps = [(s.emitted, s.drafted, s.accepted) for s in result.trace.steps]
        return result.tokens, steps

    options = {"max_tokens": 40, "drafter": drafter, "budget": 4, **options}
    assert told(padding.generate(PROMPT, **options)) == told(plain.generate(PROMPT, **options))


def test_a_padding_id_is_not_even_proposed(padding: Model) -> None:
    result = padding.generate(
        PROMPT, drafter="draft", max_tokens=60, temperature=2.0, seed=1, traced=True
    )
    drafted = [token for step in result.trace.steps for token in step.detail.tokens]
    assert len(drafted) > 40
    assert max(drafted) < VOCAB


def test_a_prompt_of_padding_ids_is_refused(padding: Model) -> None:
    with pytest.raises(RequestError, match=r"the prompt holds token 272; .* tokens 0 to 271"):
        padding.generate([5, VOCAB])


def test_log_probabilities_are_of_real_tokens(plain: Model, padding: Model) -> None:
    found = padding.generate(PROMPT, max_tokens=10, logprobs=300)
    wanted = plain.generate(PROMPT, max_tokens=10, logprobs=300)
    assert found.logprobs == wanted.logprobs


def test_a_token_after_a_gap_in_the_tokenizer_is_real_and_can_end_a_text(
    tmp_path: Path, lures: tuple[int, ...]
) -> None:
    last = 290

    def want_the_last_one(tensors: Tensors) -> None:
        for name in TABLES:
            tensors[name] = np.pad(tensors[name], ((0, 304 - VOCAB), (0, 0)))
            tensors[name][last] = 5 * tensors[name][lures[0]]

    target = variant(
        tmp_path / "llama",
        want_the_last_one,
        config={"vocab_size": 304},
        generation={"eos_token_id": last},
    )
    tokenizer = json.loads((target / "tokenizer.json").read_text())
    end = {**tokenizer["added_tokens"][1], "id": last, "content": "<end>"}
    tokenizer["added_tokens"].append(end)
    tokenizer["model"]["vocab"]["<end>"] = last
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    result = bundle(tmp_path, target, target).generate(PROMPT)
    assert (result.tokens, result.finish_reason) == ((), "stop")


# A draft that is often wrong


@pytest.fixture(scope="module", params=["fp32", "int8", "int4"])
def wrong(request, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("wrong")
    draft = variant(folder / "draft", noisy(0.1))
    export(LLAMA, folder / "b", drafts=[draft], weights=request.param, check=False)
    return load(folder / "b", threads=1)


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 7, 15])
@pytest.mark.parametrize("drafter", ["draft", "ngram+draft"])
def test_a_draft_that_is_often_wrong_changes_no_text(
    wrong: Model, drafter: str, budget: int
) -> None:
    plain = wrong.generate(PROMPT, drafter="none", max_tokens=80)
    result = wrong.generate(PROMPT, drafter=drafter, budget=budget, max_tokens=80)
    assert (result.tokens, result.text) == (plain.tokens, plain.text)
    figures = result.trace.summary()
    assert 0 < figures["accepted"] < figures["drafted"]


# What is learned from text to text


def test_a_text_is_remembered_by_its_prompt(plain: Model) -> None:
    begun = plain._habits.past._begun
    plain.generate(PROMPT, drafter="auto", max_tokens=8, temperature=0)
    plain.generate(PROMPT[:9], drafter="ngram", max_tokens=8, temperature=0)
    assert plain._habits.past._begun == begun + 1
    assert np.array_equal(plain._habits.past._bins[begun], bins(PROMPT))
