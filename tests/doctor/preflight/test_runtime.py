"""The check of the container runtime and the kubelet: by versions, and by what containerd's config says of CDI."""

from __future__ import annotations

from typing import Any, Final

import pytest

from kgpu.doctor.preflight.model import PreflightReport, PreflightVerdict
from tests.doctor.pasting import problems
from tests.doctor.preflight.scenes import host, ids, node, report, verdict

RUNTIME: Final = "container runtime"
CONFIG, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/own.toml"
CRI: Final = 'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\n'
CRI_2: Final = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n'


@pytest.mark.parametrize(
    ("info", "more", "rule"),
    [
        ({"containerRuntimeVersion": "containerd://1.6.15"}, {}, "OPR-06"),
        ({"containerRuntimeVersion": "cri-o://1.22.1"}, {}, "OPR-06"),
        ({"kubeletVersion": "v1.27.9"}, {}, "RUN-30"),
        ({"containerRuntimeVersion": "cri-o://1.35.0"}, {"nri": True}, "OPR-06"),
        ({"containerRuntimeVersion": "containerd://2.0.1"}, {"nri": True}, "OPR-06"),
    ],
)
def test_a_runtime_or_kubelet_without_cdi_or_nri_is_predicted(
    info: dict[str, str], more: dict[str, Any], rule: str
) -> None:
    assert ids(report(node(**info), host(), **more)) == [rule]


@pytest.mark.parametrize(
    ("info", "more"),
    [
        ({"containerRuntimeVersion": "cri-o://1.30.2"}, {}),
        ({"containerRuntimeVersion": "containerd://1.6.15"}, {"cdi": False}),
        ({"containerRuntimeVersion": "containerd://2.9.0"}, {}),
    ],
)
def test_versions_that_nobody_tests_are_a_note(info: dict[str, str], more: dict[str, Any]) -> None:
    found = report(node(**info), host(), **more)
    assert [(one.id, one.is_note) for one in found.predictions] == [("OPR-06", True)]
    assert found.exit_code == 0
    assert verdict(found, RUNTIME) is PreflightVerdict.NOTED


def look(
    files: dict[str, str], *, runtime: str = "containerd://2.1.4", socket: bool = True, **intent: Any
) -> PreflightReport:
    """What is said of a node with these files, where nobody but a person writes the runtimes' configs."""
    facts = host(
        files={path: {"text": text} for path, text in files.items()},
        present={"/run/containerd/containerd.sock": socket},
    )
    return report(node(containerRuntimeVersion=runtime), facts, **{"toolkit": False, **intent})


@pytest.mark.parametrize(
    ("runtime", "files"),
    [
        ("containerd://2.1.4", {CONFIG: f"{CRI}enable_cdi = false\n"}),
        ("containerd://1.7.27", {CONFIG: CRI_2}),
        ("containerd://1.7.27", {CONFIG: "version = 2\n"}),
        ("containerd://2.1.4", {CONFIG: f'imports = ["{DROP_IN}"]\n{CRI}', DROP_IN: f"{CRI}enable_cdi = false\n"}),
        ("", {CONFIG: f"{CRI}enable_cdi = false\n"}),
    ],
)
def test_cdi_that_is_off_and_that_nobody_switches_on_is_predicted(runtime: str, files: dict[str, str]) -> None:
    found = look(files, runtime=runtime)
    assert ids(found) == ["RUN-24"]
    assert verdict(found, RUNTIME) is PreflightVerdict.FAILS
    (said,) = found.failures
    assert "pods will start without a GPU" in said.what
    assert any(CONFIG in row for row in said.evidence)
    assert "toolkit.enabled=true" in said.steps[0]
    assert list(problems(said.steps)) == []


OFF: Final = f"{CRI}enable_cdi = false\n"


@pytest.mark.parametrize(
    ("files", "more"),
    [
        ({CONFIG: CRI}, {}),
        ({CONFIG: f"{CRI_2}enable_cdi = true\n"}, {"runtime": "containerd://1.7.27"}),
        ({CONFIG: f'imports = ["{DROP_IN}"]\n{OFF}', DROP_IN: f"{CRI}enable_cdi = true\n"}, {}),
        ({CONFIG: OFF}, {"toolkit": True}),
        ({CONFIG: OFF}, {"cdi": False}),
        ({CONFIG: OFF}, {"runtime": "cri-o://1.35.0"}),
        ({CONFIG: OFF}, {"socket": False}),
        ({CONFIG: "this is no TOML"}, {}),
        ({CONFIG: 'version = "three"'}, {}),
        ({}, {}),
    ],
)
def test_cdi_that_is_on_not_wanted_or_not_known_is_passed_over(files: dict[str, str], more: dict[str, Any]) -> None:
    assert ids(look(files, **more)) == []


def test_a_runtime_that_is_too_old_is_told_before_its_config() -> None:
    assert ids(look({CONFIG: "version = 2\n"}, runtime="containerd://1.6.15")) == ["OPR-06"]
