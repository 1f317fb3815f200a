"""kgpu's own image on a simulated node: how its command is changed, and which folders stand for the host's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu import __version__
from kgpu.base.boot import ENV_BOOT_ID
from kgpu.formats.cdi import CdiDeviceNode, CdiMount
from kgpu.formats.names import (
    CDI_DIR,
    DRIVER_INSTALL_DIR,
    ENV_SIMULATED_REBOOT,
    ENV_TERMINATION_LOG,
    HOST_ROOT,
    IMAGE_REPOSITORY,
    KUBELET_DEVICE_PLUGIN_DIR,
    NFD_OS_ID,
    NFD_OS_VERSION,
)
from kgpu.formats.os_release import parse_os_release
from kgpu.lab.nodes import kgpu_image, machine, starter
from kgpu.lab.nodes.objects import node_info
from kgpu.lab.nodes.oci import OciConfig
from kgpu.lab.nodes.runtime import PLAIN, Runtime
from kgpu.lab.nodes.spec import NodeSpec

ADDRESS = "127.244.1.7"


def mounts(**places: str) -> tuple[CdiMount, ...]:
    return tuple(CdiMount(host_path=source, container_path=target) for target, source in places.items())


def run(*args: str, env: dict[str, str] | None = None, seen: tuple[CdiMount, ...] = ()) -> kgpu_image.Command:
    return kgpu_image.command(args, env or {}, mounts=seen, address=ADDRESS, kubeconfig=Path("/c/kubeconfig"))


@pytest.mark.parametrize(
    ("image", "known"),
    [
        (f"{IMAGE_REPOSITORY}:0.1.0", True),
        (f"{IMAGE_REPOSITORY}@sha256:{'0' * 64}", True),
        (IMAGE_REPOSITORY, True),
        (f"{IMAGE_REPOSITORY}-other:1", False),
        (f"example.com/{IMAGE_REPOSITORY}:1", False),
    ],
)
def test_its_image_is_known_by_its_name_whatever_the_tag(image: str, known: bool) -> None:
    assert kgpu_image.is_own(image) is known
    assert starter.is_process(Runtime(PLAIN), {"image": image}) is known


def test_what_listens_everywhere_listens_on_the_pods_address() -> None:
    found = run("agent", "--auto", "--health-address", ":8090", "--other=:1", "--time=12:30")
    assert found.args == (
        "agent", "--auto", "--health-address", f"{ADDRESS}:8090", f"--other={ADDRESS}:1", "--time=12:30",
    )  # fmt: skip


def test_ports_that_nobody_named_are_on_the_pods_address_too() -> None:
    named = run(env={"METRICS_BIND_ADDRESS": "0"})
    assert named.env["METRICS_BIND_ADDRESS"] == "0"
    assert named.env["HEALTH_PROBE_BIND_ADDRESS"] == f"{ADDRESS}:8081"


def test_mounts_are_told_as_variables() -> None:
    seen = mounts(**{HOST_ROOT: "/n/hw", KUBELET_DEVICE_PLUGIN_DIR: "/s/dp", CDI_DIR: "/n/cdi", "/data": "/d"})
    found = run(env={"CDI_DIR": "/elsewhere", "NODE_NAME": "n"}, seen=seen).env
    assert found["KGPU_HOST_ROOT"] == "/n/hw"
    assert found["KUBELET_SOCKET"] == "/s/dp/kubelet.sock"
    assert found["CDI_DIR"] == "/n/cdi"
    assert found["NODE_NAME"] == "n"
    assert not {"WAIT_FOR_VALIDATION", "KUBECONFIG"} & found.keys()


def test_without_its_mounts_it_never_meets_this_machines_kubelet_and_leaves_nothing_on_it() -> None:
    env = run(env={"KUBELET_REGISTRAR_DIRECTORY_PATH": "/elsewhere"}).env
    assert env["KUBELET_SOCKET"].startswith("/c/root/")
    assert env["KUBELET_PLUGINS_DIRECTORY_PATH"].startswith("/c/root/")
    assert env["DCGM_POD_RESOURCES_KUBELET_SOCKET"].startswith("/c/root/")
    assert env["KUBELET_REGISTRAR_DIRECTORY_PATH"] == "/elsewhere"
    assert env["STATE_DIR"].startswith("/c/root/")
    assert not {"CDI_DIR", "NODE_STATE_DIR"} & env.keys()


def test_paths_that_only_the_container_has_are_the_folders_here() -> None:
    private = mounts(**{"/config": "/n/c", "/config/sub/": "/n/s", "/driver-root": "/n/hw"})
    env = {
        "CONFIG_FILE": "/config/config.yaml", "SRC": "/config/sub", "OTHER": "/configuration", "NVIDIA_DRIVER_ROOT": "/",
    }  # fmt: skip
    found = kgpu_image.command(
        ("kgpu", "-f", "/config/sub/x.csv", "--driver-root-ctr-path=/driver-root", "--output=/tmp/x", "a=/config"), env,
        mounts=private, address=ADDRESS, kubeconfig=Path("/k"), private=private,
    )  # fmt: skip
    assert found.args[-5:] == ("-f", "/n/s/x.csv", "--driver-root-ctr-path=/n/hw", "--output=/tmp/x", "a=/config")
    assert {name: found.env[name] for name in env} == {
        "CONFIG_FILE": "/n/c/config.yaml", "SRC": "/n/s", "OTHER": "/configuration", "NVIDIA_DRIVER_ROOT": "/",
    }  # fmt: skip
    assert found.env["DRIVER_ROOT_CTR_PATH"] == "/n/hw"


def test_a_pod_listens_on_its_own_address_and_signals_nobody_on_this_machine() -> None:
    found = run("dcgm-exporter", env={"DCGM_EXPORTER_LISTEN": ":9400", "SEND_SIGNAL": "true", "TIME": "12:30"}).env
    assert found["DCGM_EXPORTER_LISTEN"] == f"{ADDRESS}:9400"
    assert (found["SEND_SIGNAL"], found["TIME"]) == ("false", "12:30")


@pytest.mark.parametrize("program", ["kgpu", "kgpu-entrypoint", "nvidia-device-plugin", "/usr/bin/config-manager"])
def test_a_program_of_the_image_is_this_python_under_its_name(program: str) -> None:
    *start, name, word = run(program, "--version").args
    assert name == program.rpartition("/")[2]
    done = subprocess.run([*start, name, word], capture_output=True, text=True, check=True)
    assert (start[0], done.stdout) == (sys.executable, f"kgpu {__version__}\n")
    assert run("sh", "-c", "true").args == ("sh", "-c", "true")


def test_what_the_machine_says_of_itself_is_not_the_pods_to_set() -> None:
    env = {ENV_BOOT_ID: "mine", ENV_SIMULATED_REBOOT: "/mine", "A": "b"}
    assert kgpu_image.without_machines_own(env) == {"A": "b"}
    found = run(env=env).env
    assert found["A"] == "b"
    assert kgpu_image.MACHINES_OWN & found.keys() == {ENV_TERMINATION_LOG}
    found = kgpu_image.command((), env, mounts=(), address=ADDRESS, kubeconfig=Path("/k"), boot="its").env
    assert found[ENV_BOOT_ID] == "its"
    assert ENV_SIMULATED_REBOOT not in found
    asks = Path("/n/reboot")
    found = kgpu_image.command((), env, mounts=(), address=ADDRESS, kubeconfig=Path("/k"), reboot=asks).env
    assert found[ENV_SIMULATED_REBOOT] == str(asks)
    assert ENV_BOOT_ID not in found


def test_parts_of_the_hosts_root_tell_where_it_is() -> None:
    """The finder has no more of it."""
    for root, release in (("/n/root", "/n/root/etc/os-release"), ("/", "/etc/os-release")):
        seen = mounts(**{"/host/sys": "/sys", "/host/etc/os-release": release})
        assert run("agent", env={"KGPU_HOST_ROOT": "/host"}, seen=seen).env["KGPU_HOST_ROOT"] == root


def test_a_service_account_becomes_a_kubeconfig_whose_token_is_read_anew(tmp_path: Path) -> None:
    seen = mounts(**{kgpu_image.TOKENS: str(tmp_path)})
    (tmp_path / "token").write_text("one")
    (tmp_path / "ca.crt").write_text("ca")
    kgpu_image.write_connection(
        tmp_path / "kubeconfig", seen, {"KUBERNETES_SERVICE_HOST": "::1", "KUBERNETES_SERVICE_PORT": "6443"}
    )
    made = json.loads((tmp_path / "kubeconfig").read_text())
    assert made["clusters"][0]["cluster"]["server"] == "https://[::1]:6443"
    assert made["users"][0]["user"] == {"tokenFile": str(tmp_path / "token")}
    assert run(seen=seen).env["KUBECONFIG"] == "/c/kubeconfig"


def test_without_a_token_there_is_no_kubeconfig(tmp_path: Path) -> None:
    kgpu_image.write_connection(tmp_path / "kubeconfig", (), {})
    assert not (tmp_path / "kubeconfig").exists()


@pytest.fixture
def its(tmp_path: Path) -> machine.NodeMachine:
    made = machine.of_node(tmp_path / "n", tmp_path / "s", gpus=True)
    (made.root / "usr" / "lib").mkdir(parents=True)
    (made.root / "usr" / "lib" / "libcuda.so.1").touch()
    return made


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/", "n/hw"),
        ("/usr/lib/libcuda.so.1", "n/hw/usr/lib/libcuda.so.1"),
        (DRIVER_INSTALL_DIR, "n/hw"),
        (f"{DRIVER_INSTALL_DIR}/usr/lib", "n/hw/usr/lib"),
        ("/run/nvidia", "n/host/run-nvidia"),
        ("/run/nvidia/validations/x", "n/host/run-nvidia/validations/x"),
        ("/run//nvidia/", "n/host/run-nvidia"),
        ("/run/kgpu/health/verdicts.json", "n/hw/run/kgpu/health/verdicts.json"),
        (f"{KUBELET_DEVICE_PLUGIN_DIR}/kubelet.sock", "s/dp/kubelet.sock"),
        ("/var/run/cdi/a.json", "n/cdi/a.json"),
    ],
)
def test_a_node_has_folders_of_its_own_for_paths_of_the_host(
    its: machine.NodeMachine, tmp_path: Path, path: str, found: str
) -> None:
    assert its.find(path) == tmp_path / found


@pytest.mark.parametrize("path", ["/usr/lib/libc.so.6", "/data/of/somebody", "/run/nvidia-other"])
def test_what_a_node_has_nothing_of_its_own_for_is_this_machines(its: machine.NodeMachine, path: str) -> None:
    assert its.find(path) == Path(path)


@given(st.lists(st.sampled_from(["..", ".", "run", "nvidia", "driver", "usr", ""]), max_size=8))
def test_no_path_leads_out_of_the_nodes_own_folders(words: list[str]) -> None:
    its = machine.of_node(Path("/nowhere/n"), Path("/nowhere/n"), gpus=True)
    found = its.find("/" + "/".join(words))
    assert ".." not in found.parts or not found.is_relative_to("/nowhere")


def test_devices_and_mounts_of_a_container_are_the_nodes(its: machine.NodeMachine, tmp_path: Path) -> None:
    (its.root / "dev").mkdir()
    (its.root / "dev" / "nvidia0").touch()
    config = OciConfig(
        env={},
        devices=(CdiDeviceNode(path="/dev/nvidia0"), CdiDeviceNode(path="/dev/fuse")),
        mounts=(CdiMount(host_path="/usr/lib/libcuda.so.1", container_path="/x"),),
    )
    made = its.applied(config)
    assert [one.host_path for one in made.devices] == [str(tmp_path / "n/hw/dev/nvidia0"), "/dev/fuse"]
    assert made.devices[0].path == "/dev/nvidia0"
    assert made.mounts[0].host_path == str(tmp_path / "n/hw/usr/lib/libcuda.so.1")


def test_create_files_says_what_kind_of_machine_it_is_and_keeps_what_is_there(tmp_path: Path) -> None:
    its = machine.of_node(tmp_path, tmp_path, gpus=False)
    machine.create_files(its, {})
    assert "24.04" in (its.root / "etc/os-release").read_text()
    assert (its.root / "proc/sys/kernel/osrelease").read_bytes() == Path("/proc/sys/kernel/osrelease").read_bytes()
    (its.root / "etc/os-release").write_text("ID=mine\n")
    machine.create_files(its, {})
    assert (its.root / "etc/os-release").read_text() == "ID=mine\n"


def test_a_node_runs_the_system_that_its_labels_name(tmp_path: Path) -> None:
    labels = {NFD_OS_ID: "rhel", NFD_OS_VERSION: "9.4"}
    its = machine.of_node(tmp_path, tmp_path, gpus=False)
    machine.create_files(its, labels)
    assert parse_os_release((its.root / "etc/os-release").read_text())["ID"] == "rhel"
    assert node_info(NodeSpec(name="a", profile="cpu", labels=labels), "boot")["osImage"] == "rhel 9.4"
    assert machine.os_release({NFD_OS_ID: "rhel"}) == machine.os_release({})
