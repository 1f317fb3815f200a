"""A lab's nodes are made unfit for a driver container, each in its own way, and ``kgpu preflight --probe`` says which.

Simulated nodes have a driver as a machine has one with it installed; here it is taken away first, so that a driver
container would have to bring one.
"""

from __future__ import annotations

import json
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from kgpu.cli.main import main
from kgpu.kube import kinds
from kgpu.kube.port import PODS
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import manage
from kgpu.lab.progress import QuietProgress
from kgpu.lab.real import build
from tests.doctor.lab.breaking import Ground, until
from tests.doctor.lab.labs import space
from tests.doctor.preflight.test_registry import Registry, server

__all__ = ["server"]

KERNEL: Final = platform.release()
SPACE: Final = "gpu-operator"
VERSION: Final = "595.91.07"
Said = pytest.CaptureFixture[str]


def bare(root: Path) -> None:
    """No driver, and all that a driver container needs."""
    for library in root.glob("usr/lib/*/libnvidia-ml.so*"):
        library.unlink()
    shutil.rmtree(root / "proc/driver")
    write(root / "proc/modules", "ext4 929792 1 - Live 0x0000000000000000\n")
    (root / "lib/modules" / KERNEL / "build").mkdir(parents=True, exist_ok=True)


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def nouveau(root: Path) -> None:
    write(root / "proc/modules", "nouveau 2772992 4 - Live 0x0000000000000000\n")


def secure_boot(root: Path) -> None:
    write(root / "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", b"\x06\0\0\0\1")


def no_headers(root: Path) -> None:
    shutil.rmtree(root / "lib/modules" / KERNEL)
    write(root / "var/lib/apt/lists/archive_Packages", "Package: linux-headers-6.8.0-31-generic\n")


def own_driver(root: Path) -> None:
    """Give back what ``bare`` has taken, as far as it is looked for."""
    write(root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.133.20", "")


@dataclass(frozen=True)
class Unfit:
    """A node, what is done to it, and what is predicted of it ("" for nothing)."""

    name: str
    break_it: Callable[[Path], None]
    rule: str
    check: str
    profile: str = "l4"


NODES: Final = (
    Unfit("fit-1", lambda _: None, "", "nouveau"),
    Unfit("nouveau-1", nouveau, "KRN-03", "nouveau"),
    Unfit("secured-1", secure_boot, "KRN-04", "Secure Boot"),
    Unfit("headless-1", no_headers, "KRN-01", "kernel headers"),
    Unfit("old-1", lambda _: None, "KRN-09", "GPUs of the driver", "dgx-1-v100"),
    Unfit("served-1", own_driver, "", "nouveau"),
)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    if not build.find_kubectl():
        pytest.skip("no kubectl here")
    folder = tmp_path_factory.mktemp("preflight") / "lab"
    lab = EmbeddedLab("preflight", folder, QuietProgress(), first=FirstNode(profile="cpu"))
    ground = None
    try:
        lab.up()
        for one in NODES:
            manage.add_to_running(lab.folder, one.profile, name_prefix=one.name.removesuffix("-1"), gpus=1, agent=False)
        ground = Ground(lab)
        space(ground, SPACE)
        for one in NODES:
            until(lambda name=one.name: is_ready(ground, name), f"node {one.name} is ready")  # type: ignore[misc]
            root = ground.hardware(one.name)
            bare(root)
            one.break_it(root)
        yield ground
    finally:
        if ground is not None:
            ground.close()
        lab.down()


def is_ready(ground: Ground, name: str) -> bool:
    status = (ground.get("Node", name) or {}).get("status") or {}
    return any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())


def preflight(ground: Ground, capsys: Said, *options: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["kgpu", "preflight", "--kubeconfig", str(ground.lab.kubeconfig), "-o", "json", *options])
    return code, json.loads(capsys.readouterr().out)


