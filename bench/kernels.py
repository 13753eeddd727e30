"""What a step of k rows costs on the native kernels, on onnxruntime's own, and in llama.cpp.

    python bench/kernels.py CHECKPOINT.gguf [--home FOLDER] [--llama-python other/.venv/bin/python]

Exports the checkpoint three times (native, stock int4, stock int8) unless FOLDER has the bundles,
and takes turns between them in one process: each round reads k rows after the same context. Ratios
are medians of the rounds' own, since a host may change the memory's speed between two rounds, which
is told. Load time and memory come from a process each. llama.cpp runs in processes of its own
between the rounds, in an environment with llama-cpp-python. The file is also what those processes
run, so only the standard library is imported at the top. The last line is JSON.
"""

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

NATIVE = "native"
FORMS: Mapping[str, str] = {  # bundle -> options of its export
    NATIVE: "--kernels native",
    "stock int4": "--kernels stock --weights int4",
    "stock int8": "--kernels stock --weights int8",
}
BASE = "stock int4"  # what the others are compared with
ROWS = (1, 2, 4, 8, 16)
PREFILL = 512
LOOK_UPS = (  # operators that read rows of a table, not all of it; attention those of rotations
    *("Embedding", "Gather", "GatherBlockQuantized"),
    *("Attention", "GroupQueryAttention"),
)
LLAMA = "llama.cpp"
Round = dict[str, dict[int, float]]  # by form and number of rows, the median in milliseconds


def main() -> int:
    """Measure, print tables and, as the last line, JSON."""
    if sys.argv[1:2] == ["--worker"]:
        job = json.loads(sys.argv[2])
        workers: dict[str, Callable[..., object]] = {"llama": llama, "load": load}
        print(json.dumps(workers[job.pop("do")](**job)))
        return 0
    options = _parser().parse_args()
    bundles = export_all(options.checkpoint, options.home)
    threads = options.threads or _physical_cores()
    sessions = {name: open_session(bundle, threads) for name, bundle in bundles.items()}
    rounds: list[Round] = []
    rates = []
    for _ in range(options.rounds):
        rates.append(memory_rate(threads))
        rounds.append(turn(sessions, options.context))
        if options.llama_python:
            job = {"do": "llama", "model": str(options.checkpoint), "threads": threads}
            found = _worker(options.llama_python, job, context=options.context)
            rounds[-1][LLAMA] = {int(k): median(ms) for k, ms in found.items()}
    figures = {
        name: {k: median(a_round[name][k] for a_round in rounds) for k in (*ROWS, PREFILL)}
        for name in rounds[0]
    }
    ratios = ratios_of(rounds)
    stages = profile(bundles[NATIVE], threads, options.context)
    del sessions
    loads = {
        name: _worker(sys.executable, {"do": "load", "bundle": str(b), "threads": threads})
        for name, b in bundles.items()
    }
    facts = {name: describe(bundle) for name, bundle in bundles.items()}
    print(table(figures, ratios, facts, loads))
    print(limits(figures, facts, stages, rates))
    document = {
        "ms": figures,
        "ratios": ratios,
        "rounds": rounds,
        "facts": facts,
        "load": loads,
        "stages_ms": stages,
        "memory_gb_per_s": rates,
        "environment": _environment(),
    }
    line = json.dumps(document, allow_nan=False)
    print(line)
    if options.json:
        options.json.write_text(line + "\n", encoding="utf-8")
    return 0


def export_all(checkpoint: Path, home: Path) -> dict[str, Path]:
    """The bundle of each form, made unless it is there."""
    specrt = str(Path(sys.executable).with_name("specrt"))
    bundles = {}
    for name, options in FORMS.items():
        bundle = home / f"{checkpoint.stem}-{name.replace(' ', '-')}"
        if not (bundle / "specrt.json").exists():
            command = [specrt, "export", str(checkpoint), str(bundle), *options.split()]
            subprocess.run(command, check=True, stdout=sys.stderr)
        bundles[name] = bundle
    return bundles


def open_session(bundle: Path, threads: int) -> Any:
    from specrt.runtime import open as opening
    from specrt.runtime.bundle import read_manifest

    manifest = read_manifest(bundle)
    graph = bundle / "target" / "model.onnx"
    return opening.open_session(graph, manifest.model, manifest.flavour, threads=threads)


def turn(sessions: Mapping[str, Any], context: int) -> Round:
    """One round: every number of rows, the sessions in turn."""
    import numpy as np

    ids = np.random.default_rng(0).integers(100, 10000, context + PREFILL)
    times: dict[str, dict[int, list[float]]] = {
        name: {k: [] for k in (*ROWS, PREFILL)} for name in sessions
    }
    for name, session in sessions.items():
        session.keep(0)
        times[name][PREFILL].append(_milliseconds(partial(session.forward, ids[:PREFILL])))
        session.keep(context)
    for k in ROWS:
        for _ in range(8):
            for name, session in sessions.items():
                for wanted in (False, True):  # the first call after another model finds cold caches
                    session.keep(context)
                    block = ids[context : context + k]
                    ms = _milliseconds(partial(session.forward, block, last=k))
                    if wanted:
                        times[name][k].append(ms)
    return {name: {k: median(ms) for k, ms in by_k.items()} for name, by_k in times.items()}


