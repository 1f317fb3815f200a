"""Which resources a node offers: naming, MIG strategies, patterns, sharing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.deviceplugin.config import PluginSettings
from kgpu.deviceplugin.model import PluginResource, ResourcePlan
from kgpu.deviceplugin.plan import plan
from kgpu.formats.plugin_config import NamePattern, SharingKind
from tests.deviceplugin.nodes import GPU, broken, entry, gpus, shared, with_mig


def counts(made: ResourcePlan) -> dict[str, int]:
    return {resource.name: len(resource.devices) for resource in made.resources}


def reasons(made: ResourcePlan) -> set[str]:
    return {advice.reason for advice in made.advice}


def test_whole_gpus_in_index_order_with_their_numa_nodes() -> None:
    nodes = gpus(8)
    (resource,) = plan(tuple(reversed(nodes)), PluginSettings()).resources
    assert resource.name == GPU
    assert [device.id for device in resource.devices] == [gpu.uuid for gpu in nodes]
    assert [device.unit.numa_node for device in resource.devices] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert resource.endpoint == "nvidia-gpu.sock"


@pytest.mark.parametrize("name", ["DGX Display", "NVIDIA DGX Display"])
def test_display_boards_are_not_offered(name: str) -> None:
    first, second = gpus(2)
    assert counts(plan((replace(first, name=name), second), PluginSettings())) == {GPU: 1}


def test_no_devices_is_said() -> None:
    made = plan((), PluginSettings())
    assert made.resources == ()
    assert "NoDevices" in reasons(made)


def test_a_discovery_that_can_not_be_done_is_said() -> None:
    made = plan(gpus(1), PluginSettings(discovery_strategy="tegra"))
    assert counts(made) == {GPU: 1}
    assert reasons(made) == {"DiscoveryUnsupported"}


def test_broken_gpus_keep_their_place() -> None:
    first, *rest = gpus(8)
    assert counts(plan((broken(first), *rest), PluginSettings())) == {GPU: 8}


# --- MIG ---


def test_strategy_none_offers_mig_gpus_whole_and_says_so() -> None:
    first, second = gpus(2)
    made = plan((with_mig(first, ("1g.10gb", 7)), second), PluginSettings(mig_strategy="none"))
    assert counts(made) == {GPU: 2}
    assert "MigIgnored" in reasons(made)


def test_strategy_single_offers_slices_as_gpus() -> None:
    nodes = tuple(with_mig(gpu, ("1g.10gb", 7)) for gpu in gpus(2))
    made = plan(nodes, PluginSettings(mig_strategy="single"))
    assert counts(made) == {GPU: 14}
    assert made.advice == ()
    assert [device.unit.index for device in made.resources[0].devices[6:8]] == ["0:6", "1:0"]


def test_strategy_mixed_names_slices_by_profile_and_keeps_whole_gpus() -> None:
    first, second = gpus(2)
    made = plan((with_mig(first, ("3g.40gb", 1), ("1g.10gb", 2)), second), PluginSettings(mig_strategy="mixed"))
    assert counts(made) == {GPU: 1, "nvidia.com/mig-1g.10gb": 2, "nvidia.com/mig-3g.40gb": 1}
    assert [resource.endpoint for resource in made.resources] == [
        "nvidia-gpu.sock",
        "nvidia-mig-1g.10gb.sock",
        "nvidia-mig-3g.40gb.sock",
    ]


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("1g.5gb+me", "mig-1g.5gb.me"),
        ("1g.24gb-me", "mig-1g.24gb-me"),
        ("1g.10gb+me.all", "mig-1g.10gb.me.all"),
        ("1g.24gb+gfx", "mig-1g.24gb.gfx"),
        ("7g.80gb", "mig-7g.80gb"),
    ],
)
def test_profiles_become_resource_names(profile: str, name: str) -> None:
    (gpu,) = gpus(1)
    assert counts(plan((with_mig(gpu, (profile, 1)),), PluginSettings(mig_strategy="mixed"))) == {
        f"nvidia.com/{name}": 1
    }


def test_a_slice_of_a_slice_is_left_out_alone_unless_it_is_named() -> None:
    (gpu,) = gpus(1)
    node = (with_mig(gpu, ("1c.3g.40gb", 2), ("1g.10gb", 1)),)
    made = plan(node, PluginSettings(mig_strategy="mixed"))
    assert counts(made) == {"nvidia.com/mig-1g.10gb": 1}
    assert "MIG profile '1c.3g.40gb' does not match any resource patterns" in made.advice[0].why
    named = PluginSettings(mig_strategy="mixed", mig=(NamePattern(pattern="1c.*", name="nvidia.com/mig-part"),))
    assert counts(plan(node, named)) == {"nvidia.com/mig-1g.10gb": 1, "nvidia.com/mig-part": 2}


@pytest.mark.parametrize("strategy", ["single", "mixed"])
def test_an_empty_mig_gpu_is_left_out_and_the_others_stay(strategy: str) -> None:
    first, second = gpus(2)
    made = plan((with_mig(first), with_mig(second, ("1g.10gb", 3))), PluginSettings(mig_strategy=strategy))
    assert sum(counts(made).values()) == 3
    assert any("device 0 has no MIG devices configured" in advice.why for advice in made.advice)


@pytest.mark.parametrize(("sliced", "kept"), [(1, {GPU: 7}), (4, {GPU: 28}), (7, {GPU: 49})])
def test_single_with_mig_on_and_off_offers_what_most_gpus_have(sliced: int, kept: dict[str, int]) -> None:
    nodes = gpus(8)
    node = tuple(with_mig(gpu, ("1g.10gb", 7)) if gpu.index < sliced else gpu for gpu in nodes)
    made = plan(node, PluginSettings(mig_strategy="single"))
    assert counts(made) == kept
    wrong = [advice for advice in made.advice if advice.reason == "MigInvalid"]
    assert len(wrong) == min(sliced, 8 - sliced)
    assert "same migEnabled value" in wrong[0].why
    assert wrong[0].remedy


def test_single_with_two_profiles_offers_the_more_frequent_one() -> None:
    first, second = gpus(2)
    made = plan(
        (with_mig(first, ("3g.40gb", 2)), with_mig(second, ("1g.10gb", 7))), PluginSettings(mig_strategy="single")
    )
    assert counts(made) == {GPU: 7}
    (wrong,) = made.advice
    assert "more than one MIG device type present on node" in wrong.why
    assert wrong.evidence == ("7 of 1g.10gb", "2 of 3g.40gb")


# --- patterns ---


def test_patterns_name_gpus_by_model_first_match_wins_and_the_rest_keep_the_default() -> None:
    first, second, third = gpus(3)
    node = (replace(first, name="NVIDIA A100-SXM4-40GB"), replace(second, name="Tesla T4"), third)
    settings = PluginSettings(
        gpus=(
            NamePattern(pattern="*A100*", name="nvidia.com/a100"),
            NamePattern(pattern="Tesla*", name="example.com/tesla"),
            NamePattern(pattern="*", name=GPU),
        )
    )
    made = plan(node, settings)
    assert counts(made) == {"nvidia.com/a100": 1, "example.com/tesla": 1, GPU: 1}
    assert made.resource("example.com/tesla").endpoint == "example.com_tesla.sock"


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("*", "", True),
        ("*", "anything", True),
        ("1g.24gb", "1g.24gb-me", False),
        ("1g.24gb*", "1g.24gb-me", True),
        ("1g.5gb", "1gx5gb", False),
        ("*A100*", "NVIDIA A100", True),
        ("A100", "NVIDIA A100", False),
        ("a*b*c", "a--b--c", True),
        ("a*b*c", "a--c--b", False),
        ("[ab]", "a", False),
        ("?", "a", False),
    ],
)
def test_only_the_star_is_special_and_the_whole_text_counts(pattern: str, text: str, matches: bool) -> None:
    assert NamePattern(pattern=pattern, name="nvidia.com/x").matches(text) is matches


# --- sharing ---


def ids(resource: PluginResource) -> list[str]:
    return [device.id for device in resource.devices]


def test_replicas_of_every_gpu_in_order() -> None:
    nodes = gpus(2)
    (resource,) = plan(nodes, shared(entry(4))).resources
    assert ids(resource) == [f"{gpu.uuid}::{number}" for gpu in nodes for number in range(4)]
    assert resource.sharing is SharingKind.TIME_SLICING
    assert not resource.refuses_many


def test_rename_by_default_and_rename() -> None:
    assert counts(plan(gpus(2), shared(entry(4), rename_by_default=True))) == {"nvidia.com/gpu.shared": 8}
    assert plan(gpus(2), shared(entry(4), rename_by_default=True)).resources[0].endpoint == "nvidia-gpu.shared.sock"
    assert counts(plan(gpus(2), shared(entry(4, rename="nvidia.com/slow")))) == {"nvidia.com/slow": 8}


def test_only_some_gpus_are_shared_and_the_rest_keep_the_old_name() -> None:
    nodes = gpus(4)
    made = plan(nodes, shared(entry(3, refs=["1", nodes[3].uuid], rename="nvidia.com/small")))
    assert counts(made) == {GPU: 2, "nvidia.com/small": 6}
    assert ids(made.resource(GPU)) == [nodes[0].uuid, nodes[2].uuid]
    assert made.resource(GPU).sharing is None
    same_name = plan(nodes, shared(entry(3, refs=["1"])))
    assert counts(same_name) == {GPU: 6}
    assert ids(same_name.resource(GPU))[:3] == [nodes[0].uuid, f"{nodes[1].uuid}::0", f"{nodes[1].uuid}::1"]


def test_a_count_shares_the_first_devices() -> None:
    nodes = gpus(4)
    made = plan(nodes, shared(entry(2, count=3), rename_by_default=True))
    assert counts(made) == {GPU: 1, "nvidia.com/gpu.shared": 6}
    assert ids(made.resource(GPU)) == [nodes[3].uuid]


def test_different_replicas_for_different_gpus() -> None:
    made = plan(gpus(2), shared(entry(4, refs=["0"]), entry(2, refs=["1"])))
    assert counts(made) == {GPU: 6}


def test_mig_devices_are_named_by_their_index() -> None:
    (gpu,) = gpus(1)
    settings = replace(shared(entry(4, "nvidia.com/mig-1g.10gb", refs=["0:1"])), mig_strategy="mixed")
    made = plan((with_mig(gpu, ("1g.10gb", 7)),), settings)
    assert counts(made) == {"nvidia.com/mig-1g.10gb": 6 + 4}


def test_mig_times_time_slicing() -> None:
    (gpu,) = gpus(1)
    settings = replace(shared(entry(4, "nvidia.com/mig-1g.10gb")), mig_strategy="mixed")
    assert counts(plan((with_mig(gpu, ("1g.10gb", 7)),), settings)) == {"nvidia.com/mig-1g.10gb": 28}


def test_what_the_file_names_and_the_node_lacks_is_said() -> None:
    made = plan(gpus(2), shared(entry(4, "nvidia.com/gpus"), entry(2, refs=["7"])))
    assert counts(made) == {GPU: 2}
    assert reasons(made) == {"SharingUnknownResource", "SharingUnknownDevice"}
    assert 'did you mean "nvidia.com/gpu"?' in {advice.remedy for advice in made.advice}


def test_mps_refuses_many_and_never_shares_mig_devices() -> None:
    mps = shared(entry(10), kind=SharingKind.MPS)
    (resource,) = plan(gpus(1), mps).resources
    assert (resource.sharing, resource.refuses_many, len(resource.devices)) == (SharingKind.MPS, True, 10)
    (gpu,) = gpus(1)
    made = plan((with_mig(gpu, ("1g.10gb", 7)),), replace(mps, mig_strategy="single"))
    assert counts(made) == {GPU: 7}
    assert "sharing using MPS is not supported for MIG devices" in made.refused[0].error.what


@pytest.mark.parametrize("strategy", ["none", "single"])
@pytest.mark.parametrize("refs", [(), ("1",)])
def test_mps_on_a_node_with_mig_is_refused_and_changes_nothing(strategy: str, refs: tuple[str, ...]) -> None:
    """Feature discovery says of such a node that it has no MPS, so that the operator runs no daemon there."""
    first, *others = gpus(3)
    node = (with_mig(first, ("1g.10gb", 7)), *others)
    settings = replace(shared(entry(4, refs=refs), kind=SharingKind.MPS), mig_strategy=strategy)
    made = plan(node, settings)
    assert made.resources == plan(node, replace(settings, sharing=None)).resources
    (refusal,) = made.refused
    assert refusal.advice in made.advice
    assert (refusal.subject, refusal.reason) == (GPU, "SharingImpossible")
    assert "the MIG mode of GPU 0 is on" in refusal.error.what
    assert counts(plan(others, settings)) != counts(plan(others, replace(settings, sharing=None)))


@pytest.mark.parametrize(
    ("capability", "replicas", "works"),
    [((7, 5), 48, True), ((7, 0), 48, True), ((6, 0), 16, True), ((6, 0), 17, False)],
)
def test_mps_has_a_limit_of_clients(capability: tuple[int, int], replicas: int, works: bool) -> None:
    node = gpus(1, compute_capability=capability)
    made = plan(node, shared(entry(replicas), kind=SharingKind.MPS))
    assert counts(made) == {GPU: replicas if works else 1}
    assert works or "maximum allowed replicas exceeded: 17 > 16" in made.refused[0].error.what


def test_a_device_list_that_no_kubelet_could_receive_is_refused() -> None:
    made = plan(gpus(8), shared(entry(65_535)))
    assert counts(made) == {GPU: 8}
    assert "SharingTooMany" in reasons(made)


@given(
    sliced=st.lists(st.sampled_from([None, (), (("1g.10gb", 7),), (("3g.40gb", 2),)]), min_size=1, max_size=8),
    strategy=st.sampled_from(["none", "single", "mixed"]),
    replicas=st.integers(2, 5),
    rename=st.booleans(),
    some=st.sets(st.integers(0, 9), max_size=4),
)
def test_no_device_is_offered_twice_and_the_plan_is_repeatable(sliced, strategy, replicas, rename, some) -> None:
    nodes = gpus(len(sliced))
    node = [gpu if layout is None else with_mig(gpu, *layout) for gpu, layout in zip(nodes, sliced, strict=True)]
    settings = replace(
        shared(entry(replicas, refs=[str(index) for index in sorted(some)]), rename_by_default=rename),
        mig_strategy=strategy,
    )
    made = plan(node, settings)
    offered = [device.id for resource in made.resources for device in resource.devices]
    assert len(offered) == len(set(offered))
    assert plan(list(reversed(node)), settings) == made
    names = [resource.name for resource in made.resources]
    assert names == sorted(set(names))
    assert len({resource.endpoint for resource in made.resources}) == len(names)
    # A unit is either whole or in shares, never both, and a GPU is never offered beside its own slices.
    for resource in made.resources:
        for device in resource.devices:
            whole = device.unit.uuid in offered
            assert whole != (f"{device.unit.uuid}::0" in offered)
    gpu_ids = {device.unit.gpu_uuid for r in made.resources for device in r.devices if device.unit.is_mig}
    assert not gpu_ids & {device.unit.uuid for r in made.resources for device in r.devices}


def test_no_other_domain_can_take_a_socket() -> None:
    names = ("nvidia.com/gpu", "nvidia/gpu", "a-b/c", "a/b-c")
    assert len({PluginResource(name=name).endpoint for name in names}) == len(names)


def test_shares_do_not_take_the_name_of_other_devices() -> None:
    first, second = gpus(2)
    settings = replace(shared(entry(2, rename="nvidia.com/mig-1g.10gb")), mig_strategy="mixed")
    made = plan((first, with_mig(second, ("1g.10gb", 7))), settings)
    assert counts(made) == {GPU: 1, "nvidia.com/mig-1g.10gb": 7}
    assert [advice.reason for advice in made.advice] == ["SharingNameTaken"]
    assert counts(plan(gpus(2), settings)) == {"nvidia.com/mig-1g.10gb": 4}
