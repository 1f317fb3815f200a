"""Reading custom resources that may be from anywhere: another version's, a user's draft, a hostile one. Never raises.

What the structs don't know and what has no effect becomes a warning with its path; a value of the wrong type, or out of
its bounds, makes the whole spec unreadable (``problem``), because half of a policy is another policy. Only as deep as
the structs go is anything looked at, and messages show little of what they are about.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec

from kgpu.base.advice import Advice
from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.base.typed import convert
from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.formats.crd.common import Image
from kgpu.formats.crd.deviceconfig import DeviceConfigSpec
from kgpu.formats.crd.fields import SchemaField, Type, rows
from kgpu.formats.crd.nvidiadriver import NVIDIADriverSpec
from kgpu.formats.crd.usagepolicy import GPUUsageOverrideSpec, GPUUsagePolicySpec

S = TypeVar("S", bound=msgspec.Struct)

MOST: Final = 20  # warnings, and as many problems
SHOWN: Final = 60  # characters of a foreign value in a message
NUMBERS: Final = {"int32": 31, "int64": 63}
SWITCH: Final = "enabled"
IMAGE: Final = frozenset(row.name for row in rows(Image))
WORDS: Final = {bool: "true or false", int: "a whole number", str: "a text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded(Generic[S]):
    """``spec`` has the defaults when there is a ``problem``: what can't be used, with the path.
    ``unbuilt`` are the paths of fields that ask for what kgpu can't do, ``of_unbuilt`` the warnings about them.
    """

    spec: S
    warnings: tuple[str, ...] = ()
    unbuilt: tuple[str, ...] = ()
    of_unbuilt: tuple[str, ...] = ()
    problem: Advice | None = None


def clusterpolicy(obj: Any) -> Decoded[ClusterPolicySpec]:
    """Read a ClusterPolicy object."""
    return _decode(obj, ClusterPolicySpec, "ClusterPolicy")


def nvidiadriver(obj: Any) -> Decoded[NVIDIADriverSpec]:
    """Read an NVIDIADriver object."""
    return _decode(obj, NVIDIADriverSpec, "NVIDIADriver")


def deviceconfig(obj: Any) -> Decoded[DeviceConfigSpec]:
    """Read a DeviceConfig object of AMD's."""
    return _decode(obj, DeviceConfigSpec, "DeviceConfig")


def usage_policy(obj: Any) -> Decoded[GPUUsagePolicySpec]:
    """Read a GPUUsagePolicy object."""
    return _decode(obj, GPUUsagePolicySpec, "GPUUsagePolicy")


def usage_override(obj: Any) -> Decoded[GPUUsageOverrideSpec]:
    """Read a GPUUsageOverride object."""
    return _decode(obj, GPUUsageOverrideSpec, "GPUUsageOverride")


@dataclass(slots=True)
class WrongValue:
    """One value that can't be used: where, what it is, what it should be."""

    path: str
    what: str
    expected: str


def fields_of(
    value: Any, struct: type[msgspec.Struct], path: str
) -> tuple[dict[str, Any], list[WrongValue], list[str]]:
    """A mapping's fields as plain data that fits the struct unless there are wrong values; these; and warnings."""
    notes = _Notes()
    known = _mapping(path, value, struct, notes)
    return known, notes.wrong, notes.warnings


@dataclass(frozen=True, slots=True)
class _Unbuilt:
    """A part of the spec that is not implemented: what there is instead, whether it is usually switched on, and whether
    kgpu is never going to do it.
    """

    instead: str
    on: bool = False
    for_good: bool = False

    def inside(self, kind: Type, value: Any) -> _Unbuilt | None:
        """The same for a section within; None for one that is switched off, which asks for nothing."""
        switch = any(row.name == SWITCH for row in rows(kind.struct)) if kind.struct else False
        enabled = value.get(SWITCH) if isinstance(value, Mapping) else None
        return self if not switch or (self.on if enabled is None else enabled) else None

    def requested(self, row: SchemaField, value: Any) -> bool:
        """Whether a field requests something: its value is neither the default, nor usual, nor only an image."""
        usual = (row.default, *row.usual, *((True,) if row.name == SWITCH and self.on else ()))
        # A zero is a number like others, unless none is the default ("no limit" in place of 1).
        number = type(value) is int and row.default is not None
        return (bool(value) or number) and value not in usual and row.name not in IMAGE


