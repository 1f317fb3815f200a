"""What kgpu does about Xids, through its chart and operator: on the real node, and on three simulated full ones.

The reboots are of simulated nodes: the real node's first process is the lab's own and no systemd, so that a reboot of
it is refused (``RebootRefused``), rightly. All stories have one cluster and one installation, and begin well.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kgpu.base.errors import LabError
from kgpu.cli.doctor import snapshot_of
from kgpu.doctor.plan import diagnose
from kgpu.doctor.render import as_text
from kgpu.formats import names
from kgpu.formats.xid.action import Action
from kgpu.hw.simulator import operate
from kgpu.lab.embedded import ready
from kgpu.lab.nodes import manage
from kgpu.lab.progress import PlainProgress
from kgpu.lab.real import bootstrap, build, kgpu_image
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.model import NODE_NAME, LabSpec
from tests import on_real
from tests.lab.real import repairs
from tests.lab.real.repair_alerts import alerting
from tests.lab.real.repairs import DEADLINE_S, Fleet, NodeHistory, boot, is_cordoned, is_validated, phase
from tests.operator.real import watching
from tests.operator.real.conftest import NAMESPACE, Object, Site

SIMULATED = 3
ATTEMPTS = 2
NFD_NVIDIA = "feature.node.kubernetes.io/pci-10de.present"
SETTLED_S = 11 * 60  # for ten minutes after an operation a node's verdicts do not count
# A program that ends when its GPU has met a memory error, as CUDA has programs end.
PROGRAM = """
errors() { nvidia-smi --query-gpu=ecc.errors.uncorrected.volatile.total --format=csv,noheader; }
before=$(errors)
nvidia-smi -L
while [ "$(errors)" = "$before" ]; do sleep 0.2; done
echo "an uncorrectable ECC error encountered"; exit 1
"""


@pytest.fixture(scope="module")
def fleet(real_machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The chart on the real node with eight GPUs and three simulated ones with two, repairs on, and a budget of none."""
    progress = PlainProgress()
    try:
        helm = build.ensure_helm(progress)
    except LabError as error:
        on_real.unavailable(error.one_line())
    folder = tmp_path_factory.mktemp("repairs")
    lab = RealLab(LabSpec(name=f"repairs-{os.getpid()}", agent=False), folder=folder / "lab", progress=progress)
    site = Site(lab, helm, folder)
    try:
        lab.up()
        bootstrap.import_archive(lab, kgpu_image.ensure_image(progress))
        bootstrap.show_driver(lab)
        added = manage.add_to_running(lab.paths.root, "hgx-h100", SIMULATED, name_prefix="sim", gpus=2, agent=False)
        ready.wait_for_nodes(lab.kubeconfig, dict.fromkeys(added, False), DEADLINE_S, manage.nodes_dir(lab.paths.root))
        with watching.kinds(site):
            found = Fleet(site, tuple(added))
            # Its simulated bus is below the driver's root, and not the machine's own, where the finder looks.
            lab.kubectl("label", "node", NODE_NAME, f"{NFD_NVIDIA}=true")
            install(site, parallel=0)
            found.settled()
            yield found
    finally:
        lab.down()


def install(site: Site, *, parallel: int, verb: str = "install") -> None:
    """Have the chart in the cluster with a budget of so many operations at a time. The operator is on the real node."""
    site.install(
        *watching.VALUES,
        f"hostPaths.driverInstallDir={names.DRIVER_INSTALL_DIR}",
        rf"operator.nodeSelector.kubernetes\.io/hostname={NODE_NAME}",
        "operations.remediation.policy=Reboot",
        f"operations.remediation.attempts={ATTEMPTS}",
        f"operations.maxParallel={parallel}",
        verb=verb,
        words=("--create-namespace", *watching.TEXTS) if verb == "install" else watching.TEXTS,
    )


def lift_budget(fleet: Fleet) -> None:
    """Let one operation at a time begin, from now on."""
    if not fleet.may_begin:
        install(fleet.site, parallel=1, verb="upgrade")
        fleet.may_begin = True


@pytest.fixture
def well(fleet: Fleet) -> Iterator[Fleet]:
    """Every GPU is well, and nothing is on record, before and after."""
    fleet.forget_operations()
    fleet.settled()
    yield fleet
    fleet.end_operations()
    for node in fleet.nodes:
        operate.clear(fleet.hardware(node))
    fleet.settled()  # before records are forgotten, or what was given up would begin anew
    fleet.forget_operations()


