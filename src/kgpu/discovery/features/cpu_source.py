"""The features ``cpu.*``: from /proc/cpuinfo and sysfs, and from the CPUID instruction what only that tells."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kgpu.discovery.features.cpu import cpuid_names, rdt_names, vendor_name
from kgpu.discovery.features.cpuid import AVX10, VERSION, avx10_version, hypervisor, leaves
from kgpu.discovery.features.host_tree import HostTree, count, number, pairs, text
from kgpu.discovery.features.model import FeatureSet

CPUS: Final = "sys/devices/system/cpu"
_YES: Final = frozenset({"Y", "1"})
_KVM: Final = {
    "tdx.enabled": "sys/module/kvm_intel/parameters/tdx",
    "sev.enabled": "sys/module/kvm_amd/parameters/sev",
    "sev.es.enabled": "sys/module/kvm_amd/parameters/sev_es",
    "sev.snp.enabled": "sys/module/kvm_amd/parameters/sev_snp",
    "se.enabled": "sys/firmware/uv/prot_virt_host",
}
_KEYS: Final = {"sgx_epc": "sgx.epc", "tdx": "tdx.total_keys", "sev": "sev.asids", "sev_es": "sev.encrypted_state_ids"}
_GZIP: Final = "sys/devices/vio/ibm,compression-v1/nx_gzip_caps"
_BOOL: Final = {True: "true", False: "false"}


def cpu_features(host: HostTree) -> FeatureSet:
    """All of them; a feature without elements is left out, but for the flags of the processor."""
    info = parse_cpuinfo(host.proc_text("cpuinfo"))
    flags = frozenset((info.get("flags", "") or info.get("Features", "")).split())
    read = leaves(host)
    avx10 = avx10_version(read) if flags else 0
    found: Mapping[str, Mapping[str, str]] = {
        "cpu.model": _model(info, hypervisor(host, flags, read)),
        "cpu.cpuid": {VERSION: str(avx10)} if avx10 else {},
        "cpu.pstate": _pstate(host),
        "cpu.cstate": _cstate(host),
        "cpu.security": dict(_security(host, flags)),
        "cpu.sst": _sst(host),
        "cpu.topology": _topology(host),
        "cpu.coprocessor": {"nx_gzip": "true"} if os.path.exists(host.root / _GZIP) else {},
        "cpu.rdt": _closids(host),
    }  # fmt: skip
    names = cpuid_names(flags) | ({AVX10} if avx10 else frozenset())
    known = {"cpu.cpuid": names, "cpu.rdt": rdt_names(flags)} if flags else {}
    return FeatureSet(flags=known, attributes={name: values for name, values in found.items() if values})


def parse_cpuinfo(content: str) -> dict[str, str]:
    """The lines of the first processor in ``/proc/cpuinfo``."""
    return dict(pairs(content.split("\n\n", 1)[0], ":"))


def _model(info: Mapping[str, str], above: str) -> Mapping[str, str]:
    model = {
        "vendor_id": vendor_name(info.get("vendor_id", "") or info.get("CPU implementer", "")),
        "family": info.get("cpu family", ""),
        "id": info.get("model", ""),
        "hypervisor": above,
    }
    return {key: value for key, value in model.items() if value}


def _pstate(host: HostTree) -> Mapping[str, str]:
    status = host.text(f"{CPUS}/intel_pstate/status")
    if status in {"", "off"}:
        return {}
    turbo = {"0": "true", "1": "false"}.get(host.text(f"{CPUS}/intel_pstate/no_turbo"), "")
    governor = _of_all(host, "cpufreq/scaling_governor") if status == "active" else ""
    values = {"status": status, "turbo": turbo, "scaling_governor": governor}
    return {key: value for key, value in values.items() if value}


def _cstate(host: HostTree) -> Mapping[str, str]:
    deepest = host.text("sys/module/intel_idle/parameters/max_cstate")
    if host.text(f"{CPUS}/cpuidle/current_driver") != "intel_idle" or not deepest.isdecimal():
        return {}
    return {"enabled": _BOOL[number(deepest) > 0]}


def _security(host: HostTree, flags: frozenset[str]) -> Iterator[tuple[str, str]]:
    if "sgx" in flags:
        yield "sgx.enabled", "true"
    if "tdx_guest" in flags:
        yield "tdx.protected", "true"
    for name, path in _KVM.items():
        if host.text(path) in _YES:
            yield name, "true"
    capacity = pairs(host.text("sys/fs/cgroup/misc.capacity"), " ")
    yield from ((name, capacity[key]) for key, name in _KEYS.items() if number(capacity.get(key, "")))


def _sst(host: HostTree) -> Mapping[str, str]:
    """Speed Select base frequency: some cores are guaranteed more than others."""
    found = {text(cpu / "cpufreq/base_frequency") for cpu in _cpus(host)} - {""}
    return {"bf.enabled": "true"} if len(found) > 1 else {}


def _topology(host: HostTree) -> Mapping[str, str]:
    cpus = _cpus(host)
    siblings = [text(cpu / "topology/thread_siblings_list") for cpu in cpus]
    sockets = {text(cpu / "topology/physical_package_id") for cpu in cpus} - {""}
    found = {"hardware_multithreading": _BOOL[any(count(one) > 1 for one in siblings)]} if any(siblings) else {}
    return {**found, **({"socket_count": str(len(sockets))} if sockets else {})}


def _closids(host: HostTree) -> Mapping[str, str]:
    found = host.text("sys/fs/resctrl/info/L3/num_closids")
    return {"RDTL3CA_NUM_CLOSID": found} if number(found) else {}


def _of_all(host: HostTree, name: str) -> str:
    """What all processors have; "" where they differ."""
    found = {text(cpu / name) for cpu in _cpus(host)}
    return found.pop() if len(found) == 1 else ""


def _cpus(host: HostTree) -> list[Path]:
    return [one for one in host.folders(CPUS) if one.name.startswith("cpu") and one.name[3:].isdecimal()]
