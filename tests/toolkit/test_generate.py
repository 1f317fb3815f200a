"""Generation as a whole: what is not whole, versions for old engines, groups of nodes, annotations, files, reports."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from kgpu.base.errors import ConfigError, HostError
from kgpu.formats.cdi import CdiDevice, build_spec, parse_spec
from kgpu.host.root import DriverRoot
from kgpu.hw.fake_reader import sample_inventory, sample_partitions
from kgpu.toolkit.cdi_support import EngineSupport
from kgpu.toolkit.config import FEATURES, Output, generate_config
from kgpu.toolkit.report import as_data, as_lines, twin_notes, write_report
from kgpu.toolkit.run import IncompleteError, generate, write_specs
from kgpu.toolkit.specs import FoundSpec
from tests.host.tree import driver, touch
from tests.toolkit.generation import edits, make, names

NEW = (EngineSupport("/usr/bin/containerd", "1.0.0"),)
OLD = (*NEW, EngineSupport("/usr/bin/podman", "0.6.0"))


@pytest.fixture
def root(tmp_path):
    return driver(tmp_path)


def sliced(count: int = 2):
    inventory = sample_inventory(1)
    gpu = inventory.accelerators[0]
    return replace(
        inventory, accelerators=(replace(gpu, mig_enabled=True, partitions=sample_partitions(gpu, count=count)),)
    )


def grouped(root: Path, gid: int = 44, mode: int = 0o660) -> None:
    """A node of a group, as display nodes are."""
    place = root / "dev/nvidia0"
    place.unlink()
    try:
        os.mknod(place, 0o020000 | mode, os.makedev(195, 0))
        os.chown(place, 0, gid)
        place.chmod(mode)
    except PermissionError:
        pytest.skip("making device nodes needs root")


def test_slice_without_its_nodes_is_an_error_unless_allowed(root) -> None:
    caps = [path for part in sliced().accelerators[0].partitions[:1] for path in part.device_nodes[1:]]
    touch(root, *caps)
    with pytest.raises(IncompleteError, match="0:1 is left out") as caught:
        make(root, inventory=sliced(), allow_incomplete=False)
    assert "--allow-incomplete" in caught.value.remedy
    assert caught.value.generated is not None
    assert names(caught.value.generated.spec) == ["0:0", "all"]
    generated = make(root, inventory=sliced(), allow_incomplete=True)
    assert names(generated.spec) == ["0:0", "all"]
    assert any("0:1 is left out" in note for note in generated.notes)


def test_nothing_but_incomplete_devices_says_which(root) -> None:
    with pytest.raises(IncompleteError, match="0:0 is left out") as caught:
        make(root, inventory=sliced(1), allow_incomplete=True)
    assert caught.value.generated is None
    assert "--allow-incomplete" not in caught.value.remedy  # it would not help


def test_missing_uvm_is_an_error_unless_allowed(root) -> None:
    (root / "dev/nvidia-uvm").unlink()
    with pytest.raises(HostError, match="/dev/nvidia-uvm is not there") as caught:
        make(root, allow_incomplete=False)
    assert "CUDA" in caught.value.what
    generated = make(root, allow_incomplete=True)
    assert any("/dev/nvidia-uvm is not there" in note for note in generated.notes)


def test_groups_only_where_every_engine_reads_them(root) -> None:
    grouped(root)
    assert edits(make(root, engines=NEW).spec, "0").additional_gids == (44,)
    assert make(root, engines=NEW).spec.cdi_version == "0.7.0"
    for engines, options in ((OLD, {}), ((), {}), (NEW, {"features": ["no-additional-gids-for-device-nodes"]}),
                             (NEW, {"newest": "0.6.0"})):  # fmt: skip
        spec = make(root, engines=engines, **options).spec
        assert edits(spec, "0").additional_gids == ()
        assert spec.cdi_version == "0.5.0"


@pytest.mark.parametrize(("gid", "mode"), [(0, 0o660), (44, 0o666)])
def test_no_group_where_none_is_needed(root, gid: int, mode: int) -> None:
    grouped(root, gid, mode)
    assert edits(make(root, engines=NEW).spec, "0").additional_gids == ()


def test_newer_than_asked_for_is_an_error_and_than_an_engine_reads_a_note(root) -> None:
    with pytest.raises(ConfigError, match=r"needs CDI 0\.5\.0, newer than 0\.4\.0"):
        make(root, newest="0.4.0")
    assert make(root, newest="0.5.0").spec.cdi_version == "0.5.0"
    notes = make(root, engines=(EngineSupport("/usr/bin/podman", "0.4.0"),)).notes
    assert any("/usr/bin/podman reads CDI up to 0.4.0" in note for note in notes)


def test_none_is_a_device_without_nodes_and_without_all(root) -> None:
    spec = make(root, device_ids=["none"]).spec
    assert names(spec) == ["none"]
    assert edits(spec, "none").env == ("NVCT_EMPTY_DEVICE=",)
    assert edits(spec, "none").device_nodes == ()


def test_annotations_say_what_a_spec_was_made_for(root) -> None:
    spec = make(root, annotate=True).spec
    assert spec.annotations["kgpu.dev/driver-version"] == "550.54.15"
    assert set(spec.annotations) <= {"kgpu.dev/driver-version", "kgpu.dev/boot-id"}
    assert spec.cdi_version == "0.6.0"
    assert make(root).spec.annotations == {}


@pytest.mark.parametrize("feature", [*FEATURES, "disable-nvsandbox-utils"])
def test_every_feature_is_taken(root, feature: str) -> None:
    assert names(make(root, features=[feature]).spec) == ["0", "all"]


def test_same_node_same_bytes(root) -> None:
    first, second = (make(root, inventory=sample_inventory(1), strategies=["uuid", "index"]) for _ in range(2))
    assert first == second


def test_specs_and_their_siblings_are_files(root, tmp_path) -> None:
    generated = make(root, features=["enable-coherent-annotations"])
    paths = write_specs(generated, Output(tmp_path / "out/nvidia.yaml", "yaml"))
    assert [path.name for path in paths] == ["nvidia.yaml", "nvidia.noncoherent.yaml"]
    assert [parse_spec(path.read_bytes()).kind for path in paths] == ["nvidia.com/gpu", "nvidia.com/gpu.noncoherent"]
    assert write_specs(generated, Output(None, "yaml")) == ()


def test_report_says_what_was_missed_and_what_that_breaks(root, tmp_path) -> None:
    (root / "dev/nvidia-uvm").unlink()
    generated = make(root)
    data = as_data(generated, ["/x.yaml"])
    assert (data["mode"], data["kind"], data["driver"]["version"]) == ("nvml", "nvidia.com/gpu", "550.54.15")
    assert data["devices"] == ["nvidia.com/gpu=0", "nvidia.com/gpu=all"]
    (uvm,) = [item for item in data["items"] if item["name"] == "/dev/nvidia-uvm"]
    assert (uvm["found"], uvm["essential"]) == (False, True)
    assert any("CUDA" in text for text in data["missing"])
    assert data["files"] == ["/x.yaml"]
    assert "specs" not in data
    assert len(as_data(generated)["specs"]) == 1
    assert any(line.startswith("note: /dev/nvidia-uvm") for line in as_lines(generated))
    write_report(data, tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text()) == data
    with pytest.raises(HostError, match="can't be written"):
        write_report(data, Path("/proc/x/report.json"))


@pytest.mark.parametrize("mode", ["nvml", "management"])
def test_no_driver_file_at_all_is_an_error_and_not_a_spec_without_mounts(tmp_path, mode: str) -> None:
    touch(tmp_path, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")
    with pytest.raises(HostError) as caught:
        make(tmp_path, mode=mode, allow_incomplete=True)
    assert caught.value.remedy


def test_driver_in_a_root_of_its_own_and_devices_of_the_host(tmp_path) -> None:
    root = driver(tmp_path / "driver")
    touch(tmp_path / "host", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")
    found = generate(
        lambda: sample_inventory(1),
        DriverRoot.at(root, driver_host="/run/nvidia/driver", dev=tmp_path / "host", dev_host="/"),
        generate_config(strategies=["index"]),
    ).spec
    assert [node.path for node in edits(found, "0").device_nodes] == ["/dev/nvidia0"]
    assert all(not node.host_path for node in (*edits(found, "0").device_nodes, *found.container_edits.device_nodes))
    assert all(mount.host_path.startswith("/run/nvidia/driver/") for mount in found.container_edits.mounts)
    assert not any("/run/nvidia/driver" in mount.container_path for mount in found.container_edits.mounts)


def found_spec(path: str, priority: int, *devices: str) -> FoundSpec:
    entries = [CdiDevice(names=(name,), env=("A=b",)) for name in devices]
    spec = build_spec(kind="nvidia.com/gpu", devices=entries, all_device=False)
    return FoundSpec(path=path, priority=priority, spec=spec)


def test_devices_that_other_files_have_too_are_told() -> None:
    mine = found_spec("/var/run/cdi/a.yaml", 1, "0", "1")
    others = {
        "same": found_spec("/var/run/cdi/b.yaml", 1, "1"),
        "below": found_spec("/etc/cdi/c.yaml", 0, "0", "1", "2"),
        "stranger": found_spec("/var/run/cdi/d.yaml", 1, "7"),
    }
    notes = twin_notes(["/var/run/cdi/a.yaml"], [mine, *others.values()])
    assert notes == [
        "1 device is also in /var/run/cdi/b.yaml, so that runtimes resolve neither: remove it",
        "2 devices are also in /etc/cdi/c.yaml; runtimes take those of /var/run/cdi/a.yaml",
    ]
    assert twin_notes(["/x.yaml"], [mine, *others.values()]) == []
