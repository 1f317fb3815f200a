"""A node's own facts as a line of its agent's log: packed and read, from whom they count, and when they are too old."""

from __future__ import annotations

import base64
import io
import json
import random
import re
import tarfile
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kgpu.doctor.rules
from kgpu.base.errors import DriverFault, HwError
from kgpu.cli.doctor import snapshot_of
from kgpu.doctor import host_facts, secrets
from kgpu.doctor.archive import write
from kgpu.doctor.model import Subject
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources import files, host, probed
from kgpu.doctor.sources.host import READINGS
from kgpu.doctor.sources.live import LOG_BYTES, MAX_LOGS, collect
from kgpu.doctor.sources.logs import MAX_NODES, nodes_that_matter, worth_reading
from kgpu.hw.fake_reader import FakeReader, sample_inventory
from tests.budget import tries
from tests.doctor.test_live import FakeLogs, api_of

TAKEN = "2026-01-01T10:00:00Z"
SINCE_1970 = 1767261600.0
NOISE = "I0101 10:00:00.000000 agent.process] registered\n"


async def test_why_the_driver_can_not_be_read_travels_as_a_key() -> None:
    reader = FakeReader(sample_inventory())
    reader.set_down(HwError("nvml init failed: 9", "a driver", "load it", fault=DriverFault.NOT_LOADED))
    written = msgspec.json.encode({"metadata": {"name": "gpu-1"}, **await host.driver_facts(reader)})
    read = host_facts.decode(json.loads(written))
    assert (read.nvml_error, read.nvml_fault) == ("nvml init failed: 9", DriverFault.NOT_LOADED)


def facts(node: str = "gpu-1", **more: Any) -> dict[str, Any]:
    return {"apiVersion": host_facts.API_VERSION, "kind": host_facts.KIND, "metadata": {"name": node}, "node": node,
            "taken": TAKEN, "kernelLog": ["NVRM: Xid (PCI:0000:61:00): 79, GPU has fallen off the bus."], **more}  # fmt: skip


def agent(node: str = "gpu-1", *, ready: bool = True, **metadata: Any) -> dict[str, Any]:
    container = {"name": "agent", "image": "kgpu.dev/kgpu:1", "args": ["agent", "--auto"]}
    state = {"name": "agent", "ready": ready, "restartCount": 0, "state": {"running": {}}}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": f"kgpu-agent-{node}", "namespace": "gpu-operator", "labels": {"app": "kgpu-agent"},
                     "ownerReferences": [{"kind": "DaemonSet", "name": "kgpu-agent", "uid": "ds", "controller": True}],
                     **metadata},
        "spec": {"nodeName": node, "containers": [container], "volumes": [{"name": "host", "hostPath": {"path": "/"}}]},
        "status": {"phase": "Running", "containerStatuses": [state],
                   "conditions": [{"type": "Ready", "status": str(ready)}]},
    }  # fmt: skip


POLICY = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"},
          "status": {"state": "ready", "namespace": "gpu-operator"}}  # fmt: skip
OF_NODE = {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}
DAEMON_SET = {"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": {"template": {"spec": OF_NODE}},
              "metadata": {"name": "kgpu-agent", "namespace": "gpu-operator", "uid": "ds"}}  # fmt: skip
OPERATED = (POLICY, DAEMON_SET)


def node(name: str = "gpu-1", *, free: int = 8, ready: str = "True", **info: Any) -> dict[str, Any]:
    amounts = {"cpu": "8", "nvidia.com/gpu": "8"}
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true"}},
        "status": {"capacity": amounts, "allocatable": {**amounts, "nvidia.com/gpu": str(free)}, "nodeInfo": info,
                   "conditions": [{"type": "Ready", "status": ready}]},
    }  # fmt: skip


async def live(objects: list[dict[str, Any]], logs: dict[str, str], *, now: float = SINCE_1970 + 60) -> Snapshot:
    api, _ = api_of([*OPERATED, *objects])
    return await collect(api, logs=FakeLogs({name: text.splitlines() for name, text in logs.items()}), now=now)


def written(given_facts: dict[str, Any]) -> str:
    return f"{NOISE}{probed.line(given_facts)}\n{NOISE}"


