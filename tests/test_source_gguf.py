"""GGUF files as checkpoints: the same decoder and weights as the folder they were written from."""

import hashlib
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_blocks import DRAWN, ENCODED
from gguf_writer import write_gguf
from golden.cases import CASES
from wide_llama import write_wide_llama

from specrt.export.source import open_source
from specrt.runtime.errors import SourceError

MODELS = Path(__file__).parent / "golden" / "models"
UINT8, ARRAY = 0, 9  # metadata value types
WRITTEN = sorted(name for name, case in CASES.items() if case.gguf and "multi" not in name)


def tiny(path: Path, *, tensors: dict[str, Any] | None = None, **values: Any) -> Path:
    """A one-layer llama with these metadata and tensors instead of its own (None: left out)."""
    writer = gguf.GGUFWriter(path, "llama")
    metadata = {
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 32,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 1e4,
        "tokenizer.ggml.tokens": ["a", "</s>", "<|im_end|>", "b"],
        "tokenizer.ggml.token_type": [1, 3, 1, 1],
        "tokenizer.ggml.eos_token_id": 3,
    } | {key.replace("__", "."): value for key, value in values.items()}
    for key, value in metadata.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)
    shapes = {
        "token_embd.weight": (4, 32),
        "output_norm.weight": (32,),
        **{f"blk.0.{name}_norm.weight": (32,) for name in ("attn", "ffn")},
        **{f"blk.0.attn_{name}.weight": (32, 32) for name in ("q", "output")},
        **{f"blk.0.attn_{name}.weight": (16, 32) for name in "kv"},
        **{f"blk.0.ffn_{name}.weight": (32, 32) for name in ("gate", "up", "down")},
    }
    held = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    for name, array in (held | (tensors or {})).items():
        if array is not None:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", WRITTEN)
def test_a_gguf_file_holds_the_decoder_of_its_folder(name, tmp_path):
    held = write_gguf(MODELS / name, tmp_path / "model.gguf")
    ours, folder = open_source(tmp_path / "model.gguf"), open_source(MODELS / name)
    gemma = name.startswith("gemma")
    assert ours.config.norm_offset == 0
    assert ours.config.norm_eps == pytest.approx(folder.config.norm_eps)
    for mine, other in zip(ours.config.layers, folder.config.layers, strict=True):
        assert mine.window == other.window
        assert (mine.rope is None) == (other.rope is None)
        if mine.rope and other.rope:
            assert mine.rope.frequencies() == pytest.approx(other.rope.frequencies(), rel=1e-6)
            assert mine.rope.scale == pytest.approx(other.rope.scale, rel=1e-6)
    same = {"architecture": "", "layers": (), "norm_eps": 0.0, "norm_offset": 0.0}
    assert replace(ours.config, **same) == replace(folder.config, **same)
    assert ours.names == folder.names
    for tensor in map(ours.tensor, ours.names):
        shift = 1.0 if gemma and tensor.name.endswith("norm.weight") else 0.0
        assert tensor.float32() == pytest.approx(held[tensor.name] + shift, abs=1e-6)


@pytest.mark.parametrize("kind", [*ENCODED, *DRAWN])
def test_every_tensor_type_of_the_gguf_package_is_read(kind, tmp_path):
    write_wide_llama(tmp_path / "folder", MODELS / "llama")
    held = write_gguf(tmp_path / "folder", tmp_path / "model.gguf", kind)
    checkpoint = open_source(tmp_path / "model.gguf")
    for name in checkpoint.names:
        tensor = checkpoint.tensor(name)
        assert tensor.kind == ("F32" if len(tensor.shape) == 1 else kind)
        assert np.array_equal(tensor.float32(), held[name])


def test_a_row_range_is_those_rows(tmp_path):
    write_wide_llama(tmp_path / "folder", MODELS / "llama")
    write_gguf(tmp_path / "folder", tmp_path / "model.gguf", "Q4_K")
    for part in ("self_attn.q_proj", "mlp.up_proj"):
        tensor = open_source(tmp_path / "model.gguf").tensor(f"model.layers.0.{part}.weight")
        assert np.array_equal(tensor.float32(5, 77), tensor.float32()[5:77])
        assert tensor.float32(250).shape == (6, 256)
        assert tensor.float32(9, 9).shape == (0, 256)


def test_a_head_stored_twice_is_tied(tmp_path):
    table = np.arange(128, dtype=np.float32).reshape(4, 32)
    path = tiny(tmp_path / "x.gguf", tensors={"token_embd.weight": table, "output.weight": table})
    assert open_source(path).config.tied
    assert "lm_head.weight" not in open_source(path).names


def test_a_head_of_its_own_is_not_tied(tmp_path):
    path = tiny(tmp_path / "x.gguf", tensors={"output.weight": np.zeros((4, 32), np.float32)})
    assert not open_source(path).config.tied


