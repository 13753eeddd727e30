"""Commands as a person or a program sees them: output, exit codes, one-line errors, help texts."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command_line import COMMAND, Done, refused
from golden.make_help import FOLDER, help_texts

import specrt
from specrt.cli import COMMANDS
from specrt.commands import demo, inspect
from specrt.commands.options import REQUEST, Parser, add_request, request
from specrt.console import coloured
from specrt.runtime.bundle import read_manifest
from specrt.runtime.errors import CheckError
from specrt.runtime.options import How

PROMPT = "the model the model the model"


@pytest.mark.parametrize("name", ["specrt", *(c.__name__.split(".")[-1] for c in COMMANDS)])
def test_the_help_text_is_the_recorded_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    recorded = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    # Python 3.13 writes "Options" headings and option columns as 3.11 does; only blanks may differ
    assert help_texts()[name].split() == recorded.split()


def test_the_version_is_the_packages(specrt_run: Any) -> None:
    assert specrt_run("--version") == Done(0, f"specrt {specrt.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["inspect"], "specrt inspect: the following arguments are required: BUNDLE"),
        (["inspect", "x", "--colour"], "unrecognized arguments: --colour"),
        (["inspect", "x", "--js"], "unrecognized arguments: --js"),
        (["generate", "x", "y", "--max-tokens", "many"], "invalid int value: 'many'"),
        (["generate", "x", "y", "--provider", "abacus"], "invalid choice: 'abacus'"),
        (["generate", "x", "bad\udcff"], "character 3 is not UTF-8"),
        (["export", "x", "y", "--draft", "oracle:z"], "'oracle' is no kind of draft; use draft"),
        (["export", "x", "y", "--weights", "int3"], "invalid choice: 'int3'"),
        (["pull", "gpt-17"], "invalid choice: 'gpt-17'"),
        (["bench", "x", "--gate", "fast"], "'fast' is not of the form speedup>=1.3"),
    ],
)
def test_wrong_use_is_one_line(specrt_run: Any, arguments: Sequence[str], message: str) -> None:
    refused(specrt_run(*arguments), message)


@pytest.mark.parametrize("command", ["inspect", "chat", "bench", "generate"])
def test_no_bundle_is_one_line(specrt_run: Any, tmp_path: Path, command: str) -> None:
    more = [PROMPT] if command == "generate" else []
    refused(specrt_run(command, tmp_path / "none", *more), "is no bundle")


def test_no_checkpoint_is_one_line_and_leaves_nothing(specrt_run: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    done = specrt_run("export", tmp_path / "broken.gguf", tmp_path / "out")
    refused(done, "broken.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["broken.gguf"]


@pytest.mark.parametrize(
    ("error", "code", "err"),
    [
        (KeyboardInterrupt(), 130, "\n"),
        (CheckError("rows differ"), 1, "specrt: rows differ\n"),
        (PermissionError(13, "Permission denied", "x"), 2, "specrt: x: Permission denied\n"),
    ],
)
def test_exit_codes(
    specrt_run: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, err: str
) -> None:
    def fail(folder: Path) -> None:
        raise error

    monkeypatch.setattr(inspect, "read_manifest", fail)
    assert specrt_run("inspect", "x") == Done(code, "", err)


def test_a_bug_keeps_its_traceback(specrt_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "read_manifest", None)
    with pytest.raises(TypeError):
        specrt_run("inspect", "x")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--version"], ["inspect"]])
def test_a_reader_that_has_had_enough_is_no_error(
    tiny_bundle: Path, arguments: list[str], unbuffered: str
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *arguments, *([str(tiny_bundle)] if arguments == ["inspect"] else [])],
        stdout=writer,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_only_the_request_options_that_were_given_are_passed_on() -> None:
    parser = Parser()
    add_request(parser)
    assert request(parser.parse_args([])) == {}
    given = request(parser.parse_args(["--top-k", "3", "--stop", "a", "--stop", "b"]))
    assert given == {"top_k": 3, "stop": ["a", "b"]}


def test_request_options_are_arguments_of_stream() -> None:
    arguments = {*specrt.Model.stream.__annotations__, *How.__annotations__}
    assert [name for name in REQUEST if name not in arguments] == []


def test_inspect_shows_what_is_in_a_bundle(specrt_run: Any, tiny_bundle: Path) -> None:
    done = specrt_run("inspect", tiny_bundle, "--hashes")
    assert done.code == 0
    assert "llama, 2 layers, hidden 64, 4 heads (2 kv) of 16, vocabulary 272" in done.out
    assert "drafter    draft (draft)" in done.out
    assert "hashes     all 6 files are as exported" in done.out


def test_inspect_json_is_the_manifest(specrt_run: Any, tiny_bundle: Path) -> None:
    done = specrt_run("inspect", tiny_bundle, "--json")
    assert done.out == read_manifest(tiny_bundle).to_json()


def test_generate_writes_the_models_text(specrt_run: Any, tiny_bundle: Path) -> None:
    text = specrt.load(tiny_bundle).generate(PROMPT, max_tokens=12).text
    assert specrt_run("generate", tiny_bundle, PROMPT, "--max-tokens", "12").out == text + "\n"


def test_generate_json_has_text_and_figures(specrt_run: Any, tiny_bundle: Path) -> None:
    options = (
        "--drafter",
        "ngram",
        "--max-tokens",
        "12",
        "--seed",
        "7",
        "--logprobs",
        "2",
        "--json",
    )
    found = json.loads(specrt_run("generate", tiny_bundle, PROMPT, *options).out)
    model = specrt.load(tiny_bundle, drafter="ngram")  # auto would draft by its timing
    result = model.generate(PROMPT, max_tokens=12, seed=7, logprobs=2)
    assert found["text"] == result.text
    assert found["token_ids"] == list(result.tokens)
    assert found["tokens"] == len(result.tokens)
    assert [len(one["top"]) for one in found["logprobs"]] == [2] * len(result.tokens)
    assert (found["drafter"], found["seed"], found["finish_reason"]) == ("ngram", 7, "length")
    assert found["accepted"] == sum(step.accepted for step in result.trace.steps)


def test_generate_reads_standard_input_without_its_last_line_end(
    specrt_run: Any, tiny_bundle: Path
) -> None:
    given = specrt_run("generate", tiny_bundle, PROMPT, "--max-tokens", "8").out
    read = specrt_run(
        "generate", tiny_bundle, "-", "--max-tokens", "8", stdin=f"{PROMPT}\n".encode()
    )
    assert read.out == given


@pytest.mark.parametrize(
    ("stdin", "message"),
    [(b"", "the prompt is empty"), (b"\n", "the prompt is empty"), (b"ab\xff", "byte 0xff at 2")],
)
def test_unusable_standard_input_is_one_line(
    specrt_run: Any, tiny_bundle: Path, stdin: bytes, message: str
) -> None:
    refused(specrt_run("generate", tiny_bundle, "-", stdin=stdin), message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "-1"], "temperature must be 0 or more"),
        (["--top-p", "0"], "top_p must be above 0"),
        (["--max-tokens", "-1"], "max_tokens must be 0 or more"),
        (["--drafter", "oracle"], "no drafter 'oracle'"),
        (["--trace", "no/such/folder/trace.jsonl"], "No such file or directory"),
    ],
)
def test_an_unusable_option_is_one_line(
    specrt_run: Any, tiny_bundle: Path, options: list[str], message: str
) -> None:
    refused(specrt_run("generate", tiny_bundle, PROMPT, *options), message)


def test_a_prompt_longer_than_the_context_is_one_line(specrt_run: Any, tiny_bundle: Path) -> None:
    refused(specrt_run("generate", tiny_bundle, "word " * 500), "the context 256")


def test_trace_has_a_line_for_each_step(specrt_run: Any, tiny_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    done = specrt_run(
        "generate", tiny_bundle, PROMPT, "--max-tokens", "9", "--trace", path, "--json"
    )
    steps = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(steps) == json.loads(done.out)["steps"]
    assert sum(len(step["emitted"]) for step in steps) == 9
    assert all(step["detail"]["tokens"] is not None for step in steps)


def test_stats_go_to_standard_error(specrt_run: Any, tiny_bundle: Path) -> None:
    options = ("--max-tokens", "8", "--drafter", "none")
    plain = specrt_run("generate", tiny_bundle, PROMPT, *options)
    done = specrt_run("generate", tiny_bundle, PROMPT, *options, "--stats")
    assert done.out == plain.out
    assert done.err.startswith("8 tokens, ")
    assert done.err.endswith("nothing drafted (plain: no drafter)\n")


def test_chat_answers_each_line_with_all_before_it(specrt_run: Any, tiny_bundle: Path) -> None:
    done = specrt_run("chat", tiny_bundle, "--max-tokens", "6", stdin=b"one\n\ntwo\n/clear\none\n")
    model = specrt.load(tiny_bundle)
    messages: list[dict[str, str]] = []
    answers = []
    for line in ("one", "two"):
        messages.append({"role": "user", "content": line})
        answers.append(model.generate(messages=messages, max_tokens=6).text)
        messages.append({"role": "assistant", "content": answers[-1]})
    assert done == Done(0, "".join(f"{text}\n" for text in [*answers, answers[0]]), "")


def test_chat_refuses_a_line_that_is_no_utf8(specrt_run: Any, tiny_bundle: Path) -> None:
    refused(specrt_run("chat", tiny_bundle, stdin=b"\xff\n"), "standard input is not UTF-8")


def bench(tiny_bundle: Path, tmp_path: Path) -> list[str | Path]:
    suite = tmp_path / "suite.jsonl"
    suite.write_text('{"id": "a", "kind": "chat", "prompt": "the model"}\n')
    options = ["--suite", suite, "--repeat", "1", "--max-tokens", "9", "--drafters", "draft"]
    return ["bench", tiny_bundle, *options]


def test_the_last_line_of_bench_is_its_json(
    specrt_run: Any, tiny_bundle: Path, tmp_path: Path
) -> None:
    file = tmp_path / "result.json"
    done = specrt_run(*bench(tiny_bundle, tmp_path), "--json", file)
    lines = done.out.splitlines()
    assert lines[0].split()[:2] == ["drafter", "work"]
    assert json.loads(lines[-1])["summary"]["draft"]["all"]["same_text"] == 1
    assert file.read_text() == lines[-1] + "\n"


@pytest.mark.parametrize(("gate", "code"), [("tokens_per_step>=1", 0), ("tokens_per_step<1", 1)])
def test_a_gate_that_does_not_hold_is_exit_code_1(
    specrt_run: Any, tiny_bundle: Path, tmp_path: Path, gate: str, code: int
) -> None:
    done = specrt_run(*bench(tiny_bundle, tmp_path), "--gate", gate)
    assert done.code == code
    assert ("does not hold: draft has" in done.err) == bool(code)


@pytest.fixture
def demo_bundle(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo with a tiny model instead of a download."""
    monkeypatch.setattr(demo, "ensure_bundle", lambda fresh: tiny_bundle)


