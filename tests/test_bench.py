"""The benchmark: its prompts, the order of its runs, its records, and the figures made of them."""

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specrt
from specrt.bench import latency, plain_vs_genai
from specrt.bench.environment import commit, environment, peak_rss_mb
from specrt.bench.latency import Plan, document, measure
from specrt.bench.report import HEADER, interval, last_line, quartiles, rows, summarise, table
from specrt.bench.suite import KINDS, Prompt, load_suites
from specrt.runtime.errors import RequestError
from specrt.runtime.trace import Step, Trace

ONE = Prompt("a", "chat", "Why?")
TWO = Prompt("b", "code", "Write it.", max_tokens=7)


@dataclass(frozen=True)
class FakeResult:
    text: str
    tokens: tuple[int, ...]
    trace: Trace


@dataclass
class FakeModel:
    """Plain: a step of 0.1 s for each of 4 tokens. Others: one block of 3 accepted, also 0.1 s."""

    failing: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    calls: list[tuple[str, str, int]] = field(default_factory=list)
    cold: list[bool] = field(default_factory=list)  # whether each question met an emptied cache
    last: tuple[Sequence[int] | None, str] | None = None

    def generate(
        self,
        prompt: Sequence[int] | None = None,
        *,
        messages: Sequence[dict[str, str]] | None = None,
        drafter: str,
        max_tokens: int,
        temperature: float,
        seed: int,
    ) -> FakeResult:
        if messages is not None:
            self.calls.append((messages[0]["content"], drafter, max_tokens))
            self.cold.append(self.last == (latency.OTHER_PROMPT, drafter))
        self.last = (prompt, drafter)
        if drafter in self.failing and messages and max_tokens != latency.WARMUP_TOKENS:
            raise ValueError("out of order")
        if drafter in self.unknown:
            raise RequestError("no such drafter")
        if drafter in self.broken:
            raise ValueError("broken from the start")
        blocks = [(1,), (2,), (3,), (4,)] if drafter == "none" else [(1,), (2, 3, 4)]
        trace = Trace(5, drafter, seed)
        for block in blocks:
            n = len(block) - 1
            seconds = (0.0, 0.09, 0.01)
            trace.add(Step(block, drafted=n, accepted=n, depth=n, seconds=seconds, prefill_s=0.2))
        return FakeResult("text", (1, 2, 3, 9 if drafter in self.wrong else 4), trace)


def records(model: FakeModel, **options: Any) -> list[dict[str, Any]]:
    plan = Plan(**{"prompts": (ONE, TWO), "drafters": ("ngram",), "repeat": 1, **options})
    return list(measure(model, plan))


def record(drafter: str, prompt: str, speed: float, **changes: Any) -> dict[str, Any]:
    """As measure makes it, with 10 tokens in 5 steps, 4 of 8 drafted ones accepted."""
    counts = {"tokens": 10, "steps": 5, "drafted": 8, "accepted": 4}
    times = {"tokens_per_s": speed, "decode_s": 1.0, "ttft_s": 0.5}
    latency = {"token_ms_p50": 8.0, "token_ms_p95": 9.0}
    asked = {"drafter": drafter, "prompt": prompt, "kind": "chat", "error": None, "identical": True}
    return {**asked, **counts, **times, **latency, **changes}


# Prompts


def test_each_kind_of_work_has_five_prompts_of_its_own() -> None:
    assert [prompt.kind for prompt in load_suites(KINDS)] == [k for k in KINDS for _ in range(5)]


def test_edit_prompts_carry_thirty_to_sixty_lines_of_code() -> None:
    code = [prompt.prompt.split("```")[1].strip().splitlines() for prompt in load_suites(["edit"])]
    assert [30 <= len(lines) <= 60 for lines in code] == [True] * 5


def test_a_prompt_is_one_user_message() -> None:
    assert ONE.messages == [{"role": "user", "content": "Why?"}]