def test_every_token_that_ends_an_answer_is_known(tmp_path):
    tokens = ["<|im_end|>", "<|eot_id|>", "</s>", "x"]
    values = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 4, 1, 1],  # here </s> is ordinary text
        "tokenizer.ggml.eom_token_id": 9999,
    }
    checkpoint = open_source(tiny(tmp_path / "x.gguf", **values))
    assert checkpoint.eos_ids == (3, 1, 0)
    assert checkpoint.bos_id is None


def test_sampling_defaults_and_licence_are_read(tmp_path):
    values = {"general.sampling.temp": 0.5, "general.sampling.top_k": 20, "general.license": "mit"}
    checkpoint = open_source(tiny(tmp_path / "x.gguf", **values))
    assert checkpoint.generation == {"temperature": 0.5, "top_k": 20}
    assert checkpoint.origin["licence"] == "mit"
    assert checkpoint.origin["kind"] == "gguf"
    assert checkpoint.origin["name"] == "x.gguf"


def test_the_origin_names_the_file_by_its_sha256(tmp_path):
    path = tiny(tmp_path / "x.gguf")
    assert open_source(path).origin["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_tensor_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(SourceError, match=r"x.gguf has no tensor lm_head.weight"):
        open_source(tiny(tmp_path / "x.gguf")).tensor("lm_head.weight")


# Several files


def split(folder: Path) -> Path:
    """The tiny model in two parts; the first has the metadata, each has some tensors."""
    nothing = {"blk.0.ffn_up.weight": None, "blk.0.ffn_gate.weight": None}
    first = tiny(folder / "m-00001-of-00002.gguf", tensors=nothing, split__count=2)
    writer = gguf.GGUFWriter(folder / "m-00002-of-00002.gguf", "llama")
    for name in nothing:
        writer.add_tensor(name, np.full((32, 32), 2, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return first


def test_a_model_in_several_files_is_read_from_the_first(tmp_path):
    checkpoint = open_source(split(tmp_path))
    assert checkpoint.tensor("model.layers.0.mlp.up_proj.weight").float32().max() == 2
    assert checkpoint.tensor("model.layers.0.mlp.down_proj.weight").float32().max() == 1


def test_a_missing_part_is_named(tmp_path):
    first = split(tmp_path)
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(SourceError, match=r"m-00002-of-00002.gguf cannot be read: No such file"):
        open_source(first)


def test_a_part_under_another_name_is_refused_with_what_to_give(tmp_path):
    path = shutil.move(split(tmp_path), tmp_path / "renamed.gguf")
    with pytest.raises(SourceError, match=r"one of 2 parts; give the first one, \*-00001-of-00002"):
        open_source(path)


# Refusals


def patched(path: Path, old: bytes, new: bytes) -> Path:
    content = path.read_bytes()
    assert content.count(old) >= 1
    path.write_bytes(content.replace(old, new, 1))
    return path


def test_an_unknown_architecture_is_refused_with_what_is_known(tmp_path):
    path = patched(tiny(tmp_path / "x.gguf"), b"\0llama", b"\0mamba")
    known = "gemma3, llama, phi3, qwen2, qwen3, smollm3"
    with pytest.raises(SourceError, match=f"'mamba' is not supported; supported: {known}"):
        open_source(path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"llama.block_count": None}, "num_hidden_layers is missing"),
        ({"llama.block_count": 1 << 30}, "num_hidden_layers is 1073741824"),
        ({"llama.block_count": 2}, r"tensor model\.layers\.1\.input_layernorm\.weight and 8 more"),
        ({"llama.embedding_length": 64}, "shape 4 x 32, its configuration says 4 x 64"),
        ({"llama.attention.head_count": [2, 2]}, r"attention\.head_count is \[2, 2\]"),
        ({"llama.attention.head_count": 0}, r"attention\.head_count is 0"),
        ({"llama.attention.head_count": 1000}, "hidden_size 32 is not a multiple of 1000"),
        ({"llama.attention.value_length": 8}, "keys of 16 and values of 8 are not supported"),
        ({"llama.expert_count": 8}, "llama with experts is not supported"),
        ({"llama.rope.dimension_count": 7}, "7 of 16 head dimensions rotate"),
        ({"llama.rope.scaling.type": "ntk"}, "rope type 'ntk' is not supported"),
        ({"llama.rope.freq_base": float("nan")}, "rope_theta is nan"),
    ],
)
def test_metadata_that_cannot_be_right_are_refused(values, message, tmp_path):
    with pytest.raises(SourceError, match=f"x.gguf: .*{message}"):
        open_source(tiny(tmp_path / "x.gguf", **values))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"blk.0.ffn_up.weight": None}, r"tensor model\.layers\.0\.mlp\.up_proj\.weight missing"),
        ({"token_embd.weight": None}, "vocab_size is missing"),
        ({"blk.0.ffn_up.weight": np.ones((32, 64), np.float32)}, "32 x 64, its .* says 32 x 32"),
        (
            {"blk.0.ffn_up.weight": np.ones((32, 32), np.int8)},
            "has type I8, which is not",
        ),
        ({"rope_freqs.weight": np.ones(8, np.int8)}, "rope_freqs.weight has type I8"),
        ({"rope_freqs.weight": np.ones(3, np.float32)}, "short_factor is 3 values; .* list of 8"),
        ({"rope_freqs.weight": np.zeros(8, np.float32)}, r"short_factor\[0\] is 0.0"),
        ({"rope_freqs.weight": np.ones((8, 2), np.float32)}, "must be a short list"),
        ({"rope_freqs.weight": np.full(8, np.inf, np.float32)}, "rope_freqs.weight holds NaN"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tensors, message, tmp_path):
    with pytest.raises(SourceError, match=f"x.gguf: .*{message}"):
        open_source(tiny(tmp_path / "x.gguf", tensors=tensors))


