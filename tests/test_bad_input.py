"""Every command on every kind of bad input: one clear line, exit code 2, and nothing left behind.

What exactly is refused is tested beside each reader; here, that the command line passes it on.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import COMMAND, refused
from gguf_writer import write_gguf
from test_foreign import FIXTURE, see_the_future
from variants import LLAMA, Tensors, variant

from specrt.export.build import export
from specrt.runtime.bundle import MANIFEST

PROMPT = "the model the model"
MISTRAL = LLAMA.parent / "mistral"  # of another tokenizer
READERS = {  # commands that read a bundle, and what they need besides
    "inspect": [],
    "generate": [PROMPT],
    "chat": [],
    "bench": ["--max-tokens", "2", "--repeat", "1"],
}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def cut(path: Path) -> None:
    """Leave out the second half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def spoil(path: Path) -> None:
    """Change bytes in the middle of a file, and not its size."""
    raw = bytearray(path.read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + 8] = bytes(255 - byte for byte in raw[middle : middle + 8])
    path.write_bytes(raw)


# Checkpoints


def gguf(folder: Path) -> Path:
    write_gguf(LLAMA, folder / "model.gguf")
    return folder / "model.gguf"


def gguf_cut(folder: Path) -> Path:
    cut(gguf(folder))
    return folder / "model.gguf"


def gguf_of_absurd_size(folder: Path) -> Path:
    raw = bytearray(gguf(folder).read_bytes())
    raw[8:16] = (1 << 60).to_bytes(8, "little")  # the number of tensors
    (folder / "model.gguf").write_bytes(raw)
    return folder / "model.gguf"


def gguf_of_unknown_type(folder: Path) -> Path:
    raw = bytearray(gguf(folder).read_bytes())
    name = b"token_embd.weight"
    place = raw.index(name) + len(name) + 4 + 2 * 8  # after the number of dimensions and two sizes
    raw[place : place + 4] = (999).to_bytes(4, "little")
    (folder / "model.gguf").write_bytes(raw)
    return folder / "model.gguf"


def safetensors_cut(folder: Path) -> Path:
    cut(variant(folder / "model") / "model.safetensors")
    return folder / "model"


def tensor_missing(folder: Path) -> Path:
    def change(tensors: Tensors) -> None:
        del tensors["model.norm.weight"]

    return variant(folder / "model", change)


def wrong_shape(folder: Path) -> Path:
    return variant(folder / "model", config={"intermediate_size": 100})


def not_a_number(folder: Path) -> Path:
    return variant(folder / "model", lambda tensors: tensors["model.norm.weight"].fill(np.nan))


def infinite_matrix(folder: Path) -> Path:
    def change(tensors: Tensors) -> None:
        tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = np.inf

    return variant(folder / "model", change)


def unknown_architecture(folder: Path) -> Path:
    return variant(folder / "model", config={"model_type": "abacus"})


def broken_config(folder: Path) -> Path:
    cut(variant(folder / "model") / "config.json")
    return folder / "model"


def tokenizer_of_another_model(folder: Path) -> Path:
    path = variant(folder / "model") / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"]["t"] = 5000
    path.write_text(json.dumps(tokenizer))
    return folder / "model"


def tokenizer_cut(folder: Path) -> Path:
    cut(variant(folder / "model") / "tokenizer.json")
    return folder / "model"


def onnx_cut(folder: Path) -> Path:
    shutil.copytree(FIXTURE, folder / "model")
    cut(folder / "model" / "model.onnx")
    return folder / "model"


