"""The engines' own programs: which version one is, and whether it would load a config.

They run in the host's root where that is mounted below a folder. A program that can't be run says nothing: neither
that a config is good nor that it is bad.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kgpu.base.errors import UserError
from kgpu.host.chroot import in_root
from kgpu.host.engines import containerd, crio
from kgpu.host.engines.model import Engine, EnginePlace, Files, Version
from kgpu.host.engines.paths import MountedPaths
from kgpu.host.engines.template import as_rendered
from kgpu.host.engines.toml_edit import TomlFile

SECONDS: Final = 30.0
MAX_OUTPUT: Final = 1 << 20
CANT_RUN: Final = frozenset({126, 127})
_VERSION: Final = re.compile(r"\bv?(\d+)\.(\d+)\.(\d+)")
# What an engine says when it is too old to check a config.
UNKNOWN_FLAG: Final = re.compile(
    r"unknown flag|flag provided but not defined|unknown command|no such command", re.IGNORECASE
)
LOG_LINE: Final = re.compile(r"level=(?:debug|info|warning)\b")


@dataclass(frozen=True, slots=True)
class ProgramAnswer:
    """A program's exit code and what it wrote to standard output and error."""

    code: int
    text: str


async def run_program(paths: MountedPaths, words: Sequence[str], *, seconds: float = SECONDS) -> ProgramAnswer | None:
    """Run a program of the host; None when it can't be run. One that takes too long is killed: exit code 124."""
    root = paths.tree.here
    command = in_root(root, words)
    if shutil.which(command[0]) is None:
        return None
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(seconds):
            raw = await _output(process)
            code = await process.wait()
    except TimeoutError:
        return ProgramAnswer(124, f"no answer in {seconds:.0f} s")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if code in CANT_RUN:
        return None
    return ProgramAnswer(code, raw.decode(errors="replace"))


async def _output(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    parts: list[bytes] = []
    size = 0
    while chunk := await process.stdout.read(1 << 16):
        if size < MAX_OUTPUT:
            parts.append(chunk)
            size += len(chunk)
    return b"".join(parts)


async def with_version(place: EnginePlace, paths: MountedPaths) -> EnginePlace:
    """The place with its engine's version, as the engine's own program tells it; unchanged when it can't be asked."""
    if place.version is not None or not place.binary:
        return place
    answer = await run_program(paths, (place.binary, "--version"))
    version = parse_version(answer.text) if answer and not answer.code else None
    return replace(place, version=version)


def parse_version(text: str) -> Version | None:
    """The first version number in a text such as ``containerd://1.7.30`` or ``crio version 1.31.0``; None if none."""
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


class EngineValidator:
    """Writes a candidate config to a scratch folder and has the engine's program load it.

    ``scratch``: a folder below which this process may write and that the host sees under the same path.
    """

    def __init__(self, paths: MountedPaths, scratch: str) -> None:
        self._paths = paths
        self._scratch = scratch

    async def problem(self, place: EnginePlace, files: Files) -> str:
        if not place.binary:
            return ""
        check = CHECKS[place.engine]
        scratch = self._paths.local(self._scratch)
        try:
            scratch.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="candidate-", dir=scratch))  # only its owner may read it
        except OSError:
            return ""
        try:
            on_host = f"{self._scratch.rstrip('/')}/{folder.name}"
            for name, content in check.layout(place, files, on_host).items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            answer = await run_program(
                self._paths, [place.binary, *(word.replace("DIR", on_host) for word in check.words)]
            )
        except UserError as problem:
            return problem.what
        except OSError:
            return ""
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if answer is None or not answer.code or UNKNOWN_FLAG.search(answer.text):
            return ""
        lines = [line.strip() for line in answer.text.splitlines() if line.strip() and not LOG_LINE.search(line)]
        complaint = " ".join(lines[-3:]) or f"exit code {answer.code}"
        return complaint.replace(on_host, "").strip()


@dataclass(frozen=True, slots=True)
class _Check:
    """How an engine is asked: the files of the scratch folder, and the words after the program's name."""

    layout: Callable[[EnginePlace, Files, str], dict[str, bytes]]
    words: tuple[str, ...]


def _containerd_files(place: EnginePlace, files: Files, folder: str) -> dict[str, bytes]:
    """The main file with its imports, nested ones too, as one flat list in the same order."""
    if place.template:
        files = {**files, place.config: as_rendered(place, files)}
    order = [path for path in containerd.load_order(place, files) if files.get(path) is not None]
    result: dict[str, bytes] = {}
    imports: list[str] = []
    for number, path in enumerate(order):
        file = TomlFile(files[path], path)
        if path == place.config:
            continue
        file.delete(("imports",))
        name = f"{number:03}.toml"
        result[name] = file.encode()
        imports.append(f"{folder}/{name}")
    main = TomlFile(files.get(place.config), place.config)
    if imports:
        main.set(("imports",), imports)
    else:
        main.delete(("imports",))
    return {"main.toml": main.encode(), **result}


def _crio_files(place: EnginePlace, files: Files, folder: str) -> dict[str, bytes]:
    del folder
    result = {"main.toml": files.get(place.config) or b"", "conf.d/.keep": b""}
    for number, path in enumerate(crio.load_order(place, files)):
        content = files.get(path)
        if path != place.config and content is not None:
            result[f"conf.d/{number:03}-{os.path.basename(path)}"] = content
    return result


def _docker_files(place: EnginePlace, files: Files, folder: str) -> dict[str, bytes]:
    del folder
    return {"daemon.json": files.get(place.config) or b"{}"}


CHECKS: Final[Mapping[Engine, _Check]] = {
    Engine.CONTAINERD: _Check(_containerd_files, ("--config", "DIR/main.toml", "config", "dump")),
    Engine.CRIO: _Check(_crio_files, ("--config", "DIR/main.toml", "--config-dir", "DIR/conf.d", "config")),
    Engine.DOCKER: _Check(_docker_files, ("--validate", "--config-file", "DIR/daemon.json")),
}
