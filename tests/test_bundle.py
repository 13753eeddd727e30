"""The manifest is read strictly, and a bundle is whole or not there."""

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrt.runtime.bundle import (
    FORMAT,
    MANIFEST,
    BundleFile,
    DrafterInfo,
    Manifest,
    ModelInfo,
    Source,
    check_hashes,
    describe,
    parse_manifest,
    read_manifest,
)
from specrt.runtime.errors import BundleError
from specrt.runtime.writing import writing

MODEL = ModelInfo(
    "llama", layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, vocab=32, context=64, eos_ids=(2,)
)


FILES = {
    "target/model.onnx": ("graph", "decoder"),
    "target/model.onnx.data": ("weights", "weights"),
    "tokenizer.json": ("{}", "tokenizer"),
    "drafters/small/model.onnx": ("small graph", "decoder"),
}


def entry(path: str) -> BundleFile:
    content, role = FILES[path]
    return BundleFile(path, len(content), hashlib.sha256(content.encode()).hexdigest(), role)


EXAMPLE = Manifest(
    format=FORMAT,
    name="tiny",
    created_by="specrt test",
    source=Source("gguf", "tiny.gguf", licence="Apache-2.0"),
    model=MODEL,
    weights="int8",
    flavour="cpu",
    graphs=(entry("target/model.onnx"), entry("target/model.onnx.data")),
    tokenizer=entry("tokenizer.json"),
    generation={"temperature": 0.7},
    drafters=(
        DrafterInfo(
            name="small",
            kind="draft",
            path="drafters/small",
            model=MODEL,
            weights="int4",
            source=Source("gguf", "small.gguf"),
            graphs=(entry("drafters/small/model.onnx"),),
        ),
    ),
    checks={"kl": 0.001},
)


def write_bundle(folder: Path, name: str = "tiny") -> Manifest:
    for path, (content, _) in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    manifest = replace(EXAMPLE, name=name)
    (folder / MANIFEST).write_text(manifest.to_json())
    return manifest


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    write_bundle(folder)
    return folder


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads((folder / MANIFEST).read_text())
    change(value)
    (folder / MANIFEST).write_text(json.dumps(value))


