"""Where a command of the doctor's may force anything: in two places, each for a reason, and in no other.

``replace --force`` deletes a Job or a bare pod that waits and makes it again, because neither can be changed; what would
be lost is asked before. ``--force-conflicts`` takes the fields of NVIDIA's CRDs over from whoever applied them last.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import kgpu.doctor
from kgpu.doctor.model import Finding
from kgpu.doctor.plan import diagnose
from kgpu.doctor.rules import all_rules
from tests.doctor.example import Example, all_examples

FOLDER = Path(kgpu.doctor.__file__).parent
FORCING = re.compile(r"--force\b|--grace-period|--disable-eviction")
SPEC = "what keeps the waiting pod off is in its own spec, which a Job or a bare pod can't have changed"
REPLACES = {
    **dict.fromkeys(("SCH-00", "SCH-04", "SCH-05", "SCH-06", "SCH-07", "SCH-08", "SCH-09", "SCH-13", "SCH-14"), SPEC),
    **dict.fromkeys(("SCH-17", "TNT-01", "TNT-02"), SPEC),
}  # fmt: skip
"""The rules that propose a change of the pods' template, by which a Job or a bare pod is made anew."""
CONFLICTS = {
    "OPR-01": "Helm upgrades no CRDs: the old one is Helm's, and only who takes its fields over can bring the new ones",
}
PLACES = {("commands.py", "kubectl replace --force"), ("objects.py", "kubectl apply --server-side --force-conflicts")}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def texts(path: Path) -> Iterator[str]:
    """The strings of a module, but for docstrings."""
    tree = tree_of(path)
    docs = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in docs:
            yield one.value


def test_no_other_template_of_the_doctor_forces_anything() -> None:
    found = {(path.name, text) for path in sorted(FOLDER.rglob("*.py")) for text in texts(path) if FORCING.search(text)}
    assert len(found) == len(PLACES)
    for name, words in PLACES:
        assert [text for where, text in found if where == name and words in text], (name, words)


def asks_for(path: Path, *names: str) -> set[str]:
    """The rules of a module whose check uses one of these names, by itself or through the module's own functions."""
    functions = {one.name: one for one in tree_of(path).body if isinstance(one, ast.FunctionDef)}
    used = {name: {ast.unparse(one) for one in ast.walk(body) if isinstance(one, ast.Name | ast.Attribute)}
            for name, body in functions.items()}  # fmt: skip
    reached = {name for name, words in used.items() if not words.isdisjoint(names)}
    while more := {name for name, words in used.items() if name not in reached and words & reached}:
        reached |= more
    made = (one for name in reached for one in functions[name].decorator_list if isinstance(one, ast.Call))
    rules = {str(one.args[0].value) for one in made if ast.unparse(one.func) == "rule" and isinstance(one.args[0], ast.Constant)}  # fmt: skip
    return rules | set(signs(path, names, reached))


def signs(path: Path, names: tuple[str, ...], reached: set[str]) -> Iterator[str]:
    """The rows of sentences whose remedy or proof does."""
    for call in (
        one for one in ast.walk(tree_of(path)) if isinstance(one, ast.Call) and ast.unparse(one.func) == "Sign"
    ):
        rows = {row.arg: row.value for row in call.keywords}
        words = {ast.unparse(one) for key in ("remedy", "besides") if key in rows for one in ast.walk(rows[key])}
        if not words.isdisjoint({*names, *reached}):
            yield str(ast.literal_eval(rows["id"]))


def rules_with(*names: str) -> set[str]:
    return {rule for path in sorted((FOLDER / "rules").rglob("*.py")) for rule in asks_for(path, *names)}


def test_the_rules_that_may_make_a_job_or_a_pod_anew() -> None:
    """Also by branches that no example takes."""
    assert rules_with("commands.steps", "commands.patched", "hami.unfit") == set(REPLACES)


def test_the_rules_that_may_take_the_crds_over() -> None:
    assert rules_with("CRDS") == set(CONFLICTS)


def told(example: Example) -> list[Finding]:
    report = diagnose(example.snapshot(example.broken), strict=True)
    return [one for root in report.findings for one in root.all()]


@functools.cache
def forced() -> tuple[tuple[Finding, str], ...]:
    """The forcing steps of all examples."""
    return tuple(
        (one, step) for example in all_examples() for one in told(example) for step in one.remedy if FORCING.search(step)
    )  # fmt: skip


def test_what_examples_force_is_on_the_list() -> None:
    replaced = {one.id for one, step in forced() if "replace --force" in step}
    assert {one.id for one, step in forced() if "--force-conflicts" in step} == set(CONFLICTS)
    assert {"SCH-00", "SCH-08"} <= replaced <= set(REPLACES)
    assert {*replaced, *CONFLICTS} == {one.id for one, _ in forced()}
    assert {*REPLACES, *CONFLICTS} <= {rule.id for rule in all_rules()}


def test_only_who_waits_is_made_anew() -> None:
    """The object of the command is the pod that the finding is about, or the Job that made it, in its namespace."""
    steps = [(one, step) for one, step in forced() if "replace --force" in step]
    assert steps
    for one, step in steps:
        hit = re.match(r"kubectl -n (\S+) get (pod|job) (\S+) -o yaml \| kubectl patch --local ", step)
        assert hit is not None, step
        assert hit[1] == one.subject.namespace
        assert hit[3] == one.subject.name or (hit[2] == "job" and one.subject.name.startswith(hit[3])), step
