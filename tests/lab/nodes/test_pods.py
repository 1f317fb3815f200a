"""Pods on a simulated node: order, exit codes, restarts with back-off, probes, ends, environment, volumes."""

from __future__ import annotations

import base64
import shutil
import socket

import pytest

from kgpu.kube.port import CONFIG_MAPS, PODS
from kgpu.lab.nodes import probes
from kgpu.lab.nodes.context import SECRETS
from tests.lab.nodes.support import Bench, bench, pod, until, until_said
from tests.ports import free_port


def config_map(name: str, **data: str) -> dict:
    return {"metadata": {"name": name, "namespace": "default"}, "data": data}


@pytest.mark.parametrize(
    ("script", "code", "phase"), [("exit 0", 0, "Succeeded"), ("exit 3", 3, "Failed"), ("kill -9 $$$$", 137, "Failed")]
)
async def test_exit_codes(lab: Bench, script: str, code: int, phase: str) -> None:
    await lab.create(pod("p", f"echo hello; echo wrong >&2; {script}"))
    await lab.phase_is("p", phase)
    kind, about = lab.state("p")
    assert (kind, about["exitCode"], about["reason"]) == ("terminated", code, "Completed" if code == 0 else "Error")
    assert sorted((await lab.log("p")).splitlines()) == ["hello", "wrong"]


@pytest.mark.parametrize("mode", ["plain", "namespaces"])
async def test_both_ways_to_see_files(folder, mode: str) -> None:
    from kgpu.lab.nodes.runtime import detect_mode

    if mode == "namespaces" and detect_mode(folder / "probe") != mode:
        pytest.skip("this user may not make namespaces here")
    async with bench(folder, mode=mode) as lab:
        await lab.create(
            pod(
                "p",
                'echo "$A $HOSTNAME $(cat /data/f 2>/dev/null || cat data/f)"; pwd',
                env=[{"name": "A", "value": "1"}],
                volumeMounts=[{"name": "v", "mountPath": "/data"}],
                spec_volumes=[{"name": "v", "configMap": {"name": "c"}}],
            )
        )
        await lab.event("FailedMount")
        await lab.api.create(CONFIG_MAPS, config_map("c", f="content"))
        await lab.phase_is("p", "Succeeded")
        assert (await lab.log("p")).splitlines()[0] == "1 p content"


@pytest.mark.parametrize("mode", ["plain", "namespaces"])
@pytest.mark.skipif(shutil.which("busybox") is None, reason="no busybox on this machine")
async def test_the_shell_of_busybox_is_busybox(folder, mode: str) -> None:
    async with bench(folder, mode=mode) as lab:
        # Others leave $RANDOM empty.
        await lab.create(pod("p", 'test -n "$RANDOM" && echo busybox', image="docker.io/library/busybox:1.36"))
        await lab.phase_is("p", "Succeeded")
        assert await lab.log("p") == "busybox\n"


async def test_init_containers_run_one_after_the_other(lab: Bench) -> None:
    volume = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    await lab.create(
        pod(
            "p", "cat $W/v/order", image="busybox:1", **volume,
            spec_volumes=[{"name": "v", "emptyDir": {}}],
            spec_initContainers=[
                {"name": name, "image": "busybox:1", "command": ["sh", "-c", f"echo {name} >> ./v/order"], **volume}
                for name in ("first", "second")
            ],
        )
    )  # fmt: skip
    status = await lab.phase_is("p", "Failed")  # $W is empty, so /v is the machine's without namespaces
    assert [row["state"]["terminated"]["exitCode"] for row in status["initContainerStatuses"]] == [0, 0]
    order = lab.node_folder / "pods" / lab.pod("p")["metadata"]["uid"] / "volumes" / "v" / "order"
    assert order.read_text().split() == ["first", "second"]


async def test_a_failing_init_container_fails_the_pod(lab: Bench) -> None:
    init = {"name": "init", "image": "busybox:1", "command": ["sh", "-c", "exit 4"]}
    await lab.create(pod("p", "echo never", spec_initContainers=[init]))
    status = await lab.phase_is("p", "Failed")
    assert status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 4
    assert lab.state("p") == ("waiting", {"reason": "PodInitializing"})
    code, text = await lab.logs("/containerLogs/default/p/main")
    assert (code, text) == (400, 'container "main" in pod "p" is waiting to start: PodInitializing')


