"""kgpu's source in another folder, with files added: what its frame promises to somebody who extends it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests import polling

ROOT: Final = Path(__file__).resolve().parents[2]
WAIT_S: Final = 90.0


@dataclass(frozen=True)
class Copy:
    """The copy; ``kgpu`` runs its programs."""

    root: Path

    @classmethod
    def make(cls, root: Path, files: Mapping[str, str]) -> Copy:
        """``files`` are below ``src/kgpu``."""
        shutil.copytree(ROOT / "src", root / "src")  # with what is compiled: it would take seconds to do it again
        (root / "native").symlink_to(ROOT / "native")
        for name, text in files.items():
            path = root / "src/kgpu" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.lstrip())
        return cls(root)

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.root / "src")}

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(
            command, env=self.env, cwd=self.root, capture_output=True, text=True, timeout=200, check=False
        )

    def kgpu(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "kgpu", *words)


@dataclass(frozen=True)
class Cluster:
    """What a kubectl sees of a lab."""

    kubectl: str
    kubeconfig: Path

    def get(self, *words: str) -> Any:
        return json.loads(self.run("get", *words, "-o", "json"))

    def run(self, *words: str, stdin: str = "") -> str:
        command = [self.kubectl, "--kubeconfig", str(self.kubeconfig), *words]
        return subprocess.run(command, capture_output=True, input=stdin, text=True, timeout=60, check=True).stdout


def until(look: Callable[[], Any], wanted: Any) -> None:
    """Look again and again until it is as wanted."""
    found = None

    def as_wanted() -> bool:
        nonlocal found
        found = look()
        return bool(found == wanted)

    polling.holds(as_wanted, seconds=WAIT_S)
    assert found == wanted, f"{found} after {WAIT_S:g} s, not {wanted}"
