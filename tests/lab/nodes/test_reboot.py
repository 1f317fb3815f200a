"""Machines of simulated nodes that reboot: what ends, what is lost, what comes back, and who may ask for it."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgpu.base.boot import BOOT_ID, ENV_BOOT_ID, boot_id
from kgpu.formats.names import ENV_SIMULATED_REBOOT, GPU_RESOURCE, IMAGE_REPOSITORY
from kgpu.hw.simulator import mig, operate
from kgpu.kube.client import connect
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES, PODS, Object
from kgpu.lab.embedded import ready
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.nodes import agents, boots, manage, reboot
from kgpu.lab.nodes import host as host_module
from kgpu.lab.nodes import node as node_module
from kgpu.lab.nodes.claims import ClaimManager, DraDrivers
from kgpu.lab.nodes.container_processes import is_alive
from kgpu.lab.nodes.folder import POWERED_DOWN, REBOOT, ask_for_reboot, mark_for_removal, switch_off, switch_on
from kgpu.lab.nodes.machine import of_node
from kgpu.lab.nodes.spec import NodeSpec
from tests.lab.nodes import hosting
from tests.lab.nodes.support import GPU, NODE, WAIT_S, Bench, gpus, plugin, pod, until, until_said, until_there
from tests.lab.nodes.test_restart import alive, pids

KGPU = f"{IMAGE_REPOSITORY}:1"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "SETTLE_S", 0.02)


def told(lab: Bench) -> str:
    """The boot that the Node tells."""
    return str(lab.api._objects[NODES, "", NODE].obj["status"]["nodeInfo"]["bootID"])


async def is_back(lab: Bench) -> str:
    """Return the new boot once the node is up again with it."""
    folder = lab.node_folder
    await until(lambda: not (folder / REBOOT).exists())
    boot = boots.read(folder)
    await until(lambda: told(lab) == boot and lab.node.registered.is_set(), lambda: told(lab))
    return boot


async def rebooted(lab: Bench) -> str:
    """Reboot the node; its new boot."""
    ask_for_reboot(lab.node_folder)
    return await is_back(lab)


async def restarted(lab: Bench, name: str, times: int = 1) -> None:
    """Return when the pod's container runs after so many starts again."""
    await until(
        lambda: lab.container(name).get("restartCount") == times and lab.state(name)[0] == "running",
        lambda: f"{name}: {lab.status(name)}",
    )


def lasting(name: str, script: str = "echo up; sleep 600", **about: object) -> Object:
    """A pod that is started again for ever."""
    return pod(name, script, spec_restartPolicy="Always", **about)


async def test_a_boot_has_an_id_that_is_told_and_kept(lab: Bench) -> None:
    assert told(lab) == boot_id(BOOT_ID)
    assert boots.read(lab.node_folder) == ""
    first = await rebooted(lab)
    assert uuid.UUID(first).version == 4
    assert first != boot_id(BOOT_ID)
    text = f"Node {NODE} has been rebooted, boot id: {first}"
    assert await lab.event("Rebooted") == text
    (event,) = [one.obj for one in lab.api._objects.values() if one.obj.get("reason") == "Rebooted"]
    assert (event["type"], event["involvedObject"]["kind"], event["source"]["host"]) == ("Warning", "Node", NODE)
    await lab.down()
    await lab.up()
    assert told(lab) == first
    second = await rebooted(lab)
    assert second != first
    await until(lambda: len(lab.events("Rebooted")) == 2)


