"""The native CPU kernels: find their library, register it, say which instructions it uses.

The library lies beside this file where the package was installed with a C compiler at hand.
"""

import ctypes
import mmap
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import onnxruntime

from specrt.runtime.errors import ProviderError

DOMAIN = "specrt"
NAMES = ("libspecrt.so", "libspecrt.dylib", "libspecrt.dll")
OLDEST = (1, 17)  # the first onnxruntime whose function table has all that the operators use
MISSING = (
    "this installation has no native kernels, for want of a C compiler when it was made; "
    "install a compiler and then specrt again, or export with --kernels stock"
)
_OPSET_IMPORT = 8  # of ModelProto
_DOMAIN_FIELD = bytes([1 << 3 | 2, len(DOMAIN)]) + DOMAIN.encode()  # of OperatorSetIdProto
_registering = threading.Lock()  # the library registers for one caller at a time


def find() -> Path | None:
    """The library, or None where the package was installed without one."""
    folder = Path(__file__).parent
    return next((folder / name for name in NAMES if (folder / name).is_file()), None)


def register(options: onnxruntime.SessionOptions) -> None:
    """Make the operators of domain `specrt` known to sessions with these options.

    ProviderError if there is no library or this onnxruntime cannot use it.
    """
    _library()
    with _registering:
        options.register_custom_ops_library(str(find()))


def needed(graph: Path) -> bool:
    """Whether an ONNX file says that it has operators of domain `specrt`."""
    with graph.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as model:
        return any(
            number == _OPSET_IMPORT and _DOMAIN_FIELD in model[start:stop]
            for number, start, stop in _fields(model)
        )


def path() -> str:
    """The instructions in use, as `docs/kernels-building.md` lists them: "avx2", "neon-dot", …"""
    return str(_library().specrt_path().decode())


def choose_path(name: str | None) -> bool:
    """Use the named path in this process, None for the best; False if the processor lacks it.

    All give the same bits; only tests and measurements have a reason to choose.
    """
    return bool(_library().specrt_choose_path(name.encode() if name else None))


def _fields(message: mmap.mmap) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of the fields of a protobuf message; nothing after what is no field."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while at < len(message):
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
        return value

    while at < len(message):
        key = varint()
        if key & 7 == 2:
            size = varint()
            yield key >> 3, at, min(at + size, len(message))
            at += size
        elif key & 7 == 0:
            varint()
        else:
            return


@cache
def _library() -> ctypes.CDLL:
    found = find()
    if found is None:
        raise ProviderError(MISSING)
    version = onnxruntime.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ProviderError(f"native kernels need onnxruntime {oldest} or newer, not {version}")
    try:
        library = ctypes.CDLL(str(found))
    except OSError as error:
        raise ProviderError(
            f"{found.name} cannot be loaded: {error}; install specrt again"
        ) from None
    library.specrt_path.restype = ctypes.c_char_p
    library.specrt_choose_path.argtypes = [ctypes.c_char_p]
    return library