def values(folder: Path, server: Registry) -> str:
    path = folder / "values.yaml"
    path.write_text(f"driver: {{repository: {server.host}/nvidia, version: 580.95.05}}\n")
    return str(path)


def test_what_is_wrong_with_each_node_is_predicted_and_nothing_is_left(ground: Ground, capsys: Said) -> None:
    code, found = preflight(ground, capsys, "--probe", "--no-registry", "--timeout", "300")
    said = {name: one["id"] for one in found["predictions"] if one["level"] == "problem" for name in one["nodes"]}
    assert said == {one.name: one.rule for one in NODES if one.rule}
    for one in NODES:
        assert found["verdicts"][one.name][one.check] == ("fails" if one.rule else "fine")
    assert code == 1
    left = (ground.wait(ground.api.list(kind, namespace=SPACE)).items for kind in (PODS, kinds.SERVICE_ACCOUNTS))
    assert [one["metadata"]["name"] for rows in left for one in rows] == ["default"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_nothing_is_left_of_a_probe_that_is_ended_while_its_pod_runs(ground: Ground, number: signal.Signals) -> None:
    # The lab does not know this image, so that its pod stands there for as long as nobody takes it away.
    words = ["preflight", "--probe", "--no-registry", "--image", "registry.example/unknown:1", "--timeout", "600"]
    words += ["--node", "fit-1", "--kubeconfig", str(ground.lab.kubeconfig)]
    command = [sys.executable, "-m", "kgpu", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            until(lambda: "Running" in phases(ground), "the probe's pod runs")
            process.send_signal(number)
            said, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130, said
    assert "Traceback" not in said
    until(lambda: not phases(ground), "its pod is gone")
    accounts = ground.wait(ground.api.list(kinds.SERVICE_ACCOUNTS, namespace=SPACE)).items
    assert [one["metadata"]["name"] for one in accounts] == ["default"]


def phases(ground: Ground) -> list[str]:
    pods = ground.wait(ground.api.list(PODS, namespace=SPACE)).items
    return [str(one.get("status", {}).get("phase")) for one in pods]


def test_from_the_api_alone_nothing_is_predicted_and_all_of_that_is_unknown(ground: Ground, capsys: Said) -> None:
    code, found = preflight(ground, capsys, "--no-registry", "--node", "nouveau-1", "--node", "fit-1")
    assert code == 0
    assert found["predictions"] == []
    assert {one["check"] for one in found["unknown"]} >= {"nouveau", "Secure Boot", "kernel headers"}


def test_the_registry_decides_whether_the_systems_image_is_there(
    ground: Ground, capsys: Said, tmp_path: Path, server: Registry
) -> None:
    node = ("--node", "fit-1", "--values", values(tmp_path, server))
    assert preflight(ground, capsys, *node)[1]["verdicts"]["fit-1"]["driver image"] == "fine"
    code, found = preflight(ground, capsys, *node, "--driver-version", "999.1")
    assert code == 1
    assert [one["id"] for one in found["predictions"]] == ["IMG-07"]
    assert "driver 999.1 is not published for ubuntu24.04" in found["predictions"][0]["what"]


def test_the_level_of_the_namespace_is_predicted_from_its_label(ground: Ground, capsys: Said) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    place = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict", "labels": labels}}
    ground.wait(ground.api.create(kinds.NAMESPACES, place))
    code, found = preflight(ground, capsys, "--no-registry", "--node", "fit-1", "-n", "strict")
    assert code == 1
    assert [one["id"] for one in found["predictions"]] == ["OPR-02"]


@pytest.mark.parametrize("unfit", [one for one in NODES if one.rule], ids=lambda one: one.name)
def test_on_the_machine_itself_the_same_is_predicted_without_a_cluster(
    ground: Ground, unfit: Unfit, capsys: Said
) -> None:
    root = str(ground.hardware(unfit.name))
    capsys.readouterr()
    assert main(["kgpu", "preflight", "--host", "--root", root, "--no-registry", "-o", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in found["predictions"]] == [unfit.rule]
