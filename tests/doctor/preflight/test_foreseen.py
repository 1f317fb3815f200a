"""What is predicted happens: a lab's nodes are made unfit, looked at, and given their drivers.

The driver's pods are those that the operator makes, by its own rules; it does not run here, so that nothing but them is
on the nodes. The registry that the preflight asks has the images that the lab's nodes can pull.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from kgpu import __version__
from kgpu.cli.main import main
from kgpu.doctor.model import Finding
from kgpu.doctor.preflight.plan import CHECKS, CLUSTER_CHECKS
from kgpu.formats import names
from kgpu.kube.port import NODES, PODS, Object, Selector
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import driver_image, manage
from kgpu.lab.nodes.runtime import NAMESPACES, detect_mode
from kgpu.lab.nodes.spec import CONTAINER_DRIVER
from kgpu.lab.progress import QuietProgress
from kgpu.lab.real import build
from kgpu.operator import projections
from kgpu.operator.model import ObservedCluster, OperatorSettings
from kgpu.operator.nodes import read_node
from kgpu.operator.objects import driver as driver_objects
from kgpu.operator.rendering.render import render
from tests.doctor.lab.breaking import Ground, until
from tests.doctor.lab.labs import space
from tests.doctor.preflight.foreseen import ELSEWHERE, FORESEEN, MADE, UBUNTU, Foreseen
from tests.doctor.preflight.test_checks import FAILS

SPACE: Final = "gpu-operator"
VERSION: Final = "570.133.20"
IMAGE: Final = f"{names.IMAGE_REPOSITORY}:{__version__}"
DRIVERS: Final = Selector(labels=((names.COMPONENT_LABEL, names.DRIVER_COMPONENT),))
TESTS: Final = Path(__file__).parent.parent.parent
BROKEN: Final = [row for row in FORESEEN if row.rule]
pytestmark = pytest.mark.timeout(1800)


class LabRegistry(BaseHTTPRequestHandler):
    """A registry with the driver images that a lab's node can pull, and no others."""

    def do_HEAD(self) -> None:
        path, _, tag = self.path.removeprefix("/v2/").rpartition("/manifests/")
        image = f"registry.example/{path}:{tag}"
        there = driver_image.is_one(image) and not driver_image.missing(image, Path("/nonexistent"))
        self.send_response(200 if there else 404)
        self.send_header("Content-Type", "application/vnd.oci.image.index.v1+json" if there else "application/json")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    """Where it listens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), LabRegistry) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory, registry: str) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("foreseen")
    if not build.find_kubectl() or detect_mode(folder) != NAMESPACES:
        pytest.skip("no kubectl here, or containers have no file systems of their own")
    lab = EmbeddedLab("foreseen", folder / "lab", QuietProgress(), first=FirstNode(profile="cpu"))
    ground = None
    try:
        lab.up()
        for row in FORESEEN:
            manage.add_to_running(
                lab.folder, row.profile, name_prefix=row.name, gpus=1, agent=False, driver=CONTAINER_DRIVER,
                labels=labels(row),
            )  # fmt: skip
        ground = Ground(lab)
        assert main(["kgpu", "crds", "apply", "--kubeconfig", str(lab.kubeconfig)]) == 0
        space(ground, SPACE)
        for obj in wishes(registry):
            apply(ground, obj)
        for row in FORESEEN:
            until(partial(is_ready, ground, row.node), f"node {row.node} is ready")
            row.break_it(ground.hardware(row.node))
        yield ground
    finally:
        if ground is not None:
            ground.close()
        lab.down()


def labels(row: Foreseen) -> dict[str, str]:
    """What discovery and the operator have said of the node."""
    return {
        **UBUNTU, f"{names.NFD_PREFIX}pci-10de.present": "true", names.LABEL_GPU_PRESENT: "true",
        f"{names.LABEL_DEPLOY_PREFIX}driver": "true", names.LABEL_DRIVER_OWNER: row.name, **row.labels,
    }  # fmt: skip


def wishes(registry: str) -> Iterator[Object]:
    """A ClusterPolicy, and an NVIDIADriver for each node."""
    yield {
        "apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"},
        "spec": {"operator": {}, "daemonsets": {}, "driver": {"useNvidiaDriverCRD": True}},
    }  # fmt: skip
    repository, _, image = names.IMAGE_REPOSITORY.rpartition("/")
    manager = {"repository": repository, "image": image, "version": __version__}
    probe = {"initialDelaySeconds": 1, "periodSeconds": 1, "failureThreshold": 600}
    for row in FORESEEN:
        spec = {
            "driverType": "gpu", "repository": f"{registry}/nvidia", "image": "driver", "version": VERSION,
            "nodeSelector": {"kubernetes.io/hostname": row.node}, "manager": manager, "startupProbe": probe,
        }  # fmt: skip
        yield {
            "apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": row.name},
            "spec": {**spec, **row.driver},
        }  # fmt: skip


def apply(ground: Ground, obj: Object) -> Object:
    made: Object = ground.wait(ground.api.apply(ground.resource(obj["kind"]), obj, manager="tests"))
    return made


def is_ready(ground: Ground, name: str) -> bool:
    status = (ground.get("Node", name) or {}).get("status") or {}
    return any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())


@dataclass(frozen=True)
class Told:
    """What was predicted before there was any driver, and the cluster with drivers."""

    before: dict[str, Any]
    ground: Ground


@pytest.fixture(scope="module")
def told(ground: Ground) -> Told:
    """The prediction, then the drivers, until it is seen what becomes of each."""
    from click.testing import CliRunner

    from kgpu.cli.preflight import preflight

    options = ["--kubeconfig", str(ground.lab.kubeconfig), "-o", "json", "--probe", "--timeout", "300"]
    found = json.loads(CliRunner().invoke(preflight, options).stdout)
    install(ground)
    for row in FORESEEN:
        until(partial(has_come, ground, row), partial(said, ground, row))
    return Told(found, ground)


def install(ground: Ground) -> None:
    """Make what the operator makes of the NVIDIADrivers: their accounts and DaemonSets."""
    policy = projections.policy(ground.get("ClusterPolicy", "cluster-policy") or {})["value"]
    rows = ground.wait(ground.api.list(ground.resource("NVIDIADriver"))).items
    nodes = tuple(read_node(one) for one in ground.wait(ground.api.list(NODES)).items)
    observed = ObservedCluster(
        policies=(policy,), drivers=tuple(projections.driver(one)["value"] for one in rows), nodes=nodes
    )
    made = render(policy, OperatorSettings(namespace=SPACE, image=IMAGE), observed)
    assert not made.errors
    for obj in made.objects:
        if obj["metadata"].get("labels", {}).get(names.LABEL_OPERATOR_STATE) == driver_objects.STATE:
            apply(ground, obj)


def pod(ground: Ground, row: Foreseen) -> Object:
    """The node's driver pod, {} before there is one."""
    pods = ground.wait(ground.api.list(PODS, namespace=SPACE, selector=DRIVERS)).items
    return next((one for one in pods if one["spec"].get("nodeName") == row.node), {})


