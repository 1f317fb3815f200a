"""Maps the kernel's names for processors to labels: vendors, and the features that are labelled.

The names are those of node feature discovery's CPU library; features that every server has (SSE and the like) are on
its default deny list and have no row here.
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
    "movdir64b": "MOVDIR64B", "movdiri": "MOVDIRI", "sep": "SYSEE", "sha_ni": "SHA",
}  # fmt: skip
_SAME: Final = frozenset({
    "adx", "avx", "avx2", "avx512bw", "avx512cd", "avx512dq", "avx512er", "avx512f", "avx512pf", "avx512vbmi",
    "avx512vl", "cldemote", "clzero", "enqcmd", "fma4", "fsrm", "fxsr", "gfni", "hle", "hypervisor", "ibpb", "ibs",
    "movbe", "mpx", "osxsave", "rtm", "serialize", "sse4a", "stibp", "svm", "syscall", "tbm", "topoext", "vaes", "vmx",
    "vpclmulqdq", "vte", "waitpkg", "wbnoinvd", "xop", "xsave", "xsavec", "xsaveopt", "xsaves",
})  # fmt: skip
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
    """The features to label, from the kernel's flags of either architecture."""
    if "asimd" in flags:
        return frozenset(flag.upper() for flag in flags & _ARM)
    return frozenset(flag.upper() for flag in flags & _SAME) | {_RENAMED[flag] for flag in flags & _RENAMED.keys()}
