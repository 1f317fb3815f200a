"""The pod that resets GPUs: no more than it needs, and what the act's program understands."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from kgpu.cli.act import act
from kgpu.formats.names import HOST_ROOT, RUN_DIR
from kgpu.operations.act_pods import reset_container, reset_volumes

UUIDS = ("GPU-588852b1-3a75-510f-9224-fe9aed5a6332", "GPU-588852b1-3a75-510f-9224-fe9aed5a6333")


def test_its_command_is_one_that_the_program_has() -> None:
    container = reset_container("op-1", "boot", UUIDS, "kgpu:1", "IfNotPresent", driver_install_dir="/opt/driver")
    assert container["args"] == [
        "act", "reset-gpu", "--id=op-1", "--boot-id=boot", *(f"--gpu={uuid}" for uuid in UUIDS),
        "--driver-install-dir=/opt/driver",
    ]  # fmt: skip
    done = CliRunner().invoke(act, container["args"][1:], env={"KGPU_HOST_ROOT": "/nonexistent"})
    assert (done.exit_code, "there is no nvidia-smi in /nonexistent/opt/driver" in done.stderr) == (13, True)


def test_the_usual_folder_is_not_told() -> None:
    assert reset_container("op-1", "boot", UUIDS, "kgpu:1", "Always")["args"][-1] == f"--gpu={UUIDS[1]}"


def test_what_it_may() -> None:
    container = reset_container("op-1", "boot", UUIDS, "kgpu:1", "Always")
    assert container["securityContext"]["privileged"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts.keys() == {RUN_DIR, HOST_ROOT}
    assert mounts[HOST_ROOT]["readOnly"]
    assert mounts[HOST_ROOT]["mountPropagation"] == "HostToContainer"
    assert {mount["name"] for mount in mounts.values()} == {volume["name"] for volume in reset_volumes()}
    assert "env" not in container


def test_the_hosts_root_may_be_elsewhere() -> None:
    paths = [volume["hostPath"]["path"] for volume in reset_volumes(root_fs="/host-system")]
    assert paths == [RUN_DIR, "/host-system"]


@pytest.mark.parametrize(
    ("install_dir", "root_fs", "apart"),
    [("/run/nvidia/driver", "/", False), ("/opt/driver", "/", True), ("/opt/driver", "/host-system", False)],
)
def test_a_driver_elsewhere_is_mounted_for_itself(install_dir: str, root_fs: str, apart: bool) -> None:
    container = reset_container(
        "op-1", "boot", UUIDS, "kgpu:1", "Always", driver_install_dir=install_dir, root_fs=root_fs
    )
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in reset_volumes(driver_install_dir=install_dir, root_fs=root_fs)}
    assert mounts.keys() == volumes.keys()
    assert ("driver-install-dir" in mounts) is apart
    if apart:
        assert mounts["driver-install-dir"]["mountPath"] == f"{HOST_ROOT}{install_dir}"
        assert "readOnly" not in mounts["driver-install-dir"]
