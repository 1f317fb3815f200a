"""Features to labels: both forms of PCI labels, kernel, operating system, CPU; whatever the features, values are legal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.discovery.features.cpu import cpuid_names, rdt_names
from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.features.plan import plan
from kgpu.discovery.features.worker_settings import WorkerSettings
from kgpu.formats import names


def bare(settings=None, **features):
    found = plan(FeatureSet(**features), settings)
    return {key.removeprefix(names.NFD_PREFIX): value for key, value in found.items()}


def values(settings=None, **by_feature):
    return bare(settings, attributes={name.replace("_", ".", 1): found for name, found in by_feature.items()})


def devices(settings=None, *, kind="pci.device", **fields):
    return set(bare(settings, instances={kind: (fields,)}))


def test_a_gpu_is_labelled_in_both_forms_that_selectors_use():
    found = plan(FeatureSet(instances={"pci.device": ({"class": "0302", "vendor": "10de"},)}))
    assert found == {names.NFD_PREFIX + "pci-0302_10de.present": "true", names.NFD_PREFIX + "pci-10de.present": "true"}
    assert set(found) & set(names.NFD_PCI_NVIDIA)


@pytest.mark.parametrize(
    ("pci_class", "labelled"),
    [("0300", True), ("0302", True), ("0380", True), ("0200", True), ("0207", True), ("0b40", True), ("1200", True),
     ("0604", False), ("0108", False), ("0b80", False)],
)  # fmt: skip
def test_classes_that_count(pci_class, labelled):
    assert bool(devices(vendor="8086", **{"class": pci_class})) is labelled


CARD = {"class": "0200", "vendor": "15b3", "device": "101d", "subsystem_vendor": "15b3", "subsystem_device": "0042"}


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ({"pci_fields": ("vendor",)}, {"pci-15b3.present"}),
        ({"pci_fields": ("device", "class", "vendor")}, {"pci-0200_15b3_101d.present"}),
        ({"pci_fields": ("subsystem_device", "vendor", "subsystem_vendor")}, {"pci-15b3_15b3_0042.present"}),
        ({"pci_fields": ()}, {"pci-0200_15b3.present", "pci-15b3.present"}),
        ({"pci_classes": ("03",)}, set()),
        ({"pci_classes": ("0200",), "pci_fields": ("class",)}, {"pci-0200.present"}),
        ({"label_sources": ("all", "-pci")}, set()),
        ({"label_sources": ("cpu",)}, set()),
    ],
)
def test_the_settings_choose_devices_and_the_form_of_their_labels(settings, labels):
    assert {key for key in devices(WorkerSettings(**settings), **CARD) if key.startswith("pci")} == labels


def test_usb_devices():
    device = {"class": "fe", "vendor": "1d6b", "device": "0002", "serial": "abc"}
    assert devices(kind="usb.device", **device) == {"usb-fe_1d6b_0002.present"}
    assert devices(kind="usb.device", **{**device, "class": "09"}) == set()
    chosen = WorkerSettings(usb_classes=("09",), usb_fields=("serial", "vendor"))
    assert devices(chosen, kind="usb.device", **{**device, "class": "09"}) == {"usb-1d6b_abc.present"}


def test_sriov_and_rdma():
    modules = {"kernel.loadedmodule": frozenset({"ib_uverbs", "rdma_ucm"})}
    card = {"class": "0200", "vendor": "15b3", "sriov_totalvfs": "8"}
    assert bare(flags=modules, instances={"pci.device": (card,)}) == {
        "pci-0200_15b3.present": "true",
        "pci-0200_15b3.sriov.capable": "true",
        "pci-15b3.present": "true",
        "pci-15b3.sriov.capable": "true",
        "rdma.available": "true",
        "rdma.capable": "true",
    }


@pytest.mark.parametrize(
    ("device", "labels"),
    [
        ({"class": "1200", "device": "74a1"}, {"amd-gpu", "amd-gpu-mi300x"}),
        ({"class": "0380", "device": "740f"}, {"amd-gpu", "amd-gpu-mi210"}),
        ({"class": "0300", "device": "ffff"}, {"amd-gpu"}),
        ({"class": "1200", "device": "74b5"}, {"amd-vgpu"}),
        ({"class": "1200"}, {"amd-gpu"}),
        ({"class": "0403", "device": "74a1"}, set()),
        ({"class": "1200", "vendor": "1da3"}, set()),
    ],
)
def test_amd_gpus_are_known_by_class_and_vendor(device, labels):
    """A product that is newer than AMD's lists of ids is one, too."""
    found = bare(instances={"pci.device": ({"vendor": "1002", **device},)})
    assert {key for key in found if key.startswith("amd")} == labels


