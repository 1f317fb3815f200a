"""What a claim's status says of this node's devices, and which parameters count for each."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import UserError
from kgpu.dra.granted import ClaimRefusedError, GrantedClaim, read_granted
from kgpu.formats.dra_config import ClaimTimeSlicing
from kgpu.formats.dra_parameters import MPS_GATE, TIME_SLICING_GATE
from kgpu.formats.names import DRA_GPU_DRIVER, DRA_PARAMETERS

GATES = (TIME_SLICING_GATE, MPS_GATE)


def result(request: str = "gpu", device: str = "gpu-0", **more: Any) -> dict[str, Any]:
    return {"request": request, "driver": DRA_GPU_DRIVER, "pool": "node-1", "device": device, **more}


def config(interval: str | None, *requests: str, source: str = "FromClaim", kind: str = "GpuConfig") -> dict[str, Any]:
    slicing = {"interval": interval} if interval else None
    sharing = {"strategy": "TimeSlicing", **({"timeSlicingConfig": slicing} if slicing else {})}
    parameters = {"apiVersion": DRA_PARAMETERS, "kind": kind, "sharing": sharing}
    return {
        "source": source,
        "requests": list(requests),
        "opaque": {"driver": DRA_GPU_DRIVER, "parameters": parameters},
    }


def claim(*results: Any, configs: Any = ()) -> GrantedClaim:
    return read_granted(
        {
            "metadata": {"name": "c", "namespace": "team", "uid": "u"},
            "status": {"allocation": {"devices": {"results": list(results), "config": list(configs)}}},
        },
        driver=DRA_GPU_DRIVER, pool="node-1", uid="u",
    )  # fmt: skip


def interval(made: GrantedClaim, number: int = 0, of_type: str = "gpu") -> Any:
    sharing = made.config(made.devices[number], of_type, GATES).sharing
    return sharing.interval if isinstance(sharing, ClaimTimeSlicing) else sharing


def test_only_the_results_of_this_driver_count() -> None:
    other = {"request": "nic", "driver": "net.example.com", "pool": "elsewhere", "device": "nic-0"}
    made = claim(other, result(adminAccess=True, shareID="s-1"), result("more/second", "gpu-1"))
    assert [(one.request, one.device, one.admin, one.share) for one in made.devices] == [
        ("gpu", "gpu-0", True, "s-1"), ("more/second", "gpu-1", False, ""),
    ]  # fmt: skip
    assert interval(made) is None


@pytest.mark.parametrize(
    ("configs", "wanted"),
    [
        ([config("Short")], 1),
        ([config("Short", source="FromClass")], 1),
        ([config("Short"), config("Long")], 3),
        ([config("Short"), config("Long", source="FromClass")], 1),
        ([config("Long", source="FromClass"), config("Medium", source="FromClass")], 2),
        ([config("Short", "gpu"), config("Long", "other")], 1),
        ([config(None, kind="MigDeviceConfig")], None),
        ([config("Short", source="FromClass"), config(None, kind="MigDeviceConfig")], 1),
    ],
)
def test_which_parameters_count(configs: list[Any], wanted: int | None) -> None:
    assert interval(claim(result(), configs=configs)) == wanted


def test_parameters_for_a_request_are_for_its_alternatives_and_those_of_one_for_that_alone() -> None:
    made = claim(
        result("gpu/first"),
        result("gpu/second", "gpu-1"),
        configs=[config("Short", "gpu"), config("Long", "gpu/second")],
    )
    assert (interval(made, 0), interval(made, 1)) == (1, 3)


def test_parameters_of_another_type_for_a_request_by_name_are_refused() -> None:
    made = claim(result("slice", "gpu-0-mig-1g10gb-19-0"), configs=[config("Short", "slice")])
    with pytest.raises(ClaimRefusedError, match="of type mig, and parameters for devices of type gpu"):
        interval(made, of_type="mig")


def test_parameters_of_other_drivers_are_not_read() -> None:
    theirs = {"source": "FromClaim", "opaque": {"driver": "net.example.com", "parameters": {"kind": "Nic"}}}
    assert interval(claim(result(), configs=[config("Short"), theirs])) == 1


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "metadata", "name", "namespace", "uid", "status", "allocation", "devices", "results", "config", "request",
        "driver", "pool", "device", "opaque", "parameters", "requests", "source",
    ]), inner, max_size=5),
)  # fmt: skip


@given(ANY)
def test_whatever_the_api_server_says_is_read_or_refused(value: Any) -> None:
    try:
        found = read_granted(value, driver=DRA_GPU_DRIVER, pool="node-1", uid="u")
    except UserError:
        return
    assert found.uid == "u"
