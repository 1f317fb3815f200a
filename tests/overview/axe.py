"""axe-core, which finds what keeps people from using a page: from the npm registry, one version with its checksum."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest

from tests.overview.chromium import Chromium

PACKAGE: Final = "axe-core@4.14.1"
SHA256: Final = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
"""Of ``axe.min.js``; the file's place in the cache has it in its name."""
CACHE: Final = Path.home() / ".cache" / "kgpu" / "tests" / f"axe-{SHA256[:16]}.js"
_FOUND: Final = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => JSON.stringify(found.violations.map((one) =>
  [one.id, one.nodes.slice(0, 3).map((node) => `${node.html.slice(0, 300)} ${node.failureSummary}`)])))
"""


def script() -> str:
    """The text of axe; skips with the reason where the registry can't be reached and it isn't in the cache."""
    if not CACHE.is_file():
        _fetch()
    text = CACHE.read_bytes()
    assert hashlib.sha256(text).hexdigest() == SHA256, f"{CACHE} is not {PACKAGE}: delete it"
    return text.decode()


def _fetch() -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here, which brings axe-core")
    with tempfile.TemporaryDirectory() as folder:
        words = [npm, "pack", "--silent", PACKAGE]
        try:
            subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True, timeout=300)
        except subprocess.SubprocessError as error:
            pytest.skip(f"npm pack {PACKAGE}: {getattr(error, 'stderr', None) or error}"[:300])
        with tarfile.open(fileobj=io.BytesIO(next(Path(folder).glob("*.tgz")).read_bytes())) as packed:
            member = packed.extractfile("package/axe.min.js")
            assert member is not None
            text = member.read()
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    partial = CACHE.with_suffix(f".{os.getpid()}")
    partial.write_bytes(text)
    partial.replace(CACHE)  # another run may have been faster


def violations(window: Chromium) -> list[Any]:
    """The rules that the page breaks, each with three of its places at the most."""
    if not window.evaluate("typeof axe === 'object'"):
        window.evaluate(f"{script()}; 0")
    return list(json.loads(window.evaluate(_FOUND)))
