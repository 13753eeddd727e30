"""A session reads, forgets and goes on; what it cannot do it refuses and is unchanged."""

import numpy as np
import onnxruntime as ort
import pytest
from tiny_graphs import checkpoint, golden, opened, paths, read, worst, written

from specrt.export.attention import TREE_LIMIT
from specrt.export.build import Packer
from specrt.export.flavour import CPU, CUDA, TENSORRT
from specrt.export.graph import Outputs, write_decoder
from specrt.runtime.errors import BundleError, CapacityError, RequestError
from specrt.runtime.session import Session

CLOSE = 1e-4  # of logits with a spread of 3


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    graph = written(tmp_path_factory.mktemp("llama"), "llama", outputs=Outputs(hidden=True))
    return graph.session()


@pytest.fixture
def session(llama):
    llama.keep(0)
    return llama


def test_length_counts_the_tokens_that_were_read(session):
    assert session.length == 0
    session.forward([1, 2, 3])
    session.forward([4])
    assert session.length == 4
    session.keep(2)
    assert session.length == 2


def test_logits_are_those_of_the_last_rows(session):
    tokens, _ = golden("llama")
    whole = session.forward(tokens, last=len(tokens)).logits
    session.keep(0)
    assert np.array_equal(session.forward(tokens, last=3).logits, whole[-3:])


def test_hidden_states_are_those_of_the_last_rows(session):
    tokens, _ = golden("llama")
    whole = session.forward(tokens, last=len(tokens)).hidden
    session.keep(0)
    last = session.forward(tokens, last=3).hidden
    assert last.shape == (3, checkpoint("llama").config.hidden)
    assert np.array_equal(last, whole[-3:])


def test_a_graph_without_hidden_states_gives_none(tmp_path):
    assert written(tmp_path, "llama").session().forward([1]).hidden is None


def test_an_output_stays_as_it_is_when_more_is_read(session):
    first = session.forward([1, 2])
    logits, hidden = first.logits.copy(), first.hidden.copy()
    session.forward([3, 4])
    session.keep(1)
    session.forward([9])
    assert np.array_equal(first.logits, logits)
    assert np.array_equal(first.hidden, hidden)


def test_an_output_that_nobody_holds_is_written_over_and_one_of_whose_rows_is_held_is_not(session):
    places = [session.forward([1]).logits.ctypes.data for _ in range(3)]
    assert places[0] == places[1] == places[2]
    row = session.forward([1]).logits[0]
    seen = row.copy()
    assert session.forward([2]).logits.ctypes.data != places[0]
    assert np.array_equal(row, seen)


@pytest.mark.parametrize("seed", range(8))
def test_a_random_life_of_a_session_says_what_a_fresh_one_says(session, seed):
    rng = np.random.default_rng(seed)
    text: list[int] = []
    for _ in range(12):
        block = rng.integers(1, session.vocab, int(rng.integers(1, 9)))
        chain = np.arange(len(block)) - 1
        parents = np.array([-1, *(rng.integers(0, i) for i in range(1, len(block)))])
        if rng.random() < 0.5:
            session.forward(block, chain)
            text += block.tolist()
            length = int(rng.integers(0, len(text) + 1))
            session.keep(length)
            del text[length:]
        else:
            session.forward(block, parents)
            path = [len(block) - 1]
            while parents[path[0]] >= 0:
                path.insert(0, int(parents[path[0]]))
            session.keep(len(text), path)
            text += block[path].tolist()
        assert session.length == len(text)
    found = session.forward([7, 8], last=2).logits
    session.keep(0)
    assert worst(found, session.forward([*text, 7, 8], last=2).logits) < CLOSE


def test_the_cache_grows_without_a_difference(tmp_path):
    model = checkpoint("llama-yarn", 4096)
    write_decoder(tmp_path, model.config, Packer(model, "fp32", lambda: None))
    tokens = np.random.default_rng(0).integers(1, model.config.vocab, 700)
    whole = read(opened(tmp_path, model.config), tokens, 700)
    grown = read(opened(tmp_path, model.config), tokens, 50)
    assert np.array_equal(grown, whole)


@pytest.mark.parametrize("parents", [None, np.array([-1, 0, 0, 1])])
def test_leftovers_in_the_cache_never_show(session, parents):
    session.forward([1, 2, 3])
    clean = session.forward([4, 5, 6, 7], parents, last=4).logits
    session.keep(3)
    for value in session._cache._values:
        value.numpy()[:, :, 3:] = np.nan
    assert np.array_equal(session.forward([4, 5, 6, 7], parents, last=4).logits, clean)


