"""The same kubectl commands against the real lab and an embedded one, with answers that must be the same."""

from __future__ import annotations

import difflib
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.progress import PlainProgress

# What is another time in every run.
_VOLATILE = (
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UID"),
    (re.compile(r"(?m)(resourceVersion\"?: )\"\d+\""), r'\1"N"'),
    (re.compile(r"(Resource Version: +)\d+"), r"\1N"),
    (re.compile(r"(?m)\b(\d+[dhm])*\d+(ms|[smhd])\b(?= *$)"), "AGE"),
    (re.compile(r"(?m)^W\d{4} [\d:.]+ +\d+ "), "W "),
    (re.compile(r"https://[\w.:\[\]-]+"), "SERVER"),
)

# The real server walks over maps as Go does, now this way, now that.
_IN_ANY_ORDER = re.compile(r"(?m)(^\* .*\n)+")


@dataclass(frozen=True)
class Both:
    """Two clusters by their kubeconfigs, the kubectl for both, and a folder for what it remembers."""

    kubectl: str
    real: Path
    embedded: Path
    cache: Path

    def run(self, kubeconfig: Path, *words: str, stdin: str | None = None) -> str:
        """Exit status, output and complaints, without what changes from run to run."""
        # What kubectl remembers of other tests' kinds would be asked for first.
        command = [self.kubectl, "--kubeconfig", str(kubeconfig), "--cache-dir", str(self.cache), *words]
        done = subprocess.run(command, capture_output=True, text=True, input=stdin, check=False, timeout=120)
        text = f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        for pattern, name in _VOLATILE:
            text = pattern.sub(name, text)
        return _IN_ANY_ORDER.sub(lambda found: "".join(sorted(found[0].splitlines(keepends=True))), text)

    def difference(self, *words: str, stdin: str | None = None) -> str:
        """Lines that differ, "" when the answers are the same."""
        real, embedded = (self.run(lab, *words, stdin=stdin).splitlines() for lab in (self.real, self.embedded))
        return "\n".join(difflib.unified_diff(real, embedded, "real", "embedded", lineterm=""))


@contextmanager
def beside(kubectl: str, real: Path, folder: Path) -> Iterator[Both]:
    """An embedded lab in ``folder`` for as long as it is needed."""
    lab = EmbeddedLab("both", folder=folder, progress=PlainProgress())
    try:
        lab.up()
        yield Both(kubectl, real, lab.kubeconfig, folder.with_name("cache"))
    finally:
        lab.down()
