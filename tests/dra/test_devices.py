"""The devices of each kind of GPU: names, exact attributes, whole or cut, counters that fit what the hardware fits."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kgpu.base.errors import ConfigError
from kgpu.base.quantity import Quantity
from kgpu.dra.devices import node_devices
from kgpu.dra.model import DraDevice, GpuDevices, PublishRules
from kgpu.dra.values import semver
from kgpu.formats.mig_geometry import GEOMETRIES, Geometry, InstanceProfile, geometry_of, placements
from kgpu.hw.fake_reader import sample_inventory
from kgpu.hw.port import Accelerator, HardwareFinding, Inventory, Problem
from tests.budget import count, sample
from tests.dra.samples import A100, H100, a100, cut, h100, many, models, named, node_of, partition

STATIC = PublishRules()
DYNAMIC = PublishRules(dynamic=True)
ROOTS = {"0000:07:00.0": "pci0000:00"}
OF_GPU = {
    "type", "uuid", "productName", "brand", "architecture", "addressingMode", "cudaComputeCapability", "driverVersion",
    "cudaDriverVersion", "resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot",
}  # fmt: skip
OF_MIG = OF_GPU | {"parentUUID", "profile"}
ENGINES = {"multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines", "memory"}
MIG_NAME = re.compile(r"gpu-(\d+)-mig-(.+)-(\d+)-(\d+)")
SEVEN = GEOMETRIES["h100-80gb"]


def published(inventory: Inventory, rules: PublishRules = STATIC) -> GpuDevices:
    (gpu,) = node_devices(inventory, rules).gpus
    return gpu


def names(inventory: Inventory, rules: PublishRules = STATIC) -> list[str]:
    return [device.name for device in node_devices(inventory, rules).devices]


def known(gpu: Accelerator) -> Accelerator:
    return replace(gpu, brand="tesla", addressing_mode="HMM")


def test_a_whole_gpu_has_exactly_the_attributes_of_nvidias_driver() -> None:
    (device,) = published(node_of(known(h100().accelerators[0])), PublishRules(pcie_roots=ROOTS)).devices
    assert device.name == "gpu-0"
    assert set(device.attributes) == OF_GPU
    assert {name: one.value for name, one in device.attributes.items() if name != "uuid"} == {
        "type": "gpu", "productName": H100, "brand": "Tesla", "architecture": "Hopper", "addressingMode": "HMM",
        "cudaComputeCapability": "9.0.0", "driverVersion": "550.54.15", "cudaDriverVersion": "12.4.0",
        "resource.kubernetes.io/pciBusID": "0000:07:00.0", "resource.kubernetes.io/pcieRoot": "pci0000:00",
    }  # fmt: skip
    assert device.capacity == {"memory": "81559Mi"}


def test_a_mig_device_has_exactly_those_of_nvidias_driver() -> None:
    gpu = cut(known(replace(h100(2).accelerators[1], pci_bus_id="0000:07:00.0")), [named(SEVEN, "2g.20gb")])
    (device,) = published(node_of(gpu), PublishRules(pcie_roots=ROOTS)).devices
    assert device.name == "gpu-1-mig-2g20gb-14-4"
    assert set(device.attributes) == OF_MIG
    assert device.attributes["type"].value == "mig"
    assert device.attributes["parentUUID"].value == gpu.uuid
    assert device.attributes["profile"].value == "2g.20gb"
    assert set(device.capacity) == ENGINES | {"memorySlice4", "memorySlice5"}
    assert device.capacity["multiprocessors"] == "32"


def test_a_mig_device_that_can_be_made_has_no_uuid() -> None:
    gpu = known(h100().accelerators[0])
    found = published(node_of(gpu), replace(DYNAMIC, pcie_roots=ROOTS)).devices
    candidates = [device for device in found if device.attributes["type"].value == "mig"]
    assert {frozenset(device.attributes) for device in candidates} == {frozenset(OF_MIG - {"uuid"})}
    assert {frozenset(device.capacity) for device in candidates} == {frozenset(ENGINES)}


def test_what_the_driver_can_not_tell_is_absent() -> None:
    bare = replace(
        h100().accelerators[0], memory_mib=None, compute_capability=None, pci_bus_id="", brand="", mig_capable=False
    )
    (device,) = published(replace(node_of(bare), driver_version="", cuda_version=None)).devices
    assert set(device.attributes) == {"type", "uuid", "productName"}
    assert device.capacity == {}


@pytest.mark.parametrize(
    ("version", "wanted"),
    [("580.95.05", "580.95.5"), ("535.129.03", "535.129.3"), ("12.4", "12.4.0"), ("9", "9.0.0"), ("", ""), ("1.2.3.4", ""),
     ("550.x", ""), ("550-server", "")],
)  # fmt: skip
def test_versions_are_semver(version: str, wanted: str) -> None:
    assert semver(version) == wanted


@pytest.mark.parametrize(
    ("capability", "name"),
    [((3, 7), "Kepler"), ((6, 0), "Pascal"), ((7, 0), "Volta"), ((7, 5), "Turing"), ((8, 6), "Ampere"),
     ((8, 9), "Ada Lovelace"), ((9, 0), "Hopper"), ((10, 0), "Blackwell"), ((12, 0), "Blackwell"), ((11, 0), None)],
)  # fmt: skip
def test_architectures(capability: tuple[int, int], name: str | None) -> None:
    (device,) = published(sample_of(compute_capability=capability)).devices
    found = device.attributes.get("architecture")
    assert (found.value if found else None) == name


def sample_of(**fields: object) -> Inventory:
    return node_of(replace(h100().accelerators[0], mig_capable=False, **fields))  # type: ignore[arg-type]


def test_a_long_name_is_cut_to_what_the_api_takes() -> None:
    (device,) = published(sample_of(name="ä" * 60)).devices
    assert device.attributes["productName"].value == "ä" * 32


def test_a_whole_gpu_is_never_beside_its_slices() -> None:
    first, second = h100(2).accelerators
    assert names(node_of(cut(first, [named(SEVEN, "3g.40gb")] * 2), second)) == [
        "gpu-0-mig-3g40gb-9-0", "gpu-0-mig-3g40gb-9-4", "gpu-1",
    ]  # fmt: skip
    assert names(node_of(replace(first, mig_enabled=True), second)) == ["gpu-1"]


def test_profiles_with_extras_are_told_apart_by_their_number() -> None:
    pro = models()["NVIDIA RTX PRO 6000 Blackwell Server Edition"].accelerators[0]
    geometry = GEOMETRIES["rtx-pro-6000"]
    rows = [named(geometry, name) for name in ("1g.24gb+gfx", "1g.24gb-me", "1g.24gb+me")]
    assert sorted(names(node_of(cut(pro, rows)))) == [
        "gpu-0-mig-1g24gb-gfx-47-9", "gpu-0-mig-1g24gb-me-21-3", "gpu-0-mig-1g24gb-me-67-6",
    ]  # fmt: skip


def test_compute_instances_of_one_gpu_instance_have_names_of_their_own() -> None:
    gpu = h100().accelerators[0]
    parts = [partition(gpu, named(SEVEN, "3g.40gb"), 0, 1, compute=n, name="1c.3g.40gb") for n in (0, 1)]
    found = names(node_of(replace(gpu, mig_enabled=True, partitions=tuple(parts))))
    assert found == ["gpu-0-mig-1c3g40gb-ci0-9-0", "gpu-0-mig-1c3g40gb-ci1-9-0"]
    assert all(MIG_NAME.fullmatch(name) for name in found)


def test_a_profile_that_the_driver_rounds_otherwise_is_the_same() -> None:
    gpu = a100().accelerators[0]
    one = partition(gpu, named(GEOMETRIES["a100-80gb"], "3g.40gb"), 4, 2, name="3g.39gb")
    assert names(node_of(replace(gpu, mig_enabled=True, partitions=(one,)))) == ["gpu-0-mig-3g39gb-9-4"]


def test_slices_of_a_gpu_without_a_table_are_published_as_they_are() -> None:
    gpu = replace(h100().accelerators[0], name="NVIDIA Z900", mig_enabled=True)
    one = replace(partition(h100().accelerators[0], named(SEVEN, "2g.20gb"), 2, 3), profile="2g.33gb+me")
    assert names(node_of(replace(gpu, partitions=(one,))), DYNAMIC) == ["gpu-0-mig-2g33gb-me-8-2"]


def test_dynamic_slices_of_hopper_are_beside_the_whole_gpu() -> None:
    found = published(h100(), DYNAMIC)
    assert len(found.devices) == 1 + 7 + 7 + 4 + 3 + 2 + 1 + 1
    assert found.counters is not None
    assert found.devices[0].name == "gpu-0"
    assert found.devices[0].consumes == found.counters.counters
    assert found.counters.name == "gpu-0-counter-set"
    assert set(found.counters.counters) == {
        "multiprocessors", "copy-engines", "decoders", "jpeg-engines", "ofa-engines", "memory",
        *(f"memory-slice-{unit}" for unit in range(8)),
    }  # fmt: skip
    assert all(MIG_NAME.fullmatch(device.name) for device in found.devices[1:])


def test_an_ampere_gpu_stays_in_its_mode() -> None:
    (off,) = a100().accelerators
    assert names(node_of(off), DYNAMIC) == ["gpu-0"]
    assert published(node_of(off), DYNAMIC).counters is None
    on = published(node_of(replace(off, mig_enabled=True)), DYNAMIC)
    assert "gpu-0" not in [device.name for device in on.devices]
    assert len(on.devices) == 25
    assert on.counters is not None


@pytest.mark.parametrize("name", ["NVIDIA L4", "Tesla T4", "Tesla V100-SXM2-16GB"])
def test_a_gpu_without_mig_has_no_counters(name: str) -> None:
    found = published(models()[name], DYNAMIC)
    assert [device.name for device in found.devices] == ["gpu-0"]
    assert found.counters is None
    assert not found.devices[0].consumes


def test_slices_that_are_there_stay_and_nothing_needs_them_gone() -> None:
    gpu = cut(h100().accelerators[0], [named(SEVEN, "1g.10gb")] * 3)
    found = published(node_of(gpu), DYNAMIC)
    there = [device for device in found.devices if device.partition]
    taken = {part.placement_start for part in gpu.partitions}
    assert {device.partition for device in there} == {part.uuid for part in gpu.partitions}
    assert all(not device.counter_set for device in there)
    assert "gpu-0" not in [device.name for device in found.devices]
    rest = [device for device in found.devices if not device.partition]
    assert rest
    assert not any(f"memory-slice-{unit}" in device.consumes for device in rest for unit in taken)
    assert found.counters is not None
    assert found.counters.counters["multiprocessors"] == str(132 - 3 * 16)


def test_slices_that_were_made_for_claims_are_no_reason_to_publish_less() -> None:
    gpu = cut(h100().accelerators[0], [named(SEVEN, "1g.10gb")] * 3)
    made = frozenset((gpu.uuid, part.placement_start) for part in gpu.partitions)
    assert names(node_of(gpu), replace(DYNAMIC, made=made)) == names(h100(), DYNAMIC)
    here = {device.name: device for device in published(node_of(gpu), replace(DYNAMIC, made=made)).devices}
    first = gpu.partitions[0]
    assert here[f"gpu-0-mig-1g10gb-19-{first.placement_start}"].instance == first.gpu_instance


def test_a_gpu_that_is_full_has_no_counter_set() -> None:
    gpu = cut(h100().accelerators[0], [named(SEVEN, "7g.80gb")])
    found = published(node_of(gpu), DYNAMIC)
    assert [device.name for device in found.devices] == ["gpu-0-mig-7g80gb-0-0"]
    assert found.counters is None


def test_of_two_gpus_with_one_minor_number_the_first_is_published() -> None:
    first, second = h100(2).accelerators
    node = node_devices(node_of(first, replace(second, minor=0)), DYNAMIC)
    assert {device.gpu for device in node.devices} == {first.uuid}
    assert [advice.subject for advice in node.advice] == [second.uuid]
    assert node.advice[0].reason == "DeviceNotPublished"


def test_of_a_lost_and_a_well_gpu_with_one_minor_number_the_well_one_is_published() -> None:
    first, second = h100(2).accelerators
    lost = HardwareFinding(subject=first.uuid, problem=Problem.LOST, what="w", expected="e", remedy="r")
    node = node_devices(node_of(replace(first, findings=(lost,)), replace(second, minor=0)), STATIC)
    assert [device.gpu for device in node.devices] == [second.uuid]


def test_a_vendor_without_a_driver_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError) as caught:
        node_devices(replace(h100(), vendor="intel"), PublishRules())
    assert "intel" in caught.value.what
    assert "device plugin" in caught.value.remedy


# What fits by counters is what the hardware fits


def fit_by_counters(devices: Sequence[DraDevice], counters: dict[str, str]) -> bool:
    for name, amount in counters.items():
        taken = sum(Quantity.parse(device.consumes.get(name, "0")).nanos for device in devices)
        if taken > Quantity.parse(amount).nanos:
            return False
    return True


def fit_in_hardware(geometry: Geometry, placed: Sequence[tuple[InstanceProfile, int]]) -> bool:
    rows = [replace(row, starts=(start,)) for row, start in placed]
    return placements(geometry, [] if len(rows) == 0 else rows[:1], beside=placed[1:]) is not None and all(
        not _overlap(one, other) for one, other in itertools.combinations(placed, 2)
    )


def _overlap(one: tuple[InstanceProfile, int], other: tuple[InstanceProfile, int]) -> bool:
    return one[1] < other[1] + other[0].units and other[1] < one[1] + one[0].units


MIG_MODELS = [
    name for name, inventory in models().items() if geometry_of(name) and inventory.accelerators[0].mig_capable
]


@pytest.mark.parametrize("name", MIG_MODELS)
def test_sets_that_fit_by_counters_are_those_that_the_hardware_fits(name: str) -> None:
    geometry = geometry_of(name)
    assert geometry is not None
    gpu = replace(models()[name].accelerators[0], mig_enabled=True)
    found = published(node_of(gpu), DYNAMIC)
    assert found.counters is not None
    devices = [device for device in found.devices if device.attributes["type"].value == "mig"]
    places = [(row, start) for row in geometry.rows for start in row.starts]
    assert len(devices) == len(places)
    for size in (1, 2, 3):
        sets = list(itertools.combinations(range(len(places)), size))
        for picked in sets if size < 3 else sample(sets, name)[: count(1500, 100_000)]:
            by_counters = fit_by_counters([devices[at] for at in picked], dict(found.counters.counters))
            assert by_counters == fit_in_hardware(geometry, [places[at] for at in picked]), [
                places[at] for at in picked
            ]


PRODUCTS = {
    "a100-40gb": (A100.replace("80GB", "40GB"), 40), "a100-80gb": (A100, 80), "a30": ("NVIDIA A30", 24),
    "h100-80gb": (H100, 80), "h100-94gb": ("NVIDIA H100 NVL", 94), "h100-96gb": ("NVIDIA H20", 96),
    "h200": ("NVIDIA H200", 141), "gh200-96gb": ("NVIDIA GH200 480GB", 96),
    "gh200-144gb": ("NVIDIA GH200 144G HBM3e", 144), "b200": ("NVIDIA B200", 180), "gb200": ("NVIDIA GB200", 186),
    "b300": ("NVIDIA B300 SXM6 AC", 269), "gb300": ("NVIDIA GB300", 278),
    "rtx-pro-6000": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 96),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(GEOMETRIES))
def test_every_layout_that_the_hardware_fits_fits_by_counters(name: str) -> None:
    """Full GPUs: sets that grow by whatever still fits, until nothing does."""
    geometry = GEOMETRIES[name]
    product, gib = PRODUCTS[name]
    assert geometry_of(product) is geometry
    gpu = replace(h100().accelerators[0], name=product, memory_mib=gib * 1024 - 300, mig_enabled=True)
    found = published(node_of(gpu), DYNAMIC)
    assert found.counters is not None
    devices = {device.name: device for device in found.devices}
    places = [(row, start) for row in geometry.rows for start in row.starts]
    for first in range(len(places)):
        chosen: list[tuple[InstanceProfile, int]] = []
        for row, start in places[first:] + places[:first]:
            grown = [*chosen, (row, start)]
            fits = fit_in_hardware(geometry, grown)
            taken = [next(d for n, d in devices.items() if n.endswith(f"-{r.id}-{s}")) for r, s in grown]
            assert fit_by_counters(taken, dict(found.counters.counters)) == fits, grown
            if fits:
                chosen = grown


def test_beside_slices_that_stay_what_fits_is_what_the_hardware_fits() -> None:
    gpu = cut(h100().accelerators[0], [named(SEVEN, "1g.10gb+me"), named(SEVEN, "2g.20gb")])
    stay = [(next(row for row in SEVEN.rows if row.name == one.profile), one.placement_start) for one in gpu.partitions]
    found = published(node_of(gpu), DYNAMIC)
    assert found.counters is not None
    names_now = {device.name: device for device in found.devices if device.counter_set}
    places = [(row, start) for row in SEVEN.rows for start in row.starts]
    for size in (1, 2, 3):
        for picked in itertools.combinations(places, size):
            taken = [names_now.get(f"gpu-0-mig-{label(row)}-{row.id}-{start}") for row, start in picked]
            by_counters = None not in taken and fit_by_counters(
                [one for one in taken if one], dict(found.counters.counters)
            )
            assert by_counters == fit_in_hardware(SEVEN, [*picked, *stay]), picked


def label(row: InstanceProfile) -> str:
    return row.name.replace(".", "").replace("+", "-")


def test_eight_and_sixteen_gpus_of_each_model() -> None:
    for name, inventory in models().items():
        for number in (8, 16):
            node = node_devices(many(inventory, number), DYNAMIC)
            assert len(node.gpus) == number, name
            assert len({device.name for device in node.devices}) == len(node.devices)


def test_a100_is_ampere() -> None:
    assert geometry_of(A100) is GEOMETRIES["a100-80gb"]


def test_a_gpu_that_is_taken_is_not_published_and_that_is_told() -> None:
    node = sample_inventory(2)
    taken, free = (gpu.uuid for gpu in node.accelerators)
    found = node_devices(node, PublishRules(dynamic=True, taken={taken: "pod team/train has it by nvidia.com/gpu"}))
    assert {device.gpu for device in found.devices} == {free}
    (told,) = (advice for advice in found.advice if advice.reason == "DeviceTaken")
    assert (told.subject, told.why) == (taken, "pod team/train has it by nvidia.com/gpu")
