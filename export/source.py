"""A checkpoint to export, whatever it is stored as: its decoder, tensors, tokenizer and origin.

Tensors stay on disk: `Tensor.raw` is a view of the mapped file and `float32` decodes only the rows
asked for. Names are those of Hugging Face llama checkpoints. Opening a checkpoint checks that every
tensor its decoder needs is there, in the right shape and in a type that can be decoded.
"""

import hashlib
import mmap
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import gguf
import numpy as np

from specrt.export.quality import sample_text
from specrt.models.config import DecoderConfig
from specrt.runtime.bundle import ModelInfo
from specrt.runtime.errors import SourceError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

STRIP = 1 << 17  # weights decoded at a time; their temporaries stay in the processor's cache


@dataclass(frozen=True, slots=True)
class Tensor:
    """A weight as it is stored.

    shape: (rows, cols), or (n,) for a vector. kind: F32, F16, BF16, or a GGUF type such as Q4_K.
    raw: uint8 (rows, bytes a row), one row for a vector; a view of the mapped file.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    raw: np.ndarray

    def float32(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Rows start to stop, decoded: (stop - start, cols), or (n,) for a vector.

        SourceError if one of them is not finite.
        """
        if not can_decode(self.kind):
            raise SourceError(unreadable(self.name, self.kind))
        rows = self.raw[start:stop]
        kind = gguf.GGMLQuantizationType[self.kind]
        values = np.empty((len(rows), self.shape[-1]), np.float32)
        step = max(1, STRIP // self.shape[-1])
        with np.errstate(all="ignore"):
            for i in range(0, len(rows), step):
                strip = np.ascontiguousarray(rows[i : i + step]).reshape(1, -1)
                part = values[i : i + step]
                part[...] = gguf.quants.dequantize(strip, kind).reshape(part.shape)
                if not np.isfinite(part.sum()) and not np.isfinite(part).all():
                    raise SourceError(f"tensor {self.name} holds NaN or infinite weights")
        return values if len(self.shape) > 1 else values[0]

    def release(self) -> None:
        """Let the system drop what of the file is in memory; it is read again when needed."""
        owner: object = self.raw
        while isinstance(owner, np.ndarray | memoryview):
            owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
        if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            owner.madvise(mmap.MADV_DONTNEED)


def mapped(path: Path) -> "mmap.mmap | bytes":
    """The bytes of a file, left on disk until they are looked at."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except OSError as error:
        raise SourceError(f"{path.name} cannot be read: {error.strerror}") from None


class Checkpoint(Protocol):
    """What export needs of a source. tensor(name) raises SourceError for a name not in `names`."""

    @property
    def config(self) -> DecoderConfig: ...
    @property
    def names(self) -> frozenset[str]: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_ids(self) -> tuple[int, ...]: ...
    @property
    def generation(self) -> Mapping[str, Any]: ...
    @property
    def origin(self) -> Mapping[str, Any]: ...
    def tensor(self, name: str) -> Tensor: ...
    def tokenizer(self) -> "Tokenizer": ...


def open_source(source: str | Path, context: int | None = None) -> Checkpoint:
    """A GGUF file, a Hugging Face folder, or the id of one on the hub ("org/name").

    context: the longest text wanted, in tokens; the model's own limit if None.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        from specrt.export.source_hf import open_folder

        return open_folder(path, context)
    if path.is_file():
        from specrt.export.source_gguf import open_gguf

        return open_gguf(path, context)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)) and not str(source).endswith(".gguf"):
        from specrt.export.hub import download
        from specrt.export.source_hf import open_folder

        return open_folder(download(str(source)), context)
    raise SourceError(f"{source}: no such file or folder; give a GGUF file, a folder or a hub id")


def open_draft(source: str | Path, context: int | None = None) -> Checkpoint:
    """As open_source, but a draft whose own limit is shorter than `context` keeps its limit: it
    drafts as far as it can."""
    own = open_source(source)
    return own if context is None or own.config.context <= context else open_source(source, context)