@pytest.mark.parametrize("name", ["llama", "mistral", "phi3", "gemma3"])
def test_a_tree_may_be_the_first_that_is_read(name, tmp_path):
    """The attention kernel of the CPU numbers the rows of a first block itself."""
    session = written(tmp_path, name, outputs=Outputs(hidden=True)).session()
    tokens, parents = np.arange(5, 11), np.array([-1, 0, 0, 1, -1, 4])
    tree = session.forward(tokens, parents, last=6)
    session.keep(0)
    last = session.forward(tokens, parents, last=2)
    assert np.array_equal(last.logits, tree.logits[4:])
    for path in paths(parents):
        session.keep(0)
        alone = session.forward(tokens[path], last=len(path))
        assert worst(tree.logits[path], alone.logits) < CLOSE
        assert worst(tree.hidden[path], alone.hidden) < CLOSE


# Limits


@pytest.mark.parametrize("flavour", [CPU, CUDA, TENSORRT], ids=["cpu", "cuda", "tensorrt"])
def test_a_context_is_filled_to_its_last_token_and_no_further(flavour, tmp_path):
    session = written(tmp_path, "llama", flavour).session()
    tokens = np.arange(256) % 200 + 1
    whole = read(session, tokens, 256)
    assert worst(read(session, tokens, 100), whole) < CLOSE
    assert session.length == session.capacity == 256
    with pytest.raises(CapacityError, match="257 tokens do not fit the context of 256"):
        session.forward([1])
    assert session.length == 256
    session.keep(255)
    assert worst(session.forward(tokens[255:]).logits, whole[255:]) < CLOSE


def test_a_tree_beyond_what_windows_allow_is_refused(tmp_path):
    session = written(tmp_path, "mistral").session()
    rows = TREE_LIMIT + 1
    star = np.array([-1, *[0] * (rows - 1)])
    with pytest.raises(RequestError, match=f"a tree of {rows} rows is more than the {TREE_LIMIT}"):
        session.forward(np.ones(rows, int), star)
    assert session.length == 0
    session.forward(np.ones(TREE_LIMIT, int), star[:TREE_LIMIT])
    session.keep(0)
    session.forward(np.ones(rows, int))  # chains have no such limit


@pytest.mark.parametrize("flavour", [CPU, TENSORRT], ids=["cpu", "tensorrt"])
def test_a_large_tree_in_a_window_is_read_as_its_paths_alone(flavour, tmp_path):
    session = written(tmp_path, "mistral", flavour).session()
    tokens, _ = golden("mistral")
    block = np.tile(tokens, 2)[:TREE_LIMIT]
    parents = np.arange(-2, TREE_LIMIT - 2)  # two chains side by side
    parents[:2] = -1
    session.forward(tokens[:20])
    logits = session.forward(block, parents, last=TREE_LIMIT).logits
    for side in (0, 1):
        session.keep(20)
        alone = session.forward(block[side::2], last=TREE_LIMIT // 2).logits
        assert worst(logits[side::2], alone) < CLOSE


@pytest.mark.parametrize("damage", [b"", b"not an onnx file"])
def test_a_graph_that_is_none_is_one_line(damage, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(damage)
    with pytest.raises(BundleError) as caught:
        Session(path, context=8, vocab=8)
    assert "cannot be loaded" in str(caught.value)
    assert "\n" not in str(caught.value)


class CopyingBinding(ort.IOBinding):
    """Copies small inputs when they are bound, as providers of other devices do."""

    def bind_ortvalue_input(self, name: str, value: ort.OrtValue) -> None:
        if not name.startswith("past."):
            value = ort.OrtValue.ortvalue_from_numpy(value.numpy().copy())
        super().bind_ortvalue_input(name, value)
        self.__dict__.setdefault("held", {})[name] = value


@pytest.mark.parametrize("flavour", [CUDA, TENSORRT], ids=["cuda", "tensorrt"])
def test_a_provider_that_copies_inputs_sees_those_of_each_call(flavour, tmp_path):
    graph = written(tmp_path, "llama", flavour)
    plain, copying = graph.session(), graph.session()
    copying._binding, copying._copies = CopyingBinding(copying._session), True
    for tokens in ([1, 2, 3], [4], [5], [6, 7], [8, 9]):
        wanted = plain.forward(tokens, last=len(tokens)).logits
        assert np.array_equal(copying.forward(tokens, last=len(tokens)).logits, wanted)
