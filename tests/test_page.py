"""The benchmark's page: what it shows is what was measured, in a real browser too."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser import Page, browsing, installed

from specrt.bench import page as pages
from specrt.bench.begin import Circumstances
from specrt.bench.latency import Plan, document, measure
from specrt.bench.report import SPEED, STEPS, rows, summarise
from specrt.bench.suite import Prompt
from specrt.runtime.trace import Step, Trace

SCRIPT = "<script>window.owned = 1; document.title = 'owned'</script><img src=x onerror=owned=1>"
PHONE, DESK = (390, 844), (1280, 900)


@dataclass(frozen=True)
class FakeResult:
    text: str
    tokens: tuple[int, ...]
    trace: Trace


class FakeModel:
    """Plain: 40 steps of 10 ms. Others: drafts of 4, 3 right, now and then nothing, in 12 ms."""

    def generate(self, prompt: Any = None, *, drafter: str, **options: Any) -> FakeResult:
        if drafter == "broken":
            raise ValueError(f"broken by {SCRIPT}")
        trace = Trace(20, drafter)
        for i in range(40 if drafter == "none" else 13):
            n = 0 if drafter == "none" or i % 4 == 0 else 4
            emitted = tuple(range(1 if n == 0 else 4))
            seconds = (0.001, 0.009 + 0.0005 * n + 0.0001 * i, 0.0)
            step = Step(emitted, n, len(emitted) - 1, n, seconds, "ngram" * bool(n), SCRIPT)
            trace.add(step)
        return FakeResult(f"The answer: {SCRIPT}", tuple(range(40)), trace)


PROMPTS = (
    Prompt("one", "chat", f"What does {SCRIPT} do?"),
    Prompt("two", "chat", "Why?"),
    Prompt(f"three {SCRIPT}", f"code $x^2$ {SCRIPT}", "Write it."),
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A document in which every text that a user or a model can choose is hostile."""
    folder = tmp_path_factory.mktemp("bundle") / SCRIPT.replace("/", "")
    folder.mkdir()
    (folder / "specrt.json").write_text("{}")
    plan = Plan(PROMPTS, ("ngram", "auto", "broken"), repeat=2)
    around = Circumstances(
        folder, 0.5, command=("specrt", "bench", SCRIPT), date="2026-01-02T03:04:05+00:00"
    )
    made = document(around, plan, list(measure(FakeModel(), plan)))
    again: dict[str, Any] = json.loads(json.dumps(made))
    return again


@pytest.fixture(scope="module")
def html(measured: dict[str, Any]) -> str:
    return pages.page(measured)


