"""Plain decoding of specrt and of onnxruntime-genai, side by side: speed, load time, peak memory.

    python bench/plain_vs_genai.py GENAI_MODEL BUNDLE --genai-python other/.venv/bin/python

Each engine runs in its own process, the processes take turns, and a process asks every prompt once.
Both get the same number of threads: onnxruntime-genai's own choice can be half as many and slower.
The file is also what those processes run, and onnxruntime-genai may live in an environment without
specrt: so only the standard library is imported at the top. POSIX only (wait4).
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

ENGINES = {"genai": "onnxruntime_genai", "specrt": "specrt"}  # engine -> module
WARMUP_TOKENS = 16
FIGURES = {  # name -> its title
    "tokens_per_s": "decode tokens/s",
    "ttft_s": "first token s",
    "import_s": "import s",
    "load_s": "load s",
    "peak_rss_mb": "peak memory MB",
}

Messages = Sequence[Mapping[str, str]]
Answer = dict[str, float]  # prompt_tokens, tokens, ttft_s, decode_s
Ask = Callable[[Messages, int], Answer]  # messages, most tokens -> answer


def main(argv: list[str] | None = None) -> int:
    """Compare, print a table and, as the last line, JSON. 2 if an engine cannot run."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--worker"]:  # one of our own processes; the job comes on standard input
        print(json.dumps(work(argv[1], json.load(sys.stdin))))
        return 0
    options = _parser().parse_args(argv)
    pythons = {"genai": options.genai_python, "specrt": sys.executable}
    if not has_genai(options.genai_python):
        print(
            f"plain_vs_genai: onnxruntime-genai is not installed in {options.genai_python}; "
            "pip install onnxruntime-genai there, or name another python with --genai-python",
            file=sys.stderr,
        )
        return 2
    models = {"genai": options.genai_model, "specrt": options.bundle}
    threads = options.threads or _physical_cores()
    prompts = choose(options.prompts)
    job = {"prompts": prompts, "max_tokens": options.max_tokens, "threads": threads}
    processes = []
    for turn in range(options.rounds):
        for engine in list(ENGINES)[:: 1 if turn % 2 == 0 else -1]:
            process = run_worker(pythons[engine], engine, {**job, "model": models[engine]})
            if "error" in process:
                print(f"plain_vs_genai: {engine} failed: {process['error']}", file=sys.stderr)
                return 2
            processes.append(process)
    comparison = compare(processes)
    print(table(comparison))
    print(json.dumps({"comparison": comparison, "processes": processes}, allow_nan=False))
    return 0


