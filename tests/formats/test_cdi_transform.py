"""Transforms of CDI specs: component boundaries, host against container, hooks by where they run, simplification."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.cdi import (
    CdiDeviceNode,
    CdiMount,
    ContainerEdits,
    Hook,
    IntelRdt,
    NetDevice,
    Spec,
    SpecDevice,
    validate,
)
from kgpu.formats.cdi_transform import RootMove, move, natural, simplify, transform_root, union_of, with_all_device
from tests.budget import tries

KIND = "vendor.com/class"


def spec_of(*devices: SpecDevice, **common: object) -> Spec:
    return Spec(cdi_version="1.1.0", kind=KIND, devices=devices, container_edits=ContainerEdits(**common))


def one(**edits: object) -> Spec:
    """A spec with these edits in its device and in common."""
    return spec_of(SpecDevice(name="a", container_edits=ContainerEdits(**edits)), **edits)


def both(spec: Spec) -> list[ContainerEdits]:
    return [spec.devices[0].container_edits, spec.container_edits]


# --- paths ---


@pytest.mark.parametrize(
    ("old", "new", "path", "expected"),
    [
        ("/driver", "/", "/driver/usr/lib", "/usr/lib"),
        ("/driver", "/", "/driver", "/"),
        ("/driver", "/host", "/driver-550/usr", "/driver-550/usr"),
        ("/driver", "/host", "/other/driver/usr", "/other/driver/usr"),
        ("/", "/host", "/usr", "/host/usr"),
        ("/", "/host", "/", "/host"),
        ("/", "/", "/usr", "/usr"),
        ("/a/b/", "/c//d/", "/a/b/x", "/c/d/x"),
        ("", "/host", "/usr", "/host/usr"),
        ("/driver", "", "/driver/x", "/x"),
        ("/driver", "/host", "relative/driver", "relative/driver"),
        ("/driver", "/host", "", ""),
    ],
)
def test_a_root_moves_at_component_boundaries(old: str, new: str, path: str, expected: str) -> None:
    assert move(old, new)(path) == expected


@pytest.mark.parametrize("root", ["driver", "./driver", "/driver/../etc", "-"])
def test_a_root_is_an_absolute_path(root: str) -> None:
    for pair in ((root, "/"), ("/", root)):
        with pytest.raises(ConfigError, match="absolute path"):
            move(*pair)


components = st.text("ab.-", min_size=1, max_size=4).filter(lambda text: text not in {".", ".."})
paths = st.lists(components, min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts))


@tries(suppress_health_check=[HealthCheck.too_slow])
@given(old=paths, new=paths, path=paths)
def test_what_moves_keeps_its_tail_and_nothing_else_moves(old: str, new: str, path: str) -> None:
    moved = move(old, new)(path)
    parts, prefix = path.split("/"), old.split("/")
    if parts[: len(prefix)] == prefix:
        assert moved.split("/") == new.split("/") + parts[len(prefix) :]
    else:
        assert moved == path


# --- host and container ---


def test_on_the_host_a_node_gets_its_host_path_from_its_path_first() -> None:
    spec = one(
        device_nodes=(
            CdiDeviceNode(path="/driver/dev/nvidia0"),
            CdiDeviceNode(path="/dev/x", host_path="/driver/dev/x"),
        )
    )
    for edits in both(transform_root(spec, move("/driver", "/run/nvidia"))):
        assert [(node.path, node.host_path) for node in edits.device_nodes] == [
            ("/driver/dev/nvidia0", "/run/nvidia/dev/nvidia0"),
            ("/dev/x", "/run/nvidia/dev/x"),
        ]


def test_in_the_container_a_node_keeps_its_place_on_the_host() -> None:
    spec = one(
        device_nodes=(
            CdiDeviceNode(path="/driver/dev/nvidia0"),
            CdiDeviceNode(path="/driver/dev/x", host_path="/dev/x"),
        )
    )
    for edits in both(transform_root(spec, move("/driver", "/"), "container")):
        assert [(node.path, node.host_path) for node in edits.device_nodes] == [
            ("/dev/nvidia0", "/driver/dev/nvidia0"),
            ("/dev/x", ""),
        ]


def test_a_host_path_that_says_nothing_goes_and_the_version_with_it() -> None:
    spec = spec_of(
        SpecDevice(
            name="a",
            container_edits=ContainerEdits(device_nodes=(CdiDeviceNode(path="/dev/x", host_path="/driver/dev/x"),)),
        )
    )
    moved = transform_root(spec, move("/driver", "/"))
    assert moved.devices[0].container_edits.device_nodes == (CdiDeviceNode(path="/dev/x"),)
    assert moved.cdi_version == "0.3.0"


@pytest.mark.parametrize(
    ("relative_to", "host", "container"), [("host", "/new/lib", "/old/lib"), ("container", "/old/lib", "/new/lib")]
)
def test_a_mount_has_two_sides(relative_to, host: str, container: str) -> None:
    spec = one(mounts=(CdiMount(host_path="/old/lib", container_path="/old/lib", options=("ro",)),))
    for edits in both(transform_root(spec, move("/old", "/new"), relative_to)):
        assert edits.mounts == (CdiMount(host_path=host, container_path=container, options=("ro",)),)


@pytest.mark.parametrize(
    ("name", "relative_to", "program_moves", "arguments_move"),
    [
        *((name, "host", True, True) for name in ("prestart", "createRuntime", "poststart", "poststop")),
        ("createContainer", "host", True, False),
        ("startContainer", "host", False, False),
        *((name, "container", False, False) for name in ("prestart", "createRuntime", "poststart", "poststop")),
        ("createContainer", "container", False, True),
        ("startContainer", "container", True, True),
    ],
)
def test_a_hook_moves_by_where_it_runs(name: str, relative_to, program_moves: bool, arguments_move: bool) -> None:
    args = (
        "hook",
        "--folder",
        "/old/lib",
        "libcuda.so.1::/old/lib/libcuda.so",
        "--root=/old/x",
        "--name=old",
        "/older",
    )
    spec = one(hooks=(Hook(hook_name=name, path="/old/bin/hook", args=args, env=("A=/old",)),))
    moved_args = (
        "hook",
        "--folder",
        "/new/lib",
        "libcuda.so.1::/new/lib/libcuda.so",
        "--root=/new/x",
        "--name=old",
        "/older",
    )
    for edits in both(transform_root(spec, move("/old", "/new"), relative_to)):
        (hook,) = edits.hooks
        assert hook.path == ("/new/bin/hook" if program_moves else "/old/bin/hook")
        assert hook.args == (moved_args if arguments_move else args)
        assert hook.env == ("A=/old",)


def test_both_halves_of_a_pair_move() -> None:
    spec = one(hooks=(Hook(hook_name="createContainer", path="/h", args=("h", "--link", "/old/a::/old/b")),))
    (hook,) = transform_root(spec, move("/old", "/new"), "container").container_edits.hooks
    assert hook.args == ("h", "--link", "/new/a::/new/b")


# --- any spec ---


# Drawn from few values: what matters is what is alike and where, and drawing is what takes long.
def some(values, most: int):
    return st.lists(st.sampled_from(values), max_size=most).map(tuple)


node_values = [CdiDeviceNode(path=path, host_path=host) for path in ("/dev/a", "/b") for host in ("", "/b", "/c/dev/a")]
mount_values = [
    CdiMount(host_path=host, container_path=inside, options=options)
    for host in ("/a/x", "/b")
    for inside in ("/z", "/a/b/c")
    for options in ((), ("ro", "rbind"))
]
hook_values = [
    Hook(hook_name=name, path=path, args=args)
    for name in ("createContainer", "startContainer", "createRuntime")
    for path, args in (("/a", ()), ("/b/c", ("c", "/d::/e", "--f=/g", "h")))
]
edits = st.builds(
    ContainerEdits,
    env=some(("A=b", "C=d", "E="), 3),
    device_nodes=some(node_values, 3),
    net_devices=some((NetDevice(host_interface_name="eth0", name="a"),), 1),
    mounts=some(mount_values, 3),
    hooks=some(hook_values, 2),
    additional_gids=some((1, 2), 2),
    intel_rdt=st.sampled_from((None, IntelRdt(clos_id="a"))),
)
own = edits.map(lambda made: made if not made.empty else ContainerEdits(env=("A=b",)))
specs = st.dictionaries(st.sampled_from(("0", "1", "10", "9", "a9", "a10", "b")), own, min_size=1, max_size=3).flatmap(
    lambda named: edits.map(
        lambda common: Spec(
            cdi_version="1.1.0",
            kind=KIND,
            devices=tuple(SpecDevice(name=name, container_edits=mine) for name, mine in named.items()),
            container_edits=common,
        )
    )
)
quick = tries(50, suppress_health_check=[HealthCheck.too_slow])


def plain_paths(spec: Spec) -> Spec:
    """Without host paths that say what the path says."""
    return transform_root(spec, RootMove("/", "/"))


@quick
@given(spec=specs, relative_to=st.sampled_from(("host", "container")))
def test_there_and_back_is_the_same_spec(spec: Spec, relative_to) -> None:
    there = transform_root(spec, move("/", "/moved-away"), relative_to)
    validate(there)
    assert transform_root(there, move("/moved-away", "/"), relative_to) == plain_paths(spec)


@quick
@given(spec=specs, relative_to=st.sampled_from(("host", "container")))
def test_only_the_chosen_side_changes(spec: Spec, relative_to) -> None:
    moved = transform_root(spec, move("/", "/moved-away"), relative_to)
    for before, after in zip(
        [spec.container_edits, *(d.container_edits for d in spec.devices)],
        [moved.container_edits, *(d.container_edits for d in moved.devices)],
        strict=True,
    ):
        if relative_to == "host":
            assert [n.path for n in after.device_nodes] == [n.path for n in before.device_nodes]
            assert [m.container_path for m in after.mounts] == [m.container_path for m in before.mounts]
        else:
            hosts = [(n.host_path or n.path) for n in before.device_nodes]
            assert [(n.host_path or n.path) for n in after.device_nodes] == hosts
            assert [m.host_path for m in after.mounts] == [m.host_path for m in before.mounts]
        assert (after.env, after.additional_gids) == (before.env, before.additional_gids)


def effect(device: ContainerEdits, common: ContainerEdits) -> tuple[object, ...]:
    """What a container gets with a device, whoever brings it."""
    every = union_of([device, common])
    sets = (every.env, every.device_nodes, every.net_devices, every.mounts, every.hooks, every.additional_gids)
    return (*(frozenset(part) for part in sets), device.intel_rdt or common.intel_rdt)


@quick
@given(spec=specs)
def test_simplifying_changes_no_device_and_twice_is_once(spec: Spec) -> None:
    short = simplify(spec)
    validate(short)
    assert simplify(short) == short
    assert [device.name for device in short.devices] == sorted((d.name for d in spec.devices), key=natural)
    before = {device.name: effect(device.container_edits, spec.container_edits) for device in spec.devices}
    after = {device.name: effect(device.container_edits, short.container_edits) for device in short.devices}
    assert after == before


@quick
@given(spec=specs)
def test_all_has_what_every_device_has(spec: Spec) -> None:
    whole = with_all_device(spec)
    validate(whole)
    everything = {device.name: device.container_edits for device in whole.devices}
    got = effect(everything.pop("all"), whole.container_edits)
    for device in spec.devices:
        for part, mine in zip(got[:6], effect(device.container_edits, spec.container_edits)[:6], strict=True):
            assert mine <= part
    assert set(everything) == {device.name for device in spec.devices}


def test_an_own_device_of_that_name_stays_alone() -> None:
    spec = spec_of(
        *(SpecDevice(name=name, container_edits=ContainerEdits(env=(f"N={name}",))) for name in ("all", "b"))
    )
    assert with_all_device(spec) is spec
    assert [device.name for device in with_all_device(spec, "every").devices] == ["all", "b", "every"]


def test_simplify_drops_common_sorts_by_depth_and_keeps_hooks_in_order() -> None:
    first, second = (Hook(hook_name="createContainer", path=f"/{name}") for name in "zy")
    places = tuple(CdiMount(host_path=path, container_path=path) for path in ("/b/c", "/z", "/a", "/z"))
    spec = spec_of(
        SpecDevice(name="10", container_edits=ContainerEdits(env=("A=b", "O=1", "O=1"), hooks=(first, second))),
        SpecDevice(name="9", container_edits=ContainerEdits(env=("A=b",))),
        env=("A=b",),
        mounts=places,
    )
    short = simplify(spec)
    nine, ten = (device.container_edits for device in short.devices)
    assert nine.env == ("A=b",)  # otherwise it would be empty
    assert (ten.env, ten.hooks) == (("O=1",), (first, second))
    assert [mount.container_path for mount in short.container_edits.mounts] == ["/a", "/z", "/b/c"]


def test_order_of_names_needs_no_numbers_that_fit_anywhere() -> None:
    names = ["1:10", "a2", "10", "2", "1" * 100_000, "a10", "0:1", "1:9"]
    assert sorted(names, key=natural) == ["0:1", "1:9", "1:10", "2", "10", "1" * 100_000, "a2", "a10"]


def test_thousands_of_devices_are_merged_in_one_pass() -> None:
    many = tuple(
        SpecDevice(name=f"d{n}", container_edits=ContainerEdits(device_nodes=(CdiDeviceNode(path=f"/dev/d{n}"),)))
        for n in range(20_000)
    )
    whole = with_all_device(spec_of(*many))
    assert len(whole.devices[0].container_edits.device_nodes) == 20_000
    assert msgspec.structs.replace(whole, devices=whole.devices[1:]).devices == many