def no_checkpoint(folder: Path) -> Path:
    (folder / "model").mkdir()
    return folder / "model"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (gguf_cut, "model.gguf is not a valid GGUF file"),
        (gguf_of_absurd_size, "cannot fit in"),
        (gguf_of_unknown_type, "has the unknown type number 999"),
        (safetensors_cut, "model.safetensors"),
        (tensor_missing, "tensor model.norm.weight missing; the checkpoint is not complete"),
        (wrong_shape, "mlp.gate_proj.weight has shape 96 x 64, its configuration says 100 x 64"),
        (not_a_number, "tensor model.norm.weight holds NaN or infinite weights"),
        (infinite_matrix, "down_proj.weight holds NaN or infinite weights"),
        (unknown_architecture, "abacus"),
        (broken_config, "config.json is not a JSON object"),
        (tokenizer_of_another_model, "tokenizer.json is of another model: it gives id 5000"),
        (tokenizer_cut, "tokenizer.json is not a tokenizer"),
        (onnx_cut, "model.onnx is not an ONNX model, or is cut short"),
        (no_checkpoint, "has no config.json"),
        (lambda folder: folder / "none", "no such file or folder"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--no-check"]])
def test_export_refuses_a_bad_checkpoint_and_leaves_nothing(
    specrt_run: Any,
    tmp_path: Path,
    make: Callable[[Path], Path],
    message: str,
    options: Sequence[str],
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "in").mkdir()
    done = specrt_run("export", make(tmp_path / "in"), tmp_path / "out" / "b", *options)
    last = done.err.splitlines()[-1]  # after a line for each stage that had begun
    assert message in last
    assert last.startswith("specrt: ")
    assert (done.code, done.out, names(tmp_path / "out")) == (2, "", [])


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A bundle of one's own, to be spoilt."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def change_manifest(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    held = json.loads((bundle / MANIFEST).read_text())
    change(held)
    (bundle / MANIFEST).write_text(json.dumps(held))


def half_written(bundle: Path) -> None:
    shutil.rmtree(bundle / "target")


def interrupted(bundle: Path) -> None:
    (bundle / MANIFEST).unlink()


def leaving(bundle: Path) -> None:
    change_manifest(bundle, lambda held: held["tokenizer"].update(path="../tokenizer.json"))


def linked_out(bundle: Path) -> None:
    shutil.move(bundle / "tokenizer.json", bundle.parent / "outside")
    (bundle / "tokenizer.json").symlink_to("../outside")


@pytest.mark.parametrize(
    ("spoil_it", "message"),
    [
        (half_written, "target/model.onnx is missing; export again"),
        (interrupted, "is no bundle (specrt.json is missing)"),
        (leaving, "not a plain relative path inside the bundle"),
        (linked_out, "tokenizer.json is a link out of the bundle"),
        (lambda b: cut(b / MANIFEST), "specrt.json: "),
        (lambda b: (b / MANIFEST).write_bytes(b"\xff\xfe"), "specrt.json: "),
        (lambda b: change_manifest(b, lambda m: m.update(format=9)), "format 9 is newer than 1"),
        (lambda b: cut(b / "target" / "model.onnx"), "bytes, expected"),
        (lambda b: cut(b / "target" / "model.onnx.data"), "bytes, expected"),
        (lambda b: cut(b / "tokenizer.json"), "bytes, expected"),
    ],
)
@pytest.mark.parametrize("command", READERS)
def test_a_bad_bundle_is_refused_by_every_command(
    specrt_run: Any,
    bundle: Path,
    command: str,
    spoil_it: Callable[[Path], None],
    message: str,
) -> None:
    spoil_it(bundle)
    refused(specrt_run(command, bundle, *READERS[command], stdin=b"hello\n"), message)


@pytest.mark.parametrize("file", ["target/model.onnx", "target/model.onnx.data", "tokenizer.json"])
@pytest.mark.parametrize("command", ["generate", "chat", "bench"])
def test_a_file_changed_in_place_is_refused_when_it_is_to_be_run(
    specrt_run: Any, bundle: Path, command: str, file: str
) -> None:
    spoil(bundle / file)
    refused(specrt_run(command, bundle, *READERS[command], stdin=b"hello\n"), "sha256 is")


def test_a_file_changed_in_place_is_found_by_inspect_on_request(
    specrt_run: Any, bundle: Path
) -> None:
    spoil(bundle / "target" / "model.onnx.data")
    assert specrt_run("inspect", bundle).code == 0
    refused(specrt_run("inspect", bundle, "--hashes"), "sha256 is")


def of_other_bytes(bundle: Path, file: str, raw: bytes) -> None:
    """Other content that the manifest vouches for: a bundle made by somebody else."""
    import hashlib

    (bundle / file).write_bytes(raw)
    entry = {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}

    def change(held: dict[str, Any]) -> None:
        for one in (*held["graphs"], held["tokenizer"]):
            if one["path"] == file:
                one.update(entry)

    change_manifest(bundle, change)


@pytest.mark.parametrize("command", ["generate", "chat", "bench"])
@pytest.mark.parametrize(
    ("file", "raw", "message"),
    [
        ("target/model.onnx", b"not a graph", "model.onnx cannot be loaded"),
        ("target/model.onnx.data", b"short", "model.onnx cannot be loaded"),
        ("tokenizer.json", b"{}", "tokenizer.json is not a tokenizer"),
        ("tokenizer.json", b"\xff", "tokenizer.json is not a tokenizer"),
    ],
)
def test_a_file_that_is_none_of_its_kind_is_one_line(
    specrt_run: Any, bundle: Path, command: str, file: str, raw: bytes, message: str
) -> None:
    of_other_bytes(bundle, file, raw)
    refused(specrt_run(command, bundle, *READERS[command], stdin=b"hello\n"), message)


@pytest.mark.parametrize("command", ["generate", "chat", "bench"])
def test_the_tokenizer_of_another_model_is_one_line(
    specrt_run: Any, bundle: Path, command: str
) -> None:
    tokenizer = json.loads((bundle / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["t"] = 5000
    of_other_bytes(bundle, "tokenizer.json", json.dumps(tokenizer).encode())
    options = READERS[command]
    done = specrt_run(command, bundle, *options, stdin=b"the model\n")
    assert (done.code, done.out) == (2, "")
    assert "the model has tokens 0 to 271" in done.err.splitlines()[-1]


# Prompts and options


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "nan"], "temperature must be"),
        (["--top-k", "-1"], "top_k must be"),
        (["--top-p", "nan"], "top_p must be"),
        (["--min-p", "2"], "min_p must be"),
        (["--max-tokens", "-1"], "max_tokens must be"),
        (["--seed", "-1"], "seed must be"),
        (["--drafter", "oracle"], "no drafter 'oracle'"),
        (["--drafter", ""], "no drafter ''"),
        (["--stop", ""], "stop strings are"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_before_anything_is_written(
    specrt_run: Any, tiny_bundle: Path, command: str, options: list[str], message: str
) -> None:
    refused(specrt_run(command, tiny_bundle, *READERS[command], *options), message)


@pytest.mark.parametrize("command", ["demo", "pull", "export", *READERS])
def test_every_command_refuses_an_unknown_option(specrt_run: Any, command: str) -> None:
    needed = {"pull": ["smollm2"], "export": ["x", "y"], "demo": []}
    arguments = needed.get(command, ["x", *READERS.get(command, [])])
    refused(specrt_run(command, *arguments, "--faster"), "unrecognized arguments: --faster")


def test_log_probabilities_without_a_place_are_refused(specrt_run: Any, tiny_bundle: Path) -> None:
    refused(specrt_run("generate", tiny_bundle, PROMPT, "--logprobs", "2"), "add --json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--drafters", ","], "give one name or more"),
        (["--suite", ""], "give one name or more"),
        (["--gate", "speedup>=1.2.3"], "is not of the form speedup>=1.3"),
        (["--gate", "speedup>=1", "--drafters", "none"], "--gate is for drafters"),
        (["--repeat", "0"], "repeat is 0"),
        (["--max-tokens", "0"], "max_tokens is 0"),
        (["--suite", "fables"], "suite 'fables' is unknown"),
        (["--suite", "none.jsonl"], "No such file"),
        (["--json", "no/such/folder/result.json"], "No such file or directory"),
    ],
)
def test_bench_refuses_before_it_measures(
    specrt_run: Any, tiny_bundle: Path, options: list[str], message: str
) -> None:
    refused(specrt_run("bench", tiny_bundle, *options), message)