def test_kernel():
    options = {"NO_HZ": "y", "PREEMPT": "m", "NO_HZ_IDLE": "n", "HZ": "250", "X": "y"}
    found = values(
        kernel_version={"full": "6.1", "major": "6"}, kernel_config=options, kernel_selinux={"enabled": "true"}
    )
    assert found == {
        "kernel-config.NO_HZ": "true", "kernel-config.PREEMPT": "true", "kernel-selinux.enabled": "true",
        "kernel-version.full": "6.1", "kernel-version.major": "6",
    }  # fmt: skip
    assert values(WorkerSettings(kernel_options=("X", "HZ")), kernel_config=options) == {"kernel-config.X": "true"}
    assert values(kernel_selinux={"enabled": "false"}) == {}


def test_operating_system():
    release = {
        "ID": "rhcos",
        "VERSION_ID": "4.14",
        "VERSION_ID.major": "4",
        "OSTREE_VERSION": "414.92",
        "NAME": "Red Hat",
    }
    assert values(system_osrelease=release) == {
        "system-os_release.ID": "rhcos",
        "system-os_release.OSTREE_VERSION": "414.92",
        "system-os_release.VERSION_ID": "4.14",
        "system-os_release.VERSION_ID.major": "4",
    }


def test_cpu():
    found = bare(
        flags={"cpu.cpuid": frozenset({"AVX512F", "AMXTILE", "SSE2", "X86_64_V1"}), "cpu.rdt": frozenset({"RDTMON"})},
        attributes={
            "cpu.model": {"vendor_id": "Intel", "family": "6", "id": "143"},
            "cpu.pstate": {"status": "active", "turbo": "true"},
            "cpu.cstate": {"enabled": "true"},
            "cpu.topology": {"hardware_multithreading": "true", "socket_count": "2"},
            "cpu.sst": {"bf.enabled": "true"},
            "cpu.coprocessor": {"nx_gzip": "true"},
            "cpu.security": {"sgx.enabled": "true", "sgx.epc": "42", "sev.asids": "9", "tdx.total_keys": "3",
                             "sev.encrypted_state_ids": "1", "sev.snp.enabled": "true"},
            "cpu.rdt": {"RDTL3CA_NUM_CLOSID": "16"},
        },
    )  # fmt: skip
    assert found == {
        "cpu-coprocessor.nx_gzip": "true",
        "cpu-cpuid.AMXTILE": "true",
        "cpu-cpuid.AVX512F": "true",
        "cpu-cpuid.X86_64_V1": "true",
        "cpu-cstate.enabled": "true",
        "cpu-hardware_multithreading": "true",
        "cpu-model.family": "6",
        "cpu-model.id": "143",
        "cpu-model.vendor_id": "Intel",
        "cpu-power.sst_bf.enabled": "true",
        "cpu-pstate.status": "active",
        "cpu-pstate.turbo": "true",
        "cpu-security.sev.snp.enabled": "true",
        "cpu-security.sgx.enabled": "true",
    }


