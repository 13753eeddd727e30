"""Damaged checkpoints are read or refused with SourceError; nothing else ever comes of them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from gguf_writer import write_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_source_gguf import tiny

from specrt.export import source_gguf
from specrt.export.gguf_file import read_gguf
from specrt.export.source import Checkpoint, open_source
from specrt.runtime.errors import SourceError

MODELS = Path(__file__).parent / "golden" / "models"
EDGES = (0, 1, 2, 3, 31, 255, 1 << 16, (1 << 31) - 1, (1 << 32) - 1, 1 << 62, (1 << 64) - 1)
SAFETENSORS_HEADER = 2000  # bytes; damage elsewhere only changes weights

KEYS = (
    *(f"llama.{key}" for key in source_gguf.KEYS.values()),
    *(f"llama.{key}" for key in source_gguf.SCALING_KEYS.values()),
    *source_gguf.SAMPLING_KEYS.values(),
    *("llama.attention.value_length", "llama.attention.sliding_window", "llama.expert_count"),
    *("llama.rope.dimension_count", "general.alignment", "general.license", "split.count"),
    *("tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.chat_template"),
    *("tokenizer.ggml.eos_token_id", "tokenizer.ggml.bos_token_id"),
)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, (1 << 32) - 1),
    st.sampled_from(EDGES[:9]),
    st.floats(width=32),
    st.sampled_from(["", "yarn", "linear", "longrope", "llama3", "none", "x" * 1000]),
)
lists = st.one_of(
    *(st.lists(x, min_size=1, max_size=5) for x in (st.integers(0, 99), st.text(), st.booleans()))
)
values = st.one_of(scalars, lists)
places = st.floats(0, 1, exclude_max=True)
numbers = st.tuples(
    places, st.sampled_from(EDGES), st.sampled_from([4, 8]).map(lambda n: (n, (1 << 8 * n) - 1))
).map(lambda t: (t[0], (t[1] & t[2][1]).to_bytes(t[2][0], "little")))
overwrites = st.one_of(numbers, st.tuples(places, st.binary(min_size=1, max_size=4)))
rewrites = st.tuples(places, st.text('0123456789-.[]{},:"', min_size=1, max_size=4).map(str.encode))
cuts = st.one_of(st.none(), places)
fuzzed = settings(
    max_examples=400, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def damage(
    content: bytes, wounds: list[tuple[float, bytes]], cut: float | None, until: int
) -> bytes:
    """The content overwritten at places within its first `until` bytes, then cut off."""
    held = bytearray(content)
    for place, new in wounds:
        at = int(place * min(until, len(content)))
        held[at : at + len(new)] = new
    return bytes(held if cut is None else held[: int(cut * len(held))])


def read_all(checkpoint: Checkpoint) -> None:
    """Everything of a checkpoint that this package parses, one thing after the other."""
    for name in checkpoint.names:
        try:
            assert checkpoint.tensor(name).float32().dtype == np.float32
        except SourceError as error:
            assert "\n" not in str(error)  # noqa: PT017
    assert all(0 <= token < checkpoint.config.vocab for token in checkpoint.eos_ids)
    assert isinstance(checkpoint.chat_template, str | None)
    assert isinstance(checkpoint.bos_id, int | None)
    assert all(isinstance(value, int | float) for value in checkpoint.generation.values())


def survives(path: Path) -> None:
    try:
        checkpoint = open_source(path)
    except SourceError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        read_all(checkpoint)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny(tmp_path_factory.mktemp("plain") / "x.gguf").read_bytes()


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with a tokenizer, quantised weights and rotary divisors as a tensor."""
    path = tmp_path_factory.mktemp("scaled") / "x.gguf"
    write_gguf(MODELS / "llama-llama3", path, "Q8_0")
    return path.read_bytes()


@given(wounds=st.lists(overwrites, min_size=1, max_size=4), cut=cuts)
@fuzzed
def test_a_damaged_gguf_file_is_read_or_refused(wounds, cut, plain, tmp_path):
    until = plain.index(b"blk.0.ffn_down.weight") + 100
    (tmp_path / "x.gguf").write_bytes(damage(plain, wounds, cut, until))
    survives(tmp_path / "x.gguf")


@given(wounds=st.lists(overwrites, min_size=1, max_size=8), cut=cuts)
@fuzzed
def test_a_damaged_quantised_gguf_file_is_read_or_refused(wounds, cut, scaled, tmp_path):
    (tmp_path / "x.gguf").write_bytes(damage(scaled, wounds, cut, len(scaled)))
    survives(tmp_path / "x.gguf")


@given(values=st.dictionaries(st.sampled_from(KEYS), values, min_size=1, max_size=3))
@fuzzed
def test_metadata_of_any_kind_are_read_or_refused(values, tmp_path):
    survives(tiny(tmp_path / "x.gguf", **values))


@given(content=st.binary(max_size=300), version=st.sampled_from([2, 3]))
@fuzzed
def test_noise_after_a_gguf_header_is_read_or_refused(content, version, tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + version.to_bytes(4, "little") + content)
    try:
        read_gguf(path)
    except SourceError as error:
        assert "\n" not in str(error)  # noqa: PT017


@given(wounds=st.lists(rewrites | overwrites, min_size=1, max_size=3), cut=cuts)
@fuzzed
def test_a_damaged_safetensors_file_is_read_or_refused(wounds, cut, tmp_path):
    folder = tmp_path / "folder"
    if not folder.exists():
        shutil.copytree(MODELS / "llama-small", folder)
    content = (MODELS / "llama-small" / "model.safetensors").read_bytes()
    wounded = damage(content, wounds, cut, SAFETENSORS_HEADER)
    (folder / "model.safetensors").write_bytes(wounded)
    survives(folder)
