"""CDI specs: lowest version, order, the all device, validation in three parts, rendering that reads back."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats import cdi, yaml
from kgpu.formats.cdi import (
    CdiDevice,
    CdiDeviceNode,
    CdiMount,
    ContainerEdits,
    Hook,
    IntelRdt,
    NetDevice,
    Spec,
    SpecDevice,
    build_spec,
    dump_spec,
    kind_of,
    minimal_version,
    parse_spec,
    validate,
)

KIND = "nvidia.com/gpu"


def gpu(number: int, *names: str, **fields: object) -> CdiDevice:
    return CdiDevice(names=names or (f"gpu{number}",), nodes=(CdiDeviceNode(path=f"/dev/nvidia{number}"),), **fields)


def spec(**fields: object) -> Spec:
    base = Spec(
        cdi_version="0.5.0",
        kind=KIND,
        devices=(SpecDevice(name="0", container_edits=ContainerEdits(env=("A=b",))),),
    )
    return msgspec.structs.replace(base, **fields)


def test_entry_per_name_in_natural_order() -> None:
    built = build_spec(kind=KIND, devices=[gpu(10, "10", "GPU-b"), gpu(2, "2", "GPU-a"), gpu(3, "1:10"), gpu(3, "1:9")])
    assert [device.name for device in built.devices] == ["1:9", "1:10", "2", "10", "GPU-a", "GPU-b", "all"]
    assert built.devices[2].container_edits == built.devices[4].container_edits


def test_all_is_the_union_of_those_that_belong() -> None:
    built = build_spec(kind=KIND, devices=[gpu(0), gpu(1, in_all=False), gpu(2)])
    nodes = built.devices[0].container_edits.device_nodes
    assert built.devices[0].name == "all"
    assert [node.path for node in nodes] == ["/dev/nvidia0", "/dev/nvidia2"]


def test_no_all_device_on_request_or_when_there_is_one() -> None:
    assert [d.name for d in build_spec(kind=KIND, devices=[gpu(0)], all_device=False).devices] == ["gpu0"]
    own = build_spec(kind=KIND, devices=[gpu(0, "all"), gpu(1)])
    assert [d.name for d in own.devices] == ["all", "gpu1"]
    assert len(own.devices[0].container_edits.device_nodes) == 1


def test_common_edits_leave_the_devices_unless_that_empties_them() -> None:
    control = CdiDeviceNode(path="/dev/nvidiactl")
    device = CdiDevice(names=("0",), nodes=(control, CdiDeviceNode(path="/dev/nvidia0")))
    only_common = CdiDevice(names=("1",), nodes=(control,))
    built = build_spec(kind=KIND, devices=[device, only_common], common=ContainerEdits(device_nodes=(control,)))
    assert [node.path for node in built.devices[0].container_edits.device_nodes] == ["/dev/nvidia0"]
    assert [node.path for node in built.devices[1].container_edits.device_nodes] == ["/dev/nvidiactl"]


def test_duplicates_go_and_mounts_are_ordered_by_depth_then_path() -> None:
    mounts = tuple(CdiMount(host_path=path, container_path=path) for path in ("/a/b/c", "/z", "/a/b", "/z", "/a"))
    built = build_spec(kind=KIND, devices=[gpu(0)], common=ContainerEdits(mounts=mounts))
    assert [mount.container_path for mount in built.container_edits.mounts] == ["/a", "/z", "/a/b", "/a/b/c"]


@pytest.mark.parametrize(
    ("fields", "version"),
    [
        ({"devices": (SpecDevice(name="gpu0", container_edits=ContainerEdits(env=("A=b",))),)}, "0.3.0"),
        ({}, "0.5.0"),
        ({"container_edits": ContainerEdits(mounts=(CdiMount(host_path="/a", container_path="/a", type="bind"),)),
          "devices": (SpecDevice(name="g", container_edits=ContainerEdits(env=("A=b",))),)}, "0.4.0"),
        ({"container_edits": ContainerEdits(device_nodes=(CdiDeviceNode(path="/dev/a", host_path="/b/dev/a"),)),
          "devices": (SpecDevice(name="g", container_edits=ContainerEdits(env=("A=b",))),)}, "0.5.0"),
        ({"annotations": {"a": "b"}}, "0.6.0"),
        ({"kind": "nvidia.com/gpu.coherent"}, "0.6.0"),
        ({"container_edits": ContainerEdits(additional_gids=(44,))}, "0.7.0"),
        ({"container_edits": ContainerEdits(intel_rdt=IntelRdt(clos_id="gpu", enable_cmt=True))}, "0.7.0"),
        ({"container_edits": ContainerEdits(intel_rdt=IntelRdt(schemata=("MB:0=70",)))}, "1.1.0"),
        ({"container_edits": ContainerEdits(intel_rdt=IntelRdt(enable_monitoring=True))}, "1.1.0"),
        ({"container_edits": ContainerEdits(net_devices=(NetDevice(host_interface_name="ib0", name="net1"),))}, "1.1.0"),
    ],
)  # fmt: skip
def test_lowest_version_with_all_that_is_used(fields: dict[str, object], version: str) -> None:
    assert minimal_version(spec(**fields)) == version


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"cdi_version": "0.3.0"}, "0.5.0"),
        ({"cdi_version": "9.9"}, "9.9"),
        ({"kind": "nvidia.com"}, "vendor/class"),
        ({"kind": "-x/gpu"}, "vendor/class"),
        ({"devices": ()}, "no devices"),
        ({"devices": (SpecDevice(name="0"),)}, "changes nothing"),
        ({"devices": spec().devices * 2}, "twice"),
        ({"devices": (SpecDevice(name="0 1", container_edits=ContainerEdits(env=("A=b",))),)}, "not a device name"),
        ({"container_edits": ContainerEdits(env=("NOVALUE",))}, "NAME=value"),
        ({"container_edits": ContainerEdits(device_nodes=(CdiDeviceNode(path="dev/x"),))}, "absolute"),
        ({"container_edits": ContainerEdits(mounts=(CdiMount(host_path="/a", container_path="b"),))}, "mount"),
        ({"container_edits": ContainerEdits(hooks=(Hook(hook_name="never", path="/x"),))}, "hook"),
        (
            {
                "cdi_version": "1.1.0",
                "container_edits": ContainerEdits(net_devices=(NetDevice(host_interface_name="", name="x"),)),
            },
            "network device",
        ),
    ],
)
def test_what_a_runtime_would_refuse_is_refused_here(fields: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(spec(**fields))
    assert word in str(caught.value)
    assert caught.value.expected
    assert caught.value.remedy


def test_no_devices_at_all_can_not_be_built() -> None:
    with pytest.raises(ConfigError, match="no devices"):
        build_spec(kind=KIND, devices=[])


@pytest.mark.parametrize(("vendor", "device_class"), [("nvidia.com", "g!"), ("", "gpu"), ("9x", "gpu"), ("a-", "gpu")])
def test_kind_is_checked(vendor: str, device_class: str) -> None:
    with pytest.raises(ConfigError, match="not a CDI"):
        kind_of(vendor, device_class)


def test_yaml_has_the_libraries_key_order_and_spelling() -> None:
    text = dump_spec(build_spec(kind=KIND, devices=[gpu(0, "0")], common=ContainerEdits(env=("A=b",))))
    assert text.startswith("---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n")
    data = yaml.load(text)
    assert list(data) == ["cdiVersion", "kind", "devices", "containerEdits"]
    assert data["devices"][0] == {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}


def test_json_is_one_line_of_the_same_data() -> None:
    built = build_spec(kind=KIND, devices=[gpu(0, "0")])
    text = dump_spec(built, "json")
    assert "\n" not in text
    assert json.loads(text) == yaml.load(dump_spec(built))


def test_unknown_key_gets_a_suggestion() -> None:
    text = dump_spec(build_spec(kind=KIND, devices=[gpu(0, "0")])).replace("deviceNodes", "devicenode")
    with pytest.raises(ConfigError, match='did you mean "deviceNodes"') as caught:
        parse_spec(text, source="x.yaml")
    assert "x.yaml" in caught.value.what


@given(st.text(max_size=200))
def test_no_text_is_taken_for_a_spec_or_crashes(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_spec(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["cdiVersion", "kind", "devices", "name"]), inner)
        ),
        max_leaves=8,
    )
)
def test_no_wrong_shape_crashes(value: object) -> None:
    with pytest.raises(ConfigError):
        parse_spec(json.dumps(value))


NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,8}[A-Za-z0-9])?", fullmatch=True)
PATHS = st.from_regex(r"/[a-z0-9]{1,5}(/[a-z0-9 '#:-]{1,5}){0,3}", fullmatch=True)
NODES = st.builds(CdiDeviceNode, path=PATHS, host_path=st.one_of(st.just(""), PATHS))
MOUNTS = st.builds(CdiMount, host_path=PATHS, container_path=PATHS, options=st.just(cdi.MOUNT_OPTIONS))


@given(
    st.lists(
        st.tuples(NAMES, st.lists(NODES, min_size=1, max_size=4)), min_size=1, max_size=6, unique_by=lambda d: d[0]
    ),
    st.lists(MOUNTS, max_size=4),
    st.sampled_from(cdi.FORMATS),
)
def test_whatever_is_built_reads_back_and_keeps_every_node(
    devices: list[tuple[str, list[CdiDeviceNode]]], mounts: list[CdiMount], form: str
) -> None:
    built = build_spec(
        kind=KIND,
        devices=[CdiDevice(names=(name,), nodes=tuple(nodes)) for name, nodes in devices],
        common=ContainerEdits(mounts=tuple(mounts)),
    )
    assert parse_spec(dump_spec(built, form)) == built
    by_name = {device.name: device for device in built.devices}
    for name, nodes in devices:
        assert set(by_name[name].container_edits.device_nodes) == set(nodes)


def test_hooks_groups_and_annotations_of_devices_are_kept_and_merged() -> None:
    hook = Hook(hook_name="createContainer", path="/x", args=("x", "y"), env=("A=b",))
    shared = Hook(hook_name="createContainer", path="/z", env=("A=b",))
    built = build_spec(
        kind=KIND,
        devices=[gpu(0, hooks=(hook, shared), gids=(44, 105), annotations={"a": "b"}), gpu(1, gids=(44,))],
        common=ContainerEdits(hooks=(shared,), additional_gids=(105,)),
        annotations={"c": "d"},
    )
    union, first, second = built.devices
    assert union.container_edits.hooks == first.container_edits.hooks == (hook,)
    assert (first.container_edits.additional_gids, second.container_edits.additional_gids) == ((44,), (44,))
    assert union.container_edits.additional_gids == (44,)
    assert (built.annotations, first.annotations, second.annotations) == ({"c": "d"}, {"a": "b"}, {})
    assert parse_spec(dump_spec(built)) == built


def test_names_of_the_wire_are_the_librarys() -> None:
    rdt = IntelRdt(clos_id="a", l3_cache_schema="b", mem_bw_schema="c", enable_cmt=True, enable_mbm=True)
    built = build_spec(kind=KIND, devices=[gpu(0)], common=ContainerEdits(intel_rdt=rdt))
    data = json.loads(dump_spec(built, "json"))
    assert set(data["containerEdits"]["intelRdt"]) == {
        "closID",
        "l3CacheSchema",
        "memBwSchema",
        "enableCMT",
        "enableMBM",
    }