class Elements(HTMLParser):
    """The elements of a page in order, with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_what_is_quoted_is_text_and_no_markup(html: str) -> None:
    names = {name for name, _ in Elements(html).found}
    assert "&lt;script&gt;window.owned" in html
    assert names & {"script", "img", "iframe", "object", "base", "form"} == set()


def test_no_attribute_names_another_place(html: str) -> None:
    links = [
        value
        for _, attributes in Elements(html).found
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "action", "srcset", "data")
    ]
    assert [link for link in links if not str(link).startswith(("#", "data:,"))] == []
    assert [url for url in re.findall(r"url\(([^)]*)", html) if not url.startswith("#")] == []


def test_ids_are_unique_and_what_is_referred_to_is_there(html: str) -> None:
    found = Elements(html).found
    ids = [str(attributes["id"]) for _, attributes in found if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {str(a["xlink:href"])[1:] for _, a in found if "xlink:href" in a}
    assert links | set(re.findall(r"url\(#([^)]*)", html)) <= set(ids)


def test_headings_are_in_order(html: str) -> None:
    levels = [int(name[1]) for name, _ in Elements(html).found if re.fullmatch(r"h[1-6]", name)]
    steps = [after - before for before, after in pairwise(levels)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert max(steps) == 1


def test_plots_tell_what_they_are(html: str) -> None:
    plots = [attributes for name, attributes in Elements(html).found if name == "svg"]
    assert len(plots) == 7  # speed, latency, acceptance, costs, break-even, a run of each kind
    assert [plot.get("role") for plot in plots] == ["img"] * 7
    assert all(plot.get("aria-label") for plot in plots)


def test_the_page_tells_machine_versions_date_and_command(
    html: str, measured: dict[str, Any]
) -> None:
    around = measured["environment"]
    for told in (around["cpu"], around["specrt"], around["onnxruntime"], "2026-01-02 03:04:05 UTC"):
        assert told in html
    assert "specrt bench &#x27;&lt;script&gt;" in html


def test_failed_runs_are_shown(html: str) -> None:
    assert html.count("ValueError: broken by &lt;script&gt;") == 6


def test_a_benchmark_of_nothing_but_failures_has_a_page(measured: dict[str, Any]) -> None:
    plan = Plan(PROMPTS[:1], ("broken",), repeat=1)
    around = Circumstances(Path(measured["bundle"]["path"]), 0.5)
    made = document(around, plan, list(measure(FakeModel(), plan)))
    assert "No drafter finished a run" in pages.page(made)


def test_other_engines_stand_in_the_tables_and_are_no_result(measured: dict[str, Any]) -> None:
    own = measured["records"]
    about = {"drafter": "llama.cpp", "version": "0.3", "model": "m.gguf", "example": None}
    peers = [{**r, **about, "identical": None} for r in own if r["drafter"] == "auto"]
    summary = summarise([*own, *peers])
    html = pages.page({**measured, "records": [*own, *peers], "summary": summary})
    assert "llama.cpp 0.3 on m.gguf" in html
    assert '<th scope="row">llama.cpp · all</th>' in html
    assert html.count('class="big"') == 3
    assert "<h1>auto decodes" in html


def test_a_page_is_made_of_a_kept_document(
    measured: dict[str, Any], html: str, tmp_path: Path
) -> None:
    (tmp_path / "result.json").write_text(json.dumps(measured))
    assert pages.main([str(tmp_path / "result.json"), str(tmp_path / "result.html")]) == 0
    assert (tmp_path / "result.html").read_text(encoding="utf-8") == html


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2}', '{"format": 1, "summary": {}}'])
def test_another_file_gives_no_page(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.json").write_text(text)
    assert pages.main([str(tmp_path / "other.json"), str(tmp_path / "page.html")]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["other.json"]


def test_bench_writes_a_page(specrt_run: Any, tiny_bundle: Path, tmp_path: Path) -> None:
    suite, file = tmp_path / "suite.jsonl", tmp_path / "page.html"
    suite.write_text('{"id": "a", "kind": "chat", "prompt": "the model"}\n')
    options = ["--suite", suite, "--repeat", "1", "--max-tokens", "9", "--drafters", "draft"]
    done = specrt_run("bench", tiny_bundle, *options, "--html", file)
    assert (done.code, done.out.splitlines()[-1][0]) == (0, "{")
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_without_matplotlib_one_line_says_what_to_install(
    specrt_run: Any, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "find_spec", lambda name: None)
    done = specrt_run("bench", tiny_bundle, "--html", tmp_path / "page.html")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "pip install 'specrt[bench]'" in done.err
    assert list(tmp_path.iterdir()) == []


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    program = installed()
    if program is None:
        pytest.skip("no browser is installed: apt-get install chromium")
    with browsing(program) as page:
        yield page


@pytest.fixture(scope="module")
def file(html: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("page") / "page.html"
    made.write_text(html, encoding="utf-8")
    return made.as_uri()


def test_the_browser_has_nothing_to_complain_of(browser: Page, file: str) -> None:
    browser.open(file, *PHONE)
    assert browser.told("Log.entryAdded") == []
    assert browser.told("Runtime.consoleAPICalled") == []
    assert browser.told("Runtime.exceptionThrown") == []


def test_no_request_leaves_the_file(browser: Page, file: str) -> None:
    browser.open(file, *DESK)
    urls = [event["request"]["url"] for event in browser.told("Network.requestWillBeSent")]
    assert [url for url in urls if not url.startswith("data:")] == [file]


def test_a_script_in_a_prompt_or_an_answer_does_not_run(
    browser: Page, file: str, measured: dict[str, Any]
) -> None:
    browser.open(file, *PHONE)
    assert browser.evaluate("typeof owned") == "undefined"
    assert browser.evaluate("document.title").startswith("specrt: <script>")
    assert browser.evaluate("document.scripts.length") == 0
    asked = browser.evaluate(
        "[...document.querySelectorAll('details pre')].map(p => p.textContent)"
    )
    assert asked[:2] == [PROMPTS[0].prompt, f"The answer: {SCRIPT}"]


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_page_does_not_scroll_sideways(browser: Page, file: str, width: int) -> None:
    browser.open(file, width, 844)
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") == width


def test_a_wide_table_scrolls_within_itself(browser: Page, file: str) -> None:
    browser.open(file, *PHONE)
    shown, whole = browser.evaluate(
        "(t => [t.clientWidth, t.scrollWidth])(document.querySelector('.scroll'))"
    )
    assert shown < PHONE[0] < whole


@pytest.mark.parametrize("size", [PHONE, DESK])
def test_every_plot_is_seen_and_its_letters_can_be_read(
    browser: Page, file: str, size: tuple[int, int]
) -> None:
    browser.open(file, *size)
    plots = browser.evaluate(
        "[...document.querySelectorAll('svg')].map(s => [s.getBoundingClientRect().width,"
        " s.getBoundingClientRect().height, s.checkVisibility(),"
        " Math.min(...[...s.querySelectorAll('text')].map(t => t.getBoundingClientRect().height))])"
    )
    assert len(plots) == 7
    for width, height, visible, letters in plots:
        assert visible
        assert width > 300
        assert height > 100
        assert letters >= 9


def test_the_tables_show_the_documents_figures(
    browser: Page, file: str, measured: dict[str, Any]
) -> None:
    browser.open(file, *DESK)
    shown = browser.evaluate(
        "[...document.querySelectorAll('table')].map(t => [...t.tBodies[0].rows]"
        ".map(r => [...r.cells].map(c => c.textContent)))"
    )
    for columns, cells in zip((SPEED, STEPS), shown, strict=False):
        wanted = rows(columns, measured["summary"])
        assert cells == [[f"{drafter} · {work}", *rest] for drafter, work, *rest in wanted]


def test_the_speed_up_that_is_shown_first_is_the_documents(
    browser: Page, file: str, measured: dict[str, Any]
) -> None:
    browser.open(file, *PHONE)
    speedup = measured["summary"]["auto"]["all"]["speedup"]["median"]
    assert browser.evaluate("document.querySelector('h1').textContent") == (
        f"auto decodes {speedup:.2f} times as fast as plain, with the same text"
    )


CONTRAST = """
(() => {
  const light = rgb => rgb.match(/[\\d.]+/g).slice(0, 3).map(c => c / 255)
    .map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const paper = light(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll('h1, p, dt, dd, summary, figcaption, svg text')].map(e => {
    const style = getComputedStyle(e), ink = light(e.closest('svg') ? style.fill : style.color);
    return (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05);
  });
})()
"""


@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_in_light_and_in_dark(browser: Page, file: str, dark: bool) -> None:
    """4.5 to 1, what the accessibility guidelines ask for."""
    browser.open(file, *PHONE, dark=dark)
    assert min(browser.evaluate(CONTRAST)) >= 4.5
    red = browser.evaluate("getComputedStyle(document.body).backgroundColor").split("(")[1]
    assert (int(red.split(",")[0]) < 128) == dark
