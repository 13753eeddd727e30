"""Other engines in a benchmark: the protocol of their processes, with an engine made up here."""

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from command_line import refused
from golden.make_help import help_texts

import specrt
from specrt.bench.latency import Plan, measure
from specrt.bench.peers.known import PEERS, Entrant, Peer, enlist
from specrt.bench.peers.process import Outcome, run_worker
from specrt.bench.peers.told import lines
from specrt.bench.peers.turns import questions, take_turns
from specrt.bench.peers.worker import load
from specrt.bench.report import SPEED, header, rows, summarise
from specrt.bench.suite import Prompt
from specrt.runtime.bundle import Manifest, Source, read_manifest
from specrt.runtime.errors import RequestError

# It writes the prompt's own tokens again, or misbehaves in the way that its model is named.
ENGINE = """
import os, subprocess, sys, time

def open(module, job):
    manner = os.path.basename(job["model"])
    if manner == "crash":
        os.abort()
    if manner == "hang":
        child = subprocess.Popen(["sleep", "60"])
        with __builtins__["open"](job["model"] + ".child", "w") as file:
            file.write(str(child.pid))
        time.sleep(60)
    if manner == "refuse":
        raise ValueError("no such weights")
    asked = []

    def ask(ids, count, emit):
        asked.append(ids)
        if len(asked) == 3 and manner == "crash later":
            os.abort()
        if len(asked) == 2 and manner == "fail once":
            raise MemoryError("too long")
        if manner == "slow" and len(asked) > 1:
            time.sleep(1.2)
        if manner == "stuck" and len(asked) == 3:
            time.sleep(60)
        if manner == "noise":
            print("{")
            os.write(1, b"loading\\xff\\n")
        if manner == "pairs":
            for i in range(0, count, 2):
                emit(ids[i : i + 2])
            return {"drafted": 7, "accepted": count // 2}
        if manner == "joined":
            for i in range(count):
                emit([ids[i % len(ids)]], joined=i % 2 == 1)
            return {}
        if manner == "threads":
            ids = [job["threads"]] * count
        for token in (ids * count)[:count]:
            emit([token])
        return {}

    return ask
"""
PROMPTS = [{"id": "a", "ids": [5, 6, 7, 8], "count": 4}, {"id": "b", "ids": [9, 10], "count": 2}]


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    file = tmp_path / "engine.py"
    file.write_text(ENGINE)
    return file


def job(engine: Path, manner: str = "well", **more: Any) -> dict[str, Any]:
    model = str(engine.with_name(manner))
    given = {"engine": str(engine), "module": "struct", "model": model, "mode": "plain"}
    time = {"seconds": 30.0, "longest_s": 30.0}
    return {**given, "threads": 1, "prompts": PROMPTS, **time, **more}


def ask(engine: Path, manner: str = "well", patience: float = 30.0, **more: Any) -> Outcome:
    return run_worker(sys.executable, job(engine, manner, **more), patience)


def blocks(outcome: Outcome) -> dict[str, Any]:
    return {told["id"]: told["blocks"] for told in outcome.told if "blocks" in told}


# A process


def test_a_worker_tells_its_load_then_an_answer_for_each_prompt(engine: Path) -> None:
    outcome = ask(engine)
    assert outcome.error is None
    assert [told.get("id") for told in outcome.told] == [None, "a", "b"]
    assert outcome.told[0].keys() == {"import_s", "load_s", "version"}


def test_an_engine_reads_the_very_tokens_of_the_prompts(engine: Path) -> None:
    assert blocks(ask(engine)) == {"a": [[5], [6], [7], [8]], "b": [[9], [10]]}


def test_an_engine_is_told_how_many_threads_to_use(engine: Path) -> None:
    outcome = run_worker(sys.executable, job(engine, "threads", threads=3))
    assert blocks(outcome)["b"] == [[3], [3]]


def test_tokens_of_one_run_of_the_model_are_one_block(engine: Path) -> None:
    assert blocks(ask(engine, "joined")) == {"a": [[5, 6], [7, 8]], "b": [[9, 10]]}


def test_each_block_has_a_time_and_they_rise(engine: Path) -> None:
    for told in ask(engine).told[1:]:
        assert len(told["times"]) == len(told["blocks"])
        assert told["times"] == sorted(told["times"])
        assert 0 < told["times"][-1] <= told["wall_s"]


