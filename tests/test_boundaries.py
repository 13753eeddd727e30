"""Who may import whom, what `import specrt` costs, and that the wheel leaves nothing out."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import specrt

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = {  # package -> its folder in the checkout
    "specrt.bench": "bench",
    "specrt.export": "export",
    "specrt.models": "models",
    "specrt.runtime": "runtime",
    "specrt": "src/specrt",
}
ALLOWED = {  # package -> what it may import besides the standard library
    "specrt.models": {"specrt.models", "numpy"},
    "specrt.runtime": {"specrt.runtime", "numpy", "onnxruntime", "tokenizers", "jinja2"},
    "specrt.export": {
        *("specrt.export", "specrt.models", "specrt.runtime", "numpy", "tokenizers"),
        *("onnx", "onnxruntime", "gguf", "safetensors", "huggingface_hub", "ml_dtypes"),
    },
    "specrt.bench": {
        *("specrt", "specrt.bench", "specrt.runtime", "numpy", "onnxruntime", "tokenizers"),
        "matplotlib",
    },
    "specrt": {"specrt", *FOLDERS, "specrt.commands", "rich", "tokenizers"},
}
HEAVY = {
    "torch",
    "transformers",
    "onnx",
    "gguf",
    "safetensors",
    "huggingface_hub",
    "jinja2",
    "rich",
}


def modules() -> Mapping[str, Path]:
    """Every module of the project by its imported name."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join((package, *inside)).removesuffix(".__init__")
            found[name] = path
    return found


MODULES = modules()


def imports(path: Path, *, lazy: bool = True) -> Iterator[str]:
    """The absolute names a file imports; without lazy only those at its top level."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if lazy else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else str(node.module)


def package_of(module: str) -> str:
    """The innermost known package: specrt.runtime.drafters.ngram -> specrt.runtime."""
    return next((p for p in FOLDERS if module == p or module.startswith(f"{p}.")), module)


def owner(module: str) -> str:
    """What a rule speaks of: one of our packages, or another distribution's top name."""
    return package_of(module) if module.startswith("specrt") else module.partition(".")[0]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_what_its_package_may(module: str) -> None:
    wanted = {owner(name) for name in imports(MODULES[module])}
    assert wanted - sys.stdlib_module_names - ALLOWED[package_of(module)] == set()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_module_imports_another_ones_private_names(module: str) -> None:
    tree = ast.walk(ast.parse(MODULES[module].read_text()))
    names = {
        alias.name for node in tree if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert {name for name in names if name.startswith("_")} == set()


def test_no_module_imports_itself_by_a_detour() -> None:
    graph = {
        name: {i for i in imports(path, lazy=False) if i in MODULES and i != name}
        for name, path in MODULES.items()
    }
    while leaves := {name for name, needs in graph.items() if not needs}:
        graph = {name: needs - leaves for name, needs in graph.items() if name not in leaves}
    assert graph == {}


@pytest.mark.parametrize("top", ["specrt.runtime.api", "specrt.cli"])
def test_the_top_is_imported_by_nothing_below_it(top: str) -> None:
    above = {"specrt", "specrt.__main__", "specrt.console"}
    users = {name for name, path in MODULES.items() if top in imports(path)}
    assert users - above == set()


@pytest.mark.parametrize("module", ["specrt", "specrt.cli"])
def test_import_is_light(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(run.stdout.split()) == set()


def test_public_names_are_sorted_and_there() -> None:
    assert list(specrt.__all__) == sorted(specrt.__all__)
    assert [name for name in specrt.__all__ if not hasattr(specrt, name)] == []


def test_the_wheel_has_every_package() -> None:
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages


def test_every_folder_with_python_is_a_package() -> None:
    folders = {path.parent for path in MODULES.values()}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_wheel_has_every_data_file() -> None:
    globs = PROJECT["tool"]["setuptools"]["package-data"]
    left_out = [
        path.relative_to(ROOT)
        for package, folder in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        and path.suffix not in {".py", ".pyc"}
        and not any(
            fnmatchcase(str(path.relative_to(ROOT / folder)), glob)
            for glob in globs.get(package, [])
        )
    ]
    assert left_out == []
