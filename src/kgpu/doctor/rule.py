"""What a rule is: a row of the catalogue with a small pure function over the snapshot.

It is declared by ``@rule`` where the function is written; the function's docstring is what ``--explain`` shows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from kgpu.doctor.model import Finding, Place
from kgpu.doctor.snapshot import Snapshot

Check: TypeAlias = Callable[[Snapshot], Iterable[Finding]]
_Checked = TypeVar("_Checked", bound=Check)


@dataclass(frozen=True, slots=True)
class Rule:
    """``id`` is the catalogue's. ``title`` names the cause in a few words; ``explain`` is for ``--explain``: why it
    happens, what proves it, what helps.

    ``explains``: ids (``DPL-01``) or groups (``DPL-*``) of findings that follow from this one where they hurt the same
    node or pod. ``also``: further rows of the catalogue that this rule covers, with the same cause and cure.
    ``by_hand``: somebody has written it so; it follows from nothing, and no group (``DPL-*``) of another rule means it.
    ``rests_on``: the source or documentation of a release, or the threads, that show that the software behaves so;
    empty where none is known.
    ``last_resort``: counts only for pods of which no other finding but a note is told.
    """

    id: str
    title: str
    place: Place
    check: Check
    explain: str
    explains: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    last_resort: bool = False
    by_hand: bool = False
    rests_on: tuple[str, ...] = ()


_DECLARED: Final[list[tuple[str, Rule]]] = []
"""Every rule that ``rule`` has made, with the module that its function is written in."""


def rule(
    rule_id: str,
    title: str,
    place: Place,
    *,
    explains: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
    last_resort: bool = False,
    by_hand: bool = False,
    rests_on: tuple[str, ...] = (),
    facts: Mapping[str, str] | None = None,
) -> Callable[[_Checked], _Checked]:
    """Declare the function below as a rule; it stays the function that it is.

    ``facts`` are filled into ``{name}`` of its docstring, where the explanation has what is in a table.
    """

    def declare(check: _Checked) -> _Checked:
        prose = " ".join(inspect.cleandoc(check.__doc__ or "").split())
        assert prose, f"rule {rule_id} has no docstring, which is its explanation"
        explain = prose.format_map(facts) if facts else prose
        declared_rule = Rule(
            rule_id, title, place, check, explain, explains, also, last_resort, by_hand, rests_on
        )  # fmt: skip
        _DECLARED.append((check.__module__, declared_rule))
        return check

    return declare


def declared(module: str) -> tuple[Rule, ...]:
    """The rules of a module that is imported, in the order in which they are written."""
    return tuple(made for where, made in _DECLARED if where == module)
