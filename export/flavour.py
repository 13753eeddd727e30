"""What a graph is written for: which operators it uses and which weights it may have.

A flavour is data. Who writes a graph asks it; who runs one sees its inputs and needs no flavour.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from specrt.export.attention import Attention, GroupQuery
from specrt.export.attention_standard import Standard
from specrt.export.check import EXACT, HALF, ROUNDED, Limits
from specrt.export.operators import Fused, Operators, Plain
from specrt.export.writer import OPSET, STANDARD_ATTENTION_OPSET, GraphWriter
from specrt.models.config import DecoderConfig
from specrt.runtime.errors import SourceError

MakeAttention = Callable[[GraphWriter, DecoderConfig, type[np.generic]], Attention]


@dataclass(frozen=True, slots=True)
class Format:
    """A weight format as a graph has it: the type of its activations, and how exact it is."""

    dtype: type[np.generic]
    limits: Limits


@dataclass(frozen=True, slots=True)
class Flavour:
    """default: the format where none is asked for, or None to choose by quality. zeros: whether
    int4 blocks may have zero codes. opset: of the graph."""

    name: str
    formats: Mapping[str, Format]
    default: str | None
    zeros: bool
    opset: int
    operators: Callable[[], Operators]
    attention: MakeAttention

    def format(self, name: str) -> Format:
        """SourceError for weights that this flavour does not have."""
        if name not in self.formats:
            raise SourceError(
                f"weights {name!r} are not made for flavour {self.name}; "
                f"choose {', '.join(self.formats)}"
            )
        return self.formats[name]


CLOSE = Limits(rows=1e-4, tree=1e-4)  # kernels that sum in another order for another shape
HALVES = Format(np.float16, HALF)
UNEVEN = Format(np.float16, Limits(rows=0.1, tree=0.1))  # on the CPU, where it is checked: 0.03
CPU = Flavour(
    "cpu",
    formats={
        "fp32": Format(np.float32, EXACT),
        "fp16": HALVES,
        "int8": Format(np.float32, ROUNDED),
        "int4": Format(np.float32, ROUNDED),
        "w8a8": Format(np.float32, ROUNDED),
    },
    default=None,
    zeros=True,
    opset=OPSET,
    operators=Fused,
    attention=partial(GroupQuery, spare=1, trees=True),
)
CUDA = Flavour(
    "cuda",
    formats={"fp16": HALVES, "int8": UNEVEN, "int4": UNEVEN},
    default="fp16",
    zeros=True,
    opset=OPSET,
    operators=Fused,
    attention=partial(GroupQuery, spare=0, trees=False),
)
TENSORRT = Flavour(
    "tensorrt",
    formats={"fp16": HALVES, "fp32": Format(np.float32, CLOSE), "int8": HALVES, "int4": HALVES},
    default="fp16",
    zeros=False,
    opset=STANDARD_ATTENTION_OPSET,
    operators=Plain,
    attention=Standard,
)
FLAVOURS = {flavour.name: flavour for flavour in (CPU, CUDA, TENSORRT)}


def flavour_named(name: str) -> Flavour:
    """SourceError for a name that is none."""
    if name not in FLAVOURS:
        raise SourceError(f"flavour {name!r} is unknown; choose {', '.join(FLAVOURS)}")
    return FLAVOURS[name]