def test_a_file_of_ones_own_is_a_suite(tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    text = '{"id": "x", "kind": "mine", "prompt": "line\\u2028separator", "max_tokens": 9}\n\n'
    own.write_text(text.replace("\\u2028", "\u2028"), encoding="utf-8")
    assert load_suites([str(own)]) == (Prompt("x", "mine", "line\u2028separator", 9),)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 1: not JSON"),
        ("[]", "line 1: not an object"),
        ('{"id": "x", "kind": "k"}', "line 1: prompt is missing"),
        ('{"id": "x", "kind": "k", "prompt": 1}', "line 1: prompt must be str, not 1"),
        ('{"id": "x", "kind": "k", "prompt": "p", "n": 1}', "line 1: unknown key 'n'"),
        ('{"id": "x", "kind": "k", "prompt": " "}', "prompt 'x' is empty"),
        ('{"id": "x", "kind": "k", "prompt": "p", "max_tokens": 0}', "max_tokens 0"),
        ('{"id": "x", "kind": "k", "prompt": "p", "max_tokens": true}', "must be int, not True"),
        ("", "hold no prompt"),
        ("\udcff", "not UTF-8"),
    ],
)
def test_a_wrong_line_is_refused_with_its_place(tmp_path: Path, line: str, reason: str) -> None:
    own = tmp_path / "own.jsonl"
    own.write_bytes(line.encode(errors="surrogateescape"))
    with pytest.raises(RequestError, match=reason):
        load_suites([str(own)])


@pytest.mark.parametrize("name", ["poems", "no/such.jsonl", ""])
def test_an_unknown_suite_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match=f"suite '?{name}"):
        load_suites([name])


def test_the_same_suite_twice_is_refused() -> None:
    with pytest.raises(RequestError, match="'chat-1' appears twice"):
        load_suites(["chat", "chat"])


# Runs


def test_the_baseline_is_always_run_and_each_method_once() -> None:
    assert Plan((ONE,), ("ngram", "none", "ngram")).methods == ("none", "ngram")


@pytest.mark.parametrize("wrong", [{"repeat": 0}, {"max_tokens": 0}])
def test_a_plan_without_work_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(RequestError, match="give 1 or more"):
        Plan((ONE,), (), **wrong)


def test_every_prompt_method_and_repeat_gives_one_record() -> None:
    plan = Plan((ONE, TWO), ("ngram", "auto"), repeat=2)
    made = [(r["prompt"], r["drafter"], r["repeat"]) for r in measure(FakeModel(), plan)]
    methods = ("none", "ngram", "auto")
    assert made == [(p, m, turn) for turn in range(2) for p in "ab" for m in methods]
    assert plan.runs == len(made)


def test_methods_take_turns_at_going_first_after_a_warm_up() -> None:
    model = FakeModel()
    records(model, repeat=2)
    plain_first, plain_last = ["none", "ngram"], ["ngram", "none"]
    order = [plain_first, plain_first, plain_last, plain_last, plain_first]  # the warm-up first
    assert [drafter for _, drafter, _ in model.calls] == [name for pair in order for name in pair]


def test_no_method_finds_its_prompt_in_the_cache() -> None:
    model = FakeModel()
    records(model)
    assert model.cold == [True] * 6


def test_a_prompt_may_ask_for_its_own_length() -> None:
    model = FakeModel()
    records(model, max_tokens=50)
    lengths = [(text, limit) for text, drafter, limit in model.calls if drafter == "none"]
    assert lengths == [("Why?", latency.WARMUP_TOKENS), ("Why?", 50), ("Write it.", 7)]


def test_a_record_holds_the_summary_of_its_trace() -> None:
    made = records(FakeModel())[1]
    trace = (
        FakeModel()
        .generate(messages=ONE.messages, drafter="ngram", max_tokens=1, temperature=0, seed=0)
        .trace
    )
    assert {name: made[name] for name in trace.summary()} == trace.summary()


def test_token_latency_shares_a_step_among_its_tokens() -> None:
    steps = [Step(tokens, 0, 0, 0, (0.0, 0.3, 0.0)) for tokens in [(1,), (2, 3, 4), (5,)]]
    latency_ms = latency.token_latency(steps)  # 100, 100, 100, 300
    assert latency_ms == pytest.approx({"token_ms_p50": 100, "token_ms_p95": 270})


def test_a_text_of_one_step_has_no_token_latency() -> None:
    step = Step((1, 2), 0, 0, 0, (0.0, 0.3, 0.0))
    assert latency.token_latency([step]) == {"token_ms_p50": None, "token_ms_p95": None}


@pytest.mark.parametrize(("wrong", "same"), [((), True), (("ngram",), False)])
def test_a_record_says_whether_the_token_ids_are_plains(wrong: tuple[str, ...], same: bool) -> None:
    assert [r["identical"] for r in records(FakeModel(wrong=wrong), prompts=(ONE,))] == [True, same]