def test_what_an_engine_prints_is_no_answer(engine: Path) -> None:
    noisy = ask(engine, "noise")
    assert noisy.error is None
    assert blocks(noisy) == blocks(ask(engine))


def test_no_file_beside_the_worker_hides_a_package(engine: Path) -> None:
    outcome = run_worker(sys.executable, job(engine, module="told"))
    assert outcome.error == "exit code 1: ModuleNotFoundError: No module named 'told'"


def test_a_crash_is_told_by_its_signal(engine: Path) -> None:
    outcome = ask(engine, "crash")
    assert outcome.told == ()
    assert str(outcome.error).startswith("ended by SIGABRT: ")


def test_what_was_answered_before_a_crash_is_kept(engine: Path) -> None:
    outcome = ask(engine, "crash later")
    assert blocks(outcome).keys() == {"a"}
    assert outcome.error is not None


def test_an_exception_ends_in_its_last_line(engine: Path) -> None:
    assert ask(engine, "refuse").error == "exit code 1: ValueError: no such weights"


def test_a_prompt_that_fails_costs_no_other(engine: Path) -> None:
    outcome = ask(engine, "fail once")
    assert [told.get("error") for told in outcome.told[1:]] == ["MemoryError: too long", None]


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs POSIX")
def test_a_hanging_process_is_ended_with_all_that_it_started(engine: Path) -> None:
    began = time.monotonic()
    outcome = ask(engine, "hang", patience=4.0)  # its start takes a second where much is going on
    assert time.monotonic() - began < 20
    assert outcome == Outcome((), "it said nothing for 4 s and was ended")
    child = int(engine.with_name("hang.child").read_text())
    while alive(child) and time.monotonic() - began < 20:  # a signal takes its time to arrive
        time.sleep(0.01)
    assert not alive(child)


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody has waited for does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def script(folder: Path, text: str) -> str:
    """A program in place of a Python."""
    program = folder / "program"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.skipif(os.name != "posix", reason="needs a script with an interpreter line")
def test_a_worker_that_keeps_telling_is_waited_for(engine: Path) -> None:
    program = script(engine.parent, "for i in 1 2 3 4 5 6; do echo '{}'; sleep 0.4; done")
    outcome = run_worker(program, job(engine, longest_s=1.5), patience=30.0)
    assert outcome == Outcome(({},) * 6)


MANY = [{"id": name, "ids": [5, 6], "count": 2} for name in "abcde"]


def test_when_the_time_of_all_questions_is_over_no_more_is_asked(engine: Path) -> None:
    outcome = ask(engine, "slow", prompts=MANY, seconds=2.0)  # 1.2 s each
    assert outcome.error is None
    assert blocks(outcome).keys() == {"a", "b"}
    assert outcome.told[-1] == {"unasked": ["c", "d", "e"]}


def test_a_question_that_takes_too_long_ends_the_process_and_is_an_error(engine: Path) -> None:
    began = time.monotonic()
    outcome = ask(engine, "stuck", prompts=MANY, longest_s=1.5)
    assert time.monotonic() - began < 20
    assert outcome.error == "it said nothing for 1.5 s and was ended"
    assert blocks(outcome).keys() == {"a"}
    assert outcome.told[-2:] == (
        {"id": "b", "error": outcome.error, "wall_s": 1.5},
        {"unasked": ["c", "d", "e"]},
    )


@pytest.mark.skipif(os.name != "posix", reason="needs a script with an interpreter line")
def test_garbage_is_no_answer(engine: Path) -> None:
    program = script(engine.parent, "echo '[1]'; echo 'not JSON'; echo '{\"id\": \"a\"}'")
    outcome = run_worker(program, job(engine))
    assert outcome == Outcome(({"id": "a"},), "it wrote '[1]', which is no answer")


def test_a_program_that_is_not_there_is_an_error(engine: Path) -> None:
    outcome = run_worker("no-such-python", job(engine))
    assert outcome == Outcome((), "no-such-python cannot be run: No such file or directory")


# Who takes part


@pytest.fixture
def manifest(tiny_bundle: Path) -> Manifest:
    return read_manifest(tiny_bundle)


@pytest.fixture
def peer(engine: Path, monkeypatch: pytest.MonkeyPatch) -> Peer:
    """One that is installed: its module comes with Python."""
    made = Peer("fake", engine, "struct", ("plain", "lookup"), gguf=True, package="fake")
    monkeypatch.setitem(PEERS, "fake", made)
    return made


