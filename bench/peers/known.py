"""The peers by name, and which of those asked for can be run here on a bundle's model."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specrt.pull import home
from specrt.runtime.bundle import Manifest, Source
from specrt.runtime.errors import RequestError
from specrt.runtime.providers import choose

PLAIN = "plain"
_HERE = Path(__file__).parent
_HAS_MODULE = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine. module: the package its Python must have; "": it is a program of that name. modes:
    plain, and how it speculates. gguf: it reads a GGUF file, so the bundle's own source will do.
    package: what to install."""

    name: str
    engine: Path
    module: str
    modes: tuple[str, ...]
    gguf: bool
    package: str


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "onnxruntime-genai",
            _HERE / "genai.py",
            "onnxruntime_genai",
            (PLAIN, "lookup"),
            gguf=False,
            package="onnxruntime-genai",
        ),
        Peer(
            "llama.cpp",
            _HERE / "llama.py",
            "llama_cpp",
            (PLAIN, "lookup"),
            gguf=True,
            package="llama-cpp-python",
        ),
        Peer(
            "llama-server",
            _HERE / "llama_server.py",
            "",
            (PLAIN, "lookup", "draft"),
            gguf=True,
            package="llama.cpp",
        ),
        Peer(
            "openvino-genai",
            _HERE / "ov.py",
            "openvino_genai",
            (PLAIN, "lookup"),
            gguf=True,
            package="openvino-genai",
        ),
        Peer(
            "transformers",
            _HERE / "hf.py",
            "transformers",
            (PLAIN, "lookup", "draft"),
            gguf=True,
            package="transformers torch gguf accelerate",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Entrant:
    """A peer in one of its modes, with all that it is started with. program: what the peer itself
    runs in, its Python or its binary."""

    peer: Peer
    mode: str
    program: str
    model: Path
    draft: Path | None = None

    @property
    def name(self) -> str:
        """As tables show it: "llama.cpp", "llama.cpp+lookup"."""
        return self.peer.name if self.mode == PLAIN else f"{self.peer.name}+{self.mode}"

    @property
    def python(self) -> str:
        """What runs worker.py."""
        return self.program if self.peer.module else sys.executable


class _Lacking(Exception):
    """What keeps a peer out."""


@dataclass(frozen=True, slots=True)
class Field:
    """Who takes part. left_out: a line for each peer, or mode of one, that does not, and why."""

    entrants: tuple[Entrant, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entrant.name for entrant in self.entrants)


def enlist(
    names: Sequence[str],
    manifest: Manifest,
    programs: Iterable[tuple[str, str]] = (),
    models: Iterable[tuple[str, str]] = (),
    folder: Path | None = None,
) -> Field:
    """The peers asked for, in each of their modes, on the bundle's model.

    programs, models: by name, what runs a peer and what it loads, where that is not this Python and
    the bundle's own source. folder: where sources are looked for (what `specrt pull` got). A peer
    that is not here is left out; a name that is none, or is not in names, is a RequestError.
    """
    if unknown := [name for name in names if name not in PEERS]:
        raise RequestError(f"peer {unknown[0]!r} is unknown; choose {', '.join(PEERS)}")
    named = {"--peer-program": dict(programs), "--peer-model": dict(models)}
    for option, given in named.items():
        if extra := [name for name in given if name not in names]:
            raise RequestError(f"{option} is for {extra[0]!r}, which --peers does not name")
    entrants: list[Entrant] = []
    left_out: list[str] = []
    folder = folder or home() / "models"
    for name in dict.fromkeys(names):
        peer = PEERS[name]
        try:
            program = _program(peer, named["--peer-program"].get(name))
            model = _model(peer, named["--peer-model"].get(name), manifest, folder)
        except _Lacking as lack:
            left_out.append(f"{name} is left out: {lack}")
            continue
        for mode in peer.modes:
            draft = _draft(manifest, folder) if mode == "draft" else None
            if mode == "draft" and draft is None:
                left_out.append(
                    f"{name}+draft is left out: the bundle has no draft model from a "
                    f"GGUF file in {folder}"
                )
            else:
                entrants.append(Entrant(peer, mode, program, model, draft))
    return Field(tuple(entrants), tuple(left_out))


def require_comparable(temperature: float, provider: str, manifest: Manifest) -> None:
    """RequestError unless specrt does what its peers do."""
    if temperature:
        raise RequestError(f"--peers write greedily, not at temperature {temperature:g}; leave one")
    if (chosen := choose(provider, manifest.flavour).provider) != "cpu":
        raise RequestError(f"--peers run on the cpu and the bundle on {chosen}; use --provider cpu")


def _program(peer: Peer, named: str | None) -> str:
    """What runs a peer, once it is seen to be there."""
    if not peer.module:
        if found := shutil.which(named or peer.name):
            return found
        where = named or f"{peer.name} on PATH"
        raise _Lacking(f"{where} is no program; {_naming('--peer-program', peer)}")
    python = named or sys.executable
    command = [python, "-c", _HAS_MODULE, peer.module]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    except OSError as error:
        raise _Lacking(f"{python} cannot be run: {error.strerror}") from None
    if done.returncode:
        raise _Lacking(
            f"{python} has no {peer.module}; pip install {peer.package}, or "
            f"{_naming('--peer-program', peer)}"
        )
    return python


def _model(peer: Peer, named: str | None, manifest: Manifest, folder: Path) -> Path:
    """What a peer loads: what was named, or the GGUF file that the bundle was made from."""
    source = manifest.source
    if named is not None:
        if Path(named).exists():
            return Path(named)
        raise _Lacking(f"its model {named} is not there")
    if not peer.gguf:
        raise _Lacking(f"it has its own form of models; {_naming('--peer-model', peer)}")
    if found := _checkpoint(source, folder):
        return found
    raise _Lacking(
        f"{folder} has not the {source.name} that the bundle was made from; "
        f"{_naming('--peer-model', peer)}"
    )


def _draft(manifest: Manifest, folder: Path) -> Path | None:
    """The file that the bundle's first draft model was made from, where it is there."""
    sources = [info.source for info in manifest.drafters if info.kind == "draft"]
    return next((found for source in sources if (found := _checkpoint(source, folder))), None)


@cache
def _checkpoint(source: Source, folder: Path) -> Path | None:
    """The very GGUF file that something was made from, if it is in the folder."""
    path = folder / source.name
    if source.kind != "gguf" or path.parent != folder or not path.is_file():
        return None
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return path if source.sha256 in (None, found) else None


def _naming(option: str, peer: Peer) -> str:
    return f"name one with {option} {peer.name}=PATH"
