"""Facts to labels: both forms of PCI labels, kernel, operating system, CPU; whatever the facts, values are legal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.discovery.features.cpu import cpuid_names
from kgpu.discovery.features.model import CpuFacts, FeatureFacts, PciFunction
from kgpu.discovery.features.plan import plan
from kgpu.formats import names


def bare(facts: FeatureFacts) -> dict[str, str]:
    return {key.removeprefix(names.NFD_PREFIX): value for key, value in plan(facts).items()}


def test_a_gpu_is_labelled_in_both_forms_that_selectors_use():
    found = plan(FeatureFacts(pci=(PciFunction(pci_class="0302", vendor="10de"),)))
    assert found == {names.NFD_PREFIX + "pci-0302_10de.present": "true", names.NFD_PREFIX + "pci-10de.present": "true"}
    assert set(found) & set(names.NFD_PCI_NVIDIA)


@pytest.mark.parametrize(
    ("pci_class", "labelled"),
    [("0300", True), ("0302", True), ("0380", True), ("0200", True), ("0207", True), ("0b40", True), ("1200", True),
     ("0604", False), ("0108", False), ("0b80", False)],
)  # fmt: skip
def test_classes_that_count(pci_class, labelled):
    assert bool(bare(FeatureFacts(pci=(PciFunction(pci_class=pci_class, vendor="8086"),)))) is labelled


def test_sriov_and_rdma():
    facts = FeatureFacts(
        pci=(PciFunction(pci_class="0200", vendor="15b3", sriov=True),), modules=frozenset({"ib_uverbs", "rdma_ucm"})
    )
    assert bare(facts) == {
        "pci-0200_15b3.present": "true",
        "pci-0200_15b3.sriov.capable": "true",
        "pci-15b3.present": "true",
        "pci-15b3.sriov.capable": "true",
        "rdma.available": "true",
        "rdma.capable": "true",
    }


@pytest.mark.parametrize(
    ("release", "parts"),
    [
        ("5.15.0-1041-azure", {"full": "5.15.0-1041-azure", "major": "5", "minor": "15", "revision": "0"}),
        ("6.8.0-45+exp ected-", {"full": "6.8.0-45_exp_ected", "major": "6", "minor": "8", "revision": "0"}),
        ("6.1", {"full": "6.1", "major": "6", "minor": "1"}),
        ("next", {"full": "next"}),
        ("", {}),
    ],
)
def test_kernel(release, parts):
    assert bare(FeatureFacts(kernel=release)) == {f"kernel-version.{part}": value for part, value in parts.items()}


def test_operating_system():
    release = {"ID": "rhcos", "VERSION_ID": "4.14", "OSTREE_VERSION": "414.92.202309282257-0", "NAME": "Red Hat"}
    assert bare(FeatureFacts(os_release=release)) == {
        "system-os_release.ID": "rhcos",
        "system-os_release.OSTREE_VERSION": "414.92.202309282257-0",
        "system-os_release.VERSION_ID": "4.14",
        "system-os_release.VERSION_ID.major": "4",
        "system-os_release.VERSION_ID.minor": "14",
    }


def test_cpu():
    cpu = CpuFacts(
        vendor="GenuineIntel", family="6", model="143", flags=frozenset({"avx512f", "amx_tile", "sse2", "fma"}),
        multithreading=True, pstate={"status": "active", "turbo": "true"}, cstate=True,
    )  # fmt: skip
    assert bare(FeatureFacts(cpu=cpu)) == {
        "cpu-cpuid.AMXTILE": "true",
        "cpu-cpuid.AVX512F": "true",
        "cpu-cpuid.FMA3": "true",
        "cpu-cstate.enabled": "true",
        "cpu-hardware_multithreading": "true",
        "cpu-model.family": "6",
        "cpu-model.id": "143",
        "cpu-model.vendor_id": "Intel",
        "cpu-pstate.status": "active",
        "cpu-pstate.turbo": "true",
    }


def test_grace_is_nvidia_as_operands_for_it_expect():
    found = bare(FeatureFacts(cpu=CpuFacts(vendor="0x4e", flags=frozenset({"asimd", "sve2"}))))
    assert found == {"cpu-cpuid.ASIMD": "true", "cpu-cpuid.SVE2": "true", "cpu-model.vendor_id": "NVIDIA"}


def test_flags_of_the_black_list_are_left_out():
    assert not cpuid_names(frozenset({"sse", "sse2", "mmx", "nx", "rdrand", "bmi1", "popcnt", "ht"}))


def test_nothing_known_gives_nothing():
    assert plan(FeatureFacts()) == {}


LEGAL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


@given(
    kernel=st.text(),
    release=st.dictionaries(st.sampled_from(["ID", "VERSION_ID", "OSTREE_VERSION"]), st.text()),
    devices=st.lists(st.builds(PciFunction, pci_class=st.text(max_size=9), vendor=st.text(max_size=90))),
    cpu=st.builds(CpuFacts, vendor=st.text(), family=st.text(), model=st.text(), flags=st.frozensets(st.text())),
)
def test_every_label_is_legal(kernel, release, devices, cpu):
    found = plan(FeatureFacts(kernel=kernel, os_release=release, pci=tuple(devices), cpu=cpu))
    assert all(LEGAL.fullmatch(value) for value in found.values())
    assert all(LEGAL.fullmatch(key.removeprefix(names.NFD_PREFIX)) for key in found)
