"""containerd's config.toml, versions 1, 2 and 3: the drop-in or the edits that add kgpu's runtime handlers.

These facts about containerd matter: before 2.1 a drop-in's plugin table replaces the whole table; since 2.1 tables are
merged key by key and lists are replaced. containerd 2 ignores the CRI settings of a file without ``version`` (or with
version 1), and the highest version among the files decides which plugin names count. So a drop-in has the main file's
version, and before 2.1 it has a copy of the configured CRI table, never of defaults.
"""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.formats.names import CDI_DIR, CDI_STATIC_DIR
from kgpu.host.engines.edited import lookup, same
from kgpu.host.engines.globs import matches
from kgpu.host.engines.model import (
    ChangePlan,
    EngineOffer,
    EnginePlace,
    EngineState,
    FileChange,
    Files,
    RuntimeHandler,
    Version,
)
from kgpu.host.engines.shapes import ANY, Rows, check_shape
from kgpu.host.engines.toml_edit import TomlFile
from kgpu.host.engines.toml_text import Path, key_text, table_text

MARK: Final = "# Written by kgpu and taken away with it; what is changed here is lost."
DEEP_MERGE: Final[Version] = (2, 1, 0)
VERSION_3: Final[Version] = (2, 0, 0)
CDI_SINCE: Final[Version] = (1, 7, 0)
CRI_OF: Final[Mapping[int, Path]] = {
    1: ("plugins", "cri"),
    2: ("plugins", "io.containerd.grpc.v1.cri"),
    3: ("plugins", "io.containerd.cri.v1.runtime"),
}
CRI_NAMES: Final = frozenset({"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"})
# Options that name the OCI runtime: one that another tool has left would override the copied default.
BINARY_OPTIONS: Final = ("BinaryName", "Runtime")
_RUNTIMES: Final = ("containerd", "runtimes")
_SHAPE: Final[Rows] = (
    (("containerd",), dict, "a table"),
    (_RUNTIMES, dict, "a table of runtimes"),
    ((*_RUNTIMES, ANY), dict, "a table of settings"),
    ((*_RUNTIMES, ANY, "options"), dict, "a table of options"),
    ((*_RUNTIMES, ANY, "container_annotations"), list, "a list of patterns"),
    (("containerd", "default_runtime_name"), str, "the name of a runtime"),
    (("cdi_spec_dirs",), list, "a list of folders"),
)
DEFAULT_CDI_DIRS: Final = (CDI_STATIC_DIR, CDI_DIR)


@dataclass(frozen=True, slots=True)
class ConfigLayout:
    """The config version that counts, the path of the CRI plugin's table, and whether CDI is on by default."""

    version: int
    cri: Path
    cdi_default: bool


def configure(place: EnginePlace, wanted: EngineOffer, files: Files) -> ChangePlan:
    """The changes that make containerd offer what is wanted, to files without kgpu's part. Raises ConfigError."""
    main = TomlFile(files.get(place.config), place.config)
    blank = not main.data
    layout = layout_of(place, main)
    # A containerd that reads version 1 can't read drop-ins of another version.
    in_place = not place.drop_in or layout.version == 1
    others = {path: raw for path, raw in files.items() if path != place.drop_in}
    section = effective(place, others, layout)
    ours = additions(section, layout, wanted)
    changes: list[FileChange] = []
    if in_place:
        for path, value in _leaves(ours, section):
            main.set((*layout.cri, *path), value)
        why = "runtime handlers" + (" and CDI" if wanted.cdi else "")
    else:
        text = _drop_in(place, layout, section, ours)
        changes.append(_change(place.drop_in, files, text.encode(), "runtime handlers and CDI in a file of kgpu's own"))
        _import(place, main, others)
        why = f"reads {place.drop_in}"
    if blank and main.data:
        main.set(("version",), layout.version)
    if main.encode() != (files.get(place.config) or b""):
        changes.append(_change(place.config, files, main.encode(), why))
    after = {**files, **{change.path: change.after for change in changes}}
    _check(place, layout, ours, after)
    return ChangePlan(
        tuple(change for change in changes if change.before != change.after), _notes(place, main, layout, wanted)
    )


