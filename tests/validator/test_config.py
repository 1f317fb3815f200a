"""Which checks were asked for, and where the driver is said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.base.advice import Severity
from kgpu.base.errors import ConfigError
from kgpu.host.root import DriverRoot
from kgpu.validator.config import RECHECK_SECONDS, choose_checks, recheck_seconds, roots_of, without_effect
from kgpu.validator.model import Check, Roots


def test_checks_are_chosen_in_their_own_order() -> None:
    assert choose_checks(["cuda, driver", "cuda"]) == (Check.DRIVER, Check.CUDA)
    assert choose_checks([]) == tuple(Check)


def test_a_typo_is_corrected() -> None:
    with pytest.raises(ConfigError, match=r"did you mean.*toolkit"):
        choose_checks(["tolkit"])


def test_the_hosts_driver_is_told_from_a_containers(tmp_path) -> None:
    host = DriverRoot.at(tmp_path / "host", driver_host="/", dev=tmp_path / "host", dev_host="/")
    assert roots_of(host, tmp_path / "host") == Roots(
        host_driver=True, driver="/", driver_here=f"{tmp_path}/host", dev="/", dev_here=f"{tmp_path}/host"
    )
    installed = DriverRoot.at("/run/nvidia/driver", dev="/", dev_host="/")
    assert roots_of(installed, Path("/host")) == Roots(
        host_driver=False, driver="/run/nvidia/driver", driver_here="/run/nvidia/driver", dev="/", dev_here="/"
    )


@pytest.mark.parametrize(("text", "seconds"), [("", RECHECK_SECONDS), ("0", 0.0), ("90", 90.0)])
def test_how_often_idle_gpus_are_tried_again(text, seconds) -> None:
    assert recheck_seconds({"cuda.RECHECK_SECONDS": text}) == seconds


@pytest.mark.parametrize("text", ["-1", "10m", "1e3", "²", "59", "9" * 10])
def test_what_is_no_pace_is_refused(text) -> None:
    with pytest.raises(ConfigError, match=r"cuda\.RECHECK_SECONDS"):
        recheck_seconds({"cuda.RECHECK_SECONDS": text})


def test_variables_of_a_check_that_change_nothing_are_told() -> None:
    env = {
        "plugin.WITH_WORKLOAD": "true",
        "driver.DRIVER_VALIDATION_SKIP_GPU_INIT": "true",
        "toolkit.WITH_WAIT": "false",
        "cuda.TYPO": "1",
        "PATH": "/bin",
        "other.NAME": "1",
    }
    told = list(without_effect(env))
    assert [(one.subject, one.what.split()[0]) for one in told] == [
        ("validator.cuda.env", "TYPO"),
        ("validator.driver.env", "DRIVER_VALIDATION_SKIP_GPU_INIT"),
        ("validator.plugin.env", "WITH_WORKLOAD"),
        ("validator.toolkit.env", "WITH_WAIT"),
    ]
    assert all(one.severity is Severity.WARNING and one.remedy for one in told)


def test_variables_in_effect_and_what_is_so_anyway_are_not_told() -> None:
    env = {
        "cuda.WITH_WORKLOAD": "false",
        "cuda.RECHECK_SECONDS": "90",
        "driver.DISABLE_DEV_CHAR_SYMLINK_CREATION": "true",
        "plugin.WITH_WORKLOAD": "false",
        "toolkit.WITH_WAIT": "true",
        "driver.DRIVER_VALIDATION_SKIP_GPU_INIT": "false",
    }
    assert list(without_effect(env)) == []