def has_genai(python: str) -> bool:
    """Whether that interpreter can import onnxruntime-genai."""
    try:
        done = subprocess.run([python, "-c", "import onnxruntime_genai"], capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def choose(count: int) -> list[dict[str, Any]]:
    """The first `count` prompts of the package, the kinds of work in turn."""
    from specrt.bench.suite import KINDS, load_suites

    suites = [load_suites([kind]) for kind in KINDS]
    mixed = [prompt for row in zip(*suites, strict=True) for prompt in row]
    return [{"id": prompt.id, "messages": prompt.messages} for prompt in mixed[:count]]


def run_worker(python: str, engine: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """One process of one engine: its answers, its load time, the peak of its memory.

    The kernel counts the peak; a child starts from its parent's, which is below any engine's.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out:
        given.write(json.dumps(job).encode())
        given.seek(0)
        command = [python, str(Path(__file__).resolve()), "--worker", engine]
        child = subprocess.Popen(command, stdin=given, stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        lines = out.read().decode(errors="replace").strip().splitlines() or ["no output"]
    if child.returncode != 0:
        return {"engine": engine, "error": lines[-1]}
    unit = 1 if sys.platform == "darwin" else 1024
    return {"engine": engine, "peak_rss_mb": usage.ru_maxrss * unit / 1e6, **json.loads(lines[-1])}


def work(engine: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """What a process does: load, warm up, ask each prompt once."""
    start = perf_counter()
    module = importlib.import_module(ENGINES[engine])
    imported = perf_counter()
    ask = {"genai": open_genai, "specrt": open_specrt}[engine](module, job["model"], job["threads"])
    loaded = perf_counter()
    ask(job["prompts"][0]["messages"], WARMUP_TOKENS)
    runs = [
        {"id": prompt["id"], **ask(prompt["messages"], job["max_tokens"])}
        for prompt in job["prompts"]
    ]
    return {"import_s": imported - start, "load_s": loaded - imported, "runs": runs}


def open_specrt(specrt: Any, bundle: str, threads: int) -> Ask:
    model = specrt.load(bundle, drafter="none", provider="cpu", threads=threads)

    def ask(messages: Messages, limit: int) -> Answer:
        model.generate((0,), max_tokens=1)  # forgets what the last prompt shares with this one
        start = perf_counter()
        result = model.generate(messages=messages, max_tokens=limit, temperature=0.0)
        wall_s = perf_counter() - start
        told = result.trace.summary()
        answer = {name: told[name] for name in ("prompt_tokens", "tokens", "ttft_s")}
        return {**answer, "decode_s": wall_s - told["ttft_s"]}  # all that is not the first token

    return ask


def open_genai(genai: Any, folder: str, threads: int) -> Ask:
    config = genai.Config(folder)
    options = {"intra_op_num_threads": threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    model = genai.Model(config)
    tokenizer = genai.Tokenizer(model)

    def ask(messages: Messages, limit: int) -> Answer:
        start = perf_counter()
        text = tokenizer.apply_chat_template(json.dumps(messages), add_generation_prompt=True)
        prompt = tokenizer.encode(text)  # (n,) int32
        params = genai.GeneratorParams(model)
        params.set_search_options(max_length=prompt.size + limit, do_sample=False)
        generator = genai.Generator(model, params)
        generator.append_tokens(prompt)
        generator.generate_next_token()
        tokens = [int(generator.get_next_tokens()[0])]
        first = perf_counter()
        while len(tokens) < limit and not generator.is_done():
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
        decode_s = perf_counter() - first
        counts = {"prompt_tokens": int(prompt.size), "tokens": len(tokens)}
        return {**counts, "ttft_s": first - start, "decode_s": decode_s}

    return ask


def compare(processes: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """For each figure the medians of both engines, and specrt's over genai's."""
    medians = {
        engine: _medians([p for p in processes if p["engine"] == engine]) for engine in ENGINES
    }
    return {
        name: {
            **{engine: medians[engine][name] for engine in ENGINES},
            "ratio": medians["specrt"][name] / medians["genai"][name],
        }
        for name in FIGURES
    }


def table(comparison: Mapping[str, Mapping[str, float]]) -> str:
    """The comparison as lines of text."""
    lines = [f"{'median of':20}{'genai':>10}{'specrt':>10}{'ratio':>8}"]
    for name, title in FIGURES.items():
        f = comparison[name]
        lines.append(f"{title:20}{f['genai']:10.2f}{f['specrt']:10.2f}{f['ratio']:8.2f}")
    return "\n".join(lines)


def _medians(processes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    runs = [run for process in processes for run in process["runs"] if run["tokens"] > 1]
    return {
        "tokens_per_s": median((run["tokens"] - 1) / run["decode_s"] for run in runs),
        "ttft_s": median(run["ttft_s"] for run in runs),
        "import_s": median(process["import_s"] for process in processes),
        "load_s": median(process["load_s"] for process in processes),
        "peak_rss_mb": median(process["peak_rss_mb"] for process in processes),
    }


def _physical_cores() -> int:
    from specrt.runtime.providers import physical_cores

    return physical_cores()


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("genai_model", help="folder with genai_config.json")
    parser.add_argument("bundle", help="folder with specrt.json")
    parser.add_argument("--genai-python", default=sys.executable, help="interpreter that has it")
    parser.add_argument(
        "--prompts", type=_positive, default=12, help="how many prompts (%(default)s)"
    )
    parser.add_argument(
        "--max-tokens", type=_positive, default=128, help="tokens each (%(default)s)"
    )
    parser.add_argument("--rounds", type=_positive, default=3, help="processes each (%(default)s)")
    parser.add_argument("--threads", type=_positive, help="of both (one a physical core)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
