"""The defects of the replaced toolkit, each with the tests that hold that kgpu does not have it.

The numbers are those of the sheet on the container toolkit, 9.1. Three of them have their tests here, since they are
about no single part.
"""

from __future__ import annotations

import ast
import json
import posixpath
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kgpu.formats.cdi import Spec, dump_spec, parse_spec
from kgpu.hw.fake_reader import sample_inventory
from kgpu.toolkit.config import HookConfig, Output
from kgpu.toolkit.run import write_spec
from tests.toolkit.generation import make

TESTS = Path(__file__).resolve().parents[1]
REWRITES = 200
DRIVER = sample_inventory(1).driver_version


@dataclass(frozen=True, slots=True)
class Defect:
    """``number`` in the sheet, what went wrong, and the tests: ``file::function`` under tests/."""

    number: int
    what: str
    tests: tuple[str, ...]


DEFECTS = (
    Defect(
        1,
        "switching CDI on drops Docker's other features",
        (
            "host/engines/test_crio_and_docker.py::test_other_features_stay",
            "host/engines/test_random_configs.py::test_docker",
        ),
    ),
    Defect(
        2,
        "a config without a version gets a drop-in that its containerd never reads",
        (
            "host/engines/test_containerd.py::test_containerd_1_with_a_file_without_version_is_edited_where_it_reads",
            "host/engines/test_containerd.py::test_containerd_2_with_a_file_without_version_gets_a_drop_in_in_version_3",
        ),
    ),
    Defect(
        3,
        "the drop-in freezes every default of the day it was written",
        (
            "host/engines/test_containerd.py::test_a_merging_containerd_gets_a_drop_in_of_kgpus_keys_alone",
            "host/engines/test_containerd.py::test_an_older_containerd_gets_a_copy_of_what_is_configured_and_no_defaults",
        ),
    ),
    Defect(4, "CUDA 12.10 is read as 12.0", ("toolkit/nri/test_run.py::test_cuda_minor_versions_beyond_nine",)),
    Defect(
        5,
        "links by PCI place lead into the dev root, which no container has",
        ("host/driver/test_drm.py::test_links_name_places_in_the_container_never_in_the_dev_root",),
    ),
    Defect(
        6,
        "the loader cache is not updated where compatibility libraries were enabled",
        ("toolkit/test_defects.py::test_the_cache_is_updated_for_every_folder_that_libraries_are_mounted_in",),
    ),
    Defect(
        7,
        "finding nothing at all is no error",
        (
            "host/driver/test_find.py::test_no_driver_names_the_places",
            "toolkit/test_generate.py::test_nothing_but_incomplete_devices_says_which",
        ),
    ),
    Defect(
        8,
        "the folder of MPS is never found",
        ("host/driver/test_programs.py::test_mps_folder_is_found_and_mounted_as_a_folder",),
    ),
    Defect(
        9,
        "each start of a container adds files to it",
        (
            "toolkit/test_defects.py::test_a_spec_writes_nothing_into_a_container",
            "toolkit/real/test_devices.py::test_a_new_start_of_a_container_adds_nothing",
            "toolkit/real/test_pods.py::test_a_restarted_container_has_its_gpu_and_nothing_twice",
        ),
    ),
    Defect(
        10,
        "links in /dev/char: minors are guessed, stale links stay, the driver root is ignored",
        (
            "host/test_dev_nodes.py::test_every_node_has_the_minor_that_the_driver_says",
            "host/test_dev_nodes.py::test_links_are_made_replaced_removed_and_left",
            "cli/test_nvidia_ctk.py::test_the_driver_root_moves_the_nodes_that_are_linked",
        ),
    ),
    Defect(
        11,
        "two places to write config.toml to are not refused",
        ("cli/test_nvidia_ctk.py::test_two_places_to_write_to_are_refused_and_nothing_is_written",),
    ),
    Defect(
        12,
        "a mode without nodes fails with an obscure message",
        ("toolkit/modes/test_nodes.py::test_no_node_says_what_to_load",),
    ),
    Defect(
        13,
        "containers fail to start while the toolkit is installed anew",
        ("toolkit/test_defects.py::test_a_spec_that_is_written_anew_is_whole_at_every_moment",),
    ),
    Defect(
        14,
        "a drop-in that somebody deleted makes the clean-up fail",
        ("toolkit/engine/test_run.py::test_files_deleted_by_hand_are_no_error",),
    ),
    Defect(
        15,
        "RUNTIME_CONFIG_OVERRIDE has no effect",
        (
            "toolkit/test_settings.py::test_runtime_config_override_has_effect",
            "host/engines/test_containerd.py::test_a_binary_and_overrides",
        ),
    ),
    Defect(
        16,
        "the clean-up leaves CDI on and the imports line in the user's file",
        (
            "toolkit/engine/test_run.py::test_there_and_back",
            "toolkit/engine/test_run.py::test_an_edit_since_stays_and_only_kgpus_keys_go",
            "host/engines/test_random_configs.py::test_containerd",
        ),
    ),
)


