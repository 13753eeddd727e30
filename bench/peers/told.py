"""What is said of each peer under the tables: its load, its memory, or why it failed."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from specrt.bench.begin import BASELINE
from specrt.bench.peers.known import Entrant


def lines(records: Sequence[Mapping[str, Any]], entrants: Sequence[Entrant]) -> Iterator[str]:
    """A line for each peer and mode, and one more if any of its records is an error, or if it was
    not asked all that plain decoding was."""
    planned = sum(record["drafter"] == BASELINE for record in records)
    for entrant in entrants:
        runs = [record for record in records if record["drafter"] == entrant.name]
        loads = [run["load_s"] for run in runs if run["load_s"] is not None]
        peaks = [run["peak_rss_mb"] for run in runs if run["peak_rss_mb"] is not None]
        loaded = f"loaded in {median(loads):.2f} s" if loads else "not loaded"
        memory = f"{max(peaks):.0f} MB" if peaks else "unknown"
        version = next((f", version {run['version']}" for run in runs if run["version"]), "")
        yield f"{entrant.name}: {loaded}, peak memory {memory}, {entrant.model.name}{version}"
        if len(runs) < planned:
            yield f"{entrant.name}: asked {len(runs)} of {planned} questions"
        if errors := [run["error"] for run in runs if run["error"]]:
            yield f"{entrant.name}: {len(errors)} failed: {errors[0]}"
