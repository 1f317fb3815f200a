"""Docker's daemon.json: kgpu's runtimes and CDI; everything else stays, including other features."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.host.engines.containerd import DEFAULT_CDI_DIRS, missing_dirs
from kgpu.host.engines.json_edit import JsonFile
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

OWN_RUNTIME: Final = "runc"
AT_START: Final = "Docker reads features.cdi only when it starts, so a Docker that runs since before may differ"
CDI_DEFAULT: Final[Version] = (28, 3, 0)
"""From this version on CDI is on unless ``features`` say otherwise."""
TABLES: Final = ("runtimes", "features")
_SHAPE: Final[Rows] = (
    (("runtimes", ANY), dict, "an object"),
    (("default-runtime",), str, "the name of a runtime"),
    (("cdi-spec-dirs",), list, "a list of folders"),
)


def configure(place: EnginePlace, wanted: EngineOffer, files: Files) -> ChangePlan:
    """The changes that make Docker offer what is wanted, to a file without kgpu's part. Raises ConfigError."""
    if place.drop_in:
        raise ConfigError(
            f"Docker reads no drop-in such as {place.drop_in}",
            "its one file, daemon.json",
            "leave out --drop-in-config",
        )
    file = _opened(place, files)
    donor = _donor(file, wanted)
    for handler in wanted.handlers:
        file.set(("runtimes", handler.name), _runtime(handler, donor, wanted))
    if wanted.default:
        file.set(("default-runtime",), wanted.default)
    if wanted.cdi:
        file.set(("features", "cdi"), value=True)
        dirs = file.get(("cdi-spec-dirs",), list(DEFAULT_CDI_DIRS))
        missing = missing_dirs(dirs, wanted.cdi_dirs)
        if missing:
            file.set(("cdi-spec-dirs",), [*dirs, *missing])
    change = FileChange(place.config, files.get(place.config), file.encode(), "runtimes and CDI")
    return ChangePlan((change,) if change.before != change.after else ())


def state(place: EnginePlace, files: Files) -> EngineState:
    """What daemon.json says. Raises ConfigError."""
    file = _opened(place, files)
    runtimes = file.get(("runtimes",), {})
    return EngineState(
        handlers={name: str(row.get("path", "")) for name, row in runtimes.items() if isinstance(row, Mapping)},
        default=str(file.get(("default-runtime",), OWN_RUNTIME)),
        cdi=file.get(("features", "cdi"), _on_by_default(place)) is True,
        cdi_dirs=tuple(map(str, file.get(("cdi-spec-dirs",), DEFAULT_CDI_DIRS))),
        files=(place.config,) if files.get(place.config) is not None else (),
        notes=(AT_START,) if file.get(("features", "cdi")) is not None else (),
    )


def _on_by_default(place: EnginePlace) -> bool:
    return place.version is not None and place.version >= CDI_DEFAULT


def _opened(place: EnginePlace, files: Files) -> JsonFile:
    file = JsonFile(files.get(place.config), place.config)
    for key in TABLES:
        if not isinstance(file.get((key,), {}), Mapping):
            raise ConfigError(f"{place.config}: {key} isn't an object", f'"{key}": {{...}}', "correct it")
    check_shape(file.data, _SHAPE, place.config)
    return file


def _donor(file: JsonFile, wanted: EngineOffer) -> dict[str, Any]:
    """The entry of the default runtime; one for Docker's own runc, which has none in the file."""
    name = file.get(("default-runtime",), OWN_RUNTIME)
    own = {handler.name for handler in wanted.handlers}
    found = file.get(("runtimes", str(name)))
    usable = isinstance(found, Mapping) and name not in own and not str(name).startswith("nvidia")
    return dict(found) if usable else {"path": OWN_RUNTIME}


def _runtime(handler: RuntimeHandler, donor: Mapping[str, Any], wanted: EngineOffer) -> dict[str, Any]:
    row: dict[str, Any] = {"path": handler.binary} if handler.binary else copy.deepcopy(dict(donor))
    if "path" in row:
        row.setdefault("args", [])
    return {**row, **copy.deepcopy(dict(wanted.options))}
