"""Which provider runs a graph, what a missing one is called, what TensorRT is told."""

import onnx
import onnxruntime as ort
import pytest
from tiny_graphs import opened, written

from specrt.export.flavour import CUDA
from specrt.runtime import providers
from specrt.runtime.bundle import MANIFEST
from specrt.runtime.errors import ProviderError
from specrt.runtime.profiles import DYNAMIC, PROFILES, engine_folder, tensorrt_options
from specrt.runtime.providers import CHAINS, IDENTITY, PROVIDERS, choose, missing, require
from specrt.runtime.session import Session


@pytest.fixture
def machine(monkeypatch):
    """Pretends that some providers are there and the others are not, each for its reason."""

    def pretend(**lacks: str) -> None:
        monkeypatch.setattr(providers, "missing", lambda name: lacks.get(name, ""))

    return pretend


def test_the_probe_is_a_graph_of_one_identity():
    model = onnx.load_from_string(IDENTITY)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Identity"]


def test_the_cpu_is_always_there():
    assert missing("cpu") == ""
    assert choose("auto", "cpu").provider == "cpu"


def test_an_unknown_provider_is_refused_with_what_is_known():
    with pytest.raises(ProviderError, match="'rocm' is unknown; choose auto, cpu, cuda, tensorrt"):
        choose("rocm", "cpu")


def test_auto_takes_what_the_flavour_is_made_for(machine):
    machine()
    assert [choose("auto", flavour).provider for flavour in CHAINS] == ["cpu", "cuda", "tensorrt"]


def test_auto_falls_back_to_the_cpu_and_says_why(machine):
    machine(cuda="no driver", tensorrt="no libnvinfer.so.10")
    chosen = choose("auto", "tensorrt")
    assert chosen.provider == "cpu"
    assert chosen.reason == (
        "tensorrt is not there (no libnvinfer.so.10); cuda is not there (no driver)"
    )


def test_a_tensorrt_bundle_runs_on_cuda_where_tensorrt_lacks(machine):
    machine(tensorrt="no libnvinfer.so.10")
    assert choose("auto", "tensorrt").provider == "cuda"


@pytest.mark.parametrize("flavour", ["cpu", "cuda", "tensorrt", "optimum"])
def test_the_cpu_is_taken_when_asked_for_whatever_the_flavour(flavour, machine):
    machine()
    assert choose("cpu", flavour).provider == "cpu"


def test_a_provider_that_is_asked_for_is_never_replaced(machine):
    machine(cuda="no driver")
    with pytest.raises(ProviderError) as caught:
        choose("cuda", "cuda")
    assert str(caught.value) == (
        "provider cuda is not there: no driver; install onnxruntime-gpu instead of onnxruntime, "
        "an NVIDIA driver, CUDA and cuDNN"
    )


def test_what_onnxruntime_lists_is_not_believed(monkeypatch):
    """The GPU package lists CUDA on any machine, and starts on the CPU without a word."""
    missing.cache_clear()
    monkeypatch.setattr(ort, "get_available_providers", lambda: [PROVIDERS["cuda"].name])
    monkeypatch.setattr(ort, "preload_dlls", lambda: print("noise"), raising=False)
    monkeypatch.setattr(ort, "InferenceSession", lambda *_, **__: OnTheCpu())
    assert missing("cuda") == "onnxruntime cannot start it"
    missing.cache_clear()


class OnTheCpu:
    def get_providers(self):
        return [PROVIDERS["cpu"].name]


def test_the_loader_of_cuda_prints_nothing(monkeypatch, capsys):
    test_what_onnxruntime_lists_is_not_believed(monkeypatch)
    assert capsys.readouterr().out == ""


def test_a_graph_that_starts_elsewhere_than_asked_is_refused(machine, monkeypatch, tmp_path):
    path = written(tmp_path, "llama").folder / "model.onnx"
    machine()
    monkeypatch.setattr(ort, "InferenceSession", lambda *_, **__: OnTheCpu())
    with pytest.raises(ProviderError, match="could only start CPUExecutionProvider; install"):
        Session(path, context=8, vocab=8, provider="cuda")


@pytest.mark.skipif(not missing("cuda"), reason="this machine has CUDA")
def test_a_session_on_a_missing_provider_says_what_is_missing(tmp_path):
    path = written(tmp_path, "llama", CUDA).folder / "model.onnx"
    with pytest.raises(ProviderError, match="provider cuda is not there: ") as caught:
        Session(path, context=8, vocab=8, provider="cuda")
    assert "\n" not in str(caught.value)
    with pytest.raises(ProviderError):
        require("cuda")


def test_a_session_says_which_providers_it_runs_on(tmp_path):
    graph = written(tmp_path, "llama", CUDA)
    assert opened(graph.folder, graph.config).providers == ["CPUExecutionProvider"]


# What TensorRT is told


def profiles(options, bound):
    """Per profile: the shape of each input."""
    entries = [item.split(":") for item in options[f"trt_profile_{bound}_shapes"].split(",")]
    size = len(DYNAMIC)
    return [dict(entries[i : i + size]) for i in range(0, len(entries), size)]


def test_there_is_a_profile_for_prefill_for_one_row_and_for_a_block(tmp_path):
    options = tensorrt_options(tmp_path / "model.onnx", 4096)
    found = [
        tuple(int(profiles(options, bound)[i]["input_ids"].split("x")[1]) for bound in bounds)
        for i, bounds in enumerate([("min", "opt", "max")] * len(PROFILES))
    ]
    assert found == [(1, 512, 512), (1, 1, 1), (2, 6, 65)]


def test_the_first_profile_covers_every_call():
    first = PROFILES[0]
    assert all(first.least <= rows.least and rows.most <= first.most for rows in PROFILES)


def test_a_profile_gives_every_input_whose_size_goes_with_the_rows(tmp_path):
    options = tensorrt_options(tmp_path / "model.onnx", 4096)
    assert profiles(options, "max")[2] == {
        "input_ids": "1x65",
        "position_ids": "1x65",
        "attention_bias": "1x1x65x4096",
        "num_logits": "65",
    }


def test_no_profile_is_longer_than_the_context(tmp_path):
    options = tensorrt_options(tmp_path / "model.onnx", 32)
    assert [shapes["input_ids"] for shapes in profiles(options, "max")] == ["1x32", "1x1", "1x32"]


def test_engines_are_kept_in_the_bundles_profile_by_graph(tmp_path):
    (tmp_path / MANIFEST).touch()
    draft = tmp_path / "drafters" / "draft" / "model.onnx"
    assert engine_folder(draft) == tmp_path / "profile" / "tensorrt" / "drafters" / "draft"
    options = tensorrt_options(tmp_path / "target" / "model.onnx", 64)
    assert options["trt_engine_cache_path"] == str(tmp_path / "profile/tensorrt/target")


def test_a_graph_outside_a_bundle_has_no_engine_folder(tmp_path):
    assert engine_folder(tmp_path / "model.onnx") is None
    assert "trt_engine_cache_enable" not in tensorrt_options(tmp_path / "model.onnx", 64)
