"""CDI edits on a container's configuration: once per spec, in order, later ones over earlier ones."""

from __future__ import annotations

import pytest

from kgpu.formats.cdi import parse_spec
from kgpu.kubelet.model import ContainerAllocation, DeviceNode, Mount
from kgpu.lab.nodes.oci import CdiError, OciConfig, allocate, cdi_names, inject

SPEC = parse_spec(
    b"""
cdiVersion: "0.5.0"
kind: v.com/gpu
containerEdits:
  env: [ALL=spec]
  mounts: [{hostPath: /a, containerPath: /lib/a}]
devices:
- name: one
  containerEdits:
    env: [ALL=one, ONE=1]
    deviceNodes: [{path: /dev/x, hostPath: /host/x}]
- name: two
  containerEdits:
    env: [TWO=2]
    mounts: [{hostPath: /b, containerPath: /lib/a}]
""",
    source="test",
)


def test_edits_of_a_spec_come_once_and_before_those_of_its_devices() -> None:
    found = inject(OciConfig(env={"ALL": "image"}), [SPEC], ["v.com/gpu=one", "v.com/gpu=two", "v.com/gpu=one"])
    assert found.env == {"ALL": "one", "ONE": "1", "TWO": "2"}
    assert [(one.path, one.host_path) for one in found.devices] == [("/dev/x", "/host/x")]
    assert [(one.host_path, one.container_path) for one in found.mounts] == [("/b", "/lib/a")]


def test_nothing_asked_for_changes_nothing() -> None:
    config = OciConfig(env={"A": "1"})
    assert inject(config, [SPEC], []) == config


def test_unknown_devices_are_all_named() -> None:
    with pytest.raises(CdiError) as caught:
        inject(OciConfig(env={}), [SPEC], ["v.com/gpu=one", "v.com/gpu=x", "w.com/gpu=y"])
    assert caught.value.what == "CDI device injection failed: unresolvable CDI devices v.com/gpu=x, w.com/gpu=y"
    assert "v.com/gpu=one" in caught.value.expected


def test_what_a_plugin_answers() -> None:
    answer = ContainerAllocation(
        envs={"A": "2"}, mounts=(Mount(container_path="/c", host_path="/h", read_only=True),),
        devices=(DeviceNode(container_path="/dev/c", host_path="/dev/h"),),
        annotations={"cdi.k8s.io/x": "v.com/gpu=one,v.com/gpu=two", "other": "v.com/gpu=three"},
        cdi_devices=("v.com/gpu=one",),
    )  # fmt: skip
    found = allocate(OciConfig(env={"A": "1", "B": "1"}), [answer])
    assert found.env == {"A": "2", "B": "1"}
    assert (found.mounts[0].options, found.devices[0].host_path) == (("ro",), "/dev/h")
    assert cdi_names([answer, answer], "cdi.k8s.io/") == ["v.com/gpu=one", "v.com/gpu=two"]