def ratios_of(rounds: Sequence[Round]) -> dict[str, dict[str, float]]:
    """By form: v(8), what k rows take of the base's time, and its prefill over the base's; each
    the median of the rounds' own."""

    def ratio(name: str, k: int, other: str, other_k: int) -> float:
        return median(a_round[name][k] / a_round[other][other_k] for a_round in rounds)

    return {
        name: {
            "v8": ratio(name, 8, name, 1),
            **{str(k): ratio(name, k, BASE, k) for k in ROWS},
            "prefill": ratio(BASE, PREFILL, name, PREFILL),
        }
        for name in rounds[0]
    }


def llama(model: str, threads: int, context: int) -> dict[int, list[float]]:
    """Milliseconds of llama.cpp for the same blocks; logits of every row, as verification needs."""
    import ctypes

    import numpy as np

    c = importlib.import_module("llama_cpp")  # in its own environment

    c.llama_backend_init()
    loaded = c.llama_model_load_from_file(model.encode(), c.llama_model_default_params())
    params = c.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = context + PREFILL + 64, PREFILL, PREFILL
    params.n_threads = params.n_threads_batch = threads
    state = c.llama_init_from_model(loaded, params)
    memory = c.llama_get_memory(state)
    ids = np.random.default_rng(0).integers(100, 10000, context + PREFILL)

    def read(start: int, count: int, last: int) -> None:
        batch = c.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        for i in range(count):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = int(ids[start + i]), start + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, i >= count - last
        assert c.llama_decode(state, batch) == 0, "llama.cpp could not decode"
        ctypes.cast(c.llama_get_logits(state), ctypes.POINTER(ctypes.c_float))[0]
        c.llama_batch_free(batch)

    def forget(length: int) -> None:
        c.llama_memory_seq_rm(memory, 0, length, -1)

    times: dict[int, list[float]] = {PREFILL: []}
    for _ in range(2):
        forget(0)
        ms = _milliseconds(partial(read, 0, PREFILL, 1))
    times[PREFILL] = [ms]
    for k in ROWS:
        times[k] = []
        for i in range(9):
            forget(context)
            ms = _milliseconds(partial(read, context, k, k))
            if i:
                times[k].append(ms)
    return times


def load(bundle: str, threads: int) -> dict[str, float]:
    """Seconds until a session is open, and the memory this process then holds, in MB: its own, and
    with the file's pages that it has read once."""
    import specrt.runtime.open  # noqa: F401  (not counted)

    began = perf_counter()
    session = open_session(Path(bundle), threads)
    seconds = perf_counter() - began
    own = _status("RssAnon")
    session.forward([1, 2, 3, 4])
    return {"load_s": seconds, "own_mb": own, "peak_mb": _status("VmHWM")}


