"""A checkpoint exported is the checkpoint: the graph's logits are those that transformers gives."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "golden"))
from cases import CASES
from gguf_writer import write_gguf

from specrt.export import build
from specrt.export.build import export
from specrt.export.flavour import CPU, NATIVE
from specrt.runtime.bundle import read_manifest
from specrt.runtime.errors import CheckError, SourceError
from specrt.runtime.session import Session

MODELS = Path(__file__).parent / "golden" / "models"
CLOSE = 1e-4  # float32 sums in another order than torch's, over logits of size about 1


def golden(name: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(MODELS / name / "golden.npz") as data:
        return data["tokens"], data["logits"]


def logits(folder: Path, tokens: np.ndarray) -> np.ndarray:
    model = read_manifest(folder).model
    graph = folder / "target" / "model.onnx"
    session = Session(graph, context=model.context, vocab=model.vocab, threads=1)
    return session.forward(tokens, last=len(tokens)).logits


def test_a_graph_of_chains_only_is_delivered_without_a_tree_check(tmp_path):
    manifest = export(MODELS / "llama", tmp_path / "b", flavour="cuda")
    assert {"chunks", "rows", "rollback"} <= manifest.checks.keys()
    assert "tree" not in manifest.checks


@pytest.mark.parametrize("name", CASES)
def test_a_folder_exports_to_the_logits_of_transformers(tmp_path, name):
    context = 64 if name == "phi3-longrope" else None
    export(MODELS / name, tmp_path / "b", weights="fp32", check=False, context=context)
    tokens, wanted = golden(name)
    assert np.abs(logits(tmp_path / "b", tokens) - wanted).max() <= CLOSE


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.gguf])
def test_a_gguf_file_exports_to_the_logits_of_transformers(tmp_path, name):
    context = 64 if name == "phi3-longrope" else None
    write_gguf(MODELS / name, tmp_path / "m.gguf")
    export(tmp_path / "m.gguf", tmp_path / "b", weights="fp32", check=False, context=context)
    tokens, wanted = golden(name)
    assert np.abs(logits(tmp_path / "b", tokens) - wanted).max() <= CLOSE


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantised_exports_are_checked_and_say_so(tmp_path, weights):
    manifest = export(MODELS / "llama", tmp_path / "b", weights=weights)
    assert manifest.weights == weights
    assert [manifest.checks[name]["rms"] for name in ("rows", "chunks", "rollback")] == [0, 0, 0]
    assert manifest.checks["quality"]["tokens"] > 0
    assert read_manifest(tmp_path / "b") == manifest


def test_a_draft_with_another_tokenizer_is_refused(tmp_path):
    with pytest.raises(SourceError, match=r"draft has another tokenizer: token .*must share"):
        export(MODELS / "llama", tmp_path / "b", drafts=[MODELS / "mistral"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "flavour", "formats"),
    [
        ("Q4_0", CPU, ["int4", "int8", "fp32"]),
        ("Q8_0", CPU, ["int8", "fp32"]),
        ("Q4_1", CPU, ["int8", "fp32"]),
        ("Q4_0", NATIVE, ["carried", "int8", "fp32"]),
        ("Q4_1", NATIVE, ["carried", "int8", "fp32"]),
        ("Q8_0", NATIVE, ["int8", "fp32"]),
    ],
)
def test_few_bits_are_tried_only_where_they_hold_the_checkpoints_values(
    tmp_path, kind, flavour, formats
):
    write_gguf(MODELS / "llama", tmp_path / "m.gguf", kind)
    kinds = build.matrix_types(build.open_source(tmp_path / "m.gguf", None))
    assert flavour.candidates(kinds) == formats


def test_a_tied_table_is_stored_once(tmp_path):
    manifest = export(MODELS / "llama-tied", tmp_path / "b", weights="fp32", check=False)
    table = manifest.model.vocab * manifest.model.hidden * 4
    layer = 2 * 96 * 96 + 2 * 96 * 32 + 3 * 96 * 96 + 2 * 96
    stored = 4 * (2 * layer + 96)
    weights = next(file for file in manifest.graphs if file.role == "weights")
    assert stored + table <= weights.size < stored + 2 * table


def test_a_bundle_is_replaced_as_a_whole(tmp_path):
    out = tmp_path / "b"
    export(MODELS / "llama", out, drafts=[MODELS / "llama"], weights="fp32", check=False)
    export(MODELS / "llama", out, weights="fp32", check=False)
    assert not (out / "drafters").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_failing_check_delivers_nothing_and_keeps_what_was_there(tmp_path, monkeypatch):
    out = tmp_path / "b"
    before = export(MODELS / "llama", out, weights="fp32", check=False)

    def fails(*args):
        raise CheckError("the graph fails its check 'rows'")

    monkeypatch.setattr(build, "check_graph", fails)
    with pytest.raises(CheckError):
        export(MODELS / "llama", out, weights="int8")
    assert read_manifest(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
