"""What a node offers pods, change by change: what has passed before anybody asks the API server is seen all the same."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator

from kgpu.lab.port import Lab
from tests import polling

BEGIN_S = 120.0


@contextlib.contextmanager
def allocatable(lab: Lab, node: str) -> Iterator[list[dict[str, str]]]:
    """Every state of what pods can have of the node within the block, the one at its beginning first."""
    seen: list[dict[str, str]] = []
    about = lab.about
    command = [
        about.kubectl, "--kubeconfig", str(about.kubeconfig), "get", "node", node, "--watch",
        "--output", 'jsonpath={.status.allocatable}{"\\n"}',
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = process.stdout

        def read() -> None:
            seen.extend(json.loads(line) for line in lines if line.endswith("\n"))

        reading = threading.Thread(target=read)
        reading.start()
        try:
            # What happens before kubectl has asked is not among what it sees.
            assert polling.holds(lambda: seen, seconds=BEGIN_S), "kubectl does not watch the node"
            yield seen
        finally:
            process.terminate()
            reading.join()
