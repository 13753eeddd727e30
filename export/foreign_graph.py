"""The ONNX file of another exporter: is it a decoder we can run, and what must be copied with it.

Nothing but names, types and shapes is looked at; running it is `runtime/foreign.py`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, TensorProto, ValueInfoProto

from specrt.runtime.errors import SourceError
from specrt.runtime.foreign import PAST, PRESENT

INPUTS: Mapping[str, tuple[int, ...]] = {  # besides the past, and the types they may have
    "input_ids": (TensorProto.INT64, TensorProto.INT32),
    "attention_mask": (TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT),
    "position_ids": (TensorProto.INT64, TensorProto.INT32),
    "use_cache_branch": (TensorProto.BOOL,),
}
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
STATE = re.compile(r"conv|ssm|recurrent|rnn|mamba|rwkv")  # in the name of a state without a length
DYNAMIC = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul")
WITH_PAST = "export it again with optimum-cli and --task text-generation-with-past"


@dataclass(frozen=True, slots=True)
class ForeignGraph:
    """A graph to copy. data: its external files, relative to it. layers: pairs of key and value.
    kv_heads, head_dim, vocab: 0 where the graph does not say. is_dynamic: it rounds activations by
    the range of a whole block, so that rows depend on their neighbours."""

    path: Path
    model: ModelProto
    data: tuple[str, ...]
    layers: int
    kv_heads: int
    head_dim: int
    vocab: int
    is_dynamic: bool

    def with_sizes(self, kv_heads: int, head_dim: int) -> bytes:
        """The model file, with the sizes of the past written where it left them open."""
        if self.kv_heads and self.head_dim:
            return self.path.read_bytes()
        model = ModelProto()
        model.CopyFrom(self.model)
        for item in model.graph.input:
            if item.name.startswith(PAST):
                item.type.tensor_type.shape.dim[1].dim_value = kv_heads
                item.type.tensor_type.shape.dim[3].dim_value = head_dim
        return bytes(model.SerializeToString())


def read_graph(path: Path) -> ForeignGraph:
    """Read and check an ONNX file; SourceError says why it cannot be run."""
    try:
        model = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise SourceError(f"{path.name} cannot be read: {error.strerror}") from None
    except Exception:  # protobuf raises its own types
        raise SourceError(f"{path.name} is not an ONNX model, or is cut short") from None
    try:
        pasts = _check_names(model.graph)
        _, kv_heads, _, head_dim = _sizes(pasts[0])
        logits = next(x for x in model.graph.output if x.name == "logits")
        data = _data_files(model)
        for name in data:
            _check_data(path, name)
    except SourceError as error:
        raise SourceError(f"{path.name}: {error}") from None
    return ForeignGraph(
        path=path,
        model=model,
        data=data,
        layers=len(pasts) // 2,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=[0, *_sizes(logits)][-1],
        is_dynamic=any(x.op_type in DYNAMIC for part in _parts(model) for x in part.node),
    )


def _check_names(graph: GraphProto) -> list[ValueInfoProto]:
    """The past inputs, keys and values; SourceError unless inputs and outputs are as we know."""
    constants = {x.name for x in graph.initializer}
    inputs = {x.name: x for x in graph.input if x.name not in constants}
    outputs = {x.name for x in graph.output}
    for name in (*inputs, *outputs):
        if name.startswith("encoder"):
            raise SourceError(f"{name} belongs to an encoder; only decoder-only models are run")
        if STATE.search(name):
            raise SourceError(
                f"{name} is a state that cannot be rolled back after a rejected draft; "
                "only models whose cache keeps every token are run"
            )
    pasts = [x for name, x in inputs.items() if name.startswith(PAST)]
    presents = {name for name in outputs if name.startswith("present")}
    if not pasts:
        raise SourceError(f"it has no inputs {PAST}<layer>.key and .value; {WITH_PAST}")
    if unpaired := presents ^ {x.name.replace(PAST, PRESENT, 1) for x in pasts}:
        raise SourceError(f"{min(unpaired)} has no past or present beside it; {WITH_PAST}")
    for past in pasts:
        if past.type.tensor_type.elem_type not in FLOATS or len(_sizes(past)) != 4:
            raise SourceError(
                f"{past.name} is {_described(past)}, expected float or float16 of "
                "(batch, kv_heads, length, head_dim)"
            )
    for name, item in inputs.items():
        if name in INPUTS and item.type.tensor_type.elem_type not in INPUTS[name]:
            raise SourceError(f"input {name} is {_described(item)}, which is not supported")
        if name not in INPUTS and not name.startswith(PAST):
            raise SourceError(f"it takes {name}, which is unknown; known: {', '.join(INPUTS)}")
    for name in ("input_ids", "logits"):
        if name not in {*inputs, *outputs}:
            raise SourceError(f"it has no {name}; give the folder of a text-generation model")
    return pasts


def _sizes(item: ValueInfoProto) -> list[int]:
    """Declared dimensions; 0 where they are open."""
    return [max(0, dim.dim_value) for dim in item.type.tensor_type.shape.dim]


def _described(item: ValueInfoProto) -> str:
    kind = TensorProto.DataType.Name(item.type.tensor_type.elem_type).lower()
    return f"{kind} of {len(_sizes(item))} dimensions"


def _parts(model: ModelProto) -> Iterator[GraphProto | FunctionProto]:
    """Everything that has nodes: the graph, its functions, the branches and bodies inside them."""
    waiting: list[GraphProto | FunctionProto] = [model.graph, *model.functions]
    while waiting:
        part = waiting.pop()
        yield part
        for node in part.node:
            for attribute in node.attribute:
                if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                    waiting += [attribute.g, *attribute.graphs]


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every stored tensor, at any depth."""
    for part in _parts(model):
        if isinstance(part, GraphProto):
            yield from part.initializer
            for sparse in part.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for node in part.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)


def _data_files(model: ModelProto) -> tuple[str, ...]:
    """Where its external data lies, each file once."""
    return tuple(
        dict.fromkeys(
            next((x.value for x in tensor.external_data if x.key == "location"), "")
            for tensor in _tensors(model)
            if tensor.data_location == TensorProto.EXTERNAL
        )
    )


def _check_data(graph: Path, name: str) -> None:
    """SourceError unless `name` is a file below the graph's folder, and can be so in a bundle."""
    parts = PurePosixPath(name).parts
    if name != "/".join(parts) or {"", "..", "/"} & {*parts} or {"\\", ":"} & {*name} or not parts:
        raise SourceError(f"its data file {name[:200]!r} lies outside the model's folder")
    if name in (graph.name, "model.onnx"):
        raise SourceError(
            f"its data file {name!r} is a model file; save its data under another name"
        )
    if not (graph.parent / name).is_file():
        raise SourceError(f"its data file {name} is missing; copy or export the folder again")
