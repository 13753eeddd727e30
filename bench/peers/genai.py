"""onnxruntime-genai: a folder with genai_config.json, plainly or with its n-gram lookup."""

import json
from collections.abc import Callable, Mapping
from typing import Any

# As its documentation uses them: doc "Speculative decoding", Python usage.
LOOKUP = {
    "ngram_size": 4,
    "max_draft_tokens": 8,
    "ngram_chained_lookup": True,
    "min_adaptive_k": 2,
    "cooldown": False,
}


def open(genai: Any, job: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    config = genai.Config(job["model"])
    options = {"intra_op_num_threads": job["threads"]}  # its own choice can be half as many
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    model = genai.Model(config)
    lookup = job["mode"] == "lookup"

    def ask(ids: list[int], count: int, emit: Callable[..., None]) -> dict[str, Any]:
        length = len(ids) + count
        params = genai.GeneratorParams(model)
        params.set_search_options(max_length=length, min_length=length, do_sample=False)
        if lookup:
            params.set_speculative_options(**LOOKUP)
        generator = genai.Generator(model, params)
        generator.append_tokens(ids)
        for _ in range(count):
            waiting = lookup and generator.get_speculative_stats()["tokens_buffered"] > 0
            generator.generate_next_token()
            emit([int(generator.get_next_tokens()[0])], joined=waiting)
        if not lookup:
            return {}
        counts = generator.get_speculative_stats()
        return {
            "drafted": counts["draft_tokens_proposed"],
            "accepted": counts["draft_tokens_accepted"],
        }

    return ask