async def test_a_crash_loop_backs_off_and_keeps_the_log_of_the_run_before(lab: Bench) -> None:
    await lab.create(pod("p", "echo run $$; exit 1", spec_restartPolicy="Always"))
    await until(lambda: lab.container("p").get("restartCount", 0) >= 3)
    await until(lambda: lab.state("p")[1].get("reason") == "CrashLoopBackOff")
    kind, about = lab.state("p")
    assert kind == "waiting"
    assert about["message"].startswith("back-off ")
    assert about["message"].endswith(
        f"restarting failed container=main pod=p_default({lab.pod('p')['metadata']['uid']})"
    )
    assert lab.container("p")["lastState"]["terminated"]["exitCode"] == 1
    assert (
        await lab.event("BackOff")
        == f"Back-off restarting failed container main in pod p_default({lab.pod('p')['metadata']['uid']})"
    )
    assert (await lab.log("p", query="?previous=true")).startswith("run ")
    assert lab.phase("p") == "Running"


async def test_on_failure_restarts_only_failures(lab: Bench) -> None:
    script = "test -e v/seen && exit 0; touch v/seen; exit 1"
    await lab.create(
        pod(
            "p",
            script,
            spec_restartPolicy="OnFailure",
            spec_volumes=[{"name": "v", "emptyDir": {}}],
            volumeMounts=[{"name": "v", "mountPath": "/v"}],
        )
    )
    await lab.phase_is("p", "Succeeded")
    assert lab.container("p")["restartCount"] == 1


async def test_readiness_comes_and_goes(lab: Bench) -> None:
    probe = {"exec": {"command": ["sh", "-c", "test -e v/ready"]}, "periodSeconds": 1, "failureThreshold": 1}
    await lab.create(
        pod(
            "p",
            "sleep 600",
            readinessProbe=probe,
            spec_volumes=[{"name": "v", "emptyDir": {}}],
            volumeMounts=[{"name": "v", "mountPath": "/v"}],
        )
    )
    await lab.event("Unhealthy")
    await until(lambda: lab.container("p").get("ready") is False)  # told by another task than the event
    marker = lab.node_folder / "pods" / lab.pod("p")["metadata"]["uid"] / "volumes" / "v" / "ready"
    marker.touch()
    await until(lambda: lab.container("p")["ready"])
    ready = {row["type"]: row["status"] for row in lab.status("p")["conditions"]}
    assert ready["Ready"] == ready["ContainersReady"] == "True"
    marker.unlink()
    await until(lambda: not lab.container("p")["ready"])
    assert lab.container("p")["restartCount"] == 0


async def test_a_failed_liveness_probe_restarts(lab: Bench) -> None:
    probe = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1}
    await lab.create(pod("p", "sleep 600", livenessProbe=probe, spec_restartPolicy="Always"))
    assert await lab.event("Killing") == "Container main failed liveness probe, will be restarted"
    await until(lambda: lab.container("p").get("restartCount", 0) >= 1)


@pytest.mark.parametrize("kind", ["httpGet", "tcpSocket"])
async def test_http_and_tcp_probes_really_ask(lab: Bench, kind: str) -> None:
    port = free_port()
    action = {kind: {"port": port}}
    script = f'"$KGPU_LAB_PYTHON" -m http.server --bind "$KGPU_LAB_POD_ADDRESS" {port}'
    await lab.create(pod("p", script, readinessProbe={**action, "periodSeconds": 1}))
    await until(lambda: lab.container("p").get("ready", False), lambda: str(lab.status("p")))
    await lab.create(pod("q", "sleep 600", readinessProbe={**action, "periodSeconds": 1}))
    await until(lambda: "podIP" in lab.status("q"))
    refused = f"dial tcp {lab.node.context.loopback(lab.status('q')['podIP'])}:{port}: connect: connection refused"
    await until(lambda: any(text.endswith(refused) for text in lab.events("Unhealthy")), lambda: str(lab.events("")))
    assert lab.container("q")["ready"] is False