@dataclass(slots=True)
class _Notes:
    """Problems and warnings met while decoding; only the first ``MOST`` of each are kept, all are counted."""

    warnings: list[str] = field(default_factory=list)
    warned: int = 0
    unbuilt: dict[str, str] = field(default_factory=dict)
    wrong: list[WrongValue] = field(default_factory=list)

    def warn(self, text: str) -> None:
        self.warned += 1
        if self.warned <= MOST:
            self.warnings.append(text)

    def not_built(self, path: str, part: _Unbuilt) -> None:
        warning = f"{path} changes nothing{'' if part.for_good else ' yet'}: {part.instead}"
        self.warn(warning)
        if len(self.unbuilt) < MOST:
            self.unbuilt[path] = warning

    def refuse(self, path: str, what: str, expected: str) -> None:
        if len(self.wrong) < MOST:
            self.wrong.append(WrongValue(path, what, expected))


def _decode(obj: Any, struct: type[S], kind: str) -> Decoded[S]:
    notes = _Notes()
    known = obj if isinstance(obj, Mapping) else {}
    if known is not obj:
        notes.refuse("it", f"is {_shown(obj)}", "a mapping")
    spec = known.get("spec")
    value = {} if spec is None else _mapping("spec", spec, struct, notes)
    decoded = _made(value, struct, notes)
    warnings = list(notes.warnings)
    if notes.warned > MOST:
        warnings.append(f"{notes.warned - MOST} more fields without effect")
    if decoded is None:
        metadata = known.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        problem = _problem(kind, name, notes.wrong)
        return Decoded(spec=struct(), warnings=tuple(warnings), problem=problem)
    return Decoded(
        spec=decoded, warnings=tuple(warnings), unbuilt=tuple(notes.unbuilt), of_unbuilt=tuple(notes.unbuilt.values())
    )


def _made(value: Any, struct: type[S], notes: _Notes) -> S | None:
    if notes.wrong:
        return None
    try:
        return convert(value, struct)
    except (msgspec.ValidationError, RecursionError) as error:  # pragma: no cover - what was checked can be made
        notes.refuse("spec", f"can't be read ({error})", "what the schema allows")
        return None


def _problem(kind: str, name: Any, wrong: list[WrongValue]) -> Advice:
    title = f"{kind} {_cut(name)}" if isinstance(name, str) and name else kind
    first = wrong[0]
    more = f", and {len(wrong) - 1} more such" if len(wrong) > 1 else ""
    remedy = f"correct it (`kubectl edit {kind.lower()}{' ' + _cut(name) if isinstance(name, str) else ''}`)"
    if first.path.startswith("spec"):
        place = first.path.partition("[")[0]
        remedy += f"; `kubectl explain {kind.lower()}.{place}` says what may be there"
    error = ConfigError(f"{title} can't be used: {first.path} {first.what}{more}", first.expected, remedy)
    return Advice.from_error(error, reason="Unreadable")


def _mapping(
    path: str, value: Any, struct: type[msgspec.Struct], notes: _Notes, unbuilt: _Unbuilt | None = None
) -> dict[str, Any]:
    """The fields that the struct knows, each in its type; nulls count as absent."""
    if not isinstance(value, Mapping):
        notes.refuse(path, f"is {_shown(value)}", "a mapping")
        return {}
    known = {row.name: row for row in rows(struct)}
    result = {}
    for key, item in value.items():
        row = known.get(key) if isinstance(key, str) else None
        if row is None:
            _unknown(path, key, known, notes)
        elif item is not None:
            field_path = f"{path}.{key}"
            within = _Unbuilt(row.unbuilt, on=bool(row.usual), for_good=row.for_good) if row.unbuilt else unbuilt
            if row.type.struct:
                result[key] = _mapping(
                    field_path, item, row.type.struct, notes, within and within.inside(row.type, item)
                )
            else:
                result[key] = _value(field_path, item, row.type, notes)
                if within is not None and within.requested(row, result[key]):
                    notes.not_built(field_path, within)
            if (row.ignored or row.deprecated) and _says_something(result[key], row.type):
                word = "has no effect" if row.ignored else "is deprecated"
                notes.warn(f"{field_path} {word}: {row.ignored or row.deprecated}")
    for row in known.values():
        if row.required and row.name not in result:
            notes.refuse(f"{path}.{row.name}", "is missing", row.type.doc.rstrip(".") or "a value")
    return result


