"""An ONNX graph being written: nodes in memory, large constants streamed to the data file.

Nothing here knows what a transformer is. A large constant is written when it is given and then
forgotten, so building a graph needs no more memory than its largest constant.
"""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from specrt.runtime.native import DOMAIN

OPSET, CONTRIB_OPSET, IR_VERSION = 21, 1, 10  # what onnxruntime 1.28 and later read
STANDARD_ATTENTION_OPSET = 24
ALIGNMENT = 4096  # bytes; lets the runtime map a constant instead of copying it
INLINE = 1024  # bytes; smaller constants stay in the model file
CONTRIB = "com.microsoft"
DOMAIN_VERSIONS = {CONTRIB: CONTRIB_OPSET, DOMAIN: 1}


class GraphWriter:
    """Collects one graph and writes `folder/model.onnx` and `folder/model.onnx.data`."""

    def __init__(self, folder: Path, opset: int = OPSET) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "model.onnx"
        self.opset = opset
        self._data = (folder / "model.onnx.data").open("wb")
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._names: dict[str, int] = {}
        self.facts: dict[str, str] = {}  # stored in the model file, for who runs it

    def __enter__(self) -> "GraphWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._data.close()

    def node(
        self, op: str, inputs: Sequence[str], outputs: int | Sequence[str] = 1, **attributes: Any
    ) -> list[str]:
        """Append a node; `outputs` names its results or says how many. '' is an absent input."""
        domain = str(attributes.pop("domain", ""))
        if isinstance(outputs, int):
            outputs = [self.fresh(op) for _ in range(outputs)]
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        name = self.fresh(f"node.{op}")
        self._nodes.append(
            helper.make_node(op, inputs, outputs, name=name, domain=domain, **attributes)
        )
        return list(outputs)

    def call(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one result and return the result's name."""
        return self.node(op, inputs, 1, **attributes)[0]

    def contrib(self, op: str, *inputs: str, **attributes: Any) -> str:
        """`call` of one of onnxruntime's own operators."""
        return self.call(op, *inputs, domain=CONTRIB, **attributes)

    def constant(self, name: str, value: np.ndarray, shape: Sequence[int] | None = None) -> str:
        """A named constant, written once. `shape` gives the bytes another shape."""
        if name in self._constants:
            return name
        value = np.ascontiguousarray(value)
        proto = TensorProto(
            name=name,
            data_type=helper.np_dtype_to_tensor_dtype(value.dtype),
            dims=value.shape if shape is None else shape,
        )
        if value.nbytes < INLINE:
            proto.raw_data = value.tobytes()
        else:
            self._data.write(bytes(-self._data.tell() % ALIGNMENT))
            self._place(proto, self._data.tell(), value.nbytes)
            self._data.write(value.reshape(-1).view(np.uint8).data)
        self._constants[name] = proto
        return name

    def alias(self, name: str, of: str, shape: Sequence[int]) -> str:
        """The constant `of` under another name and shape, without a second copy on disk."""
        if name not in self._constants:
            proto = TensorProto()
            proto.CopyFrom(self._constants[of])
            proto.name = name
            del proto.dims[:]
            proto.dims.extend(shape)
            self._constants[name] = proto
        return name

    def ints(self, *values: int) -> str:
        """A one-dimensional int64 constant."""
        return self.constant("ints." + "_".join(map(str, values)), np.array(values, np.int64))

    def has(self, name: str) -> bool:
        """Whether a constant of this name was written."""
        return name in self._constants

    def input(self, name: str, dtype: type[np.generic], shape: Sequence[int | str]) -> str:
        """Declare a graph input; a text in the shape is a free dimension."""
        self._inputs.append(_value(name, dtype, shape))
        return name

    def output(self, name: str, dtype: type[np.generic], shape: Sequence[int | str]) -> str:
        """Declare a graph output."""
        self._outputs.append(_value(name, dtype, shape))
        return name

    @property
    def node_count(self) -> int:
        """How many nodes the graph has so far."""
        return len(self._nodes)

    def save(self) -> None:
        """Write the model file; the data file is complete once this returns."""
        self._data.flush()
        graph = helper.make_graph(
            self._nodes, "specrt", self._inputs, self._outputs, list(self._constants.values())
        )
        used = {node.domain for node in self._nodes}
        versions = {"": self.opset} | {d: v for d, v in DOMAIN_VERSIONS.items() if d in used}
        opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="specrt"
        )
        helper.set_model_props(model, {f"specrt.{key}": value for key, value in self.facts.items()})
        self.path.write_bytes(model.SerializeToString())

    def _place(self, proto: TensorProto, offset: int, length: int) -> None:
        proto.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", "model.onnx.data"),
            ("offset", str(offset)),
            ("length", str(length)),
        ):
            entry = proto.external_data.add()
            entry.key, entry.value = key, value

    def fresh(self, stem: str) -> str:
        self._names[stem] = self._names.get(stem, -1) + 1
        return f"{stem}.{self._names[stem]}"


def _value(name: str, dtype: type[np.generic], shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, shape)
