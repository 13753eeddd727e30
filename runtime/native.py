"""The native CPU kernels: find their library, register it, say which instructions it uses.

The library lies beside this file where the package was installed with a C compiler at hand.
"""

import ctypes
import threading
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


def path() -> str:
    """The instructions in use: "avx512-vnni", "avx2" or "portable"."""
    return str(_library().specrt_path().decode())


def choose_path(name: str | None) -> bool:
    """Use the named path in this process, None for the best; False if the processor lacks it.

    All give the same bits; only tests and measurements have a reason to choose.
    """
    return bool(_library().specrt_choose_path(name.encode() if name else None))


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