def _unknown(path: str, key: Any, known: Mapping[str, SchemaField], notes: _Notes) -> None:
    # Looking for what was meant takes time that grows with both words; past the limit nobody reads it anyway.
    hint = did_you_mean(key, known) if isinstance(key, str) and len(key) <= SHOWN and notes.warned < MOST else ""
    name = key if isinstance(key, str) and re.fullmatch(r"[\w-]{1,60}", key, re.ASCII) else f"[{_shown(key)}]"
    notes.warn(f"{path}.{name} is not a field of this kind and has no effect{'; ' + hint if hint else ''}")


def _value(path: str, value: Any, kind: Type, notes: _Notes) -> Any:
    if kind.struct:
        return _mapping(path, value, kind.struct, notes)
    if kind.items:
        if not isinstance(value, list | tuple):
            notes.refuse(path, f"is {_shown(value)}", "a list")
            return []
        return [_value(f"{path}[{number}]", item, kind.items, notes) for number, item in enumerate(value)]
    if kind.values:
        return _dictionary(path, value, kind.values, notes)
    return _scalar(path, value, kind, notes)


def _dictionary(path: str, value: Any, kind: Type, notes: _Notes) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        notes.refuse(path, f"is {_shown(value)}", "a mapping with texts as keys")
        return {}
    return {key: _value(f'{path}["{_cut(key)}"]', item, kind, notes) for key, item in value.items()}


def _scalar(path: str, value: Any, kind: Type, notes: _Notes) -> Any:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)  # JSON does not tell 2.0 from 2
    wanted = {int, str} if kind.int_or_string else {kind.scalar}
    if type(value) not in wanted:
        expected = " or ".join(WORDS[item] for item in WORDS if item in wanted)
        notes.refuse(path, f"is {_shown(value)}", expected)
    elif kind.enum and value not in kind.enum:
        hint = did_you_mean(value, kind.enum) if len(value) <= SHOWN else ""
        notes.refuse(
            path, f"is {_shown(value)}", " or ".join(item or '""' for item in kind.enum) + (hint and f"; {hint}")
        )
    elif "pattern" in kind.checks and isinstance(value, str) and not re.search(kind.checks["pattern"], value):
        notes.refuse(path, f"is {_shown(value)}", f"a text that matches {kind.checks['pattern']}")
    elif type(value) is int:
        least = kind.checks.get("minimum", -math.inf)
        bits = NUMBERS.get(kind.checks.get("format", ""), 63)
        if not (value >= least and -(2**bits) <= value < 2**bits):
            notes.refuse(path, f"is {_shown(value)}", f"a number from {max(least, -(2**bits))} to {2**bits - 1}")
    return value


def _says_something(value: Any, kind: Type) -> bool:
    """Whether there is anything to warn about: a section that is switched off, or empty, does not."""
    if kind.struct and any(row.name == "enabled" for row in rows(kind.struct)):
        return isinstance(value, dict) and bool(value.get("enabled"))
    return any(value.values()) if isinstance(value, dict) else bool(value)


def _cut(text: str) -> str:
    """Little of a foreign text, with nothing in it that a terminal or a log could trip over."""
    plain = json.dumps(text[: SHOWN + 1])[1:-1].replace('\\"', '"')
    return plain if len(plain) <= SHOWN else plain[:SHOWN] + "..."


def _shown(value: Any) -> str:
    """A foreign value for a message; of collections, only what they are."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return f'"{_cut(value)}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value) if -(10**20) < value < 10**20 else "a number of many digits"
    if isinstance(value, float):
        return str(value)
    return (
        "a mapping"
        if isinstance(value, Mapping)
        else "a list"
        if isinstance(value, list | tuple)
        else "of no JSON type"
    )
