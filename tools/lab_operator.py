"""Writes ``src/kgpu/lab/operator_objects.yaml``, what Helm makes of charts/kgpu for a lab, and ``usage_objects.yaml``,
what is new or other of it where usage is recorded. ``--check``: 1 if stale.

Needs Helm, which ``kgpu lab build --helm`` makes. Hooks are left out: a lab is taken down as a whole.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kgpu.formats.names import GPU_OPERATOR_NAMESPACE
from kgpu.lab import operator
from kgpu.lab.real import build

CHART = Path(__file__).parent.parent / "charts" / "kgpu"
# Labs of both kinds have admission policies, so that what a cluster refuses is refused there too.
POLICY = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
HEAD = "# Made by tools/lab_operator.py from charts/kgpu and %s.\n"
BREAK = "---\n"


def made(helm: str, *values: str, kinds: Sequence[str] = (), files: Sequence[Path] = ()) -> str:
    """The objects as text; ``values`` as Helm's ``--set`` takes them, ``files`` as its ``--values``, ``kinds`` are what
    the cluster has besides.
    """
    command = [helm, "template", "kgpu", str(CHART), "--namespace", GPU_OPERATOR_NAMESPACE, "--no-hooks"]
    command += [word for file in (operator.VALUES, *files) for word in ("--values", str(file))]
    command += ["--kube-version", "v1.30.0", "--api-versions", POLICY]
    command += [word for kind in kinds for word in ("--api-versions", kind)]
    command += [word for value in values for word in ("--set", value)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = (line.rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("# Source:")) + "\n"


def usage_only(helm: str, plain: str) -> str:
    """Of the objects where usage is recorded those that are not among ``plain``, as text."""
    known = set(plain.split(BREAK))
    return "".join(BREAK + text for text in made(helm, files=[operator.USAGE_VALUES]).split(BREAK) if text not in known)


def main(arguments: list[str]) -> int:
    helm = build.ensure_helm()
    plain = made(helm)
    wanted = {
        operator.OBJECTS: HEAD % operator.VALUES.name + plain,
        operator.USAGE_OBJECTS: HEAD % operator.USAGE_VALUES.name + usage_only(helm, plain),
    }
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if "--check" in arguments:
            print(f"{path} is not current; run: python tools/lab_operator.py", file=sys.stderr)
        else:
            path.write_text(wanted[path])
            print(f"wrote {path}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
