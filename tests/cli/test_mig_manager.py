"""``nvidia-mig-manager`` with the replaced program's flags and variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kgpu.base.errors import ConfigError
from kgpu.cli.main import main
from kgpu.cli.mig_manager import read_options
from kgpu.formats.mig_manager_flags import FLAGS, PROCESS, ROLE_FLAGS, WITHOUT
from kgpu.formats.settings import resolve

ROWS = (*PROCESS, *FLAGS, *WITHOUT)


def options(env: dict[str, str], **flags: Any) -> Any:
    return read_options(resolve(ROWS, flags=flags, env=env).values, env)


def test_flags_and_variables_reach_the_role(tmp_path: Path) -> None:
    env = {
        "NODE_NAME": "gpu-1", "CONFIG_FILE": "/mig-parted-config/config.yaml", "POD_NAMESPACE": "gpu-operator",
        "WITH_SHUTDOWN_HOST_GPU_CLIENTS": "true", "GPU_CLIENTS_FILE": "/gpu-clients/clients.yaml",
        "DRIVER_ROOT_CTR_PATH": str(tmp_path), "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
    }  # fmt: skip
    made = options(env)
    assert (made.node_name, made.namespace, made.root) == ("gpu-1", "gpu-operator", tmp_path)
    role = resolve(ROLE_FLAGS, flags=made.overrides_of("mig-manager"), env={}).values
    assert role["config_file"] == "/mig-parted-config/config.yaml"
    assert (role["stop_clients"], role["clients_file"]) == (True, "/gpu-clients/clients.yaml")
    assert made.config_file is None  # that would be the device plugin's


def test_a_node_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="the node's name is missing"):
        options({})


def test_what_has_no_effect_is_told_by_name(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    monkeypatch.setenv("WITH_REBOOT", "true")
    assert main(["nvidia-mig-manager", "-s", "/x"]) == 2
    told = capsys.readouterr().err
    assert "WITH_REBOOT has no effect, because a MIG mode is put in force by a reset" in told
    assert "--reconfigure-script has no effect" in told
    assert "the node's name is missing" in told
