"""Writing so that a result is whole or not there: beside its place, renamed at the end."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from specrt.runtime.bundle import MANIFEST, read_manifest
from specrt.runtime.errors import BundleError
from specrt.runtime.records import shown

_OURS = {MANIFEST, "tokenizer.json", "chat_template.jinja", "target", "drafters", "profile"}


@contextmanager
def writing(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A new folder beside `folder` to write a bundle into; it becomes `folder` at the end.

    Any exception removes it and leaves what was there. An old bundle is replaced by two renames;
    a folder that holds anything else is refused.
    """
    out = Path(os.path.realpath(folder))
    _check_replaceable(out)
    token = os.urandom(4).hex()
    new, old = (out.with_name(f".{out.name}.{kind}-{token}") for kind in ("new", "old"))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        new.mkdir()
        yield new
        read_manifest(new)
        _flush(new)
        if out.exists():
            out.rename(old)
        new.rename(out)
    except OSError as error:
        if not _is_ours(error, new, out):
            raise
        reason = error.strerror or str(error)
        raise BundleError(
            f"{out} cannot be written: {reason}; free space or choose another folder"
        ) from None
    finally:
        if old.exists() and not out.exists():
            old.rename(out)
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def writing_file(path: Path) -> Iterator[TextIO]:
    """A new text file beside `path` to write into; it becomes `path` at the end.

    Any exception removes it and leaves what was there. A place that cannot be written is refused
    before anything is computed for it. What is no plain file, as a pipe, is written as it is.
    """
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as stream:
            yield stream
        return
    out = Path(os.path.realpath(path))
    new = out.with_name(f".{out.name}.new-{os.urandom(4).hex()}")
    try:
        with new.open("w", encoding="utf-8") as file:
            yield file
        new.replace(out)
    except OSError as error:
        if error.filename != str(new):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with suppress(OSError):
            new.unlink()


def _check_replaceable(out: Path) -> None:
    """An absent or empty folder, or a bundle and nothing but it, may be replaced."""
    if not out.name.isprintable():
        raise BundleError(f"{shown(out.name)} is no name for a bundle; use printable characters")
    if not out.exists():
        return
    if not out.is_dir():
        raise BundleError(f"{out} is a file; choose another folder")
    entries = {path.name for path in out.iterdir()}
    if entries and MANIFEST not in entries:
        raise BundleError(f"{out} is not empty and no bundle; choose another folder")
    if strangers := entries - _OURS:
        raise BundleError(f"{out} also holds {shown(min(strangers))}; choose another folder")


def _is_ours(error: OSError, new: Path, out: Path) -> bool:
    """Whether an error came from writing the bundle and not, say, from reading the checkpoint.

    A failed open() or mkdir() names a file, a failed write() does not.
    """
    if error.filename is None:
        return error.errno in {None, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
    path = Path(os.path.realpath(error.filename))
    return path.is_relative_to(new) or out.is_relative_to(path)


def _flush(folder: Path) -> None:
    """Push the files to the disk before the rename, so that a power cut leaves no half bundle."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
