"""Exact, fast text generation on small machines: speculative decoding on ONNX Runtime.

>>> import specrt
>>> model = specrt.load("bundle")  # doctest: +SKIP
>>> for piece in model.stream("Explain KV caches.", max_tokens=200):  # doctest: +SKIP
...     print(piece.text, end="")
"""

from specrt.runtime.api import Model, load
from specrt.runtime.detail import Logprob
from specrt.runtime.errors import (
    BundleError,
    CapacityError,
    CheckError,
    ProviderError,
    RequestError,
    SourceError,
    SpecrtError,
)
from specrt.runtime.sampling import Sampling
from specrt.runtime.stream import Piece, Result, Stream
from specrt.runtime.trace import Step, Trace
from specrt.runtime.version import VERSION

__version__ = VERSION
__all__ = [
    "BundleError",
    "CapacityError",
    "CheckError",
    "Logprob",
    "Model",
    "Piece",
    "ProviderError",
    "RequestError",
    "Result",
    "Sampling",
    "SourceError",
    "SpecrtError",
    "Step",
    "Stream",
    "Trace",
    "load",
]
