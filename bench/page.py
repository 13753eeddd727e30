"""A benchmark's document -> one HTML file that needs nothing else: no network, no script.

    python -m specrt.bench.page result.json result.html

Everything on the page is taken from the document; no figure is made here. What is quoted, prompts
and answers too, is escaped by `markup.tag`, and the page's own policy lets no script run.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specrt.bench.markup import Markup, joined, tag
from specrt.bench.report import FORMAT
from specrt.runtime.errors import RequestError
from specrt.runtime.writing import writing_file

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

Document = Mapping[str, Any]


def require_plots() -> None:
    """RequestError unless the page's plots can be drawn."""
    if find_spec("matplotlib") is None:
        raise RequestError(
            "--html draws with matplotlib, which is not installed: pip install 'specrt[bench]'"
        )


def page(document: Document) -> str:
    """The whole file."""
    from specrt.bench.sections import bundle, sections  # they draw

    title = f"specrt: {bundle(document)}"
    style = Markup(Path(__file__).with_name("page.css").read_text(encoding="utf-8"))
    head = joined(
        [
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<link rel="icon" href="data:,">'),
            tag("title", title),
            tag("style", style),
        ]
    )
    body = tag("main", *sections(document))
    html = tag("html", tag("head", head), tag("body", body), lang="en")
    return f"<!doctype html>\n{html}\n"


def main(arguments: Sequence[str]) -> int:
    """The page of a document that was kept; the exit code."""
    if len(arguments) != 2:
        print("usage: python -m specrt.bench.page result.json result.html", file=sys.stderr)
        return 2
    source, out = map(Path, arguments)
    try:
        require_plots()
        document = json.loads(source.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or "summary" not in document:
            raise RequestError("it is no document of `specrt bench`")
        if document["format"] != FORMAT:
            raise RequestError(f"its format is {document['format']}, and {FORMAT} can be shown")
        with writing_file(out) as file:
            file.write(page(document))
    except (OSError, ValueError, RequestError) as error:
        print(f"{source} cannot be shown: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
