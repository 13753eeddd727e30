"""Decoders of other exporters: what is refused, and that the others read text like any session.

Graphs are the recorded one of tests/golden/optimum with one thing changed.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data
from onnxruntime.quantization import quantize_dynamic

from specrt.export.build import export
from specrt.export.foreign import find_graph
from specrt.runtime.bundle import Manifest, read_manifest
from specrt.runtime.errors import CapacityError, CheckError, RequestError, SourceError
from specrt.runtime.foreign import ForeignSession

FIXTURE = Path(__file__).parent / "golden" / "optimum"
GOLDEN = np.load(FIXTURE / "golden.npz")
TOKENS, LOGITS = GOLDEN["tokens"], GOLDEN["logits"]  # (48,), (48, 272)
ROUNDING = 1e-5  # between blocks of the same fp32 graph; 5e-6 seen between one row and several
VOCAB, CONTEXT = 272, 256

Change = Callable[[onnx.ModelProto], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The recorded folder, free to be changed."""
    shutil.copytree(FIXTURE, tmp_path / "optimum")
    return tmp_path / "optimum"


@pytest.fixture
def session() -> ForeignSession:
    return ForeignSession(FIXTURE / "model.onnx", context=CONTEXT, vocab=VOCAB)


def change(folder: Path, *changes: Change) -> Path:
    model = onnx.load(folder / "model.onnx")
    for one in changes:
        one(model)
    onnx.save(model, folder / "model.onnx")
    return folder


def settings(folder: Path, **values: object) -> Path:
    held = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**held, **values}))
    return folder


def logits_of(session: ForeignSession, block: int) -> np.ndarray:
    session.keep(0)
    parts = [TOKENS[i : i + block] for i in range(0, len(TOKENS), block)]
    return np.concatenate([session.forward(part, last=len(part)).logits for part in parts])


def exported(folder: Path, **options: object) -> Manifest:
    return export(folder, folder.parent / "out", **options)  # type: ignore[arg-type]


# Changes to a graph


def drop_input(name: str) -> Change:
    """The input becomes a constant of no past."""

    def apply(model: onnx.ModelProto) -> None:
        item = next(x for x in model.graph.input if x.name == name)
        model.graph.input.remove(item)
        empty = np.zeros((1, 1, 0, 16), np.float32)
        model.graph.initializer.append(numpy_helper.from_array(empty, name))

    return apply


def add_state(name: str) -> Change:
    def apply(model: onnx.ModelProto) -> None:
        past, present = f"past_{name}", f"present_{name}"
        model.graph.input.append(helper.make_tensor_value_info(past, TensorProto.FLOAT, [1, 4]))
        model.graph.output.append(helper.make_tensor_value_info(present, TensorProto.FLOAT, [1, 4]))
        model.graph.node.append(helper.make_node("Identity", [past], [present]))

    return apply


def rename(model: onnx.ModelProto, old: str, new: str) -> None:
    for node in model.graph.node:
        for field in (node.input, node.output):
            names = [new if name == old else name for name in field]
            del field[:]
            field.extend(names)


def slice_output(name: str, axis: int, start: int) -> Change:
    """Only what comes after `start` on the axis is given."""

    def apply(model: onnx.ModelProto) -> None:
        rename(model, name, "whole")
        ends = np.array([np.iinfo(np.int64).max])
        for key, value in {"s": np.array([start]), "e": ends, "a": np.array([axis])}.items():
            model.graph.initializer.append(numpy_helper.from_array(value, f"slice.{key}"))
        inputs = ["whole", "slice.s", "slice.e", "slice.a"]
        model.graph.node.append(helper.make_node("Slice", inputs, [name]))
        shape = next(x for x in model.graph.output if x.name == name).type.tensor_type.shape
        shape.dim[axis].dim_param = "sliced"

    return apply


def see_the_future(model: onnx.ModelProto) -> None:
    """No causal mask, as in a graph that was traced with one row."""
    place, node = next((i, n) for i, n in enumerate(model.graph.node) if n.op_type == "LessOrEqual")
    model.graph.initializer.append(numpy_helper.from_array(np.array(10**6), "far"))
    model.graph.node.insert(place, helper.make_node("Add", [node.input[1], "far"], ["later"]))
    node.input[1] = "later"


def name_lengths_past_plus_one(model: onnx.ModelProto) -> None:
    for item in (*model.graph.input, *model.graph.output):
        for dim in item.type.tensor_type.shape.dim:
            if dim.dim_param == "past_sequence_length + sequence_length":
                dim.dim_param = "past_sequence_length + 1"


