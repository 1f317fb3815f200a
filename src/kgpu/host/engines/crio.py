"""CRI-O's crio.conf and crio.conf.d: kgpu's runtime handlers, as a drop-in or in the main file.

CRI-O reads every file of the folder, whatever its suffix, in the order of names. A runtime's table in a later file
replaces that of an earlier one; other settings are merged one by one. CDI is always on.
"""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Mapping
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.host.engines.containerd import DEFAULT_CDI_DIRS, MARK, missing_dirs
from kgpu.host.engines.edited import lookup
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
from kgpu.host.engines.toml_text import Path, table_text

RUNTIME: Final[Path] = ("crio", "runtime")
FOLDER: Final = "/etc/crio/crio.conf.d"
_SHAPE: Final[Rows] = (
    (("runtimes", ANY), dict, "a table of settings"),
    (("default_runtime",), str, "the name of a runtime"),
    (("cdi_spec_dirs",), list, "a list of folders"),
)
CRUN_IS_DEFAULT: Final[Version] = (1, 31, 0)


def configure(place: EnginePlace, wanted: EngineOffer, files: Files) -> ChangePlan:
    """The changes that make CRI-O offer what is wanted, to files without kgpu's part. Raises ConfigError."""
    others = {path: raw for path, raw in files.items() if path != place.drop_in}
    section = effective(place, others)
    ours = additions(place, section, wanted)
    if place.drop_in:
        text = f"{MARK}\n\n{table_text(RUNTIME, ours)}"
        change = FileChange(
            place.drop_in, files.get(place.drop_in), text.encode(), "runtime handlers in a file of kgpu's own"
        )
    else:
        main = TomlFile(files.get(place.config), place.config)
        for key, value in ours.items():
            rows = value.items() if key == "runtimes" else [(None, value)]
            for name, item in rows:
                main.set((*RUNTIME, key, name) if name else (*RUNTIME, key), item)
        change = FileChange(place.config, files.get(place.config), main.encode(), "runtime handlers")
    _check(place, ours, {**files, change.path: change.after})
    return ChangePlan((change,) if change.before != change.after else ())


def state(place: EnginePlace, files: Files) -> EngineState:
    """What CRI-O's files say, drop-ins included. Raises ConfigError."""
    section = effective(place, files)
    tables = lookup(section, ("runtimes",), {})
    return EngineState(
        handlers={
            name: str(table.get("runtime_path", "")) for name, table in tables.items() if isinstance(table, Mapping)
        },
        default=_default(place, section),
        cdi=True,
        cdi_dirs=tuple(map(str, section.get("cdi_spec_dirs", DEFAULT_CDI_DIRS))),
        files=tuple(path for path in load_order(place, files) if files.get(path) is not None),
    )


def load_order(place: EnginePlace, files: Files) -> tuple[str, ...]:
    """The files that CRI-O reads, in its order."""
    folder = posixpath.dirname(place.drop_in) if place.drop_in else FOLDER
    inside = [path for path, raw in files.items() if raw is not None and path.startswith(folder + "/")]
    return (place.config, *sorted(inside, key=lambda path: path.split("/")))


def effective(place: EnginePlace, files: Files) -> dict[str, Any]:
    """The table ``crio.runtime`` after all files are read."""
    section: dict[str, Any] = {}
    for path in load_order(place, files):
        table = TomlFile(files.get(path), path).get(RUNTIME, {})
        if not isinstance(table, Mapping) or not isinstance(table.get("runtimes", {}), Mapping):
            raise ConfigError(f"{path}: crio.runtime isn't a table of settings", "[crio.runtime]", "correct it")
        check_shape(table, _SHAPE, path, RUNTIME)
        runtimes = {**section.get("runtimes", {}), **table.get("runtimes", {})}
        section = {**section, **copy.deepcopy(dict(table)), "runtimes": copy.deepcopy(runtimes)}
    return section


def additions(place: EnginePlace, section: Mapping[str, Any], wanted: EngineOffer) -> dict[str, Any]:
    """What to set in ``crio.runtime``. Raises ConfigError if there is no OCI runtime to point at."""
    ours: dict[str, Any] = {}
    if wanted.default:
        ours["default_runtime"] = wanted.default
    dirs = section.get("cdi_spec_dirs", list(DEFAULT_CDI_DIRS))
    missing = missing_dirs(dirs, wanted.cdi_dirs)
    if wanted.cdi and missing:
        ours["cdi_spec_dirs"] = [*dirs, *missing]
    ours["runtimes"] = {handler.name: _handler(place, section, handler, wanted) for handler in wanted.handlers}
    return ours


def _handler(
    place: EnginePlace, section: Mapping[str, Any], handler: RuntimeHandler, wanted: EngineOffer
) -> dict[str, Any]:
    tables = section.get("runtimes", {})
    own = {row.name for row in wanted.handlers}
    names = [name for name in (_default(place, section), "crun", "runc") if name not in own and name[:6] != "nvidia"]
    name = next((name for name in names if name in tables), names[0] if names else "crun")
    table: dict[str, Any] = copy.deepcopy(dict(tables.get(name, {})))
    # Without a path CRI-O looks for a program with the handler's name, and there is none called nvidia.
    path = handler.binary or table.get("runtime_path") or _binary(place, (name, *names))
    if not path:
        raise ConfigError(
            "no OCI runtime was found that CRI-O's handlers could point at",
            "crun or runc on the host, or a runtime_path in CRI-O's config",
            "install crun, or name the binary with --nvidia-runtime-path",
        )
    table["runtime_path"] = path
    table["runtime_type"] = table.get("runtime_type") or "oci"
    return {**table, **copy.deepcopy(dict(wanted.options))}


def _binary(place: EnginePlace, names: tuple[str, ...]) -> str:
    return next((path for name in names for path in place.oci if posixpath.basename(path) == name), "")


def _default(place: EnginePlace, section: Mapping[str, Any]) -> str:
    usual = "runc" if place.version is not None and place.version < CRUN_IS_DEFAULT else "crun"
    return str(section.get("default_runtime") or usual)


def _check(place: EnginePlace, ours: Mapping[str, Any], after: Files) -> None:
    """Check that no later file overrides what was set. Raises ConfigError."""
    section = effective(place, after)
    for key, value in ours.items():
        rows = (
            [(("runtimes", name), table) for name, table in value.items()] if key == "runtimes" else [((key,), value)]
        )
        for path, item in rows:
            actual = lookup(section, path)
            if dict(actual) != item if isinstance(item, Mapping) else actual != item:
                last = [
                    name
                    for name in load_order(place, after)
                    if TomlFile(after.get(name), name).get((*RUNTIME, *path)) is not None
                ]
                raise ConfigError(
                    f"{last[-1] if last else place.config} replaces crio.runtime.{'.'.join(path)} that kgpu sets",
                    "a file that is read before kgpu's own",
                    f"give it a name that sorts before {posixpath.basename(place.drop_in or place.config)}",
                )
