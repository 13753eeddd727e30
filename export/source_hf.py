"""A Hugging Face folder as a checkpoint: config.json, safetensors files, tokenizer.json.

Weight files are mapped, not loaded. Their headers are checked against the files before use.
"""

import json
import math
import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specrt.export.source import Tensor, check_tensors, checked_tokenizer, mapped, sha256
from specrt.models.config import DecoderConfig
from specrt.models.families import decoder_config
from specrt.models.fields import UnsupportedError
from specrt.runtime.bundle import MANIFEST
from specrt.runtime.errors import SourceError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
LONGEST_HEADER = 100 << 20  # bytes; the limit of the format's own library
PREFIXES = (  # how models that wrap a text model name its tensors → how we do
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
GENERATION = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class FolderCheckpoint:
    """A `Checkpoint` (see source.py). settings: the JSON files beside the weights."""

    folder: Path
    files: tuple[Path, ...]
    settings: Mapping[str, Mapping[str, Any]]
    config: DecoderConfig
    tensors: Mapping[str, Tensor]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise SourceError(f"{self.folder.name} has no tensor {name}")
        return self.tensors[name]

    def tokenizer(self) -> "Tokenizer":
        from tokenizers import Tokenizer

        path = self.folder / "tokenizer.json"
        try:
            held = Tokenizer.from_str(_read_text(path))
        except SourceError:
            raise
        except Exception as error:  # the tokenizers library raises plain Exception
            raise SourceError(f"{path.name} is not a tokenizer: {error}") from None
        return checked_tokenizer(held, self.config.vocab, f"{self.folder.name}/{path.name}")

    @property
    def chat_template(self) -> str | None:
        """The template file, or the one in tokenizer_config.json; of several, the default."""
        file = self.folder / "chat_template.jinja"
        if file.is_file():
            return _read_text(file)
        template = self.settings["tokenizer_config.json"].get("chat_template")
        if isinstance(template, list):
            named = {x.get("name"): x.get("template") for x in template if isinstance(x, dict)}
            template = named.get("default")
        return template if isinstance(template, str) else None

    @property
    def bos_id(self) -> int | None:
        return next(iter(self._token_ids("bos_token_id")), None)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self._token_ids("eos_token_id")

    @property
    def generation(self) -> dict[str, Any]:
        found = self.settings["generation_config.json"]
        if found.get("do_sample") is not True:
            return {}
        return {
            name: found[name] for name in GENERATION if isinstance(found.get(name), int | float)
        }

    @cached_property
    def origin(self) -> dict[str, Any]:
        return {
            "kind": "huggingface",
            "name": self.folder.resolve().name,
            "sha256": sha256(self.files),
            "licence": _licence(self.folder / "README.md"),
        }

    def _token_ids(self, name: str) -> tuple[int, ...]:
        """Ids of a special token: as generation_config says, or else config.json."""
        for file in ("generation_config.json", "config.json"):
            held = self.settings[file].get(name)
            ids = held if isinstance(held, list) else [held]
            known = [i for i in ids if type(i) is int and 0 <= i < self.config.vocab]
            if known:
                return tuple(dict.fromkeys(known))
        return ()


def open_folder(folder: Path, context: int | None = None) -> FolderCheckpoint:
    """Read and check a Hugging Face folder; SourceError says what is wrong with it."""
    if not (folder / "config.json").is_file():
        is_bundle = (folder / MANIFEST).is_file()
        what = "is a bundle, not a checkpoint" if is_bundle else "has no config.json"
        raise SourceError(f"{folder} {what}; give a Hugging Face model folder")
    settings = {
        name: read_json(folder / name)
        for name in ("config.json", "generation_config.json", "tokenizer_config.json")
    }
    if "quantization_config" in settings["config.json"]:
        method = settings["config.json"]["quantization_config"]
        method = method.get("quant_method") if isinstance(method, dict) else method
        raise SourceError(
            f"{folder.name} is quantised by {method!r}, which is not supported; "
            "give its F32, F16 or BF16 original or a GGUF file"
        )
    try:
        config = decoder_config(settings["config.json"], context)
    except UnsupportedError as problem:
        raise SourceError(f"{folder.name}/config.json: {problem}") from None
    files = _weight_files(folder)
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= read_safetensors(file)
    if config.tied:
        tensors.pop("lm_head.weight", None)
    try:
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        check_tensors(config, shapes, {name: tensor.kind for name, tensor in tensors.items()})
    except SourceError as problem:
        raise SourceError(f"{folder.name}: {problem}") from None
    return FolderCheckpoint(folder, files, settings, config, tensors)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file by canonical name; SourceError if it is not whole."""
    view = mapped(path)
    size = len(view)
    length = int.from_bytes(view[:8], "little")
    start = 8 + length
    if size < 8 or length > LONGEST_HEADER or start > size:
        raise SourceError(
            f"{path.name} is not a valid safetensors file: {size} bytes, header {length}"
        )
    try:
        header = json.loads(view[8:start])
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise SourceError(f"{path.name} is not a valid safetensors file: its header is not JSON")
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        tensor = _tensor(view, start, name, entry)
        if tensor is None:
            raise SourceError(
                f"{path.name} is not a valid safetensors file: tensor {name} is described by "
                f"{str(entry)[:100]} in a file of {size} bytes"
            )
        tensors[tensor.name] = tensor
    return tensors


def _tensor(view: "mmap.mmap | bytes", start: int, name: str, entry: Any) -> Tensor | None:
    """The tensor that a header entry describes, or None if the entry cannot be right."""
    match entry:
        case {"dtype": str(kind), "shape": list(shape), "data_offsets": [int(low), int(high)]}:
            pass
        case _:
            return None
    if (
        not all(type(n) is int and n >= 0 for n in shape)
        or not 0 <= low <= high <= len(view) - start
    ):
        return None
    for prefix, ours in PREFIXES:
        if name.startswith(prefix):
            name = ours + name.removeprefix(prefix)
    raw = np.frombuffer(view, np.uint8, high - low, start + low)
    if kind not in ITEM_BYTES or not shape or not all(shape):
        return Tensor(name, tuple(shape), kind, raw)  # refused by name if the decoder needs it
    if math.prod(shape) * ITEM_BYTES[kind] != high - low:
        return None
    return Tensor(name, tuple(shape), kind, raw.reshape(math.prod(shape[:-1]), -1))


def _weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder; those its index names, if it has one."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(x, str) for x in places.values()):
            raise SourceError(f"{folder.name}/{index.name} has no weight_map of file names")
        names = sorted(set(places.values()))
        for name in names:
            if Path(name).name != name or name in ("", ".", ".."):
                raise SourceError(f"{folder.name}/{index.name} names {name!r}, outside the folder")
    else:
        names = sorted(x.name for x in folder.glob("*.safetensors"))
    for name in names:
        if not (folder / name).is_file():
            raise SourceError(f"{folder.name} lacks {name}, named by its index; download it again")
    if not names:
        pickles = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]
        if pickles:
            raise SourceError(
                f"{folder.name} has only pickled weights ({pickles[0].name}), which can run code; "
                "convert them to safetensors, for example with save_pretrained of transformers"
            )
        raise SourceError(f"{folder.name} has no safetensors files")
    return tuple(folder / name for name in names)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{path.name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SourceError(f"{path.name} is not UTF-8 text") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        held = json.loads(_read_text(path))
    except (ValueError, RecursionError):
        held = None
    if not isinstance(held, dict):
        raise SourceError(f"{path.parent.name}/{path.name} is not a JSON object")
    return held


def _licence(readme: Path) -> str | None:
    """The licence that the front matter of a model card names."""
    if not readme.is_file():
        return None
    head = re.match(r"---\n(.*?)\n---", _read_text(readme), re.DOTALL)
    line = head and re.search(r"^license:\s*(\S+)\s*$", head[1], re.MULTILINE)
    return line[1] if line else None
