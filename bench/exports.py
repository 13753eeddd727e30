"""Export a bundle as a user does, and keep what it took and what came of it.

    python bench/exports.py RESULT.json SOURCE OUT [options of `specrt export`]

The command runs in a process of its own, whose start counts. An old bundle in its place is replaced
once the new one is whole; where the export fails, both it and RESULT.json stay as they are.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any


@dataclass(frozen=True, slots=True)
class Spent:
    """What a process took until its end. peak_rss_mb: the most memory it ever held (10^6 bytes)."""

    code: int
    seconds: float
    peak_rss_mb: float


def measured(command: Sequence[str]) -> Spent:
    """Run a command to its end; what it prints is shown as it comes, beside our own output.

    A process's peak begins with its parent's at the time, so nothing large is imported before.
    """
    start = perf_counter()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    from specrt.bench.environment import maxrss_mb

    return Spent(child.returncode, seconds, maxrss_mb(usage.ru_maxrss))


def document(bundle: Path, command: Sequence[str], date: str, spent: Spent) -> dict[str, Any]:
    """All that is known of an export, as one JSON object. bundle: what it wrote."""
    from specrt.bench.environment import environment
    from specrt.runtime.bundle import MANIFEST, read_manifest, sha256

    manifest = read_manifest(bundle)
    quality: Mapping[str, Any] = manifest.checks.get("quality", {})
    return {
        "date": date,
        "command": shlex.join(command),
        "bundle": {"path": str(bundle), "sha256": sha256(bundle / MANIFEST)},
        "environment": environment(),
        "source": manifest.source.name,
        "drafts": [info.source.name for info in manifest.drafters],
        "weights": manifest.weights,
        "default_weights": "--weights" not in command,
        "kernels": manifest.kernels,
        "kl": quality.get("kl"),
        "agreement": quality.get("agreement"),
        "seconds": spent.seconds,
        "peak_rss_mb": spent.peak_rss_mb,
    }


def main(arguments: Sequence[str]) -> int:
    """Export and write the document; the exit code is the command's."""
    if len(arguments) < 3:
        print("usage: exports.py RESULT.json SOURCE OUT [options]", file=sys.stderr)
        return 2
    result, source, out, *options = arguments
    command = ["specrt", "export", source, out, *options]
    date = datetime.now(UTC).isoformat(timespec="seconds")
    print(shlex.join(command), file=sys.stderr, flush=True)
    spent = measured([str(Path(sys.executable).with_name("specrt")), *command[1:]])
    if spent.code:
        return spent.code
    line = json.dumps(document(Path(out), command, date, spent), allow_nan=False)
    Path(result).write_text(line + "\n", encoding="utf-8")
    print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
