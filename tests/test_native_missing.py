"""What is said where the native kernels, or a machine for them, are not there."""

import json
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from tiny_graphs import MODELS, written

from specrt.cli import main
from specrt.export import flavour
from specrt.export.build import export
from specrt.export.flavour import CPU, NATIVE, find_flavour
from specrt.runtime import native, providers
from specrt.runtime.bundle import MANIFEST, read_manifest
from specrt.runtime.errors import BundleError, ProviderError, SourceError
from specrt.runtime.session import Session

LLAMA = MODELS / "llama"
built = pytest.mark.skipif(native.find() is None, reason="built without a C compiler")


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As installed without a C compiler."""
    for module in (native, flavour):
        monkeypatch.setattr(module, "find", lambda: None)
    native._library.cache_clear()
    yield
    native._library.cache_clear()


def test_a_native_bundle_without_the_library_says_what_to_do(no_library, tmp_path):
    export(LLAMA, tmp_path / "b", kernels="native", check=False)
    model = read_manifest(tmp_path / "b").model
    with pytest.raises(ProviderError, match=r"no native kernels.*or export with --kernels stock"):
        Session(tmp_path / "b/target/model.onnx", context=model.context, vocab=model.vocab)


def test_a_checked_native_export_without_the_library_ends_before_it_begins(no_library, tmp_path):
    with pytest.raises(ProviderError, match="no native kernels"):
        export(tmp_path / "not-even-there.gguf", tmp_path / "b", kernels="native")


def test_without_the_library_export_takes_stock_kernels_and_says_so(no_library, tmp_path, capsys):
    assert main(["export", str(LLAMA), str(tmp_path / "b"), "--weights", "int8"]) == 0
    assert read_manifest(tmp_path / "b").kernels == "stock"
    assert (
        "kernels    stock, since this installation has no native ones\n" in capsys.readouterr().out
    )


def test_inspect_shows_a_native_bundle_without_the_library(no_library, tmp_path, capsys):
    export(LLAMA, tmp_path / "b", kernels="native", check=False)
    assert main(["inspect", str(tmp_path / "b")]) == 0
    assert "kernels    native; this installation has no native kernels" in capsys.readouterr().out


@built
def test_inspect_names_the_instructions_in_use(tmp_path, capsys):
    assert main(["export", str(LLAMA), str(tmp_path / "b"), "--no-check"]) == 0
    said = f"kernels    native, {native.path()} instructions on this machine\n"
    assert said in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "b")]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "float16"),
        (["--weights", "fp32"], "float32"),
        (["--cache", "int8"], "int8"),
        (["--weights", "fp32", "--cache", "float16"], "float16"),
        (["--kernels", "stock"], "float32"),
    ],
)
def test_a_bundle_says_what_its_cache_is_made_of(options, said, tmp_path, capsys):
    assert main(["export", str(LLAMA), str(tmp_path / "b"), "--no-check", *options]) == 0
    assert f"cache      {said}\n" in capsys.readouterr().out
    assert read_manifest(tmp_path / "b").cache == said


@pytest.mark.parametrize("kernels", ["stock", "native"])
def test_the_kernels_asked_for_are_taken(kernels, tmp_path, capsys):
    command = ["export", str(LLAMA), str(tmp_path / "b"), "--no-check", "--json"]
    assert main([*command, "--kernels", kernels]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"] == kernels


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cuda", "native"), "flavour cuda has no kernels 'native'; choose stock"),
        (("cpu", "simd"), "flavour cpu has no kernels 'simd'; choose native, stock"),
        (
            ("cpu", "native", "w8a8"),
            "'w8a8' are not made for flavour cpu with native kernels; choo",
        ),
        (("cpu", "stock", "carried"), "'carried' are not made for flavour cpu with stock kernels"),
        (
            ("cpu", None, None, "int4"),
            "'int4' is not made for flavour cpu with native kernels; choo",
        ),
        (("cpu", "stock", None, "int8"), "flavour cpu with stock kernels; leave out --cache"),
        (("cuda", None, None, "int8"), "flavour cuda with stock kernels; leave out --cache"),
        (("cpu", None, "w8a8", "int8"), "weights 'w8a8' are not made for flavour cpu; choose"),
        (("tensorrt", None, "carried"), "'carried' are not made for flavour tensorrt; choose fp16"),
    ],
)
def test_kernels_and_weights_that_are_not_made_are_refused(arguments, message):
    with pytest.raises(SourceError, match=message):
        find_flavour(*arguments)


def test_a_finished_graph_has_the_kernels_it_has():
    with pytest.raises(SourceError, match="and --kernels"):
        export(Path(__file__).parent / "golden/optimum", "out", kernels="native")


def test_an_older_manifest_is_of_stock_kernels_and_an_unknown_kind_is_refused(tmp_path):
    export(LLAMA, tmp_path / "b", kernels="stock", check=False)
    path = tmp_path / "b" / MANIFEST
    held = json.loads(path.read_text())
    del held["kernels"]
    path.write_text(json.dumps(held))
    assert read_manifest(tmp_path / "b").kernels == "stock"
    path.write_text(json.dumps(held | {"kernels": "fpga"}))
    with pytest.raises(BundleError, match="kernels 'fpga' is unknown"):
        read_manifest(tmp_path / "b")


@built
def test_a_provider_that_is_no_cpu_is_refused_a_native_graph(tmp_path, monkeypatch):
    path = written(tmp_path, "llama", NATIVE).folder / "model.onnx"
    monkeypatch.setattr(providers, "require", lambda provider: None)
    with pytest.raises(ProviderError, match="native kernels, which run on the cpu and not on cuda"):
        providers.open_graph(path, "cuda")


# Which graphs need the library


@pytest.mark.parametrize(("made_for", "needed"), [(NATIVE, True), (CPU, False)])
def test_a_graph_needs_the_library_if_it_names_the_domain(made_for, needed, tmp_path):
    assert native.needed(written(tmp_path, "llama", made_for).folder / "model.onnx") == needed


def test_a_name_that_is_no_domain_needs_no_library(tmp_path):
    value = helper.make_tensor_value_info("specrt", TensorProto.FLOAT, [1])
    node = helper.make_node("Identity", ["specrt"], ["y"], name="\n\x06specrt")
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([node], "specrt", [value], [out])
    model = helper.make_model(graph, producer_name="specrt", doc_string="\n\x06specrt")
    onnx.save(model, tmp_path / "m.onnx")
    assert not native.needed(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    "damage", [b"\xff" * 20, b"\x42", b"\x42\xff\xff\xff\xff\x7f", b"not onnx"]
)
def test_a_file_that_is_no_graph_needs_no_library(damage, tmp_path):
    (tmp_path / "m.onnx").write_bytes(damage)
    assert not native.needed(tmp_path / "m.onnx")
