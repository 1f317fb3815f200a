"""The replaced plugin's config manager: keeps a link to the config file that the Node's label chooses.

It runs beside any device plugin or feature discovery that reads the link. The files are those of a mounted ConfigMap,
and a signal tells the program of a change. Promises: nothing is chosen before the Node is known; the link is replaced
atomically; a label that names no file changes nothing and is reported; a file that changes under the same name counts
as a change. Only names in the folder can be chosen, so no label leads out of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.errors import HostError, UserError
from kgpu.base.inotify import CONTENT, Inotify, homes
from kgpu.base.service import Complaint, running
from kgpu.base.waits import first_of
from kgpu.formats.config_choice import REFUSED, Fallback, choose
from kgpu.formats.names import DEVICE_PLUGIN_CONFIG_LABEL
from kgpu.host import processes
from kgpu.kube.informer import Informer, Scope
from kgpu.kube.node_config import label_value, labels_only
from kgpu.kube.port import NODES, KubeApi, Selector

NOTHING: Final = Path("/dev/null")
"""The link's target if no config is chosen: an empty file means all defaults."""
POLL_SECONDS: Final = 5.0
MAX_BYTES: Final = 1 << 20  # what a ConfigMap can hold


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigManagerSettings:
    """``source`` is the folder of config files, ``target`` the link. ``signal`` is None to send none."""

    node: str
    label: str = DEVICE_PLUGIN_CONFIG_LABEL
    source: Path
    target: Path
    default: str = ""
    fallbacks: Sequence[Fallback] = ()
    signal: int | None = signal.SIGHUP
    process: str = "nvidia-device-plugin"


class ConfigManager:
    """The link and the digest of the text that it led to."""

    def __init__(self, settings: ConfigManagerSettings, report: AdviceSink) -> None:
        self._settings = settings
        self._report = report
        self._known: bytes | None = None  # digest of the text behind the link, None before the first look
        self._complaint = Complaint(report, subject=str(settings.target), reason=REFUSED)

    def apply(self, label: str) -> None:
        """Update the link for the label's value ("" without one), and signal the process if link or text changed.

        Raises ConfigError if nothing can be chosen, HostError if the files or the link can't be used.
        """
        settings = self._settings
        chosen = choose(
            _files(settings.source), label=label, default=settings.default, fallbacks=settings.fallbacks,
            label_name=settings.label,
        )  # fmt: skip
        leads_to = NOTHING if chosen is None else settings.source / chosen
        text = _digest(leads_to)
        moved = _link(settings.target, leads_to)
        changed = self._known is not None and self._known != text
        self._known = text
        self._complaint.over()
        if not moved and not changed:
            return
        name = "the empty config" if chosen is None else f"the config {chosen}"
        why = f"the node label {settings.label} is {label}" if label else "the node has no label that names one"
        self._report(
            Advice(
                subject=str(settings.target),
                what=f"{settings.target} is {name}" if moved else f"{name} has changed",
                why=why if moved else f"{leads_to} was changed",
                reason="ConfigChosen",
            )
        )
        if settings.signal is not None:
            self._signal(settings.signal)

    def problem(self, error: UserError, reason: str = REFUSED) -> None:
        """Report once what keeps the link from being updated."""
        self._complaint.of(error, reason=reason)

    def _signal(self, number: int) -> None:
        name = self._settings.process
        try:
            signalled = processes.tell(processes.named(name), number, name)
            why = "" if signalled else f"no process of this pod is called {name}"
        except OSError as error:
            signalled, why = (), f"{name} can't be told: {error.strerror}"
        if signalled:
            pids = ", ".join(map(str, signalled))
            what = f"signal {number} was sent to {name} ({pids})"
            self._report(Advice(subject=name, what=what, why="its config has changed", reason="ProcessTold"))
            return
        self._report(
            Advice(
                subject=name,
                what=f"signal {number} was not sent",
                why=why,
                severity=Severity.WARNING,
                remedy="a program that starts later reads the new config; set shareProcessNamespace: true in the pod, "
                "and --process-to-signal (PROCESS_TO_SIGNAL) to the program's name, for one that runs",
                reason="ProcessNotTold",
            )
        )


async def run(manager: ConfigManager, settings: ConfigManagerSettings, api: KubeApi, *, once: bool) -> None:
    """Follow the Node and the files until cancelled; with ``once``, only until the link is right, and raising
    UserError.
    """
    informer = Informer(api, Scope(NODES, selector=Selector.named(settings.node)), project=labels_only)
    async with running(informer=informer.run()), Inotify() as inotify:
        while True:
            revision = informer.revision
            inotify.watch(homes(settings.source / "..data", settings.source / "file", settings.target), CONTENT)
            if informer.synced.is_set():
                try:
                    manager.apply(label_value(informer, settings.node, settings.label))
                except UserError as error:
                    if once:
                        raise
                    manager.problem(error)
                if once:
                    return
            elif informer.error is not None:
                manager.problem(informer.error, "NodeUnknown")
            await first_of(informer.changed(revision), inotify.wait(POLL_SECONDS))


def _files(folder: Path) -> list[str]:
    """Names of the config files; a mounted ConfigMap also has folders and links to them. Raises HostError."""
    try:
        return [name for name in os.listdir(folder) if not (folder / name).is_dir()]
    except OSError as error:
        raise HostError(
            f"can't read the folder {folder}: {error.strerror}",
            "a folder with one file per config, such as a mounted ConfigMap",
            "correct --config-file-srcdir (CONFIG_FILE_SRCDIR), or mount the ConfigMap there",
        ) from error


def _digest(path: Path) -> bytes:
    """The SHA-256 digest of a file's text. Raises HostError."""
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise HostError(
            f"can't read the config {path}: {error.strerror}",
            "a file that this user may read",
            "correct its permissions",
        ) from error
    return hashlib.sha256(raw).digest()


def _link(target: Path, leads_to: Path) -> bool:
    """Make ``target`` a link to ``leads_to`` atomically; False if it already is. Raises HostError."""
    try:
        with contextlib.suppress(FileNotFoundError):
            if target.samefile(leads_to):
                return False
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            link = Path(folder, target.name)
            link.symlink_to(leads_to)
            link.replace(target)
        return True
    except OSError as error:
        raise HostError(
            f"can't make {target} a link to {leads_to}: {error.strerror}",
            "a path in a folder that is there and can be written, such as an emptyDir",
            "correct --config-file-dst (CONFIG_FILE_DST), or mount a volume there",
        ) from error