@pytest.mark.parametrize("case", [{"temperature": 0.5}, {"failing": ("none",)}])
def test_nothing_is_said_of_identity_where_none_is_promised(case: dict[str, Any]) -> None:
    model = FakeModel(failing=case.pop("failing", ()))
    assert records(model, prompts=(ONE,), **case)[1]["identical"] is None


def test_a_failed_run_is_kept_and_the_others_go_on() -> None:
    made = records(FakeModel(failing=("ngram",)))
    assert [r["error"] for r in made] == [None, "ValueError: out of order"] * 2


def test_wrong_use_ends_the_benchmark_at_the_warm_up() -> None:
    with pytest.raises(RequestError, match="no such drafter"):
        records(FakeModel(unknown=("ngram",)))


def test_a_baseline_that_cannot_run_ends_the_benchmark() -> None:
    with pytest.raises(ValueError, match="broken"):
        records(FakeModel(broken=("none",)))


def test_a_drafter_that_cannot_run_does_not() -> None:
    assert [bool(r["error"]) for r in records(FakeModel(broken=("ngram",)))] == [False, True] * 2


# Documents


def test_run_loads_the_bundle_once_and_says_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "specrt.json").write_text("{}")
    loads: list[tuple[Path, str]] = []

    def load(bundle: Path, provider: str) -> FakeModel:
        loads.append((bundle, provider))
        return FakeModel()

    monkeypatch.setattr(specrt, "load", load, raising=False)
    made = latency.run(tmp_path, ("ngram",), ("chat",), 1, provider="cpu")
    assert loads == [(tmp_path, "cpu")]
    assert len(made["records"]) == 10
    assert made["bundle"]["sha256"] == hashlib.sha256(b"{}").hexdigest()


def test_a_document_is_one_line_of_json_and_keeps_zeros(tmp_path: Path) -> None:
    (tmp_path / "specrt.json").write_text("{}")
    plan = Plan((ONE,), ("ngram",), 1)
    made = list(measure(FakeModel(failing=("ngram",)), plan))
    line = last_line(document(tmp_path, plan, made, load_s=0.0))
    assert "\n" not in line
    read = json.loads(line)
    assert (read["load_s"], read["records"][0]["accepted"]) == (0.0, 0)
    assert read["argv"] == sys.argv


def test_the_environment_names_versions_processor_and_threads() -> None:
    told = environment()
    assert sorted(name for name, value in told.items() if value) == sorted(
        {*told} - ({"commit"} if told["commit"] is None else set())
    )


def test_outside_of_a_checkout_there_is_no_commit(tmp_path: Path) -> None:
    assert commit(tmp_path) is None


def test_peak_memory_remembers_what_was_freed() -> None:
    held = b"x" * 300_000_000
    del held
    peak = peak_rss_mb()
    assert peak is not None
    assert peak > 300


# Figures


def test_speed_up_is_the_ratio_of_medians_and_the_median_of_ratios() -> None:
    made = [record("none", p, s) for p, s in (("a", 10.0), ("b", 20.0), ("c", 40.0))]
    made += [record("x", p, s) for p, s in (("a", 30.0), ("b", 20.0), ("c", 48.0))]
    speedup = summarise(made)["x"]["all"]["speedup"]
    assert (speedup["of_medians"], speedup["median"], speedup["prompts"]) == (1.5, 1.2, 3)


def test_repeats_of_a_prompt_count_as_one_ratio() -> None:
    made = [record("none", "a", 10.0), record("none", "b", 10.0)]
    made += [record("x", "a", s) for s in (20.0, 90.0, 10.0)] + [record("x", "b", 10.0)]
    assert summarise(made)["x"]["all"]["speedup"]["median"] == 1.5


def test_the_baseline_is_as_fast_as_itself() -> None:
    made = [record("none", p, s) for p, s in (("a", 10.0), ("b", 30.0))]
    speedup = summarise(made)["none"]["all"]["speedup"]
    assert speedup == {"of_medians": 1.0, "median": 1.0, "interval": (1.0, 1.0), "prompts": 2}


def test_failed_and_one_step_runs_are_counted_but_enter_no_median() -> None:
    failed = {"drafter": "none", "prompt": "a", "kind": "chat", "error": "broken"}
    made = [record("none", "a", 10.0), record("none", "a", 0.0, decode_s=0.0), failed]
    figures = summarise(made)["none"]["all"]
    assert (figures["runs"], figures["failed"], figures["untimed"]) == (3, 1, 1)
    assert figures["tokens_per_s"] == {"q1": 10.0, "median": 10.0, "q3": 10.0}