def leave_sizes_open(model: onnx.ModelProto) -> None:
    for item in model.graph.input:
        if item.name.startswith("past"):
            item.type.tensor_type.shape.dim[1].dim_param = "kv_heads"
            item.type.tensor_type.shape.dim[3].dim_param = "kv_cache_dim"


def count_positions(model: onnx.ModelProto) -> None:
    """position_ids are no input: they are counted from the length of the past."""
    item = next(x for x in model.graph.input if x.name == "position_ids")
    model.graph.input.remove(item)
    make = helper.make_node
    constants = {"p.two": np.array(2), "p.one": np.array(1), "p.axis": np.array([0])}
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    nodes = [
        make("Shape", ["past_key_values.0.key"], ["p.past"]),
        make("Gather", ["p.past", "p.two"], ["p.start"]),
        make("Shape", ["input_ids"], ["p.ids"]),
        make("Gather", ["p.ids", "p.one"], ["p.rows"]),
        make("Add", ["p.start", "p.rows"], ["p.end"]),
        make("Range", ["p.start", "p.end", "p.one"], ["p.range"]),
        make("Unsqueeze", ["p.range", "p.axis"], ["position_ids"]),
    ]
    for node in reversed(nodes):
        model.graph.node.insert(0, node)


def merge(model: onnx.ModelProto) -> None:
    """As optimum merges two graphs: a branch that reads no past, and one that does."""
    outputs = list(model.graph.output)
    branches = []
    for prefix in ("fresh.", "cached."):
        branch = onnx.GraphProto(name=prefix)
        made = {name for node in model.graph.node for name in node.output}
        pasts = [x for x in model.graph.input if x.name.startswith("past")]
        names = {name: prefix + name for name in made}
        if prefix == "fresh.":
            names |= {x.name: prefix + x.name for x in pasts}
            empty = np.zeros((1, 1, 0, 16), np.float32)
            branch.initializer.extend(
                numpy_helper.from_array(empty, prefix + x.name) for x in pasts
            )
        for node in model.graph.node:
            copy = branch.node.add()
            copy.CopyFrom(node)
            copy.name = prefix + (node.name or node.output[0])
            for field in (copy.input, copy.output):
                renamed = [names.get(name, name) for name in field]
                del field[:]
                field.extend(renamed)
        for item in outputs:
            copy = branch.output.add()
            copy.CopyFrom(item)
            copy.name = prefix + item.name
        branches.append(branch)
    del model.graph.node[:]
    fresh, cached = branches
    flag = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    model.graph.input.append(flag)
    results = [x.name for x in outputs]
    node = helper.make_node("If", [flag.name], results, then_branch=cached, else_branch=fresh)
    model.graph.node.append(node)


# The session


def test_the_recorded_logits_are_given(session: ForeignSession) -> None:
    assert np.abs(logits_of(session, len(TOKENS)) - LOGITS).max() < ROUNDING


@pytest.mark.parametrize("block", [1, 2, 5, 17])
def test_rows_do_not_depend_on_their_block_to_the_last_bit(
    session: ForeignSession, block: int
) -> None:
    assert np.array_equal(logits_of(session, block), logits_of(session, len(TOKENS)))


def test_a_rolled_back_session_reads_like_a_fresh_one(session: ForeignSession) -> None:
    fresh = logits_of(session, 4)
    session.keep(10)
    session.forward(TOKENS[::-1])
    session.keep(8, (0, 1))
    assert session.length == 10
    again = session.forward(TOKENS[10:], last=2).logits
    assert np.array_equal(again, fresh[-2:])


def test_logits_stay_when_the_next_call_is_made(session: ForeignSession) -> None:
    first = session.forward(TOKENS[:4], last=4).logits
    before = first.copy()
    session.forward(TOKENS[4:8])
    assert np.array_equal(first, before)


def test_a_chain_given_as_parents_is_a_chain(session: ForeignSession) -> None:
    parents = np.array([-1, 0, 1])
    assert session.forward(TOKENS[:3], parents, last=3).logits.shape == (3, VOCAB)


def test_a_tree_is_refused_and_changes_nothing(session: ForeignSession) -> None:
    with pytest.raises(RequestError, match="chains only"):
        session.forward(TOKENS[:3], np.array([-1, 0, 0]))
    assert session.length == 0


