"""The prompts of a benchmark: five kinds of work that come with the package, or one's own file.

Each line of a suite is a JSON object with `id`, `kind`, `prompt` (a user message) and, if its
answer needs another length than the run's, `max_tokens`. Lines of Spec-Bench and MT-Bench are told
by their `category`: their `turns` (in some copies `prompt`) are asked one after another. Ids are
unique over all suites of a run.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specrt.runtime.errors import RequestError
from specrt.runtime.records import shown

KINDS = ("chat", "summarise", "edit", "code", "extract")
_FOLDER = Path(__file__).with_name("prompts")
_FIELDS = {"id": str, "kind": str, "prompt": str, "max_tokens": int}
_QUESTION = "category"  # the key that tells a line of Spec-Bench


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question of a benchmark. kind: the sort of work, results are grouped by it. then: what
    the user says next, after each answer."""

    id: str
    kind: str
    prompt: str
    max_tokens: int | None = None
    then: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not all(turn.strip() for turn in self.turns):
            raise RequestError(f"prompt {self.id!r} is empty; write a user message")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(
                f"prompt {self.id!r} has max_tokens {self.max_tokens}; give 1 or more"
            )

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation that asks it, up to its first answer."""
        return [{"role": "user", "content": self.prompt}]

    @property
    def turns(self) -> tuple[str, ...]:
        """All that the user says."""
        return (self.prompt, *self.then)


def load_suites(names: Sequence[str]) -> tuple[Prompt, ...]:
    """The prompts of all named suites, in order; a name is one of KINDS or a .jsonl file."""
    prompts = tuple(prompt for name in names for prompt in _read(_path(name)))
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise RequestError(f"prompt id {prompt.id!r} appears twice; give each prompt its own")
        seen.add(prompt.id)
    if not prompts:
        raise RequestError(f"suites {', '.join(names) or '(none)'} hold no prompt; add a line")
    return prompts


def _path(name: str) -> Path:
    if name in KINDS:
        return _FOLDER / f"{name}.jsonl"
    if name.endswith(".jsonl"):
        return Path(name)
    raise RequestError(f"suite {name!r} is unknown; choose {', '.join(KINDS)} or a .jsonl file")


def _read(path: Path) -> list[Prompt]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise RequestError(f"suite {path} cannot be read: {reason}") from None
    return [
        _prompt(line, f"{path}, line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]


def _prompt(line: str, where: str) -> Prompt:
    try:
        given: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise RequestError(f"{where}: not JSON; write one object per line") from None
    if type(given) is not dict:
        raise RequestError(f"{where}: not an object; write id, kind and prompt")
    if _QUESTION in given:
        return _question(given, where)
    for name in given:
        if name not in _FIELDS:
            raise RequestError(f"{where}: unknown key {shown(name)}; use {', '.join(_FIELDS)}")
    for name, kind in _FIELDS.items():
        if name not in given and name != "max_tokens":
            raise RequestError(f"{where}: {name} is missing")
        if name in given and type(given[name]) is not kind:
            raise RequestError(f"{where}: {name} must be {kind.__name__}, not {shown(given[name])}")
    return Prompt(**given)


def _question(given: Mapping[str, Any], where: str) -> Prompt:
    """A line of Spec-Bench or MT-Bench; what else it holds, as reference answers, is not used."""
    number, kind = given.get("question_id", given.get("prompt_id")), given[_QUESTION]
    turns = given.get("turns", given.get("prompt"))
    if type(number) not in (int, str):
        raise RequestError(f"{where}: question_id must be a number or a text, not {shown(number)}")
    if type(kind) is not str:
        raise RequestError(f"{where}: category must be a text, not {shown(kind)}")
    if type(turns) is not list or not turns or any(type(turn) is not str for turn in turns):
        raise RequestError(f"{where}: turns must be a list of texts, not {shown(turns)}")
    return Prompt(str(number), kind, turns[0], then=tuple(turns[1:]))
