"""Under what circumstances something was measured: versions, processor, threads, commit."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy
import onnxruntime
import tokenizers

from specrt.runtime.providers import physical_cores


def environment(threads: int | None = None) -> dict[str, Any]:
    """What a reader needs to judge a figure, as a JSON object. threads: of each graph, where they
    are not one per physical core."""
    return {
        "specrt": importlib.metadata.version("specrt"),
        "commit": commit(Path(__file__).parents[1]),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "onnxruntime": onnxruntime.__version__,
        "tokenizers": tokenizers.__version__,
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_mb": _memory_mb(),
        "threads": threads or physical_cores(),
    }


def commit(checkout: Path) -> str | None:
    """The commit of a checkout, with -dirty where tracked files differ; None outside of one."""
    if not (checkout / ".git").exists():
        return None
    command = [
        "git",
        "--no-optional-locks",
        "-C",
        str(checkout),
        "describe",
        "--always",
        "--abbrev=40",
        "--dirty",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def peak_rss_mb() -> float | None:
    """The most memory this process ever held, in MB (10^6 bytes); None where nothing tells.

    Linux is asked for the program's own peak: getrusage would count the parent it was forked from.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    return maxrss_mb(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def maxrss_mb(ru_maxrss: int) -> float:
    """What the system tells of a peak, in MB (10^6 bytes): macOS counts bytes, others KiB."""
    return ru_maxrss * (1 if platform.system() == "Darwin" else 1024) / 1e6


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory_mb() -> float | None:
    """What the machine has, in MB (10^6 bytes); None where nothing tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e6
    except (AttributeError, OSError, ValueError):  # Windows
        return None
