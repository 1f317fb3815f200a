"""Examples of rules: small clusters in YAML, a healthy and a broken one for each rule. The form is in README.md there.

``base`` names files in ``_bases``; objects of one kind, namespace and name are merged, later ones over earlier ones:
maps key by key, lists whole, ``~`` takes a key away. ``unlike`` is broken too, but not by the rule's cause.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import yaml

FOLDER = Path(__file__).parent / "examples"
KNOWN = {"base", "common", "broken", "healthy", "unlike", "rule", "taken", "listed"}


@dataclass(frozen=True)
class Example:
    name: str
    rule: str
    broken: list[dict[str, Any]]
    healthy: list[dict[str, Any]]
    unlike: list[dict[str, Any]] | None
    taken: float
    listed: tuple[str, ...]

    def snapshot(self, objects: list[dict[str, Any]]) -> Snapshot:
        return Snapshot.of(copy.deepcopy(objects), taken=self.taken, listed=self.listed)


def load(path: Path) -> Example:
    said = yaml.load(path.read_text(), source=path.name)
    assert set(said) <= KNOWN, f"{path.name}: {set(said) - KNOWN}"
    below = [one for name in said.get("base", ()) for one in base(name)] + list(said.get("common") or ())
    return Example(
        name=path.stem,
        rule=said.get("rule", path.stem.split("_")[0]),
        broken=merged([*below, *(said.get("broken") or ())]),
        healthy=merged([*below, *(said.get("healthy") or ())]),
        unlike=merged([*below, *said["unlike"]]) if "unlike" in said else None,
        taken=float(said.get("taken", 1767268800)),  # 2026-01-01T12:00:00Z
        listed=tuple(said.get("listed", ())),
    )


@functools.cache
def base(name: str) -> list[dict[str, Any]]:
    return yaml.load((FOLDER / "_bases" / f"{name}.yaml").read_text(), source=name)


def merged(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[Any, dict[str, Any]] = {}
    for position, obj in enumerate(objects):
        metadata = obj.get("metadata") or {}
        # Logs and events are many for one name.
        key: Any = (obj["kind"], metadata.get("namespace"), metadata.get("name"))
        if obj["kind"] in ("PodLog", "Event"):
            key = position
        found[key] = over(found.get(key, {}), obj)
    return list(found.values())


def over(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return copy.deepcopy(above)
    keys = {**below, **above}
    return {
        key: over(below.get(key), above[key]) if key in above else below[key]
        for key in keys
        if not (key in above and above[key] is None)
    }


@functools.cache
def _read() -> tuple[Example, ...]:
    return tuple(load(path) for path in sorted(FOLDER.glob("*.yaml")))


def all_examples() -> list[Example]:
    """Every example; the same objects in every call, which tests copy before they change them."""
    return list(_read())