def test_each_mode_of_a_peer_has_a_name(peer: Peer, manifest: Manifest, engine: Path) -> None:
    made = enlist(["fake"], manifest, models=[("fake", str(engine))])
    assert [entrant.name for entrant in made.entrants] == ["fake", "fake+lookup"]
    assert made.left_out == ()


def test_the_peers_of_the_design_are_known() -> None:
    assert {"onnxruntime-genai", "llama.cpp", "openvino-genai", "transformers"} <= PEERS.keys()


def test_every_peers_engine_is_a_file_with_an_open_function() -> None:
    assert [callable(load(str(made.engine)).open) for made in PEERS.values()] == [True] * len(PEERS)


def test_a_peer_that_is_not_installed_is_left_out(
    manifest: Manifest, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = Peer("absent", engine, "no_such_module", ("plain",), gguf=True, package="no-such")
    monkeypatch.setitem(PEERS, "absent", absent)
    made = enlist(["absent"], manifest)
    assert made.entrants == ()
    assert made.left_out == (
        f"absent is left out: {sys.executable} has no no_such_module; pip install no-such, or "
        "name one with --peer-program absent=PATH",
    )


def test_a_program_that_is_not_on_the_path_is_left_out(manifest: Manifest) -> None:
    made = enlist(["llama-server"], manifest, programs=[("llama-server", "no-such-program")])
    assert made.left_out == (
        "llama-server is left out: no-such-program is no program; name one with "
        "--peer-program llama-server=PATH",
    )


def test_a_peer_without_the_bundles_source_is_left_out(
    peer: Peer, manifest: Manifest, tmp_path: Path
) -> None:
    (line,) = enlist(["fake"], manifest, folder=tmp_path).left_out
    assert line.endswith("that the bundle was made from; name one with --peer-model fake=PATH")


@dataclass(frozen=True)
class Made:
    """As much of a manifest as is asked for."""

    source: Any
    drafters: tuple[Any, ...] = ()


def test_the_source_of_a_bundle_is_found_by_its_hash(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"weights")
    right = hashlib.sha256(b"weights").hexdigest()
    found: Any = Made(Source("gguf", "a.gguf", right))
    other: Any = Made(Source("gguf", "a.gguf", "0" * 64))
    assert [e.model for e in enlist(["fake"], found, folder=tmp_path).entrants] == [
        tmp_path / "a.gguf"
    ] * 2
    assert enlist(["fake"], other, folder=tmp_path).entrants == ()


def test_a_peer_that_is_none_is_refused(manifest: Manifest) -> None:
    with pytest.raises(RequestError, match="peer 'vllm' is unknown; choose onnxruntime-genai, "):
        enlist(["vllm"], manifest)


def test_a_program_of_a_peer_that_is_not_asked_for_is_refused(manifest: Manifest) -> None:
    with pytest.raises(RequestError, match="--peer-program is for 'x', which --peers does not"):
        enlist([], manifest, programs=[("x", "y")])


# Turns


@pytest.fixture(scope="module")
def model(tiny_bundle: Path) -> specrt.Model:
    return specrt.load(tiny_bundle, drafter="none", provider="cpu")


ONE = Prompt("a", "chat", "the model")
TWO = Prompt("b", "code", "a model", max_tokens=3)
MORE = tuple(Prompt(f"{kind}{i}", kind, "the model") for kind in ("x", "y", "z") for i in (1, 2))


def entrant(engine: Path, manner: str = "well", name: str = "fake") -> Entrant:
    peer = Peer(name, engine, "struct", ("plain",), gguf=True, package="")
    return Entrant(peer, "plain", sys.executable, engine.with_name(manner))


def run(
    model: specrt.Model,
    plan: Plan,
    *entrants: Entrant,
    patience: float = 30.0,
    seconds: float = 30.0,
) -> list[dict[str, Any]]:
    def one(python: str, job: Mapping[str, Any]) -> Outcome:
        return run_worker(python, job, patience)

    own = measure(model, plan)
    return list(take_turns(own, plan, model, entrants, 1, seconds=seconds, run=one))


def test_a_peer_writes_as_many_tokens_as_plain_decoding(model: specrt.Model, engine: Path) -> None:
    made = run(model, Plan((ONE, TWO), (), 1, 5), entrant(engine))
    counts = {(r["drafter"], r["prompt"]): r["tokens"] for r in made}
    assert counts == {("none", "a"): 5, ("none", "b"): 3, ("fake", "a"): 5, ("fake", "b"): 3}


def test_a_peer_has_the_threads_that_specrt_has(model: specrt.Model, engine: Path) -> None:
    jobs: list[Mapping[str, Any]] = []

    def one(python: str, job: Mapping[str, Any]) -> Outcome:
        jobs.append(job)
        return Outcome(())

    plan = Plan((ONE,), (), 1, 2)
    made = list(take_turns(measure(model, plan), plan, model, [entrant(engine)], 3, run=one))
    assert [job["threads"] for job in jobs] == [3]
    assert made[-1]["error"] == "it gave no answer"


def test_a_peer_reads_what_specrt_reads(model: specrt.Model, engine: Path) -> None:
    (_, told) = run(model, Plan((ONE,), (), 1, 5), entrant(engine))
    ids = model.prompt_ids(messages=ONE.messages)
    assert told["prompt_tokens"] == len(ids)
    assert told["text"] == model.tokenizer.decode((list(ids) * 5)[:5])


def test_a_peers_record_has_all_that_specrts_own_has(model: specrt.Model, engine: Path) -> None:
    own, told = run(model, Plan((ONE,), (), 1, 5), entrant(engine))
    assert own.keys() - told.keys() == set()
    assert (told["identical"], told["error"], told["kind"]) == (None, None, "chat")


def test_a_block_of_tokens_is_a_step(model: specrt.Model, engine: Path) -> None:
    told = run(model, Plan((ONE,), (), 1, 6), entrant(engine, "pairs"))[-1]
    assert (told["tokens"], told["steps"], told["tokens_per_step"]) == (6, 3, 2.0)
    assert (told["drafted"], told["accepted"]) == (7, 3)
    assert told["tokens_per_s"] == pytest.approx(4 / told["decode_s"])


def test_tokens_beyond_those_asked_for_are_cut(model: specrt.Model, engine: Path) -> None:
    assert run(model, Plan((ONE,), (), 1, 5), entrant(engine, "pairs"))[-1]["tokens"] == 5


def test_one_summary_serves_specrt_and_its_peers(model: specrt.Model, engine: Path) -> None:
    made = run(model, Plan((ONE, TWO), (), 2, 5), entrant(engine), entrant(engine, "crash", "bad"))
    summary = summarise(made)
    assert summary.keys() == {"none", "fake", "bad"}
    assert summary["fake"]["all"]["speedup"]["prompts"] == 2
    assert (summary["fake"]["all"]["runs"], summary["fake"]["all"]["failed"]) == (4, 0)


def test_a_peer_that_fails_has_errors_and_is_not_started_again(
    model: specrt.Model, engine: Path
) -> None:
    plan = Plan((*MORE[:2], ONE), (), 2, 5)  # two of a kind, then another kind
    made = run(model, plan, entrant(engine, "crash", "bad"))
    bad = [r for r in made if r["drafter"] == "bad"]
    assert [(r["prompt"], r["repeat"], r["finish_reason"]) for r in bad] == [
        ("x1", 0, "error"),
        ("x2", 0, "error"),
    ]
    assert all(r["error"].startswith("ended by SIGABRT") for r in bad)
    assert summarise(made)["bad"]["all"]["failed"] == 2


def test_a_peer_that_hangs_does_not_keep_the_others_waiting(
    model: specrt.Model, engine: Path
) -> None:
    entrants = entrant(engine, "hang", "slow"), entrant(engine)
    made = run(model, Plan((ONE,), (), 1, 5), *entrants, patience=1.0)
    assert [(r["drafter"], r["error"] is None) for r in made] == [
        ("none", True),
        ("slow", False),
        ("fake", True),
    ]


def test_a_slow_peer_has_answered_some_of_each_kind(model: specrt.Model, engine: Path) -> None:
    made = run(model, Plan(MORE, (), 1, 2), entrant(engine, "slow"), seconds=3.0)
    assert [r["prompt"] for r in made if r["drafter"] == "fake"] == ["x1", "y1", "z1"]


def test_a_peer_has_its_time_for_all_rounds_together(model: specrt.Model, engine: Path) -> None:
    started: list[float] = []

    def one(python: str, job: Mapping[str, Any]) -> Outcome:
        started.append(job["seconds"])
        return run_worker(python, job)

    plan = Plan(MORE[:2], (), 3, 2)
    own, peers = measure(model, plan), [entrant(engine, "slow")]  # 1.2 s each
    made = list(take_turns(own, plan, model, peers, 1, seconds=1.5, run=one))
    asked = [(r["repeat"], r["prompt"]) for r in made if r["drafter"] == "fake"]
    assert asked == [(0, "x1"), (2, "x1")]  # after two rounds it had spent what is for two
    assert len(started) == 2
    assert started[0] == 0.5
    assert 0 < started[1] < 0.5


def test_the_summary_tells_how_many_of_the_planned_questions_were_answered(
    model: specrt.Model, engine: Path
) -> None:
    two = entrant(engine, "slow"), entrant(engine, "stuck", "stuck")
    made = run(model, Plan(MORE, (), 1, 2), *two, seconds=2.0)
    summary = summarise(made)
    counts = {
        name: [of["all"][figure] for figure in ("runs", "failed", "planned")]
        for name, of in summary.items()
    }
    assert counts == {"none": [6, 0, 6], "fake": [2, 0, 6], "stuck": [2, 1, 6]}
    titles, cells = header(SPEED, summary), rows(SPEED, summary)
    answered = [row[titles.index("answered")] for row in cells if row[1] == "all"]
    assert answered == ["-", "2 of 6", "1 of 6"]
    told = [line for line in lines(made, two) if "asked" in line]
    assert told == ["fake: asked 2 of 6 questions", "stuck: asked 2 of 6 questions"]


def test_a_kind_of_work_is_done_by_all_before_the_next(model: specrt.Model, engine: Path) -> None:
    made = run(model, Plan((*MORE[:3], ONE), (), 1, 2), entrant(engine))
    order = [(r["drafter"], r["prompt"]) for r in made]
    own, fake = [[(name, p) for p in ("x1", "x2")] for name in ("none", "fake")]
    rest = [(name, p) for p in ("y1", "a") for name in ("none", "fake")]
    assert order == [*own, *fake, *rest]


def test_rounds_of_specrt_and_of_peers_alternate(model: specrt.Model, engine: Path) -> None:
    two = entrant(engine, name="x"), entrant(engine, name="y")
    made = run(model, Plan((ONE,), ("ngram",), 2, 2), *two)
    order = [r["drafter"] for r in made]
    assert order == ["none", "ngram", "x", "y", "none", "ngram", "y", "x"]


@pytest.mark.parametrize(
    "told",
    [
        {"blocks": [[1]], "times": []},
        {"blocks": [], "times": [], "wall_s": 1.0},
        {"blocks": [["x"]], "times": [0.5], "wall_s": 1.0},
        {"blocks": 7, "times": 7, "wall_s": 1.0},
        {},
    ],
)
def test_an_answer_that_cannot_be_read_is_an_error(
    model: specrt.Model, engine: Path, told: dict[str, Any]
) -> None:
    def one(python: str, job: Mapping[str, Any]) -> Outcome:
        return Outcome(({"id": "a", **told},))

    plan = Plan((ONE,), (), 1, 2)
    made = list(take_turns(measure(model, plan), plan, model, [entrant(engine)], 1, run=one))
    assert made[-1]["error"].startswith("it gave an answer that cannot be read: ")


def test_a_peers_load_memory_and_failure_are_told(model: specrt.Model, engine: Path) -> None:
    two = entrant(engine), entrant(engine, "crash", "bad")
    made = run(model, Plan((ONE,), (), 1, 2), *two)
    first, second, third = lines(made, two)
    assert re.fullmatch(r"fake: loaded in \d\.\d\d s, peak memory \d+ MB, well", first)
    assert second == "bad: not loaded, peak memory unknown, crash"
    assert third.startswith("bad: 1 failed: ended by SIGABRT: ")


@dataclass
class Listening:
    """A model that keeps the conversations it is asked for."""

    heard: list[Sequence[Mapping[str, Any]]] = field(default_factory=list)

    def prompt_ids(
        self, prompt: None = None, messages: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[int, ...]:
        assert messages is not None
        self.heard.append(messages)
        return (1,)


def test_a_later_turn_is_asked_after_plain_decodings_answer() -> None:
    prompt = Prompt("a", "chat", "One?", then=("Two?",))
    told = {"kind": "chat", "tokens": 4}  # of 128: it stopped by itself
    plain = {
        "a": {**told, "prompt": "a", "text": "First."},
        "a, turn 2": {**told, "prompt": "a, turn 2", "text": "Second."},
    }
    listening = Listening()
    asked = questions(Plan((prompt,), ()), plain, listening)
    assert [(question.id, question.count) for question in asked] == [("a", 4), ("a, turn 2", 4)]
    assert listening.heard[1] == [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "First."},
        {"role": "user", "content": "Two?"},
    ]


def test_where_plain_decoding_failed_the_runs_length_is_asked_for() -> None:
    plain = {"a": {"kind": "chat", "prompt": "a", "text": "", "error": "MemoryError: "}}
    (asked,) = questions(Plan((ONE,), (), max_tokens=9), plain, Listening())
    assert asked.count == 9


# The command


@pytest.fixture
def command(tiny_bundle: Path, tmp_path: Path) -> list[str | Path]:
    suite = tmp_path / "suite.jsonl"
    suite.write_text('{"id": "a", "kind": "chat", "prompt": "the model"}\n')
    options = ["--repeat", "1", "--max-tokens", "5", "--drafters", "ngram", "--provider", "cpu"]
    return ["bench", tiny_bundle, "--suite", suite, *options]


def test_peers_stand_in_one_table_with_specrt(
    specrt_run: Any, command: list[str | Path], peer: Peer, engine: Path
) -> None:
    done = specrt_run(*command, "--peers", "fake", "--peer-model", f"fake={engine}")
    summary = json.loads(done.out.splitlines()[-1])["summary"]
    assert list(summary) == ["none", "ngram", "fake", "fake+lookup"]
    assert summary["fake"]["all"]["speedup"]["prompts"] == 1
    assert [line.split()[0] for line in done.out.splitlines() if " chat " in line][:4] == [*summary]


def test_the_document_tells_how_long_an_engine_may_answer(
    specrt_run: Any, command: list[str | Path], peer: Peer, engine: Path
) -> None:
    peers = ["--peers", "fake", "--peer-model", f"fake={engine}", "--peer-seconds", "9"]
    given = json.loads(specrt_run(*command, *peers).out.splitlines()[-1])
    alone = json.loads(specrt_run(*command).out.splitlines()[-1])
    assert given["options"]["peer_seconds"] == 9
    assert given["options"].keys() - alone["options"].keys() == {"peer_seconds"}


def test_a_gate_without_a_name_is_for_specrts_drafters(
    specrt_run: Any, command: list[str | Path], peer: Peer, tmp_path: Path
) -> None:
    (tmp_path / "crash").touch()
    peers = ["--peers", "fake", "--peer-model", f"fake={tmp_path / 'crash'}"]
    assert specrt_run(*command, *peers, "--gate", "failed<=0").code == 0


def test_without_its_peer_a_benchmark_goes_on(
    specrt_run: Any, command: list[str | Path], monkeypatch: pytest.MonkeyPatch, engine: Path
) -> None:
    absent = Peer("absent", engine, "no_such_module", ("plain",), gguf=True, package="no-such")
    monkeypatch.setitem(PEERS, "absent", absent)
    done = specrt_run(*command, "--peers", "absent")
    assert done.code == 0
    assert "absent is left out: " in done.err
    assert list(json.loads(done.out.splitlines()[-1])["summary"]) == ["none", "ngram"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--peers", "vllm"], "peer 'vllm' is unknown; choose onnxruntime-genai, llama.cpp"),
        (["--peer-model", "fake=x"], "--peer-model is for 'fake', which --peers does not name"),
        (["--peer-seconds", "9"], "--peer-seconds is for engines, and there is none; name one"),
        (["--peers", "fake", "--peer-seconds", "0"], "--peer-seconds is 0; give 1 or more"),
        (["--peers", "fake", "--peer-program", "python"], "'python' is not of the form llama.cpp="),
        (
            ["--peers", "fake", "--peer-model", f"fake={__file__}", "--temperature", "0.7"],
            "--peers write greedily, not at temperature 0.7; leave one",
        ),
    ],
)
def test_wrong_use_is_told_in_one_line(
    specrt_run: Any, command: list[str | Path], peer: Peer, options: list[str], message: str
) -> None:
    refused(specrt_run(*command, *options), message)


def test_the_help_names_every_peer() -> None:
    assert [name for name in PEERS if name not in help_texts()["bench"]] == []