def reason(folder: Path) -> str:
    """The one line that refuses a bundle."""
    with pytest.raises(BundleError) as caught:
        read_manifest(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400 + len(str(folder))
    return message


def test_a_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    written = write_bundle(tmp_path)
    assert read_manifest(tmp_path) == written


def test_a_folder_without_manifest_is_no_bundle(tmp_path: Path) -> None:
    assert "is no bundle" in reason(tmp_path)


def test_a_newer_format_is_refused_with_its_number(bundle: Path) -> None:
    edit(bundle, lambda m: m.update(format=FORMAT + 6, something_new={}))
    assert f"format {FORMAT + 6} is newer than {FORMAT}, upgrade specrt" in reason(bundle)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format="1"), "format is '1', expected 1"),
        (lambda m: m.update(format=True), "format is True, expected 1"),
        (lambda m: m.pop("weights"), "lacks weights"),
        (lambda m: m.update(wieghts="int8"), "unknown key 'wieghts'"),
        (lambda m: m.update(weights="int3"), "weights 'int3' is unknown, this specrt knows fp32"),
        (lambda m: m.update(flavour="npu"), "flavour 'npu' is unknown"),
        (lambda m: m.update(graphs=[]), "graphs is empty"),
        (lambda m: m.update(name="a\x1b[31m"), "expected a short printable text"),
        (lambda m: m.update(name="a" * 2000), "expected a short printable text"),
        (lambda m: m["model"].update(layers="2"), "model.layers is '2', expected an integer"),
        (lambda m: m["model"].update(layers=True), "model.layers is True, expected an integer"),
        (lambda m: m["model"].update(layers=0), "model.layers is 0, not in 1..4096"),
        (lambda m: m["model"].update(vocab=10**30), "model.vocab is 1000000"),
        (lambda m: m["model"].update(heads=3, kv_heads=2), "3 heads, no multiple of 2"),
        (lambda m: m["model"].update(eos_ids=[32]), "token id 32 is outside"),
        (
            lambda m: m["model"].update(eos_ids=["2"]),
            "model.eos_ids[0] is '2'",
        ),
        (lambda m: m["graphs"][0].update(size=-1), "target/model.onnx has size -1"),
        (lambda m: m["graphs"][0].update(size=6), "target/model.onnx has 5 bytes, expected 6"),
        (lambda m: m["graphs"][0].update(sha256="12"), "not 64 hex digits"),
        (lambda m: m["graphs"][0].update(path="target/no.onnx"), "target/no.onnx is missing"),
        (lambda m: m["drafters"][0].update(kind="oracle"), "drafter kind 'oracle' is unknown"),
        (lambda m: m["drafters"][0].update(name="../x"), "drafter name '../x'"),
        (lambda m: m["drafters"].append(m["drafters"][0]), "two drafters have one name"),
        (
            lambda m: m["generation"].update(top_k="40"),
            "generation.'top_k' is '40'",
        ),
    ],
)
def test_a_wrong_manifest_is_refused_in_one_line(
    bundle: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(bundle, change)
    assert message in reason(bundle)


@pytest.mark.parametrize(
    "path", ["/etc/hostname", "../secret", "target/../../x", "C:x", "a\\b", "", ".", "a//b", "./a"]
)
def test_a_path_that_could_leave_the_bundle_is_refused(bundle: Path, path: str) -> None:
    edit(bundle, lambda m: m["tokenizer"].update(path=path))
    assert "not a plain relative path" in reason(bundle)


def test_a_link_out_of_the_bundle_is_refused(bundle: Path) -> None:
    (bundle.parent / "outside").write_text("{}")
    (bundle / "tokenizer.json").unlink()
    (bundle / "tokenizer.json").symlink_to("../outside")
    assert "tokenizer.json is a link out of the bundle" in reason(bundle)


def test_a_loop_of_links_is_refused(bundle: Path) -> None:
    (bundle / "tokenizer.json").unlink()
    (bundle / "tokenizer.json").symlink_to("tokenizer.json")
    assert "tokenizer.json is missing" in reason(bundle)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"\xff", b"[]", b"null", b"[" * 100_000, b'{"format": NaN}', b'{"format": 1e999}'],
)
def test_what_is_no_json_object_is_refused(bundle: Path, raw: bytes) -> None:
    (bundle / MANIFEST).write_bytes(raw)
    assert str(bundle / MANIFEST) in reason(bundle)


def test_a_huge_manifest_is_not_even_read(bundle: Path) -> None:
    with (bundle / MANIFEST).open("r+b") as file:
        file.truncate(1 << 40)  # sparse
    assert "larger than" in reason(bundle)


