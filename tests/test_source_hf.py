"""Hugging Face folders as checkpoints: what is read, and what is refused in which words."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_writer import read_tensors
from golden.cases import CASES
from safetensors.numpy import load_file, save_file

from specrt.export import hub
from specrt.export.source import open_draft, open_source
from specrt.export.source_hf import FolderCheckpoint
from specrt.runtime.errors import SourceError

MODELS = Path(__file__).parent / "golden" / "models"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a small recorded model, to spoil."""
    return Path(shutil.copytree(MODELS / "llama-small", tmp_path / "small"))


def change(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Edit a JSON file in place."""
    held = json.loads(path.read_text(encoding="utf-8"))
    edit(held)
    path.write_text(json.dumps(held), encoding="utf-8")


def change_tensors(folder: Path, edit: Callable[[dict[str, np.ndarray]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def refusal(folder: Path) -> str:
    with pytest.raises(SourceError) as caught:
        open_source(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_tensor_of_every_recorded_model_reads_as_it_was_stored(name):
    checkpoint, held = open_source(MODELS / name), read_tensors(MODELS / name)
    ours = [tensor for tensor in checkpoint.names if tensor.startswith(("model.", "lm_head."))]
    assert len(ours) >= 10
    for tensor in map(checkpoint.tensor, ours):
        stored = next(k for k in held if k in (tensor.name, f"language_model.{tensor.name}"))
        assert np.array_equal(tensor.float32(), held[stored])


def test_a_row_range_is_those_rows(folder):
    tensor = open_source(folder).tensor("model.embed_tokens.weight")
    assert np.array_equal(tensor.float32(3, 7), tensor.float32()[3:7])


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_tensors_of_a_wrapped_text_model_get_their_usual_names(prefix, folder):
    def wrap(tensors: dict[str, np.ndarray]) -> None:
        for name in list(tensors):
            tensors[prefix + name.removeprefix("model.")] = tensors.pop(name)

    plain = open_source(folder).names
    change_tensors(folder, wrap)
    assert open_source(folder).names == plain


def test_a_stored_head_is_left_out_where_the_model_ties_it(folder):
    change_tensors(folder, lambda t: t.update({"lm_head.weight": np.ones((2, 2), np.float16)}))
    assert "lm_head.weight" not in open_source(folder).names


def test_all_stop_tokens_of_the_generation_settings_are_known(folder):
    change(folder / "generation_config.json", lambda c: c.update(eos_token_id=[2, 1, 2, 10**9]))
    assert open_source(folder).eos_ids == (2, 1)


def test_stop_tokens_come_from_the_configuration_where_there_are_no_generation_settings(folder):
    (folder / "generation_config.json").unlink()
    assert open_source(folder).eos_ids == (1, 2)
    assert open_source(folder).bos_id == 0


def test_sampling_defaults_count_only_where_the_model_samples(folder):
    given = {"temperature": 0.6, "top_k": 20, "top_p": None}
    change(folder / "generation_config.json", lambda c: c.update(given, do_sample=True))
    assert open_source(folder).generation == {"temperature": 0.6, "top_k": 20}
    change(folder / "generation_config.json", lambda c: c.update(do_sample=False))
    assert open_source(folder).generation == {}


def test_the_template_file_goes_before_the_tokenizers_settings(folder):
    change(folder / "tokenizer_config.json", lambda c: c.update(chat_template="old"))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    assert open_source(folder).chat_template == "old"
    (folder / "chat_template.jinja").write_text("new")
    assert open_source(folder).chat_template == "new"


def test_of_several_templates_the_default_is_taken(folder):
    both = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    change(folder / "tokenizer_config.json", lambda c: c.update(chat_template=both))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    assert open_source(folder).chat_template == "d"


def test_the_origin_names_folder_weights_and_licence(folder):
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\nlicense: other\n")
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    expected = {"kind": "huggingface", "name": "small", "sha256": digest, "licence": "mit"}
    assert open_source(folder).origin == expected


def test_the_tokenizer_is_the_folders_own(folder):
    assert open_source(folder).tokenizer().get_vocab_size() > 200


# Refusals


def test_a_folder_without_a_configuration_is_refused(tmp_path):
    assert "has no config.json; give a Hugging Face model folder" in refusal(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe{}", b"[" * 100_000])
def test_a_configuration_that_is_not_a_json_object_is_refused(content, folder):
    (folder / "config.json").write_bytes(content)
    assert re.search(r"config\.json is not (a JSON object|UTF-8)", refusal(folder))


def test_a_configuration_we_do_not_know_is_refused_with_its_place(folder):
    change(folder / "config.json", lambda c: c.update(model_type="bloom"))
    assert refusal(folder).startswith("small/config.json: architecture 'bloom' is not supported;")


def test_quantised_weights_are_refused_by_their_method(folder):
    settings = {"quant_method": "awq", "bits": 4}
    change(folder / "config.json", lambda c: c.update(quantization_config=settings))
    assert "quantised by 'awq', which is not supported; give its F32" in refusal(folder)


def test_pickled_weights_are_refused_with_what_to_do(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    message = refusal(folder)
    assert "only pickled weights (pytorch_model.bin), which can run code" in message
    assert "convert them to safetensors" in message


def test_a_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    assert refusal(folder) == "small has no safetensors files"


def test_a_missing_tensor_is_named(folder):
    change_tensors(folder, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    missing = "tensor model.layers.1.mlp.up_proj.weight missing; the checkpoint is not complete"
    assert refusal(folder) == f"small: {missing}"


def test_a_wrong_shape_is_refused_with_both(folder):
    change(folder / "config.json", lambda c: c.update(intermediate_size=64))
    message = "has shape 32 x 32, its configuration says 64 x 32"
    assert refusal(folder) == f"small: tensor model.layers.0.mlp.gate_proj.weight {message}"


def test_an_integer_weight_is_refused_with_what_is_known(folder):
    name = "model.layers.0.mlp.up_proj.weight"
    change_tensors(folder, lambda t: t.update({name: t[name].astype(np.int8)}))
    assert f"tensor {name} has type I8, which is not supported; supported: F32, F16" in refusal(
        folder
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused_when_read(bad, folder):
    name = "model.layers.0.mlp.up_proj.weight"

    def spoil(tensors: dict[str, np.ndarray]) -> None:
        tensors[name] = tensors[name].copy()
        tensors[name][3, 4] = bad

    change_tensors(folder, spoil)
    with pytest.raises(SourceError, match=f"tensor {name} holds NaN or infinite"):
        open_source(folder).tensor(name).float32()


@pytest.mark.parametrize(("asked", "context"), [(None, 256), (100, 100), (256, 256), (999, 256)])
def test_a_draft_keeps_its_own_limit_where_the_text_may_be_longer(folder, asked, context):
    assert open_draft(folder, asked).config.context == context


def test_a_name_that_is_no_tensor_is_refused(folder):
    with pytest.raises(SourceError, match=r"small has no tensor model\.nothing"):
        open_source(folder).tensor("model.nothing")


@pytest.mark.parametrize("share", [0, 0.0001, 0.01, 0.5, 0.999])
def test_a_truncated_weight_file_is_refused(share, folder):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert "model.safetensors is not a valid safetensors file" in refusal(folder)


def header(**entry: Any) -> bytes:
    text = json.dumps({"model.norm.weight": entry}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(64)


@pytest.mark.parametrize(
    "content",
    [
        (1 << 60).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
        header(dtype="F32", shape=[16], data_offsets=[0, 128]),
        header(dtype="F32", shape=[16], data_offsets=[64, 0]),
        header(dtype="F32", shape=[16], data_offsets=[-64, 0]),
        header(dtype="F32", shape=[16], data_offsets=["0", "64"]),
        header(dtype="F32", shape=[8], data_offsets=[0, 64]),
        header(dtype="F32", shape=[1 << 62, 1 << 62], data_offsets=[0, 64]),
        header(dtype="F32", shape=[-16], data_offsets=[0, 64]),
        header(dtype="F32", shape="16", data_offsets=[0, 64]),
        header(dtype=4, shape=[16], data_offsets=[0, 64]),
        header(),
    ],
)
def test_a_weight_file_that_contradicts_itself_is_refused(content, folder):
    (folder / "model.safetensors").write_bytes(content)
    assert "model.safetensors is not a valid safetensors file" in refusal(folder)


# The index of several weight files


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODELS / "llama", tmp_path / "sharded"))


def test_several_weight_files_are_one_model(sharded):
    checkpoint = open_source(sharded)
    assert isinstance(checkpoint, FolderCheckpoint)
    assert len(checkpoint.files) == CASES["llama"].shards


def test_only_files_of_the_index_are_read(sharded):
    (sharded / "consolidated.safetensors").write_bytes(b"not one of the model's")
    assert open_source(sharded).names


def test_a_missing_weight_file_is_named(sharded):
    (sharded / "model-00002-of-00003.safetensors").unlink()
    assert "lacks model-00002-of-00003.safetensors, named by its index" in refusal(sharded)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", ""])
def test_an_index_that_leaves_the_folder_is_refused(name, sharded):
    index = sharded / "model.safetensors.index.json"
    change(index, lambda held: held["weight_map"].update({"model.norm.weight": name}))
    assert refusal(sharded).endswith(f"names {name!r}, outside the folder")


def test_an_index_without_a_map_is_refused(sharded):
    (sharded / "model.safetensors.index.json").write_text('{"weight_map": ["x"]}')
    assert refusal(sharded).endswith("has no weight_map of file names")


@pytest.mark.parametrize("content", ["{}", "nonsense"])
def test_a_tokenizer_that_is_none_is_refused(content, folder):
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(SourceError, match=r"tokenizer\.json is not a tokenizer"):
        open_source(folder).tokenizer()


def test_a_missing_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match=r"tokenizer\.json cannot be read: No such file"):
        open_source(folder).tokenizer()


# The hub


def test_a_hub_model_is_downloaded_without_code_or_pickles(folder, monkeypatch):
    asked: dict[str, Any] = {}

    def snapshot(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert open_source("someone/small").names
    assert asked["name"] == "someone/small"
    allowed = asked["allow_patterns"]
    assert [x for x in allowed if re.search(r"\.(py|bin|pt|pth|pkl)$|\*$", x)] == []


def test_an_unreachable_hub_is_said_in_one_line(monkeypatch):
    from huggingface_hub.errors import LocalEntryNotFoundError

    def snapshot(name: str, **options: Any) -> str:
        raise LocalEntryNotFoundError("many\nlines")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    with pytest.raises(SourceError, match="someone/small: no such folder here, and the hub cannot"):
        hub.download("someone/small")


def test_a_refusal_of_the_hub_is_said_in_one_line(monkeypatch):
    def snapshot(name: str, **options: Any) -> str:
        raise OSError("first\nsecond")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    with pytest.raises(SourceError, match=r"cannot be downloaded from the hub: first$"):
        hub.download("someone/small")