@pytest.mark.usefixtures("demo_bundle")
def test_the_demo_writes_the_same_text_twice(specrt_run: Any, tiny_bundle: Path) -> None:
    done = specrt_run("demo", "--prompt", PROMPT, "--max-tokens", "12")
    text = specrt.load(tiny_bundle).generate(PROMPT, max_tokens=12).text
    assert done.code == 0
    assert done.out.startswith(f"--- plain\n{text}\n--- speculative\n{text}\n")


@pytest.mark.usefixtures("demo_bundle")
def test_the_demo_as_json_says_that_the_texts_are_identical(specrt_run: Any) -> None:
    found = json.loads(specrt_run("demo", "--prompt", PROMPT, "--max-tokens", "12", "--json").out)
    assert found["identical"] is True
    assert (found["plain"]["drafted"], found["speculative"]["drafter"]) == (0, "auto")


def test_export_writes_a_bundle_that_generates(
    specrt_run: Any, tmp_path: Path, tiny_bundle: Path
) -> None:
    source = Path(__file__).parent / "golden" / "models" / "qwen2"
    out = tmp_path / "qwen2"
    done = specrt_run("export", source, out, "--weights", "fp32", "--context", "100", "--json")
    assert json.loads(done.out)["model"]["context"] == 100
    assert specrt_run("generate", out, PROMPT, "--max-tokens", "3").code == 0


