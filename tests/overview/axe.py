"""axe-core, which finds what keeps people from using a page: from the npm registry, one version with its checksum."""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

from kgpu.base.files import write_atomic
from tests.npm import npm
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
    with tempfile.TemporaryDirectory() as folder:
        npm(Path(folder), "pack", "--silent", PACKAGE)
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as packed:
            member = packed.extractfile("package/axe.min.js")
            assert member is not None
            text = member.read()
    write_atomic(CACHE, text)  # another run may have been faster


def violations(window: Chromium) -> list[Any]:
    """The rules that the page breaks, each with three of its places at the most."""
    if not window.evaluate("typeof axe === 'object'"):
        window.evaluate(f"{script()}; 0")
    return list(json.loads(window.evaluate(_FOUND)))
