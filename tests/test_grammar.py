"""Text of a given form: whole, and the same with drafts as without."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import refused
from variants import LLAMA, noisy, variant

from specrt.export.build import export
from specrt.runtime.api import Model, load
from specrt.runtime.distribution import point
from specrt.runtime.errors import RequestError
from specrt.runtime.grammar import Forms, Grammar, Guided
from specrt.runtime.interfaces import Context
from specrt.runtime.proposal import Proposal, chain
from specrt.runtime.rules import EXACT

pytest.importorskip("llguidance")

TEXT = "the model the model the model"
DRAFTERS = ["ngram", "draft", "ngram+draft", "auto"]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kinds": {"type": "array", "items": {"enum": ["cat", "dog"]}, "maxItems": 3},
    },
    "required": ["name", "kinds"],
    "additionalProperties": False,
}
NUMBERS = r"([0-9]{2}-)+[a-z]{3,8} is the number\."
FORMS: dict[str, tuple[dict[str, Any], Callable[[str], Any]]] = {
    "regex": ({"regex": NUMBERS}, re.compile(NUMBERS).fullmatch),
    "schema": ({"json_schema": SCHEMA}, lambda text: set(json.loads(text)) == {"name", "kinds"}),
    "written schema": ({"json_schema": '{"enum": [true, null, 17]}'}, json.dumps),
}
CHOICES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0},
    "cut": {"temperature": 1.3, "top_p": 0.9, "repetition_penalty": 1.3},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose draft is now right and now wrong."""
    made = tmp_path_factory.mktemp("grammar")
    drafts = [variant(made / "draft", noisy(0.03))]
    export(LLAMA, made / "b", drafts=drafts, weights="fp32", kernels="stock", check=False)
    return made / "b"


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder, threads=1)


@pytest.fixture
def same(tiny_bundle: Path) -> Model:
    """A model that is its own draft."""
    return load(tiny_bundle, threads=1)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("form", FORMS)
def test_a_text_has_its_form_and_drafts_do_not_change_it(
    model: Model, form: str, choice: str
) -> None:
    asked, has_form = FORMS[form]
    for seed in range(3):
        options = {**CHOICES[choice], **asked, "seed": seed, "max_tokens": 180}
        plain = model.generate(TEXT, drafter="none", **options)
        assert plain.finish_reason == "length" or has_form(plain.text)
        for drafter in DRAFTERS:
            result = model.generate(TEXT, drafter=drafter, **options)
            assert (result.tokens, result.finish_reason) == (plain.tokens, plain.finish_reason)


@pytest.mark.parametrize("rule", EXACT)
def test_every_exact_rule_keeps_the_form(model: Model, rule: str) -> None:
    for seed in range(4):
        result = model.generate(
            TEXT, regex=r"[a-z]{4} [0-9]{4}", rule=rule, temperature=1.0, seed=seed, drafter="draft"
        )
        assert re.fullmatch(r"[a-z]{4} [0-9]{4}", result.text)


def test_a_text_ends_where_its_form_does(model: Model) -> None:
    result = model.generate(TEXT, regex="yes|no", max_tokens=50)
    assert result.text in ("yes", "no")
    assert result.finish_reason == "stop"


def test_a_draft_model_is_cut_alike_so_that_no_draft_is_wasted(same: Model) -> None:
    """Drafts are refused only where the form's usual spelling is not the model's."""
    result = same.generate(TEXT, regex=NUMBERS, temperature=1.0, seed=2, drafter="draft")
    steps = [step for step in result.trace.steps[:-1] if step.source == "draft"]
    assert len(steps) > 1
    assert [step.accepted for step in steps] == [step.drafted for step in steps]


def test_what_the_form_forces_is_drafted_for_free(model: Model) -> None:
    steps = model.generate(TEXT, regex="x the number of it is seven", drafter="ngram").trace.steps
    assert sum(step.drafted for step in steps if step.source == "grammar") > 0


def test_plain_decoding_drafts_nothing(model: Model) -> None:
    steps = model.generate(TEXT, regex="the number of it is seven", drafter="none").trace.steps
    assert sum(step.drafted for step in steps) == 0


def test_a_custom_processor_works_with_a_form(model: Model) -> None:
    def no_seven(text: Any, row: np.ndarray) -> np.ndarray:
        row[model.tokenizer.encode("7", add_special_tokens=False).ids] = -np.inf
        return row

    options: dict[str, Any] = {"regex": "[78]{9}", "custom": no_seven}
    texts = [model.generate(TEXT, drafter=d, **options).text for d in ("none", "draft")]
    assert texts == ["8" * 9] * 2