def status(found: Object, container: str) -> Object:
    rows = [
        one for key in ("initContainerStatuses", "containerStatuses") for one in found.get("status", {}).get(key, ())
    ]
    return next((one for one in rows if one["name"] == container), {})


def has_come(ground: Ground, row: Foreseen) -> bool:
    """Whether its driver is ready, or its container has failed, as the row says."""
    state = status(pod(ground, row), row.container)
    if not row.rule:
        return bool(state.get("ready"))
    waiting = state.get("state", {}).get("waiting", {}).get("reason", "")
    return waiting in ("ErrImagePull", "ImagePullBackOff") or bool(state.get("restartCount"))


def said(ground: Ground, row: Foreseen) -> str:
    """All that is said of the container: by the kubelet, by its last words, and by its log."""
    found = pod(ground, row)
    if not found:
        return "no pod"
    logs = ground.lab.kubectl_run("logs", "-n", SPACE, found["metadata"]["name"], "-c", row.container, "--previous")
    return json.dumps(status(found, row.container)) + logs.stdout


def events(ground: Ground, row: Foreseen) -> str:
    """What the kubelet has told of its driver's pod."""
    name = pod(ground, row)["metadata"]["name"]
    rows = ground.wait(ground.api.list(ground.resource("Event"), namespace=SPACE)).items
    return "\n".join(str(one.get("message")) for one in rows if one["involvedObject"]["name"] == name)


def test_every_check_is_in_the_table() -> None:
    made = [*{row.check for row in BROKEN}, *MADE, *ELSEWHERE]
    assert sorted(made) == sorted([row.name for row in CHECKS] + [row.name for row in CLUSTER_CHECKS])


@pytest.mark.parametrize("check", MADE)
def test_what_makes_the_others_is_there(check: str) -> None:
    file, name = MADE[check]
    assert f"def {name}(" in (TESTS / file).read_text()


@pytest.mark.parametrize("check", ELSEWHERE)
def test_what_no_lab_makes_predicts_no_failure(check: str) -> None:
    assert ELSEWHERE[check].startswith("a note: ")
    assert check not in {row[0] for row in FAILS}


def test_each_is_predicted_before_and_nothing_of_those_that_are_fit(told: Told) -> None:
    predicted = {name: one["id"] for one in told.before["predictions"] if one["nodes"] for name in one["nodes"]}
    assert predicted == {row.node: row.rule for row in BROKEN}
    for row in FORESEEN:
        assert told.before["verdicts"][row.node][row.check] == ("fails" if row.rule else "fine"), row
    assert told.before["exit_code"] == 1


@pytest.mark.parametrize("row", FORESEEN, ids=lambda row: row.name)
def test_it_happens(told: Told, row: Foreseen) -> None:
    assert has_come(told.ground, row)
    if row.rule:
        assert row.words in said(told.ground, row)
        until(lambda: row.event in events(told.ground, row), f"the kubelet's word on {row.name}")
        assert not status(pod(told.ground, row), "nvidia-driver-ctr").get("ready")


def found(ground: Ground, row: Foreseen) -> list[Finding]:
    """What the doctor finds on the node, from the cluster and on the machine itself."""
    return [
        *(one for one in ground.look().findings if row.node in one.nodes),
        *ground.look(host=row.node).findings,
    ]  # fmt: skip


@pytest.mark.parametrize("row", FORESEEN, ids=lambda row: row.name)
def test_the_doctor_says_the_same_afterwards(told: Told, row: Foreseen) -> None:
    ids = [one.id for one in found(told.ground, row)]
    assert (row.rule in ids) if row.rule else not ids, ids