def state(place: EnginePlace, files: Files) -> EngineState:
    """What containerd's files say, drop-ins included. Raises ConfigError."""
    main = TomlFile(files.get(place.config), place.config)
    layout = layout_of(place, main)
    order = load_order(place, files)
    section = effective(_as_written_for(place, files, layout), files, layout)
    tables = lookup(section, ("containerd", "runtimes"), {})
    return EngineState(
        handlers={
            name: str(lookup(table, ("options", "BinaryName"), "") or "")
            for name, table in tables.items()
            if isinstance(table, Mapping)
        },
        default=str(lookup(section, ("containerd", "default_runtime_name"), "runc")),
        cdi=bool(section.get("enable_cdi", layout.cdi_default)),
        cdi_dirs=tuple(map(str, section.get("cdi_spec_dirs", DEFAULT_CDI_DIRS))),
        files=tuple(path for path in order if files.get(path) is not None),
        notes=_notes(place, main, layout, EngineOffer(cdi=False)),
    )


def _as_written_for(place: EnginePlace, files: Files, layout: ConfigLayout) -> EnginePlace:
    """A containerd of unknown version merges tables if kgpu's drop-in relies on that: the version was known then."""
    raw = files.get(place.drop_in) if place.drop_in else None
    if place.version is not None or raw is None or not raw.startswith(MARK.encode()):
        return place
    without = effective(place, {**files, place.drop_in: None}, layout)
    whole = _covers(TomlFile(raw, place.drop_in).get(layout.cri), without)
    return place if whole else replace(place, merges=True)


def layout_of(place: EnginePlace, main: TomlFile) -> ConfigLayout:
    """The config version that counts for this file and containerd. Raises ConfigError if it isn't a number."""
    number = main.get(("version",))
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
        raise ConfigError(f"{main.source}: version is {number!r}", "version = 2 or version = 3", "correct it")
    modern = place.version is not None and place.version >= VERSION_3
    if not main.data:
        version = 3 if modern else 2
    elif not number or number == 1:
        version = 3 if modern else 1
    else:
        version = number
    return ConfigLayout(version, CRI_OF[min(version, 3)], cdi_default=modern or version >= 3)


def load_order(place: EnginePlace, files: Files) -> tuple[str, ...]:
    """The files that containerd reads, in its order: the main file, its imports, then their imports."""
    order: list[str] = []
    pending = [place.config]
    while pending:
        path = pending.pop(0)
        if path in order:
            continue
        order.append(path)
        pending.extend(_imported_by(TomlFile(files.get(path), path), files))
    if place.imported and place.drop_in and place.drop_in not in order:
        order.append(place.drop_in)
    return tuple(order)


def import_patterns(main: TomlFile) -> tuple[str, ...]:
    """The file's imports as absolute paths or patterns. Raises ConfigError if they aren't a list of strings."""
    given = main.get(("imports",), [])
    if not isinstance(given, list) or not all(isinstance(item, str) for item in given):
        raise ConfigError(
            f"{main.source}: imports is {given!r}", 'a list such as ["/etc/containerd/conf.d/*.toml"]', "correct it"
        )
    folder = posixpath.dirname(main.source)
    return tuple(posixpath.normpath(posixpath.join(folder, item)) for item in given)


def effective(place: EnginePlace, files: Files, layout: ConfigLayout) -> dict[str, Any]:
    """The CRI plugin's table after all files are read, as this containerd merges them."""
    deep = place.merges or (place.version is not None and place.version >= DEEP_MERGE)
    section: dict[str, Any] = {}
    for path in load_order(place, files):
        found = said_by(TomlFile(files.get(path), path), layout)
        if found is None:
            continue
        section = _merged(section, found) if deep else copy.deepcopy(dict(found))
    return section


def said_by(file: TomlFile, layout: ConfigLayout) -> Mapping[str, Any] | None:
    """The CRI plugin's table of one file, None if it has none. Raises ConfigError for settings of a wrong type."""
    found = file.get(layout.cri)
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise ConfigError(f"{file.source}: {key_text(layout.cri)} isn't a table", "a table of settings", "correct it")
    check_shape(found, _SHAPE, file.source, layout.cri)
    return found


