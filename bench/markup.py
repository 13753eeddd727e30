"""HTML elements. Whatever is put into one is escaped, unless it is an element itself: no text of a
prompt or a model can become markup by being forgotten."""

from collections.abc import Iterable
from html import escape


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, *inside: str, **attributes: str) -> Markup:
    """An element. `class_` and `aria_label` stand for class and aria-label.

    >>> tag("p", "a < b", tag("b", "c"), class_="x")
    '<p class="x">a &lt; b<b>c</b></p>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
    )
    return Markup(f"<{name}{given}>{joined(inside)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    """Parts one after another, text among them escaped."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def table(header: Iterable[str], rows: Iterable[Iterable[str]], label: str) -> Markup:
    """A table that scrolls within itself where the page is narrow; the first cell names its row."""
    titles = (tag("th", title, scope="col") for title in header)
    lines = (
        tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in cells))
        for first, *cells in rows
    )
    inside = tag("table", tag("thead", tag("tr", *titles)), tag("tbody", *lines))
    return tag("div", inside, class_="scroll", role="region", aria_label=label, tabindex="0")
