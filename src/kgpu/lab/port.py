"""A lab as the command line, the scenarios and the tests see it, whatever it is made of.

``kgpu.lab.real`` and ``kgpu.lab.embedded`` each have one; ``kgpu.lab.find`` finds the one of a given name.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from kgpu.base.errors import LabError
from kgpu.lab.progress import Progress
from kgpu.lab.scenarios.run import LocalBackend

EMBEDDED: Final = "embedded"
REAL: Final = "real"
KINDS: Final = (EMBEDDED, REAL)


@dataclass(frozen=True, slots=True)
class NodeHardware:
    """The simulated driver ``root`` of a node; ``sliced`` when it was made with MIG slices."""

    node: str
    root: Path
    sliced: bool = False


class Lab(Protocol):
    """One lab. Every method raises LabError with what to do about it."""

    progress: Progress

    @property
    def about(self) -> About:
        """Its name, kind, folder and settings, also when it is not up."""
        ...

    @property
    def running(self) -> bool:
        """Whether its first process is alive."""
        ...

    def up(self) -> None:
        """Bring it up, or finish what is missing."""
        ...

    def down(self) -> bool:
        """Take away all that ``up`` made; False when there was nothing."""
        ...

    def kubectl_run(
        self, *arguments: str, stdin: str | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl against it; the caller looks at the exit status."""
        ...

    def backend(self, name: str = "", *, vendor: str = "") -> LocalBackend:
        """The lab as a place to play scenarios on, on a node with accelerators of ``vendor`` ("": of any)."""
        ...

    def hardware(self) -> tuple[NodeHardware, ...]:
        """The nodes whose simulated GPUs can be changed."""
        ...

    def report(self) -> dict[str, Any]:
        """What it looks like right now; ``running`` alone is false when it is not up."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a lab is. ``up_words``: the options of ``kgpu lab up`` that make it; ``complete``: ``up`` has ended well."""

    name: str
    kind: str
    folder: Path
    kubeconfig: Path
    kubectl: str
    complete: bool
    up_words: tuple[str, ...] = ()
    url: str = ""


def kubectl(lab: Lab, *arguments: str, stdin: str | None = None, timeout: float = 120) -> str:
    """What kubectl prints. Raises LabError with kubectl's message when it fails."""
    done = lab.kubectl_run(*arguments, stdin=stdin, timeout=timeout)
    if done.returncode != 0:
        raise LabError(
            f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}",
            "kubectl to succeed",
            'see "kgpu lab status" and the logs in the lab\'s folder',
        )
    return done.stdout
