"""The KFD's topology, with the values of machines that ROCm's device plugin has captured (Apache-2.0, its testdata)."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from kgpu.hw.amd import kfd
from kgpu.hw.amd.kfd import NoDriverError

MI210 = {
    "cpu_cores_count": 0, "simd_count": 416, "simd_per_cu": 4, "gfx_target_version": 90010, "location_id": 25344,
    "domain": 0, "drm_render_minor": 128, "hive_id": 12609507387757274807, "unique_id": 1801979520617338022, "num_xcc": 1,
}  # fmt: skip
MI300_PART = {
    "cpu_cores_count": 0, "simd_count": 152, "simd_per_cu": 4, "gfx_target_version": 90402, "location_id": 1281,
    "domain": 0, "drm_render_minor": 129, "unique_id": 16404946649897475633,
}  # fmt: skip
MI308_PART = {
    "cpu_cores_count": 0, "simd_count": 80, "simd_per_cu": 4, "gfx_target_version": 90402, "location_id": 2561,
    "domain": 0, "drm_render_minor": 129,
}  # fmt: skip
OLD = {"cpu_cores_count": 0, "simd_count": 256, "simd_per_cu": 4, "location_id": 6400, "drm_render_minor": 128}
PROCESSOR = {"cpu_cores_count": 96, "simd_count": 0, "drm_render_minor": 0}
APU = {"cpu_cores_count": 16, "simd_count": 8, "simd_per_cu": 2, "drm_render_minor": 128, "gfx_target_version": 90012}


def lines(rows: dict[str, int]) -> str:
    return "".join(f"{name} {value}\n" for name, value in rows.items())


def machine(folder: Path, *nodes: dict[str, int]) -> str:
    drivers = folder / kfd.DRIVERS / "pci:amdgpu"
    for name in ("0000:05:00.0", "0000:63:00.0", "bind", "new_id", "0000:zz:00.0"):
        (drivers / name).mkdir(parents=True)
    for number, rows in enumerate(nodes):
        node = folder / kfd.NODES / str(number)
        (node / "mem_banks/0").mkdir(parents=True)
        (node / "properties").write_text(lines(rows))
        (node / "gpu_id").write_text(f"{1000 + number}\n")
        (node / "mem_banks/0/properties").write_text("heap_type 1\nsize_in_bytes 17163091968\n")
    return str(folder)


@pytest.mark.parametrize(
    ("rows", "bus", "part", "compute_units"),
    [
        (MI210, "0000:63:00", 0, 104),
        (MI300_PART, "0000:05:00", 1, 38),
        (MI308_PART, "0000:0a:00", 1, 20),
        (OLD, "0000:19:00", 0, 64),
        ({**MI210, "domain": 1}, "0001:63:00", 0, 104),
    ],
)
def test_where_a_node_is(tmp_path, rows: dict[str, int], bus: str, part: int, compute_units: int) -> None:
    (node,) = kfd.scan(machine(tmp_path, PROCESSOR, rows)).nodes
    assert (node.bus, node.part, node.simds // node.simds_per_cu) == (bus, part, compute_units)
    assert (node.number, node.gpu_id, node.memory_bytes >> 20) == (1, 1001, 16368)


def test_processors_and_their_graphics_are_no_gpus(tmp_path) -> None:
    assert kfd.scan(machine(tmp_path, PROCESSOR, APU)).nodes == ()


def test_only_addresses_count_among_what_is_in_the_drivers_folder(tmp_path) -> None:
    assert kfd.scan(machine(tmp_path, PROCESSOR)).buses == ("0000:05:00.0", "0000:63:00.0")


def test_one_node_of_garbage_costs_no_other(tmp_path) -> None:
    root = machine(tmp_path, PROCESSOR, MI210, MI300_PART)
    (tmp_path / kfd.NODES / "1/properties").write_bytes(b"\xff\xfe" * 40)
    (tmp_path / kfd.NODES / "nonsense").mkdir()
    assert [node.number for node in kfd.scan(root).nodes] == [2]


def test_what_is_missing_is_named(tmp_path) -> None:
    with pytest.raises(NoDriverError, match="module/amdgpu/drivers"):
        kfd.scan(str(tmp_path))
    (tmp_path / kfd.DRIVERS).mkdir(parents=True)
    with pytest.raises(NoDriverError, match="kfd/topology/nodes"):
        kfd.scan(str(tmp_path))


def test_links_are_those_of_both_folders_and_a_direct_one_wins(tmp_path) -> None:
    root = machine(tmp_path, PROCESSOR, MI210)
    rows = {"io_links": [(11, 3), (2, 0)], "p2p_links": [(2, 3), (2, 4)]}
    for kind, found in rows.items():
        for number, (what, to) in enumerate(found):
            place = tmp_path / kfd.NODES / "1" / kind / str(number)
            place.mkdir(parents=True)
            (place / "properties").write_text(lines({"type": what, "node_from": 1, "node_to": to, "weight": 15}))
    (node,) = kfd.scan(root).nodes
    assert kfd.links(root, node) == {3: 11, 0: 2, 4: 2}


def test_a_topology_that_changes_meanwhile_is_read_again(tmp_path, monkeypatch) -> None:
    root = machine(tmp_path, PROCESSOR, MI210)
    generations, scans = itertools.chain("12", itertools.repeat("2")), []
    read = kfd._line
    monkeypatch.setattr(kfd, "_line", lambda path: next(generations) if "generation_id" in path else read(path))
    scan = kfd._scan
    monkeypatch.setattr(kfd, "_scan", lambda sys: scans.append(sys) or scan(sys))
    assert len(kfd.scan(root).nodes) == 1
    assert len(scans) == 2
