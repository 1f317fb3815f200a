"""The steps of remedies: what is put into them stays one word, and nobody else's words become a command."""

from __future__ import annotations

import ast
import itertools
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kgpu.doctor
from kgpu.base.remedy import Remedy, is_command, words

SOURCES = sorted(Path(kgpu.doctor.__file__).parent.rglob("*.py"))
# Templates that stand in a table or a constant of kgpu's source, by the words with which they are taken from there.
TABLES = {
    "_FIRST", "_POLICY", "_RESTART", "_RESTART + '  # it looks at all devices anew'",
    "_RESTART + '  # its controller makes a new one'", "_STOPS", "patch", "step",
    # What kgpu's own catalogue says is to be done about an Xid.
    "one.remedy", "seen.xid.advice", "xid.advice",
}  # fmt: skip
AGAIN = {"draining.py", "model.py", "steps.py"}
"""Where a step that was made is cleaned or taken apart."""

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
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [one for one in ast.walk(tree) if isinstance(one, ast.Call) and ast.unparse(one.func) in names]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_template_is_written_in_the_source(path: Path) -> None:
    for call in calls(path, "Remedy", "remedy.Remedy"):
        template = call.args[0]
        if isinstance(template, ast.Constant):
            assert not str(template.value).startswith("{"), ast.unparse(call)
            Remedy(str(template.value), *["x"] * str(template.value).count("{}"))
        else:
            assert ast.unparse(template) in TABLES, ast.unparse(call)
    assert path.name in AGAIN or not calls(path, "Remedy.again"), path


def test_each_table_is_used() -> None:
    used = itertools.chain.from_iterable(calls(path, "Remedy") for path in SOURCES)
    assert {ast.unparse(call.args[0]) for call in used if not isinstance(call.args[0], ast.Constant)} == TABLES
