"""Finds modules that import each other in a circle, also where an import stands within a function, and files of C that
need each other.

``python tools/circles.py`` prints each circle with its modules and the lines that close it, and exits 1 for one.
Imports under ``if TYPE_CHECKING:`` count for nothing: they are not made. A ``.c`` and its ``.h`` are one unit of C; it
needs those whose header it includes, and those of its folder whose functions it uses: where one header declares the
functions of several files, the includes alone do not show who calls whom.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent / "src"
PACKAGE: Final = "kgpu"
NATIVE: Final = ROOT.parent / "native"
_NO_CODE: Final = re.compile(
    r"""/\*.*?\*/ | //[^\n]* | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | ^[ \t]*\#(?:\\\n|[^\n])*""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_INCLUDE: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_C_TOKEN: Final = re.compile(r"[A-Za-z_]\w*|[(){};]")


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


def units(root: Path = NATIVE) -> dict[str, list[Path]]:
    """The files of every unit of C by its name, which is its path without suffix."""
    files: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*.[ch]")):
        files.setdefault(str(path.relative_to(root).with_suffix("")), []).append(path)
    return files


def needs(root: Path = NATIVE) -> dict[str, dict[str, str]]:
    """The units that each unit needs, each with the first line that shows it (``FILE:LINE includes X``)."""
    files = units(root)
    makers = {
        (path.parent, function): name
        for name, paths in files.items()
        for path in paths
        if path.suffix == ".c"
        for function, is_static in _functions(_code(path)).items()
        if not is_static
    }
    return {name: _needed(root, name, paths, files, makers) for name, paths in files.items()}


def _needed(
    root: Path, name: str, paths: Iterable[Path], files: Iterable[str], makers: Mapping[tuple[Path, str], str]
) -> dict[str, str]:
    targets: dict[str, str] = {}
    for path in paths:
        where = path.relative_to(root.parent)
        text = path.read_text()
        for include in _INCLUDE.finditer(text):
            header = next(
                (place / include[1] for place in (path.parent, root / "include") if (place / include[1]).is_file()),
                None,
            )
            if header is not None:
                unit = str(header.resolve().relative_to(root.resolve()).with_suffix(""))
                targets.setdefault(unit, f"{where}:{_line(text, include.start())} includes {include[1]}")
        code = _code(path) if path.suffix == ".c" else ""  # a header's prototypes call nothing
        own = _functions(code)
        for word in _C_TOKEN.finditer(code):
            maker = makers.get((path.parent, word[0])) if word[0] not in own else None
            if maker is not None:
                targets.setdefault(maker, f"{where}:{_line(code, word.start())} uses {word[0]} of {maker}")
    return {unit: shown for unit, shown in targets.items() if unit != name and unit in files}


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _code(path: Path) -> str:
    """A file without its comments, literals and directives, each of which leaves its line ends."""
    return _NO_CODE.sub(lambda hit: "\n" * hit[0].count("\n") or " ", path.read_text())


def _functions(code: str) -> dict[str, bool]:
    """The functions that have their bodies here, each with whether it is ``static``: no other file can call it then."""
    functions: dict[str, bool] = {}
    depth = 0
    head: list[str] = []
    for symbol in _C_TOKEN.findall(code):
        if depth == 0 and symbol == "{" and head[-1:] == [")"]:
            functions[head[head.index("(") - 1]] = "static" in head
        if depth == 0:
            head = [] if symbol in {";", "{"} else [*head, symbol]
        depth += (symbol == "{") - (symbol == "}")
        if depth == 0 and symbol == "}":
            head = []
    return functions


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
    imported = {name: imports(name, path, known) for name, path in known.items()}
    reasons = {
        name: {
            target: f"{known[name].relative_to(ROOT.parent)}:{line} imports {target}"
            for target, line in targets.items()
        }
        for name, targets in imported.items()
    }
    code = 0
    for graph in (reasons, needs()):
        for group in circles(graph):
            code = 1
            print(f"a circle of {len(group)}: {', '.join(group)}")
            for name in group:
                for target in sorted(set(graph[name]) & set(group)):
                    print(f"  {graph[name][target]}")
    return code


if __name__ == "__main__":
    sys.exit(main())
