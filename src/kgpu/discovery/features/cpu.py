"""Maps the kernel's names for processors to labels: vendors, and the features that are labelled.

The names are those of node feature discovery's CPU library. What is labelled of them is up to the settings: by default
not what every server has (SSE and the like).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

# /proc/cpuinfo: vendor_id on x86, "CPU implementer" on ARM.
VENDORS: Final[Mapping[str, str]] = {
    "GenuineIntel": "Intel",
    "AuthenticAMD": "AMD",
    "HygonGenuine": "Hygon",
    "CentaurHauls": "VIA",
    "0x41": "ARM",
    "0x42": "Broadcom",
    "0x43": "Cavium",
    "0x46": "Fujitsu",
    "0x4e": "NVIDIA",
    "0x50": "AMCC",
    "0x51": "Qualcomm",
    "0x56": "Marvell",
    "0x69": "Intel",
    "0xc0": "Ampere",
}

# Flags in /proc/cpuinfo -> names in labels, if they are not just the flag in capitals.
_RENAMED: Final[Mapping[str, str]] = {
    "aes": "AESNI", "amx_bf16": "AMXBF16", "amx_fp16": "AMXFP16", "amx_int8": "AMXINT8", "amx_tile": "AMXTILE",
    "avx512_bf16": "AVX512BF16", "avx512_bitalg": "AVX512BITALG", "avx512_fp16": "AVX512FP16",
    "avx512ifma": "AVX512IFMA", "avx512_vbmi2": "AVX512VBMI2", "avx512_vnni": "AVX512VNNI",
    "avx512_vp2intersect": "AVX512VP2INTERSECT", "avx512_vpopcntdq": "AVX512VPOPCNTDQ", "avx_ifma": "AVXIFMA",
    "avx_vnni": "AVXVNNI", "cx8": "CMPXCHG8", "fma": "FMA3", "fpu": "X87", "fxsr_opt": "FXSROPT", "lahf_lm": "LAHF",
    "abm": "LZCNT", "ht": "HTT", "pclmulqdq": "CLMUL", "pni": "SSE3", "sgx_lc": "SGXLC", "sse4_1": "SSE4",
    "sse4_2": "SSE42", "movdir64b": "MOVDIR64B", "movdiri": "MOVDIRI", "sep": "SYSEE", "sha_ni": "SHA",
}  # fmt: skip
_SAME: Final = frozenset({
    "adx", "avx", "avx2", "avx512bw", "avx512cd", "avx512dq", "avx512er", "avx512f", "avx512pf", "avx512vbmi",
    "avx512vl", "bmi1", "bmi2", "cldemote", "clzero", "cmov", "cx16", "enqcmd", "erms", "f16c", "fma4", "fsrm", "fxsr",
    "gfni", "hle", "hypervisor", "ibpb", "ibs", "mmx", "mmxext", "movbe", "mpx", "nx", "osxsave", "popcnt", "rdrand",
    "rdseed", "rdtscp", "rtm", "serialize", "sgx", "sse", "sse2", "sse4a", "ssse3", "stibp", "svm", "syscall", "tbm",
    "tdx_guest", "topoext", "vaes", "vmx", "vpclmulqdq", "vte", "waitpkg", "wbnoinvd", "xop", "xsave", "xsavec",
    "xsaveopt", "xsaves",
})  # fmt: skip
# The levels of the x86-64 psABI: flags of each, beside those of the level below.
_LEVELS: Final = (
    ("cmov", "cx8", "fpu", "fxsr", "mmx", "syscall", "sse", "sse2"),
    ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"),
    ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"),
    ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
)
_RDT: Final[Mapping[str, str]] = {
    "cqm": "RDTMON", "cqm_occup_llc": "RDTCMT", "cqm_mbm_total": "RDTMBM", "cqm_mbm_local": "RDTMBM",
    "cat_l3": "RDTL3CA", "cat_l2": "RDTL2CA", "mba": "RDTMBA",
}  # fmt: skip
# ARM, from the line "Features"; others are rare or not useful.
_ARM: Final = frozenset({
    "aes", "asimd", "asimddp", "asimdfhm", "asimdhp", "asimdrdm", "atomics", "bf16", "cpuid", "crc32", "dcpop",
    "dcpodp", "dit", "evtstrm", "fcma", "flagm", "fp", "fphp", "i8mm", "jscvt", "lrcpc", "paca", "pacg", "pmull", "rng",
    "sb", "sha1", "sha2", "sha3", "sha512", "sm3", "sm4", "ssbs", "sve", "sve2", "svebf16", "svei8mm",
})  # fmt: skip


def vendor_name(vendor: str) -> str:
    """The vendor's name in labels; "" for an unknown one."""
    return VENDORS.get(vendor, "")


def cpuid_names(flags: AbstractSet[str]) -> frozenset[str]:
    """The features by name, from the kernel's flags of either architecture."""
    if "asimd" in flags:
        return frozenset(flag.upper() for flag in flags & _ARM)
    names = {flag.upper() for flag in flags & _SAME} | {_RENAMED[flag] for flag in flags & _RENAMED.keys()}
    for level, needed in enumerate(_LEVELS, 1):
        if not flags >= set(needed):
            break
        names.add(f"X86_64_V{level}")
    return frozenset(names)


def rdt_names(flags: AbstractSet[str]) -> frozenset[str]:
    """What the processor can do to monitor and share caches and memory bandwidth."""
    return frozenset(_RDT[flag] for flag in flags & _RDT.keys())