def told(since: float, what: str) -> None:
    print(f"{what}: {time.monotonic() - since:.1f} s")


def was_ever_cordoned(history: NodeHistory) -> bool:
    return any(map(is_cordoned, history.states))


def doctor(fleet: Fleet) -> str:
    """What ``kgpu doctor`` says now."""
    return as_text(diagnose(asyncio.run(snapshot_of("", str(fleet.site.lab.kubeconfig))), strict=True))


def test_xid_48_has_one_gpu_reset_while_pods_with_others_go_on(well: Fleet) -> None:
    """On the real node, of which every GPU is in use. First nothing may begin; then the admin lifts the budget, which
    stays so: this story is the first one.
    """
    fleet, index = well, 3
    with fleet.deployed("filler", NODE_NAME, 8), fleet.followed(NODE_NAME) as history:
        before, booted = fleet.running("filler"), boot(fleet.node(NODE_NAME))
        resets = [fleet.gpu(NODE_NAME, each)["resets"] for each in range(8)]
        begun = fleet.xid(NODE_NAME, 48, index)
        operation = fleet.made(NODE_NAME, "GpuReset")
        told(begun, "Xid 48 to the operation that it calls for")
        assert operation["spec"]["gpus"] == [fleet.gpu(NODE_NAME, index)["uuid"]]
        fleet.waits(operation, "WaitsForBudget", "Paused")
        assert fleet.running("filler") == before
        lifted = time.monotonic()
        lift_budget(fleet)
        fleet.succeeds(operation)
        told(lifted, "from lifting the budget to the GPU that is reset and given back")
        resets[index] += 1
        assert [fleet.gpu(NODE_NAME, each)["resets"] for each in range(8)] == resets
        fleet.settled()
        fleet.until(lambda: len(fleet.running("filler")) == 8, "the pod whose GPU it was to have one again")
        spared = before.items() & fleet.running("filler").items()
        assert len(spared) == 7, "pods with other GPUs keep their uid and restartCount"
        assert boot(fleet.node(NODE_NAME)) == booted
        assert not was_ever_cordoned(history)


def test_xid_79_has_the_node_emptied_rebooted_validated_and_given_back(well: Fleet) -> None:
    fleet, node = well, well.simulated[0]
    lift_budget(fleet)
    with fleet.deployed("trainer", node, 1), fleet.followed(node) as history:
        (former,), booted = fleet.running("trainer"), boot(fleet.node(node))
        begun = fleet.xid(node, 79, 1)
        fleet.succeeds(fleet.made(node, "Reboot"))
        fleet.until(lambda: not is_cordoned(history.states[-1]), "the watch to show the node that is given back")
        told(begun, "Xid 79 to the node that is given back")
        assert_rebooted(history, booted)
        fleet.settled()
        fleet.until(lambda: fleet.running("trainer"), "the workload to be back")
        assert former not in fleet.running("trainer")


def assert_rebooted(history: NodeHistory, former: str) -> None:
    """The node was cordoned in its old boot, and validated in the new one while it was still cordoned."""
    cordoned = [state for state in history.states if is_cordoned(state)]
    assert cordoned
    assert boot(cordoned[0]) == former
    assert boot(cordoned[-1]) != former
    assert is_validated(cordoned[-1])
    given_back = history.states[-1]
    assert not is_cordoned(given_back)
    assert boot(given_back) == boot(cordoned[-1])


def test_xid_94_ends_the_program_alone_which_its_kubelet_starts_again(well: Fleet) -> None:
    fleet = well
    with fleet.deployed("bystander", NODE_NAME, 2), fleet.followed(NODE_NAME) as history, program(fleet):
        before, booted = fleet.running("bystander"), boot(fleet.node(NODE_NAME))
        uuid = fleet.until(lambda: gpu_of_program(fleet), "the program to name its GPU")
        index = next(each for each in range(8) if fleet.gpu(NODE_NAME, each)["uuid"] == uuid)
        begun = fleet.xid(NODE_NAME, 94, index)
        fleet.until(lambda: restarts(fleet) == 1, "the program to run again")
        told(begun, "Xid 94 to the program that runs again")
        fleet.until(lambda: restart_called_for(fleet, uuid), "the agent to say what Xid 94 calls for")
        assert_nothing_is_called_for(fleet)
        assert "Xid 94" in (said := doctor(fleet)), said
        assert fleet.running("bystander") == before
        assert restarts(fleet) == 1
        assert fleet.offers(NODE_NAME) == 8
        assert boot(fleet.node(NODE_NAME)) == booted
        assert not was_ever_cordoned(history)


