"""The native kernels refuse what does not fit: headers, shapes, ids and attributes.

`make sanitize` runs this with a library that ends the process at the first byte read or written
beyond a tensor. For that every tensor here is an input in memory of its own, weights too.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import onnxruntime
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from test_native import reference, tensor

from specrt.export import native as emit
from specrt.runtime import native

pytestmark = pytest.mark.skipif(native.find() is None, reason="built without a C compiler")
FLOAT, IDS, BYTES = np.float32, np.int64, np.uint8
INPUTS: Mapping[str, tuple[type, ...]] = {
    "MatMul": (FLOAT, BYTES, FLOAT, FLOAT, FLOAT),
    "Embedding": (IDS, BYTES),
    "Gate": (FLOAT,),
    "FeedForward": (FLOAT, BYTES, BYTES, FLOAT, FLOAT, FLOAT, FLOAT),
    "RMSNorm": (FLOAT, FLOAT, FLOAT),
    "Attention": (FLOAT, FLOAT, FLOAT, np.int32, IDS, FLOAT, FLOAT, FLOAT, FLOAT, FLOAT),
}
CODES = (FLOAT, np.int8, np.int8, *INPUTS["Attention"][3:])  # attention over an int8 cache
OUTPUTS = {"RMSNorm": 2, "Attention": 3}
ATTRIBUTES: Mapping[str, Mapping[str, int | float]] = {
    "Gate": {"activation": 0},
    "FeedForward": {"activation": 0},
    "RMSNorm": {"epsilon": 1e-5},
    "Attention": {
        "num_heads": 4,
        "kv_num_heads": 2,
        "window": 0,
        "scale": 0.25,
        "softcap": 0.0,
        "epsilon": 1e-5,
    },
}
shapes = st.lists(st.integers(0, 3), max_size=9)
many = settings(max_examples=300)


def operator(
    name: str,
    threads: int,
    count: int,
    attributes: Mapping[str, int | float],
    given: tuple[type, ...] = (),
) -> onnxruntime.InferenceSession:
    """A session of one node with its first `count` inputs, each of any shape. given: their types,
    where they are not the usual ones; those of a cache go out as they came."""
    kinds = [np.dtype(t) for t in (given or INPUTS[name])[:count]]
    types = [helper.np_dtype_to_tensor_dtype(t) for t in kinds]
    inputs = [helper.make_tensor_value_info(f"i{i}", t, None) for i, t in enumerate(types)]
    made = [f"o{i}" for i in range(OUTPUTS.get(name, 1))]
    out = [TensorProto.FLOAT, *(types[1:3] if name == "Attention" else [TensorProto.FLOAT])]
    outputs = [helper.make_tensor_value_info(o, t, None) for o, t in zip(made, out, strict=False)]
    node = helper.make_node(name, [i.name for i in inputs], made, domain=native.DOMAIN)
    node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
    graph = helper.make_graph([node], "one", inputs, outputs)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(native.DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_cpu_mem_arena = False  # a block of memory for each result
    options.log_severity_level = 4
    native.register(options)
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


@cache
def known(
    name: str, threads: int = 2, count: int = 10, given: tuple[type, ...] = ()
) -> onnxruntime.InferenceSession:
    return operator(name, threads, count, ATTRIBUTES.get(name, {}), given)


def run(made: onnxruntime.InferenceSession, *values: np.ndarray) -> np.ndarray:
    feeds = {f"i{i}": value for i, value in enumerate(values)}
    return np.asarray(made.run(["o0"], feeds)[0])


def run_or_refuse(made: onnxruntime.InferenceSession, *values: np.ndarray) -> np.ndarray | None:
    """None where the kernel, and not the runtime, says that the input is wrong."""
    try:
        return run(made, *values)
    except Exception as error:
        if "specrt" not in str(error):
            raise
        return None


def words(packed: np.ndarray) -> list[int]:
    return [int(word) for word in packed[: emit.HEADER].view(np.uint32)]


MIXED = emit.pack([tensor(20, 96, kind) for kind in ("Q4_0", "Q4_1", "Q8_0")])
X = np.random.default_rng(0).standard_normal((2, 96)).astype(np.float32)


def accepts_only_what_it_says(packed: np.ndarray) -> None:
    made = run_or_refuse(known("MatMul", count=2), X, packed)
    if made is not None:
        magic, columns, count, *rest = words(packed)
        heights = rest[: 2 * count : 2]
        assert (magic, columns) == (emit.MAGIC, 96)
        assert 1 <= count <= emit.MOST
        assert min(heights) >= 1
        assert made.shape == (2, sum(heights))


@many
@given(at=st.integers(0, emit.HEADER - 1), written=st.binary(min_size=1, max_size=12))
def test_any_bytes_in_a_header_are_refused_or_true(at: int, written: bytes) -> None:
    packed = MIXED.copy()
    packed[at : at + len(written)] = np.frombuffer(written, np.uint8)[: packed.size - at]
    accepts_only_what_it_says(packed)


numbers = st.one_of(st.integers(0, 20), st.integers(0, 2**32 - 1), st.sampled_from([2**31, 2**29]))


@many
@given(st.lists(numbers, min_size=15, max_size=15), st.integers(0, 4000))
@example([96, 1, 2**32 - 1, 0, *[0] * 11], 0)
@example([2**29 - 1, 6, *[2**29 - 1, 2] * 6, 0], 100)
@example([96, 7, *[1, 0] * 6, 1], 7 * 2 * 576)
@example([96, 1, 0, 0, *[0] * 11], 0)
def test_any_header_is_refused_or_true(rest: list[int], size: int) -> None:
    header = np.array([emit.MAGIC, *rest], np.uint32).view(np.uint8)
    accepts_only_what_it_says(np.concatenate([header, np.zeros(size, np.uint8)]))


def test_weights_without_columns_are_refused() -> None:
    packed = np.zeros(emit.HEADER, np.uint8)
    packed[:20] = np.array([emit.MAGIC, 0, 1, 16, 0], np.uint32).view(np.uint8)
    assert run_or_refuse(known("MatMul", count=2), X[:, :0], packed) is None


@many
@given(st.integers(0, MIXED.size + 100))
def test_weights_of_another_size_are_refused(size: int) -> None:
    packed = np.resize(MIXED, size)
    assert (run_or_refuse(known("MatMul", count=2), X, packed) is None) == (size != MIXED.size)


@many
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 51), max_size=40))
def test_an_id_outside_the_table_is_refused(ids: list[int]) -> None:
    table = emit.pack([tensor(50, 96, "Q4_1")])
    made = run_or_refuse(known("Embedding"), np.array(ids, np.int64), table)
    assert (made is not None) == all(0 <= i < 50 for i in ids)
    assert made is None or made.shape == (len(ids), 96)


@many
@given(shapes)
def test_ids_have_a_dimension_less_than_the_most(shape: list[int]) -> None:
    table = emit.pack([tensor(1, 3, "F32")])
    made = run_or_refuse(known("Embedding"), np.zeros(shape, np.int64), table)
    assert (made is not None) == (len(shape) < 8)
    assert made is None or made.shape == (*shape, 3)


@many
@given(shapes, shapes)
def test_a_product_takes_rows_of_its_columns_and_its_bias(x: list[int], bias: list[int]) -> None:
    packed = emit.pack([tensor(3, 2, "F32")])
    made = run_or_refuse(known("MatMul", 2, 3), np.ones(x, FLOAT), packed, np.ones(bias, FLOAT))
    fits = 1 <= len(x) <= 8 and x[-1] == 2 and bias == [3]
    assert (made is not None) == fits
    assert made is None or made.shape == (*x[:-1], 3)


@many
@given(shapes)
def test_a_gate_takes_rows_of_two_halves(x: list[int]) -> None:
    made = run_or_refuse(known("Gate"), np.ones(x, FLOAT))
    assert (made is not None) == (1 <= len(x) <= 8 and x[-1] % 2 == 0)
    assert made is None or made.shape == (*x[:-1], x[-1] // 2)


@many
@given(shapes, shapes, shapes)
@example([2, 3], [3], [2, 3])
def test_a_norm_takes_rows_as_long_as_its_weights(
    x: list[int], weight: list[int], update: list[int]
) -> None:
    made = run_or_refuse(
        known("RMSNorm"), np.ones(x, FLOAT), np.ones(weight, FLOAT), np.ones(update, FLOAT)
    )
    fits = 1 <= len(x) <= 8 and x[-1] > 0 and weight == x[-1:] and update == x
    assert (made is not None) == fits
    assert made is None or made.shape == tuple(x)


@many
@given(
    gate=st.integers(1, 40),
    up=st.integers(1, 40),
    down=st.integers(1, 40),
    bias=st.integers(0, 60),
    rows=st.integers(0, 3),
)
@example(gate=8, up=8, down=8, bias=16, rows=2)
@example(gate=16, up=16, down=16, bias=32, rows=3)
def test_feed_forward_takes_matrices_that_fit_each_other(
    gate: int, up: int, down: int, bias: int, rows: int
) -> None:
    first = emit.pack([tensor(gate, 32, "F32"), tensor(up, 32, "F32")])
    second = emit.pack([tensor(5, down, "F32")])
    made = run_or_refuse(
        known("FeedForward", 2, 5),
        np.ones((rows, 32), FLOAT),
        first,
        second,
        np.ones(bias, FLOAT),
        np.ones(5, FLOAT),
    )
    assert (made is not None) == (gate == up == down and bias == gate + up)
    assert made is None or made.shape == (rows, 5)


@many
@given(shapes, shapes, shapes, st.booleans())
@example([2, 3], [3], [2, 3], False)
@example([2, 3], [3], [2, 3], True)
@example([2, 3], [3], [3, 2], True)
@example([2, 3], [4], [2, 3], True)
def test_a_product_takes_a_norm_and_an_update_of_its_rows(
    x: list[int], weight: list[int], update: list[int], feed_forward: bool
) -> None:
    first, second = emit.pack([tensor(4, 3, "F32")] * 2), emit.pack([tensor(8, 4, "F32")])
    ends = np.ones(weight, FLOAT), np.ones(update, FLOAT)
    biases = np.ones(8, FLOAT), np.ones(8, FLOAT)
    if feed_forward:
        made = run_or_refuse(known("FeedForward"), np.ones(x, FLOAT), first, second, *biases, *ends)
    else:
        made = run_or_refuse(known("MatMul"), np.ones(x, FLOAT), first, biases[0], *ends)
    fits = 1 <= len(x) <= 8 and x[-1] == 3 and weight == [3] and update == x
    assert (made is not None) == fits
    assert made is None or made.shape == (*x[:-1], 8)


def attention_inputs(rows: int = 3, capacity: int = 16) -> list[np.ndarray]:
    """Of two sequences, 4 heads of 8 numbers, 2 of keys; all optional ones are there."""
    return [
        np.ones((2, rows, 64), FLOAT),
        np.zeros((2, 2, capacity // 16, 8, 16), FLOAT),
        np.zeros((2, 2, capacity, 8), FLOAT),
        np.array([rows - 1, rows + 1], np.int32),
        np.tile(np.arange(rows) - 1, (2, 1)),
        *(np.ones((capacity + 8, 4), FLOAT) for _ in range(2)),
        *(np.ones(8, FLOAT) for _ in range(2)),
        np.ones(4, FLOAT),
    ]


def code_inputs(rows: int = 3, capacity: int = 16) -> list[np.ndarray]:
    """The same over an int8 cache."""
    inputs = attention_inputs(rows, capacity)
    inputs[1] = np.zeros((2, 2, capacity // 16, 9, 16, 4), np.int8)
    inputs[2] = np.zeros((2, 2, capacity, 36), np.int8)
    return inputs


def test_attention_takes_what_fits() -> None:
    assert run(known("Attention"), *attention_inputs()).shape == (2, 3, 32)
    assert run(known("Attention"), *attention_inputs(rows=0)).shape == (2, 0, 32)
    assert run(known("Attention", given=CODES), *code_inputs()).shape == (2, 3, 32)
    assert run(known("Attention", given=CODES), *code_inputs(rows=0)).shape == (2, 0, 32)
    assert run(known("Attention", given=CODES), *code_inputs(capacity=48)).shape == (2, 3, 32)


@settings(max_examples=600)
@given(
    at=st.integers(0, 9),
    shape=st.lists(st.sampled_from([0, 1, 2, 3, 4, 8, 16]), max_size=5)
    | st.sampled_from([[2, 3, 63], [2, 4, 64], [2, 2, 2, 8, 16], [2, 2, 32, 8], [16, 5], [15, 4]]),
)
def test_attention_refuses_an_input_of_another_shape(at: int, shape: list[int]) -> None:
    inputs = attention_inputs()
    changed = tuple(shape) != inputs[at].shape
    inputs[at] = np.zeros(shape, inputs[at].dtype)
    made = run_or_refuse(known("Attention"), *inputs)
    positions = at in (3, 4, 5, 6)  # zeros are other lengths, parents or angles
    assert made is None or not changed or positions


@settings(max_examples=600)
@given(
    at=st.integers(0, 9),
    shape=st.lists(st.sampled_from([0, 1, 2, 3, 4, 9, 16, 36]), max_size=6)
    | st.sampled_from(
        [
            *([2, 3, 63], [2, 3, 528], [2, 3, 264], [2, 3, 256], [2, 3, 7]),
            *([2, 2, 2, 9, 16, 4], [2, 2, 1, 9, 16, 3], [2, 2, 1, 18, 16, 4], [2, 2, 1, 8, 16, 4]),
            *([2, 2, 1, 36, 16], [2, 2, 16, 9], [2, 2, 32, 36], [2, 2, 16, 68], [2, 2, 16, 35]),
        ]
    ),
)
@example(1, [2, 2, 1, 8, 16])
@example(2, [2, 2, 16, 8])
@example(2, [1, 2, 16, 36])
def test_attention_refuses_an_int8_cache_of_another_shape(at: int, shape: list[int]) -> None:
    inputs = code_inputs()
    changed = tuple(shape) != inputs[at].shape
    inputs[at] = np.zeros(shape, inputs[at].dtype)
    made = run_or_refuse(known("Attention", given=CODES), *inputs)
    # Zeros are other lengths, parents or angles; heads of up to 32 numbers have one cache.
    fit = at in (3, 4, 5, 6)
    assert made is None or not changed or fit


@many
@given(st.binary(min_size=64, max_size=64), st.integers(0, 2**32 - 1))
def test_attention_takes_any_bytes_for_an_int8_cache(some: bytes, seed: int) -> None:
    inputs = code_inputs(capacity=48)
    rng = np.random.default_rng(seed)
    for at in (1, 2):
        inputs[at] = rng.integers(-128, 128, inputs[at].shape).astype(np.int8)
        inputs[at].reshape(-1)[:64] = np.frombuffer(some, np.int8)
    inputs[3] = np.array([40, 47], np.int32)
    with np.errstate(all="ignore"):
        assert run(known("Attention", given=CODES), *inputs).shape == (2, 3, 32)


def test_a_cache_is_of_one_type() -> None:
    with pytest.raises(Exception, match=r"(?i)type"):
        known("Attention", given=(FLOAT, np.int8, FLOAT, *CODES[3:]))


@many
@given(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 17), min_size=2, max_size=2))
def test_attention_refuses_lengths_beyond_its_cache(lengths: list[int]) -> None:
    inputs = attention_inputs()
    inputs[3] = np.array(lengths, np.int32)
    made = run_or_refuse(known("Attention"), *inputs)
    assert (made is not None) == all(2 <= length < 16 for length in lengths)


@many
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2), min_size=3, max_size=3))
def test_attention_refuses_parents_that_do_not_stand_before(parents: list[int]) -> None:
    inputs = attention_inputs()
    inputs[4] = np.array([parents, [-1, -1, 1]])
    made = run_or_refuse(known("Attention"), *inputs)
    assert (made is not None) == all(-1 <= parent < i for i, parent in enumerate(parents))


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_missing_attribute_is_an_error_when_the_session_is_made(name: str) -> None:
    for left_out in ATTRIBUTES[name]:
        rest = {k: v for k, v in ATTRIBUTES[name].items() if k != left_out}
        with pytest.raises(Exception, match=left_out):
            operator(name, 1, 10, rest)


@pytest.mark.parametrize(
    ("name", "attribute", "value"),
    [
        ("Gate", "activation", 2),
        ("Gate", "activation", -(2**63)),
        ("Gate", "activation", 0.5),
        ("FeedForward", "activation", -1),
        ("RMSNorm", "epsilon", 1),
        ("Attention", "num_heads", 0),
        ("Attention", "num_heads", 3),
        ("Attention", "num_heads", 2**63 - 1),
        ("Attention", "kv_num_heads", 0),
        ("Attention", "kv_num_heads", -2),
        ("Attention", "window", -1),
        ("Attention", "window", 2**40),
    ],
)
def test_a_corrupt_attribute_is_an_error_when_the_session_is_made(
    name: str, attribute: str, value: int | float
) -> None:
    with pytest.raises(Exception, match=f"specrt {name}|Attribute name and type don't match"):
        operator(name, 1, 10, {**ATTRIBUTES[name], attribute: value})


@pytest.mark.parametrize("name", INPUTS)
def test_a_missing_input_is_an_error(name: str) -> None:
    required = {"MatMul": 2, "Embedding": 2, "Gate": 1, "FeedForward": 3, "RMSNorm": 2}
    with pytest.raises(Exception, match="input"):
        operator(name, 1, required.get(name, 4) - 1, ATTRIBUTES.get(name, {}))


@settings(max_examples=60)
@given(
    kind=st.sampled_from(["Q4_0", "Q4_1", "Q8_0", "F32"]),
    height=st.integers(1, 70),
    width=st.integers(1, 9),
    rows=st.integers(1, 40),
    threads=st.integers(1, 8),
    seed=st.integers(0, 99),
)
def test_a_product_of_any_size_is_exact_on_any_number_of_threads(
    kind: str, height: int, width: int, rows: int, threads: int, seed: int
) -> None:
    weights = tensor(height, width if kind == "F32" else 32 * width, kind, seed)
    cols = weights.shape[1]
    x = np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)
    got = run(known("MatMul", threads, 2), x, emit.pack([weights]))
    assert np.array_equal(got, reference(x, emit._codes(weights, 0, height)))


def test_many_sessions_in_threads_say_the_same() -> None:
    packed = emit.pack([tensor(200, 256, "Q4_K")])
    x = np.random.default_rng(1).standard_normal((9, 256)).astype(np.float32)
    want = run(known("MatMul", 1, 2), x, packed)
    shared = known("MatMul", 2, 2)

    def work(seed: int) -> bool:
        own = operator("MatMul", 1 + seed % 4, 2, {})
        return all(np.array_equal(run(s, x, packed), want) for _ in range(5) for s in (own, shared))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(32)))
