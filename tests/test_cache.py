"""The cache equals a Python list of tokens, whatever is read, kept and forgotten."""

import numpy as np
import onnxruntime as ort
import pytest

from specrt.runtime.cache import Buffer, SharedCache
from specrt.runtime.errors import CapacityError

NAMES = [("past.0.key", "present.0.key"), ("past.0.value", "present.0.value")]
TILE, HEADS, SIZE, LIMIT = 4, 2, 3, 40
VALUES = (1, HEADS, "capacity", SIZE)
PLAIN = [Buffer(past, present, VALUES) for past, present in NAMES]
TILED = [Buffer(*NAMES[0], (1, HEADS, "tiles", SIZE, TILE)), Buffer(*NAMES[1], VALUES)]
CODES = [  # keys are larger than values, and a line of theirs has some bytes of each entry
    Buffer(*NAMES[0], (1, HEADS, "tiles", SIZE + 2, TILE, 2)),
    Buffer(*NAMES[1], VALUES),
]
KINDS = pytest.mark.parametrize("buffers", [PLAIN, TILED, CODES], ids=["plain", "tiled", "codes"])


class FakeBinding:
    """What is bound, and a graph that writes a token into all of its entry's numbers."""

    def __init__(self) -> None:
        self.inputs: dict[str, ort.OrtValue] = {}
        self.outputs: dict[str, ort.OrtValue] = {}
        self.calls = 0

    def bind_ortvalue_input(self, name: str, value: ort.OrtValue) -> None:
        self.inputs[name] = value
        self.calls += 1

    def bind_ortvalue_output(self, name: str, value: ort.OrtValue) -> None:
        self.outputs[name] = value

    def run(self, start: int, tokens: list[int]) -> None:
        for index, (past, present) in enumerate(NAMES):
            assert self.inputs[past] is self.outputs[present]
            array = self.inputs[past].numpy()
            for entry, token in enumerate(tokens, start):
                at = (entry,) if array.ndim == 4 else (entry // TILE, slice(None), entry % TILE)
                array[(0, slice(None), *at)] = token + index / 2


def made(capacity: int = 4, buffers: list[Buffer] = PLAIN) -> tuple[SharedCache, FakeBinding]:
    cache = SharedCache(buffers, np.float32, limit=LIMIT, capacity=capacity)
    return cache, FakeBinding()


def append(cache: SharedCache, binding: FakeBinding, tokens: list[int]) -> None:
    cache.bind(binding, len(tokens))
    binding.run(cache.length, tokens)
    cache.absorb({}, len(tokens))


def held(binding: FakeBinding, length: int) -> list[int]:
    """The tokens of the first entries, once every head and number of every layer agrees."""
    found = []
    for index, (past, _) in enumerate(NAMES):
        array = binding.inputs[past].numpy()[0]
        if array.ndim > 3:  # (heads, tiles, size, tile, …)
            array = array.swapaxes(2, 3)
            array = array.reshape(HEADS, array.shape[1] * TILE, -1)
        entries = array[:, :length] - index / 2  # (heads, n, size)
        assert (entries == entries[:1, :, :1]).all()
        found.append(entries[0, :, 0].astype(int).tolist())
    assert found[0] == found[1]
    return found[0]


@KINDS
@pytest.mark.parametrize("seed", range(40))
def test_a_random_life_of_the_cache_is_that_of_a_list(seed, buffers):
    rng = np.random.default_rng(seed)
    cache, binding = made(buffers=buffers)
    model: list[int] = []
    token = 0
    for _ in range(60):
        rows = int(rng.integers(1, 9))
        if len(model) + rows > LIMIT:
            with pytest.raises(CapacityError):
                append(cache, binding, [0] * rows)
            length = int(rng.integers(0, LIMIT // 2))
            cache.keep(length)
            del model[length:]
            continue
        tokens = list(range(token + 1, token + rows + 1))
        token += rows
        append(cache, binding, tokens)
        model += tokens
        if rng.random() < 0.7:
            length = int(rng.integers(0, len(model) + 1))
            block = len(model) - length
            path = sorted(rng.permutation(block)[: rng.integers(0, block + 1)].tolist())
            cache.keep(length, path)
            model = model[:length] + [model[length + i] for i in path]
        assert cache.length == len(model)
        assert held(binding, cache.length) == model


def test_capacity_doubles_when_it_is_used_up_and_ends_at_the_limit():
    cache, binding = made()
    capacities = []
    for token in range(LIMIT):
        append(cache, binding, [token])
        capacities.append(cache.capacity)
    assert sorted(set(capacities)) == [4, 8, 16, 32, LIMIT]
    assert capacities.index(8) == 4
    assert held(binding, LIMIT) == list(range(LIMIT))


def test_a_block_larger_than_double_gets_just_the_room_it_needs():
    cache, binding = made()
    append(cache, binding, list(range(13)))
    assert cache.capacity == 13


def test_tiles_are_whole_and_the_limit_holds_all_the_same():
    cache = SharedCache(TILED, np.float32, limit=10, capacity=5)
    binding = FakeBinding()
    append(cache, binding, [1, 2, 3])
    assert [value.numpy().shape for value in binding.inputs.values()] == [
        (1, HEADS, 2, SIZE, TILE),
        (1, HEADS, 8, SIZE),
    ]
    append(cache, binding, [4, 5, 6, 7, 8, 9])
    assert cache.capacity == 12
    append(cache, binding, [10])
    with pytest.raises(CapacityError, match="11 entries do not fit a cache of 10"):
        append(cache, binding, [11])


def test_more_than_the_limit_is_refused_and_changes_nothing():
    cache, binding = made()
    append(cache, binding, [1, 2, 3])
    with pytest.raises(CapacityError, match="41 entries do not fit a cache of 40"):
        cache.bind(binding, 38)
    assert (cache.length, cache.capacity, held(binding, 3)) == (3, 4, [1, 2, 3])


def test_buffers_are_bound_once_and_again_only_when_they_grow():
    cache, binding = made()
    for token in range(4):
        append(cache, binding, [token])
    assert binding.calls == len(NAMES)
    append(cache, binding, [4])
    assert binding.calls == 2 * len(NAMES)


@KINDS
def test_a_contiguous_path_copies_nothing(buffers):
    cache, binding = made(8, buffers)
    append(cache, binding, [1, 2, 3, 4, 5, 6])
    before = {name: value.numpy().copy() for name, value in binding.inputs.items()}
    cache.keep(2, [0, 1, 2])
    assert cache.length == 5
    assert all(np.array_equal(binding.inputs[n].numpy(), before[n]) for n in before)


@KINDS
def test_a_path_may_overlap_the_place_it_moves_to(buffers):
    cache, binding = made(8, buffers)
    append(cache, binding, [1, 2, 3, 4, 5, 6])
    cache.keep(1, [1, 2, 4])
    assert held(binding, cache.length) == [1, 3, 4, 6]


def test_fresh_entries_are_zero_so_that_masked_ones_are_finite():
    cache, binding = made(capacity=8)
    cache.bind(binding, 1)
    assert all(not value.numpy().any() for value in binding.inputs.values())
