"""What a container gets, per strategy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.deviceplugin.allocate import AllocationError, allocate
from kgpu.deviceplugin.config import PluginSettings
from kgpu.deviceplugin.model import HostDevices, PluginResource
from kgpu.deviceplugin.plan import plan
from kgpu.formats.plugin_config import SharingKind
from kgpu.kubelet.model import ContainerAllocation, DeviceNode, Mount
from tests.deviceplugin.nodes import GPU, entry, gpus, shared, with_mig

NOTHING = HostDevices()
CDI = "k8s.device-plugin.nvidia.com"
MOUNTS = "/var/run/nvidia-container-devices"
NODES = gpus(3)
U0, U1, U2 = (gpu.uuid for gpu in NODES)
HOST = HostDevices(control_nodes=("/dev/nvidiactl", "/dev/nvidia-uvm"), imex_channels=(0,), gds=True)


def answer(
    settings: PluginSettings, ids: list[str], *, host: HostDevices = NOTHING, nodes=NODES, name: str = GPU, **options
) -> ContainerAllocation:
    resource = plan(nodes, settings).resource(name)
    return allocate(resource, ids, settings, host, unhealthy=options.get("unhealthy", {}), new_id=lambda: "0000-id")


def test_envvar_keeps_the_order_of_the_request() -> None:
    assert answer(PluginSettings(), [U2, U0]) == ContainerAllocation(envs={"NVIDIA_VISIBLE_DEVICES": f"{U2},{U0}"})


def test_indices() -> None:
    assert answer(PluginSettings(id_strategy="index"), [U2, U0]).envs == {"NVIDIA_VISIBLE_DEVICES": "2,0"}


def test_mig_indices_and_uuids() -> None:
    node = (with_mig(NODES[1], ("1g.10gb", 2)),)
    part = node[0].partitions[1].uuid
    single = PluginSettings(mig_strategy="single")
    assert answer(single, [part], nodes=node).envs == {"NVIDIA_VISIBLE_DEVICES": part}
    by_index = replace(single, id_strategy="index")
    assert answer(by_index, [part], nodes=node).envs == {"NVIDIA_VISIBLE_DEVICES": "1:1"}


def test_replicas_of_one_gpu_are_one_device() -> None:
    settings = shared(entry(4))
    assert answer(settings, [f"{U0}::2"]).envs == {"NVIDIA_VISIBLE_DEVICES": U0}
    assert answer(settings, [f"{U0}::2", f"{U1}::0", f"{U0}::1"]).envs == {"NVIDIA_VISIBLE_DEVICES": f"{U0},{U1}"}


def test_volume_mounts() -> None:
    got = answer(PluginSettings(list_strategies=("volume-mounts",)), [U0, U1])
    assert got == ContainerAllocation(
        envs={"NVIDIA_VISIBLE_DEVICES": MOUNTS},
        mounts=tuple(Mount(container_path=f"{MOUNTS}/{uuid}", host_path="/dev/null") for uuid in (U0, U1)),
    )


@pytest.mark.parametrize("order", [("envvar", "volume-mounts"), ("volume-mounts", "envvar")])
def test_the_volume_mounts_variable_wins_over_envvar_in_any_order(order: tuple[str, ...]) -> None:
    got = answer(PluginSettings(list_strategies=order), [U0])
    assert got.envs == {"NVIDIA_VISIBLE_DEVICES": MOUNTS}
    assert len(got.mounts) == 1


def test_cdi_annotations() -> None:
    settings = PluginSettings(list_strategies=("cdi-annotations",), imex_channel_ids=(0,), gds_enabled=True)
    got = answer(settings, [U0], host=HOST)
    assert got.annotations == {
        "cdi.k8s.io/nvidia-device-plugin_0000-id": f"{CDI}/gpu={U0},{CDI}/imex-channel=0,{CDI}/gds=all"
    }
    assert got.envs == {"NVIDIA_GDS": "enabled"}


def test_cdi_annotations_with_another_prefix_and_a_fresh_key_each_time() -> None:
    settings = PluginSettings(list_strategies=("cdi-annotations",), cdi_annotation_prefix="nvidia.cdi.k8s.io/")
    resource = plan(NODES, settings).resource(GPU)
    keys = {next(iter(allocate(resource, [U0], settings, HostDevices(), unhealthy={}).annotations)) for _ in range(3)}
    assert len(keys) == 3
    assert all(key.startswith("nvidia.cdi.k8s.io/nvidia-device-plugin_") for key in keys)


def test_cdi_cri_by_index() -> None:
    settings = PluginSettings(list_strategies=("cdi-cri",), id_strategy="index")
    assert answer(settings, [U1]) == ContainerAllocation(cdi_devices=(f"{CDI}/gpu=1",))


def test_several_strategies_add_up() -> None:
    got = answer(PluginSettings(list_strategies=("cdi-cri", "envvar")), [U0])
    assert got.envs == {"NVIDIA_VISIBLE_DEVICES": U0}
    assert got.cdi_devices == (f"{CDI}/gpu={U0}",)


def test_imex_channels_reach_every_strategy_when_they_are_there() -> None:
    everything = PluginSettings(list_strategies=("envvar", "volume-mounts", "cdi-cri"), imex_channel_ids=(0,))
    got = answer(everything, [U0], host=HOST)
    assert got.envs["NVIDIA_IMEX_CHANNELS"] == "0"
    assert f"{MOUNTS}/imex/0" in {mount.container_path for mount in got.mounts}
    assert f"{CDI}/imex-channel=0" in got.cdi_devices
    without = answer(everything, [U0], host=HostDevices())
    assert "NVIDIA_IMEX_CHANNELS" not in without.envs
    assert len(without.mounts) == len(without.cdi_devices) == 1


def test_extra_features_are_announced() -> None:
    got = answer(PluginSettings(gds_enabled=True, mofed_enabled=True, gdrcopy_enabled=True), [U0])
    assert got.envs == {
        "NVIDIA_VISIBLE_DEVICES": U0,
        "NVIDIA_GDS": "enabled",
        "NVIDIA_MOFED": "enabled",
        "NVIDIA_GDRCOPY": "enabled",
    }


def test_device_specs_lie_under_the_dev_root() -> None:
    settings = PluginSettings(pass_device_specs=True, driver_root="/run/nvidia/driver", imex_channel_ids=(0,))
    got = answer(settings, [U1], host=HOST)
    paths = [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia1",
        "/dev/nvidia-caps-imex-channels/channel0",
    ]
    assert got.devices == tuple(
        DeviceNode(container_path=path, host_path=f"/run/nvidia/driver{path}", permissions="rw") for path in paths
    )
    elsewhere = answer(replace(settings, dev_root="/"), [U1], host=HOST)
    assert [node.host_path for node in elsewhere.devices] == paths


def test_device_specs_of_slices_name_the_parent_once() -> None:
    node = (with_mig(NODES[0], ("1g.10gb", 2)),)
    settings = PluginSettings(pass_device_specs=True, mig_strategy="single")
    got = answer(settings, [part.uuid for part in node[0].partitions], nodes=node)
    paths = [device.container_path for device in got.devices]
    assert paths[0] == "/dev/nvidia0"
    assert len(paths) == len(set(paths)) == 5


@pytest.mark.parametrize(
    ("strategies", "specs"),
    [(("cdi-cri",), False), (("cdi-cri", "cdi-annotations"), False), (("cdi-cri", "envvar"), True)],
)
def test_device_specs_are_left_out_when_all_is_cdi(strategies: tuple[str, ...], specs: bool) -> None:
    got = answer(PluginSettings(pass_device_specs=True, list_strategies=strategies), [U0], host=HOST)
    assert bool(got.devices) is specs


def test_mps_shares_get_the_daemons_pipe_and_memory() -> None:
    got = answer(shared(entry(10), kind=SharingKind.MPS), [f"{U0}::3"])
    assert got.envs == {"NVIDIA_VISIBLE_DEVICES": U0, "CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe"}
    assert [(mount.host_path, mount.container_path) for mount in got.mounts] == [
        ("/run/nvidia/mps/nvidia.com/gpu/pipe", "/mps/nvidia.com/gpu/pipe"),
        ("/run/nvidia/mps/shm", "/dev/shm"),
    ]


def test_a_gpu_that_is_not_shared_gets_no_mps() -> None:
    got = answer(shared(entry(10, refs=["0"]), kind=SharingKind.MPS), [U1])
    assert got == ContainerAllocation(envs={"NVIDIA_VISIBLE_DEVICES": U1})


# --- refusals ---


@pytest.mark.parametrize(
    ("settings", "ids", "text"),
    [
        (
            PluginSettings(),
            ["GPU-x"],
            'invalid allocation request for "nvidia.com/gpu": invalid request: unknown device: GPU-x',
        ),
        (
            shared(entry(4), fail_requests_greater_than_one=True),
            [f"{U0}::0", f"{U1}::0"],
            "maximum request size for shared resources is 1; found 2",
        ),
        (
            shared(entry(4), kind=SharingKind.MPS),
            [f"{U0}::0", f"{U0}::1"],
            "maximum request size for shared resources is 1; found 2",
        ),
    ],
)
def test_refusals_say_the_known_words(settings: PluginSettings, ids: list[str], text: str) -> None:
    with pytest.raises(AllocationError) as refused:
        answer(settings, ids)
    assert text in refused.value.what
    assert refused.value.expected
    assert refused.value.remedy


def test_several_shares_are_given_where_the_file_allows_it() -> None:
    free = shared(entry(4), kind=SharingKind.MPS, fail_requests_greater_than_one=False)
    assert answer(free, [f"{U0}::0", f"{U0}::1"]).envs["NVIDIA_VISIBLE_DEVICES"] == U0
    unshared = shared(entry(4, refs=["0"]), fail_requests_greater_than_one=True)
    assert answer(unshared, [U1, U2]).envs["NVIDIA_VISIBLE_DEVICES"] == f"{U1},{U2}"


def test_a_broken_device_is_refused_and_does_not_block_the_others() -> None:
    unhealthy = {U0: "Xid 79"}
    with pytest.raises(AllocationError, match="is unhealthy: Xid 79"):
        answer(PluginSettings(), [U0], unhealthy=unhealthy)
    assert answer(PluginSettings(), [U1], unhealthy=unhealthy).envs == {"NVIDIA_VISIBLE_DEVICES": U1}


def test_an_unknown_device_of_an_empty_resource_is_refused() -> None:
    with pytest.raises(AllocationError):
        allocate(PluginResource(name=GPU), ["x"], PluginSettings(), HostDevices(), unhealthy={})
