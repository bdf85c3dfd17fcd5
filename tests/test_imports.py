"""The structure of the package: imports point one way, importing is light, files are named for what they hold."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ptxtile"
FILES = sorted(PACKAGE.rglob("*.py"))

BASE = {"errors", "config", "launch_record", "records"}
ALLOWED: dict[str, set[str]] = {
    "records": set(),
    "errors": {"records"},
    "config": {"records"},
    "launch_record": {"records"},
    "target": BASE,
    "ir": BASE | {"target"},
    # these four never import one another
    "frontend": BASE | {"target", "ir"},
    "lower": BASE | {"target", "ir"},
    "nvvm": BASE | {"target", "ir"},
    "sim": BASE | {"target", "ir"},
    "runtime": BASE | {"target"},
    "native": BASE | {"runtime"},
}
"""What each part of the package may import of the others; the parts that are not listed may import all of these."""

LLVMLITE = {"nvvm", "native/object_code"}
"""Where llvmlite may be imported: the emitter, and where the launcher's code is made."""

BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
TILELANGS_NAMES = {"utils/__init__.py", "utils/tensor.py"}
"""Files that only pass on names to scripts which import them from TileLang's module of that name."""


def part_of(path: Path) -> str:
    """``ir`` for ptxtile/ir/types.py, ``errors`` for ptxtile/errors.py."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports_of(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Every imported module with its line, and whether it is imported when the file is (not inside a function)."""
    tree = ast.parse(path.read_text())
    inside_functions = {
        node
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        at_import = node not in inside_functions
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            yield node.module, node.lineno, at_import
            # «from ptxtile import errors» imports a module too
            yield from ((f"{node.module}.{alias.name}", node.lineno, at_import) for alias in node.names)


def identifier(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", FILES, ids=identifier)
def test_imports_point_one_way(path):
    part = part_of(path)
    if part not in ALLOWED:
        return
    parts = {part_of(file) for file in FILES} - {"__init__", "__main__"}
    for module, line, _ in imports_of(path):
        names = module.split(".")
        if names[0] == "ptxtile" and len(names) > 1 and names[1] in parts and names[1] != part:
            assert names[1] in ALLOWED[part], f"{path}:{line}: {part} imports {names[1]}"


@pytest.mark.parametrize("path", FILES, ids=identifier)
def test_llvmlite_is_the_emitters_alone(path):
    place = identifier(path).removesuffix(".py")
    if any(place == allowed or place.startswith(allowed + "/") for allowed in LLVMLITE):
        return
    for module, line, _ in imports_of(path):
        assert module.split(".")[0] != "llvmlite", f"{path}:{line}: llvmlite"


@pytest.mark.parametrize("path", FILES, ids=identifier)
def test_the_environment_is_read_in_one_file(path):
    if part_of(path) == "config":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        named = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb")
        imported = isinstance(node, ast.ImportFrom) and node.module == "os"
        assert not named, f"{path}:{node.lineno}: the environment is read in config.py only"
        assert not imported, f"{path}:{node.lineno}: import os, so that its uses can be seen"


@pytest.mark.parametrize("path", FILES, ids=identifier)
def test_files_are_named_for_what_they_hold(path):
    if identifier(path) not in TILELANGS_NAMES:
        assert not BANNED_NAMES & set(path.relative_to(PACKAGE).with_suffix("").parts)


@pytest.mark.parametrize("path", FILES, ids=identifier)
def test_annotations_are_lazy(path):
    """``from __future__ import annotations`` in every file with code."""
    tree = ast.parse(path.read_text())
    code = [node for node in tree.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    futures = [node for node in code if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    assert not code or futures, f"{path} lacks from __future__ import annotations"


HEAVY = ("torch", "numba", "llvmlite", "cuda", "typer", "rich")


@pytest.mark.parametrize("module", ["ptxtile", "ptxtile.language"])
def test_importing_is_light(module):
    """A fresh interpreter: nothing heavy is loaded, so nothing can have touched CUDA."""
    program = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=PACKAGE.parent, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_numpy_is_imported_late_in_the_core():
    """The IR, targets and records can be imported without NumPy."""
    light = {"errors", "config", "launch_record", "target", "ir"}
    for path in FILES:
        if part_of(path) in light:
            for module, line, at_import in imports_of(path):
                late = not at_import or module.split(".")[0] != "numpy" or guarded(path, line)
                assert late, f"{path}:{line}: numpy is imported when the file is"


def guarded(path: Path, line: int) -> bool:
    """Whether a line stands under ``if TYPE_CHECKING``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            assert node.end_lineno is not None
            if node.lineno <= line <= node.end_lineno:
                return True
    return False
