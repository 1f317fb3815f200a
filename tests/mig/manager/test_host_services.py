"""The host's services that use GPUs: stopped for a reset alone, and started again whoever is killed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from kgpu.base.errors import UserError
from kgpu.formats.mig_manager_flags import FLAGS, PROCESS, WITHOUT
from kgpu.formats.settings import resolve, without_effect
from kgpu.host.commands import CommandResult
from kgpu.mig.manager.host_services import FILE_NAME, ClientServices, host_call, read_clients

CLIENTS = "version: v1\nsystemd-services: [nvsm.service, dcgm.service, dcgm-exporter.service]\n"


class Host:
    """Services of a host; those in ``stuck`` neither stop nor start."""

    def __init__(self, folder: Path, *running: str, clients: str = CLIENTS) -> None:
        (folder / "clients.yaml").write_text(clients)
        self.folder, self.running, self.stuck = folder, set(running), set[str]()
        self.log: list[str] = []

    def call(self, words: Sequence[str]) -> CommandResult:
        verb, name = words[1], words[-1]
        if verb == "is-active":
            return CommandResult(pid=1, code=0 if name in self.running else 3, tail="")
        self.log.append(f"{verb} {name}")
        if name in self.stuck:
            return CommandResult(pid=1, code=1, tail="Job failed")
        (self.running.discard if verb == "stop" else self.running.add)(name)
        return CommandResult(pid=1, code=0, tail="")

    def services(self) -> ClientServices:
        clients = str(self.folder / "clients.yaml")
        return ClientServices(clients=partial(read_clients, clients), record=self.folder / FILE_NAME, call=self.call)


async def test_services_that_run_are_stopped_and_started_in_reverse_order(tmp_path: Path) -> None:
    host = Host(tmp_path, "nvsm.service", "dcgm.service")
    async with host.services().stopped():
        assert host.running == set()
        assert json.loads((tmp_path / FILE_NAME).read_text()) == ["nvsm.service", "dcgm.service"]
    assert host.log == ["stop nvsm.service", "stop dcgm.service", "start dcgm.service", "start nvsm.service"]
    assert not (tmp_path / FILE_NAME).exists()


async def test_the_kubelet_goes_on_though_it_is_in_the_list(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """NVIDIA's manager restarts it for a change of mode, also while the node is still being set up."""
    clients = "version: v1\nsystemd-services: [dcgm.service, kubelet.service]\n"
    host = Host(tmp_path, "kubelet.service", "dcgm.service", clients=clients)
    async with host.services().stopped():
        assert host.running == {"kubelet.service"}
    assert host.log == ["stop dcgm.service", "start dcgm.service"]
    assert "kubelet.service goes on" in caplog.text


async def test_one_that_does_not_stop_gives_the_others_back(tmp_path: Path) -> None:
    host = Host(tmp_path, "nvsm.service", "dcgm.service")
    host.stuck = {"dcgm.service"}
    with pytest.raises(UserError, match=r"dcgm\.service can't be stopped: Job failed"):
        async with host.services().stopped():
            pass
    assert host.running == {"nvsm.service", "dcgm.service"}


async def test_who_is_killed_meanwhile_leaves_a_note_for_the_next(tmp_path: Path) -> None:
    host = Host(tmp_path, "dcgm.service")
    host.services()._stop()
    assert host.running == set()
    host.stuck = {"dcgm.service"}
    await host.services().give_back()  # it does not start yet
    host.stuck = set()
    await host.services().give_back()
    assert host.running == {"dcgm.service"}
    assert not (tmp_path / FILE_NAME).exists()


@pytest.mark.parametrize(
    "text",
    [
        "version: v2\nsystemd-services: [a.service]",
        "version: v1\nsystemd-services: dcgm",
        "version: v1\nservices: []",
        "version: v1\nsystemd-services: ['../x.service']",
        "version: v1\nsystemd-services: ['--now x.service']",
        "version: v1\nsystemd-services: [7]",
        "[]",
    ],
)
def test_a_list_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c").write_text(text)
    with pytest.raises(UserError) as refused:
        read_clients(str(tmp_path / "c"))
    assert all((refused.value.what, refused.value.expected, refused.value.remedy))


def test_an_empty_list_is_none(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("")
    assert read_clients(str(tmp_path / "c")) == ()


def test_a_host_without_systemd_says_so() -> None:
    with pytest.raises(UserError):
        host_call(Path("/"))(["kgpu-has-no-such-program"])


# The flags


def test_every_flag_of_the_replaced_program_has_a_row() -> None:
    flags = {name for row in (*FLAGS, *PROCESS, *WITHOUT) for name in row.flags if name}
    long = [
        "kubeconfig",
        "node-name",
        "config-file",
        "reconfigure-script",
        "host-root-mount",
        "host-nvidia-dir",
        "host-mig-manager-state-file",
        "host-kubelet-systemd-service",
        "gpu-clients-file",
        "with-reboot",
        "with-shutdown-host-gpu-clients",
        "default-gpu-clients-namespace",
        "nvidia-driver-root",
        "driver-root-ctr-path",
        "dev-root",
        "dev-root-ctr-path",
        "cdi-enabled",
        "nvidia-cdi-hook-path",
    ]
    assert {f"--{name}" for name in long} <= flags
    assert {f"-{letter}" for letter in "nfsmiokgrdptabj"} <= flags
    assert len(flags) == len([name for row in (*FLAGS, *PROCESS, *WITHOUT) for name in row.flags if name])


def test_what_has_no_meaning_is_told_and_what_is_so_anyway_is_not() -> None:
    usual = {
        "WITH_REBOOT": "false", "CDI_ENABLED": "true", "HOST_NVIDIA_DIR": "/usr/local/nvidia",
        "HOST_KUBELET_SYSTEMD_SERVICE": "kubelet.service", "DEFAULT_GPU_CLIENTS_NAMESPACE": "default",
    }  # fmt: skip
    rows = (*FLAGS, *WITHOUT)
    assert list(without_effect(rows, resolve(rows, env=usual))) == []
    told = list(without_effect(rows, resolve(rows, env={"WITH_REBOOT": "true", "RECONFIGURE_SCRIPT": "/x"})))
    assert [advice.subject for advice in told] == ["RECONFIGURE_SCRIPT", "WITH_REBOOT"]
    assert all(advice.severity.notable and advice.why for advice in told)