class program:
    """A pod of the real node whose program ends at a memory error, for as long as this lasts."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def __enter__(self) -> None:
        container = {
            "name": "main", "image": "kgpu.dev/cuda:base", "command": ["sh", "-c", PROGRAM],
            "resources": {"limits": {names.GPU_RESOURCE: 1}},
        }  # fmt: skip
        spec = {
            "terminationGracePeriodSeconds": 0, "nodeSelector": {"kubernetes.io/hostname": NODE_NAME},
            "containers": [container],
        }  # fmt: skip
        self._fleet.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "program"}, "spec": spec})

    def __exit__(self, *_: object) -> None:
        self._fleet.site.lab.kubectl("delete", "pod", "program", "--force", "--grace-period=0")


def gpu_of_program(fleet: Fleet) -> str:
    """The UUID of the program's GPU, "" until it has named it."""
    hit = re.search(r"UUID: (GPU-[0-9a-f-]+)", fleet.site.lab.kubectl_run("logs", "program").stdout)
    return hit[1] if hit else ""


def restarts(fleet: Fleet) -> int:
    """How often the program was started again, -1 while it does not run."""
    pod = fleet.site.get("pod", "program")
    rows = pod["status"].get("containerStatuses", ()) if pod else ()
    return next((int(row["restartCount"]) for row in rows if "running" in row["state"]), -1)


def restart_called_for(fleet: Fleet, uuid: str) -> bool:
    """Whether the agent reports Xid 94 of that GPU, which goes on working."""
    found = repairs.report(fleet.node(NODE_NAME))
    rows = [gpu for gpu in found.gpus if gpu.uuid == uuid and 94 in gpu.xids] if found else []
    return any(gpu.works and gpu.action in {Action.RESTART_APP, Action.RESET_GPU} for gpu in rows)


def assert_nothing_is_called_for(fleet: Fleet) -> None:
    """The operator has looked since then and made nothing: a request that came later is on record as waiting."""
    spec = {"nodeName": fleet.simulated[-1], "type": "Maintenance", "approved": False, "reason": "a look at the fans"}
    metadata = {"name": "asked-for-later"}
    request = {"apiVersion": "kgpu.dev/v1alpha1", "kind": "NodeOperation", "metadata": metadata, "spec": spec}
    fleet.apply(request)
    fleet.waits(request, "WaitsForApproval")
    assert [one["metadata"]["name"] for one in fleet.operations()] == ["asked-for-later"]


def test_the_documents_procedure_from_the_alert_to_the_returned_node(well: Fleet, tmp_path: Path) -> None:
    """Alert at once; drain; reboot; verify with CUDA; return it. The next test is of a node that fails again and again.

    The workload's owner holds the drain up until the alert has come, so that no machine is too fast to show it.
    """
    fleet, node = well, well.simulated[1]
    lift_budget(fleet)
    with fleet.deployed("trainer", node, 1), alerting(fleet, tmp_path) as prometheus, fleet.followed(node) as history:

        def alerts() -> set[str]:
            return {one for one in prometheus.firing() if node in one and one.startswith("GPUFallenOffBus")}

        former = boot(fleet.node(node))
        hold_up(fleet)
        begun = fleet.xid(node, 79, 1)
        fleet.until(alerts, "the alert")
        told(begun, "Xid 79 to the alert")
        operation = fleet.made(node, "Reboot")
        fleet.until(lambda: "trainer" in str(fleet.record(operation)["status"].get("drain")), "the drain to wait")
        assert is_cordoned(fleet.node(node))
        assert boot(fleet.node(node)) == former
        assert_doctor_leaves_it_to(fleet, operation, node)
        fleet.site.lab.kubectl("delete", "pdb", "trainer")
        fleet.succeeds(operation)
        fleet.until(lambda: not is_cordoned(history.states[-1]), "the watch to show the node that is given back")
        told(begun, "Xid 79 to the node that is given back, with a drain that was held up")
        assert_rebooted(history, former)
        fleet.until(lambda: not alerts(), "the alert to resolve")
        fleet.until(lambda: fleet.running("trainer"), "the workload to be back")