def additions(section: Mapping[str, Any], layout: ConfigLayout, wanted: EngineOffer) -> dict[str, Any]:
    """What to set in the CRI plugin's table to get what is wanted; nested like the table itself."""
    ours: dict[str, Any] = {}
    if wanted.cdi and not section.get("enable_cdi", layout.cdi_default and layout.version > 2):
        ours["enable_cdi"] = True
    dirs = section.get("cdi_spec_dirs", list(DEFAULT_CDI_DIRS))
    missing = missing_dirs(dirs, wanted.cdi_dirs)
    if wanted.cdi and missing:
        ours["cdi_spec_dirs"] = [*dirs, *missing]
    tables = lookup(section, ("containerd", "runtimes"), {})
    engine: dict[str, Any] = {}
    if wanted.default:
        engine["default_runtime_name"] = wanted.default
    engine["runtimes"] = {
        handler.name: _handler(section, handler, wanted, layout, tables.get(handler.name))
        for handler in wanted.handlers
    }
    ours["containerd"] = engine
    return ours


def missing_dirs(given: Any, wanted: Sequence[str]) -> list[str]:
    """The folders that a list lacks; /var/run counts as /run. Raises ConfigError if it isn't a list of strings."""
    if not isinstance(given, list | tuple) or not all(isinstance(item, str) for item in given):
        raise ConfigError(f"the folders of CDI specs are {given!r}", 'a list such as ["/etc/cdi"]', "correct the list")
    return [folder for folder in wanted if _run(folder) not in map(_run, given)]


def donor(section: Mapping[str, Any], own: frozenset[str]) -> Mapping[str, Any]:
    """The table of the runtime whose options the handlers copy: the default one, else runc, else crun, else none."""
    tables = lookup(section, ("containerd", "runtimes"), {})
    default = lookup(section, ("containerd", "default_runtime_name"), "runc")
    for name in (default, "runc", "crun"):
        table = tables.get(name)
        if isinstance(table, Mapping) and name not in own and not str(name).startswith("nvidia"):
            return table
    return {}


def _handler(
    section: Mapping[str, Any], handler: RuntimeHandler, wanted: EngineOffer, layout: ConfigLayout, before: Any
) -> dict[str, Any]:
    table: dict[str, Any] = copy.deepcopy(dict(donor(section, frozenset(row.name for row in wanted.handlers))))
    table["runtime_type"] = table.get("runtime_type") or wanted.runtime_type
    options = table.get("options")
    if handler.binary:
        names = BINARY_OPTIONS if layout.version == 1 else BINARY_OPTIONS[:1]
        table["options"] = {**(options if isinstance(options, dict) else {}), **dict.fromkeys(names, handler.binary)}
    if wanted.annotations:
        patterns = [f"{prefix.rstrip('*')}*" for prefix in wanted.annotations]
        table["container_annotations"] = list(dict.fromkeys([*patterns, *table.get("container_annotations", [])]))
    for name in BINARY_OPTIONS:
        if lookup(before, ("options", name)) and not lookup(table, ("options", name)):
            table.setdefault("options", {})[name] = ""
    return _merged(table, wanted.options)


