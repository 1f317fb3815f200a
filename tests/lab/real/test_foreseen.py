"""What ``kgpu preflight --host`` predicts of a real container engine happens: CDI that is off, and a disk that is too small.

Each is told before it hurts, then seen, then found by the doctor, and mended.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic
from kgpu.cli.doctor import look, parse_target
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from kgpu.hw.simulator import container_driver
from kgpu.hw.simulator.create import create_root
from kgpu.lab.progress import PlainProgress
from kgpu.lab.real import build, hosttools, images
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.model import NODE_NAME, node_dir
from kgpu.lab.real.namespaces import child_env
from tests import on_real
from tests.lab.real.conftest import Cluster, until
from tests.toolkit.real.conftest import PROGRAMS
from tests.toolkit.real.engine import Engine

Object = dict[str, Any]
PREFLIGHT: Final = (sys.executable, "-m", "kgpu", "preflight", "--host", "--no-registry", "-o", "json")
WITH_BUS: Final = 'mount --rbind "$0/sys" /sys && exec "$@"'
"""Runs a command in a mount namespace of its own, where the machine's devices are the simulated ones."""


def predicted(found: str) -> dict[str, list[str]]:
    """The ids of what is predicted to fail, by check."""
    rows: dict[str, list[str]] = {}
    for one in json.loads(found)["predictions"]:
        if one["level"] == "problem":
            rows.setdefault(one["check"], []).append(one["id"])
    return rows


def look_in(lab: RealLab, values: Path) -> list[str]:
    """What is predicted of the node's container runtime, as a person on it would ask."""
    words = ["unshare", "--mount", "sh", "-c", WITH_BUS, str(lab.hw_root), *PREFLIGHT, "--values", str(values)]
    env = {**child_env(), "NODE_NAME": NODE_NAME}
    done = subprocess.run(lab.in_node(words), capture_output=True, text=True, check=False, env=env)
    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)["nodes"] == [NODE_NAME]
    return predicted(done.stdout).get("container runtime", [])


def renew_containerd(lab: RealLab) -> None:
    """Let containerd read its config anew; what runs goes on."""
    before = lab.pid_of("containerd")
    lab.order("restart", "containerd")
    until(lambda: lab.pid_of("containerd") not in (0, before), "another containerd")


def test_cdi_that_is_off_is_predicted_and_pods_start_without_their_gpu(gpus: Cluster, tmp_path: Path) -> None:
    lab, values = gpus.lab, tmp_path / "values.yaml"
    values.write_text("toolkit: {enabled: false}\n")
    config = node_dir(lab.paths, "/etc/containerd") / "config.toml"
    before = config.read_text()
    assert look_in(lab, values) == []
    assert before.count("enable_cdi = true") == 1
    config.write_text(before.replace("enable_cdi = true", "enable_cdi = false"))
    try:
        assert look_in(lab, values) == ["RUN-24"]
        renew_containerd(lab)
        gpus.pod("without", command="nvidia-smi -L")
        gpus.wait_phase("without", "Failed")
        assert "nvidia-smi: not found" in gpus.logs("without")
        report = asyncio.run(look(parse_target((), ""), "", str(lab.kubeconfig), ""))
        assert "RUN-24" in [one.id for one in report.findings]
    finally:
        config.write_text(before)
        renew_containerd(lab)
    gpus.pod("with", command="nvidia-smi -L")
    gpus.wait_phase("with", "Succeeded")
    assert "NVIDIA H100" in gpus.logs("with")


IMAGE: Final = "nvcr.io/nvidia/driver:570.133.20-ubuntu24.04"
ROOM, SIZE = "16m", 24 << 20
"""Of the disk, and bytes of the driver's installer in its image; the real one has hundreds of MiB."""


@pytest.fixture
def small(real_machine: None, tmp_path: Path) -> Iterator[Engine]:
    """A containerd whose images are on a disk of its own, in a machine that gets its driver in a container."""
    try:
        bin_dir = build.ensure_binaries(PlainProgress(), only=PROGRAMS)
        hosttools.ensure_host_tools(PlainProgress())
    except LabError as error:
        on_real.unavailable(error.one_line(), what="real engine")
    machine = create_root("l4", tmp_path / "machine", gpus=1)
    container_driver.remove_from_host(machine)
    engine = Engine(tmp_path, bin_dir, root=machine / "var/lib/containerd", room=ROOM)
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()


def on_disk(engine: Engine) -> list[str]:
    """What is predicted of the machine's disks."""
    machine = engine.root.parent.parent.parent
    done = engine.inside([*PREFLIGHT, "--root", str(machine)], env=child_env())
    assert done.code in (0, 1), done.err
    return predicted(done.out).get("disk", [])


def load(engine: Engine, archive: Path) -> Sequence[str]:
    """Unpack an archive's images; the last words of what fails, [] where nothing does."""
    done = engine.ctr("images", "import", "--snapshotter", "native", "--local", str(archive), seconds=300)
    return [] if done.code == 0 else [done.err.strip().splitlines()[-1]]


def test_a_disk_without_room_is_predicted_and_the_drivers_image_does_not_fit(small: Engine, tmp_path: Path) -> None:
    archive = tmp_path / "driver.tar"
    installer = images.LayerEntry(path="drivers/NVIDIA-Linux.run", data=os.urandom(SIZE))
    image = images.LabImage(names=(IMAGE,), files=(images.LayerEntry(path="drivers"), installer))
    write_atomic(archive, images.oci_archive(image, architecture=images.architecture()))
    assert on_disk(small) == ["IMG-02"]
    (said,) = load(small, archive)
    assert "no space left on device" in said
    assert "IMG-02" in doctor(said)
    done = small.inside(["mount", "-o", "remount,size=64g", str(small.root)])
    assert done.code == 0, done.err
    assert on_disk(small) == []
    assert load(small, archive) == []


def doctor(said: str) -> list[str]:
    """What the doctor finds where a kubelet tells of the engine's words."""
    pod = {
        "kind": "Pod", "metadata": {"name": "driver-a", "namespace": "gpu-operator",
                                    "labels": {"app": "nvidia-driver-daemonset"}},
        "spec": {"nodeName": NODE_NAME, "containers": [{"name": "nvidia-driver-ctr", "image": IMAGE}]},
        "status": {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [
            {"name": "nvidia-driver-ctr", "ready": False, "restartCount": 0,
             "state": {"waiting": {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{IMAGE}"'}}}]},
    }  # fmt: skip
    event = {
        "kind": "Event", "metadata": {"name": "e", "namespace": "gpu-operator"}, "type": "Warning", "reason": "Failed",
        "message": f'Failed to pull image "{IMAGE}": rpc error: code = Unknown desc = {said}',
        "involvedObject": {"kind": "Pod", "namespace": "gpu-operator", "name": "driver-a"},
    }  # fmt: skip
    return [one.id for one in diagnose(Snapshot.of([pod, event])).findings]
