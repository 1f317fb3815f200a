"""Circles of imports: there are none, and the tool that says so finds those that there are."""

from __future__ import annotations

import random
from pathlib import Path

from tools.circles import circles, imports, main, modules


def test_there_are_none(capsys) -> None:
    assert main() == 0, capsys.readouterr().out


def package(root: Path, **files: str) -> dict[str, set[str]]:
    for name, text in files.items():
        path = root / "kgpu" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    known = modules(root)
    return {name: set(imports(name, path, known)) for name, path in known.items()}


def test_imports_within_functions_and_relative_ones_count_and_those_for_types_do_not(tmp_path: Path) -> None:
    graph = package(
        tmp_path,
        a="def f():\n    from kgpu import b\n",
        b="from .sub import c\n",
        sub__c="try:\n    import kgpu.a\nexcept ImportError:\n    pass\n",
        d="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kgpu import e\nelse:\n    import kgpu.a\n",
        e="import kgpu.d\n",
    )
    assert graph["kgpu.d"] == {"kgpu.a"}
    assert circles(graph) == [["kgpu.a", "kgpu.b", "kgpu.sub.c"]]


def test_they_are_those_that_reach_each_other() -> None:
    """Against walking from each to each."""
    drawn = random.Random(3)
    for _ in range(300):
        names = [str(number) for number in range(drawn.randint(1, 9))]
        graph = {name: sorted({drawn.choice(names) for _ in range(drawn.randint(0, 3))} - {name}) for name in names}
        reach = {name: reached(graph, name) for name in names}
        groups = {tuple(sorted(b for b in names if b in reach[a] and a in reach[b])) for a in names if a in reach[a]}
        assert circles(graph) == sorted(map(list, groups))


def reached(graph: dict[str, list[str]], start: str) -> set[str]:
    found: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += graph[name]
    return found