def test_a_drafter_that_always_failed_has_no_speed() -> None:
    failed = {"drafter": "x", "prompt": "a", "kind": "chat", "error": "broken"}
    figures = summarise([record("none", "a", 10.0), failed])["x"]["all"]
    assert (figures["tokens_per_s"], figures["speedup"], figures["tokens"]) == (None, None, 0)


def test_figures_are_given_for_all_work_and_for_each_kind() -> None:
    made = [record("none", "a", 10.0), record("none", "b", 30.0, kind="code")]
    works = summarise(made)["none"]
    speeds = {work: figures["tokens_per_s"]["median"] for work, figures in works.items()}
    assert speeds == {"all": 20.0, "chat": 10.0, "code": 30.0}


def test_acceptance_and_identity_are_sums_over_the_runs() -> None:
    made = [record("x", "a", 1.0), record("x", "b", 1.0, drafted=0, accepted=0, identical=False)]
    figures = summarise(made)["x"]["all"]
    assert (figures["acceptance_rate"], figures["tokens_per_step"]) == (0.5, 2.0)
    assert (figures["same_text"], figures["other_text"]) == (1, 1)


def test_quartiles_of_nothing_are_none() -> None:
    assert quartiles([]) is None


def test_the_interval_of_a_median_covers_it_as_often_as_it_says() -> None:
    """200 samples of 25 from a law of median 0; 95 % cover it. Five sigma of 0.015: 0.87 to 1."""
    rng = np.random.default_rng(1)
    bounds = [interval(rng.normal(size=25).tolist()) for _ in range(200)]
    covered = [bound is not None and bound[0] <= 0 <= bound[1] for bound in bounds]
    assert sum(covered) / 200 >= 0.87


def test_one_value_has_no_interval() -> None:
    assert interval([1.0]) is None


def test_the_table_has_a_line_for_each_drafter_and_kind_of_work() -> None:
    summary = summarise(records(FakeModel(failing=("ngram",))))
    works = [(d, w) for d in ("none", "ngram") for w in ("all", "chat", "code")]
    assert [row[:2] for row in rows(summary)] == works
    assert {len(row) for row in rows(summary)} == {len(HEADER)}
    assert len(table(summary).splitlines()) == 7


# The other engine

ANSWER = {"id": "a", "prompt_tokens": 5, "tokens": 11, "ttft_s": 0.5}
FAST = {"import_s": 0.5, "load_s": 1.0, "peak_rss_mb": 100.0, "runs": [{**ANSWER, "decode_s": 1.0}]}
SLOW = {"import_s": 0.5, "load_s": 2.0, "peak_rss_mb": 300.0, "runs": [{**ANSWER, "decode_s": 2.0}]}


def test_ratios_are_specrts_median_over_genais() -> None:
    processes = [{"engine": "genai", **SLOW}, {"engine": "specrt", **FAST}]
    ratios = {name: f["ratio"] for name, f in plain_vs_genai.compare(processes).items()}
    assert ratios == {
        "tokens_per_s": 2.0,
        "ttft_s": 1.0,
        "import_s": 1.0,
        "load_s": 0.5,
        "peak_rss_mb": 1 / 3,
    }


def test_the_first_token_is_no_part_of_the_speed() -> None:
    processes = [{"engine": "genai", **SLOW}, {"engine": "specrt", **FAST}]
    speed = plain_vs_genai.compare(processes)["tokens_per_s"]
    assert (speed["genai"], speed["specrt"]) == (5.0, 10.0)


def test_without_genai_one_line_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert plain_vs_genai.main(["model", "bundle", "--genai-python", "no-such-python"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "onnxruntime-genai is not installed in no-such-python" in told.err
    assert len(told.err.splitlines()) == 1


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="needs POSIX")
def test_a_process_that_fails_gives_its_last_line() -> None:
    told = plain_vs_genai.run_worker(sys.executable, "no-such-engine", {"model": ""})
    assert told == {"engine": "no-such-engine", "error": "KeyError: 'no-such-engine'"}


def test_the_prompts_of_the_comparison_mix_all_kinds() -> None:
    chosen = [prompt["id"] for prompt in plain_vs_genai.choose(7)]
    assert chosen == [f"{kind}-1" for kind in KINDS] + ["chat-2", "summarise-2"]