def test_each_token_has_the_colour_of_who_proposed_it(tiny_bundle: Path) -> None:
    tokenizer = specrt.load(tiny_bundle).tokenizer
    tokens = tuple(tokenizer.encode("the model", add_special_tokens=False).ids)[:3]
    words = [tokenizer.decode([token]) for token in tokens]
    piece = specrt.Piece("".join(words), tokens, (False, True, False))
    shown = coloured(piece, tokenizer)
    assert shown.plain == piece.text
    assert [shown.plain[s.start : s.end] for s in shown.spans if s.style == "green"] == [words[1]]


@pytest.mark.parametrize("control", ["\x1b[2J", "\x9b2J", "\x00", "\x08", "\r", "\x7f"])
def test_a_model_cannot_send_the_terminal_control_characters(
    tiny_bundle: Path, control: str
) -> None:
    tokenizer = specrt.load(tiny_bundle).tokenizer
    shown = coloured(specrt.Piece(f"a{control}\n\tb", (5,), (True,)), tokenizer).plain
    assert [c for c in shown if not c.isprintable()] == ["\n", "\t"]
    assert len(shown) == len(control) + 4


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("no_color", "green"), [(None, True), ("1", False)])
def test_drafted_tokens_are_green_on_a_terminal(
    tiny_bundle: Path, no_color: str | None, green: bool
) -> None:
    how = ["--drafter", "draft", "--max-tokens", "12"]
    output = on_terminal(["generate", str(tiny_bundle), PROMPT, *how], no_color)
    assert ("\x1b[32m" in output) == green


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_away_from_a_terminal_there_is_no_escape_sequence(tiny_bundle: Path) -> None:
    run = [*COMMAND, "generate", str(tiny_bundle), PROMPT, "--max-tokens", "12", "--stats"]
    done = subprocess.run(run, capture_output=True, check=True)
    assert b"\x1b[" not in done.stdout + done.stderr


def on_terminal(arguments: Sequence[str], no_color: str | None) -> str:
    """What a command writes to a terminal."""
    import pty

    screen, terminal = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "CI"}}
    env |= {"TERM": "xterm"} | ({"NO_COLOR": no_color} if no_color else {})
    with subprocess.Popen([*COMMAND, *arguments], stdout=terminal, stderr=terminal, env=env):
        os.close(terminal)
        output = b""
        while chunk := _read(screen):
            output += chunk
    os.close(screen)
    return output.decode()


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 4096)
    except OSError:  # the other end is closed
        return b""
