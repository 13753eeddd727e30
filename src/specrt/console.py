"""What a person sees: colours, bars and tables on a terminal; plain lines everywhere else.

Results go to standard output; progress and remarks go to standard error. Nothing but a terminal
ever gets an escape sequence, and NO_COLOR is respected.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer

from specrt.runtime.stream import Piece

Show = Callable[[str, int, int], None]  # stage, done, total
DRAFT_STYLE = "green"  # tokens the drafter proposed; the target's own have the terminal's colour
_CHOICES = 4  # of what a controller chose, that a line of figures names
_REDRAW = 0.08  # seconds between two drawings of live text
_BYTES = 1_000_000  # totals from here on are bytes
_VISIBLE = {  # control characters, escape sequences among them, and what is shown instead
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    **{code: "\N{REPLACEMENT CHARACTER}" for code in range(0x7F, 0xA0)},
}


def say(message: str) -> None:
    """A remark beside the result."""
    Console(stderr=True).print(message, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress() -> Iterator[Show]:
    """A function (stage, done, total) that shows how far a long task is."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), _Amount(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield show


def _lines(console: Console) -> Show:
    """One line when a stage begins."""
    begun: set[str] = set()

    def show(stage: str, done: int, total: int) -> None:
        if stage not in begun:
            begun.add(stage)
            console.print(f"{stage} ({_amount(total)})", highlight=False, soft_wrap=True)

    return show


class _Amount(ProgressColumn):
    """How many of how many."""

    def render(self, task: Task) -> Text:
        return Text(f"{_amount(int(task.completed))}/{_amount(int(task.total or 0))}")


def _amount(number: int) -> str:
    return f"{number / 1e6:.0f} MB" if number >= _BYTES else str(number)


class TokenPrinter:
    """Writes pieces as they come, on a terminal coloured by who proposed them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._console = Console(soft_wrap=True, highlight=False)

    def write(self, piece: Piece) -> None:
        if self._console.is_terminal:
            self._console.print(coloured(piece, self._tokenizer), end="")
        else:
            sys.stdout.write(piece.text)
            sys.stdout.flush()

    def title(self, title: str) -> None:
        """A line above a text, where there are several."""
        print(f"--- {title}")

    def end(self) -> None:
        print()


def coloured(piece: Piece, tokenizer: Tokenizer) -> Text:
    """A piece for a terminal, each token in its colour, and without the control characters that a
    model may write. The text is cut from its end; what cannot be told apart goes to the first."""
    styles = [DRAFT_STYLE if drafted else "" for drafted in piece.from_draft]
    parts, rest = [], piece.text.translate(_VISIBLE)
    for token, style in reversed(list(zip(piece.tokens, styles, strict=True))[1:]):
        start = max(0, len(rest) - _length(token, tokenizer))
        parts.append((rest[start:], style))
        rest = rest[:start]
    return Text.assemble((rest, styles[0] if styles else ""), *reversed(parts))


def _length(token: int, tokenizer: Tokenizer) -> int:
    """Characters of a token inside a text; alone, a SentencePiece token loses its first blank."""
    alone: str = tokenizer.decode([token], skip_special_tokens=False)
    return len(alone) + (str(tokenizer.id_to_token(token))[:1] == "\u2581" and alone[:1] != " ")


@contextmanager
def side_by_side(
    titles: Sequence[str], tokenizer: Tokenizer
) -> Iterator[Callable[[int, Piece], None]]:
    """A function (column, piece) that adds a piece to one of several texts beside each other."""
    console = Console()
    if not console.is_terminal:
        yield _one_below_the_other(titles)
        return
    texts, drawn_at = [Text() for _ in titles], 0.0

    def drawn() -> Table:
        table = Table(*titles, expand=True)
        table.add_row(*texts)
        return table

    with Live(drawn(), console=console, auto_refresh=False) as live:

        def write(column: int, piece: Piece) -> None:
            nonlocal drawn_at
            texts[column].append_text(coloured(piece, tokenizer))
            if time.monotonic() - drawn_at > _REDRAW:
                live.update(drawn(), refresh=True)
                drawn_at = time.monotonic()

        yield write
        live.update(drawn(), refresh=True)


def _one_below_the_other(titles: Sequence[str]) -> Callable[[int, Piece], None]:
    """The same for plain output: each text after its title."""
    shown = -1

    def write(column: int, piece: Piece) -> None:
        nonlocal shown
        if column != shown:
            print(f"{'' if shown < 0 else chr(10)}--- {titles[column]}")
            shown = column
        print(piece.text, end="", flush=True)

    return write


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    console = Console()
    if console.is_terminal:
        drawn = Table(*header)
        for row in rows:
            drawn.add_row(*row)
        console.print(drawn)
        return
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def verdicts(findings: Sequence[Any]) -> None:
    """A line for each finding: whether it holds, of whom, what, and what was seen."""
    console = Console(soft_wrap=True, highlight=False)
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        verdict, style = ("holds", "green") if finding.holds else ("FAILS", "bold red")
        rest = f"  {finding.subject.ljust(width)}  {finding.claim}: {finding.words}"
        console.print(Text.assemble((verdict, style), rest))


def stats(summary: Mapping[str, Any]) -> str:
    """A run's figures in one line, which says so where the text is not the model's own."""
    speed = f"{summary['tokens']} tokens, {summary['tokens_per_s']:.1f} tokens/s"
    first = f"first token {summary['ttft_s']:.2f} s"
    lossy = f", LOSSY by rule {summary['rule']}" if summary["lossy"] else ""
    drafted = summary["drafted"]
    if not drafted:
        why = f" ({summary['reason']})" if summary["reason"] else ""
        return f"{speed}, {first}, nothing drafted{why}{lossy}"
    rate = f"{summary['accepted']} of {drafted} drafted tokens accepted"
    steps = ", ".join(
        f"{what} x{count}" for what, count in list(summary["choices"].items())[:_CHOICES]
    )
    each = f"{summary['tokens_per_step']:.2f} tokens/step ({steps})"
    return f"{speed}, {first}, {rate}, {each}{lossy}"
