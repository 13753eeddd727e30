"""The native attention: exact up to rounding, and the same bits for any block, tree and path."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_native import PATHS, session

from specrt.export.writer import GraphWriter
from specrt.runtime import native

pytestmark = pytest.mark.skipif(native.find() is None, reason="built without a C compiler")
TILE, BLOCK = 16, 32


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    if not native.choose_path(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    native.choose_path(None)


@dataclass(frozen=True)
class Shape:
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    capacity: int = 128
    window: int = 0
    softcap: float = 0.0
    pairs: int = 16
    normed: bool = False
    sinks: bool = False
    cache: type[np.generic] = np.float32

    @property
    def width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)


PLAIN = Shape()
SHAPES = {
    "plain": PLAIN,
    "wide": Shape(heads=4, kv_heads=1, head_dim=128, pairs=64),
    "odd": Shape(heads=3, kv_heads=3, head_dim=20, pairs=5, capacity=112),
    "tiny": Shape(heads=2, kv_heads=1, head_dim=8, pairs=0, capacity=80),
    "window": Shape(window=9),
    "softcap": Shape(softcap=2.0, normed=True),
    "sinks": Shape(sinks=True, window=30),
    "half": Shape(cache=np.float16),
    "half and odd": Shape(
        heads=3, kv_heads=3, head_dim=20, pairs=5, capacity=112, cache=np.float16
    ),
    "int8": Shape(cache=np.int8),
    "int8 and wide": Shape(heads=14, kv_heads=2, head_dim=128, pairs=64, cache=np.int8),
    "int8 and odd": Shape(heads=3, kv_heads=3, head_dim=70, pairs=20, capacity=112, cache=np.int8),
    "int8 and all": Shape(window=30, softcap=2.0, normed=True, sinks=True, cache=np.int8),
}
INT8 = SHAPES["int8"]


class Attention:
    """One operator with its cache, as a session holds it."""

    def __init__(self, folder: Path, shape: Shape, batch: int = 1, threads: int = 2) -> None:
        rng = np.random.default_rng(0)
        self.shape, self.batch = shape, batch
        d, kv = shape.head_dim, shape.kv_heads
        angles = rng.uniform(-3, 3, (shape.capacity, max(shape.pairs, 1)))
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self.norms = rng.uniform(0.5, 2, (2, d)).astype(np.float32)
        self.sinks = rng.standard_normal(shape.heads).astype(np.float32)
        cache, tiles, blocks = shape.cache, shape.capacity // TILE, -(-d // BLOCK)
        if cache is np.int8:  # as a scale, four bytes of -1 are no number
            self.keys = np.full((batch, kv, tiles, 9 * blocks, TILE, 4), -1, cache)
            self.values = np.full((batch, kv, shape.capacity, BLOCK * blocks + 4), -1, cache)
        else:
            self.keys = np.full((batch, kv, tiles, d, TILE), np.nan, cache)
            self.values = np.full((batch, kv, shape.capacity, d), np.nan, cache)
        with GraphWriter(folder) as graph:
            constants = {"cos": self.cos, "sin": self.sin} if shape.pairs else {}
            if shape.normed:
                constants |= {"q": self.norms[0], "k": self.norms[1]}
            if shape.sinks:
                constants["sinks"] = self.sinks
            for name, value in constants.items():
                graph.constant(name, value)
            floats, dims = np.float32, self.keys.shape
            inputs = [
                graph.input("qkv", floats, (batch, "rows", shape.width)),
                graph.input("past.key", cache, dims),
                graph.input("past.value", cache, self.values.shape),
                graph.input("seqlens_k", np.int32, (batch,)),
                graph.input("parents", np.int64, (batch, "rows")),
                *(name if name in constants else "" for name in ("cos", "sin", "q", "k", "sinks")),
            ]
            outputs = ["out", "present.key", "present.value"]
            attributes: dict[str, Any] = {
                "num_heads": shape.heads,
                "kv_num_heads": kv,
                "scale": shape.scale,
                "softcap": shape.softcap,
                "window": shape.window,
                "epsilon": 1e-5,
            }
            graph.node("Attention", inputs, outputs, domain=native.DOMAIN, **attributes)
            graph.output("out", floats, (batch, "rows", shape.heads * d))
            graph.output("present.key", cache, dims)
            graph.output("present.value", cache, self.values.shape)
            self.session = session(folder, graph, threads)
        self.lengths = np.zeros(batch, np.int64)

    def read(self, qkv: np.ndarray, parents: np.ndarray | None = None) -> np.ndarray:
        """Rows (B, S, width) -> (B, S, H * D), appended in place."""
        rows = qkv.shape[1]
        if parents is None:
            parents = np.tile(np.arange(rows) - 1, (self.batch, 1))
        binding = self.session.io_binding()
        self.lengths += rows
        feeds = {
            "qkv": qkv,
            "past.key": self.keys,
            "past.value": self.values,
            "seqlens_k": (self.lengths - 1).astype(np.int32),
            "parents": parents.astype(np.int64),
        }
        held = {name: onnxruntime.OrtValue.ortvalue_from_numpy(v) for name, v in feeds.items()}
        for name, value in held.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output("present.key", held["past.key"])
        binding.bind_ortvalue_output("present.value", held["past.value"])
        binding.bind_output("out")
        self.session.run_with_iobinding(binding)
        return np.asarray(binding.get_outputs()[2].numpy())

    def keep(self, length: int, path: tuple[int, ...] = ()) -> None:
        new, old = np.arange(len(path)) + length, np.array(path, np.int64) + length
        self.keys[:, :, new // TILE, :, new % TILE] = self.keys[:, :, old // TILE, :, old % TILE]
        self.values[:, :, new] = self.values[:, :, old]
        self.lengths[:] = length + len(path)


def reference(made: Attention, tokens: np.ndarray) -> np.ndarray:
    """The last row of a whole text (n, width) in float64: (H * D,). What is rounded to int8 is
    prepared in float32 as the kernels do, so that the codes are theirs."""
    shape, n = made.shape, len(tokens)
    d, kv = shape.head_dim, shape.kv_heads
    real = np.float32 if shape.cache is np.int8 else np.float64
    parts = tokens.astype(real).reshape(n, -1, d)
    q, k, v = np.split(parts, [shape.heads, shape.heads + kv], axis=1)
    if shape.normed:
        q, k = (
            x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w
            for x, w in zip((q, k), made.norms.astype(real), strict=True)
        )
    if shape.pairs:
        cos, sin = (t[:n, None].astype(real) for t in (made.cos, made.sin))
        q, k = (
            np.concatenate(
                [
                    x[..., : shape.pairs] * cos - x[..., shape.pairs : 2 * shape.pairs] * sin,
                    x[..., shape.pairs : 2 * shape.pairs] * cos + x[..., : shape.pairs] * sin,
                    x[..., 2 * shape.pairs :],
                ],
                -1,
            )
            for x in (q, k)
        )
    q = q * real(shape.scale)
    if shape.cache is np.float16:
        k, v = (x.astype(np.float32).astype(np.float16).astype(np.float64) for x in (k, v))
    if shape.cache is np.int8:
        q, k, v = rounded(q, BLOCK), rounded(k, BLOCK), rounded(v, d)
    start = max(0, n - shape.window) if shape.window else 0
    out = []
    for head in range(shape.heads):
        mine = head // (shape.heads // kv)
        scores = k[start:, mine] @ q[-1, head]
        if shape.softcap:
            scores = shape.softcap * np.tanh(scores / shape.softcap)
        extra = [float(made.sinks[head])] if shape.sinks else []
        weights = np.exp(np.append(scores, extra) - max(scores.max(), *extra, -np.inf))
        out.append(weights[: len(scores)] / weights.sum() @ v[start:, mine])
    return np.concatenate(out)


def rounded(x: np.ndarray, block: int) -> np.ndarray:
    """Float32 numbers as int8 codes times a scale for each `block` of the last axis, in float64."""
    parts = []
    for start in range(0, x.shape[-1], block):
        part = x[..., start : start + block]
        largest = np.abs(part).max(-1, keepdims=True)
        codes = np.rint(part * (np.float32(127) / largest))
        parts.append(codes.astype(np.float64) * (largest * np.float32(1 / 127)))
    return np.concatenate(parts, -1)


def texts(shape: Shape, n: int, batch: int = 1, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((batch, n, shape.width)).astype(np.float32)


@pytest.mark.parametrize("name", SHAPES)
def test_every_row_is_attention_over_the_text_before_it(name: str, tmp_path: Path) -> None:
    made = Attention(tmp_path, SHAPES[name])
    text = texts(made.shape, 70)
    got = np.concatenate([made.read(text[:, :50]), made.read(text[:, 50:])], 1)[0]
    want = np.stack([reference(made, text[0, : n + 1]) for n in range(70)])
    # Sums of 70 in float32; a key that lies between two float16 may be rounded to the other one. A
    # norm's sum is taken in another order, so that a number may get the code beside.
    loose = {np.float16: 3e-4, np.int8: 2e-2 if made.shape.normed else 2e-6}
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=loose.get(made.shape.cache, 2e-6))


@pytest.mark.parametrize("name", SHAPES)
def test_a_row_has_the_same_bits_in_every_block_and_on_every_path(
    name: str, path: str, tmp_path: Path
) -> None:
    made = Attention(tmp_path, SHAPES[name])
    text = texts(made.shape, 77)
    native.choose_path("portable")
    whole = made.read(text)
    native.choose_path(path)
    for size in (1, 2, 3, 5, 8, 13, 40, 77):
        made.keep(0)
        parts = [made.read(text[:, i : i + size]) for i in range(0, 77, size)]
        assert np.array_equal(np.concatenate(parts, 1), whole), size


@given(
    name=st.sampled_from(sorted(SHAPES)),
    past=st.integers(0, 40),
    seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=24),
)
@settings(max_examples=60, deadline=None, database=None)
def test_a_row_of_a_tree_has_the_bits_of_its_path_read_alone(
    name: str, past: int, seeds: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = _made(name, tmp_path_factory)
    follows = [-1 if n % 5 == 4 else n % (i + 1) - 1 for i, n in enumerate(seeds)]
    parents = np.array(follows)
    text = texts(made.shape, past + len(parents))
    made.keep(0)
    if past:
        made.read(text[:, :past])
    block = text[:, past:]
    block[0, 0, -1] = np.nan if seeds[0] % 3 == 0 else 1  # a value that only its children may see
    tree = made.read(block, parents[None])
    for row in range(len(parents)):
        path = [row]
        while parents[path[0]] >= 0:
            path.insert(0, int(parents[path[0]]))
        made.keep(past)
        alone = made.read(block[:, path])
        assert np.array_equal(tree[:, row], alone[:, -1], equal_nan=True), row


_MADE: dict[str, Attention] = {}


def _made(name: str, folders: pytest.TempPathFactory) -> Attention:
    if name not in _MADE:
        _MADE[name] = Attention(folders.mktemp(name), SHAPES[name])
    return _MADE[name]


@pytest.mark.parametrize("name", ["plain", "int8"])
def test_after_a_tree_its_path_can_be_kept_and_gone_on_from(name: str, tmp_path: Path) -> None:
    made = Attention(tmp_path, SHAPES[name])
    text = texts(made.shape, 60)
    path = (0, 2, 3, 7)
    parents = np.array([[-1, 0, 0, 2, 2, 1, 4, 3]])
    made.read(text[:, :29])
    made.read(text[:, 29:37], parents)
    made.keep(29, path)
    after = made.read(text[:, 50:55])
    made.keep(29)
    made.read(text[:, [29 + i for i in path]])
    assert np.array_equal(made.read(text[:, 50:55]), after)


@pytest.mark.parametrize("name", ["plain", "int8 and wide"])  # keys are larger than values
def test_sequences_of_one_call_have_their_own_lengths(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    text = texts(shape, 40, batch=3)
    lengths = (5, 0, 31)
    (tmp_path / "one").mkdir()
    together = Attention(tmp_path, shape, batch=3)
    alone = Attention(tmp_path / "one", shape)
    parents = np.array([[-1, 0, 1], [-1, -1, 0], [-1, 0, 0]])
    for i, length in enumerate(lengths):
        if length:
            together.lengths[:] = 0
            together.read(text[:, :length])
        for whole, part in ((together.keys, alone.keys), (together.values, alone.values)):
            part[0] = whole[i]
    first = [texts(shape, n, seed=9 + n) for n in lengths]
    for i, rows in enumerate(first):
        alone.keep(0)
        alone.read(rows)
        together.keys[i], together.values[i] = alone.keys[0], alone.values[0]
    together.lengths[:] = lengths
    got = together.read(text[:, :3], parents)
    for i, rows in enumerate(first):
        alone.keep(0)
        alone.read(rows)
        assert np.array_equal(alone.read(text[i : i + 1, :3], parents[i : i + 1])[0], got[i])


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_do_not_change_the_bits(threads: int, tmp_path: Path) -> None:
    text = texts(PLAIN, 100)
    (tmp_path / "one").mkdir()
    want = Attention(tmp_path / "one", PLAIN, threads=1).read(text)
    assert np.array_equal(Attention(tmp_path, PLAIN, threads=threads).read(text), want)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["plain", "int8"])
def test_what_is_not_finite_reaches_the_rows_after_it_and_no_others(
    name: str, value: float, tmp_path: Path
) -> None:
    made = Attention(tmp_path, SHAPES[name])
    text = texts(made.shape, 40)
    want = made.read(text)
    text[0, 25] = value
    made.keep(0)
    got = made.read(text)
    assert np.array_equal(got[0, :25], want[0, :25])
    assert np.isnan(got[0, 25:]).all()


def test_a_window_forgets_what_is_not_finite(tmp_path: Path) -> None:
    made = Attention(tmp_path, SHAPES["window"])
    text = texts(made.shape, 60)
    want = made.read(text)
    text[0, 25] = np.nan
    made.keep(0)
    got = made.read(text)
    assert np.array_equal(np.isnan(got[0]).all(1), (np.arange(60) >= 25) & (np.arange(60) < 34))
    assert np.array_equal(got[0, 34:], want[0, 34:])


@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_a_number_that_is_not_finite_reaches_its_heads_through_int8(
    part: str, tmp_path: Path
) -> None:
    made = Attention(tmp_path, INT8)
    text = texts(INT8, 40)
    want = made.read(text)[0].reshape(40, 2, 3, 32)
    at = {"query": 5, "key": INT8.heads, "value": INT8.heads + INT8.kv_heads}[part]
    text[0, 25, at * 32 + 7] = np.nan
    made.keep(0)
    got = made.read(text)[0].reshape(40, 2, 3, 32)
    lost = np.zeros((40, 2, 3), bool)
    if part == "query":
        lost[25, 1, 2] = True
    else:
        lost[25:, 0] = True
    assert np.array_equal(np.isnan(got).all(-1), lost)
    assert np.array_equal(np.isnan(got).any(-1), lost)
    assert np.array_equal(got[~lost], want[~lost])


@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-38, 1e-25, 1e17])
def test_numbers_of_any_size_go_through_int8(size: float, path: str, tmp_path: Path) -> None:
    made = Attention(tmp_path, INT8)
    text = texts(INT8, 40)
    text[0, :, INT8.heads * 32 :] *= np.float32(size)
    got = made.read(text)[0]
    native.choose_path("portable")
    made.keep(0)
    assert np.array_equal(made.read(text)[0], got)
    if size > 1e-30:
        want = np.stack([reference(made, text[0, : n + 1]) for n in range(40)])
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=2e-6 * size)
    else:
        assert not got.any()


@pytest.mark.parametrize("size", [1, 3, 16])
def test_an_int8_entry_is_made_of_its_token_alone(size: int, tmp_path: Path) -> None:
    made = Attention(tmp_path, INT8)
    text = texts(INT8, 48)
    made.read(text)
    keys, values = made.keys.copy(), made.values.copy()
    made.keys[:], made.values[:] = 77, 77
    made.keep(0)
    for i in range(0, 48, size):
        made.read(text[:, i : i + size])
    assert np.array_equal(made.keys[:, :, :3], keys[:, :, :3])
    assert np.array_equal(made.values[:, :, :48], values[:, :, :48])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parents": np.array([[0, 0]])}, "row 0 follows row 0"),
        ({"parents": np.array([[-1, -2]])}, "row 1 follows row -2"),
        ({"parents": np.array([[-1]])}, "parents are not one for each of 2 rows"),
        ({"seqlens_k": np.array([0], np.int32)}, "-1 \\+ 2 entries in a cache of 128"),
        ({"seqlens_k": np.array([128], np.int32)}, "127 \\+ 2 entries in a cache of 128"),
        ({"seqlens_k": np.array([-(2**31)], np.int32)}, "entries in a cache"),
    ],
)
def test_what_cannot_be_is_an_error(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    made = Attention(tmp_path, PLAIN)
    feeds: dict[str, Any] = {
        "qkv": texts(PLAIN, 2),
        "past.key": made.keys,
        "past.value": made.values,
        "seqlens_k": np.array([5], np.int32),
        "parents": np.array([[-1, 0]]),
    }
    made.session.run(None, feeds)
    with pytest.raises(Exception, match=message):
        made.session.run(None, feeds | change)


def test_a_position_beyond_the_rotation_is_an_error(tmp_path: Path) -> None:
    made = Attention(tmp_path, replace(PLAIN, capacity=64))
    made.keys = np.zeros((1, 2, 8, 32, TILE), np.float32)
    made.values = np.zeros((1, 2, 128, 32), np.float32)
    with pytest.raises(Exception, match=r"(?i)position 64, the rotation has 64|invalid dim"):
        made.read(texts(PLAIN, 100))
