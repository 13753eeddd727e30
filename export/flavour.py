"""What a graph is written for: which operators it uses and which weights it may have.

A flavour is data. Who writes a graph asks it; who runs one sees its inputs and needs no flavour.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from specrt.export import native, quantize
from specrt.export.attention import Attention, GroupQuery
from specrt.export.attention_native import NativeAttention
from specrt.export.attention_standard import Standard
from specrt.export.check import EXACT, HALF, ROUNDED, Limits
from specrt.export.operators import Fused, Native, Operators, Plain
from specrt.export.quantize import Packed
from specrt.export.source import Tensor
from specrt.export.writer import OPSET, STANDARD_ATTENTION_OPSET, GraphWriter
from specrt.models.config import DecoderConfig
from specrt.runtime.errors import SourceError
from specrt.runtime.native import find

Number = type[np.generic]
MakeAttention = Callable[[GraphWriter, DecoderConfig, Number, Number], Attention]  # rows, cache
Pack = Callable[[Sequence[Tensor], str], Packed]


@dataclass(frozen=True, slots=True)
class Format:
    """A weight format as a graph has it: the type of its activations, how exact it is, and the type
    of its cache, None = as the activations."""

    dtype: type[np.generic]
    limits: Limits
    cache: type[np.generic] | None = None

    @property
    def cache_name(self) -> str:
        """The type of its cache as a bundle says it."""
        return np.dtype(self.cache or self.dtype).name


@dataclass(frozen=True, slots=True)
class Flavour:
    """kernels: "native" or "stock", onnxruntime's own. candidates: formats to try for tensors of
    these types where none is asked for, smallest first. draft: the format of drafts. pack, table:
    tensors side by side in a format, those of a linear map and those that tokens are looked up in.
    opset: of the graph. caches: types of cache that may be asked for, by name."""

    name: str
    kernels: str
    formats: Mapping[str, Format]
    candidates: Callable[[Set[str]], Sequence[str]]
    draft: str
    pack: Pack
    table: Pack
    opset: int
    operators: Callable[[], Operators]
    attention: MakeAttention
    caches: Mapping[str, Number] = field(default_factory=dict)

    def with_cache(self, name: str) -> "Flavour":
        """This flavour with one of its `caches` in every format."""
        kind = self.caches[name]
        formats = {name: replace(made, cache=kind) for name, made in self.formats.items()}
        return replace(self, formats=formats)


def _stock_candidates(kinds: Set[str]) -> Sequence[str]:
    """A quantised checkpoint is not rounded a second time to few bits: int4 is tried only where it
    holds the checkpoint's own values."""
    return [*(["int4"] if kinds <= {"Q4_0"} else []), "int8", "fp32"]


def _native_candidates(kinds: Set[str]) -> Sequence[str]:
    return [*(["carried"] if kinds & native.CARRIED.keys() else []), "int8", "fp32"]


def _stock_table(tensors: Sequence[Tensor], format: str) -> Packed:
    """onnxruntime looks up no rows of w8a8 and none with zero codes."""
    return quantize.pack(tensors, "int8" if format == "w8a8" else format, zeros=False)


def _native_pack(tensors: Sequence[Tensor], format: str) -> Packed:
    if format not in native.FORMATS:
        return quantize.pack(tensors, format)
    rows, cols = sum(tensor.shape[0] for tensor in tensors), tensors[0].shape[-1]
    return Packed(native.PACKED, rows, cols, native.pack(tensors, format), np.empty(0))


SAME_BITS = Limits(rows=0.0, tree=0.0)
CLOSE = Limits(rows=1e-4, tree=1e-4)  # kernels that sum in another order for another shape
HALVES = Format(np.float16, HALF)
UNEVEN = Format(np.float16, Limits(rows=0.1, tree=0.1))  # on the CPU, where it is checked: 0.03
DRAFT = "int4"  # a draft need not be exact: the target rejects what it gets wrong
NATIVE = Flavour(
    "cpu",
    "native",
    formats={
        **dict.fromkeys(native.FORMATS, Format(np.float32, SAME_BITS, cache=np.float16)),
        "fp32": Format(np.float32, SAME_BITS),
    },
    candidates=_native_candidates,
    draft=DRAFT,
    pack=_native_pack,
    table=_native_pack,
    opset=OPSET,
    operators=Native,
    attention=NativeAttention,
    caches={"float16": np.float16, "int8": np.int8},
)
CPU = Flavour(
    "cpu",
    "stock",
    formats={
        "fp32": Format(np.float32, EXACT),
        "fp16": HALVES,
        "int8": Format(np.float32, ROUNDED),
        "int4": Format(np.float32, ROUNDED),
        "w8a8": Format(np.float32, ROUNDED),
    },
    candidates=_stock_candidates,
    draft=DRAFT,
    pack=quantize.pack,
    table=_stock_table,
    opset=OPSET,
    operators=Fused,
    attention=partial(GroupQuery, spare=1, trees=True),
)
CUDA = Flavour(
    "cuda",
    "stock",
    formats={"fp16": HALVES, "int8": UNEVEN, "int4": UNEVEN},
    candidates=lambda kinds: ["fp16"],
    draft="fp16",
    pack=quantize.pack,
    table=_stock_table,
    opset=OPSET,
    operators=Fused,
    attention=partial(GroupQuery, spare=0, trees=False),
)
TENSORRT = Flavour(
    "tensorrt",
    "stock",
    formats={"fp16": HALVES, "fp32": Format(np.float32, CLOSE), "int8": HALVES, "int4": HALVES},
    candidates=lambda kinds: ["fp16"],
    draft="fp16",
    pack=partial(quantize.pack, zeros=False),
    table=_stock_table,
    opset=STANDARD_ATTENTION_OPSET,
    operators=Plain,
    attention=Standard,
)
FLAVOURS = (NATIVE, CPU, CUDA, TENSORRT)  # of one name, the best first


def find_flavour(
    name: str, kernels: str | None = None, weights: str | None = None, cache: str | None = None
) -> Flavour:
    """The flavour of this name with these kernels. None takes native ones where this installation
    has them and they are made for these weights, else stock.

    SourceError for a name or kernels that are none, or a cache or weights not made for them.
    """
    named = [flavour for flavour in FLAVOURS if flavour.name == name]
    if not named:
        choice = dict.fromkeys(flavour.name for flavour in FLAVOURS)
        raise SourceError(f"flavour {name!r} is unknown; choose {', '.join(choice)}")
    if kernels is None:
        usable = [flavour for flavour in named if flavour.kernels == "stock" or find()]
    else:
        usable = [flavour for flavour in named if flavour.kernels == kernels]
    if not usable:
        choice = dict.fromkeys(flavour.kernels for flavour in named)
        raise SourceError(f"flavour {name} has no kernels {kernels!r}; choose {', '.join(choice)}")
    named, usable = usable, [f for f in usable if cache is None or cache in f.caches]
    if not usable:
        choice = dict.fromkeys(name for flavour in named for name in flavour.caches)
        what = f"choose {', '.join(choice)}" if choice else "leave out --cache"
        raise SourceError(
            f"a cache of {cache!r} is not made for flavour {name} with {named[0].kernels} kernels; "
            f"{what}"
        )
    made = [flavour for flavour in usable if weights is None or weights in flavour.formats]
    if not made:
        choice = dict.fromkeys(format for flavour in usable for format in flavour.formats)
        having = f" with {kernels} kernels" if kernels else ""
        raise SourceError(
            f"weights {weights!r} are not made for flavour {name}{having}; "
            f"choose {', '.join(choice)}"
        )
    return made[0]
