"""transformers: a GGUF file (its weights as bf16 or fp32) or a folder, plainly, with prompt lookup
or with an assistant model."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

LOOKUP_TOKENS = 3  # as its documentation of prompt lookup has it
DRAFTING = ("PromptLookupCandidateGenerator", "AssistedCandidateGenerator")


def open(transformers: Any, job: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    torch = import_module("torch")
    torch.set_num_threads(job["threads"])
    dtype = torch.bfloat16 if _has_bf16() else torch.float32
    model = _load(transformers, job["model"], dtype)
    options: dict[str, Any] = {}
    if job["mode"] == "lookup":
        options = {"prompt_lookup_num_tokens": LOOKUP_TOKENS}
    elif job["mode"] == "draft":
        options = {"assistant_model": _load(transformers, job["draft"], dtype)}
    drafted = _counted(import_module("transformers.generation.candidate_generator"))

    def ask(ids: list[int], count: int, emit: Callable[..., None]) -> dict[str, Any]:
        streamer, before = _Streamer(emit), drafted[0]
        row = torch.tensor([ids])  # (1, n)
        model.generate(
            row,
            attention_mask=torch.ones_like(row),
            max_new_tokens=count,
            do_sample=False,
            streamer=streamer,
            **options,
        )
        if not options:
            return {}
        return {"drafted": drafted[0] - before, "accepted": count - streamer.runs}

    return ask


class _Streamer:
    """Hands tokens on as they come; the first that transformers gives it are the prompt's."""

    def __init__(self, emit: Callable[..., None]) -> None:
        self._emit = emit
        self.runs = -1

    def put(self, tokens: Any) -> None:
        if self.runs >= 0:
            self._emit(tokens.reshape(-1).tolist())
        self.runs += 1

    def end(self) -> None:
        pass


def _load(transformers: Any, path: str, dtype: Any) -> Any:
    where = Path(path)
    file = {"gguf_file": where.name} if where.is_file() else {}
    folder = where.parent if where.is_file() else where
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **file)
    # Greedy, without penalties, and no token ends it: it writes on to the length asked for.
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)
    return model


def _has_bf16() -> bool:
    """Whether the processor multiplies bf16: on others it is slower than fp32."""
    try:
        return "bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def _counted(drafting: Any) -> list[int]:
    """How many tokens its drafts had, kept in a list of one number."""
    drafted = [0]

    def counting(draft: Callable[..., Any]) -> Callable[..., Any]:
        def get_candidates(self: Any, ids: Any, *rest: Any, **more: Any) -> Any:
            found = draft(self, ids, *rest, **more)
            drafted[0] += found[0].shape[1] - ids.shape[1]
            return found

        return get_candidates

    for name in DRAFTING:
        kind = getattr(drafting, name)
        if "get_candidates" in vars(kind):
            kind.get_candidates = counting(kind.get_candidates)
    return drafted
