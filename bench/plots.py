"""Plots of a benchmark's document: figures of SVG that take their colours from the page."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from itertools import accumulate
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from specrt.bench.markup import Markup, tag
from specrt.bench.report import token_ms

WIDTH = 5.2  # inches of 72 units: as wide as a phone, so that letters keep their size there
HEIGHT = 3.0
GAP = 0.94  # of a step's time that its bar takes
LONGEST = 22  # characters of a label
TIGHT: Any = {"handletextpad": 0.3, "columnspacing": 1.2}  # of a legend
INK, FAINT, METHODS = "#010101", "#020202", 7  # methods: how many colours the page has for them
RC: dict[Any, Any] = {
    "svg.fonttype": "none",  # letters stay text, in the page's own font
    "text.parse_math": False,  # a `$` in a name is a `$`
    "font.size": 10,
    "axes.labelsize": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 10,
}

Document = Mapping[str, Any]
Draw = Callable[[Figure], None]


def colour(place: int) -> str:
    """Of a method by its place, 0 is plain decoding; the page gives it its real colour."""
    return f"#0300{(place - 1) % (METHODS - 1) + 1 if place else 0:02x}"


def shades(document: Document) -> dict[str, str]:
    """The colour of each name: of the drafters that were run, and of those they choose from."""
    runs = [record["example"] for record in document["records"] if record.get("example")]
    sources = [step["source"] for run in runs for step in run["steps"] if step["drafted"]]
    costs = document["curve"]["needed"] if document["curve"] else ()
    names = dict.fromkeys(["none", *document["summary"], *sources, *costs])
    return {name: colour(place) for place, name in enumerate(names)}


def speed(document: Document) -> Markup:
    """Speed-ups by kind of work and drafter, of decoding and of whole answers."""
    summary = document["summary"]
    drafters, shade = [name for name in summary if name != "none"], shades(document)
    works = [work for work in summary["none"] if len(summary["none"]) > 2 or work != "all"]
    lines = [(work, name) for work in works for name in ("", *drafters)]  # "": the work's title

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for y, (work, name) in enumerate(lines):
            if name:
                of = summary[name][work]
                _point(axes, y + 0.16, of["answer_speedup"], shade[name], filled=False)
                _point(axes, y - 0.16, of["speedup"], shade[name], filled=True)
        axes.axvline(1, color=INK, linewidth=1)
        axes.set_yticks(range(len(lines)), [_short(name or work) for work, name in lines])
        for label, (_, name) in zip(axes.get_yticklabels(), lines, strict=True):
            label.set_fontweight("normal" if name else "bold")
        axes.set_ylim(len(lines) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("times the speed of plain decoding")
        axes.grid(axis="x")
        marks = [_mark("decoding", INK, "o"), _mark("whole answer", INK, "o", filled=False)]
        marks.append(_mark("slowest prompt", INK, "x"))
        figure.legend(handles=marks, loc="outside upper left", ncols=3, **TIGHT)

    label = "Speed-up over plain decoding by kind of work, with 95 % intervals"
    return _svg("speed", label, draw, height=0.9 + 0.27 * len(lines))


def costs(document: Document) -> Markup:
    """v(k): time of a step of k rows over that of one."""
    rows = {int(k): v for k, v in document["curve"]["v"].items()}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        most = max(rows.values())
        axes.plot([1, most], [1, most], color=INK, linewidth=1, linestyle=(0, (4, 3)))
        _line(axes, list(rows), list(rows.values()), INK, "")
        axes.annotate("one by one", (most, most), (5, -8), textcoords="offset points")
        axes.set_xlabel("k, rows in a step")
        axes.set_ylabel("v(k)")
        axes.set_ylim(bottom=0)
        axes.grid()

    return _svg("costs", "Time of a step of k rows over that of one row", draw)


def breakeven(document: Document) -> Markup:
    """How often each token of a draft must be right for it to pay."""
    by_drafter, shade = document["curve"]["needed"], shades(document)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name, shares in by_drafter.items():
            told = {int(n): 100 * share for n, share in shares.items() if share is not None}
            label = _short(name) + ("" if told else ": never")
            _line(axes, list(told), list(told.values()), shade[name], label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _per_cent(axes, "tokens drafted in a step", "% that must be right")

    return _svg("breakeven", "Break-even acceptance by the number of drafted tokens", draw)


def acceptance(document: Document) -> Markup:
    """By depth, in how many of the steps that drafted so deep the draft was right so deep."""
    summary, shade = document["summary"], shades(document)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name, works in summary.items():
            shares = [100 * share for share in works["all"]["accepted_at"]]
            if shares:
                _line(axes, range(1, len(shares) + 1), shares, shade[name], _short(name))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _per_cent(axes, "depth of the draft", "% accepted so deep")

    return _svg("acceptance", "Acceptance by depth of the draft", draw)


def latency(document: Document) -> Markup:
    """The share of tokens that came within a time, by drafter."""
    records, shade = document["records"], shades(document)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name in document["summary"]:
            runs = [r for r in records if r["drafter"] == name and r["error"] is None]
            each = [token_ms(run["step_ms"], run["step_tokens"]) for run in runs]
            ms = np.concatenate([np.empty(0), *each])
            if ms.size:
                shares = np.linspace(0, 100, 201)
                axes.plot(np.percentile(ms, shares), shares, color=shade[name], label=_short(name))
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        _per_cent(axes, "milliseconds a token", "% of tokens within")

    return _svg("latency", "Distribution of the time a token takes", draw)


def timeline(document: Document, record: Mapping[str, Any], number: int) -> Markup:
    """One run over its time: what was drafted in each step, and what of it was accepted. number:
    of the plot in its page."""
    steps = record["example"]["steps"][1:]  # the first reads the prompt
    shade = {**shades(document), "": colour(0)}
    ends = list(accumulate(step["ms"] / 1000 for step in steps))
    starts = [end - step["ms"] / 1000 for step, end in zip(steps, ends, strict=True)]
    widths = [GAP * step["ms"] / 1000 for step in steps]
    sources = list(dict.fromkeys(step["source"] for step in steps if step["drafted"]))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for source in ["", *sources]:
            chosen = [(step["source"] if step["drafted"] else "") == source for step in steps]
            for name, alpha in (("drafted", 0.3), ("accepted", 1.0)):
                axes.bar(
                    _of(starts, chosen),
                    [step[name] if source else 0.25 for step in _of(steps, chosen)],
                    _of(widths, chosen),
                    align="edge",
                    color=shade[source],
                    alpha=alpha,
                    linewidth=0,
                )
        axes.set_xlim(0, max(ends, default=1.0))
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_xlabel("seconds after the first token")
        axes.set_ylabel("tokens")
        marks = [
            *(_mark(_short(name), shade[name], "s") for name in sources),
            _mark("plain", shade[""], "s"),
        ]
        figure.legend(handles=marks, loc="outside upper left", ncols=4, **TIGHT)

    label = f"Drafted and accepted tokens of {record['prompt']} over time"
    return _svg(f"timeline{number}", label, draw, height=2.2)


def _line(axes: Axes, x: Sequence[int], y: Sequence[float], shade: str, label: str) -> None:
    axes.plot(x, y, color=shade, label=label, marker="o", markersize=3)


def _per_cent(axes: Axes, x: str, y: str) -> None:
    """The frame of lines that go from 0 to 100, with their names above."""
    axes.set_ylim(0, 100)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid()
    axes.figure.legend(loc="outside upper left", ncols=3)


def _of(values: Sequence[Any], chosen: Sequence[bool]) -> list[Any]:
    return [value for value, is_chosen in zip(values, chosen, strict=True) if is_chosen]


def _point(axes: Axes, y: float, of: Mapping[str, Any] | None, shade: str, *, filled: bool) -> None:
    """A speed-up with its interval, and for decoding its slowest prompt."""
    if of is None:
        return
    low, high = of["interval"] or (of["median"], of["median"])
    axes.plot([low, high], [y, y], color=shade, linewidth=2, alpha=0.45, solid_capstyle="butt")
    axes.plot(of["median"], y, "o", color=shade, fillstyle="full" if filled else "none")
    if filled:
        axes.plot(of["slowest"]["ratio"], y, "x", color=shade, markersize=4)


def _mark(label: str, shade: str, marker: str, *, filled: bool = True) -> Line2D:
    mark = Line2D([], [], linestyle="", marker=marker, color=shade, label=label)
    mark.set_fillstyle("full" if filled else "none")
    return mark


def _short(label: str) -> str:
    return label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"


def _svg(name: str, label: str, draw: Draw, height: float = HEIGHT) -> Markup:
    """The drawing as a figure with a caption, without metadata, its ids its own in the page."""
    file = StringIO()
    with rc_context({**RC, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that the font, which is not used, does not have
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure)
        figure.savefig(file, format="svg", transparent=True)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = text.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    text = text.replace(INK, "currentColor").replace(FAINT, "var(--faint)")
    for method in range(METHODS):
        text = text.replace(colour(method), f"var(--m{method})")
    head, _, rest = text.partition(">")
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    attributes = tag("svg", role="img", aria_label=label).removesuffix("></svg>")
    drawn = Markup(f"{attributes}{head.removeprefix('<svg')}>{rest}")
    return tag("figure", tag("figcaption", label), drawn)
