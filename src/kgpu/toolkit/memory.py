"""Which container engines kgpu has configured on this node, kept on its disk until each is as it was again.

Leaving happens long after configuring, perhaps by another version and with other settings: what has to be undone, and
how the engine is made to read its config, must not depend on what this process is told. A file that can't be read
counts as empty; the engines' originals are kept elsewhere (``kgpu.toolkit.engine``).
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Final

import msgspec

from kgpu.base.files import write_atomic
from kgpu.base.typed import decode
from kgpu.formats.names import ENGINES_FOLDER
from kgpu.host.engines.model import EnginePlace

FOLDER: Final = ENGINES_FOLDER
"""The engines' originals are in it too. Both layouts of the operator have it at one place on the host."""
ENGINES_FILE: Final = "engines.json"
MAX_BYTES: Final = 1 << 20


class Configured(msgspec.Struct, frozen=True, kw_only=True):
    """One engine; ``restart`` is how it is made to read its config, "" for what suits it.

    ``tries`` and ``due`` (seconds since 1970) are of undoing that failed: it is not tried again before ``due``.
    """

    place: EnginePlace
    restart: str = ""
    tries: int = 0
    due: float = 0.0


class EngineMemory:
    """The list, in ``state_dir``; read anew for each use."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FOLDER / ENGINES_FILE

    def engines(self) -> tuple[Configured, ...]:
        """Every engine that may have something of kgpu's in its config."""
        try:
            raw = self._path.read_bytes()
            return decode(raw, tuple[Configured, ...]) if len(raw) <= MAX_BYTES else ()
        except (OSError, msgspec.MsgspecError, RecursionError):
            return ()

    def put(self, engine: Configured) -> None:
        """Remember the engine in place of what was known of its config. Raises OSError: then write nothing to it."""
        self._save((*(one for one in self.engines() if not _same(one, engine.place)), engine))

    def drop(self, place: EnginePlace) -> None:
        """Forget an engine that is as it was before kgpu; with the last one the stored originals go too."""
        rest = tuple(engine for engine in self.engines() if not _same(engine, place))
        with contextlib.suppress(OSError):  # undoing again what is undone changes nothing
            self._save(rest)
        if not rest:
            for entry in self._entries():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # a mount stays
                self._path.parent.rmdir()

    def _entries(self) -> list[Path]:
        try:
            return sorted(self._path.parent.iterdir())
        except OSError:
            return []

    def _save(self, engines: tuple[Configured, ...]) -> None:
        if engines:
            write_atomic(self._path, msgspec.json.encode(engines), mode=0o600)
        else:
            self._path.unlink(missing_ok=True)


def _same(known: Configured, place: EnginePlace) -> bool:
    return (known.place.engine, known.place.config) == (place.engine, place.config)
