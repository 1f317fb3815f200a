"""Every command that stands in a rule, also in branches that no example takes, as a shell would read it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgpu.base.remedy import is_command
from kgpu.doctor import cluster_policy, rules
from kgpu.doctor import remedies as built
from kgpu.doctor.draining import with_bare_pods
from kgpu.doctor.model import Finding, Subject
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names
from tests.doctor.pasting import problems

HELPERS = (
    "commands",
    "edits",
    "hami",
    "idle_daemons",
    "remedies",
    "slices",
    "smallest_change",
    "stack_config",
    "volumes",
)
"""Modules beside the rules that write remedies."""
FOLDER = Path(rules.__path__[0])
MODULES = (*sorted(FOLDER.rglob("*.py")), *(FOLDER.parent / f"{name}.py" for name in HELPERS))
FILLED_IN = "x"
_NO_REMEDY = frozenset({"cause", "summary"})


KNOWN = {"remedies": built, "names": names, "cluster_policy": cluster_policy}


def text_of(node: ast.AST) -> str:
    """A string with something filled in; "" for what is none, and for a sentence, which ends with a full stop."""
    text = ""
    if isinstance(node, ast.JoinedStr):
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else FILLED_IN for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    elif isinstance(found := of_remedies(node), str):
        text = found
    return "" if text.rstrip().endswith(".") else text


def of_remedies(node: ast.AST) -> object:
    """What an expression with a constant of ``remedies`` in it is, where it is known without an object; "" else."""
    asks = node.func if isinstance(node, ast.Call) else node.left if isinstance(node, ast.BinOp) else node
    if not isinstance(node, ast.expr) or not is_of_remedies(asks):
        return ""
    try:
        return eval(compile(ast.Expression(node), "<rule>", "eval"), dict(KNOWN))
    except NameError:
        return ""


def is_of_remedies(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "remedies"


def rows_of(node: ast.Tuple | ast.List) -> Iterator[ast.AST | str]:
    """The entries of a row, with those of a constant that is put into it."""
    for one in node.elts:
        found = of_remedies(one.value) if isinstance(one, ast.Starred) else ""
        yield from found if isinstance(found, tuple) else (one,)


def remedies(node: ast.AST) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The rows of strings of which one is a command, and commands that stand alone, with their lines."""
    if isinstance(node, ast.keyword) and node.arg in _NO_REMEDY:
        return
    if isinstance(node, ast.Tuple | ast.List):
        entries = list(rows_of(node))
        texts = tuple(filter(None, (one if isinstance(one, str) else text_of(one) for one in entries)))
        if any(map(is_command, texts)):
            yield node.lineno, texts
            yield from (
                row for child in entries if isinstance(child, ast.AST) and not text_of(child) for row in remedies(child)
            )
            return
    elif is_command(text := text_of(node)):
        yield getattr(node, "lineno", 0), (text,)
        return
    for child in ast.iter_child_nodes(node):
        yield from remedies(child)


def told(texts: tuple[str, ...]) -> tuple[str, ...]:
    """As a report tells them: a comment stands above its command, and what comes after a drain below it."""
    found = Finding(subject=Subject("Pod", FILLED_IN, FILLED_IN), cause=FILLED_IN, remedy=texts)
    return with_bare_pods(found, Snapshot()).remedy


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_shell_can_take_every_command(module: Path) -> None:
    rows = [
        (line, told(texts)) for line, texts in remedies(ast.parse(module.read_text())) if " " in " ".join(texts).strip()
    ]
    wrong = [f"line {line}: {what}" for line, texts in rows for what in problems(texts)]
    alone = {line for line, texts in rows if len(texts) == 1}
    # What a name in capitals stands for is said by the row above, which stands elsewhere for a command alone.
    assert [one for one in wrong if not ("nobody says" in one and int(one.split()[1][:-1]) in alone)] == []


def test_enough_is_read() -> None:
    trees = [ast.parse(path.read_text()) for path in MODULES]
    rows = sum(1 for tree in trees for _ in remedies(tree))
    made = sum(is_of_remedies(one) for tree in trees for one in ast.walk(tree))
    assert (rows > 300, made > 150) == (True, True), (rows, made)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("f(remedy=('kubectl get pods; the name is there',))", "'the' is no program"),
        ("f(remedy=(a, f'kubectl drain NODE {x}') if b else ())", "NODE"),
        ("g(f'kubectl cordon {node}, then wait')", "a sentence goes on"),
        ("Sign(remedy=('it is to be emptied', remedies.DRAIN + ' NODE'))", "nobody says"),
        ("Sign(remedy=(remedies.CORDON + ', then wait',))", "a sentence goes on"),
    ],
)
def test_what_is_wrong_is_found(source: str, problem: str) -> None:
    ((_, texts),) = remedies(ast.parse(source))
    assert any(problem in what for what in problems(told(texts)))