def test_weights_that_are_not_finite_are_refused_when_read(tmp_path):
    path = tiny(
        tmp_path / "x.gguf", tensors={"output_norm.weight": np.full(32, np.nan, np.float32)}
    )
    with pytest.raises(SourceError, match=r"tensor model\.norm\.weight holds NaN or infinite"):
        open_source(path).tensor("model.norm.weight").float32()


@pytest.mark.parametrize("share", [0, 0.001, 0.01, 0.2, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(share, tmp_path):
    path = tiny(tmp_path / "x.gguf")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(SourceError, match=r"x.gguf is not a"):
        open_source(path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04" * 100)
    with pytest.raises(SourceError, match=r"x.gguf is not a GGUF file: it does not begin"):
        open_source(tmp_path / "x.gguf")


def test_a_file_of_the_other_byte_order_is_refused(tmp_path):
    path = patched(tiny(tmp_path / "x.gguf"), b"GGUF\3\0\0\0", b"GGUF\0\0\0\3")
    with pytest.raises(SourceError, match="version 50331648 is not supported, only little-endian"):
        open_source(path)


@pytest.mark.parametrize("place", [8, 16])
def test_absurd_counts_are_refused_at_once(place, tmp_path):
    path = tiny(tmp_path / "x.gguf")
    content = bytearray(path.read_bytes())
    content[place : place + 8] = (1 << 62).to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(SourceError, match="cannot fit in"):
        open_source(path)


@pytest.mark.parametrize("alignment", [0, 33, 1 << 20, 32.0, "32", [32]])
def test_an_alignment_that_is_no_power_of_two_is_refused(alignment, tmp_path):
    path = tiny(tmp_path / "x.gguf", general__alignment=alignment)
    with pytest.raises(SourceError, match=r"general.alignment is .*; it must be a power of two"):
        open_source(path)


def test_a_list_longer_than_any_vocabulary_is_refused(tmp_path):
    count, key = (1 << 22) + 1, b"a.b"
    pair = struct.pack("<Q3sIIQ", len(key), key, ARRAY, UINT8, count)
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair + bytes(count))
    with pytest.raises(SourceError, match="a list of 4194305 values; at most 4194304 make sense"):
        open_source(tmp_path / "x.gguf")


@pytest.mark.parametrize(
    ("place", "new", "message"),
    [
        (0, 9, "tensor output_norm.weight has 9 dimensions"),
        (4, 0, "tensor output_norm.weight is empty"),
        (12, 250, "tensor output_norm.weight has the unknown type number 250"),
        (16, 8, "tensor output_norm.weight at 520 is not aligned to 32 bytes"),
        (22, 1, "tensor output_norm.weight ends at [0-9]+, after the file's end"),
    ],
)
def test_a_tensor_description_that_cannot_be_right_is_refused(place, new, message, tmp_path):
    path = tiny(tmp_path / "x.gguf")
    content = bytearray(path.read_bytes())
    content[content.index(b"output_norm.weight") + len("output_norm.weight") + place] = new
    path.write_bytes(content)
    with pytest.raises(SourceError, match=f"x.gguf is not a valid GGUF file: {message}"):
        open_source(path)


def test_a_source_that_is_nowhere_is_refused():
    with pytest.raises(SourceError, match="no such file or folder; give a GGUF file, a folder"):
        open_source("nowhere/at/all.gguf")


def test_the_tokenizer_of_the_file_is_the_folders(tmp_path):
    write_gguf(MODELS / "llama", tmp_path / "model.gguf")
    ours, folder = open_source(tmp_path / "model.gguf"), open_source(MODELS / "llama")
    text = "Hello, wörld! 123"
    assert ours.tokenizer().encode(text).ids == folder.tokenizer().encode(text).ids
    assert ours.chat_template == folder.chat_template
    assert ours.eos_ids == folder.eos_ids
