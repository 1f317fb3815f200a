"""Values to messages and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kgpu.kubelet import convert
from kgpu.kubelet.model import (
    ContainerAllocation,
    DeviceNode,
    DeviceState,
    Mount,
    PreferenceRequest,
    Registration,
)
from kgpu.kubelet.pb import deviceplugin_v1beta1_pb2 as dp

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


@given(st.lists(st.builds(DeviceState, id=TEXT, healthy=st.booleans(), numa_node=st.none() | st.integers(0, 64))))
def test_device_lists(devices: list[DeviceState]) -> None:
    wire = convert.device_list(devices).SerializeToString()
    assert convert.devices_of(dp.ListAndWatchResponse.FromString(wire)) == tuple(devices)


@given(
    st.builds(
        ContainerAllocation,
        envs=st.dictionaries(TEXT, TEXT),
        mounts=st.lists(st.builds(Mount, container_path=TEXT, host_path=TEXT, read_only=st.booleans())).map(tuple),
        devices=st.lists(st.builds(DeviceNode, container_path=TEXT, host_path=TEXT, permissions=TEXT)).map(tuple),
        annotations=st.dictionaries(TEXT, TEXT),
        cdi_devices=st.lists(TEXT).map(tuple),
    )
)
def test_allocations(allocation: ContainerAllocation) -> None:
    reply = dp.AllocateResponse()
    convert.add_allocation(reply, allocation)
    (back,) = dp.AllocateResponse.FromString(reply.SerializeToString()).container_responses
    assert convert.allocation_of(back) == allocation


@given(
    st.builds(
        Registration,
        resource=TEXT,
        endpoint=TEXT,
        version=TEXT,
        preferred_allocation=st.booleans(),
        pre_start=st.booleans(),
    )
)
def test_registrations(registration: Registration) -> None:
    assert convert.registration_of(convert.registration_message(registration)) == registration


@given(
    st.builds(
        PreferenceRequest,
        available=st.lists(TEXT).map(tuple),
        must_include=st.lists(TEXT).map(tuple),
        size=st.integers(-(2**31), 2**31 - 1),
    )
)
def test_preferences(request: PreferenceRequest) -> None:
    (container,) = convert.preference_message(request).container_requests
    assert convert.preference_of(container) == request