def test_memory_storage_and_network():
    found = bare(
        attributes={"memory.numa": {"is_numa": "true", "node_count": "2"}, "memory.swap": {"enabled": "true"},
                    "memory.hugepages": {"enabled": "true"}},
        instances={
            "memory.nv": ({"name": "dax0", "devtype": "nd_dax"},),
            "storage.block": ({"name": "sda", "rotational": "1"}, {"name": "nvme0n1", "rotational": "0"}),
            "network.device": ({"name": "eth0", "sriov_totalvfs": "8", "sriov_numvfs": "0"},),
        },
    )  # fmt: skip
    assert set(found) == {
        "memory-numa", "memory-swap", "memory-nv.present", "memory-nv.dax", "storage-nonrotationaldisk",
        "network-sriov.capable",
    }  # fmt: skip
    assert values(memory_numa={"is_numa": "false"}, memory_swap={"enabled": "false"}) == {}


def test_flags_of_the_black_list_are_left_out_and_a_white_list_alone_counts():
    some = {"cpu.cpuid": frozenset({"SSE2", "AVX", "RDRAND", "ADX"})}
    assert set(bare(flags=some)) == {"cpu-cpuid.AVX", "cpu-cpuid.ADX"}
    assert set(bare(WorkerSettings(cpuid_denied=("AVX",)), flags=some)) == {
        "cpu-cpuid.SSE2",
        "cpu-cpuid.RDRAND",
        "cpu-cpuid.ADX",
    }
    assert set(bare(WorkerSettings(cpuid_allowed=("SSE2",)), flags=some)) == {"cpu-cpuid.SSE2"}


V1 = "cmov cx8 fpu fxsr mmx syscall sse sse2"
V2 = f"{V1} cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
V3 = f"{V2} avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"


@pytest.mark.parametrize(
    ("flags", "has", "has_not"),
    [
        (V1, {"X86_64_V1", "X87", "CMPXCHG8"}, {"X86_64_V2"}),
        (V2, {"X86_64_V2", "SSE3", "SSE42"}, {"X86_64_V3"}),
        (V3, {"X86_64_V3", "LZCNT", "FMA3"}, {"X86_64_V4"}),
        (f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl", {"X86_64_V4"}, set()),
        ("asimd sve2", {"ASIMD", "SVE2"}, {"X86_64_V1"}),
        ("unknown_flag sse", {"SSE"}, {"X86_64_V1", "UNKNOWN_FLAG"}),
    ],
)
def test_names_of_processor_features(flags, has, has_not):
    found = cpuid_names(frozenset(flags.split()))
    assert has <= found
    assert not has_not & found


def test_what_a_processor_can_do_for_caches():
    assert rdt_names(frozenset({"cqm", "cqm_mbm_local", "cat_l3", "mba", "avx"})) == {
        "RDTMON",
        "RDTMBM",
        "RDTL3CA",
        "RDTMBA",
    }


def test_nothing_known_gives_nothing():
    assert bare() == {}


LEGAL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
TEXTS = st.dictionaries(
    st.sampled_from(
        ["full", "ID", "VERSION_ID", "status", "vendor_id", "class", "vendor", "device", "sriov_totalvfs", "enabled"]
    ),
    st.text(max_size=90),
)


@given(
    attributes=st.dictionaries(
        st.sampled_from(["kernel.version", "system.osrelease", "cpu.model", "cpu.pstate", "cpu.security"]), TEXTS
    ),
    devices=st.lists(TEXTS, max_size=4),
    flags=st.frozensets(st.text(max_size=70)),
)
def test_every_label_is_legal(attributes, devices, flags):
    named = [{"class": "0300", "vendor": "10de", **one} for one in devices]
    found = plan(FeatureSet(attributes=attributes, instances={"pci.device": named}, flags={"cpu.cpuid": flags}))
    assert all(LEGAL.fullmatch(value) for value in found.values())
    assert all(LEGAL.fullmatch(key.removeprefix(names.NFD_PREFIX)) for key in found)
