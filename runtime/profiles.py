"""What TensorRT is told before it builds an engine: row counts to tune for, where engines are kept.

An engine is built for ranges of shapes, each tuned at one of them. Built engines are kept beside
the bundle's other measurements of this device; another bundle never finds them, since TensorRT
tells graphs apart by their nodes and not by their weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specrt.runtime.bundle import MANIFEST


@dataclass(frozen=True, slots=True)
class Rows:
    """A range of rows in a call, and the number to tune for."""

    least: int
    typical: int
    most: int


PREFILL, ONE, BLOCK = Rows(1, 512, 512), Rows(1, 1, 1), Rows(2, 6, 65)
PROFILES = (PREFILL, ONE, BLOCK)  # the first one covers every call
DYNAMIC: Mapping[str, str] = {  # inputs whose shape, or for num_logits value, goes with the rows
    "input_ids": "1x{rows}",
    "position_ids": "1x{rows}",
    "attention_bias": "1x1x{rows}x{context}",
    "num_logits": "{rows}",
}


def tensorrt_options(path: Path, context: int | None) -> dict[str, str]:
    """Options of the TensorRT provider for the graph at path. context: its cache's capacity; None
    for a graph of another exporter, whose shapes TensorRT finds out as it goes."""
    options = {"trt_timing_cache_enable": "1"}
    if (folder := engine_folder(path)) is not None:
        options |= {
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": str(folder),
            "trt_timing_cache_path": str(folder),
        }
    if context is not None:
        for bound, name in (("least", "min"), ("typical", "opt"), ("most", "max")):
            options[f"trt_profile_{name}_shapes"] = ",".join(
                f"{tensor}:{shape.format(rows=min(getattr(rows, bound), context), context=context)}"
                for rows in PROFILES
                for tensor, shape in DYNAMIC.items()
            )
    return options


def engine_folder(path: Path) -> Path | None:
    """Where engines of the graph at path are kept: BUNDLE/profile/tensorrt/<the graph's folder>.
    None if it is in no bundle or the bundle is not to be written to."""
    for bundle in path.parents:
        if (bundle / MANIFEST).is_file():
            folder = bundle / "profile" / "tensorrt" / path.parent.relative_to(bundle)
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError:
                return None
            return folder
    return None
