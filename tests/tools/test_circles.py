"""Circles of imports and of C files: there are none, and the tool that says so finds those that there are."""

from __future__ import annotations

import random
from pathlib import Path

from tools.circles import circles, imports, main, modules, needs


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


def test_units_of_c_need_what_they_include_and_whose_functions_they_use(tmp_path: Path) -> None:
    """One header declares the functions of several files: the calls alone close these circles."""
    files = {
        "cuda/all.h": '#include "state.h"\nvoid open_all(void);\nint close_all(void);\n',
        "cuda/upper.c": '#include "all.h"\n\nint close_all(void)\n{\n    return 0;\n}\nvoid up(void) { open_all(); }\n',
        "cuda/lower.c": '#include "all.h"\nvoid open_all(void)\n{\n    if (close_all()) { }\n}\n',
        "cuda/quiet.c": (
            '#include "all.h"\n/* close_all() of upper */\nstatic const char *name = "open_all"; // open_all()\n'
            "static int up(void) { return up(); }\n"
        ),
        "smi/own.c": "void open_all(void) { }\nvoid other(void) { close_all(); }\n",  # another program's name
        "smi/part.h": '#include "whole.h"\n',
        "smi/whole.h": "",
        "smi/whole.c": '#include "part.h"\n',
        "include/state.h": "",
    }
    for name, text in files.items():
        path = tmp_path / "native" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    graph = needs(tmp_path / "native")
    assert circles(graph) == [["cuda/lower", "cuda/upper"], ["smi/part", "smi/whole"]]
    assert graph["cuda/upper"]["cuda/lower"] == "native/cuda/upper.c:7 uses open_all of cuda/lower"
    assert set(graph["cuda/quiet"]) == {"cuda/all"}
    assert set(graph["cuda/all"]) == {"include/state"}
    assert not graph["smi/own"]


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
