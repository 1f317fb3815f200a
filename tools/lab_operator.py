"""Writes ``src/kgpu/lab/operator_objects.yaml``, what Helm makes of charts/kgpu for a lab. ``--check``: 1 if stale.

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
HEAD = "# Made by tools/lab_operator.py from charts/kgpu and operator_values.yaml.\n"


def made(helm: str, *values: str, kinds: Sequence[str] = ()) -> str:
    """The objects as text; ``values`` as Helm's ``--set`` takes them, ``kinds`` are what the cluster has besides."""
    command = [helm, "template", "kgpu", str(CHART), "--namespace", GPU_OPERATOR_NAMESPACE, "--no-hooks"]
    command += ["--values", str(operator.VALUES), "--kube-version", "v1.30.0", "--api-versions", POLICY]
    command += [word for kind in kinds for word in ("--api-versions", kind)]
    command += [word for value in values for word in ("--set", value)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = (line.rstrip() for line in text.splitlines())
    return HEAD + "\n".join(line for line in lines if line and not line.startswith("# Source:")) + "\n"


def main(arguments: list[str]) -> int:
    text = made(build.ensure_helm())
    if operator.OBJECTS.exists() and operator.OBJECTS.read_text() == text:
        return 0
    if "--check" in arguments:
        print(f"{operator.OBJECTS} is not current; run: python tools/lab_operator.py", file=sys.stderr)
        return 1
    operator.OBJECTS.write_text(text)
    print(f"wrote {operator.OBJECTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
