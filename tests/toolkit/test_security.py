"""The ways in which containers broke out through the programs that gave them GPUs, each with the tests that close it.

The classes are those of the replaced toolkit's security history (the sheet on it, 6) and of its weak spots.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import kgpu
from kgpu.base.errors import ConfigError
from kgpu.formats.cdi import kind_of, parse_spec

TESTS = Path(__file__).resolve().parents[1]
SOURCES = Path(kgpu.__file__).parent
REAL = "toolkit/real"


@dataclass(frozen=True, slots=True)
class Way:
    """``known`` names its advisories, ``what`` happens, ``tests`` hold that it doesn't here: ``file::function``."""

    known: str
    what: str
    tests: tuple[str, ...]


WAYS = (
    Way(
        "CVE-2024-0132, CVE-2024-0133",
        "a privileged program mounts over a path that the image changes meanwhile",
        (
            "toolkit/test_security.py::test_nothing_is_mounted_for_a_container",
            f"{REAL}/test_hostile.py::test_links_at_every_mount_target_lead_nowhere",
            f"{REAL}/test_hostile.py::test_folders_that_are_links_lead_nowhere",
        ),
    ),
    Way(
        "CVE-2024-0134, CVE-2026-24260",
        "a privileged program follows a link of the image and writes on the host",
        (
            f"{REAL}/test_hostile.py::test_the_spec_runs_nothing",
            f"{REAL}/test_hostile.py::test_a_dev_folder_that_is_a_link_gets_nothing_of_ours",
            "host/test_dev_nodes.py::test_a_link_in_the_root_never_leads_out_of_it",
        ),
    ),
    Way(
        "CVE-2024-0135, CVE-2024-0136, CVE-2024-0137",
        "the image's own ldconfig runs as root",
        (
            "toolkit/test_defects.py::test_a_spec_writes_nothing_into_a_container",
            "formats/test_toolkit_config.py::test_the_containers_own_ldconfig_needs_its_feature",
        ),
    ),
    Way(
        "CVE-2025-23359",
        "content of the image is mounted over the host's",
        ("toolkit/test_security_roots.py::test_no_link_in_a_driver_root_leads_a_mount_out_of_it",),
    ),
    Way(
        "CVE-2025-23266",
        "a hook inherits LD_PRELOAD from the image",
        (
            "toolkit/test_security_hooks.py::test_every_hook_has_an_environment_of_its_own",
            "toolkit/test_security_hooks.py::test_our_own_hook_command_starts_nothing_of_the_containers",
            "cli/test_nvidia_ctk.py::test_a_hook_is_handed_over_whole_and_with_nothing_of_the_environment",
            f"{REAL}/test_hostile.py::test_a_hook_has_nothing_of_the_containers_environment",
            f"{REAL}/test_hostile.py::test_a_preloaded_library_stays_in_the_container",
        ),
    ),
    Way(
        "CVE-2025-23267",
        "a hook that updates the loader's cache follows links",
        (
            "toolkit/test_security_hooks.py::test_without_being_asked_there_is_none",
            f"{REAL}/test_loaders.py::test_the_driver_is_found",
        ),
    ),
    Way(
        "mounts that spread",
        "what is mounted in a container appears on the host",
        (
            f"{REAL}/test_hostile.py::test_the_mounts_do_not_spread",
            f"{REAL}/test_hostile.py::test_mounts_have_no_more_rights_than_they_need",
            f"{REAL}/test_hostile.py::test_the_driver_on_the_host_can_not_be_changed_from_inside",
        ),
    ),
    Way(
        "modes by path",
        "a hook changes modes of what a link of the image names",
        ("toolkit/test_security_hooks.py::test_modes_are_not_changed_by_path_unless_that_is_enabled",),
    ),
    Way(
        "requests by environment",
        "an image that says NVIDIA_VISIBLE_DEVICES=all has every GPU",
        (
            "toolkit/nri/test_plan.py::test_a_variable_alone_gives_nothing",
            f"{REAL}/test_devices.py::test_an_image_that_says_all_gets_nothing_without_a_request",
            f"{REAL}/test_pods.py::test_a_pod_that_asks_for_nothing_sees_nothing",
            f"{REAL}/test_nri.py::test_an_image_that_wants_all_gets_nothing_elsewhere",
        ),
    ),
    Way(
        "requests by annotation",
        "a pod of any namespace names devices past the scheduler",
        (
            "toolkit/nri/test_plan.py::test_an_annotation_is_refused_aloud",
            "toolkit/nri/test_plan.py::test_no_words_get_what_others_hold",
            f"{REAL}/test_nri.py::test_an_annotation_elsewhere_is_refused_in_words_that_reach_the_pod",
            f"{REAL}/test_nri.py::test_never_a_gpu_that_the_kubelet_gave_to_others",
        ),
    ),
    Way(
        "nodes of other GPUs",
        "a root user of a container makes the node of a GPU that is not its own",
        (f"{REAL}/test_devices.py::test_another_gpu_is_out_of_reach_even_with_a_node_of_its_own",),
    ),
    Way(
        "files in $TMPDIR",
        "a spec on its way to standard output lies in a folder that others write to",
        ("toolkit/test_security.py::test_a_spec_for_standard_output_lies_nowhere_else",),
    ),
    Way(
        "files that end the engine",
        "containerd's CDI library up to 1.0.1 panics on a kind of one letter, and refuses a whole file for one bad value",
        (
            "toolkit/test_security.py::test_a_kind_that_ends_containerd_is_refused",
            f"{REAL}/test_specs.py::test_the_engine_takes_every_spec_that_kgpu_takes",
        ),
    ),
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.known)
def test_a_way_has_tests_that_exist(way: Way) -> None:
    assert way.tests
    for test in way.tests:
        file, _, name = test.partition("::")
        found = ast.walk(ast.parse((TESTS / file).read_text()))
        names = {node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in names, f"{test}, which holds: {way.what}"


@pytest.mark.parametrize("folder", ["toolkit", "host", "deviceplugin", "kubelet", "formats", "agent"])
def test_nothing_is_mounted_for_a_container(folder: str) -> None:
    """The engine mounts, with a root file system that it holds. The modules that do are about folders of the host: as
    the agent's own container sees them, and what a driver's former container has left.
    """
    calls = {"mount", "umount", "umount2", "pivot_root", "setns", "unshare", "nsenter"}
    found = {
        str(path.relative_to(SOURCES))
        for path in sorted((SOURCES / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr in calls and isinstance(node.ctx, ast.Load) and called(node))
        or (isinstance(node, ast.Call) and {one.value for one in node.args if isinstance(one, ast.Constant)} & calls)
    }
    assert found <= {"host/writable.py", "host/mounts.py"}


def called(node: ast.Attribute) -> bool:
    """Whether it is a function of the system's, and not a field of a value that is called so too."""
    return isinstance(node.value, ast.Name) and node.value.id in {"os", "libc"}


@pytest.mark.parametrize("kind", ["a/gpu", "nvidia.com/b", "a/b"])
def test_a_kind_that_ends_containerd_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError):
        kind_of(*kind.split("/"))
    with pytest.raises(ConfigError, match="not vendor/class"):
        parse_spec(
            f'{{"cdiVersion": "0.5.0", "kind": "{kind}", "devices": [{{"name": "0", "containerEdits": {{"env": ["A=1"]}}}}]}}'
        )


def test_a_spec_for_standard_output_lies_nowhere_else(sim_root: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o500)
    watched = folder.stat().st_mtime_ns
    done = subprocess.run(
        [sys.executable, "-m", "kgpu", "cdi", "generate", "--driver-root", str(sim_root("hgx-h100", gpus=1))],
        env={**os.environ, "TMPDIR": str(folder)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert parse_spec(done.stdout).devices
    assert folder.stat().st_mtime_ns == watched, "a file was made there, if only for a moment"
