"""Opening graphs: which execution provider runs them, on how many threads.

Each session has its own threads and they stop spinning soon after its work is done, so a target
and its draft do not spin against each other. onnxruntime's pool for the whole process is left
alone: once it exists, every other session of the process that does not ask for it fails.

What onnxruntime says it can do is not believed: it lists providers whose libraries this machine
lacks, and falls back to the CPU in silence. `missing` starts one and looks.
"""

import ctypes
import io
import os
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import onnxruntime as ort

from specrt.runtime import native
from specrt.runtime.errors import BundleError, ProviderError
from specrt.runtime.profiles import tensorrt_options


@dataclass(frozen=True, slots=True)
class Provider:
    """name: onnxruntime's. device: where its tensors live, as onnxruntime calls it. library: part
    of the file name of its library, or "". install: what to do if it is not there."""

    name: str
    device: str
    library: str
    install: str


PROVIDERS: Mapping[str, Provider] = {
    "cpu": Provider("CPUExecutionProvider", "cpu", "", ""),
    "cuda": Provider(
        "CUDAExecutionProvider",
        "cuda",
        "onnxruntime_providers_cuda",
        "install onnxruntime-gpu instead of onnxruntime, an NVIDIA driver, CUDA and cuDNN",
    ),
    "tensorrt": Provider(
        "TensorrtExecutionProvider",
        "cuda",
        "onnxruntime_providers_tensorrt",
        "install onnxruntime-gpu instead of onnxruntime, an NVIDIA driver, CUDA, cuDNN, TensorRT",
    ),
}
CHAINS: Mapping[str, Sequence[str]] = {  # who takes the nodes that the first one cannot
    "cpu": ("cpu",),
    "cuda": ("cuda", "cpu"),
    "tensorrt": ("tensorrt", "cuda", "cpu"),
}
PREFERRED: Mapping[str, Sequence[str]] = {"cuda": ("cuda",), "tensorrt": ("tensorrt", "cuda")}
IDENTITY = (  # a graph of one node, y = x, as an ONNX file
    b'\x08\x08:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01pZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12'
    b"\x04\n\x02\x08\x01b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)
ERRORS, FATAL_ONLY = 3, 4  # log severities
SPIN_US = "100"  # microseconds; 10 to 1000 were equally fast for a session running alone


@dataclass(frozen=True, slots=True)
class Choice:
    """The provider to run on and why, for people."""

    provider: str
    reason: str


def choose(provider: str, flavour: str) -> Choice:
    """The provider asked for, or with "auto" the best this machine has for graphs of a flavour.

    Raises ProviderError if the one asked for is not there.
    """
    if provider != "auto":
        require(provider)
        return Choice(provider, "asked for")
    lacking = []
    for name in PREFERRED.get(flavour, ()):
        if not (lack := missing(name)):
            return Choice(name, f"the bundle is made for {flavour}")
        lacking.append(f"{name} is not there ({lack})")
    return Choice("cpu", "; ".join(lacking) or "the bundle is made for it")


def require(provider: str) -> None:
    """ProviderError unless this machine has the provider; says what is missing."""
    if provider not in PROVIDERS:
        raise ProviderError(
            f"provider {provider!r} is unknown; choose auto, {', '.join(PROVIDERS)}"
        )
    if lack := missing(provider):
        raise ProviderError(
            f"provider {provider} is not there: {lack}; {PROVIDERS[provider].install}"
        )


@cache
def missing(provider: str) -> str:
    """What keeps a provider from starting on this machine; "" if nothing does."""
    wanted = PROVIDERS[provider]
    if provider == "cpu":
        return ""
    if wanted.name not in ort.get_available_providers():
        return f"this onnxruntime is built for {', '.join(ort.get_available_providers())} only"
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, FATAL_ONLY
    with redirect_stdout(io.StringIO()):  # the loader of CUDA's Python packages prints
        ort.preload_dlls()
    try:
        session = ort.InferenceSession(
            IDENTITY, options, providers=[wanted.name, PROVIDERS["cpu"].name], enable_fallback=0
        )
        if wanted.name in session.get_providers():
            return ""
        return _unloadable(wanted.library) or "onnxruntime cannot start it"
    except Exception as error:  # onnxruntime raises its own types, all of them private
        return _unloadable(wanted.library) or _first_line(error)


def open_graph(
    path: Path, provider: str = "cpu", threads: int = 0, *, context: int | None = None
) -> ort.InferenceSession:
    """The graph at path, ready to run on `provider`; ProviderError if this machine lacks it, or the
    native kernels that the graph is made of.

    threads: 0 = one per physical core. context: of a graph that specrt exported.
    """
    options = _options(threads)
    require(provider)
    if _needs_native(path):
        if provider != "cpu":
            raise ProviderError(
                f"{path} has native kernels, which run on the cpu and not on {provider}; "
                f"choose provider cpu, or export with --flavour {provider}"
            )
        native.register(options)
    if provider == "cpu":  # weights that the graph dequantises, once and not at each call
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    names = [PROVIDERS[name].name for name in CHAINS[provider]]
    settings: list[dict[str, str]] = [{} for _ in names]
    if provider == "tensorrt":
        settings[0] = tensorrt_options(path, context)
    start = partial(
        ort.InferenceSession,
        *(path, options),
        providers=names,
        provider_options=settings,
        enable_fallback=0,
    )
    try:
        try:
            session = start()
        except RuntimeError as error:  # another part of the process has made a pool for all
            if "use_per_session_threads" not in str(error):
                raise
            options.use_per_session_threads = False
            session = start()
    except Exception as error:  # onnxruntime raises its own types, all of them private
        raise BundleError(f"{path} cannot be loaded: {_first_line(error)}; export again") from None
    found = session.get_providers()
    if found[0] != names[0]:
        raise ProviderError(
            f"provider {provider} was asked for, onnxruntime could only start "
            f"{', '.join(found)}; {PROVIDERS[provider].install}"
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


def _needs_native(path: Path) -> bool:
    try:
        return native.needed(path)
    except (OSError, ValueError):  # not there, or empty, which onnxruntime will say
        return False


def _options(threads: int) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = ERRORS
    options.intra_op_num_threads = threads or physical_cores()
    options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_US)
    return options


def _unloadable(library: str) -> str:
    """What the system's loader says about a provider's library that onnxruntime did not load."""
    for file in (Path(ort.__file__).parent / "capi").glob(f"*{library}.*"):
        try:
            ctypes.CDLL(str(file))
        except OSError as error:
            return _first_line(error)
    return ""


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else repr(error)
