"""Finds modules that import each other in a circle, also where an import stands within a function.

``python tools/circles.py`` prints each circle with its modules and the imports that close it, and exits 1 for one.
Imports under ``if TYPE_CHECKING:`` count for nothing: they are not made.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent / "src"
PACKAGE: Final = "kgpu"


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module of the package by its name; a package is its ``__init__``."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: Iterable[str]) -> dict[str, int]:
    """The modules of ours that a module imports, each with the line."""
    names = set(known)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: dict[str, int] = {}
    for node in _made(ast.parse(path.read_text(), str(path))):
        for target in _targets(node, package, names):
            if target in names and target != name:
                found.setdefault(target, node.lineno)
    return found


def _made(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports within but for those that are made for a type checker alone."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
        return
    for child in node.orelse if isinstance(node, ast.If) and _is_for_types(node) else ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):  # no import is within one
            yield from _made(child)


def _is_for_types(node: ast.If) -> bool:
    """``if TYPE_CHECKING:`` or ``if typing.TYPE_CHECKING:``."""
    test = node.test
    return getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"


def _targets(node: ast.Import | ast.ImportFrom, package: str, names: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        above = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*above, *([node.module] if node.module else [])])
    for alias in node.names:
        whole = f"{base}.{alias.name}"
        yield whole if whole in names else base


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The groups of two and more that reach each other (Tarjan's strongly connected components), each sorted."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for start in graph:
        if start in order:
            continue
        work = [(start, iter(graph[start]))]
        order[start] = low[start] = len(order)
        stack.append(start)
        while work:
            name, rest = work[-1]
            following = next((one for one in rest if one in graph and (one not in order or one in stack)), None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == order[name]:
                    group = stack[stack.index(name) :]
                    del stack[stack.index(name) :]
                    if len(group) > 1:
                        found.append(sorted(group))
            elif following in order:
                low[name] = min(low[name], order[following])
            else:
                order[following] = low[following] = len(order)
                stack.append(following)
                work.append((following, iter(graph[following])))
    return sorted(found)


def main() -> int:
    """Print the circles; returns the exit code."""
    known = modules()
    graph = {name: imports(name, path, known) for name, path in known.items()}
    found = circles(graph)
    for group in found:
        print(f"a circle of {len(group)}: {', '.join(group)}")
        for name in group:
            for target in sorted(set(graph[name]) & set(group)):
                print(f"  {known[name].relative_to(ROOT.parent)}:{graph[name][target]} imports {target}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
