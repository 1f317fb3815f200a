"""A rule is declared where its function is written: its docstring is the explanation, and no id is there twice."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgpu.doctor import rules
from kgpu.doctor.model import Finding, Place
from kgpu.doctor.rule import declared, rule
from kgpu.doctor.rules import all_rules, rules_in
from kgpu.doctor.snapshot import Snapshot

DECLARES = """
from kgpu.doctor.model import Place
from kgpu.doctor.rule import rule

@rule({id!r}, "A title", Place.CLUSTER)
def check(snapshot):
    '''Why it happens.'''
    return ()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder in place of the rules' own; what was imported from it is forgotten."""
    monkeypatch.setattr(rules, "__path__", [str(tmp_path)])
    all_rules.cache_clear()
    yield tmp_path
    for path in tmp_path.rglob("*.py"):
        name = ".".join(path.relative_to(tmp_path).with_suffix("").parts).removesuffix(".__init__")
        sys.modules.pop(f"{rules.__name__}.{name}", None)
    all_rules.cache_clear()


def test_the_docstring_is_the_explanation_and_the_function_stays() -> None:
    @rule("TST-01", "A title", Place.CLUSTER, explains=("TST-*",), also=("TST-02",), last_resort=True, by_hand=True)
    def check(snapshot: Snapshot) -> tuple[Finding, ...]:
        """It is so, as one sees
        by {braces} and 100% of it.

        It helps to look.
        """
        return tuple(snapshot.all("Finding"))  # type: ignore[arg-type]

    (made,) = (one for one in declared(__name__) if one.id == "TST-01")
    assert made.explain == "It is so, as one sees by {braces} and 100% of it. It helps to look."
    assert (made.title, made.place, made.explains, made.also) == ("A title", Place.CLUSTER, ("TST-*",), ("TST-02",))
    assert made.last_resort
    assert made.by_hand
    assert made.check is check
    assert check(Snapshot()) == ()


def test_facts_are_filled_into_it() -> None:
    @rule("TST-03", "A title", Place.CLUSTER, facts={"drivers": "570.1, 570.2"})
    def check(snapshot: Snapshot) -> tuple[Finding, ...]:
        """Drivers {drivers} do so."""
        return ()

    assert [one.explain for one in declared(__name__) if one.check is check] == ["Drivers 570.1, 570.2 do so."]


def test_a_rule_without_an_explanation_is_a_defect() -> None:
    with pytest.raises(AssertionError, match="TST-04 has no docstring"):
        rule("TST-04", "A title", Place.CLUSTER)(lambda snapshot: ())
    assert "TST-04" not in [one.id for one in declared(__name__)]


def test_modules_are_found_by_themselves(folder: Path) -> None:
    for name in ("b", "a"):
        (folder / f"found_{name}.py").write_text(DECLARES.format(id=f"TST-{name}"))
    (folder / "topic").mkdir()
    (folder / "topic" / "__init__.py").write_text("'''A topic has no rule of its own.'''")
    (folder / "topic" / "found_d.py").write_text(DECLARES.format(id="TST-d"))
    (folder / "found_rows.py").write_text(
        "from kgpu.doctor.rules.found_a import check\n"
        "from kgpu.doctor.rule import Rule\nfrom kgpu.doctor.model import Place\n"
        "RULES = (Rule('TST-c', 'A title', Place.CLUSTER, check, 'Why.'),)\n"
    )
    assert [one.id for one in all_rules()] == ["TST-a", "TST-b", "TST-c", "TST-d"]
    assert [one.id for one in rules_in(f"{rules.__name__}.found_rows")] == ["TST-c"], "what it imports is another's"


def test_an_id_that_is_there_twice_is_a_defect(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / f"twice_{name}.py").write_text(DECLARES.format(id="TST-05"))
    with pytest.raises(AssertionError, match="TST-05 is there twice"):
        all_rules()


def test_an_id_that_is_twice_in_one_module_is_a_defect(folder: Path) -> None:
    both = DECLARES.format(id="TST-06") + DECLARES.format(id="TST-06").replace("def check", "def again")
    (folder / "twice_here.py").write_text(both)
    with pytest.raises(AssertionError, match="TST-06 is there twice"):
        all_rules()


def test_a_module_without_any_is_a_defect(folder: Path) -> None:
    (folder / "without.py").write_text("'''Nothing.'''\n")
    with pytest.raises(AssertionError, match="without declares no rule"):
        all_rules()


def test_every_explanation_is_one_line_of_words() -> None:
    for one in all_rules():
        assert one.explain == " ".join(one.explain.split()), one.id


WITHOUT_A_SOURCE = 103
"""Rules of which nobody has written down what they rest on: this number only falls."""
SOURCE = re.compile(
    r"[\w.-]+/[\w.-]+#\d+"  # a thread
    r"|[\w.-]+/[\w.-]+(?: v?[\w.-]+)?, .+"  # what of a repository, at which release
    r"|[A-Z].+ (?:documentation|catalogue)(?:[:,] .+)?|KEP-\d+ .+"
)


def test_what_rules_rest_on_is_a_source_that_can_be_looked_up() -> None:
    for known in all_rules():
        assert all(SOURCE.fullmatch(source) for source in known.rests_on), (known.id, known.rests_on)
        assert len(set(known.rests_on)) == len(known.rests_on)


def test_a_new_rule_says_what_it_rests_on() -> None:
    assert len([known.id for known in all_rules() if not known.rests_on]) <= WITHOUT_A_SOURCE