# The parser


def grammar(model: Model, regex: str, prompt: int = 0) -> Grammar:
    ids = model.manifest.model.eos_ids
    return Forms(model.tokenizer, model.manifest.model.vocab, ids).grammar(regex, None, prompt)


def ids_of(model: Model, text: str) -> list[int]:
    ids: list[int] = model.tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def test_the_cut_depends_on_the_text_alone_however_the_parser_got_there(
    model: Model, rng: np.random.Generator
) -> None:
    moved = grammar(model, "([ab]{3}-)*c+", 2)
    texts = [[5, 9, *ids_of(model, text)] for text in ("", "a", "ab", "aba-", "aba-bbb-ccc", "c")]
    texts += [[*texts[4], 1], [*texts[2], 200, 3]]  # one that has ended, one that left the form
    for i in rng.integers(0, len(texts), 60).tolist():
        row = moved(texts[i], np.zeros(272, np.float32))
        wanted = grammar(model, "([ab]{3}-)*c+", 2)(texts[i], np.zeros(272, np.float32))
        assert np.array_equal(row, wanted)


def test_a_text_that_has_left_its_form_is_not_cut(model: Model) -> None:
    row = grammar(model, "[ab]+")(ids_of(model, "xyz"), np.zeros(272, np.float32))
    assert not row.any()


def test_ids_beyond_the_vocabulary_never_come(model: Model) -> None:
    row = grammar(model, "[ab]+")([], np.zeros(300, np.float32))
    assert np.isneginf(row[272:]).all()


class Proposing:
    """Always the same proposal."""

    def __init__(self, proposal: Proposal) -> None:
        self.proposal = proposal

    def propose(self, context: Context, budget: int, rng: np.random.Generator) -> Proposal:
        return self.proposal


def test_of_certain_drafts_only_what_fits_is_verified(
    model: Model, rng: np.random.Generator
) -> None:
    tokens = ids_of(model, "abaxb")
    guided = Guided(Proposing(chain(tokens, source="some")), grammar(model, "[ab]{9}", 1))
    proposal = guided.propose(Context([5]), 9, rng)
    assert (proposal.tokens.tolist(), proposal.source) == (tokens[:3], "some")
    assert proposal.is_chain


def test_drawn_drafts_are_left_alone(model: Model, rng: np.random.Generator) -> None:
    """To leave out what was drawn in vain would change the law under rejection."""
    tokens = ids_of(model, "abaxb")
    drawn = chain(tokens, tuple(point(token) for token in tokens), "some")
    guided = Guided(Proposing(drawn), grammar(model, "[ab]{9}", 1))
    assert guided.propose(Context([5]), 9, rng) is drawn


# What cannot be used


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"regex": "[a"}, "regex cannot be used: .*unclosed character class"),
        ({"regex": "(?=a)b"}, "regex cannot be used: .*look-around"),
        ({"json_schema": "{nope"}, "json_schema cannot be used"),
        ({"json_schema": {"type": "nonsense"}}, "json_schema cannot be used: .*nonsense"),
        ({"regex": "a", "json_schema": {}}, "give either regex or json_schema"),
    ],
)
def test_a_form_that_is_none_is_refused(model: Model, form: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as refusal:
        model.generate(TEXT, **form)
    assert "\n" not in str(refusal.value)


def test_without_llguidance_it_is_said_what_to_install(
    tiny_bundle: Path, specrt_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    done = specrt_run("generate", tiny_bundle, TEXT, "--regex", "a")
    refused(done, "regex and json_schema need llguidance: pip install 'specrt[grammar]'")


def test_llguidance_is_loaded_only_when_asked_for(folder: Path) -> None:
    code = (
        "import sys, specrt; m = specrt.load(sys.argv[1], threads=1); m.generate('a', max_tokens=2)"
        "; before = 'llguidance' in sys.modules; m.generate('a', regex='b')"
        "; print(before, 'llguidance' in sys.modules)"
    )
    run = [sys.executable, "-c", code, str(folder)]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "False True\n"


# Commands


def test_the_command_writes_text_of_a_form(specrt_run: Any, folder: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["left", "right"]}')
    assert specrt_run("generate", folder, TEXT, "--regex", "[0-9]{3}!").out[3:] == "!\n"
    done = specrt_run("generate", folder, TEXT, "--json-schema", schema)
    assert json.loads(done.out) in ("left", "right")


def test_a_schema_that_is_not_there_is_one_line(specrt_run: Any, folder: Path) -> None:
    done = specrt_run("generate", folder, TEXT, "--json-schema", "none.json")
    refused(done, "none.json cannot be read: No such file or directory")