@pytest.mark.parametrize("kind", ["httpGet", "tcpSocket"])
async def test_a_probe_does_not_take_a_strangers_listener_for_the_pods(lab: Bench, kind: str) -> None:
    with socket.socket() as stranger:
        stranger.bind(("", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        await lab.create(pod("p", "sleep 600", readinessProbe={kind: {"port": port}, "periodSeconds": 1}))
        await until(lambda: "podIP" in lab.status("p"))
        refused = f"dial tcp {lab.node.context.loopback(lab.status('p')['podIP'])}:{port}: connect: connection refused"
        await until(
            lambda: any(text.endswith(refused) for text in lab.events("Unhealthy")), lambda: str(lab.events(""))
        )
        assert lab.container("p")["ready"] is False
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):  # it was not even asked
            stranger.accept()


async def test_a_pods_port_is_looked_at_again_once_it_fails() -> None:
    asked: list[int] = []
    ports = probes.PodPorts(lambda port: not asked.append(port) and len(asked) != 2)
    assert [await ports.own(80), await ports.own(80)] == [True, True]
    assert asked == [80]
    ports.failed(80)
    assert [await ports.own(80), await ports.own(80), await ports.own(81)] == [False, True, True]
    assert asked == [80, 80, 80, 81]


async def test_deleting_runs_pre_stop_then_term(lab: Bench) -> None:
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo hook >> v/said"]}}}
    script = "trap 'echo term >> v/said; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    await lab.create(
        pod(
            "p",
            script,
            lifecycle=hook,
            spec_terminationGracePeriodSeconds=300,
            spec_volumes=[{"name": "v", "hostPath": {"path": str(lab.folder / "shared"), "type": "DirectoryOrCreate"}}],
            volumeMounts=[{"name": "v", "mountPath": "/v"}],
        )
    )
    await lab.phase_is("p", "Running")
    await until_said(lab, "p", "up")
    await lab.api.delete(PODS, "p", namespace="default")
    await lab.is_gone("p")
    assert (lab.folder / "shared" / "said").read_text().split() == ["hook", "term"]
    await until(lambda: not list((lab.node_folder / "c").glob("*")))


def with_post_start(lab: Bench, script: str) -> dict:
    """A container's fields; in its hook and its own script $W is the bench's folder."""
    hook = {"postStart": {"exec": {"command": ["sh", "-c", script]}}}
    return {"env": [{"name": "W", "value": str(lab.folder)}], "lifecycle": hook}


async def test_post_start_ends_before_the_pod_is_running(lab: Bench) -> None:
    await lab.create(pod("p", "sleep 100", **with_post_start(lab, "sleep 0.3; touch $W/hook")))
    await lab.phase_is("p", "Running")
    assert (lab.folder / "hook").exists()


async def test_a_failed_post_start_ends_the_container(lab: Bench) -> None:
    await lab.create(pod("p", "trap 'exit 3' TERM; sleep 100 & wait", **with_post_start(lab, "exit 1")))
    await lab.phase_is("p", "Failed")
    assert await lab.event("FailedPostStartHook") == "PostStartHook failed"


async def test_a_hanging_post_start_does_not_keep_a_deleted_pod(lab: Bench) -> None:
    await lab.create(pod("p", "sleep 1000", **with_post_start(lab, "touch $W/hook; sleep 1000")))
    await until((lab.folder / "hook").exists)
    await lab.api.delete(PODS, "p", namespace="default")
    await lab.is_gone("p")


async def test_what_ignores_term_is_killed_after_its_grace_time(lab: Bench) -> None:
    await lab.create(pod("p", "trap '' TERM; echo up; while :; do sleep 0.05; done"))
    await lab.phase_is("p", "Running")
    await until_said(lab, "p", "up")
    await lab.api.delete(PODS, "p", namespace="default")
    await lab.is_gone("p")


async def test_active_deadline(lab: Bench) -> None:
    await lab.create(pod("p", "sleep 600"))
    await lab.phase_is("p", "Running")
    await lab.api.patch(PODS, "p", {"spec": {"activeDeadlineSeconds": 1}}, namespace="default")
    status = await lab.phase_is("p", "Failed")
    assert (status["reason"], status["message"]) == (
        "DeadlineExceeded",
        "Pod was active on the node longer than the specified deadline",
    )
    await until(lambda: lab.state("p")[0] == "terminated")


