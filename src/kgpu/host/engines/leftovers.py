"""Removes kgpu's part if its record is lost: finds it by the mark of its files and the names of its handlers.

The original bytes are not known then. What kgpu may have turned on besides its handlers (CDI) stays on, with a note.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kgpu.host.engines.containerd import CRI_OF, MARK
from kgpu.host.engines.crio import RUNTIME
from kgpu.host.engines.globs import matches
from kgpu.host.engines.json_edit import JsonFile
from kgpu.host.engines.model import NVIDIA_HANDLERS, ChangePlan, Engine, EnginePlace, FileChange, Files
from kgpu.host.engines.template import BEGIN, without_block
from kgpu.host.engines.toml_edit import TomlFile
from kgpu.host.engines.toml_text import Path

NOTE: Final = "kgpu's record of the original is lost: its handlers were taken out, other settings stay as they are"


def leftovers(place: EnginePlace, files: Files, handlers: Sequence[str] = NVIDIA_HANDLERS) -> ChangePlan:
    """The changes that remove kgpu's handlers. Files without any trace of kgpu stay. Raises ConfigError."""
    changes: list[FileChange] = []
    drop_in = files.get(place.drop_in) if place.drop_in else None
    ours = drop_in is not None and drop_in.startswith(MARK.encode())
    for path, edit in ((place.template, _template), (place.config, _EDITS[place.engine])):
        raw = files.get(path) if path else None
        if raw is None or (path == place.config and place.template):
            continue
        after = edit(place, raw, handlers, [name for name, content in files.items() if content is not None])
        if after != raw:
            changes.append(FileChange(path, raw, after, "without kgpu's handlers"))
    if ours:
        changes.append(FileChange(place.drop_in, drop_in, None, "kgpu's own file"))
    return ChangePlan(tuple(changes), (NOTE,) if changes else ())


def _template(place: EnginePlace, raw: bytes, handlers: Sequence[str], there: Sequence[str]) -> bytes:
    del place, handlers, there
    text = raw.decode(errors="surrogateescape")
    return without_block(text).encode(errors="surrogateescape") if BEGIN in text else raw


def _containerd(place: EnginePlace, raw: bytes, handlers: Sequence[str], existing: Sequence[str]) -> bytes:
    file = TomlFile(raw, place.config)
    for cri in CRI_OF.values():
        _without_handlers(file, (*cri, "containerd"), "default_runtime_name", handlers)
    imports = file.get(("imports",), [])
    if place.drop_in and isinstance(imports, list):
        folder = posixpath.dirname(place.drop_in)
        others = [path for path in existing if path != place.drop_in and matches(f"{folder}/*.toml", path)]
        stem = posixpath.basename(place.drop_in).removesuffix(".toml")
        own = {f"{folder}/{stem}*.toml"} | (set() if others else {f"{folder}/*.toml"})
        rest = [item for item in imports if item not in own]
        if not rest and imports:
            file.delete(("imports",))
        elif rest != imports:
            file.set(("imports",), rest)
    return file.encode()


def _crio(place: EnginePlace, raw: bytes, handlers: Sequence[str], there: Sequence[str]) -> bytes:
    del there
    file = TomlFile(raw, place.config)
    _without_handlers(file, RUNTIME, "default_runtime", handlers)
    return file.encode()


def _docker(place: EnginePlace, raw: bytes, handlers: Sequence[str], there: Sequence[str]) -> bytes:
    del there
    file = JsonFile(raw, place.config)
    _without_handlers(file, (), "default-runtime", handlers)
    return file.encode()


def _without_handlers(file: TomlFile | JsonFile, table: Path, default: str, handlers: Sequence[str]) -> None:
    for name in handlers:
        file.delete((*table, "runtimes", name))
    if file.get((*table, default)) in handlers:
        file.delete((*table, default))


_EDITS: Final[Mapping[Engine, Callable[[EnginePlace, bytes, Sequence[str], Sequence[str]], bytes]]] = {
    Engine.CONTAINERD: _containerd,
    Engine.CRIO: _crio,
    Engine.DOCKER: _docker,
}
