"""openvino-genai: a GGUF file or a folder of its own, plainly or with its prompt lookup."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

LOOKUP = {"num_assistant_tokens": 5, "max_ngram_size": 3}  # as its prompt lookup sample has them


def open(genai: Any, job: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    numpy, openvino = import_module("numpy"), import_module("openvino")
    lookup = {"prompt_lookup": True} if job["mode"] == "lookup" else {}
    model = genai.LLMPipeline(job["model"], "CPU", INFERENCE_NUM_THREADS=job["threads"], **lookup)

    class Streamer(genai.StreamerBase):  # type: ignore[misc]
        def __init__(self, emit: Callable[..., None]) -> None:
            super().__init__()
            self.emit = emit

        def write(self, tokens: int | list[int]) -> Any:
            self.emit(tokens if isinstance(tokens, list) else [tokens])
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    def ask(ids: list[int], count: int, emit: Callable[..., None]) -> dict[str, Any]:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
        if lookup:
            for name, value in LOOKUP.items():
                setattr(config, name, value)
        row = numpy.array([ids], numpy.int64)  # (1, n)
        asked = (openvino.Tensor(row), openvino.Tensor(numpy.ones_like(row)))
        model.generate(genai.TokenizedInputs(*asked), config, Streamer(emit))
        return {}

    return ask
