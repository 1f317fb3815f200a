"""Which containers of a known image are local processes on a simulated node, and which are stood in for."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.formats.names import ENV_SIMULATED_LOAD
from kgpu.hw.simulator.load_profiles import LOADS
from kgpu.kube.port import Object
from kgpu.lab import samples
from kgpu.lab.nodes import runtime, starter
from kgpu.lab.nodes.runtime import NAMESPACES, PLAIN, Runtime

AGNHOST = "registry.k8s.io/e2e-test-images/agnhost:2.59"
PAUSE = "registry.k8s.io/pause:3.10.1"
BUSYBOX = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1"
OWN_NETWORKS = Runtime(NAMESPACES, networks=True)


@pytest.mark.parametrize(
    ("container", "process", "without"),
    [
        ({"image": BUSYBOX}, True, True),
        ({"image": PAUSE}, False, False),
        ({"image": AGNHOST}, True, True),
        ({"image": AGNHOST, "args": ["pause"]}, True, True),
        ({"image": AGNHOST, "args": ["netexec", "--http-port=8080"]}, True, False),
        ({"image": AGNHOST, "command": ["/agnhost", "serve-hostname"]}, True, False),
        ({"image": AGNHOST, "args": ["mounttest", "--fs_type=/test"]}, True, True),
        ({"image": AGNHOST, "command": ["/agnhost", "entrypoint-tester"]}, True, True),
        ({"image": AGNHOST, "command": ["sh", "-c", "sleep 1"]}, True, True),
        ({"image": "example.com/other:1", "command": ["sh"]}, False, False),
    ],
)
def test_what_needs_a_network_of_its_own_is_stood_in_for_where_there_is_none(
    container: Object, process: bool, without: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "find_built", lambda name: Path("/built", name))
    assert starter.is_process(OWN_NETWORKS, container) is process
    assert starter.is_process(Runtime(NAMESPACES), container) is without
    assert starter.is_process(Runtime(PLAIN, networks=True), container) is without


@pytest.mark.parametrize(
    ("image", "load"),
    [
        ("nvcr.io/nvidia/pytorch:24.01-py3", "train"),
        ("nvcr.io/nvidia/tritonserver:24.01-py3", "inference"),
        ("quay.io/jupyter/pytorch-notebook:cuda12-latest", "notebook"),
        ("kubeflownotebookswg/jupyter-pytorch-cuda-full:v1.9", "notebook"),
        ("jupyterhub/k8s-singleuser-sample:4.0", "notebook"),
        ("nvidia/cuda:12.5.0-base-ubuntu22.04", None),
        ("nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0", None),
    ],
)
def test_what_a_sample_loads(image: str, load: str | None) -> None:
    found = samples.find(image)
    assert found is not None
    assert found.env.get(ENV_SIMULATED_LOAD) == load
    assert load is None or load in LOADS


@pytest.mark.parametrize(
    "image",
    ["kubeflownotebookswg/notebook-controller:v1.9", "jupyterhub/k8s-hub:4.0", "jupyterhub/configurable-http-proxy"],
)
def test_what_goes_with_notebooks_is_none(image: str) -> None:
    assert samples.find(image) is None


def test_a_program_that_was_not_built_is_stood_in_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "find_built", lambda _: None)
    assert not starter.is_process(OWN_NETWORKS, {"image": AGNHOST, "args": ["mounttest"]})
    assert not runtime.built(samples.by_name("agnhost"))
    assert runtime.built(samples.by_name("vectoradd"))
