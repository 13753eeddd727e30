"""Opening graphs: which execution provider runs them, on how many threads.

All CPU work of a process shares one thread pool, so a target and its draft never spin against each
other.
"""

import os
from contextlib import suppress
from pathlib import Path

import onnxruntime as ort
from specrt.runtime.errors import BundleError, ProviderError

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
INSTALL = {
    "cuda": "install onnxruntime-gpu (instead of onnxruntime), an NVIDIA driver and CUDA",
    "tensorrt": "install onnxruntime-gpu (instead of onnxruntime), CUDA and TensorRT",
}
_pool_threads = 0  # of the process-wide pool; 0 until the first session


def open_graph(path: Path, provider: str = "cpu", threads: int = 0) -> ort.InferenceSession:
    """The graph at path, ready to run on `provider`; ProviderError if this machine lacks it.

    threads: of the pool all sessions share, 0 = one per physical core; only the first session of a
    process can choose.
    """
    if provider not in PROVIDERS:
        raise ProviderError(f"provider {provider!r} is unknown; choose {', '.join(PROVIDERS)}")
    wanted = PROVIDERS[provider]
    if wanted not in ort.get_available_providers():
        raise ProviderError(f"provider {provider} is not in this onnxruntime; {INSTALL[provider]}")
    chain = [wanted] if provider == "cpu" else [wanted, PROVIDERS["cpu"]]
    try:
        session = ort.InferenceSession(path, _options(threads), providers=chain)
    except Exception as error:  # onnxruntime raises its own types, all of them private
        raise BundleError(f"{path} cannot be loaded: {_first_line(error)}; export again") from None
    found = session.get_providers()
    if found[0] != wanted:
        raise ProviderError(
            f"provider {provider} was asked for, onnxruntime could only start "
            f"{', '.join(found)}; {INSTALL[provider]}"
        )
    return session


def physical_cores() -> int:
    """Cores this process may run on, each counted once however many threads it has."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if allowed is None:
        return max(1, (os.cpu_count() or 2) // 2)
    cores = set()
    for cpu in allowed:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add(
                ((topology / "physical_package_id").read_text(), (topology / "core_id").read_text())
            )
        except OSError:
            cores.add((str(cpu), ""))
    return len(cores)


def _options(threads: int) -> ort.SessionOptions:
    global _pool_threads
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if not _pool_threads:
        _pool_threads = threads or physical_cores()
        with suppress(Exception):  # other code of this process has made the pool already
            ort.set_global_thread_pool_sizes(_pool_threads, 1)
    options.use_per_session_threads = False
    return options


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else repr(error)
