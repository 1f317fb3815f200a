"""What tests, tools and benchmarks take of kgpu exists: also in those that need a cluster, and are not run on every machine."""

from __future__ import annotations

import ast
import contextlib
import importlib
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("tests", "tools", "bench")
MADE = {"kgpu.doctor.rules.found_a", "kgpu.dummy.plan", "kgpu.dummy.run"}
"""Modules that a test makes itself."""
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def module(name: str) -> ModuleType | None:
    """A module of kgpu's, None where there is none of that name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("kgpu"):
            raise
        return None


def missing(tree: ast.Module) -> Iterator[str]:
    """Names that are imported from kgpu, and attributes of modules that are, and that are not there."""
    modules: dict[str, ModuleType] = {}
    nodes = [*ast.walk(tree)]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "kgpu" and not node.level:
            found = module(node.module or "")
            for one in node.names:
                value = getattr(found, one.name, None) if found else None
                value = value if value is not None else module(f"{node.module}.{one.name}")
                if value is None and not hasattr(found, one.name):
                    yield f"{node.module}.{one.name}"
                elif isinstance(value, ModuleType):
                    modules[one.asname or one.name] = value
    if not modules:
        return
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    stored |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and isinstance(node.ctx, ast.Load):
            owner = modules.get(node.value.id) if node.value.id not in stored else None
            if owner is not None and not hasattr(owner, node.attr) and module(f"{owner.__name__}.{node.attr}") is None:
                yield f"{owner.__name__}.{node.attr}"


def programs(tree: ast.Module) -> Iterator[ast.Module]:
    """The texts that are programs which import kgpu, for other processes to run."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "from kgpu." in node.value:
            with contextlib.suppress(SyntaxError):
                yield ast.parse(textwrap.dedent(node.value))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_name_of_kgpu_s_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if "kgpu" not in text:
        return
    tree = ast.parse(text)
    found = [name for one in (tree, *programs(tree)) for name in missing(one)]
    assert [name for name in found if name.rpartition(".")[0] not in MADE] == []


def test_what_is_missing_is_found() -> None:
    text = "from {0}.base import nothing, files\nfrom {0}.none import x\nfiles.no_such()\nfiles.write_atomic\n".format(
        "kgpu"
    )
    wanted = ["kgpu.base.files.no_such", "kgpu.base.nothing", "kgpu.none.x"]
    assert sorted(missing(ast.parse(text))) == wanted
    (program,) = programs(ast.parse(f"PROGRAM = {text!r}"))
    assert sorted(missing(program)) == wanted
