"""The file os-release of a Linux system."""

from __future__ import annotations


def parse_os_release(content: str) -> dict[str, str]:
    """Keys and values of an os-release file, quotes and backslashes taken off."""
    fields: dict[str, str] = {}
    for line in content.splitlines():
        key, equals, value = line.strip().partition("=")
        if not equals or key.startswith("#"):
            continue
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        fields[key.strip()] = value.replace("\\", "")
    return fields