def test_what_is_written_is_read() -> None:
    told = facts(
        files={"/etc/containerd/config.toml": {"text": "version = 3\n"}}, commandLine="password=hunter22hunter22"
    )
    line = probed.line(told)
    assert line.startswith('{"kgpu.dev/host-facts":')
    assert json.loads(line)["node"] == "gpu-1"
    found = probed.found_in(f"{NOISE}{line}\n{NOISE}".encode())
    assert found is not None
    assert found["kernelLog"] == told["kernelLog"]
    assert "version = 3" in found["files"]["/etc/containerd/config.toml"]["text"]
    assert "hunter22" not in str(found)


def test_the_last_line_counts_and_one_with_a_time_before_it() -> None:
    first, last = probed.line(facts(kernel="old")), probed.line(facts(kernel="new"))
    found = probed.found_in(f"2026-01-01T10:00:00.1Z {first}\n2026-01-01T11:00:00.1Z {last}\n{NOISE}".encode())
    assert found
    assert found["kernel"] == "new"
    assert (probed.found_in(f"{first}\n{last[:-40]}".encode()) or {})["kernel"] == "old"


def test_words_within_another_message_are_no_line() -> None:
    first, other = probed.line(facts(kernel="own")), probed.line(facts(kernel="theirs"))
    for before in ("WARNING pod says: ", " ", "2026-01-01T10:00:00Z  ", "x 2026-01-01T10:00:00Z ", "\r"):
        text = f"{NOISE}{first}\n{f'{before}{other}' * 20}\n".encode()
        assert (probed.found_in(text) or {})["kernel"] == "own", before
        assert probed.without(f"{before}{other}".encode()) == f"{before}{other}".encode()
    assert probed.without(f"2026-01-01T10:00:00+01:00 {first}\n{NOISE}".encode()) == NOISE.encode()


def test_files_are_cleaned_once_and_what_is_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned, packed = list[str](), list[int]()
    clean, pack = secrets.cleaned, probed._packed
    monkeypatch.setattr(secrets, "cleaned", lambda text: cleaned.append(text) or clean(text))
    monkeypatch.setattr(probed, "_packed", lambda document: packed.append(1) or pack(document))
    log = [f"NVRM: {zlib.crc32(str(at).encode()):x} {at}" for at in range(4000)] + ["NVRM: " + "word " * 9000]
    noise = {f"/etc/cdi/{at}": {"text": random.Random(at).randbytes(20_000).hex()} for at in range(20)}
    line = probed.line(
        facts(kernelLog=log, files={"/small": {"text": "kept"}, "/big": {"text": "x" * 70_000}, **noise})
    )
    found = host_facts.decode(probed.found_in(line.encode()) or {})
    assert "kept" not in cleaned
    assert len(packed) < 10
    assert found.files["/small"].text == "kept"
    assert found.files["/big"].text == ""
    assert "the file /big" in found.missing
    assert len((found.kernel_log or ("",))[-1]) <= probed.MAX_TEXT + 4


def test_what_does_not_fit_is_left_out_and_said() -> None:
    noise = [
        f"NVRM: {zlib.crc32(str(at).encode()):x}{zlib.crc32(str(at * 7).encode()):x} nvidia {at}" for at in range(4000)
    ]
    random = {f"/etc/cdi/{at}.yaml": {"text": base64.b85encode(zlib.compress(str(range(at)).encode()) * 700).decode()}
              for at in range(4)}  # fmt: skip
    line = probed.line(facts(kernelLog=noise, files=random | {"/etc/modprobe.d/nvidia.conf": {"text": "options"}}))
    assert len(line) <= probed.MAX_LINE
    found = probed.found_in(line.encode())
    assert found is not None
    assert found["kernelLog"] == noise[-len(found["kernelLog"]) :]
    assert len(found["kernelLog"]) < 4000
    assert "the beginning of the kernel log" in found["missing"]
    decoded = host_facts.decode(found)
    assert decoded.files["/etc/modprobe.d/nvidia.conf"].text == "options"