def test_a_changed_small_file_is_found_by_its_hash(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    (bundle / "target/model.onnx").write_text("grapH")
    with pytest.raises(BundleError, match="sha256 is"):
        check_hashes(bundle, manifest.files)


def test_a_large_file_is_hashed_only_on_request(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    (bundle / "target/model.onnx.data").write_text("WEIGHTS")
    check_hashes(bundle, manifest.files, up_to=6)
    with pytest.raises(BundleError, match=r"model\.onnx\.data: sha256 is"):
        check_hashes(bundle, manifest.files, up_to=None)


def test_describe_gives_size_and_hash(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    digest = hashlib.sha256(b"abc").hexdigest()
    assert describe(tmp_path, "a", "weights") == BundleFile("a", 3, digest, "weights")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=8), x, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_manifest_or_a_bundle_error(raw: bytes) -> None:
    try:
        parse_manifest(raw)
    except BundleError as error:
        assert "\n" not in str(error)  # noqa: PT017 (both outcomes are right)


@given(st.data())
def test_any_change_of_one_value_is_refused_or_reads_back(data: st.DataObject) -> None:
    value = asdict(EXAMPLE)
    place, keys = value, []
    while not keys or (isinstance(place, dict | list | tuple) and data.draw(st.booleans())):
        choices = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        if not choices:
            break
        keys.append(data.draw(st.sampled_from(choices)))
        parent, place = place, place[keys[-1]]
        if isinstance(place, tuple):
            place = parent[keys[-1]] = list(place)
    parent[keys[-1]] = data.draw(JSON)
    try:
        manifest = parse_manifest(json.dumps(value).encode())
    except BundleError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert parse_manifest(manifest.to_json().encode()) == manifest


def deliver(out: Path, fill: Callable[[Path], object]) -> None:
    with writing(out) as folder:
        fill(folder)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_unfinished_bundle_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def fill(folder: Path) -> None:
        write_bundle(folder)
        raise error

    with pytest.raises(error):
        deliver(tmp_path / "out", fill)
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_that_would_not_load_is_not_delivered(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        write_bundle(folder)
        (folder / "target/model.onnx").unlink()

    with pytest.raises(BundleError, match=r"model\.onnx is missing"):
        deliver(tmp_path / "out", fill)
    assert list(tmp_path.iterdir()) == []


def test_an_old_bundle_is_replaced_as_a_whole(bundle: Path) -> None:
    (bundle / "profile").mkdir()
    with writing(bundle) as folder:
        manifest = write_bundle(folder, name="new")
    assert read_manifest(bundle) == manifest
    assert not (bundle / "profile").exists()
    assert os.listdir(bundle.parent) == ["bundle"]


def test_an_old_bundle_survives_a_failed_export(bundle: Path) -> None:
    before = read_manifest(bundle)
    with pytest.raises(BundleError):
        deliver(bundle, lambda folder: None)
    assert read_manifest(bundle) == before
    assert os.listdir(bundle.parent) == ["bundle"]


def test_an_old_bundle_comes_back_if_the_last_rename_fails(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, rename = read_manifest(bundle), Path.rename

    def failing(self: Path, target: Path) -> Path:
        if ".new-" in self.name:
            raise OSError(5, "Input/output error", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(BundleError, match="Input/output error"):
        deliver(bundle, write_bundle)
    assert read_manifest(bundle) == before
    assert os.listdir(bundle.parent) == ["bundle"]


@pytest.mark.parametrize("names", [["notes.txt"], ["notes.txt", MANIFEST]])
def test_a_folder_with_anything_else_is_not_overwritten(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("mine")
    with pytest.raises(BundleError, match="choose another folder"):
        deliver(tmp_path, write_bundle)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(BundleError, match="is a file"):
        deliver(tmp_path / "out", write_bundle)
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        write_bundle(folder)
        with Path("/dev/full").open("wb", buffering=0) as full:
            full.write(b"x")

    with pytest.raises(BundleError, match="cannot be written: No space left on device"):
        deliver(tmp_path / "out", fill)
    assert list(tmp_path.iterdir()) == []


def test_a_file_size_limit_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    code = """
        import resource, sys
        from specrt.runtime.errors import BundleError
        from specrt.runtime.writing import writing
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            with writing(sys.argv[1]) as folder:
                (folder / "weights").write_bytes(bytes(1 << 20))
        except BundleError as error:
            print(error)
    """
    out = tmp_path / "out"
    run = [sys.executable, "-c", textwrap.dedent(code), str(out)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout == (
        f"{out} cannot be written: File too large; free space or choose another folder\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_small_disk_that_fills_up_is_one_line_and_leaves_nothing(small_disk: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "weights").write_bytes(bytes(1 << 20))

    with pytest.raises(BundleError, match="cannot be written: No space left on device"):
        deliver(small_disk / "out", fill)
    assert list(small_disk.iterdir()) == []


def test_an_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="cannot be written"):
        deliver(tmp_path / "file" / "out", write_bundle)


def test_an_error_of_the_source_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        deliver(tmp_path / "out", lambda folder: (tmp_path / "checkpoint").read_bytes())
    assert list(tmp_path.iterdir()) == []