def profile(bundle: Path, threads: int, context: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a step of 1 and of 8 rows by operator, told by onnxruntime's profiler."""
    import onnxruntime as ort

    stages = {}
    for k in (1, 8):
        made = ort.InferenceSession.__init__

        def profiled(self: Any, path: Any, options: Any, *rest: Any, **more: Any) -> None:
            options.enable_profiling = True
            options.profile_file_prefix = str(bundle.parent / "profile")
            made(self, path, options, *rest, **more)  # noqa: B023

        ort.InferenceSession.__init__ = profiled
        try:
            session = open_session(bundle, threads)
        finally:
            ort.InferenceSession.__init__ = made
        rounds = 12
        session.forward([7] * context)
        for _ in range(rounds):
            session.keep(context)
            session.forward([7] * k, last=k)
        file = Path(session._session.end_profiling())
        events = [e for e in json.loads(file.read_text()) if e.get("cat") == "Node"]
        file.unlink()
        events = [e for e in events if e["name"].endswith("_kernel_time")]
        events = events[len(events) // (rounds + 1) :]  # without the context's call
        by_op: dict[str, float] = {}
        for event in events:
            op = event["args"]["op_name"]
            by_op[op] = by_op.get(op, 0.0) + event["dur"] / 1000 / rounds
        stages[str(k)] = by_op
    return stages


def memory_rate(threads: int) -> float:
    """Gigabytes a second that all threads together read from memory."""
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    arrays = [np.ones(1 << 27, np.float32) for _ in range(threads)]  # 512 MB each
    with ThreadPoolExecutor(threads) as pool:
        best = min(_milliseconds(lambda: list(pool.map(np.max, arrays))) for _ in range(5))
    return sum(a.nbytes for a in arrays) / best / 1e6


def read_in_a_step(graph: Path) -> int:
    """Bytes of the constants that a step reads whole. Tables of embeddings and of rotations are
    only looked up, unless a product takes them too, as a tied head does."""
    onnx = importlib.import_module("onnx")  # of the extra that exports
    made = onnx.load(graph, load_external_data=False).graph
    whole = {name for node in made.node if node.op_type not in LOOK_UPS for name in node.input}
    return sum(
        int(entry.value)
        for constant in made.initializer
        if constant.name in whole
        for entry in constant.external_data
        if entry.key == "length"
    )


def describe(bundle: Path) -> dict[str, Any]:
    """Weights, bytes of the data file and of what a step reads of it, and how far the text is from
    the checkpoint's."""
    from specrt.runtime.bundle import read_manifest

    manifest = read_manifest(bundle)
    quality = manifest.checks.get("quality", {})
    size = (bundle / "target" / "model.onnx.data").stat().st_size
    read = read_in_a_step(bundle / "target" / "model.onnx")
    return {"weights": manifest.weights, "bytes": size, "read": read, "kl": quality.get("kl")}


def table(
    figures: Round,
    ratios: Mapping[str, Mapping[str, float]],
    facts: Mapping[str, Any],
    loads: Mapping[str, Any],
) -> str:
    """A line for each form: milliseconds by rows, ratios to the base, v(8), prefill, KL, load."""
    lines = [
        f"{'':12}" + "".join(f"{f'k={k}':>8}" for k in ROWS) + f"{'v(8)':>7}{'prefill':>9}"
        f"{'KL':>8}{'load s':>8}{'own MB':>8}{'file MB':>9}"
    ]
    for name, ms in figures.items():
        fact, loaded = facts.get(name, {}), loads.get(name, {})
        line = f"{name:12}" + "".join(f"{ms[k]:8.2f}" for k in ROWS)
        line += f"{ratios[name]['v8']:7.2f}{1000 * PREFILL / ms[PREFILL]:9.0f}"
        if fact:
            line += f"{fact['kl'] or 0:8.4f}{loaded['load_s']:8.2f}{loaded['own_mb']:8.0f}"
            line += f"{fact['bytes'] / 1e6:9.0f}"
        lines.append(line)
    for name, of_base in ratios.items():
        if name != BASE:
            shares = "".join(f"{of_base[str(k)]:8.2f}" for k in ROWS)
            lines.append(f"{name:12}{shares}{'':7}{of_base['prefill']:8.2f}x  of {BASE}")
    return "\n".join(lines)


def limits(
    figures: Mapping[str, Any],
    facts: Mapping[str, Any],
    stages: Mapping[str, Mapping[str, float]],
    rates: Sequence[float],
) -> str:
    """Where the time of a native step goes, and the time its weights take to be read."""
    lines = []
    for k, by_op in stages.items():
        total = sum(by_op.values())
        parts = sorted(by_op.items(), key=lambda item: -item[1])[:6]
        shares = ", ".join(f"{op} {ms:.2f}" for op, ms in parts)
        lines.append(f"k={k}: {total:.2f} ms in operators: {shares}")
    read = facts[NATIVE]["read"]
    rate = median(rates)
    floor = read / rate / 1e6
    lines.append(
        f"memory reads {min(rates):.1f} to {max(rates):.1f} GB/s; at {rate:.1f} the "
        f"{read / 1e6:.0f} MB of a step once {floor:.2f} ms: "
        f"k=1 takes {figures[NATIVE][1] / floor:.2f} times that"
    )
    return "\n".join(lines)


def _milliseconds(call: Callable[[], object]) -> float:
    began = perf_counter()
    call()
    return 1000 * (perf_counter() - began)


def _status(field: str) -> float:
    """A field of /proc/self/status in MB, 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in lines if line.startswith(field + ":")]
    return int(found[0]) * 1024 / 1e6 if found else 0.0


def _worker(python: str, job: Mapping[str, Any], **more: Any) -> Any:
    """What one of our own processes prints last."""
    command = [python, str(Path(__file__).resolve()), "--worker", json.dumps({**job, **more})]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"kernels: {job['do']} failed: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _physical_cores() -> int:
    from specrt.runtime.providers import physical_cores

    return physical_cores()


def _environment() -> dict[str, Any]:
    from specrt.bench.environment import environment

    return environment()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkpoint", type=Path, help="a GGUF file")
    home = Path.home() / ".cache" / "specrt" / "bundles"
    parser.add_argument("--home", type=Path, default=home, help="where the bundles are")
    parser.add_argument("--llama-python", help="an interpreter that has llama-cpp-python")
    parser.add_argument("--context", type=int, default=256, help="entries before (%(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="turns of all (%(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="one a physical core")
    parser.add_argument("--json", type=Path, help="write the JSON to a file as well")
    return parser


if __name__ == "__main__":
    sys.exit(main())
