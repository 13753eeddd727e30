"""An export that is measured: a real process, and what is kept of it."""

import json
import sys
from pathlib import Path

import pytest
from conftest import TINY

from specrt.bench.exports import main, measured
from specrt.runtime.bundle import read_manifest


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A document and its bundle, of a tiny model whose draft is the same model."""
    folder = tmp_path_factory.mktemp("exports")
    result, out = folder / "export-tiny.json", folder / "tiny"
    assert main([str(result), str(TINY), str(out), "--draft", str(TINY), "--weights", "int8"]) == 0
    return result, out


def test_an_exports_quality_is_the_manifests(exported: tuple[Path, Path]) -> None:
    result, out = exported
    made, manifest = json.loads(result.read_text()), read_manifest(out)
    quality = manifest.checks["quality"]
    assert (made["kl"], made["agreement"]) == (quality["kl"], quality["agreement"])
    assert (made["weights"], made["default_weights"]) == ("int8", False)
    assert made["drafts"] == [manifest.drafters[0].source.name]


def test_an_export_keeps_its_time_memory_and_circumstances(exported: tuple[Path, Path]) -> None:
    made = json.loads(exported[0].read_text())
    assert made["seconds"] > 0.1  # a Python that starts
    assert made["peak_rss_mb"] > 20
    assert made["environment"]["onnxruntime"]
    assert made["command"] == f"specrt export {TINY} {exported[1]} --draft {TINY} --weights int8"


def test_an_export_that_fails_leaves_what_was_there(
    exported: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    result, out = exported
    before = result.read_text(), (out / "specrt.json").read_text()
    assert main([str(result), str(out / "no-such.gguf"), str(out)]) == 2
    assert (result.read_text(), (out / "specrt.json").read_text()) == before
    assert "no-such.gguf" in capfd.readouterr().err


def test_a_process_is_measured_to_its_end() -> None:
    spent = measured(
        [sys.executable, "-c", "x = bytearray(b'1') * 700_000_000; raise SystemExit(3)"]
    )
    assert spent.code == 3
    assert 700 < spent.peak_rss_mb < 2000  # it begins with what this process holds


def test_wrong_use_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["result.json"]) == 2
    assert capsys.readouterr().err.startswith("usage: ")
