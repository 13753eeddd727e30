"""What the measurement of kernels says of a graph and of rounds on a machine that changes."""

from pathlib import Path

import pytest
from onnx import TensorProto, helper, save

from specrt.bench.kernels import BASE, NATIVE, PREFILL, ROWS, ratios_of, read_in_a_step

SIZES = {"table": 1000, "rotations": 100, "layer": 10, "head": 1}


def graph(path: Path, head: str) -> Path:
    """A table that is looked up, a layer with rotations, and a head that may be the table."""
    nodes = [
        helper.make_node("Embedding", ["ids", "table"], ["rows"], domain="specrt"),
        helper.make_node("MatMul", ["rows", "layer"], ["qkv"], domain="specrt"),
        helper.make_node("Attention", ["qkv", "rotations"], ["heads"], domain="specrt"),
        helper.make_node("MatMul", ["heads", head], ["logits"], domain="specrt"),
    ]
    constants = []
    for name, size in SIZES.items():
        tensor = TensorProto(name=name, data_type=TensorProto.UINT8, dims=[size])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "data"), ("length", str(size))):
            tensor.external_data.add(key=key, value=value)
        constants.append(tensor)
    save(helper.make_model(helper.make_graph(nodes, "made", [], [], constants)), path)
    return path


@pytest.mark.parametrize(("head", "read"), [("head", 11), ("table", 1010)])
def test_a_step_reads_a_table_whole_only_as_a_tied_head(
    tmp_path: Path, head: str, read: int
) -> None:
    assert read_in_a_step(graph(tmp_path / "model.onnx", head)) == read


def test_ratios_are_medians_of_the_rounds_own() -> None:
    """Where memory is slow in two rounds of five, k=1 and its base wait alike."""
    slow, fast = 24.0, 16.0
    rounds = [
        {
            NATIVE: {k: one if k == 1 else 28.0 for k in (*ROWS, PREFILL)},
            BASE: {k: one / 0.8 if k == 1 else 56.0 for k in (*ROWS, PREFILL)},
        }
        for one in (fast, slow, slow, fast, fast)
    ]
    found = ratios_of(rounds)[NATIVE]
    assert found["1"] == pytest.approx(0.8)
    assert found["8"] == pytest.approx(0.5)
    assert found["v8"] == pytest.approx(28 / fast)
    assert found["prefill"] == pytest.approx(2.0)
