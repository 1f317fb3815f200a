"""Finding engines on hosts of many kinds."""

from __future__ import annotations

import pytest

from kgpu.base.errors import HostError
from kgpu.host.engines.model import Engine
from kgpu.host.engines.paths import MountedPaths
from kgpu.host.engines.places import find_places, kubelets_socket, place_for, socket_path

K3S = "var/lib/rancher/k3s/agent/etc/containerd"
RKE2 = "var/lib/rancher/rke2/agent/etc/containerd"
SNAP = "var/snap/microk8s/current/args/containerd-template.toml"
V3_IMPORTS = f'version = 3\nimports = ["/{K3S}/config-v3.toml.d/*.toml"]\n'


def host(tmp_path, files: dict[str, str]) -> MountedPaths:
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return MountedPaths.at(tmp_path)


# files, flavour, config, drop-in, template, socket, service
HOSTS = {
    "containerd": (
        {"etc/containerd/config.toml": "", "usr/lib/systemd/system/containerd.service": "", "usr/bin/containerd": "",
         "usr/sbin/runc": ""},
        ("containerd", "etc/containerd/config.toml", "etc/containerd/conf.d/99-nvidia.toml", "",
         "run/containerd/containerd.sock", "containerd"),
    ),
    "another socket": (
        {"etc/containerd/config.toml": '[grpc]\naddress = "/run/other.sock"\n'},
        ("containerd", "etc/containerd/config.toml", "etc/containerd/conf.d/99-nvidia.toml", "", "run/other.sock",
         "containerd"),
    ),
    "k3s that imports a folder": (
        {f"{K3S}/config.toml": V3_IMPORTS, "etc/systemd/system/k3s-agent.service": ""},
        ("k3s", f"{K3S}/config.toml", f"{K3S}/config-v3.toml.d/99-nvidia.toml", "", "run/k3s/containerd/containerd.sock",
         "k3s-agent"),
    ),
    "k3s with containerd 2": (
        {f"{K3S}/config.toml": "version = 3\n", "etc/systemd/system/k3s.service": ""},
        ("k3s", f"{K3S}/config.toml", "", f"{K3S}/config-v3.toml.tmpl", "run/k3s/containerd/containerd.sock", "k3s"),
    ),
    "rke2 with containerd 1": (
        {f"{RKE2}/config.toml": "version = 2\n", "usr/lib/systemd/system/rke2-agent.service": ""},
        ("rke2", f"{RKE2}/config.toml", "", f"{RKE2}/config.toml.tmpl", "run/k3s/containerd/containerd.sock",
         "rke2-agent"),
    ),
    "microk8s": (
        {SNAP: "version = 2\n"},
        ("microk8s", SNAP, "", "", "var/snap/microk8s/common/run/containerd.sock", "snap.microk8s.daemon-containerd"),
    ),
    "k0s": (
        {"etc/k0s/containerd.toml": "# k0s_managed=true\nversion = 2\n"},
        ("k0s", "etc/k0s/containerd.toml", "etc/k0s/containerd.d/99-nvidia.toml", "", "run/k0s/containerd.sock",
         "k0scontroller"),
    ),
    "cri-o": (
        {"etc/crio/crio.conf": "", "usr/libexec/crio/crun": ""},
        ("crio", "etc/crio/crio.conf", "etc/crio/crio.conf.d/99-nvidia.toml", "", "run/crio/crio.sock", "crio"),
    ),
    "docker": (
        {"usr/bin/dockerd": ""},
        ("docker", "etc/docker/daemon.json", "", "", "run/docker.sock", "docker"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTS)
def test_each_distribution_is_found_by_itself(name, tmp_path) -> None:
    files, expected = HOSTS[name]
    (place,) = find_places(host(tmp_path, files))
    flavour, *paths, service = expected
    assert (place.flavour, place.service) == (flavour, service)
    wanted = [f"/{path}" if path else "" for path in paths]
    assert [place.config, place.drop_in, place.template, place.socket] == wanted
    assert place.imported == (flavour == "k0s" or name == "k3s that imports a folder")
    assert place.merges == (flavour == "k0s")


def test_binaries_of_the_host(tmp_path) -> None:
    files = {"usr/bin/containerd": "", "usr/sbin/runc": "", "usr/local/bin/crun": ""}
    (place,) = find_places(host(tmp_path, files))
    assert place.binary == "/usr/bin/containerd"
    assert place.oci == ("/usr/local/bin/crun", "/usr/sbin/runc")


def test_no_engine(tmp_path) -> None:
    assert find_places(MountedPaths.at(tmp_path)) == ()


BOTH = {"etc/docker/daemon.json": "{}", "etc/containerd/config.toml": "", "etc/crio/crio.conf": ""}


@pytest.mark.parametrize(
    ("name", "content", "engine"),
    [
        ("var/lib/kubelet/config.yaml", "a: b\ncontainerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n", "containerd"),
        ("var/lib/kubelet/config.yaml", 'containerRuntimeEndpoint: "unix:///var/run/crio/crio.sock"\n', "crio"),
        ("var/lib/kubelet/kubeadm-flags.env", 'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///var/run/crio/crio.sock --x"', "crio"),
        ("etc/default/kubelet", 'X="--container-runtime-endpoint unix:///run/containerd/containerd.sock"', "containerd"),
        ("etc/kubernetes/kubelet.conf.d/10.conf", "containerRuntimeEndpoint: /run/containerd/containerd.sock\n", "containerd"),
        ("etc/sysconfig/kubelet", "K=--container-runtime-endpoint=unix:///var/run/cri-dockerd.sock\n", "docker"),
    ],
)  # fmt: skip
def test_the_kubelets_engine_comes_first(name, content, engine, tmp_path) -> None:
    found = find_places(host(tmp_path, {**BOTH, name: content}))
    assert len(found) == 3
    assert found[0].engine == engine
    assert find_places(host(tmp_path, {}), kubelet_socket="unix:///run/docker.sock")[0].engine is Engine.DOCKER


def test_else_the_one_whose_socket_is_there(tmp_path) -> None:
    paths = host(tmp_path, {**BOTH, "run/containerd/containerd.sock": ""})
    assert kubelets_socket(paths) == ""
    assert find_places(paths)[0].engine is Engine.CONTAINERD


def test_what_is_given_wins(tmp_path) -> None:
    paths = host(tmp_path, {"etc/containerd/config.toml": "", f"{K3S}/config.toml": "version = 3\n"})
    usual = place_for(Engine.CONTAINERD, paths, config="/etc/containerd/config.toml")
    assert (usual.flavour, usual.drop_in) == ("containerd", "/etc/containerd/conf.d/99-nvidia.toml")
    other = place_for(
        Engine.CONTAINERD, paths, config="/opt/c.toml", drop_in="", socket="unix:///var/run/x.sock", service="x"
    )
    assert (other.config, other.drop_in, other.socket, other.service) == ("/opt/c.toml", "", "/run/x.sock", "x")
    template = place_for(Engine.CONTAINERD, paths, config=f"/{K3S}/config-v3.toml.tmpl")
    assert template.template == f"/{K3S}/config-v3.toml.tmpl"
    assert place_for(Engine.CRIO, paths).config == "/etc/crio/crio.conf"


def test_a_socket_without_scheme_and_var() -> None:
    assert socket_path("unix:///var/run/crio/crio.sock") == "/run/crio/crio.sock"
    assert socket_path("/run/cri-dockerd.sock") == "/run/docker.sock"
    assert socket_path("") == ""


def test_mounts_of_single_folders(tmp_path) -> None:
    (tmp_path / "host/etc/containerd").mkdir(parents=True)
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.toml").write_text("a = 1\n")
    paths = MountedPaths.at(tmp_path / "host", {"/etc/containerd": tmp_path / "config"})
    assert paths.local("/etc/containerd/config.toml").read_text() == "a = 1\n"
    assert paths.local("/etc/containerd2") == tmp_path / "host/etc/containerd2"
    assert paths.glob("/etc/containerd/*.toml") == ("/etc/containerd/config.toml",)


def test_links_stay_in_the_hosts_root(tmp_path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/containerd").symlink_to("/../../../conf")
    paths = MountedPaths.at(tmp_path)
    with pytest.raises(HostError, match="leads to nothing"):
        paths.local("/etc/containerd/config.toml")
    assert not paths.exists("/etc/containerd/config.toml")
    (tmp_path / "conf").mkdir()
    assert paths.local("/etc/containerd/config.toml") == tmp_path / "conf/config.toml"
    (tmp_path / "etc/passwd").symlink_to("/etc/hostname")  # there is one here, not on that host
    assert not paths.exists("/etc/passwd")
    assert paths.glob("/etc/*") == ("/etc/containerd",)
