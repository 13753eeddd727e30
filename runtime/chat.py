"""A conversation as the text its model expects: chat templates, run in jinja2's sandbox.

A template comes with a checkpoint and is not trusted: it sees the values given to it and nothing
else, can not change them, and what it may write and repeat is bounded.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from specrt.runtime.errors import RequestError

if TYPE_CHECKING:
    from jinja2 import Template

LONGEST = 8_000_000  # characters a template may write, or repeat a text to


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    bos: str = "",
    eos: str = "",
    add_generation_prompt: bool = True,
    tools: Sequence[Any] | None = None,
    now: datetime | None = None,
) -> str:
    """The text of a conversation, ready to be continued by the model.

    messages: [{"role": "user", "content": "…"}, …]. now: the time for templates that write the
    date. RequestError if the messages are not of this form or the template does not take them.
    """
    from jinja2 import TemplateError

    _check(messages)
    try:
        parts = _compiled(template).generate(
            messages=list(messages),
            tools=tools,
            documents=None,
            bos_token=bos,
            eos_token=eos,
            add_generation_prompt=add_generation_prompt,
            strftime_now=lambda form: (now or datetime.now()).strftime(form),
        )
        return "".join(_bounded(parts))
    except RequestError:
        raise
    except TemplateError as error:
        raise RequestError(f"the chat template refuses: {_line(error)}") from None
    except Exception as error:  # whatever the template's own expressions raise
        name = type(error).__name__
        raise RequestError(f"the chat template fails: {name}: {_line(error)}") from None


def _check(messages: Sequence[Mapping[str, Any]]) -> None:
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise RequestError(f"messages are {messages!r:.40}; give a list of at least one message")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(f"message {i} is {message!r:.40}, not a dict of role and content")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise RequestError(f'message {i} has the role {role!r:.40}; give "user", "system" …')
        if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
            raise RequestError(f"message {i} has the content {content!r:.40}; give a text")


def _bounded(parts: Iterable[str]) -> Iterator[str]:
    size = 0
    for part in parts:
        size += len(part)
        if size > LONGEST:
            raise RequestError(f"the chat template writes more than {LONGEST} characters")
        yield part


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


@lru_cache(maxsize=8)
def _compiled(template: str) -> "Template":
    """The template with the helpers and tags that templates expect."""
    from jinja2 import TemplateError, nodes
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks, for training, what the model writes; here it is only a scope."""

        tags = {"generation"}  # noqa: RUF012, as jinja2 declares it

        def parse(self, parser: Parser) -> nodes.Scope:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            factors = left, right
            numbers = [abs(x) for x in factors if isinstance(x, int)]
            lengths = [len(x) for x in factors if isinstance(x, Sequence)]
            if operator == "**" or (lengths and numbers and lengths[0] * numbers[0] > LONGEST):
                raise SecurityError(f"{operator} is too large or not allowed")
            return super().call_binop(context, operator, left, right)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(template)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, not escaped for HTML as jinja2's own filter does."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
