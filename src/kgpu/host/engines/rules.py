"""The entry point for every engine: what to change, what the config says now, and which files to read for that."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import HostError
from kgpu.host.engines import containerd, crio, docker, template
from kgpu.host.engines.model import MAX_FILE_BYTES, ChangePlan, Engine, EngineOffer, EnginePlace, EngineState, Files
from kgpu.host.engines.paths import MountedPaths
from kgpu.host.engines.toml_edit import TomlFile


@dataclass(frozen=True, slots=True)
class EngineRules:
    """The pure functions of one engine."""

    configure: Callable[[EnginePlace, EngineOffer, Files], ChangePlan]
    state: Callable[[EnginePlace, Files], EngineState]
    load_order: Callable[[EnginePlace, Files], tuple[str, ...]]


def _only_main(place: EnginePlace, files: Files) -> tuple[str, ...]:
    del files
    return (place.config,)


RULES: Final[Mapping[Engine, EngineRules]] = {
    Engine.CONTAINERD: EngineRules(containerd.configure, containerd.state, containerd.load_order),
    Engine.CRIO: EngineRules(crio.configure, crio.state, crio.load_order),
    Engine.DOCKER: EngineRules(docker.configure, docker.state, _only_main),
}


def configure(place: EnginePlace, wanted: EngineOffer, files: Files) -> ChangePlan:
    """The changes that make the engine offer what is wanted, to files without kgpu's part. Raises ConfigError."""
    rule = template.configure if place.template else RULES[place.engine].configure
    return rule(place, wanted, files)


def state(place: EnginePlace, files: Files) -> EngineState:
    """What the engine's files say. Raises ConfigError."""
    return RULES[place.engine].state(place, files)


def gather(place: EnginePlace, paths: MountedPaths) -> dict[str, bytes | None]:
    """Read every file that matters for this engine's config. Raises HostError and ConfigError."""
    files: dict[str, bytes | None] = {}
    for path in (place.config, place.template, place.drop_in):
        if path:
            files[path] = read(paths, path)
    if place.drop_in or place.engine is Engine.CRIO:
        folder = posixpath.dirname(place.drop_in) if place.drop_in else crio.FOLDER
        for path in _below(paths, folder) if place.engine is Engine.CRIO else _toml_in(paths, folder):
            files.setdefault(path, read(paths, path))
    if place.engine is Engine.CONTAINERD:
        _add_imports(place, paths, files)
    return files


def read(paths: MountedPaths, path: str) -> bytes | None:
    """A file's bytes, None if it is missing. Raises HostError."""
    local = paths.local(path)
    try:
        with local.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise HostError(
            f"{path} can't be read: {error.strerror}", "a config file that this process may read", "check what is there"
        ) from error


def _add_imports(place: EnginePlace, paths: MountedPaths, files: dict[str, bytes | None]) -> None:
    """Add imported files, and their imports, until none is new."""
    pending = [place.config]
    seen: set[str] = set()
    while pending:
        path = pending.pop()
        raw = files.setdefault(path, read(paths, path))
        if path in seen or raw is None:
            continue
        seen.add(path)
        if path == place.drop_in and raw.startswith(containerd.MARK.encode()):
            continue  # kgpu's own file imports nothing, and is rewritten if somebody has broken it
        for pattern in containerd.import_patterns(TomlFile(raw, path)):
            imported = paths.glob(pattern) if "*" in pattern else (pattern,)
            pending.extend(imported)


def _toml_in(paths: MountedPaths, folder: str) -> tuple[str, ...]:
    return paths.glob(f"{folder}/*.toml")


def _below(paths: MountedPaths, folder: str) -> list[str]:
    top = paths.local(folder)
    found: list[str] = []
    for base, _, names in os.walk(top):
        inside = os.path.relpath(base, top)
        found.extend(posixpath.normpath(posixpath.join(folder, inside, name)) for name in names)
    return sorted(found)
