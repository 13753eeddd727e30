"""Graphs of flavour cpu say what transformers said: every architecture, every kind of call."""

import numpy as np
import onnx
import pytest
from gguf_writer import write_gguf
from golden.cases import CASES
from tiny_graphs import (
    MODELS,
    NAMES,
    WINDOWS,
    checkpoint,
    golden,
    opened,
    paths,
    read,
    worst,
    written,
)

from specrt.export.build import Packer
from specrt.export.graph import Outputs, write_decoder
from specrt.export.source import open_source

CLOSE = 1e-4  # of logits with a spread of 3; measured at most 2.4e-5
TREE = [-1, 0, 1, 0, 3, 4, 3, 6]


@pytest.mark.parametrize("name", NAMES)
def test_whole_in_chunks_and_one_by_one_are_the_golden_logits(name, tmp_path):
    tokens, logits = golden(name)
    session = written(tmp_path, name).session()
    for block in (len(tokens), 7, 1):
        assert worst(read(session, tokens, block), logits) < CLOSE


@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_the_same_bit_for_bit_in_every_block(name, tmp_path):
    tokens, _ = golden(name)
    session = written(tmp_path, name).session()
    whole = read(session, tokens, len(tokens))
    for block in (1, 2, 5, 16):
        assert np.array_equal(read(session, tokens, block), whole)


def test_a_text_past_the_original_context_is_read_with_the_long_factors(tmp_path):
    held = np.load(MODELS / "phi3-longrope" / "golden.npz")
    model = open_source(MODELS / "phi3-longrope")
    write_decoder(tmp_path, model.config, Packer(model, "fp32", lambda: None))
    logits = read(opened(tmp_path, model.config), held["tokens_long"], 40)
    assert worst(logits[-len(held["logits_long"]) :], held["logits_long"]) < CLOSE


@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].gguf])
def test_a_gguf_of_the_same_weights_gives_the_golden_logits(name, tmp_path):
    tokens, logits = golden(name)
    write_gguf(MODELS / name, tmp_path / "model.gguf")
    model = open_source(tmp_path / "model.gguf", checkpoint(name).config.context)
    write_decoder(tmp_path / "graph", model.config, Packer(model, "fp32", lambda: None))
    assert worst(read(opened(tmp_path / "graph", model.config), tokens, 9), logits) < CLOSE


@pytest.mark.parametrize("name", ["llama", "smollm3", *WINDOWS])
@pytest.mark.parametrize("start", [1, 40])
def test_each_path_of_a_tree_is_read_as_if_alone(name, start, tmp_path):
    tokens, _ = golden(name)
    session = written(tmp_path, name).session()
    block = tokens[start : start + len(TREE)]
    session.forward(tokens[:start])
    logits = session.forward(block, np.array(TREE), last=len(TREE)).logits
    for path in paths(TREE):
        session.keep(start)
        alone = session.forward(block[path], last=len(path)).logits
        assert worst(logits[path], alone) < CLOSE


@pytest.mark.parametrize("name", ["llama", *WINDOWS])
def test_reading_goes_on_from_a_kept_path_as_from_the_path_alone(name, tmp_path):
    tokens, _ = golden(name)
    session = written(tmp_path, name).session()
    block, after = tokens[30:38], tokens[38:44]
    for path in paths(TREE):
        session.keep(0)
        session.forward(np.concatenate([tokens[:30], block[path]]))
        alone = session.forward(after, last=len(after)).logits
        session.keep(30)
        session.forward(block, np.array(TREE))
        session.keep(30, path)
        assert worst(session.forward(after, last=len(after)).logits, alone) < CLOSE


def test_hidden_states_are_what_the_head_reads(tmp_path):
    tokens, logits = golden("llama")
    session = written(tmp_path, "llama", outputs=Outputs(hidden=True)).session()
    output = session.forward(tokens, last=5)
    head = checkpoint("llama").tensor("lm_head.weight").float32()
    assert output.hidden is not None
    assert worst(output.hidden @ head.T, logits[-5:]) < CLOSE


def test_taps_are_the_streams_that_enter_their_layers(tmp_path):
    graph = written(tmp_path, "llama", outputs=Outputs(taps=(0, 2)))
    model = onnx.load(graph.folder / "model.onnx", load_external_data=False)
    taps = next(node for node in model.graph.node if node.output[0] == "taps")
    joined = next(node for node in model.graph.node if node.output[0] == taps.input[0])
    makers = {name: node for node in model.graph.node for name in node.output if name}
    assert [makers[name].op_type for name in joined.input] == [
        "Gather",  # the embedding enters the first layer
        "SkipSimplifiedLayerNormalization",
    ]
    assert list(makers[joined.input[1]].output).index(joined.input[1]) == 3


@pytest.mark.parametrize(("name", "nodes"), [("llama", 12), ("qwen3", 19), ("gemma3", 21)])
def test_a_layer_has_as_few_nodes_as_are_known(name, nodes, tmp_path):
    model = checkpoint(name)
    graph = written(tmp_path, name)
    found = onnx.load(graph.folder / "model.onnx", load_external_data=False).graph.node
    assert len(found) == graph.nodes
    starts = [i for i, node in enumerate(found) if node.op_type == "GroupQueryAttention"]
    assert len(starts) == len(model.config.layers)
    assert starts[-1] - starts[-2] == nodes
