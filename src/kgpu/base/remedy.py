"""The doctor's remedies, step by step: kgpu's own words, with values put in.

The words are a template, written in kgpu's source and nowhere else. The values are what objects, logs and drivers say,
and may be anything: in a command each stays one word, or the part of one that it was put into. So nothing from outside
becomes a command, nor an option of one.
"""

from __future__ import annotations

import shlex
import string
from collections.abc import Iterator
from typing import Final, Self

PROGRAMS: Final = frozenset({
    "amd-smi", "apt", "apt-get", "apt-mark", "argo", "awk", "cat", "chmod", "chown", "containerd", "crictl", "ctr",
    "curl", "dcgmi", "df", "dkms", "dmesg", "docker", "du", "echo", "env", "ethtool", "fuser", "getenforce", "grep",
    "helm", "hl-smi", "ibstat", "ip", "journalctl", "jq", "kgpu", "kubeadm", "kubectl", "ldconfig", "ln", "ls", "lsmod",
    "lspci", "lsof", "mkdir", "mlxlink", "modinfo", "modprobe", "mokutil", "nerdctl", "numactl", "nvidia-ctk",
    "nvidia-modprobe", "nvidia-smi", "oc", "pip", "podman", "printf", "ps", "readlink", "reboot", "rm", "rmmod",
    "rocminfo", "rocm-smi", "sed", "setsebool", "sh", "show_gids", "skopeo", "ss", "stat", "subscription-manager",
    "sudo", "sysctl", "systemctl", "systemd-detect-virt", "tail", "tee", "timeout", "torchrun", "uname",
    "update-ca-certificates", "update-initramfs",
})  # fmt: skip
"""The programs that a command can begin with, apart from variables that are set for it."""

_COMMENT: Final = "#"


class Remedy(str):
    """One step: a sentence, or a command that can be pasted.

    ``Remedy("kubectl -n {} delete pod {}", namespace, name)``. Without values a template is taken as it is, braces and
    all. What a command has behind ``  # `` is a sentence about it. A value that is a ``Remedy`` goes in as it is.
    """

    __slots__ = ()

    def __new__(cls, template: str, /, *values: object, **named: object) -> Self:
        """``values`` go into ``{}``, ``named`` into ``{name}``. Raises KeyError or StopIteration for one that
        is missing, and ValueError for a place in double quotes.
        """
        if not values and not named:
            return str.__new__(cls, template)
        return str.__new__(cls, "".join(_filled(template, values, named)))

    @classmethod
    def again(cls, text: str) -> Self:
        """A step that was made here before, after it was cleaned or taken apart."""
        return str.__new__(cls, text)

    def why(self, sentence: str) -> Self:
        """The command with a sentence about it behind it: what it is for, or when it is right."""
        return str.__new__(type(self), f"{self}  # {sentence}")


def words(*values: object) -> Remedy:
    """Several words for one place of a command, each of them still one word there."""
    return Remedy.again(" ".join(_word(value, "") for value in values))


def is_command(text: str) -> bool:
    """Whether a step, or a template, is for a shell."""
    words = text.split()
    while words and words[0].partition("=")[0].isidentifier() and "=" in words[0]:
        words = words[1:]
    return bool(words) and words[0] in PROGRAMS


def _filled(template: str, values: tuple[object, ...], named: dict[str, object]) -> Iterator[str]:
    rest, within = iter(values), "" if is_command(template) else _COMMENT
    for literal, field, _, _ in string.Formatter().parse(template):
        yield literal
        within = _within(literal, within)
        if field is not None:
            yield _word(named[field] if field else next(rest), within)


def _within(literal: str, state: str) -> str:
    """What text stands in after a piece of a template: a quote, a comment, or "" for a bare word."""
    before, escaped = "", False
    for char in literal:
        if escaped:
            escaped = False
        elif state == _COMMENT:
            break
        elif char == "\\" and state != "'":
            escaped = True
        elif state:
            state = "" if char == state else state
        elif char in "'\"" or (char == _COMMENT and before in ("", " ")):
            state = char
        before = char
    return state


def _word(value: object, within: str) -> str:
    text = str(value)
    if isinstance(value, Remedy) or within == _COMMENT:
        return text
    if within == "'":
        return text.replace("'", "'\\''")
    if within == '"':
        raise ValueError("a value can't stand in double quotes, where a shell fills in more: use single ones")
    return shlex.quote(text)