def test_a_merged_graph_reads_first_in_the_branch_without_past(folder: Path) -> None:
    def negate_fresh(model: onnx.ModelProto) -> None:
        branch = next(x.g for x in model.graph.node[0].attribute if x.name == "else_branch")
        branch.node.append(helper.make_node("Neg", ["fresh.logits"], ["fresh.negated"]))
        branch.output[0].name = "fresh.negated"

    path = change(folder, merge, negate_fresh) / "model.onnx"
    session = ForeignSession(path, context=CONTEXT, vocab=VOCAB)
    first, second = (session.forward(TOKENS[i : i + 9], last=9).logits for i in (0, 9))
    assert np.abs(first + LOGITS[:9]).max() < ROUNDING
    assert np.abs(second - LOGITS[9:18]).max() < ROUNDING


def test_one_entry_of_the_context_is_left_for_the_dropped_row(session: ForeignSession) -> None:
    assert session.capacity == CONTEXT - 1


def test_the_context_can_be_filled_but_not_overrun(session: ForeignSession) -> None:
    session.forward(np.resize(TOKENS, session.capacity - 1))
    session.forward(TOKENS[:1])
    assert session.length == session.capacity
    with pytest.raises(CapacityError, match=f"context of {session.capacity}"):
        session.forward(TOKENS[:1])


# Folders


@pytest.mark.parametrize(
    "changes",
    [(count_positions,), (merge,), (count_positions, merge), (name_lengths_past_plus_one,)],
    ids=["no positions", "merged", "merged, no positions", "past + 1"],
)
def test_variants_of_the_graph_are_exact_and_give_the_recorded_logits(
    folder: Path, changes: tuple[Change, ...]
) -> None:
    manifest = exported(change(folder, *changes))
    assert [manifest.checks[name]["rms"] for name in ("chunks", "rows", "rollback")] == [0, 0, 0]
    path = folder.parent / "out" / manifest.graphs[0].path
    session = ForeignSession(path, context=CONTEXT, vocab=VOCAB)
    assert np.abs(logits_of(session, 7) - LOGITS).max() < ROUNDING


def test_the_bundle_holds_the_folder_unchanged(folder: Path) -> None:
    manifest = exported(folder)
    out = folder.parent / "out"
    assert read_manifest(out).to_json() == manifest.to_json()
    assert (out / "target/model.onnx").read_bytes() == (FIXTURE / "model.onnx").read_bytes()
    assert (manifest.flavour, manifest.weights, manifest.source.kind) == (
        "optimum",
        "unchanged",
        "optimum",
    )
    assert (manifest.model.vocab, manifest.model.context, manifest.model.eos_ids) == (
        VOCAB,
        CONTEXT,
        (1, 2),
    )
    template = (FIXTURE / "chat_template.jinja").read_text()
    assert (out / "chat_template.jinja").read_text() == template


def test_sizes_that_the_graph_leaves_open_are_taken_from_the_configuration(folder: Path) -> None:
    manifest = exported(change(folder, leave_sizes_open))
    assert (manifest.model.kv_heads, manifest.model.head_dim) == (1, 16)


def test_a_folder_with_genai_config_is_read(folder: Path) -> None:
    (folder / "config.json").unlink()
    decoder = {"head_size": 16, "hidden_size": 32, "num_attention_heads": 2}
    model = {"type": "llama", "context_length": 128, "eos_token_id": 2, "decoder": decoder}
    (folder / "generation_config.json").unlink()
    (folder / "genai_config.json").write_text(json.dumps({"model": model}))
    found = exported(folder).model
    assert (found.context, found.eos_ids, found.heads) == (128, (2,), 2)


def test_external_data_is_copied_with_the_graph(folder: Path) -> None:
    model = onnx.load(folder / "model.onnx")
    convert_model_to_external_data(model, location="weights.bin", size_threshold=64)
    onnx.save(model, folder / "model.onnx")
    files = [(file.path, file.role) for file in exported(folder).graphs]
    assert files == [("target/model.onnx", "decoder"), ("target/weights.bin", "weights")]


def test_dynamic_int8_is_delivered_with_the_difference_of_its_rows(folder: Path) -> None:
    quantize_dynamic(FIXTURE / "model.onnx", folder / "model.onnx")
    checks = exported(folder).checks
    assert checks["rows"]["rms"] > 0.01
    assert checks["rollback"]["rms"] == 0


def test_a_window_that_forgets_limits_the_context(folder: Path) -> None:
    settings(folder, sliding_window=80)
    forgetting = slice_output("present.0.key", 2, -79)
    assert exported(change(folder, forgetting)).model.context == 79


