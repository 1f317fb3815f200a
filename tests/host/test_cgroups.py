"""Processes are found in their pods by every form of cgroup path, and a name that a container gives itself counts for nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.host.cgroups import ContainerPlace, container_place
from tests.budget import tries

UID = "5b7d2f0e-6c1a-4d4e-9a55-0123456789ab"
FLAT = UID.replace("-", "_")
ID = "4f" * 32
OTHER = "a0" * 32
STATIC = "0123456789abcdef0123456789abcdef"

FORMS = [
    # v2, systemd driver: containerd, CRI-O, Docker
    f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{FLAT}.slice/cri-containerd-{ID}.scope",
    f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{FLAT}.slice/crio-{ID}.scope",
    f"0::/kubepods.slice/kubepods-pod{FLAT}.slice/crio-{ID}.scope/container",
    f"0::/kubepods.slice/kubepods-pod{FLAT}.slice/docker-{ID}.scope",
    # v2 and v1, cgroupfs driver
    f"0::/kubepods/burstable/pod{UID}/{ID}",
    f"12:memory:/kubepods/pod{UID}/{ID}\n11:cpu,cpuacct:/kubepods/pod{UID}/{ID}\n1:name=systemd:/kubepods/pod{UID}/{ID}",
    # v1, systemd driver; both mounted, where the v2 line says nothing
    f"5:devices:/kubepods.slice/kubepods-pod{FLAT}.slice/cri-containerd-{ID}.scope\n0::/",
    f"0::/system.slice/containerd.service\n4:memory:/kubepods/besteffort/pod{UID}/{ID}",
    # containerd whose cgroup driver differs from the kubelet's
    f"0::/system.slice/containerd.service/kubepods-burstable-pod{FLAT}.slice:cri-containerd:{ID}",
    # kubelet under another root: kind, minikube, OpenShift
    f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{FLAT}.slice/cri-containerd-{ID}.scope",
    f"0::/docker/{OTHER[:12]}/kubelet/kubepods/besteffort/pod{UID}/{ID}",
    # from inside another pod's cgroup namespace
    f"0::/../../kubepods-burstable-pod{FLAT}.slice/cri-containerd-{ID}.scope",
    f"0::/../../../besteffort/pod{UID}/{ID}",
    # groups that the container made itself
    f"0::/kubepods/pod{UID}/{ID}/init.scope",
    f"0::/kubepods/pod{UID}/{ID}/kubepods/pod{UID[:-1]}c/{OTHER}",
]


@pytest.mark.parametrize("text", FORMS)
def test_every_form(text: str) -> None:
    assert container_place(text) == ContainerPlace(UID, ID)
    assert container_place(f"{text}\n") == ContainerPlace(UID, ID)


def test_a_static_pod_has_its_hash() -> None:
    assert container_place(f"0::/kubepods/burstable/pod{STATIC}/{ID}") == ContainerPlace(STATIC, ID)
    assert container_place(
        f"0::/kubepods.slice/kubepods-pod{STATIC}.slice/cri-containerd-{ID}.scope"
    ) == ContainerPlace(STATIC, ID)


def test_a_sibling_in_the_same_pod_is_known_by_its_container_alone() -> None:
    assert container_place(f"0::/../cri-containerd-{ID}.scope") == ContainerPlace("", ID)


def test_only_the_pod_is_told_where_the_process_is_in_no_container() -> None:
    assert container_place(f"0::/kubepods/pod{UID}") == ContainerPlace(UID, "")
    assert container_place(f"0::/kubepods.slice/kubepods-pod{FLAT}.slice/crio-conmon-{ID}.scope") == ContainerPlace(
        UID, ""
    )


@pytest.mark.parametrize(
    "text",
    [
        "", "0::/", "0::/user.slice/user-1000.slice/session-3.scope", "nonsense", "0::", "::/x",
        f"0::/system.slice/docker-{ID}.scope", f"0::/docker/{ID}", "0::/system.slice/kubelet.service",
        f"0::/machine.slice/libpod-{ID}.scope", "0::/kubepods.slice", f"0::/user.slice/{ID}",
    ],
)  # fmt: skip
def test_processes_in_no_pod(text: str) -> None:
    assert container_place(text) is None


def test_a_longer_answer_wins_whatever_the_order() -> None:
    lines = [f"3:pids:/kubepods/pod{UID}", f"2:memory:/kubepods/pod{UID}/{ID}", "0::/"]
    assert container_place("\n".join(lines)) == container_place("\n".join(reversed(lines))) == ContainerPlace(UID, ID)


@tries(60)
@given(st.text(max_size=300), st.sampled_from(FORMS))
def test_no_text_breaks_it_and_what_is_below_the_container_changes_nothing(more: str, form: str) -> None:
    container_place(more)
    if form.count("\n") == 0:
        assert container_place(f"{form}/{more.replace(chr(10), '')}") == ContainerPlace(UID, ID)