async def test_environment_from_everywhere(lab: Bench) -> None:
    await lab.api.create(CONFIG_MAPS, config_map("c", key="from-map", other="x"))
    secret = {
        "metadata": {"name": "s", "namespace": "default"},
        "data": {"password": base64.b64encode(b"hunter2").decode()},
    }
    await lab.api.create(SECRETS, secret)
    env = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "key"}}},
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "password"}}},
        {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "gone", "key": "password", "optional": True}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "SUM", "value": "$(NAME)-$(KEY)-$$(NAME)-$(UNKNOWN)"},
    ]
    script = 'echo "$NAME $NODE $IP $KEY $PASSWORD ${NONE-unset} $CPU $SUM $PRE_other"'
    resources = {"limits": {"cpu": "1500m"}}
    await lab.create(
        pod("p", script, env=env, resources=resources, envFrom=[{"prefix": "PRE_", "configMapRef": {"name": "c"}}])
    )
    await lab.phase_is("p", "Succeeded")
    ip = lab.status("p")["podIP"]
    assert await lab.log("p") == f"p n-1 {ip} from-map hunter2 unset 2 p-from-map-$(NAME)-$(UNKNOWN) x\n"


async def test_a_missing_reference_waits_until_it_is_there(lab: Bench) -> None:
    ref = {"configMapKeyRef": {"name": "late", "key": "k"}}
    await lab.create(pod("p", 'echo "$A"', env=[{"name": "A", "valueFrom": ref}]))
    await until(lambda: lab.state("p")[1].get("reason") == "CreateContainerConfigError")
    assert lab.state("p")[1]["message"] == 'configmap "late" not found'
    await lab.api.create(CONFIG_MAPS, config_map("late", k="v"))
    await lab.phase_is("p", "Succeeded")
    assert await lab.log("p") == "v\n"


async def test_a_missing_command(lab: Bench) -> None:
    await lab.create(pod("p", image="busybox:1", command=["/no/such/program"]))
    status = await lab.phase_is("p", "Failed")
    about = status["containerStatuses"][0]["state"]["terminated"]
    assert (about["exitCode"], about["reason"]) == (128, "StartError")
    assert 'exec: "/no/such/program": stat /no/such/program: no such file or directory' in about["message"]


def sub_path(expression: str) -> dict:
    mount = {"name": "v", "mountPath": "/sub", "subPathExpr": expression}
    return {"volumeMounts": [mount], "spec_volumes": [{"name": "v", "emptyDir": {}}]}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "missing value for A"),
        ("/etc", "error SubPath `/etc` must not be an absolute path"),
        ("a/..", "unable to provision SubPath `a/..`: must not contain '..'"),
    ],
)
async def test_a_sub_path_of_variables_stays_in_the_volume(lab: Bench, value: str, message: str) -> None:
    await lab.create(pod("p", "true", env=[{"name": "A", "value": value}], **sub_path("$(A)")))
    await until(lambda: lab.state("p")[1].get("reason") == "CreateContainerConfigError")
    assert lab.state("p")[1]["message"] == message


async def test_a_sub_path_of_variables_is_mounted(lab: Bench) -> None:
    script = "touch /sub/there || touch sub/there"
    await lab.create(pod("p", script, env=[{"name": "A", "value": "x"}], **sub_path("$(A)/y")))
    await lab.phase_is("p", "Succeeded")
    volumes = lab.node_folder / "pods" / lab.pod("p")["metadata"]["uid"] / "volumes"
    assert (volumes / "v/x/y/there").exists()


async def test_an_unknown_image_stays_running_as_a_stand_in(lab: Bench) -> None:
    await lab.create(pod("p", "exit 1", image="example.com/no/such:thing"))
    await lab.phase_is("p", "Running")
    assert "a stand-in runs in its place" in await lab.log("p")
    await lab.api.delete(PODS, "p", namespace="default")
    await lab.is_gone("p")
