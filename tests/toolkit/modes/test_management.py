"""Mode management: every node of the driver in one device, without asking NVML and without what is for one GPU."""

from __future__ import annotations

import pytest

from kgpu.base.errors import HostError
from tests.host.tree import driver, touch
from tests.toolkit.generation import Never, edits, hooks, make, names, node_paths, targets


@pytest.fixture
def root(tmp_path):
    driver(tmp_path)
    touch(tmp_path, "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2")
    touch(tmp_path, "/dev/nvidia-caps-imex-channels/channel0")
    touch(tmp_path, "/dev/nvidia-fs0", "/dev/nvidia-nvswitch0", "/dev/nvidia-nvswitchctl", "/dev/nvidia-nvlink")
    return tmp_path


def test_one_device_has_every_node_of_the_driver(root) -> None:
    spec = make(root, mode="management", read=Never()).spec
    assert spec.kind == "management.nvidia.com/gpu"
    assert names(spec) == ["all"]
    found = set(node_paths(edits(spec, "all"))) | set(node_paths(spec.container_edits))
    assert found == {
        "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset", "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2",
        "/dev/nvidia-caps-imex-channels/channel0",
    }  # fmt: skip
    assert spec.container_edits.device_nodes == ()
    assert "/usr/bin/nvidia-smi" in targets(spec.container_edits)


def test_hooks_are_those_that_are_about_no_single_gpu(root) -> None:
    touch(root, "/usr/bin/nvidia-cdi-hook")
    from kgpu.toolkit.config import hook_config

    spec = make(root, mode="management", hooks=hook_config()).spec
    found = [arguments[0] for arguments in hooks(spec.container_edits)]
    assert found == ["create-symlinks", "enable-cuda-compat", "update-ldcache"]


def test_no_node_is_an_error(tmp_path) -> None:
    touch(tmp_path, "/dev/nvidia-fs0")
    with pytest.raises(HostError, match="management found no device"):
        make(tmp_path, mode="management", read=Never())
