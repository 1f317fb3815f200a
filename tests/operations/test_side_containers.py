"""The containers beside the driver's in its pod: which of their troubles fail an upgrade, and in whose words."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.operations.driver_pods import MOST_ENDS, MOST_ENDS_OF_OTHERS, DriverPod, read_driver_pod

SIDES = ("nvidia-fs-ctr", "nvidia-gdrcopy-ctr", "nvidia-peermem-ctr")
LOG = "\n".join([*("compiling" for _ in range(200)), "no kernel headers", "giving up"])


def read(name: str, **container: Any) -> DriverPod:
    """A driver's pod whose driver is up, and one container beside it is not."""
    driver = {"name": "nvidia-driver-ctr", "ready": True, "restartCount": 0, "state": {"running": {}}}
    beside = {"name": name, "ready": False, **container}
    return read_driver_pod(
        {"metadata": {"name": "driver-a"}, "status": {"phase": "Running", "containerStatuses": [driver, beside]}}
    )


def crashed(times: int) -> dict[str, Any]:
    last = {"terminated": {"exitCode": 1, "reason": "Error", "message": LOG}}
    return {"restartCount": times, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": last}


@pytest.mark.parametrize("name", SIDES)
def test_one_that_ends_again_and_again_is_named_with_its_last_words(name: str) -> None:
    assert MOST_ENDS < MOST_ENDS_OF_OTHERS
    patient = read(name, **crashed(MOST_ENDS_OF_OTHERS))
    assert patient.trouble is None
    assert patient.doing.startswith(f"{name} has ended with exit code 1: ")
    trouble = read(name, **crashed(MOST_ENDS_OF_OTHERS + 1)).trouble
    assert trouble is not None
    assert f"container {name} has ended 11 times, last with exit code 1: …" in trouble.why
    assert trouble.why.endswith("no kernel headers giving up")


@pytest.mark.parametrize("name", SIDES)
def test_an_image_of_one_that_is_not_there_is_named(name: str) -> None:
    waits = {"waiting": {"reason": "ImagePullBackOff", "message": "nvidia-fs:2-ubuntu24.04: not found"}}
    trouble = read(name, restartCount=0, state=waits).trouble
    assert trouble is not None
    assert (trouble.reason, trouble.patience > 0) == ("ImageNotPulled", True)
    assert f"its container {name} can't be started: nvidia-fs:2-ubuntu24.04: not found" in trouble.why


def test_one_that_still_waits_is_what_the_pod_does() -> None:
    pod = read("nvidia-fs-ctr", restartCount=0, state={"running": {}})
    assert (pod.ready, pod.trouble, pod.doing) == (False, None, "nvidia-fs-ctr is at work")
