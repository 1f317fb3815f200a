"""Files that are either the old content or the new, never something in between.

``write_atomic`` writes beside the target and renames over it, so that a reader or a crash at any moment sees one whole
version. The data is flushed to disk before the rename, because a rename that survives a power cut without its data
would leave an empty file. What means nothing after a power cut can do without: that takes most of the time.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def discard_unfinished(path: Path | str) -> None:
    """Remove what writers of ``path`` have left beside it that were killed while they wrote. Raises OSError."""
    target = Path(path)
    for name in os.listdir(target.parent):
        if name.startswith(_unfinished(target)):
            (target.parent / name).unlink(missing_ok=True)


def _unfinished(target: Path) -> str:
    """How the names of files begin that are to become ``target``."""
    return f".{target.name}."


def write_atomic(path: Path | str, data: bytes | str, *, mode: int = 0o644, flush: bool = True) -> None:
    """Replace ``path`` by ``data`` atomically; missing parent folders are made.

    ``mode`` is the new file's permission bits, not narrowed by the umask. Without ``flush`` it holds against a kill at
    any moment, not against a power cut, which may leave an empty file. Raises OSError as the system gives it; the old
    file is then untouched and no temporary file remains.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    raw = data.encode() if isinstance(data, str) else data
    fd, temporary = tempfile.mkstemp(prefix=_unfinished(target), dir=target.parent)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(raw)
            out.flush()
            os.fchmod(out.fileno(), mode)
            if flush:
                os.fsync(out.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