def hold_up(fleet: Fleet) -> None:
    """A disruption budget that lets no pod of the workload go."""
    fleet.site.lab.kubectl("create", "pdb", "trainer", "--selector=app=trainer", "--min-available=1")
    status = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/trainer"
    fleet.until(
        lambda: (fleet.site.lab.ask(status) or {}).get("status", {}).get("currentHealthy") == 1, "the budget's status"
    )


def assert_doctor_leaves_it_to(fleet: Fleet, operation: Object, node: str) -> None:
    """The doctor names the operation and what is in its way, and tells nobody to do by hand what it does."""
    said = doctor(fleet)
    assert operation["metadata"]["name"] in said, said
    assert "PodDisruptionBudget trainer" in said, said
    by_hand = [f"kubectl {verb} {node}" for verb in ("cordon", "drain", "uncordon")]
    assert not [words for words in by_hand if words in said], said


def test_a_node_whose_gpu_is_lost_after_every_reboot_is_kept_for_another_machine(well: Fleet) -> None:
    """The documents' last step. Its reboots of today are on record; what follows them is suggested, and somebody lets
    it begin. Then the machine is repaired, which another boot with GPUs that work shows.
    """
    fleet, node = well, well.simulated[2]
    lift_budget(fleet)
    with stopped_operator(fleet):
        for number in range(ATTEMPTS):
            fleet.apply_with_status(*past_reboot(fleet, node, number))
    with fleet.deployed("trainer", node, 1):
        begun = fleet.xid(node, 79, 1)
        operation = fleet.made(node, "Replace")
        fleet.waits(operation, "WaitsForApproval")
        assert not is_cordoned(fleet.node(node))
        fleet.say(operation, "approved")
        fleet.until(lambda: phase(fleet.record(operation)) == "Acting", "the node to be kept")
        told(begun, "Xid 79 to the node that is empty and kept, with its approval")
        fleet.until(lambda: is_marked(fleet.node(node)), "the node's label")  # written after the record
        assert is_cordoned(fleet.node(node))
        assert not fleet.running("trainer")
        evidence = fleet.record(operation)["status"]["evidence"]
        assert fleet.site.lab.ask(f"/api/v1/namespaces/{evidence['namespace']}/configmaps/{evidence['name']}")
        assert "NOP-09" in (said := doctor(fleet)), said
        manage.reboot(fleet.site.lab.paths.root, [node])
        assert fleet.succeeds(operation)["status"]["reason"] == "Repaired"
        fleet.settled()
        assert not is_marked(fleet.node(node))
        fleet.until(lambda: fleet.running("trainer"), "the workload to be back")


def is_marked(node: Object) -> bool:
    """Whether programs that replace machines are told of this one."""
    return bool(node["metadata"]["labels"].get(names.NEEDS_REPLACEMENT_LABEL) == "true")


@contextmanager
def stopped_operator(fleet: Fleet) -> Iterator[None]:
    """No operator while this lasts."""
    kubectl, pods = fleet.site.lab.kubectl, f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app%3Dgpu-operator"
    kubectl("-n", NAMESPACE, "scale", "deployment", "gpu-operator", "--replicas=0")
    try:
        fleet.until(lambda: not (fleet.site.lab.ask(pods) or {"items": [1]})["items"], "the operator to end")
        yield
    finally:
        kubectl("-n", NAMESPACE, "scale", "deployment", "gpu-operator", "--replicas=1")


def past_reboot(fleet: Fleet, node: str, number: int) -> tuple[Object, Object]:
    """A reboot that verdicts have called for some time ago, and its status: it has succeeded."""
    uid = fleet.node(node)["metadata"]["uid"]
    spec = {
        "nodeName": node, "nodeUID": uid, "type": "Reboot", "requestedBy": names.REMEDIATION_REQUESTER,
        "reason": "GPU 1: Xid 79",
    }  # fmt: skip
    metadata = {"name": f"reboot-{node}-{number}"}
    begun, ended = (
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - SETTLED_S * (number + 1) - before))
        for before in (60, 0)
    )
    status = {
        "phase": "Complete", "result": "Succeeded", "reason": "Rebooted", "message": "the node has rebooted",
        "nodeUID": uid, "startedAt": begun, "phaseSince": ended, "completedAt": ended,
        "act": {"id": f"{uid}-{number}", "bootID": f"boot-{number}"},
    }  # fmt: skip
    return {"apiVersion": "kgpu.dev/v1alpha1", "kind": "NodeOperation", "metadata": metadata, "spec": spec}, status