def test_a_context_too_short_for_the_checks_is_refused(specrt_run: Any, tmp_path: Path) -> None:
    done = specrt_run("export", LLAMA, tmp_path / "b", "--context", "10")
    assert done.code == 2
    assert "a text of 10 tokens is too short for the checks, they need 32" in done.err
    assert names(tmp_path) == []


def test_a_draft_of_another_tokenizer_is_refused(specrt_run: Any, tmp_path: Path) -> None:
    refused(specrt_run("export", LLAMA, tmp_path / "b", "--draft", MISTRAL), "another tokenizer")
    assert names(tmp_path) == []


def test_a_bundle_is_no_checkpoint(specrt_run: Any, tiny_bundle: Path, tmp_path: Path) -> None:
    refused(specrt_run("export", tiny_bundle, tmp_path / "b"), "is a bundle, not a checkpoint")


def test_a_name_that_cannot_be_printed_is_refused_at_once(specrt_run: Any, tmp_path: Path) -> None:
    refused(specrt_run("export", LLAMA, tmp_path / "a\nb"), r"'a\nb' is no name for a bundle")


# Checks that do not hold


def test_a_failing_check_is_exit_code_1_and_delivers_nothing(
    specrt_run: Any, tmp_path: Path
) -> None:
    """A graph whose rows see those after them, as exporters make that trace a single row."""
    shutil.copytree(FIXTURE, tmp_path / "in")
    model = onnx.load(tmp_path / "in" / "model.onnx")
    see_the_future(model)
    onnx.save(model, tmp_path / "in" / "model.onnx")
    done = specrt_run("export", tmp_path / "in", tmp_path / "out" / "b")
    last = done.err.splitlines()[-1]
    assert (done.code, done.out) == (1, "")
    assert "model.onnx: the graph fails its check 'chunks'" in last
    assert names(tmp_path / "out") == []
    assert specrt_run("export", tmp_path / "in", tmp_path / "out" / "b", "--no-check").code == 0


