"""The contract between export and runtime: a folder, its manifest, what its graphs take and give.

    OUT/specrt.json  tokenizer.json  chat_template.jinja
    OUT/target/model.onnx  target/model.onnx.data
    OUT/drafters/<name>/model.onnx  drafters/<name>/model.onnx.data
    OUT/profile/<device>.json

Graph inputs, target and draft model alike (B = 1; S rows of this call; T cached + S; C capacity;
D head_dim; V vocab; H hidden)
    input_ids                 (B, S)        int64    tokens to read
    num_logits                (1,)          int64    how many of the last rows get logits
    seqlens_k                 (B,)          int32    valid length after this call, minus 1
    past.<layer>.key, .value  (B, kv_heads, C, D)    the cache, read and written in place
  and what tells where a row stands and what it sees, by flavour and kernels:
    position_ids              (B, S)        int64    all but native; siblings in a tree share one
    total_sequence_length     ()            int32    cpu and cuda: valid length after this call
    attention_bias            (1, 1, S, T)  float    cpu: 0 for what a row sees, the least number
                                                     else; rows below it are unseen anyway
                              (1, 1, S, C)           tensorrt: the same, and nothing else masks
    parents                   (B, S)        int64    native: the row each row follows, -1 = the
                                                     cache's end
Graph outputs
    logits                    (B, n, V)     float32  of the last n = num_logits rows
    hidden                    (B, S, H)     float32  after the last norm, where a drafter needs it
    taps                      (B, S, k * H) float32  residual stream entering the named layers
    present.<layer>.key, .value                      bound to the past buffers

Rolling back is a smaller length; the accepted path of a tree is compacted by moving cache rows.
Flavour `cpu` has native kernels (operators of domain `specrt`) or stock ones; stock ones and `cuda`
attend with GroupQueryAttention, `tensorrt` with standard operators. Graphs without attention_bias
and parents read chains only: those of `cuda`, and `optimum`, a foreign decoder with a growing cache
(past_key_values, attention_mask).

Native keys lie in tiles of 16 entries, (B, kv_heads, C / 16, D, 16), so C is a multiple of 16:
entry e of a head is [e // 16, :, e % 16]. A native int8 cache has scales among its codes, 9 bytes
for 8 numbers of a key: (B, kv_heads, C / 16, lines, 16, 4) and (B, kv_heads, C, bytes), see
runtime/native/attention.h.

The invariant: a folder either holds a whole bundle or does not load.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from specrt.runtime.errors import BundleError
from specrt.runtime.records import parse_json, read_record, shown

FORMAT = 1
MANIFEST = "specrt.json"
WEIGHTS = (  # carried: the checkpoint's own 4-bit blocks, 8 bits elsewhere; unchanged: foreign
    *("fp32", "fp16", "int8", "int4", "carried", "w8a8", "unchanged"),
)
KERNELS = ("stock", "native")
CACHES = ("float32", "float16", "int8")
FLAVOURS = ("cpu", "cuda", "tensorrt", "optimum")
DRAFTER_KINDS = ("draft",)
SMALL_FILE = 16 << 20  # bytes; files up to this size are hashed at every load
_LARGEST_MANIFEST = 4 << 20  # bytes
_LARGEST = {  # of each count in a model section; far above any model, far below an accident
    "layers": 1 << 12,
    "hidden": 1 << 18,
    "heads": 1 << 12,
    "kv_heads": 1 << 12,
    "head_dim": 1 << 12,
    "vocab": 1 << 24,
    "context": 1 << 26,
}


@dataclass(frozen=True, slots=True)
class BundleFile:
    """One file of the bundle. path: relative, with forward slashes. size: bytes.
    role: what it is, as "decoder" (a graph), "weights" (its data), "tokenizer"."""

    path: str
    size: int
    sha256: str
    role: str

    def __post_init__(self) -> None:
        _check_path(self.path)
        if not 0 <= self.size < 1 << 44:
            raise BundleError(f"{self.path} has size {self.size}")
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise BundleError(f"{self.path} has sha256 {shown(self.sha256)}, not 64 hex digits")


@dataclass(frozen=True, slots=True)
class Source:
    """Where the weights came from. kind: "gguf", "folder", "hub" or "optimum"."""

    kind: str
    name: str
    sha256: str | None = None
    licence: str | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The sizes a session needs and the ids that end a text."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None

    def __post_init__(self) -> None:
        for name, largest in _LARGEST.items():
            if not 1 <= getattr(self, name) <= largest:
                raise BundleError(f"model.{name} is {getattr(self, name)}, not in 1..{largest}")
        if self.heads % self.kv_heads:
            raise BundleError(f"model has {self.heads} heads, no multiple of {self.kv_heads} kv")
        ids = (*self.eos_ids, *(() if self.bos_id is None else (self.bos_id,)))
        if outside := [i for i in ids if not 0 <= i < self.vocab]:
            raise BundleError(f"token id {outside[0]} is outside the vocabulary of {self.vocab}")


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """A drafter stored with the target. kind "draft": a second model over the same tokens."""

    name: str
    kind: str
    path: str
    model: ModelInfo
    weights: str
    source: Source
    graphs: tuple[BundleFile, ...]
    checks: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_path(self.path)
        if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]{0,99}", self.name):
            raise BundleError(f"drafter name {shown(self.name)} is not letters, digits, . _ -")
        _check_one_of("drafter kind", self.kind, DRAFTER_KINDS)
        _check_one_of("weights", self.weights, WEIGHTS)


@dataclass(frozen=True, slots=True)
class Manifest:
    """specrt.json. generation: the checkpoint's sampling defaults. checks: what export measured.
    kernels: "native" for graphs with operators of domain `specrt`. cache: the type of the target's
    keys and values, "" where the export did not say."""

    format: int
    name: str
    created_by: str
    source: Source
    model: ModelInfo
    weights: str
    flavour: str
    graphs: tuple[BundleFile, ...]
    tokenizer: BundleFile
    kernels: str = "stock"
    cache: str = ""
    chat_template: BundleFile | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)
    drafters: tuple[DrafterInfo, ...] = ()
    checks: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_one_of("weights", self.weights, WEIGHTS)
        _check_one_of("flavour", self.flavour, FLAVOURS)
        _check_one_of("kernels", self.kernels, KERNELS)
        _check_one_of("cache", self.cache, ("", *CACHES))
        if not self.graphs:
            raise BundleError("graphs is empty")
        names = [drafter.name for drafter in self.drafters]
        if len(set(names)) < len(names):
            raise BundleError(f"two drafters have one name: {', '.join(names)}")
        for key, value in self.generation.items():
            if not isinstance(value, int | float):
                raise BundleError(f"generation.{shown(key)} is {shown(value)}, expected a number")

    @property
    def files(self) -> tuple[BundleFile, ...]:
        """Every file the manifest names."""
        template = () if self.chat_template is None else (self.chat_template,)
        drafts = tuple(file for drafter in self.drafters for file in drafter.graphs)
        return (*self.graphs, self.tokenizer, *template, *drafts)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"


def describe(folder: Path, path: str, role: str) -> BundleFile:
    """The entry for a file just written at folder/path."""
    return BundleFile(path, (folder / path).stat().st_size, sha256(folder / path), role)


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """The manifest of a bundle whose files are all there in their recorded sizes."""
    root = Path(folder)
    path = root / MANIFEST
    if not path.is_file():
        raise BundleError(f"{root} is no bundle ({MANIFEST} is missing); make one: specrt export")
    try:
        if path.stat().st_size > _LARGEST_MANIFEST:
            raise BundleError(f"larger than {_LARGEST_MANIFEST} bytes")
        manifest = parse_manifest(path.read_bytes())
        for file in manifest.files:
            _check_present(root, file)
    except BundleError as error:
        raise BundleError(f"{path}: {error}") from None
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}") from None
    return manifest


def parse_manifest(raw: bytes) -> Manifest:
    """The bytes of specrt.json -> Manifest; BundleError if anything is not as specrt writes it."""
    value = parse_json(raw)
    found = value.get("format") if isinstance(value, dict) else None
    if type(found) is not int or found < 1:
        raise BundleError(f"format is {shown(found)}, expected {FORMAT}")
    if found > FORMAT:
        raise BundleError(f"format {found} is newer than {FORMAT}, upgrade specrt to read it")
    return read_record(Manifest, value)


def check_hashes(
    folder: str | os.PathLike[str], files: Iterable[BundleFile], up_to: int | None = SMALL_FILE
) -> None:
    """Compare the SHA-256 of the files of at most `up_to` bytes (None: of all)."""
    for file in files:
        if up_to is None or file.size <= up_to:
            path = Path(folder) / file.path
            if (found := sha256(path)) != file.sha256:
                raise BundleError(
                    f"{path}: sha256 is {found[:12]}…, the manifest says {file.sha256[:12]}…; "
                    "the file was changed, export again"
                )


def sha256(path: Path) -> str:
    import hashlib  # it brings OpenSSL, 4 MB that a session alone does not need

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_path(path: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path != "/".join(parts) or {"..", "/"} & {*parts} or {"\\", ":"} & {*path}:
        raise BundleError(f"path {shown(path)} is not a plain relative path inside the bundle")


def _check_one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BundleError(f"{what} {shown(value)} is unknown, this specrt knows {', '.join(known)}")


def _check_present(root: Path, file: BundleFile) -> None:
    real = Path(os.path.realpath(root / file.path))  # realpath: a loop of links does not raise
    if not real.is_relative_to(os.path.realpath(root)):
        raise BundleError(f"{file.path} is a link out of the bundle; put the file itself there")
    if not real.is_file():
        raise BundleError(f"{file.path} is missing; export again")
    if (size := real.stat().st_size) != file.size:
        raise BundleError(f"{file.path} has {size} bytes, expected {file.size}; export again")