def model_info(model: Checkpoint) -> ModelInfo:
    """What a bundle says of a checkpoint's model."""
    config = model.config
    return ModelInfo(
        architecture=config.architecture,
        layers=len(config.layers),
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab=config.vocab,
        context=config.context,
        eos_ids=model.eos_ids,
        bos_id=model.bos_id,
    )


def checked_tokenizer(tokenizer: "Tokenizer", vocab: int, where: str) -> "Tokenizer":
    """The tokenizer as it is; SourceError if it writes ids that a model of `vocab` tokens lacks.

    Ids that no text is encoded to, as special tokens of a larger sibling, are no fault.
    """
    ids = tokenizer.encode(sample_text(), add_special_tokens=True).ids
    if not ids or max(ids) >= vocab:
        raise SourceError(
            f"{where} is of another model: it gives id {max(ids, default=None)}, the model has "
            f"{vocab} tokens"
        )
    return tokenizer


def needed_shapes(config: DecoderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor the decoder is made of."""
    hidden, queries = config.hidden, config.heads * config.head_dim
    keys, width = config.kv_heads * config.head_dim, config.intermediate
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config.sandwich:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    maps = [("self_attn.o_proj", queries, hidden, config.output_bias)]
    if config.fused:
        maps += [("self_attn.qkv_proj", hidden, queries + 2 * keys, config.qkv_bias)]
        maps += [("mlp.gate_up_proj", hidden, 2 * width, config.mlp_bias)]
    else:
        maps += [("self_attn.q_proj", hidden, queries, config.qkv_bias)]
        maps += [(f"self_attn.{x}_proj", hidden, keys, config.qkv_bias) for x in "kv"]
        maps += [(f"mlp.{x}_proj", hidden, width, config.mlp_bias) for x in ("gate", "up")]
    maps += [("mlp.down_proj", width, hidden, config.mlp_bias)]
    yield "model.embed_tokens.weight", (config.vocab, hidden)
    for i in range(len(config.layers)):
        layer = f"model.layers.{i}."
        for norm in norms:
            yield f"{layer}{norm}.weight", (hidden,)
        for name, cols, rows, bias in maps:
            yield f"{layer}{name}.weight", (rows, cols)
            if bias:
                yield f"{layer}{name}.bias", (rows,)
        if config.qk_norm:
            for x in "qk":
                yield f"{layer}self_attn.{x}_norm.weight", (config.head_dim,)
    yield "model.norm.weight", (hidden,)
    if not config.tied:
        yield "lm_head.weight", (config.vocab, hidden)


def check_tensors(
    config: DecoderConfig, shapes: Mapping[str, tuple[int, ...]], kinds: Mapping[str, str]
) -> None:
    """SourceError unless every needed tensor is held, with its shape and a type we decode."""
    needed = dict(needed_shapes(config))
    missing = [name for name in needed if name not in shapes]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise SourceError(f"tensor {missing[0]}{more} missing; the checkpoint is not complete")
    for name, shape in needed.items():
        if shapes[name] != shape:
            raise SourceError(
                f"tensor {name} has shape {_by(shapes[name])}, its configuration says {_by(shape)}"
            )
        if not can_decode(kinds[name]):
            raise SourceError(unreadable(name, kinds[name]))


def sha256(paths: Iterable[Path]) -> str:
    """The digest of the files' bytes, one file after the other."""
    total = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                total.update(block)
    return total.hexdigest()


def can_decode(kind: str) -> bool:
    """Whether weights of this type can be turned into floats."""
    return kind in ("F32", "F16") or isinstance(getattr(gguf.quants, kind, None), type)


def unreadable(name: str, kind: str) -> str:
    """What to say of a tensor whose type cannot be decoded."""
    known = ", ".join(x.name for x in gguf.GGMLQuantizationType if can_decode(x.name))
    return f"tensor {name} has type {kind}, which is not supported; supported: {known}"


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