def test_a_window_too_long_to_try_limits_the_context(folder: Path) -> None:
    settings(folder, sliding_window=2000, max_position_embeddings=4096)
    assert exported(folder).model.context == 1999


def test_a_window_that_keeps_every_token_does_not(folder: Path) -> None:
    assert exported(settings(folder, sliding_window=80)).model.context == CONTEXT


# Which graph


def test_the_usual_name_is_chosen_of_several_graphs(folder: Path) -> None:
    (folder / "model.onnx").rename(folder / "decoder_model_merged.onnx")
    shutil.copy(folder / "decoder_model_merged.onnx", folder / "decoder_model.onnx")
    assert exported(folder).checks["graph"] == "decoder_model_merged.onnx"


def test_several_graphs_of_other_names_are_refused_by_name(folder: Path) -> None:
    (folder / "model.onnx").rename(folder / "a.onnx")
    shutil.copy(folder / "a.onnx", folder / "b.onnx")
    with pytest.raises(SourceError, match=r"several graphs; give one: a\.onnx, b\.onnx"):
        exported(folder)
    assert find_graph(folder / "b.onnx") == folder / "b.onnx"


def test_a_graph_in_the_folder_onnx_uses_the_files_above_it(folder: Path) -> None:
    (folder / "onnx").mkdir()
    (folder / "model.onnx").rename(folder / "onnx" / "model.onnx")
    assert exported(folder).source.name == "optimum"


def test_a_folder_with_safetensors_is_exported_from_its_weights(folder: Path) -> None:
    (folder / "model.safetensors").touch()
    assert find_graph(folder) is None


# Refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ((slice_output("logits", 1, -1),), r"logits \[1, 1, 272\] for 3 tokens.*every row"),
        ((slice_output("present.1.key", 2, 1),), "present.1.key holds 2 entries after 3 tokens"),
        ((drop_input("past_key_values.1.value"),), r"present\.1\.value has no past"),
        (
            tuple(drop_input(f"past_key_values.{i}.{x}") for i in (0, 1) for x in ("key", "value")),
            "no inputs past_key_values.*text-generation-with-past",
        ),
        ((add_state("conv.0"),), r"past_conv\.0 is a state that cannot be rolled back"),
        ((add_state("ssm.0"),), r"past_ssm\.0 is a state that cannot be rolled back"),
        ((add_state("other.0"),), r"present_other\.0 has no past or present"),
    ],
)
def test_a_graph_without_what_speculation_needs_is_refused(
    folder: Path, changes: tuple[Change, ...], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        exported(change(folder, *changes))
    assert not (folder.parent / "out").exists()


def test_a_graph_whose_rows_see_the_future_fails_its_check(folder: Path) -> None:
    with pytest.raises(CheckError, match="'chunks'"):
        exported(change(folder, see_the_future))


def test_an_encoder_is_refused(folder: Path) -> None:
    with pytest.raises(SourceError, match="has an encoder"):
        exported(settings(folder, is_encoder_decoder=True))
    (folder / "encoder_model.onnx").touch()
    with pytest.raises(SourceError, match="has an encoder"):
        exported(folder)


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "a/../../b", ""])
def test_external_data_outside_the_folder_is_refused(folder: Path, location: str) -> None:
    model = onnx.load(folder / "model.onnx")
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(SourceError, match="outside the model's folder"):
        exported(folder)


def test_missing_external_data_is_refused_by_name(folder: Path) -> None:
    model = onnx.load(folder / "model.onnx")
    convert_model_to_external_data(model, location="weights.bin", size_threshold=64)
    onnx.save(model, folder / "model.onnx")
    (folder / "weights.bin").unlink()
    with pytest.raises(SourceError, match=r"weights\.bin is missing"):
        exported(folder)


def test_a_graph_cut_short_is_refused(folder: Path) -> None:
    raw = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(SourceError, match="not an ONNX model, or is cut short"):
        exported(folder)


def test_the_tokenizer_of_another_model_is_refused(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["t"] = 5000
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(SourceError, match="is of another model: it gives id 5000"):
        exported(folder)


def test_options_that_cannot_apply_are_refused(folder: Path) -> None:
    with pytest.raises(SourceError, match="leave out --draft, --weights and --flavour"):
        exported(folder, weights="int8")


def test_a_context_beyond_the_model_is_refused(folder: Path) -> None:
    with pytest.raises(SourceError, match="context 512 is longer than the model's 256 tokens"):
        exported(folder, context=512)
