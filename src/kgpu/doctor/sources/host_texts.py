"""What somebody has copied from a node: its kernel's log (dmesg, journal), nvidia-smi, nvidia-bug-report.log.

Which node it is of the text says itself (the journal's host, the report's uname), or the file's path, in which a node's
name stands; else it is of the only GPU node that there is. All of one node's texts are one host; facts that the node's
agent has told, or ``--host`` has seen, are not touched.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final

import msgspec

from kgpu.doctor import host_facts, matching, secrets
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources import printed, smi, wrapped_lines

_KERNEL: Final = re.compile(
    rb"\bNVRM: |\bnouveau\b.*: |\bnvidia[\w-]*: (?:loading|module|disagrees|Unknown symbol)|\bamdgpu\b.*: "
    rb"|\bLockdown: \S+: unsigned module"
)
_TIMES: Final = re.compile(rb" kernel: |^(?:<\d+>)?\[ *\d+\.\d+\]", re.MULTILINE)
_NAMED: Final = re.compile(r"(?:^|/)(?:nvidia-bug-report|dmesg)[^/]*$|\.dmesg$")
"""Names of which the content is a node's own, whatever it says."""
_OWN: Final = re.compile(
    r"(?:^|/)(?:nvidia-bug-report|dmesg|kern\.log|journal(?:ctl)?(?![a-z]))[^/]*$"
    r"|(?:^|/)(?:messages|syslog)(?:[.-]\d+)?$|\.dmesg$"
    r"|(?:^|[^A-Za-z]|nv)smi(?![A-Za-z])[^/]*$|(?:^|/)(?:nodes|hosts)/[a-z0-9][a-z0-9.-]*/"
)
"""Names and places that say that a text is a node's own: what has another one a container may have printed."""
_SMI: Final = re.compile(
    rb"^\| NVIDIA-SMI \d|=NVSMI LOG=|^GPU \d+: .*\(UUID: GPU-|^Unable to determine the device handle for"
    rb"|^NVRM version: NVIDIA UNIX",
    re.MULTILINE,
)
_OF_SMI: Final = re.compile(r"smi|nvidia-bug-report", re.IGNORECASE)
"""Names of which a refusal of nvidia-smi is the node's own: elsewhere a container may have printed it."""
_REFUSALS: Final = ("nvmlError", "nvmlFault", "libraryVersion")
_HOST: Final = re.compile(
    r"^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) (?P<journal>[\w.-]+) kernel: "
    r"|^uname: Linux (?P<uname>[\w.-]+) ",
    re.MULTILINE,
)
_IN_PATH: Final = re.compile(
    r"(?:^|/)(?:nodes|hosts)/(?P<folder>[a-z0-9][a-z0-9.-]*)/"
    r"|(?:^|/)(?:nvidia-bug-report|dmesg)[_-](?P<file>[a-z0-9][a-z0-9.-]*?)(?:\.log|\.txt)?$"
    r"|(?:^|/)(?P<stem>[a-z0-9][a-z0-9.-]*)\.dmesg$"
)
_SAMPLE: Final = 16 * 1024 * 1024
_MAX_LINES: Final = 20_000
_MAX_LINE: Final = 2000


class HostTexts:
    """All of them."""

    def __init__(self) -> None:
        self._found: list[tuple[str, str]] = []

    def add(self, name: str, data: bytes) -> tuple[bool, bool]:
        """Whether a text is of a node, and whether it is its kernel's log."""
        kernel = bool(_NAMED.search(name) or _KERNEL.search(data, 0, _SAMPLE) or _is_wrapped(data))
        of_node = kernel or bool(_OF_SMI.search(os.path.basename(name)) or _SMI.search(data, 0, _SAMPLE))
        if of_node:
            self._found.append((name, data.decode("utf-8", "replace")))
        return of_node, kernel

    def finish(self, snapshot: Snapshot, *, trusted: bool = True) -> list[str]:
        """One host for each node. Gives the texts that do not count: anybody's of a node of which others tell.
        ``trusted``: none of them is anybody's.
        """
        own = {name for name, _ in self._found if trusted or _is_own(snapshot, name)}
        anybodys = [row for row in self._found if row[0] not in own]
        _put_all(snapshot, [row for row in self._found if row[0] in own])
        known = frozenset(snapshot.hosts)
        snapshot.texts |= {name for name, _ in anybodys}
        left = {name for name, text in anybodys if _node(snapshot, name, text) in known}
        _put_all(snapshot, [row for row in anybodys if row[0] not in left], unsure=True)
        return sorted(left)


def _is_wrapped(data: bytes) -> bool:
    """Whether a text is a kernel's log of which the very words that say so are broken."""
    if not _TIMES.search(data, 0, _SAMPLE):
        return False
    text = data[:_SAMPLE].decode("utf-8", "replace")
    return _KERNEL.search(wrapped_lines.joined(text).encode("utf-8", "replace")) is not None


def _is_own(snapshot: Snapshot, name: str) -> bool:
    """Whether a name says that a text is a node's own, and is not the name of a pod that says so."""
    base = os.path.basename(name)
    pods = (pod.name for pod in snapshot.pods.values() if pod.source not in snapshot.texts)
    return bool(_OWN.search(name)) and not any(pod in base and _OWN.search(pod) for pod in pods)


def _put_all(snapshot: Snapshot, rows: list[tuple[str, str]], *, unsure: bool = False) -> None:
    hosts: dict[str, dict[str, Any]] = {}
    files: dict[str, str] = {}
    for name, text in rows:
        node = _node(snapshot, name, text)
        said_in = {"saidIn": files.setdefault(node, name)} if unsure else {}
        _take(hosts.setdefault(node, said_in), name, text)
    for node, fields in hosts.items():
        _put(snapshot, node, fields, files.get(node, ""))


def _take(host: dict[str, Any], name: str, text: str) -> None:
    whole = wrapped_lines.joined(text)
    if _NAMED.search(name) or _KERNEL.search(whole.encode("utf-8", "replace")):
        told = secrets.lines(line[:_MAX_LINE] for line in whole.splitlines()[-_MAX_LINES:] if host_facts.matters(line))
        host["kernelLog"] = [*host.get("kernelLog", ()), *told]
    trusted = _OF_SMI.search(os.path.basename(name)) is not None
    for field, value in smi.read(text).items():
        if trusted or field not in _REFUSALS:
            host.setdefault(field, value)


def _put(snapshot: Snapshot, node: str, fields: dict[str, Any], name: str) -> None:
    """To what is known of a host only what it lacks is added."""
    document = {"kind": host_facts.KIND, "metadata": {"name": node}, **fields}
    known = snapshot.hosts.get(node)
    if known is None:
        snapshot.add(document, name)
        return
    snapshot.add({**document, **msgspec.to_builtins(known)}, name)


def _node(snapshot: Snapshot, name: str, text: str) -> str:
    """Whose text it is, NODE where nothing tells."""
    inside = [node for node in snapshot.nodes if node in name]
    if inside:
        return max(inside, key=len)
    host_match = _HOST.search(text) or _HOST.search(wrapped_lines.joined(text))
    host = (host_match["journal"] or host_match["uname"]) if host_match else ""
    if host:
        return next((node for node in snapshot.nodes if node.partition(".")[0] == host.partition(".")[0]), host)
    nodes = matching.gpu_nodes(snapshot) or list(snapshot.nodes.values())
    path = _IN_PATH.search(name)
    named = next((part for part in path.groups() if part), "") if path else ""
    if named and os.path.basename(name) != named:
        return named
    return nodes[0].name if len(nodes) == 1 else printed.NODE
