"""llama.cpp's own server: a GGUF file, plainly, with n-gram lookup or with a draft model.

The server listens on a free port of this machine, with one slot; it is asked for token ids.
"""

import atexit
import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

# Options of versions since 2026, as its docs/speculative.md has them. Its n-grams are made for
# GPUs, with drafts of 48 tokens after 12 that are the same; each row costs on a processor.
NGRAM = "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "8"
SPECULATIVE = {
    "plain": [],
    "lookup": ["--spec-type", "ngram-simple", *NGRAM],
    "draft": ["--spec-type", "draft-simple", "--spec-draft-model"],
}
POLL_S = 0.1


def open(module: None, job: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = str(job["threads"])
    command = [job["program"], "--model", job["model"], "--host", "127.0.0.1", "--port", str(port)]
    command += ["--parallel", "1", "--ctx-size", str(job["context"]), "--no-webui"]
    command += ["--threads", threads, "--threads-batch", threads, *SPECULATIVE[job["mode"]]]
    if job["mode"] == "draft":
        command += [job["draft"], "--threads-draft", threads, "--threads-batch-draft", threads]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    atexit.register(server.kill)
    address = f"http://127.0.0.1:{port}"
    _wait(server, address)
    with urllib.request.urlopen(address + "/props") as response:
        version = json.load(response).get("build_info", "")

    def ask(ids: list[int], count: int, emit: Callable[..., None]) -> dict[str, Any]:
        wanted = {"prompt": ids, "n_predict": count, "temperature": 0, "ignore_eos": True}
        wanted |= {"stream": True, "cache_prompt": False, "timings_per_token": True}
        request = urllib.request.Request(address + "/completion", json.dumps(wanted).encode())
        timings: dict[str, Any] = {}
        with urllib.request.urlopen(request) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    event = json.loads(line[len(b"data: ") :])
                    before, timings = timings, event.get("timings", timings)
                    if event.get("tokens"):  # its clock stands still within a run of the model
                        same = before.get("predicted_ms") == timings.get("predicted_ms")
                        emit(event["tokens"], joined=bool(before) and same)
        drafted, accepted = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
        counts = {"drafted": drafted, "accepted": accepted}
        return {**counts, "pid": server.pid, "version": version}

    return ask


def _wait(server: "subprocess.Popen[bytes]", address: str) -> None:
    """Return once the server has loaded its model."""
    while True:
        if server.poll() is not None:
            raise RuntimeError(f"llama-server ended with {server.returncode} before it was ready")
        try:
            with urllib.request.urlopen(address + "/health"):
                return
        except OSError:  # not listening yet, or still loading
            time.sleep(POLL_S)