def test_every_defect_is_here() -> None:
    assert [defect.number for defect in DEFECTS] == list(range(1, 17))


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: str(defect.number))
def test_a_defect_has_tests_that_exist(defect: Defect) -> None:
    assert defect.tests, defect.what
    for test in defect.tests:
        file, _, name = test.partition("::")
        found = ast.walk(ast.parse((TESTS / file).read_text()))
        names = {node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in names, f"{test}, which holds: {defect.what}"


def test_the_cache_is_updated_for_every_folder_that_libraries_are_mounted_in(
    sim_root: Callable[..., Path],
) -> None:
    """Defect 6."""
    edits = make(
        sim_root("hgx-h100", driver=DRIVER), hooks=HookConfig(path="/usr/bin/nvidia-cdi-hook")
    ).spec.container_edits
    commands = {hook.args[1]: hook.args[2:] for hook in edits.hooks}
    assert "enable-cuda-compat" in commands
    libraries = [mount.container_path for mount in edits.mounts if ".so." in mount.container_path]
    folders = {folder for word, folder in zip(commands["update-ldcache"], commands["update-ldcache"][1:], strict=False)
               if word == "--folder"}  # fmt: skip
    assert {posixpath.dirname(path) for path in libraries} == folders != set()


def test_a_spec_writes_nothing_into_a_container(sim_root: Callable[..., Path]) -> None:
    """Defect 9: without hooks nothing runs, and no mount is where an image keeps the settings of its loader."""
    spec = made(sim_root("hgx-h100", driver=DRIVER), gpus=2)
    every = [spec.container_edits, *(device.container_edits for device in spec.devices)]
    assert not [hook for edits in every for hook in edits.hooks]
    mounted = [mount.container_path for edits in every for mount in edits.mounts]
    assert len(mounted) == len(set(mounted))
    assert not [path for path in mounted if path.startswith("/etc/ld")]


def test_a_spec_that_is_written_anew_is_whole_at_every_moment(sim_root: Callable[..., Path], tmp_path: Path) -> None:
    """Defect 13: nothing of what containers need to start is taken away before its successor is there."""
    root = sim_root("hgx-h100", driver=DRIVER)
    specs = [made(root, gpus=1), made(root, gpus=2)]
    whole = {dump_spec(spec, "json") for spec in specs}
    target = tmp_path / "cdi" / "nvidia.json"
    write_spec(specs[0], Output(target, "json"))
    done = threading.Event()
    seen: list[str] = []

    def read() -> None:
        while not done.is_set():
            seen.append(target.read_text().strip() if target.exists() else "(gone)")

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with target.open() as held:
            for number in range(REWRITES):
                write_spec(specs[number % 2], Output(target, "json"))
            assert held.read().strip() in whole, "an engine that has begun to read goes on with what it opened"
    finally:
        done.set()
        reader.join()
    assert seen
    assert set(seen) <= whole
    assert len(json.loads(target.read_text())["devices"]) == len(specs[1].devices)
    assert parse_spec(target.read_bytes()) == specs[1]
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def made(root: Path, *, gpus: int) -> Spec:
    return make(root, inventory=sample_inventory(gpus)).spec
