"""What a session alone leaves unloaded: what is imported stays in memory for as long as it runs."""

import subprocess
import sys
from pathlib import Path

from specrt.runtime.bundle import read_manifest

NEEDLESS = {
    *("numpy.random", "secrets", "_hashlib"),  # 6.5 MB; the last one loads OpenSSL
    "tokenizers",  # 3.4 MB
    *("asyncio", "email", "http", "jinja2", "logging", "multiprocessing", "ssl"),
}
STEPS = """
import sys
import numpy, onnxruntime  # what these need is not ours to choose
theirs = {*sys.modules}
from pathlib import Path
from specrt.runtime.session import Session
session = Session(Path(sys.argv[1]), context=64, vocab=int(sys.argv[2]))
session.forward([1, 2, 3])
session.forward([4])
print(*sys.modules.keys() - theirs)
"""


def test_a_session_alone_loads_nothing_that_it_does_not_need(tiny_bundle: Path) -> None:
    graph, vocab = tiny_bundle / "target" / "model.onnx", read_manifest(tiny_bundle).model.vocab
    command = [sys.executable, "-c", STEPS, str(graph), str(vocab)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "specrt.runtime.session" in loaded
    assert NEEDLESS & loaded == set()
