"""What README.md and CONTRIBUTING.md tell a reader to type works; the files they name exist."""

import io
import re
import shlex
from pathlib import Path

import pytest

from specrt.bench.readme import BEGIN, END
from specrt.cli import main, parser

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BUNDLE = "coder"  # what the README calls its bundle
QUICK = {"inspect", "generate", "chat"}  # commands that need nothing but a bundle


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


COMMANDS = [
    words[1:]
    for block in blocks(README, "sh")
    for words in (shlex.split(line, comments=True) for line in block.splitlines())
    if words[:1] == ["specrt"]
]


def test_the_readme_shows_every_command_but_the_demo() -> None:
    assert {words[0] for words in COMMANDS} == {*QUICK, "pull", "export", "verify", "tune", "bench"}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_of_the_readme_is_understood(words: list[str]) -> None:
    assert parser().parse_args(words).run


@pytest.mark.parametrize("words", [w for w in COMMANDS if w[0] in QUICK], ids=" ".join)
def test_a_command_of_the_readme_runs(
    words: list[str], tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Hello.\n")))
    assert main([str(tiny_bundle) if word == BUNDLE else word for word in words]) == 0


@pytest.mark.parametrize("code", blocks(README, "python"))
def test_the_python_of_the_readme_runs(
    code: str, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(code.replace(f'"{BUNDLE}"', repr(str(tiny_bundle))), "README.md", "exec"), {})
    assert " length " in capsys.readouterr().out


def test_no_table_of_the_readme_stands_outside_of_the_marks() -> None:
    before, _, rest = README.partition(BEGIN)
    _, _, after = rest.partition(END)
    assert [line for line in (before + after).splitlines() if line.startswith("|")] == []


def test_the_continuous_checks_run_the_readmes_test_command() -> None:
    lines = "".join(blocks(README, "sh")).splitlines()
    wanted = [line.partition("#")[0].strip() for line in lines]
    checks = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert "make test" in wanted
    assert "make test" in checks


def test_the_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)", README + CONTRIBUTING)) <= targets


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/how-a-step-works.md"])
def test_the_files_that_are_named_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    named = re.findall(r"\b((?:runtime|models|export|bench|src|tests)/[\w./-]+\.py)\b", text)
    missing = [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
    assert missing + [name for name in named if not (ROOT / name).exists()] == []
