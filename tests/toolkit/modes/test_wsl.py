"""Mode wsl: one device, the driver store's files, with hooks and without."""

from __future__ import annotations

import pytest

from kgpu.base.errors import HostError
from kgpu.toolkit.config import hook_config
from tests.host.tree import touch
from tests.toolkit.generation import Never, edits, hooks, make, names, node_paths, targets

STORE = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_1"


@pytest.fixture
def root(tmp_path):
    touch(tmp_path, "/dev/dxg", "/usr/lib/wsl/lib/libdxcore.so", "/usr/bin/nvidia-cdi-hook")
    touch(
        tmp_path, *(f"{STORE}/{name}" for name in ("libcuda.so.1.1", "libnvidia-ml.so.1", "nvidia-smi", "nvcubins.bin"))
    )
    return tmp_path


@pytest.mark.parametrize("hooked", [False, True])
def test_one_device_and_the_store(root, hooked: bool) -> None:
    spec = make(root, mode="wsl", read=Never(), hooks=hook_config() if hooked else None).spec
    assert spec.kind == "nvidia.com/gpu"
    assert names(spec) == ["all"]
    assert node_paths(edits(spec, "all")) == ["/dev/dxg"]
    found = targets(spec.container_edits)
    assert found[f"{STORE}/libcuda.so.1.1"] == f"{root}{STORE}/libcuda.so.1.1"
    assert spec.container_edits.env[-1] == "NVIDIA_VISIBLE_DEVICES=void"
    assert ("/usr/bin/nvidia-smi" in found) is not hooked
    if hooked:
        made = {words[0]: words[1:] for words in hooks(spec.container_edits)}
        assert made["create-symlinks"] == ["--link", f"{STORE}/nvidia-smi::/usr/bin/nvidia-smi"]
        assert made["update-ldcache"] == ["--folder", STORE, "--folder", "/usr/lib/wsl/lib"]


def test_no_device_and_no_store_are_errors(root) -> None:
    (root / f"{STORE.lstrip('/')}/libcuda.so.1.1").unlink()
    with pytest.raises(HostError, match=r"libcuda\.so\.1\.1"):
        make(root, mode="wsl", read=Never())
    (root / "dev/dxg").unlink()
    with pytest.raises(HostError, match="dev/dxg is not there"):
        make(root, mode="wsl", read=Never())
