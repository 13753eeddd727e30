"""The native kernels against exact references, on every path of this processor, bit for bit."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from gguf_blocks import decode, encode

from specrt.export import native as emit
from specrt.export.source import Tensor
from specrt.export.writer import GraphWriter
from specrt.runtime import native

pytestmark = pytest.mark.skipif(native.find() is None, reason="built without a C compiler")
PATHS = ("portable", "avx2", "avx-vnni", "avx512-vnni", "neon-dot", "neon-i8mm")
KINDS = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_0", "Q6_K")


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    if not native.choose_path(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    native.choose_path(None)


def tensor(rows: int, cols: int, kind: str, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, cols)).astype(np.float32)
    raw = np.ascontiguousarray(encode(values, kind, rng)).view(np.uint8).reshape(rows, -1)
    return Tensor("weights", (rows, cols), kind, raw)


def session(folder: Path, graph: GraphWriter, threads: int = 2) -> onnxruntime.InferenceSession:
    graph.save()
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    if all(known.domain != native.DOMAIN for known in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(native.DOMAIN, 1))
        (folder / "model.onnx").write_bytes(model.SerializeToString())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    native.register(options)
    return onnxruntime.InferenceSession(folder / "model.onnx", options)


def product(
    folder: Path, tensors: Sequence[Tensor], bias: np.ndarray | None = None, threads: int = 2
) -> onnxruntime.InferenceSession:
    return of_constant(folder, emit.pack(tensors), bias, threads)


def of_constant(
    folder: Path, packed: np.ndarray, bias: np.ndarray | None = None, threads: int = 2
) -> onnxruntime.InferenceSession:
    with GraphWriter(folder) as graph:
        x = graph.input("x", np.float32, (1, "rows", "cols"))
        name = "" if bias is None else graph.constant("bias", bias)
        y = emit.linear(graph, x, graph.constant("weights", packed), name)
        graph.node("Identity", [y], ["y"])
        graph.output("y", np.float32, (1, "rows", "width"))
        return session(folder, graph, threads)


def run(made: onnxruntime.InferenceSession, x: np.ndarray) -> np.ndarray:
    return np.asarray(made.run(None, {"x": x[None]})[0])[0]


def reference(x: np.ndarray, codes: emit.Codes) -> np.ndarray:
    """x (m, cols) times rows of one kind: each run's integer product exactly, then float32."""
    rows, cols = codes.codes.shape
    blocks, runs = -(-cols // 32), 32 // emit.RUN[codes.kind]
    pad = ((0, 0), (0, blocks * 32 - cols))
    w = np.pad(codes.codes, pad, constant_values=emit.ZERO[codes.kind])
    w = w.reshape(rows, blocks, runs, -1).astype(np.int64) - emit.ZERO[codes.kind]
    steps, minimums = codes.sizes
    a = np.pad(x, pad).reshape(len(x), blocks, 32)
    out = np.zeros((len(x), rows), np.float32)
    one = np.float32(1)
    with np.errstate(all="ignore"):
        top = np.abs(a).max(-1)
        inverse = np.where(top > np.float32(1e-30), np.float32(127) / top, np.float32(0))
        finite = np.isfinite(a).all(-1)
        q = np.where(finite[..., None], np.rint(a * inverse[..., None]), 0).astype(np.int64)
        scale = np.where(finite, top * (one / np.float32(127)), np.float32(np.nan))
        for b in range(blocks):
            block = np.float32(-0.0)
            for run, part in enumerate(np.split(q[:, b], runs, axis=1)):
                exact = (part @ w[:, b, run].T).astype(np.float32)
                block = block + exact * steps[:, b * runs + run]
            out += block * scale[:, b, None]
            if minimums is not None:
                sums = scale[:, b] * q[:, b].sum(-1).astype(np.float32)
                out -= minimums[:, b] * sums[:, None]
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_is_the_exact_reference_for_any_number_of_rows(
    path: str, kind: str, tmp_path: Path
) -> None:
    weights = tensor(37, 256, kind)
    x = np.random.default_rng(1).standard_normal((40, 256)).astype(np.float32)
    want = reference(x, emit._codes(weights, 0, 37))
    made = product(tmp_path, [weights])
    for rows in range(1, 41):
        assert np.array_equal(run(made, x[:rows]), want[:rows]), rows


@pytest.mark.parametrize(("rows", "cols"), [(1, 32), (16, 96), (17, 33), (5, 1), (100, 160)])
def test_odd_sizes_are_exact(path: str, rows: int, cols: int, tmp_path: Path) -> None:
    weights = tensor(rows, cols, "F32")
    x = np.random.default_rng(2).standard_normal((3, cols)).astype(np.float32)
    want = reference(x, emit._codes(weights, 0, rows))
    assert np.array_equal(run(product(tmp_path, [weights]), x), want)


@pytest.mark.parametrize("value", [0.0, 1e-42, 1e-30, 3e38, np.inf, -np.inf, np.nan])
def test_extreme_activations_are_exact_and_stay_in_their_row(
    path: str, value: float, tmp_path: Path
) -> None:
    weights = tensor(20, 128, "Q4_1")
    x = np.random.default_rng(3).standard_normal((3, 128)).astype(np.float32)
    x[1, :40] = value
    want = reference(x, emit._codes(weights, 0, 20))
    got = run(product(tmp_path, [weights]), x)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.isfinite(got[[0, 2]]).all()
    assert np.isfinite(value) or np.isnan(got[1]).all()


def hard_to_round(rng: np.random.Generator) -> np.ndarray:
    """Rows of 32: of numbers up to any magnitude, most at a limit, each halfway between two codes
    or a few steps of the last bit beside it; and rows of any bits. (6000, 32)"""
    limits = [1, 2**23, 0x7F7FFFFF, *np.array([1e-30, 1, 127], np.float32).view(np.uint32)]
    top = rng.integers(1, 0x7F800000, (4000, 1))
    top[:3000] = rng.choice(limits, (3000, 1)) + rng.integers(-3, 4, (3000, 1))
    top = top.clip(1, 0x7F800000).astype(np.uint32)
    halfway = top.view(np.float32) * (rng.integers(0, 127, (4000, 32)) + 0.5) / 127
    bits = halfway.astype(np.float32).view(np.uint32) + rng.integers(-3, 4, (4000, 32))
    bits = bits.clip(0, top).astype(np.uint32)
    np.put_along_axis(bits, rng.integers(0, 32, (4000, 1)), top, axis=1)
    bits |= rng.integers(0, 2, bits.shape, np.uint32) << np.uint32(31)
    return np.append(bits, rng.integers(0, 2**32, (2000, 32), np.uint32), 0).view(np.float32)


def test_activations_of_any_bits_become_the_codes_of_the_reference(
    path: str, tmp_path: Path
) -> None:
    """Each row of the weights has one column that is not 0, so each product shows one code."""
    rng = np.random.default_rng(10)
    x, one = hard_to_round(rng), np.eye(32, dtype=np.float32)
    weights = Tensor("weights", (32, 32), "Q8_0", encode(one, "Q8_0", rng))
    want = reference(x, emit._codes(weights, 0, 32))
    assert np.array_equal(run(product(tmp_path, [weights]), x), want, equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_kinds_side_by_side_with_a_bias_are_their_own_products(
    path: str, threads: int, tmp_path: Path
) -> None:
    tensors = [tensor(500, 256, kind, i) for i, kind in enumerate(("Q4_K", "Q6_K", "Q8_0"))]
    x = np.random.default_rng(4).standard_normal((9, 256)).astype(np.float32)
    bias = np.arange(1500, dtype=np.float32)
    parts = [reference(x, emit._codes(t, 0, 500)) for t in tensors]
    got = run(product(tmp_path, tensors, bias, threads), x)
    assert np.array_equal(got, np.concatenate(parts, 1) + bias)


@pytest.mark.parametrize("kind", KINDS)
def test_a_look_up_is_what_gguf_decodes(kind: str, tmp_path: Path) -> None:
    table = tensor(50, 256 if kind.endswith("K") else 96, kind)
    with GraphWriter(tmp_path) as graph:
        ids = graph.input("ids", np.int64, (1, "rows"))
        graph.node(
            "Identity",
            [emit.embedding(graph, ids, graph.constant("table", emit.pack([table])))],
            ["y"],
        )
        graph.output("y", np.float32, (1, "rows", "cols"))
        made = session(tmp_path, graph)
    order = np.random.default_rng(5).permutation(50)
    got = made.run(None, {"ids": order[None]})[0][0]
    assert np.array_equal(got, decode(table.raw, kind)[order])
    with pytest.raises(Exception, match="id 50, the table has 50 rows"):
        made.run(None, {"ids": np.array([[50]])})


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_gate_is_close_to_exact_and_the_same_on_every_path(
    activation: str, tmp_path: Path
) -> None:
    with GraphWriter(tmp_path) as graph:
        x = graph.input("x", np.float32, (1, "rows", 6002))
        graph.node("Identity", [emit.gate(graph, x, activation)], ["y"])
        graph.output("y", np.float32, (1, "rows", 3001))
        made = session(tmp_path, graph)
    values = np.random.default_rng(6).uniform(-20, 20, (3, 6002)).astype(np.float32)
    values[0, 0] = np.nan
    g, up = np.split(values.astype(np.float64), 2, axis=1)
    inner = g if activation == "silu" else 2 * 0.7978845608 * (g + 0.044715 * g**3)
    want = g / (1 + np.exp(-inner)) * up
    results = [run(made, values) for name in PATHS if native.choose_path(name)]
    native.choose_path(None)
    # A few roundings of 6e-8; the exponent of GELU is up to 60 and wrong by as many roundings.
    np.testing.assert_allclose(results[0], want, rtol=2e-5, atol=1e-7)
    assert all(np.array_equal(results[0], other, equal_nan=True) for other in results)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(
    ("width", "kinds"),
    [
        (96, ["Q4_1", "F32"]),
        (96, ["Q4_1", "Q4_1"]),
        (96, ["F32"]),
        (80, ["F32"]),
        (37, ["F32", "F32"]),
    ],
)
def test_feed_forward_has_the_bits_of_its_parts(
    width: int, kinds: list[str], activation: str, biased: bool, path: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(8)
    fused = len(kinds) == 1
    rows = 2 * width if fused else width
    parts = [tensor(rows, 64, kind, i) for i, kind in enumerate(kinds)]
    down = tensor(50, width, "F32", 2)
    with GraphWriter(tmp_path) as graph:
        x = graph.input("x", np.float32, (1, "rows", 64))
        names = [
            graph.constant("gate_up", emit.in_turns(emit.pack(parts))),
            graph.constant("down", emit.pack([down])),
        ]
        apart = graph.constant("apart", emit.pack(parts))
        biases = ["", ""]
        if biased:
            for i, n in enumerate((2 * width, 50)):
                biases[i] = graph.constant(f"b{i}", rng.standard_normal(n).astype(np.float32))
        weight = graph.constant("w", np.linspace(0.5, 2, 64).astype(np.float32))
        update = graph.call("Mul", x, x)
        rows = emit.Rows(x, update, weight, 1e-5)
        one, total = emit.norm_feed_forward(graph, rows, [*names, *biases], activation)
        normed, sum = emit.add_norm(graph, x, update, weight, 1e-5)
        first = emit.linear(graph, normed, apart, biases[0])
        gated = emit.gate(graph, first, activation)
        three = emit.linear(graph, gated, names[1], biases[1])
        for name, pair in {"y": (one, three), "t": (total, sum)}.items():
            graph.node("Concat", list(pair), [name], axis=0)
            graph.output(name, np.float32, (2, "rows", "width"))
        made = session(tmp_path, graph)
    for rows in (1, 2, 13, 40):
        values = rng.standard_normal((1, rows, 64)).astype(np.float32)
        values[0, rows // 2, 5] = np.nan if rows == 13 else 1
        for together, apart in made.run(None, {"x": values}):
            assert np.array_equal(together, apart, equal_nan=True), rows


@pytest.mark.parametrize("updated", [False, True])
def test_a_product_of_normed_rows_has_the_bits_of_norm_and_product(
    updated: bool, path: str, tmp_path: Path
) -> None:
    weights = [tensor(40, 96, "Q4_1"), tensor(24, 96, "F32", 1)]
    with GraphWriter(tmp_path) as graph:
        x = graph.input("x", np.float32, (1, "rows", 96))
        weight = graph.constant("w", np.linspace(0.5, 2, 96).astype(np.float32))
        bias = graph.constant("b", np.linspace(-1, 1, 64).astype(np.float32))
        packed = graph.constant("packed", emit.pack(weights))
        update = graph.call("Mul", x, x) if updated else ""
        rows = emit.Rows(x, update, weight, 1e-5)
        one, total = emit.norm_linear(graph, rows, [packed, bias])
        normed, sum = emit.norm(graph, x, weight, 1e-5), x
        if updated:
            normed, sum = emit.add_norm(graph, x, update, weight, 1e-5)
        two = emit.linear(graph, normed, packed, bias)
        for name, pair in {"y": (one, two), "t": (total, sum)}.items():
            graph.node("Concat", list(pair), [name], axis=0)
            graph.output(name, np.float32, (2, "rows", "width"))
        made = session(tmp_path, graph)
    values = np.random.default_rng(9).standard_normal((1, 40, 96)).astype(np.float32)
    for count in (1, 2, 13, 40):
        for together, apart in made.run(None, {"x": values[:, :count]}):
            assert np.array_equal(together, apart), count


def test_the_norm_of_a_row_does_not_depend_on_paths_or_rows_beside_it(tmp_path: Path) -> None:
    with GraphWriter(tmp_path) as graph:
        x = graph.input("x", np.float32, (1, "rows", 579))
        weight = graph.constant("w", np.linspace(0.5, 2, 579).astype(np.float32))
        update = graph.call("Mul", x, x)
        for name, value in zip("yt", emit.add_norm(graph, x, update, weight, 1e-5), strict=True):
            graph.node("Identity", [value], [name])
            graph.output(name, np.float32, (1, "rows", 579))
        made = session(tmp_path, graph)
    values = np.random.default_rng(7).standard_normal((40, 579)).astype(np.float32)
    total = values + values * values
    mean = (total.astype(np.float64) ** 2).mean(1, keepdims=True)
    want = total / np.sqrt(mean + 1e-5) * np.linspace(0.5, 2, 579)
    first = run(made, values)
    np.testing.assert_allclose(first, want, rtol=2e-6)
    for name in PATHS:
        if native.choose_path(name):
            assert np.array_equal(run(made, values), first)
            assert all(np.array_equal(run(made, values[:n]), first[:n]) for n in range(1, 40))
    native.choose_path(None)
    assert np.array_equal(made.run(["t"], {"x": values[None]})[0][0], total)


def test_wrong_shapes_are_errors(tmp_path: Path) -> None:
    made = product(tmp_path, [tensor(16, 64, "Q4_0")])
    with pytest.raises(Exception, match="input has rows of 65, the weights of 64"):
        run(made, np.zeros((1, 65), np.float32))
    made = product(tmp_path, [tensor(16, 64, "Q4_0")], np.zeros(15, np.float32))
    with pytest.raises(Exception, match="bias has 15 values, the weights 16 rows"):
        run(made, np.zeros((1, 64), np.float32))


@pytest.mark.parametrize(
    ("at", "value"),
    [*((at, 255) for at in (0, 4, 8, 12, 16)), (16, emit.FOUR_K), (16, emit.SIX_K), (None, 0)],
)
def test_corrupt_weights_are_errors(at: int | None, value: int, tmp_path: Path) -> None:
    packed = emit.pack([tensor(16, 64, "Q4_0")])
    packed = packed[:-1] if at is None else packed
    if at is not None:
        packed[at : at + 4] = [value] * 4 if value == 255 else [value, 0, 0, 0]
    made = of_constant(tmp_path, packed)
    with pytest.raises(Exception, match="specrt: packed"):
        run(made, np.zeros((1, 64), np.float32))


@pytest.mark.parametrize(
    ("at", "value"), [(8, 1), (8, 3), (12, 32), (12, 48), (16, emit.EIGHT), (20, 32), (None, 0)]
)
def test_corrupt_weights_in_turns_are_errors(at: int | None, value: int, tmp_path: Path) -> None:
    packed = emit.in_turns(emit.pack([tensor(64, 64, "Q4_0"), tensor(64, 64, "Q4_0", 1)]))
    x = np.ones((1, 64), np.float32)
    corrupt = packed[:-1].copy() if at is None else packed.copy()
    if at is not None:
        corrupt[at] = value
    assert run(of_constant(tmp_path, packed), x).shape == (1, 128)
    (tmp_path / "corrupt").mkdir()
    made = of_constant(tmp_path / "corrupt", corrupt)
    with pytest.raises(Exception, match="specrt: packed"):
        run(made, x)
