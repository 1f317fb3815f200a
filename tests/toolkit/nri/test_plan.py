"""What happens to containers: who may ask, what is free, what is cut away, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import KubeletError
from kgpu.formats.requirements import GpuFacts
from kgpu.formats.toolkit_config import parse_config
from kgpu.kubelet.nri.model import NriContainer, NriMount, NriPod
from kgpu.kubelet.pod_resources import Holding
from kgpu.toolkit.nri.config import NriPolicy, honouring
from kgpu.toolkit.nri.model import Adjust, ContainerRefusal, Facts, Nothing, Outcome
from kgpu.toolkit.nri.plan import decide, needs_holdings, read

from . import support_nri as node
from .support_nri import LIB, POLICY, annotated, container, facts, given_by_kubelet, holding, pod

MANAGED = "management.nvidia.com/gpu=all"


def play(asking: NriPod, box: NriContainer, known: Facts | None = None, policy: NriPolicy = POLICY) -> Outcome:
    ask = read(policy, asking, box)
    if ask is None:
        return Nothing()
    known = known or facts()
    if not needs_holdings(policy, ask, known.account):
        known = Facts(index=known.index, account=known.account, gpus=known.gpus, node=known.node)
    return decide(policy, ask, known, wanted=node.wanted)


def devices(outcome: Outcome) -> tuple[str, ...]:
    assert isinstance(outcome, Adjust), outcome
    return outcome.adjustment.cdi_devices


def refusal(outcome: Outcome) -> str:
    assert isinstance(outcome, ContainerRefusal), outcome
    assert outcome.problem.expected
    assert outcome.problem.remedy
    return outcome.problem.one_line()


def env(value: str) -> NriContainer:
    return container(f"NVIDIA_VISIBLE_DEVICES={value}")


# --- who does not concern the plugin ---


def test_containers_without_a_word_of_gpus_are_not_looked_at() -> None:
    assert read(POLICY, pod(), container("PATH=/bin")) is None
    assert read(POLICY, pod(), env("void")) is None
    assert read(POLICY, pod(), container(devices=("/dev/fuse",))) is None


# --- the namespace that may not ask ---


@pytest.mark.parametrize("asked", ["all", "none", "0", "GPU-1", "nvidia.com/gpu=all", "nonsense", "x" * 5000])
def test_a_variable_alone_gives_nothing(asked: str) -> None:
    outcome = play(pod(), env(asked))
    assert isinstance(outcome, Nothing)
    assert "user" in outcome.why


@pytest.mark.parametrize("name", ["nvidia.com/gpu=all", "nvidia.com/gpu=0", MANAGED, "nvidia.com/gds=all"])
def test_an_annotation_is_refused_aloud(name: str) -> None:
    said = refusal(play(annotated(name), container()))
    assert "namespace user" in said
    assert "gpu-operator" in said


def test_a_variable_can_not_have_the_management_devices() -> None:
    assert "user may not" in refusal(play(pod(), env(MANAGED)))


def test_extra_devices_are_not_given() -> None:
    assert isinstance(play(pod(), container("NVIDIA_GDS=enabled")), Nothing)


# --- what the kubelet gave to the pod itself ---


@pytest.mark.parametrize("asked", ["GPU-0", "0", "nvidia.com/gpu=0"])
def test_the_pods_own_gpus_are_given_wherever_it_is(asked: str) -> None:
    known = facts(holding("GPU-0", pod="p"))
    assert len(devices(play(pod(), env(asked), known))) == 1
    assert devices(play(annotated("nvidia.com/gpu=0"), container(), known)) == ("nvidia.com/gpu=0",)


def test_no_more_than_the_pods_own() -> None:
    known = facts(holding("GPU-0", pod="p"))
    assert isinstance(play(pod(), env("GPU-0,GPU-1"), known), Nothing)
    assert isinstance(play(pod(), env("all"), known), Nothing)
    assert "may not" in refusal(play(annotated("nvidia.com/gpu=all"), container(), known))
    # A whole GPU is more than a slice of it, and another slice is another device.
    slice_held = facts(holding("MIG-a", pod="p", resource="nvidia.com/mig-1g.10gb"))
    assert len(devices(play(pod(), env("MIG-a"), slice_held))) == 1
    assert isinstance(play(pod(), env("MIG-b"), slice_held), Nothing)
    assert isinstance(play(pod("elsewhere"), env("GPU-0"), known), Nothing)


def test_a_gpu_that_the_kubelet_shares_out_is_given_to_each_of_its_pods() -> None:
    known = facts(holding("GPU-0::0", pod="p"), holding("GPU-0::1", pod="q"))
    # As the device plugin's strategy envvar asks for it.
    assert len(devices(play(pod(), env("GPU-0"), known))) == 1
    assert devices(play(annotated("nvidia.com/gpu=0"), container(), known)) == ("nvidia.com/gpu=0",)
    # An allowed namespace's "all" has the pod's own share, and no GPU that only others hold.
    ours = facts(
        Holding(namespace="ml", pod="p", container="main", resource="nvidia.com/gpu", devices=("GPU-0::0",)),
        holding("GPU-0::1", pod="q"), holding("GPU-1", pod="q"),
    )  # fmt: skip
    slices = {"nvidia.com/gpu=2:0", "nvidia.com/gpu=2:1"}
    assert set(devices(play(pod("ml"), env("all"), ours))) == {"nvidia.com/gpu=0", *slices}
    # Who has no share of it gets none.
    assert "other pods hold" in refusal(play(pod("ml", "stranger"), env("GPU-0"), known))


def test_a_gpu_that_the_kubelet_gave_but_no_spec_has() -> None:
    known = facts(holding("GPU-9", pod="p"))
    assert "no CDI spec" in refusal(play(pod(), env("GPU-9"), known))


def test_mounts_ask_too() -> None:
    box = container(mounts=(NriMount(destination="/var/run/nvidia-container-devices/GPU-0", source="/dev/null"),))
    assert isinstance(play(pod(), box), Nothing)
    assert devices(play(pod(), box, facts(holding("GPU-0", pod="p")))) == ("nvidia.com/gpu=GPU-0",)


# --- allowed namespaces and service accounts ---


def test_an_allowed_namespace() -> None:
    assert devices(play(pod("ml"), env("0"))) == ("nvidia.com/gpu=0",)
    assert devices(play(pod("ml"), env("all"))) == ("nvidia.com/gpu=all",)
    assert devices(play(annotated("nvidia.com/gpu=1", "ml"), container())) == ("nvidia.com/gpu=1",)
    assert devices(play(pod("ml"), container("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDS=enabled"))) == (
        "nvidia.com/gpu=0", "nvidia.com/gds=all"
    )  # fmt: skip


def test_an_allowed_service_account() -> None:
    assert devices(play(pod("team"), env("0"), facts(account="trainer"))) == ("nvidia.com/gpu=0",)
    assert isinstance(play(pod("team"), env("0"), facts(account="default")), Nothing)
    assert isinstance(play(pod("team"), env("0"), facts()), Nothing)
    assert isinstance(play(pod("user"), env("0"), facts(account="trainer")), Nothing)


def test_never_a_gpu_that_another_pod_holds() -> None:
    known = facts(holding("GPU-0"))
    for asked in ("0", "GPU-0", "0,1"):
        assert "user/other" in refusal(play(pod("ml"), env(asked), known))
    assert "user/other" in refusal(play(annotated("nvidia.com/gpu=all", "ml"), container(), known))
    assert "user/other" in refusal(play(annotated("nvidia.com/gpu=0", "gpu-operator"), container(), known))


def test_all_means_those_that_are_free() -> None:
    known = facts(holding("GPU-0"), holding("MIG-b", resource="nvidia.com/mig-1g.10gb"))
    assert set(devices(play(pod("ml"), env("all"), known))) == {"nvidia.com/gpu=1", "nvidia.com/gpu=2:0"}
    every = facts(holding("GPU-0", "GPU-1"), holding("MIG-a", "MIG-b"))
    assert "other pods hold" in refusal(play(pod("ml"), env("all"), every))


def test_a_whole_gpu_is_not_free_while_a_slice_of_it_is_held() -> None:
    spec = node.build_spec(kind="k8s.gpu.nvidia.com/whole", devices=[node.gpu(2)])
    known = Facts(index=node.index(spec), holdings=(holding("MIG-a"),))
    said = refusal(play(annotated("k8s.gpu.nvidia.com/whole=2", "ml"), container(), known))
    assert "user/other" in said


def test_claims_count_as_held() -> None:
    claim = Holding(
        namespace="a", pod="b", container="c", resource="gpu.nvidia.com", devices=("gpu-0",),
        cdi_devices=("nvidia.com/gpu=0",),
    )  # fmt: skip
    assert "a/b" in refusal(play(pod("ml"), env("0"), facts(claim)))


def test_nothing_is_given_in_the_dark() -> None:
    unknown = Facts(index=node.index(), holdings=KubeletError("the kubelet sleeps", "an answer", "wait"))
    assert "the kubelet sleeps" in refusal(play(pod("ml"), env("0"), unknown))
    assert "the kubelet sleeps" in refusal(play(pod("ml"), env("all"), unknown))
    assert "nobody can say" in refusal(play(pod("ml"), env("0"), facts(holding("GPU-77"))))


def test_names_that_this_node_does_not_have() -> None:
    said = refusal(play(pod("ml"), env("7")))
    assert "kgpu cdi list" in said
    assert "nvidia.com/gpu=0" in said
    assert "no CDI spec" in refusal(play(annotated("nvidia.com/gpu=7", "ml"), container()))
    assert isinstance(play(pod("ml"), env("all"), Facts(index=node.index_of([]), holdings=())), Nothing)


# --- management ---


def test_management_devices_whoever_holds_what() -> None:
    busy = facts(holding("GPU-0", "GPU-1"))
    assert devices(play(annotated(MANAGED, "gpu-operator"), container(), busy)) == (MANAGED,)
    assert devices(play(pod("gpu-operator"), env("all"), busy)) == (MANAGED,)
    assert "gpu-operator" in refusal(play(annotated(MANAGED, "ml"), container(), busy))


def test_management_beside_a_denied_name_gives_neither() -> None:
    both = annotated(f"{MANAGED},nvidia.com/gpu=0", "gpu-operator")
    assert "user/other" in refusal(play(both, container(), facts(holding("GPU-0"))))


# --- annotations ---


def test_the_nearest_annotation_counts() -> None:
    key = "nvidia.cdi.k8s.io"
    every = {f"{key}/container.main": "nvidia.com/gpu=0", f"{key}/pod": "nvidia.com/gpu=1", key: "nvidia.com/gpu=2:0"}
    for gone, expected in ((None, "0"), (f"{key}/container.main", "1"), (f"{key}/pod", "2:0")):
        if gone:
            del every[gone]
        asking = NriPod(name="p", namespace="ml", annotations=every)
        assert devices(play(asking, env("1"))) == (f"nvidia.com/gpu={expected}",)
    other = NriPod(name="p", namespace="ml", annotations={f"{key}/container.side": "nvidia.com/gpu=0"})
    assert isinstance(play(other, container()), Nothing)


def test_an_empty_annotation_takes_the_variable_back() -> None:
    assert isinstance(play(annotated("", "ml"), env("all")), Nothing)


@pytest.mark.parametrize(
    "value", ["all", "0", "nvidia.com=0", "nvidia.com/gpu=", "=", "vendor.com/net=eth0", "x" * 9999]
)
def test_annotations_that_name_no_device_of_ours(value: str) -> None:
    refusal(play(annotated(value, "ml"), container()))
    refusal(play(annotated(value, "user"), container()))


# --- capabilities and requirements, on every path ---


def without(outcome: Outcome) -> set[str]:
    assert isinstance(outcome, Adjust), outcome
    return {path.rsplit("/", 1)[1] for path in outcome.adjustment.without_mounts}


def test_capabilities_cut_what_the_kubelets_devices_brought() -> None:
    box = given_by_kubelet("NVIDIA_DRIVER_CAPABILITIES=utility")
    outcome = play(pod(), box)
    assert without(outcome) == {"libcuda.so.1", "libnvidia-encode.so.1", "libGLX_nvidia.so.0"}
    assert devices(outcome) == ()
    assert without(play(pod(), given_by_kubelet("NVIDIA_DRIVER_CAPABILITIES=video,utility"))) == {"libGLX_nvidia.so.0"}
    for everything in ("NVIDIA_DRIVER_CAPABILITIES=all", "NVIDIA_DRIVER_CAPABILITIES=", "OTHER=1"):
        assert isinstance(play(pod(), given_by_kubelet(everything)), Nothing)


def test_capabilities_cut_what_the_plugin_gives() -> None:
    outcome = play(pod("ml"), container("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"))
    assert devices(outcome) == ("nvidia.com/gpu=0",)
    assert without(outcome) == {"libnvidia-encode.so.1", "libGLX_nvidia.so.0"}


def test_only_mounts_of_the_specs_are_cut() -> None:
    mine = NriMount(destination=f"{LIB}/libcuda.so.1", source="/somewhere/else/libcuda.so.1")
    box = container("NVIDIA_DRIVER_CAPABILITIES=utility", devices=("/dev/nvidia0",), mounts=(mine,))
    assert isinstance(play(pod(), box), Nothing)


def test_capabilities_that_do_not_exist() -> None:
    assert "fly" in refusal(play(pod(), given_by_kubelet("NVIDIA_DRIVER_CAPABILITIES=fly")))
    assert isinstance(play(pod(), container("NVIDIA_DRIVER_CAPABILITIES=fly")), Nothing)


GPUS = {0: GpuFacts(cuda="12.4", driver="550.54", arch="9.0", subject="GPU 0"),
        1: GpuFacts(cuda="12.4", driver="550.54", arch="7.0", subject="GPU 1")}  # fmt: skip


def test_requirements_are_checked_for_the_kubelets_devices() -> None:
    known = facts(gpus=GPUS, node=GPUS[0])
    said = refusal(play(pod(), given_by_kubelet("NVIDIA_REQUIRE_CUDA=cuda>=13.0"), known))
    assert "NVIDIA_REQUIRE_CUDA" in said
    assert "cuda 12.4" in said
    for fine in (
        ("NVIDIA_REQUIRE_CUDA=cuda>=12.4",),
        ("NVIDIA_REQUIRE_CUDA=cuda>=13.0", "NVIDIA_DISABLE_REQUIRE=true"),
        ("NVIDIA_REQUIRE_ARCH=arch>=8.0",),
    ):
        assert isinstance(play(pod(), given_by_kubelet(*fine), known), Nothing)


def test_requirements_are_about_the_gpus_that_the_container_gets() -> None:
    known = facts(gpus=GPUS, node=GpuFacts(cuda="12.4"))
    need = "NVIDIA_REQUIRE_ARCH=arch>=8.0"
    assert devices(play(pod("ml"), container("NVIDIA_VISIBLE_DEVICES=0", need), known))
    assert "GPU 1" in refusal(play(pod("ml"), container("NVIDIA_VISIBLE_DEVICES=1", need), known))


def test_requirements_of_containers_without_a_gpu_do_not_matter() -> None:
    known = facts(gpus=GPUS, node=GPUS[0])
    for wish in ("NVIDIA_REQUIRE_CUDA=cuda>=99", "NVIDIA_REQUIRE_CUDA=rubbish"):
        assert isinstance(play(pod(), container(wish, "NVIDIA_VISIBLE_DEVICES=all"), known), Nothing)
        assert isinstance(play(pod(), container(wish, devices=("/dev/nvidia0",)), known), Nothing)


def test_a_requirement_that_can_not_be_understood_is_refused() -> None:
    assert "NVIDIA_REQUIRE_X" in refusal(play(pod(), given_by_kubelet("NVIDIA_REQUIRE_X=moon>=full")))


def test_an_unreadable_driver_stops_nobody() -> None:
    assert isinstance(play(pod(), given_by_kubelet("NVIDIA_REQUIRE_CUDA=cuda>=99")), Nothing)


# --- what the toolkit's config.toml can say ---


def test_a_config_file_narrows_what_is_done() -> None:
    def told(text: str) -> NriPolicy:
        return honouring(POLICY, parse_config(text))

    assert told("") == POLICY
    known = facts(gpus=GPUS, node=GPUS[0])
    high = given_by_kubelet("NVIDIA_REQUIRE_CUDA=cuda>=13.0")
    assert isinstance(play(pod(), high, known, told("disable-require = true")), Nothing)
    cut = told('supported-driver-capabilities = "utility"')
    assert "compute" in refusal(play(pod(), given_by_kubelet("NVIDIA_DRIVER_CAPABILITIES=compute"), policy=cut))
    assert "libcuda.so.1" in without(play(pod(), given_by_kubelet("NVIDIA_DRIVER_CAPABILITIES=all"), policy=cut))
    no_env = told("accept-nvidia-visible-devices-envvar-when-unprivileged = false")
    assert isinstance(play(pod("ml"), env("0"), policy=no_env), Nothing)
    assert devices(play(annotated("nvidia.com/gpu=0", "ml"), container(), policy=no_env))
    mounted = container(mounts=(NriMount(destination="/var/run/nvidia-container-devices/0", source="/dev/null"),))
    no_mounts = told("accept-nvidia-visible-devices-as-volume-mounts = false")
    assert devices(play(pod("ml"), mounted)) == ("nvidia.com/gpu=0",)
    assert isinstance(play(pod("ml"), mounted, policy=no_mounts), Nothing)
    swarm = told('swarm-resource = "DOCKER_RESOURCE_GPU"')
    assert devices(play(pod("ml"), container("DOCKER_RESOURCE_GPU=1"), policy=swarm)) == ("nvidia.com/gpu=1",)


# --- what always holds ---

words = st.sampled_from(["all", "none", "void", "0", "1", "2:0", "MIG-b", "GPU-0", "nvidia.com/gpu=all", MANAGED, "x"])
held = st.lists(
    st.builds(
        lambda ids, name: holding(*ids, pod=name),
        st.lists(st.sampled_from(["GPU-0", "GPU-1", "GPU-1::2", "MIG-a", "MIG-b"]), min_size=1, max_size=2),
        st.sampled_from(["p", "other"]),
    ),
    max_size=3,
)


@given(st.lists(words, max_size=3), st.booleans(), st.sampled_from(["user", "ml", "gpu-operator"]), held)
def test_no_words_get_what_others_hold(
    asked: list[str], annotate: bool, namespace: str, holdings: list[Holding]
) -> None:
    text = ",".join(asked)
    asking = annotated(text, namespace) if annotate else pod(namespace)
    # The holders live in namespace "user".
    outcome = play(asking, container() if annotate else env(text), facts(*holdings))
    if not isinstance(outcome, Adjust):
        return
    index = node.index()
    given = {name for name in outcome.adjustment.cdi_devices if not name.startswith("management.")}
    assert namespace == "gpu-operator" or given == set(outcome.adjustment.cdi_devices)
    units = [index.entries[member].units for name in given for member in index.members(name)]
    mine = [unit for one in holdings if (one.namespace, one.pod) == (namespace, "p") for unit in index.held(one) or ()]
    others = [
        unit for one in holdings if (one.namespace, one.pod) != (namespace, "p") for unit in index.held(one) or ()
    ]
    # A GPU that the kubelet shares out is the pod's own too.
    assert not any(unit.meets(other) for unit in units if unit not in mine for other in others)
    if namespace == "user":
        assert all(unit in mine for unit in units)
