"""What `specrt tune` measures, keeps and tells, and who believes it."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from specrt.runtime import profile
from specrt.runtime.api import MEASURING, load
from specrt.runtime.costs import DraftCost
from specrt.runtime.profile import Curve, Drafting, Profile, needed
from specrt.runtime.providers import physical_cores
from specrt.runtime.tuning import Plan, quiet, rising, rounds, tune

QUICK = Plan(rows=(1, 2, 4), contexts=(8, 16, 4000), seconds=0.01)


@pytest.fixture(scope="module")
def measured(tiny_bundle: Path) -> Profile:
    return tune(tiny_bundle, "auto", QUICK, quiet)


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """One that was never measured."""
    skip = shutil.ignore_patterns("profile")
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle", ignore=skip))


def test_each_number_of_rows_is_timed_at_each_context_that_fits(measured: Profile) -> None:
    contexts = [curve.context for curve in measured.curves]
    assert contexts[:2] == [8, 16]
    assert 16 < contexts[2] < 4000
    assert [len(curve.us) for curve in measured.curves] == [4, 4, 4]


def test_draft_models_and_the_loop_are_timed_too(measured: Profile) -> None:
    assert [draft.name for draft in measured.drafts] == ["draft"]
    assert measured.prefill > 0
    assert measured.overhead_us > 0


def test_cases_are_timed_in_turns_and_the_first_round_is_forgotten() -> None:
    calls: list[int] = []
    found = rounds([lambda: calls.append(1), lambda: calls.append(2)], 3, 9, until=0.0)
    assert found.shape == (3, 2)
    assert [sorted(calls[i : i + 2]) for i in range(0, 8, 2)] == [[1, 2]] * 4


def test_the_fastest_number_of_threads_is_kept(tiny_bundle: Path) -> None:
    found = tune(tiny_bundle, "cpu", replace(QUICK, threads=(1, 2)), quiet)
    assert found.threads in (1, 2)


def test_a_profile_is_read_as_it_was_written(bundle: Path, measured: Profile) -> None:
    file = profile.write(bundle, measured)
    assert file is not None
    assert file.parent == bundle / "profile"
    assert profile.read(bundle, "cpu") == measured


@pytest.mark.parametrize("field", ["device", "provider", "specrt", "onnxruntime", "bundle"])
def test_a_profile_of_something_else_is_as_if_not_there(
    bundle: Path, measured: Profile, field: str
) -> None:
    other = replace(measured, key=replace(measured.key, **{field: "other"}))
    file = profile.place(bundle, measured.key)
    file.parent.mkdir()
    file.write_text(other.to_json())
    assert profile.read(bundle, "cpu") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-20],
        lambda text: "[]",
        lambda text: text.replace('"format": 2', '"format": 3'),
        lambda text: text.replace('"threads"', '"thread"'),
        lambda text: text.replace('"curves": [', '"curves": [], "more": ['),
    ],
)
def test_a_damaged_profile_is_as_if_not_there(bundle: Path, measured: Profile, change) -> None:
    file = profile.place(bundle, measured.key)
    file.parent.mkdir()
    file.write_text(change(measured.to_json()))
    assert profile.read(bundle, "cpu") is None
    load(bundle, drafter="none")


def test_a_bundle_that_cannot_be_written_to_keeps_nothing(bundle: Path, measured: Profile) -> None:
    (bundle / "profile").write_text("no folder")
    assert profile.write(bundle, measured) is None


def test_a_loaded_bundle_starts_from_its_profile(bundle: Path, measured: Profile) -> None:
    known = replace(
        measured,
        curves=(Curve(8, (1000, 1100, 1200, 1300, 9000), 10),),
        drafts=(Drafting("draft", 250, 50),),
        overhead_us=0,
    )
    profile.write(bundle, known)
    costs = load(bundle)._costs
    assert [round(s / costs.plain, 6) for s in costs.by_rows[1:6]] == [1.0, 1.1, 1.2, 1.3, 9.0]
    assert costs.drafts == {"draft": DraftCost(0.25, 0.05, seen=10)}


def test_a_profile_of_other_threads_than_asked_for_is_not_used(
    bundle: Path, measured: Profile
) -> None:
    profile.write(bundle, replace(measured, threads=2))
    assert (load(bundle, threads=1)._profile, load(bundle)._profile is not None) == (None, True)


def test_the_first_load_measures_and_keeps_what_it_found(bundle: Path) -> None:
    told: list[tuple[str, int, int]] = []
    model = load(bundle, progress=lambda *stage: told.append(stage))
    kept = profile.read(bundle, "cpu")
    assert kept is not None
    assert (kept, kept.brief, [draft.name for draft in kept.drafts]) == (
        model._profile,
        True,
        ["draft"],
    )
    assert told == [(MEASURING, 0, 1), (MEASURING, 1, 1)]
    load(bundle, progress=lambda *stage: told.append(stage))
    assert len(told) == 2


@pytest.mark.parametrize("options", [{"tune": False}, {"drafter": "ngram"}, {"threads": 1}])
def test_a_load_that_does_not_ask_for_it_measures_nothing(bundle: Path, options) -> None:
    load(bundle, **options)
    assert not (bundle / "profile").exists()


def test_a_bundle_that_keeps_nothing_is_opened_all_the_same(bundle: Path) -> None:
    (bundle / "profile").write_text("no folder")
    model = load(bundle)
    assert model._profile is None  # not measured at every load
    plain = load(bundle, drafter="none").generate("the cat", max_tokens=4).tokens
    assert model.generate("the cat", max_tokens=4).tokens == plain


def test_what_was_measured_in_passing_does_not_say_how_many_threads(
    bundle: Path, measured: Profile
) -> None:
    cores = physical_cores()
    other = replace(measured, brief=True, threads=cores + 1)
    profile.write(bundle, other)
    assert load(bundle, tune=False)._threads == cores
    assert load(bundle)._profile != other  # measured again
    profile.write(bundle, replace(other, brief=False))
    assert load(bundle)._threads == cores + 1


def test_measuring_leaves_the_model_as_it_was(bundle: Path) -> None:
    text = load(bundle, tune=False).generate("the cat", max_tokens=8).tokens
    assert load(bundle).generate("the cat", max_tokens=8).tokens == text


def test_a_model_measured_between_two_texts_writes_on(tiny_bundle: Path) -> None:
    model = load(tiny_bundle)
    text = model.generate("the cat", max_tokens=8).tokens
    assert model._measure().brief
    assert model.generate("the cat", max_tokens=8).tokens == text


def test_two_that_keep_a_profile_at_once_leave_one_of_the_two(
    bundle: Path, measured: Profile
) -> None:
    both = [replace(measured, prefill=n) for n in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(partial(profile.write, bundle), both * 20))
    assert profile.read(bundle, "cpu") in both
    assert len(list((bundle / "profile").iterdir())) == 1


def test_more_rows_never_take_less_time() -> None:
    assert rising([1.0, 3.0, 2.0, 4.0]).tolist() == [1.0, 2.5, 2.5, 4.0]


@pytest.mark.parametrize("token", [0.0, 0.2])
@pytest.mark.parametrize("budget", [1, 2, 4, 8, 32])
def test_a_draft_that_is_right_as_often_as_needed_just_pays(token: float, budget: int) -> None:
    cost = 1.06 + (0.06 + token) * budget
    share = needed(cost, budget)
    assert share is not None
    emits = 1 + float(np.sum(share ** np.arange(1, budget + 1)))
    assert emits / cost == pytest.approx(1, rel=0.01)


def test_where_a_perfect_draft_loses_none_is_needed() -> None:
    assert needed(1.3 + 4 * 2.0, 4) is None


def test_the_command_writes_a_profile_and_prints_what_must_be_right(bundle: Path, specrt_run):
    done = specrt_run("tune", bundle, "--seconds", "0.01")
    assert done.code == 0
    assert f"kept       {bundle / 'profile'}" in done.out
    lines = [line.split() for line in done.out.splitlines()]
    tables = {line[0]: line[1:] for line in lines if line}
    assert len(tables["tokens"]) == len(tables["ngram"]) == len(tables["draft"]) == 8


def test_the_command_prints_its_profile_as_json(bundle: Path, specrt_run) -> None:
    done = specrt_run("tune", bundle, "--seconds", "0.01", "--json")
    found = json.loads(done.out)
    assert found == json.loads(next((bundle / "profile").glob("*.json")).read_text())


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--threads", "1,x"], "'1,x' is no list of numbers"), (["--seconds", "0"], "above 0, not 0")],
)
def test_wrong_options_are_refused(tiny_bundle: Path, specrt_run, options, message: str) -> None:
    done = specrt_run("tune", tiny_bundle, *options)
    assert done.code == 2
    assert message in done.err
