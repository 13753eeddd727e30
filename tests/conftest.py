"""Fixtures that more than one file uses."""

import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Done
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

TINY = Path(__file__).parent / "golden" / "models" / "llama"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a tiny random llama whose draft is the same model. Not to be changed. Its profile
    says that drafts pay, so that what is drafted does not depend on the machine."""
    from specrt.export.build import export
    from specrt.runtime import profile
    from specrt.runtime.providers import physical_cores

    out = tmp_path_factory.mktemp("bundles") / "tiny"
    export(TINY, out, drafts=[TINY], weights="fp32", kernels="stock", check=False)
    curve = profile.Curve(64, tuple(1000 + 50 * more for more in range(33)), 0)
    draft = profile.Drafting("draft", token_us=100, read_us=10)
    threads, wanted = physical_cores(), profile.key(out, "cpu")
    known = profile.Profile(profile.FORMAT, wanted, False, threads, (curve,), (draft,), 1000, 10)
    assert profile.write(out, known)
    return out


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 kB, empty."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "specrt-test", str(disk)]
    if os.name != "posix" or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def specrt_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that runs a command line in this process, with bytes as standard input."""
    from specrt.cli import main

    monkeypatch.setattr("specrt.cli._end_tidily", lambda: None)

    def run(*arguments: str | Path, stdin: bytes = b"") -> Done:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as done:
            code = int(done.code or 0)
        return Done(code, *capsys.readouterr())

    return run
