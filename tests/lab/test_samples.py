"""Which containers of a known image are local processes on a simulated node, and which are stood in for."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.kube.port import Object
from kgpu.lab import samples
from kgpu.lab.nodes import runtime, starter

AGNHOST = "registry.k8s.io/e2e-test-images/agnhost:2.59"
PAUSE = "registry.k8s.io/pause:3.10.1"
BUSYBOX = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1"


@pytest.mark.parametrize(
    ("container", "process"),
    [
        ({"image": BUSYBOX}, True),
        ({"image": PAUSE}, False),
        ({"image": AGNHOST}, False),
        ({"image": AGNHOST, "args": ["pause"]}, False),
        ({"image": AGNHOST, "args": ["netexec", "--http-port=8080"]}, False),
        ({"image": AGNHOST, "args": ["mounttest", "--fs_type=/test"]}, True),
        ({"image": AGNHOST, "command": ["/agnhost", "entrypoint-tester"]}, True),
        ({"image": AGNHOST, "command": ["/agnhost", "serve-hostname"]}, False),
        ({"image": AGNHOST, "command": ["sh", "-c", "sleep 1"]}, True),
        ({"image": "example.com/other:1", "command": ["sh"]}, False),
    ],
)
def test_what_would_need_a_network_of_its_own_is_stood_in_for(
    container: Object, process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "find_built", lambda name: Path("/built", name))
    assert starter.is_process(container) is process


def test_a_program_that_was_not_built_is_stood_in_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "find_built", lambda _: None)
    assert not starter.is_process({"image": AGNHOST, "args": ["mounttest"]})
    assert not runtime.built(samples.by_name("agnhost"))
    assert runtime.built(samples.by_name("vectoradd"))