@pytest.mark.filterwarnings("ignore:.* encountered in matmul:RuntimeWarning")
def test_weights_too_large_for_a_logit_fail_a_check(specrt_run: Any, tmp_path: Path) -> None:
    """Finite in the checkpoint, and not after the last product: no graph can be right."""

    def change(tensors: Tensors) -> None:
        tensors["lm_head.weight"][7] *= np.float32(3e38)

    source = variant(tmp_path / "in", change)
    done = specrt_run("export", source, tmp_path / "out" / "b", "--weights", "fp32")
    assert (done.code, done.out, names(tmp_path / "out")) == (1, "", [])
    assert "the graph fails its check 'chunks': logits differ by nan" in done.err.splitlines()[-1]


# Disks


def limited(arguments: Sequence[str | Path], size: int) -> subprocess.CompletedProcess[str]:
    """A command in a process that may write files of so many bytes."""
    code = """
        import resource, sys
        from specrt.cli import main
        size = int(sys.argv.pop(1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        sys.exit(main())
    """
    run = [sys.executable, "-c", textwrap.dedent(code), str(size), *map(str, arguments)]
    return subprocess.run(run, capture_output=True, text=True, check=False)


def test_export_to_a_full_disk_is_one_line_and_leaves_nothing(
    specrt_run: Any, small_disk: Path
) -> None:
    done = specrt_run("export", LLAMA, small_disk / "b")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1] == (
        f"specrt: {small_disk / 'b'} cannot be written: No space left on device; "
        "free space or choose another folder"
    )
    assert names(small_disk) == []


def test_export_of_a_foreign_graph_to_a_full_disk_leaves_nothing(
    specrt_run: Any, small_disk: Path
) -> None:
    done = specrt_run("export", FIXTURE, small_disk / "b")
    assert done.code == 2
    assert "cannot be written: No space left on device" in done.err.splitlines()[-1]
    assert names(small_disk) == []


@pytest.mark.skipif(os.name != "posix", reason="needs RLIMIT_FSIZE")
def test_export_beyond_a_size_limit_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    done = limited(["export", LLAMA, tmp_path / "b"], 20_000)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be written: File too large" in done.stderr.splitlines()[-1]
    assert names(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="needs RLIMIT_FSIZE")
