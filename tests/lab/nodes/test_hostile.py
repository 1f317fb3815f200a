"""Pods and callers that mean harm: nothing outside the node's folder is read or written, and the node goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from pathlib import Path

import pytest

from kgpu.kube.port import CONFIG_MAPS, PODS
from kgpu.lab.nodes import logs, shim
from tests.lab.nodes.support import WAIT_S, Bench, gpus, plugin, pod, until

SECRET = "the secret"


async def still_works(lab: Bench) -> None:
    await lab.create(pod("after", "echo fine"))
    await lab.phase_is("after", "Succeeded")
    assert await lab.log("after") == "fine\n"


@pytest.mark.parametrize(
    "path",
    [
        "/containerLogs/default/p/..%2f..%2f..%2f..%2fsecret",
        "/containerLogs/default/p/../../../../secret",
        "/containerLogs/..%2f..%2f/secret/main",
        "/containerLogs/default/%2e%2e%2fsecret/main",
        "/containerLogs/default/p/main%00",
        "/containerLogs/default/p/",
        "/containerLogs/default/p",
        "/logs/",
        "/run/default/p/main?cmd=id",
        "/exec/default/p/main?command=id",
        "//etc/passwd",
        "/",
    ],
)
async def test_no_path_leads_out_of_the_logs(lab: Bench, path: str) -> None:
    (lab.folder / "secret").write_text(SECRET)
    await lab.create(pod("p", "echo said; sleep 600"))
    await lab.phase_is("p", "Running")
    code, text = await lab.logs(path)
    assert code in {400, 404}
    assert SECRET not in text
    assert "root:" not in text


@pytest.mark.parametrize("token", ["", "wrong", "x" * 5000])
async def test_only_who_shows_the_token_sees_logs(lab: Bench, token: str) -> None:
    await lab.create(pod("p", "echo said"))
    await lab.phase_is("p", "Succeeded")
    assert await lab.logs("/containerLogs/default/p/main", token=token) == (401, "Unauthorized")


@pytest.mark.parametrize(
    "query",
    ["?tailLines=x", "?limitBytes=1e9", "?sinceSeconds=-", "?sinceSeconds=99999999999999", f"?sinceSeconds={10**30}"],
)
async def test_bad_queries(lab: Bench, query: str) -> None:
    await lab.create(pod("p", "echo said"))
    await lab.phase_is("p", "Succeeded")
    code, text = await lab.logs(f"/containerLogs/default/p/main{query}")
    assert (code, text.startswith("bad query")) == (400, True)
    assert (await lab.logs("/containerLogs/default/p/main", method="POST"))[0] == 405


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
async def test_a_log_that_was_replaced_is_not_followed(lab: Bench, kind: str) -> None:
    (lab.folder / "secret").write_text(SECRET)
    await lab.create(pod("p", "echo said"))
    await lab.phase_is("p", "Succeeded")
    (log,) = (lab.node_folder / "logs").glob("*/main/0.log")
    log.unlink()
    make = {"link": lambda: log.symlink_to(lab.folder / "secret"), "pipe": lambda: os.mkfifo(log), "folder": log.mkdir}
    make[kind]()
    code, text = await lab.logs("/containerLogs/default/p/main")
    assert (code, SECRET in text) == (500, False)
    await still_works(lab)


async def test_a_flood_of_output_is_kept_short_and_its_end_is_shown(lab: Bench) -> None:
    line = "x" * 1000
    await lab.create(pod("p", f"i=0; while [ $i -lt 30000 ]; do echo {line}; i=$((i+1)); done; echo last"))
    await lab.phase_is("p", "Succeeded")
    files = list((lab.node_folder / "logs").glob("*/main/*"))
    assert sorted(path.name for path in files) == ["0.log", "0.log.1"]
    assert max(path.stat().st_size for path in files) <= shim.LOG_LIMIT
    assert await lab.log("p", query="?tailLines=1") == "last\n"
    assert len(await lab.log("p", query="?limitBytes=5000")) == 5000


async def test_a_line_without_an_end(lab: Bench) -> None:
    await lab.create(pod("p", "head -c 100000 /dev/zero | tr '\\0' x"))
    await lab.phase_is("p", "Succeeded")
    assert await lab.log("p") == "x" * 100000


async def test_a_follower_goes_on_in_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    writer = shim.ContainerLogWriter(str(path))
    over = False
    found = b""
    follow = logs.read(path, logs.LogOptions(follow=True), lambda: over)
    for number in range(3):
        writer.take("stdout", b"%d\n" % number + b"y" * 6_000_000 + b"\n")
        while f"{number}\n".encode() not in found:
            found += await anext(follow)
    over = True
    found += b"".join([piece async for piece in follow])
    writer.end()
    assert found.replace(b"y", b"").split() == [b"0", b"1", b"2"]
    assert found.count(b"y") == 18_000_000


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({"env": [{"name": "A", "value": "a\0b"}]}, "StartError"),
        ({"env": [{"name": "A=B", "value": "x"}]}, "StartError"),
        ({"image": "../../etc/passwd"}, "InvalidImageName"),
        ({"command": ["sh\0"]}, "StartError"),
        ({"command": ["/etc"]}, "StartError"),
        ({"command": ["./\u202e" * 20]}, "StartError"),
        ({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "x"}}}]}, "CreateContainerError"),
        ({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {}}}]}, "CreateContainerError"),
        ({"spec_volumes": [{"name": "../../../x", "emptyDir": {}}]}, "ContainerCreating"),
        ({"spec_volumes": [{"name": "v", "emptyDir": {}}], "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "../../x"}]}, "CreateContainerConfigError"),
        ({"spec_volumes": [{"name": "v", "emptyDir": {}}], "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "/etc"}]}, "CreateContainerConfigError"),
    ],
)  # fmt: skip
async def test_a_container_that_cant_be_started_says_why(lab: Bench, about: dict, reason: str) -> None:
    await lab.create(pod("p", **{"command": ["sh", "-c", "echo"], **about}))
    await until(
        lambda: (
            lab.state("p")[1].get("reason") == reason
            or (reason == "ContainerCreating" and bool(lab.events("FailedMount")))
        ),
        lambda: str(lab.status("p")),
    )
    await still_works(lab)
    assert not (lab.folder / "x").exists()
    await lab.api.delete(PODS, "p", namespace="default")
    await lab.is_gone("p")


@pytest.mark.parametrize(
    ("path", "token", "code"),
    [("/healthz", "\xff", 401), ("/healthz", "\u20ac", 401), ("http://[", None, 400)],
)
async def test_nonsense_is_answered(lab: Bench, path: str, token: str | None, code: int) -> None:
    assert (await lab.logs(path, token=token))[0] == code


async def test_a_caller_is_not_left_waiting_when_we_fail(lab: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    assert lab.host
    monkeypatch.setattr(lab.host._logs, "_find", fail)
    with pytest.raises(EOFError):
        await lab.logs("/containerLogs/default/p/main")
    await still_listens(lab)


async def test_callers_are_hung_up_on_when_the_host_ends(lab: Bench) -> None:
    own = lab.folder / "nodes" / "host"
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", int((own / "port").read_text()), ssl=context)
    try:
        await until(lambda: len(lab.host._logs._calls) == 1)
        await lab.down()
        async with asyncio.timeout(WAIT_S):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        assert not lab.host._logs._calls
    finally:
        writer.close()


async def still_listens(lab: Bench) -> None:
    assert await lab.logs("/healthz") == (200, "ok")


async def test_links_in_volumes_lead_nowhere(lab: Bench) -> None:
    target = lab.folder / "target"
    target.mkdir()
    (target / "kept").write_text("before")
    data = {"metadata": {"name": "c", "namespace": "default"}, "data": {"kept": "written"}}
    await lab.api.create(CONFIG_MAPS, data)
    script = f"rm -rf v/kept; ln -s {target}/kept v/kept; ln -s {target} e/out; echo done; exit 1"
    await lab.create(
        pod(
            "p", script, spec_restartPolicy="Always",
            spec_volumes=[{"name": "v", "configMap": {"name": "c"}}, {"name": "e", "emptyDir": {}}],
            volumeMounts=[{"name": "v", "mountPath": "/v"}, {"name": "e", "mountPath": "/e"}],
        )
    )  # fmt: skip
    await until(lambda: lab.container("p").get("restartCount", 0) >= 2)  # each start writes the volume anew
    assert (target / "kept").read_text() == "before"
    volumes = lab.node_folder / "pods" / lab.pod("p")["metadata"]["uid"] / "volumes"
    assert (volumes / "e" / "out").is_symlink()
    from kgpu.lab.nodes import volumes as module

    row = {"name": "e", "mountPath": "/e", "subPath": "out"}
    with pytest.raises(module.VolumeError, match='failed to prepare subPath for volumeMount "e" of container "main"'):
        module.mounts({"name": "main", "volumeMounts": [row]}, {"e": volumes / "e"}, {})
    await still_works(lab)


async def test_background_processes_end_with_their_container(lab: Bench) -> None:
    marker = lab.folder / "alive"
    await lab.create(pod("p", f"(while :; do touch {marker}; sleep 0.05; done) & sleep 0.3; exit 0"))
    await lab.phase_is("p", "Succeeded")
    marker.unlink(missing_ok=True)
    await still_works(lab)
    assert not marker.exists()


async def test_a_plugin_that_answers_nonsense(lab: Bench) -> None:
    async with plugin(lab) as (_, logic):
        logic.env = {"": "x", "A=B": "y"}
        await lab.create(pod("p", "echo", resources=gpus(1)))
        await lab.phase_is("p", "Failed")
        logic.env = {}
        logic.cdi = ("no cdi name", "../../etc/passwd", "")
        await lab.create(pod("q", "echo", resources=gpus(1)))
        await until(lambda: lab.state("q")[1].get("reason") == "CreateContainerError")
    await still_works(lab)