def _drop_in(place: EnginePlace, layout: ConfigLayout, section: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    deep = place.merges or (place.version is not None and place.version >= DEEP_MERGE)
    table = ours if deep else _merged(dict(section), ours)
    return f"{MARK}\nversion = {layout.version}\n\n{table_text(layout.cri, table)}"


def _import(place: EnginePlace, main: TomlFile, others: Files) -> None:
    """Make the main file import the drop-in, and no other file that it did not import before."""
    patterns = import_patterns(main)
    # For containerd a pattern without a star is a path.
    if place.imported or any(
        matches(pattern, place.drop_in) if "*" in pattern else pattern == place.drop_in for pattern in patterns
    ):
        return
    folder = posixpath.dirname(place.drop_in)
    stem = posixpath.basename(place.drop_in).removesuffix(".toml")
    strangers = [path for path, raw in others.items() if raw is not None and matches(f"{folder}/*.toml", path)]
    # Even for a single file this is a pattern: containerd would not start with the path of a missing file.
    pattern = f"{folder}/{stem}*.toml" if strangers else f"{folder}/*.toml"
    main.set(("imports",), [*main.get(("imports",), []), pattern])


def _check(place: EnginePlace, layout: ConfigLayout, ours: Mapping[str, Any], after: Files) -> None:
    """Check that the result, as containerd will read it, has everything that was to be set. Raises ConfigError."""
    section = effective(place, after, layout)
    for path, value in _leaves(ours, {}):
        if not _covers(lookup(section, path), value):
            last = [name for name in load_order(place, after) if TomlFile(after.get(name), name).get(layout.cri)][-1]
            raise ConfigError(
                f"{last} replaces {key_text((*layout.cri, *path))} that kgpu sets",
                "a drop-in that is read before kgpu's own, or one that leaves the CRI plugin's table alone",
                f"give {last} a name that sorts before {posixpath.basename(place.drop_in or place.config)}, "
                'or have the main file edited with --drop-in-config ""',
            )


def _leaves(ours: Mapping[str, Any], section: Mapping[str, Any]) -> list[tuple[Path, Any]]:
    """The settings one by one; a runtime's table is one setting."""
    rows: list[tuple[Path, Any]] = []
    for key, value in ours.items():
        if key != "containerd":
            rows.append(((key,), value))
            continue
        rows.extend((("containerd", name), item) for name, item in value.items() if name != "runtimes")
        rows.extend((("containerd", "runtimes", name), table) for name, table in value["runtimes"].items())
    return [
        (path, _merged(dict(lookup(section, path, {})), value) if isinstance(value, Mapping) else value)
        for path, value in rows
    ]


def _imported_by(file: TomlFile, files: Files) -> list[str]:
    found: list[str] = []
    for pattern in import_patterns(file):
        if "*" in pattern:
            found.extend(sorted(path for path, raw in files.items() if raw is not None and matches(pattern, path)))
        else:
            found.append(pattern)
    return found


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """A merged copy; the second wins, and tables are merged key by key."""
    result = copy.deepcopy(below)
    for key, value in above.items():
        inner = result.get(key)
        both = isinstance(inner, dict) and isinstance(value, Mapping)
        result[key] = _merged(inner, value) if both else copy.deepcopy(value)  # type: ignore[arg-type]
    return result


def _covers(actual: Any, wanted: Any) -> bool:
    """Whether ``actual`` has everything that is wanted; it may have more."""
    if isinstance(wanted, Mapping):
        return isinstance(actual, Mapping) and all(_covers(actual.get(key), item) for key, item in wanted.items())
    return same(actual, wanted)


def _run(folder: str) -> str:
    plain = posixpath.normpath(folder)
    return plain.removeprefix("/var") if plain.startswith("/var/run/") else plain


def _change(path: str, files: Files, after: bytes, why: str) -> FileChange:
    return FileChange(path, files.get(path), after, why)


def _notes(place: EnginePlace, main: TomlFile, layout: ConfigLayout, wanted: EngineOffer) -> tuple[str, ...]:
    notes: list[str] = []
    disabled = main.get(("disabled_plugins",), [])
    if isinstance(disabled, list) and CRI_NAMES & {str(name) for name in disabled}:
        notes.append(f"{main.source} disables the CRI plugin, so the kubelet can't use this containerd")
    if wanted.cdi and place.version is not None and place.version < CDI_SINCE:
        number = ".".join(map(str, place.version))
        notes.append(f"containerd {number} has no CDI; version 1.7 or later gives containers their devices")
    if layout.version == 1 and place.drop_in:
        unknown = (
            "" if place.version else "; if this is containerd 2, tell its version, because it ignores such settings"
        )
        notes.append(f"{main.source} has config version 1, which has no drop-ins: it is edited itself{unknown}")
    return tuple(notes)