@pytest.mark.parametrize("command", ["generate", "bench"])
def test_a_result_that_does_not_fit_leaves_what_was_there(
    tiny_bundle: Path, tmp_path: Path, command: str
) -> None:
    (tmp_path / "result").write_text("mine")
    option = {"generate": "--trace", "bench": "--json"}[command]
    suite = tmp_path / "suite.jsonl"
    suite.write_text('{"id": "a", "kind": "chat", "prompt": "the model"}\n')
    more = [*READERS[command], *(["--suite", suite] if command == "bench" else [])]
    done = limited([command, tiny_bundle, *more, option, tmp_path / "result"], 100)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "specrt: File too large"
    assert (tmp_path / "result").read_text() == "mine"
    assert names(tmp_path) == ["result", "suite.jsonl"]


@pytest.mark.parametrize("place", ["file/b", "taken", "mixed"])
def test_export_to_a_place_it_cannot_have_is_one_line(
    specrt_run: Any, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "taken").write_text("mine")
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "notes").write_text("mine")
    before = names(tmp_path)
    refused(specrt_run("export", LLAMA, tmp_path / place), str(tmp_path / place))
    assert names(tmp_path) == before
    assert (tmp_path / "mixed" / "notes").read_text() == "mine"


def test_a_refused_request_leaves_an_old_trace_as_it_was(
    specrt_run: Any, tiny_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "trace").write_text("mine")
    run = ("generate", tiny_bundle, "word " * 500, "--trace", tmp_path / "trace")
    refused(specrt_run(*run), "the context 256")
    assert (tmp_path / "trace").read_text() == "mine"
    assert names(tmp_path) == ["trace"]


def test_a_trace_may_go_to_a_device(specrt_run: Any, tiny_bundle: Path) -> None:
    done = specrt_run("generate", tiny_bundle, PROMPT, "--trace", os.devnull, "--max-tokens", "2")
    assert done.code == 0
    assert not Path(os.devnull).is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", READERS)
def test_a_full_disk_behind_standard_output_is_one_line(tiny_bundle: Path, command: str) -> None:
    suite = ["--suite", "chat"] if command == "bench" else []
    more = ["--max-tokens", "2"] if command in ("generate", "chat") else []
    run = [*COMMAND, command, str(tiny_bundle), *READERS[command], *suite, *more]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            run, stdout=full, stderr=subprocess.PIPE, input="hi\n", text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "specrt: No space left on device"


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("inspect BUNDLE >&-", 0),
        ("inspect none 2>&-", 2),
        ("inspect none 2>/dev/full", 2),
        ("generate BUNDLE - <&-", 2),
        ("generate BUNDLE hi --max-tokens 2 >&- 2>&- <&-", 0),
        ("chat BUNDLE <&-", 0),
    ],
)
def test_closed_standard_streams_are_no_bug(tiny_bundle: Path, arguments: str, code: int) -> None:
    line = f"'{sys.executable}' -m specrt " + arguments.replace("BUNDLE", f"'{tiny_bundle}'")
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


# Interrupted


def test_export_interrupted_at_any_stage_leaves_nothing(tmp_path: Path) -> None:
    def interrupted_at(call: int) -> bool:
        left = call

        def progress(stage: str, done: int, total: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        try:
            export(LLAMA, tmp_path / "b", drafts=[LLAMA], weights="fp32", progress=progress)
        except KeyboardInterrupt:
            return True
        return False

    call = 1
    while interrupted_at(call):
        assert names(tmp_path) == [], f"after {call} calls"
        call += 4
    assert call > 30
    assert names(tmp_path) == ["b"]


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGHUP, 129)],
)
def test_a_signal_in_the_middle_of_export_leaves_nothing(
    tmp_path: Path, number: int, code: int
) -> None:
    code_of_child = """
        import signal, sys, time
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # have them ignored
        from contextlib import contextmanager
        import specrt.cli, specrt.console

        @contextmanager
        def slow():
            yield lambda stage, done, total: time.sleep(0.3)

        specrt.console.progress = slow
        sys.exit(specrt.cli.main())
    """
    run = [sys.executable, "-c", textwrap.dedent(code_of_child), "export", str(LLAMA)]
    with subprocess.Popen([*run, str(tmp_path / "b")], stderr=subprocess.PIPE) as process:
        while not names(tmp_path):
            time.sleep(0.01)
        process.send_signal(number)
        error = process.communicate()[1]
    assert (process.returncode, error.strip(), names(tmp_path)) == (code, b"", [])
