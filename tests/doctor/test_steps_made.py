"""The steps of remedies: what is put into them stays one word, and nobody else's words become a command."""

from __future__ import annotations

import ast
import functools
import shlex
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kgpu.doctor
from kgpu.base.remedy import Remedy, is_command, words

SOURCES = sorted(Path(kgpu.doctor.__file__).parent.rglob("*.py"))
# Templates that are taken out of a table of kgpu's source, by the words with which they are taken from there.
TABLES = {
    "step",
    # What kgpu's own catalogue says is to be done about an Xid.
    "unwell.remedy", "error.xid.advice", "xid.advice",
    # Rows of the support matrix.
    "KUBERNETES.remedy", "row.remedy",
    # Rows of vendors' drivers and of health's evidence.
    "driver.heat", "driver.firmware", "row.nvidia",
}  # fmt: skip
AGAIN = {"model.py", "steps.py", "unapplied.py"}
"""Where a step that was made is cleaned, taken apart or shortened."""

HOSTILE = st.text(
    st.sampled_from("ab-./ \t\n'\"`$\\;&|<>(){}[]*?!#~=%,:@é\u2028"), min_size=1, max_size=12
)  # fmt: skip


@given(HOSTILE, HOSTILE)
def test_a_value_is_one_word_of_a_command(name: str, other: str) -> None:
    step = Remedy("kubectl -n {} delete pod {}", name, other)
    assert shlex.split(step, comments=True) == ["kubectl", "-n", name, "delete", "pod", other]


@given(HOSTILE)
def test_and_a_part_of_one_where_it_is_put_into_one(value: str) -> None:
    step = Remedy("kubectl label node gpu-1 nvidia.com/x={} --overwrite", value)
    assert shlex.split(step)[4:] == [f"nvidia.com/x={value}", "--overwrite"]


@given(HOSTILE)
def test_and_within_quotes_it_does_not_end_them(value: str) -> None:
    step = Remedy('kubectl patch x -p \'{{"a":"{}"}}\'', value)
    assert shlex.split(step)[-1] == f'{{"a":"{value}"}}'


@given(st.lists(HOSTILE, min_size=1, max_size=4))
def test_several_words_stay_as_many(values: list[str]) -> None:
    assert shlex.split(Remedy("kubectl delete pod {}", words(*values)))[3:] == values


@given(HOSTILE)
def test_a_sentence_has_the_value_as_it_is(value: str) -> None:
    assert Remedy("wait for {}, which holds it", value) == f"wait for {value}, which holds it"
    assert not is_command(Remedy("wait for {}", value))


def test_what_stands_behind_a_command_is_a_sentence() -> None:
    step = Remedy("kubectl uncordon {}  # then it fits {}", "gpu 1", "pod a/b (1 more)")
    assert step == "kubectl uncordon 'gpu 1'  # then it fits pod a/b (1 more)"


def test_without_values_a_template_is_taken_as_it_is() -> None:
    assert Remedy("kubectl get node -o jsonpath='{.status}'") == "kubectl get node -o jsonpath='{.status}'"


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("kubectl get pods", True), ("TIME=1 kgpu top", True), ("on node gpu-1:", False), ("kubectls are", False),
        ("x == kubectl", False), ("", False), ("A=b", False),
    ],
)  # fmt: skip
def test_what_is_a_command(text: str, is_one: bool) -> None:
    assert is_command(text) is is_one


def calls(path: Path, *names: str) -> list[ast.Call]:
    return [one for one in ast.walk(tree_of(path)) if isinstance(one, ast.Call) and ast.unparse(one.func) in names]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def constants(path: Path) -> dict[str, ast.expr]:
    """What a module gives a name once and for all."""
    found = (one for one in tree_of(path).body if isinstance(one, ast.AnnAssign) and one.value is not None)
    return {ast.unparse(one.target): one.value for one in found if ast.unparse(one.annotation) == "Final"}


def written(template: ast.expr, path: Path) -> list[str]:
    """The texts that a template may be, where all of it is literals of the source; none where it is anything else."""
    if isinstance(template, ast.Constant) and isinstance(template.value, str):
        return [template.value]
    if isinstance(template, ast.Name) and template.id in constants(path):
        return written(constants(path)[template.id], path)
    if isinstance(template, ast.BinOp) and isinstance(template.op, ast.Add):
        return [a + b for a in written(template.left, path) for b in written(template.right, path)]
    if isinstance(template, ast.IfExp):
        found = written(template.body, path), written(template.orelse, path)
        return [*found[0], *found[1]] if all(found) else []
    return []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_template_is_written_in_the_source(path: Path) -> None:
    for call in calls(path, "Remedy", "remedy.Remedy"):
        texts = written(call.args[0], path)
        for text in texts:
            assert not text.startswith("{"), ast.unparse(call)
            fields = {field for _, field, _, _ in string.Formatter().parse(text) if field} if call.keywords else set()
            Remedy(text, *["x"] * text.count("{}"), **dict.fromkeys(fields, "x"))
        assert texts or ast.unparse(call.args[0]) in TABLES, ast.unparse(call)
    assert path.name in AGAIN or not calls(path, "Remedy.again"), path


def test_each_table_is_used() -> None:
    used = [
        (call.args[0], path) for path in SOURCES for call in calls(path, "Remedy") if not written(call.args[0], path)
    ]
    assert {ast.unparse(template) for template, _ in used} == TABLES


@pytest.mark.parametrize(
    ("template", "texts"),
    [
        ("'a {}'", ["a {}"]), ("A", ["a"]), ("A + ' b'", ["a b"]), ("A if x else 'c'", ["a", "c"]), ("B", []),
        ("f'a {x}'", []), ("x", []), ("A + x", []), ("A if x else y", []), ("A.format(x)", []), ("str(A)", []),
    ],
)  # fmt: skip
def test_what_is_written_in_the_source(template: str, texts: list[str], tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("A: Final = 'a'\nB = 'b'\n")
    assert written(ast.parse(template, mode="eval").body, tmp_path / "module.py") == texts


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_templates_of_rows_are_filled_when_the_module_is_read(path: Path) -> None:
    """So no value of an object gets into one."""
    if path.name == "remedies.py":
        return
    made = ("remedies.filled", "remedies.policy_row")
    within = [
        call for one in ast.walk(tree_of(path)) if isinstance(one, ast.FunctionDef) for call in calls_in(one, made)
    ]
    assert [ast.unparse(call) for call in within] == []


def calls_in(node: ast.AST, names: tuple[str, ...]) -> list[ast.Call]:
    return [one for one in ast.walk(node) if isinstance(one, ast.Call) and ast.unparse(one.func) in names]
