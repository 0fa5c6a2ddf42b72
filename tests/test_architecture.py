"""The design's dependency rules, read from the source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("router", "indexer", "bench")
SOURCES = sorted(p.relative_to(ROOT) for name in PACKAGES for p in (ROOT / name).rglob("*.py"))
CORE = [path for path in SOURCES if "core" in path.parts[:2]]

# Core decides and never does: no I/O, clock, logging, metrics or global randomness.
BANNED_IN_CORE = {
    "aiohttp",
    "asyncio",
    "http",
    "logging",
    "nats",
    "os",
    "pathlib",
    "prometheus_client",
    "random",
    "secrets",
    "select",
    "socket",
    "subprocess",
    "threading",
    "time",
    "urllib",
    "uuid",
    "zmq",
}


def imports(path: Path) -> set[str]:
    """Dotted names of all modules that a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return names


def roots(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def is_part_of(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def test_there_is_something_to_check():
    assert len(CORE) > 10


@pytest.mark.parametrize("path", CORE, ids=str)
def test_core_is_pure(path):
    assert not roots(imports(path)) & BANNED_IN_CORE


@pytest.mark.parametrize("path", CORE, ids=str)
def test_core_imports_no_adapter(path):
    for name in imports(path):
        if roots({name}) & set(PACKAGES):
            own = is_part_of(name, f"{path.parts[0]}.core")
            vocabulary = path.parts[0] == "router" and is_part_of(name, "indexer.core")
            assert own or vocabulary, f"{path} imports {name}"


@pytest.mark.parametrize("path", [p for p in SOURCES if p.parts[0] == "indexer"], ids=str)
def test_indexer_never_imports_router(path):
    assert "router" not in roots(imports(path))


@pytest.mark.parametrize("path", [p for p in SOURCES if p.parts[0] != "bench"], ids=str)
def test_nothing_imports_bench(path):
    assert "bench" not in roots(imports(path))


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_files_and_functions_stay_small(path):
    text = (ROOT / path).read_text()
    assert text.count("\n") <= 400, f"{path} is too long"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= 80, f"{path}:{node.lineno} {node.name} has {lines} lines"


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_no_module_keeps_global_state(path):
    tree = ast.parse((ROOT / path).read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Global)]