@tries(100)
@given(st.binary(max_size=300) | st.text(max_size=200).map(lambda text: f'{{"kgpu.dev/host-facts":{text}'.encode()))
def test_no_text_breaks_it(data: bytes) -> None:
    probed.found_in(data)
    probed.without(data)


def test_a_bomb_is_no_line() -> None:
    bomb = base64.b64encode(zlib.compress(b'{"node": "' + b"x" * (probed.MAX_FACTS + 10) + b'"}')).decode()
    assert probed.found_in(f'{{"kgpu.dev/host-facts":1,"node":"n","taken":"t","facts":"{bomb}"}}'.encode()) is None
    assert probed.found_in(b'{"kgpu.dev/host-facts":' * 50_000) is None


async def test_a_running_cluster_has_its_nodes_facts_in_its_agents_logs() -> None:
    found = await live([node(free=7), agent()], {"gpu-operator/kgpu-agent-gpu-1": written(facts())})
    host = found.hosts["gpu-1"]
    assert host.told_by == "log of Pod gpu-operator/kgpu-agent-gpu-1 container agent"
    assert TAKEN in host.cite("kernel").object
    assert not any("own files" in gap.what for gap in found.missing)
    said = [line for logs in found.logs.values() for log in logs for line in log.lines]
    assert said == [NOISE.strip()] * 2  # nobody reads what is packed


@pytest.mark.parametrize(
    ("of_node", "pod", "when", "why"),
    [(node(free=7), agent(), SINCE_1970 + 3 * 3600, "nothing newer than"),
     (node(free=7, bootID="b2"), agent(), SINCE_1970 + 60, "started anew"),
     (node(free=7), agent(), SINCE_1970 - 61, "has not come yet"),
     (node(free=7), {**agent(), "spec": {"nodeName": "gpu-1", "containers": [{"name": "agent", "image": "evil"}]},
                     "metadata": {"name": "kgpu-agent-gpu-1", "namespace": "gpu-operator", "labels": {"app": "nvidia-dcgm"}}},
      SINCE_1970 + 60, "no agent of kgpu has told it"),
     (node(free=7), None, SINCE_1970 + 60, "no agent of kgpu has told it")],
)  # fmt: skip
async def test_what_is_old_or_not_an_agents_does_not_count(
    of_node: dict[str, Any], pod: dict[str, Any] | None, when: float, why: str
) -> None:
    objects = [of_node, *([pod] if pod else [])]
    found = await live(objects, {"gpu-operator/kgpu-agent-gpu-1": written(facts(bootId="b1"))}, now=when)
    assert found.hosts == {}
    gap = next(gap for gap in found.missing if "own files" in gap.what and why in gap.why)
    assert "kgpu doctor --host" in gap.how


async def test_facts_that_do_not_say_of_which_boot_they_are_do_not_count() -> None:
    found = await live([node(bootID="b1"), agent()], {"gpu-operator/kgpu-agent-gpu-1": written(facts())})
    assert found.hosts == {}
    found = await live([node(bootID="b1"), agent()], {"gpu-operator/kgpu-agent-gpu-1": written(facts(bootId="b1"))})
    assert list(found.hosts) == ["gpu-1"]


def _owned(by: str, uid: str) -> list[dict[str, Any]]:
    return [{"kind": "DaemonSet", "name": by, "uid": uid, "controller": True}]


TENANTS = {**DAEMON_SET, "spec": {}, "metadata": {"name": "kgpu-agent", "namespace": "tenant", "uid": "theirs"}}
UNSAID = {**POLICY, "status": {}}


