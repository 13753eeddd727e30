"""Chat templates: what transformers writes with them, helpers, and what the sandbox forbids."""

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from specrt.runtime.chat import render
from specrt.runtime.errors import RequestError

GOLDEN = Path(__file__).parent / "golden" / "tokenizers"
ROWS = json.loads((GOLDEN / "templates.json").read_text())
HI = [{"role": "user", "content": "hi"}]
NOON = datetime(2024, 7, 26, 12)

LLAMA3 = """{{- bos_token }}
{%- if strftime_now is defined %}
    {%- set date = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date + "\\n\\n" + system + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
GEMMA = """{{ bos_token }}
{%- set first = messages[0]['content'] + '\\n\\n' if messages[0]['role'] == 'system' else '' -%}
{%- for message in messages if message['role'] != 'system' -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate") }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first if loop.first else '') -}}
    {{ message['content'] | trim }}{{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["template"])
def test_real_templates_write_what_transformers_writes(row: dict[str, Any]) -> None:
    template = (GOLDEN / "templates" / row["template"]).read_text(encoding="utf-8")

    def written() -> str:
        return render(
            template,
            row["messages"],
            bos="<BOS>",
            eos="<EOS>",
            tools=row["tools"],
            add_generation_prompt=row["asks"],
        )

    if row["text"] is None:
        with pytest.raises(RequestError, match="the chat template refuses: After the optional"):
            written()
    else:
        assert written() == row["text"]


def test_a_template_of_the_llama3_form_writes_the_date() -> None:
    chat = [{"role": "system", "content": " Be brief. "}, *HI]
    assert render(LLAMA3, chat, bos="<|begin_of_text|>", now=NOON) == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
        "Today Date: 26 Jul 2024\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_a_template_of_the_gemma_form_puts_the_system_text_in_the_first_turn() -> None:
    chat = [{"role": "system", "content": "Be brief."}, *HI]
    assert render(GEMMA, chat, bos="<bos>") == (
        "<bos><start_of_turn>user\nBe brief.\n\nhi<end_of_turn>\n<start_of_turn>model\n"
    )


def test_what_a_template_raises_is_one_line() -> None:
    with pytest.raises(RequestError, match="refuses: Conversation roles must alternate") as caught:
        render(GEMMA, HI + HI)
    assert "\n" not in str(caught.value)


def test_json_is_written_as_it_is() -> None:
    chat = [{"role": "user", "content": "<é&'>"}]
    assert render("{{ messages[0] | tojson }}", chat) == '{"role": "user", "content": "<é&\'>"}'
    assert render("{{ [1, 2] | tojson(indent=1) }}", HI) == "[\n 1,\n 2\n]"


def test_the_generation_tag_is_only_its_content() -> None:
    text = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert render(text, HI) == "hi"


def test_loops_may_be_left() -> None:
    assert (
        render("{% for i in range(9) %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", HI)
        == "012"
    )


def test_tools_are_none_when_there_are_none() -> None:
    assert render("{{ tools is none }} {{ documents is none }}", HI) == "True True"


def test_the_messages_are_not_changed() -> None:
    with pytest.raises(RequestError, match="the chat template refuses"):
        render("{{ messages.append(1) }}", HI)
    assert HI == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__.sys }}",
        "{{ raise_exception.__globals__.items() }}",
        "{{ strftime_now.__code__.co_code }}",
        "{{ (''|attr('__class__')).__base__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    ],
)
def test_a_template_can_not_reach_python(template: str) -> None:
    with pytest.raises(RequestError, match="the chat template refuses"):
        render(template, HI)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    ],
)
def test_a_template_that_grows_without_bound_is_stopped(template: str) -> None:
    with pytest.raises(RequestError, match="the chat template"):
        render(template, HI)


@pytest.mark.parametrize("factors", ["'x' * 9000000", "9000000 * [1]", "2 ** 9"])
def test_products_that_may_fill_the_memory_are_not_made(factors: str) -> None:
    with pytest.raises(RequestError, match="is too large or not allowed"):
        render("{{ (" + factors + ") is none }}", HI)


@pytest.mark.parametrize("template", ["{% if %}", "{{ x.y.z }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}"])
def test_a_template_that_does_not_work_is_refused_in_one_line(template: str) -> None:
    with pytest.raises(RequestError, match=r"the chat template (refuses|fails)") as caught:
        render(template, HI)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([], "messages are \\[\\]; give a list"),
        ("hi", "messages are 'hi'"),
        ({"role": "user"}, "messages are {'role'"),
        (["hi"], "message 0 is 'hi', not a dict"),
        ([*HI, {"content": "x"}], "message 1 has the role None"),
        ([{"role": 3, "content": "x"}], "message 0 has the role 3"),
        ([{"role": "user"}], "message 0 has the content None; give a text"),
        ([{"role": "user", "content": [{"type": "text"}]}], "message 0 has the content \\[{"),
    ],
)
def test_messages_of_another_form_are_refused(messages: Any, error: str) -> None:
    with pytest.raises(RequestError, match=error):
        render("{{ messages }}", messages)


def test_a_message_that_calls_a_tool_needs_no_content() -> None:
    chat = [*HI, {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}]
    assert render("{{ messages[1].tool_calls[0].name }}", chat) == "f"


def test_jinja2_is_loaded_only_when_a_template_is_rendered() -> None:
    code = "import sys, specrt.runtime.chat; print('jinja2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