async def test_pods_go_on_by_their_restart_policy(lab: Bench) -> None:
    await lab.create(lasting("always"))
    await lab.create(pod("onfailure", "echo up; sleep 600", spec_restartPolicy="OnFailure"))
    await lab.create(pod("never", "trap '' TERM; echo up; sleep 600"))
    await lab.create(lasting("standin", image="example.com/any:1"))
    await lab.create(pod("over", "echo"))
    for name in ("always", "onfailure", "never"):
        await until_said(lab, name, "up")
    await lab.phase_is("standin", "Running")
    await lab.phase_is("over", "Succeeded")
    for name in ("always", "onfailure", "never"):
        await lab.phase_is(name, "Running")
    before, address = pids(lab), lab.status("always")["podIP"]
    former = {name: lab.container(name)["containerID"] for name in ("always", "standin")}
    await rebooted(lab)
    assert not any(is_alive(pid) for pid in before.values())
    for name in ("always", "onfailure", "standin"):
        await restarted(lab, name)
        last = lab.container(name)["lastState"]["terminated"]
        assert (last["exitCode"], last["reason"]) == (255, "Unknown")
    for name, container in former.items():
        assert lab.container(name)["lastState"]["terminated"]["containerID"] == container
    status = await lab.phase_is("never", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 255
    assert lab.container("never")["restartCount"] == 0
    assert lab.container("over")["state"]["terminated"]["exitCode"] == 0
    assert lab.status("always")["podIP"] != address
    # With the address of before beside it a real API server refuses the status, and every one after it.
    assert lab.status("always")["podIPs"] == [{"ip": lab.status("always")["podIP"]}]
    assert "Pod sandbox changed, it will be killed and re-created." in lab.events("SandboxChanged")


async def test_another_reboot_and_another_host_find_no_back_off_and_nothing_twice(lab: Bench) -> None:
    await lab.create(lasting("p"))
    await until_said(lab, "p", "up")
    await lab.phase_is("p", "Running")
    for times in (1, 2, 3):
        await rebooted(lab)
        await restarted(lab, "p", times)
    running = pids(lab)
    assert not lab.events("BackOff")
    await lab.down()
    await lab.up()
    await restarted(lab, "p", 3)
    assert pids(lab) == running


async def test_a_container_that_ended_by_itself_before_keeps_its_end(lab: Bench) -> None:
    go = lab.folder / "go"
    await lab.create(pod("p", until_there(go, "exit 7")))
    await lab.phase_is("p", "Running")
    (pid,) = pids(lab).values()
    await lab.down()
    go.touch()
    await until(lambda: not alive(pid))
    ask_for_reboot(lab.node_folder)
    await lab.up()
    status = await lab.phase_is("p", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7


async def test_a_pod_begins_anew_with_its_init_containers(lab: Bench) -> None:
    init = {"name": "init", "image": "busybox:1", "command": ["sh", "-c", "echo init"]}
    await lab.create(lasting("p", spec_initContainers=[init]))
    await until_said(lab, "p", "up")
    await lab.phase_is("p", "Running")
    await rebooted(lab)
    await restarted(lab, "p")
    assert lab.container("p", "init")["restartCount"] == 1
    assert lab.container("p", "init")["state"]["terminated"]["exitCode"] == 0


async def test_memory_is_lost_and_what_is_on_disk_stays(lab: Bench) -> None:
    its = lab.node.context.machine
    lost = [its.find(path) for path in ("/run/kgpu/a/b", "/run/nvidia/validations/c", "/var/run/cdi/d.json")]
    lost.append(lab.node_folder / "run" / "verdicts.json")
    stays = [its.find(path) for path in ("/etc/cdi/e.json", "/var/lib/kgpu/f")]
    aside = lab.folder / "aside"
    for path in (*lost, *stays, aside / "g"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (its.find("/run/kgpu") / "link").symlink_to(aside)
    memory = {"name": "memory", "emptyDir": {"medium": "Memory"}}
    disk = {"name": "disk", "emptyDir": {}}
    mounts = [{"name": name, "mountPath": f"/data/{name}"} for name in ("memory", "disk")]
    await lab.create(lasting("p", spec_volumes=[memory, disk], volumeMounts=mounts))
    await until_said(lab, "p", "up")
    await lab.phase_is("p", "Running")
    volumes = lab.node_folder / "pods" / lab.pod("p")["metadata"]["uid"] / "volumes"
    for name in ("memory", "disk"):
        (volumes / name / "file").touch()
    await rebooted(lab)
    assert [path for path in lost if path.exists()] == []
    assert all(path.exists() for path in (*stays, aside / "g", its.find("/run/kgpu"), its.find("/run/nvidia")))
    await restarted(lab, "p")
    assert not (volumes / "memory" / "file").exists()
    assert (volumes / "disk" / "file").exists()


async def goes_down(lab: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for a reboot; return while the machine is down, which it is for good."""
    monkeypatch.setattr(reboot, "BOOT_S", 1e9)
    running, node = pids(lab).values(), lab.node
    ask_for_reboot(lab.node_folder)
    await until(lambda: lab.node is not node and not any(is_alive(pid) for pid in running))


async def test_a_host_that_is_killed_on_the_way_finishes_it(lab: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.create(lasting("p"))
    await until_said(lab, "p", "up")
    await lab.phase_is("p", "Running")
    await goes_down(lab, monkeypatch)
    assert not lab.node.registered.is_set()
    assert told(lab) == boot_id(BOOT_ID)
    await lab.down()
    assert boots.read(lab.node_folder) == ""
    monkeypatch.setattr(reboot, "BOOT_S", 0.0)
    await lab.up()
    assert await is_back(lab) != boot_id(BOOT_ID)
    await restarted(lab, "p")


async def test_a_host_that_is_killed_before_the_first_and_after_the_last_part_does_it_once(lab: Bench) -> None:
    await lab.create(lasting("p"))
    await until_said(lab, "p", "up")
    await lab.phase_is("p", "Running")
    before = pids(lab)
    await lab.down()
    ask_for_reboot(lab.node_folder)
    unseen = boots.begin(lab.node_folder)  # as when only the file was left to be removed
    await lab.up()
    assert await is_back(lab) not in {unseen, boot_id(BOOT_ID)}
    await restarted(lab, "p")
    assert not any(is_alive(pid) for pid in before.values())
    assert len(lab.events("Rebooted")) == 1


async def test_requests_that_come_meanwhile_are_the_same_one(lab: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, asked_again = [], threading.Event()
    begin, cycle = boots.begin, reboot._power_cycle
    monkeypatch.setattr(boots, "begin", lambda folder: begun.append(begin(folder)) or begun[-1])
    monkeypatch.setattr(reboot, "_power_cycle", lambda *about: asked_again.wait(WAIT_S) and cycle(*about))
    node = lab.node
    for _ in range(2):
        ask_for_reboot(lab.node_folder)
    await until(lambda: lab.node is not node)
    ask_for_reboot(lab.node_folder)
    assert not begun
    asked_again.set()
    boot = await is_back(lab)
    lab.host._sync()
    assert not lab.host._rebooting
    assert begun == [boot]


async def test_a_reboot_that_fails_is_done_again(lab: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [OSError(28, "No space left on device")]
    begin = boots.begin

    def fail_once(folder: Path) -> str:
        if failing:
            raise failing.pop()
        return begin(folder)

    monkeypatch.setattr(boots, "begin", fail_once)
    assert await rebooted(lab) == boots.read(lab.node_folder)
    assert not failing


async def test_a_machine_that_is_switched_off_stays_off_also_for_another_host_until_it_is_switched_on(
    lab: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reboot, "_POLL_S", 0.01)
    await lab.create(lasting("p"))
    await until_said(lab, "p", "up")
    await lab.phase_is("p", "Running")
    running, dark = pids(lab).values(), lab.node_folder / POWERED_DOWN
    switch_off(lab.node_folder)
    await until(dark.exists)
    assert not any(is_alive(pid) for pid in running)
    assert lab.phase("p") == "Running"  # nobody is there to tell otherwise
    for refusal in (lab.host._find_running("default", "p", "main"), lab.host._find_log("default", "p", "main", False)):
        text = f"the kubelet of {NODE} does not answer: its machine is switched off"
        assert (refusal.code, refusal.text) == (500, text)
    await lab.down()
    dark.unlink()
    await lab.up(registered=False)
    await until(dark.exists)
    assert not lab.node.registered.is_set()
    assert boots.read(lab.node_folder) == ""
    switch_on(lab.node_folder)
    assert await is_back(lab) != boot_id(BOOT_ID)
    assert not dark.exists()
    await restarted(lab, "p")
    assert len(lab.events("Rebooted")) == 1


async def test_a_machine_that_is_switched_off_can_be_removed(lab: Bench) -> None:
    switch_off(lab.node_folder)
    await until((lab.node_folder / POWERED_DOWN).exists)
    mark_for_removal(lab.node_folder)
    await until(lambda: not lab.node_folder.exists())
    await until(lambda: (NODES, "", NODE) not in lab.api._objects)


async def test_a_machine_that_is_down_can_be_removed(lab: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await goes_down(lab, monkeypatch)
    mark_for_removal(lab.node_folder)
    await until(lambda: not lab.node_folder.exists())
    await until(lambda: (NODES, "", NODE) not in lab.api._objects)
    assert not lab.host._rebooting


async def test_pods_with_devices_wait_for_their_plugin_and_have_the_same_devices(
    lab: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "PLUGINS_S", WAIT_S)
    async with plugin(lab):
        await lab.create(lasting("p", 'echo "up $IDS"; sleep 600', resources=gpus(2)))
        await until_said(lab, "p", "up")
        await lab.phase_is("p", "Running")
        held = {key: dict(rows) for key, rows in lab.node.devices.held().items()}
    await rebooted(lab)
    assert lab.container("p")["restartCount"] == 0  # it is not judged before the plugin is back
    async with plugin(lab) as (_, logic):
        await restarted(lab, "p")
        assert lab.node.devices.held() == held
        assert not logic.allocated  # it has answered before


async def test_pods_whose_devices_are_gone_are_refused(lab: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async with plugin(lab):
        await lab.create(lasting("none", resources=gpus(1)))
        await lab.create(lasting("free"))
        for name in ("none", "free"):
            await until_said(lab, name, "up")
            await lab.phase_is(name, "Running")
    monkeypatch.setattr(node_module, "PLUGINS_S", 0.5)
    await rebooted(lab)
    status = await lab.phase_is("none", "Failed")
    text = f"Pod was rejected: Allocate failed due to cannot allocate unregistered device {GPU}, which is unexpected"
    assert (status["reason"], status["message"]) == ("UnexpectedAdmissionError", text)
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 255
    await until(lambda: not lab.node.devices.held())
    await restarted(lab, "free")
    assert lab.container("none")["restartCount"] == 0


def variables(lab: Bench, name: str) -> dict[str, str]:
    """The environment that the pod has told."""
    files = lab.node_folder / "logs" / f"default_{name}_{lab.pod(name)['metadata']['uid']}" / "main"
    lines = [line.split(" ", 3)[3] for line in (files / "0.log").read_text().splitlines()]
    return dict(line.partition("=")[::2] for line in lines)


async def environments(lab: Bench, number: int) -> dict[str, dict[str, str]]:
    """The two variables in each kind of container, each of which sets them itself."""
    mine = [{"name": name, "value": "/mine"} for name in (ENV_BOOT_ID, ENV_SIMULATED_REBOOT)]
    kinds = {
        "plain": {"image": KGPU},
        "host": {"image": KGPU, "spec_hostPID": True},
        "other": {"image": "busybox:1", "spec_hostPID": True},
    }
    found = {}
    for kind, about in kinds.items():
        name = f"{kind}-{number}"
        await lab.create(pod(name, "env", env=mine, **about))
        await lab.phase_is(name, "Succeeded")
        told = variables(lab, name)
        assert "HOSTNAME" in told
        found[kind] = {one: told[one] for one in (ENV_BOOT_ID, ENV_SIMULATED_REBOOT) if one in told}
    return found


async def test_only_kgpus_own_containers_know_the_boot_and_only_those_with_the_hosts_processes_may_reboot(
    lab: Bench,
) -> None:
    file = str(lab.node_folder / REBOOT)
    assert await environments(lab, 1) == {"plain": {}, "host": {ENV_SIMULATED_REBOOT: file}, "other": {}}
    boot = await rebooted(lab)
    assert await environments(lab, 2) == {
        "plain": {ENV_BOOT_ID: boot},
        "host": {ENV_BOOT_ID: boot, ENV_SIMULATED_REBOOT: file},
        "other": {},
    }


async def test_a_program_in_a_pod_reboots_its_machine(lab: Bench) -> None:
    script = f'echo up; [ -n "${ENV_BOOT_ID}" ] || touch "${ENV_SIMULATED_REBOOT}"; sleep 600'
    await lab.create(lasting("p", script, image=KGPU, spec_hostPID=True))
    await until(lambda: boots.read(lab.node_folder) != "")
    await is_back(lab)
    await until(lambda: lab.state("p")[0] == "running" and lab.container("p")["restartCount"] == 1)


async def test_what_ran_is_told_by_the_boot_and_not_by_a_clock() -> None:
    one, other = str(uuid.uuid4()), str(uuid.uuid4())
    for boot in ("", one):
        made = boots.container_id(boot)
        assert len(made) == len(boots.container_id("")) == 64
        assert not boots.is_former(boot, made)
        assert not boots.is_former("", made)
        assert boots.is_former(other, made)
    assert not boots.is_former(one, "")


async def test_a_light_node_reboots(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reboot, "BOOT_S", 0.0)
    api, where = FakeApi(), folder / "nodes" / "a"
    hosting.write(folder, hosting.light("a"))
    want = {"resources": gpus(1, GPU_RESOURCE), "spec_nodeName": "a"}

    def container(name: str) -> Object:
        rows = api._objects[PODS, "default", name].shown().get("status", {}).get("containerStatuses") or [{}]
        return dict(rows[0])

    async with hosting.hosting(folder, api):
        await hosting.ready(api, "a")
        await api.create(PODS, pod("always", image="x:1", spec_restartPolicy="Always", **want))
        await api.create(PODS, pod("never", image="x:1", **want))
        await until(lambda: all("running" in container(name).get("state", {}) for name in ("always", "never")))
        ask_for_reboot(where)
        await until(lambda: boots.read(where) != "")
        boot = boots.read(where)
        await until(lambda: (hosting.node(api, "a") or {})["status"]["nodeInfo"]["bootID"] == boot)
        await hosting.ready(api, "a")
        await until(lambda: container("always")["restartCount"] == 1 and "running" in container("always")["state"])
        await until(lambda: "terminated" in container("never")["state"])
        assert container("never")["state"]["terminated"]["exitCode"] == 255
        await until(lambda: any(one.obj.get("reason") == "Rebooted" for one in api._objects.values()))
    async with hosting.hosting(folder, api) as host:  # stand-ins have no files to be found by
        await until(lambda: "a" in host.nodes and host.nodes["a"].registered.is_set())
        await until(lambda: any(worker.state.phase == "Running" for worker in host.nodes["a"].workers.values()))
        assert container("always")["restartCount"] == 1


@pytest.mark.usefixtures("sim_libs")
@pytest.mark.parametrize("profile", ["hgx-h100", "dgx-a100-80g"])
async def test_slices_of_the_nodes_own_layout_are_made_again_and_others_are_gone(folder: Path, profile: str) -> None:
    api, where = FakeApi(), folder / NODE
    mine = NodeSpec(name=NODE, profile=profile, gpus=2, mig=("0:1g.10gb*2",), time_scale=0.001)
    agents.make_hardware(mine, where / "hw")
    mig.partition(where / "hw", 0, ["3g.40gb"])
    mig.partition(where / "hw", 1, ["3g.40gb"])
    ask_for_reboot(where)
    await reboot.perform(mine, where, of_node(where, where, gpus=True), ClaimManager(where, api, DraDrivers()))
    gpus_now = operate.snapshot(where / "hw")["gpus"]
    assert [[one["profile"] for one in gpu["mig"]["devices"]] for gpu in gpus_now] == [["1g.10gb"] * 2, []]
    assert not reboot.is_asked(where)


@pytest.mark.usefixtures("sim_libs")
async def test_damaged_hardware_keeps_no_machine_from_starting(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    where, mine = folder / NODE, NodeSpec(name=NODE, profile="l4", time_scale=0.001)
    (where / "hw").mkdir(parents=True)
    (where / "hw" / "state").write_text("damaged")
    its, claims = of_node(where, where, gpus=True), ClaimManager(where, FakeApi(), DraDrivers())
    await reboot.perform(mine, where, its, claims)
    assert boots.read(where)
    assert "it is not a state file" in caplog.text


def environment(pid: int) -> list[str]:
    """The environment of a process."""
    return Path(f"/proc/{pid}/environ").read_text().split("\0")


@pytest.fixture
def full(folder: Path, sim_libs: Path) -> Iterator[EmbeddedLab]:
    """A lab with one full node of two GPUs and an agent."""
    del sim_libs
    made = EmbeddedLab("reboot", folder / "lab")
    made.up()
    try:
        manage.add(made.folder, "hgx-h100", gpus=2, name_prefix="n", config="version: v1\n", time_scale=0.1)
        manage.start_host(made.folder, made.kubeconfig)
        yield made
    finally:
        manage.stop_host(made.folder)
        made.down()


async def test_a_lost_gpu_is_back_and_the_agent_knows_the_boot(full: EmbeddedLab) -> None:
    api, root = connect(str(full.kubeconfig)), full.nodes / NODE
    kept = {"containers": [{"name": "main", "image": "nvidia/cuda:12.8.0-base-ubuntu24.04", "resources": gpus(1, GPU_RESOURCE),
                            "command": ["sh", "-c", "nvidia-smi -L; sleep 600"]}]}  # fmt: skip

    async def offers(count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while True:
                node = await api.get(NODES, NODE) or {}
                if node.get("status", {}).get("allocatable", {}).get(GPU_RESOURCE) == str(count):
                    return
                await asyncio.sleep(0.1)

    async def restarts(count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while True:
                rows = (await api.get(PODS, "p", namespace="default") or {}).get("status", {}).get("containerStatuses")
                if rows and rows[0]["restartCount"] == count and "running" in rows[0]["state"]:
                    return
                await asyncio.sleep(0.1)

    try:
        await offers(2)
        await api.create(PODS, {"metadata": {"name": "p", "namespace": "default"}, "spec": {"nodeName": NODE, **kept}})
        await restarts(0)
        await asyncio.to_thread(operate.inject, root / "hw", "xid", gpu=0, xid=79)
        await offers(1)
        agent = (root / "agent.pid").read_text()
        await asyncio.to_thread(manage.reboot, full.folder, [NODE])
        (boot,) = (await asyncio.to_thread(manage.wait_until_booted, full.folder, [NODE], WAIT_S)).values()
        boots_wanted = {NODE: boot}
        await asyncio.to_thread(ready.wait_for_nodes, full.kubeconfig, {NODE: True}, WAIT_S, full.nodes, boots_wanted)
        await offers(2)
        await restarts(1)
        assert (await api.get(NODES, NODE))["status"]["nodeInfo"]["bootID"] == boot
        now = (root / "agent.pid").read_text()
        assert now != agent
        assert f"{ENV_BOOT_ID}={boot}" in environment(int(now))
    finally:
        await api.close()