@pytest.mark.parametrize(
    ("others", "metadata"),
    [(OPERATED, {"ownerReferences": []}),
     (OPERATED, {"namespace": "tenant"}),
     (OPERATED, {"namespace": "tenant", "ownerReferences": _owned("kgpu-agent", "theirs")}),
     ((*OPERATED, TENANTS), {"namespace": "tenant", "ownerReferences": _owned("kgpu-agent", "theirs")}),
     ((UNSAID, DAEMON_SET, TENANTS), {"namespace": "tenant", "ownerReferences": _owned("kgpu-agent", "theirs")}),
     ((TENANTS,), {"namespace": "tenant", "ownerReferences": _owned("kgpu-agent", "theirs")}),
     (OPERATED, {"ownerReferences": _owned("kgpu-agent", "other")}),
     (OPERATED, {"ownerReferences": _owned("some-agent", "ds")})],
)  # fmt: skip
async def test_a_pod_that_looks_like_an_agent_is_none(others: tuple[dict[str, Any], ...], metadata: Any) -> None:
    pod = agent(**metadata)
    api, _ = api_of([*others, node(free=7), pod])
    path = f"{pod['metadata']['namespace']}/kgpu-agent-gpu-1"
    found = await collect(api, logs=FakeLogs({path: written(facts()).splitlines()}), now=SINCE_1970 + 60)
    assert found.hosts == {}


@pytest.mark.parametrize(
    ("others", "counts"), [(OPERATED, True), ((POLICY,), True), ((DAEMON_SET,), True), ((), False)]
)
def test_in_files_it_must_be_known_which_agents_are_kgpus_own(
    others: tuple[dict[str, Any], ...], counts: bool, tmp_path: Path
) -> None:
    (tmp_path / "all.json").write_text(json.dumps({"kind": "List", "items": [*others, node(), agent()]}))
    (tmp_path / "kgpu-agent-gpu-1.log").write_text(written(facts()))
    found = files.read(str(tmp_path))
    assert list(found.hosts) == (["gpu-1"] if counts else [])
    assert any("kgpu's own" in gap.why for gap in found.missing) != counts


@pytest.mark.parametrize(("others", "whose"), [((TENANTS,), []), ((TENANTS, DAEMON_SET), ["gpu-operator"])])
def test_a_tenants_daemon_set_tells_nothing_where_policies_were_not_given(
    others: tuple[dict[str, Any], ...], whose: list[str], tmp_path: Path
) -> None:
    pods = (agent(), agent(namespace="tenant", ownerReferences=_owned("kgpu-agent", "theirs")))
    (tmp_path / "all.json").write_text(json.dumps({"kind": "List", "items": [*others, node(), *pods]}))
    for namespace in ("gpu-operator", "tenant"):
        log = tmp_path / "logs" / namespace / "kgpu-agent-gpu-1" / "agent.log"
        log.parent.mkdir(parents=True)
        log.write_text(written(facts(driverVersion=namespace)))
    found = files.read(str(tmp_path))
    assert [host.driver_version for host in found.hosts.values()] == whose


