"""llama.cpp through llama-cpp-python: a GGUF file, plainly or with its prompt lookup."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

DRAFT_TOKENS = 2  # what its documentation advises for processors without a GPU


def open(llama_cpp: Any, job: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    drafts = _Drafts() if job["mode"] == "lookup" else None
    model = llama_cpp.Llama(
        job["model"],
        n_ctx=job["context"],
        n_threads=job["threads"],
        n_threads_batch=job["threads"],
        draft_model=drafts,
        verbose=False,
    )
    runs = _counted(model)

    def ask(ids: list[int], count: int, emit: Callable[..., None]) -> dict[str, Any]:
        model.reset()  # else it would keep what this prompt shares with the last one
        before, drafted, seen = runs[0], drafts.count if drafts else 0, 0
        for written, token in enumerate(model.generate(ids, temp=0.0), start=1):
            emit([token], joined=runs[0] == seen)
            seen = runs[0]
            if written == count:
                break
        if drafts is None:
            return {}
        return {"drafted": drafts.count - drafted, "accepted": count - (runs[0] - before)}

    return ask


class _Drafts:
    """Its prompt lookup, counting the tokens proposed."""

    def __init__(self) -> None:
        lookup = import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding
        self._lookup = lookup(num_pred_tokens=DRAFT_TOKENS)
        self.count = 0

    def __call__(self, ids: Any, /, **options: Any) -> Any:
        found = self._lookup(ids, **options)
        self.count += len(found)
        return found


def _counted(model: Any) -> list[int]:
    """How often the model has run, kept in a list of one number."""
    runs, run = [0], model.eval

    def counting(tokens: Any) -> None:
        runs[0] += 1
        run(tokens)

    model.eval = counting
    return runs