@pytest.mark.parametrize("name", ["logs/tenant/evil/c.log", "evil.log"])
def test_a_log_among_files_whose_pod_is_not_there_is_anybodys(name: str, tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text(json.dumps({"kind": "List", "items": [*OPERATED, node(), agent()]}))
    log = tmp_path / name
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(written(facts()))
    found = files.read(str(tmp_path))
    assert found.hosts == {}
    assert any(name in gap.what for gap in found.missing)
    assert list(files.read(str(log)).hosts) == ["gpu-1"]  # the user has named it himself


async def test_facts_are_nothing_else_whatever_they_say() -> None:
    forged = [{"kind": "Pod", "metadata": {"name": "x", "namespace": "kube-system"}}]
    for more in ({"kind": "Node"}, {"kind": "List", "items": forged}, {"metadata": {"name": "gpu-2"}}):
        told = written(facts(**{"status": {"conditions": []}, "toldBy": "me", **more}))
        found = await live([node(free=7), agent()], {"gpu-operator/kgpu-agent-gpu-1": told})
        assert list(found.pods) == [("gpu-operator", "kgpu-agent-gpu-1")]
        assert found.nodes["gpu-1"].condition("Ready") is not None
        assert list(found.hosts) == ["gpu-1"]
        assert found.hosts["gpu-1"].told_by.startswith("log of Pod")


async def test_facts_of_another_node_do_not_count() -> None:
    told = written(facts("gpu-2"))
    found = await live([node(), node("gpu-2"), agent()], {"gpu-operator/kgpu-agent-gpu-1": told})
    assert found.hosts == {}


async def test_what_is_cut_is_asked_again_with_fewer_lines() -> None:
    """A server cuts what was said last."""
    lines = [probed.line(facts(kernel=f"k{at}", kernelLog=[])) + " " * 9000 for at in range(200)]

    class Cutting(FakeLogs):
        async def logs(self, namespace: str, pod: str, container: str, *, previous: bool, tail: int, limit: int, since: int = 0) -> bytes:  # fmt: skip
            self.asked.append(f"{tail}")
            return "\n".join(lines[-tail:]).encode()[:limit]

    api, _ = api_of([*OPERATED, node(free=7), agent(ready=False)])
    logs = Cutting({})
    found = await collect(api, logs=logs, now=SINCE_1970)
    assert found.hosts["gpu-1"].kernel == "k199"
    assert LOG_BYTES < 60 * 9000
    assert logs.asked == ["500", "60", "8"]


async def test_a_kubelet_that_is_silent_is_not_asked() -> None:
    api, _ = api_of([node(ready="Unknown"), agent(ready=False)])
    logs = FakeLogs({})
    found = await collect(api, logs=logs, now=SINCE_1970)
    assert logs.asked == []
    assert "logs of pods on node gpu-1" in [gap.what for gap in found.missing]


def test_of_many_nodes_those_in_trouble_are_read_first_and_the_target_before_them() -> None:
    objects = [one for at in range(300) for one in (node(f"n{at:03}", free=7 if at > 200 else 8), agent(f"n{at:03}"))]
    found = Snapshot.of([*OPERATED, *objects])
    assert nodes_that_matter(found)[0] == "n201"
    matter = nodes_that_matter(found, Subject("Node", "n007"))
    assert matter[:2] == ("n007", "n201")
    assert len(matter) == MAX_NODES
    asked = [pod.node for pod, _, _ in worth_reading(found, frozenset(matter))[:MAX_LOGS]]
    assert set(asked[:MAX_NODES]) == set(matter)


async def test_an_archive_a_must_gather_and_a_mere_log_have_the_same_facts(tmp_path: Path) -> None:
    objects, text = [*OPERATED, node(free=7), agent()], written(facts())
    whole = await live(objects[len(OPERATED) :], {"gpu-operator/kgpu-agent-gpu-1": text})
    write(whole, str(tmp_path / "own.tar.gz"))
    gathered = tmp_path / "must-gather"
    gathered.mkdir()
    (gathered / "all.json").write_text(json.dumps({"kind": "List", "items": objects}))
    (gathered / "kgpu-agent-gpu-1.log").write_text(text)
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as archive:
        for name, data in {"all.json": json.dumps({"kind": "List", "items": objects}),
                           "logs/gpu-operator/kgpu-agent-gpu-1/agent.log": text}.items():  # fmt: skip
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data.encode()))
    (tmp_path / "agent.log").write_text(text)
    for path in ("own.tar.gz", "must-gather", "other.tar.gz", "agent.log"):
        found = await snapshot_of(str(tmp_path / path), "")
        assert found.hosts["gpu-1"].kernel_log == tuple(facts()["kernelLog"]), path
        assert diagnose(found).findings[0].id == "HW-01", path


def test_what_the_log_of_a_container_before_its_restart_says_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text(json.dumps({"kind": "List", "items": [*OPERATED, node(), agent()]}))
    (tmp_path / "kgpu-agent-gpu-1.previous.log").write_text(written(facts()))
    assert files.read(str(tmp_path)).hosts == {}


def test_every_reading_that_a_rule_asks_for_is_read() -> None:
    texts = [path.read_text() for path in Path(kgpu.doctor.rules.__file__).parent.rglob("*.py")]
    asked = {
        name
        for text in texts
        for pattern in (r'readings(?:\.get\(|\[)"(\w+)"', r'(?:number|_reading)\([\w.]+, "(\w+)"\)')
        for name in re.findall(pattern, text)
    }
    assert len(asked) > 10
    assert asked <= set(READINGS)


def test_facts_are_a_document_of_archives() -> None:
    found = host_facts.decode(facts(missing={"x": "y"}))
    assert msgspec.to_builtins(found)["kernelLog"]
    assert host_facts.decode(host_facts.encode(found)) == found
