"""Reads a node: its features from every source that is asked for, and the labels that come of them.

Promises: nothing on the node makes it fail but a PCI bus that may not be entered; a config, feature file or rule that
can't be used is told of, and all else counts. Rules that the worker's config or the folder ``custom.d`` brings are
carried out here, on this node's features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from kgpu.base.errors import HostError, UserError
from kgpu.discovery.features.cpu_source import cpu_features
from kgpu.discovery.features.device_sources import (
    network_features,
    pci_features,
    pci_names,
    storage_features,
    usb_features,
)
from kgpu.discovery.features.host_tree import HostTree, folders
from kgpu.discovery.features.kernel_source import kernel_features
from kgpu.discovery.features.local_source import now as present
from kgpu.discovery.features.local_source import read_feature_files, signature
from kgpu.discovery.features.model import FeatureSet, merged
from kgpu.discovery.features.plan import ACCELERATORS, is_legal, plan
from kgpu.discovery.features.system_sources import fake_features, memory_features, system_features
from kgpu.discovery.features.worker_settings import FILE, MAX_FILE, WorkerSettings
from kgpu.formats.names import ENV_FEATURES_CONFIG, NFD_FOLDER, NFD_PREFIX
from kgpu.host.bounded import read_regular

CUSTOM: Final = f"{NFD_FOLDER}/custom.d".lstrip("/")
MAX_CUSTOM: Final = 64
MAX_LABELS: Final = 500
"""Of feature files, and of a node's rules."""
_HOST: Final[Mapping[str, Callable[[HostTree], FeatureSet]]] = {
    "cpu": cpu_features, "usb": usb_features, "storage": storage_features, "network": network_features,
    "memory": memory_features,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadNode:
    """What a node has, the labels that it is to have, and what could not be used. ``interval``: seconds until it is to
    be read again without a cause, None for the usual ones.
    """

    features: FeatureSet = FeatureSet()  # noqa: RUF009 - it is frozen
    labels: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[UserError, ...] = ()
    interval: float | None = None


def read_node(
    roots: Sequence[Path],
    *,
    node_name: str = "",
    config: Path | None = None,
    cluster_config: str = "",
    now: datetime | None = None,
) -> ReadNode:
    """Read all, which takes tens of milliseconds. ``config`` is another config file than the host's own, and
    ``cluster_config`` the text that counts on hosts without one.

    With several roots, PCI devices are read from each that has its own PCI bus (the host's, and that of a simulated
    driver root); everything else comes from the first. Raises HostError for a PCI bus that may not be entered.
    """
    host = HostTree(roots[0])
    settings, notes = read_settings(host, config, cluster_config)
    found = [reader(host) for source, reader in _HOST.items() if settings.finds(source)]
    if settings.finds("pci"):
        found.append(pci_features(roots))
    if settings.finds("kernel"):
        found.append(kernel_features(host, settings.kernel_config_file))
    if settings.finds("system"):
        found.append(system_features(host, node_name))
    if settings.finds("fake"):
        found.append(fake_features())
    local = read_feature_files(host, now or present()) if settings.finds("local") else None
    if local is not None:
        found.append(local.as_features())
        notes += local.notes
    features = merged(found)
    labels = plan(features, settings)
    rules = _custom_rules(host, settings, notes) if settings.labels("custom") else []
    if rules:
        labels |= _limited(_by_rules(rules, features, notes), "rules", notes)
    if local is not None and settings.labels("local"):
        own = {key if "/" in key else NFD_PREFIX + key: value for key, value in local.labels.items()}
        labels |= _limited(own, "feature files", notes)
    return ReadNode(
        features=features.only(settings.publishes) if settings.unpublished else features,
        labels=_published(labels, settings, notes),
        notes=tuple(notes),
        interval=settings.interval,
    )


def read_settings(
    host: HostTree, config: Path | None = None, cluster_config: str = ""
) -> tuple[WorkerSettings, list[UserError]]:
    """The worker's config: the host's file, else the cluster's, else the defaults. A file that was named has to be
    there: HostError.
    """
    path = config or host.root / FILE
    source = str(path)
    try:
        content, _ = read_regular(path, MAX_FILE, what="a worker's config file")
    except HostError as error:
        if config is not None:
            raise
        if not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return WorkerSettings(), [error]
        if not cluster_config:
            return WorkerSettings(), []
        content, source = cluster_config.encode(), ENV_FEATURES_CONFIG
    # YAML is read only where there is a config.
    from kgpu.discovery.features.config import read_worker_config

    settings = read_worker_config(content, source)
    return settings, list(settings.notes)


def changes(roots: Sequence[Path]) -> frozenset[str]:
    """What differs whenever PCI devices, feature files, rules or the config have changed; read cheaply."""
    host = HostTree(roots[0]) if roots else None
    if host is None:
        return frozenset()
    watched = [host.root / FILE, *folders(host.root / CUSTOM)[:MAX_CUSTOM]]
    stamps = {f"{path}:{about.st_mtime_ns}" for path in watched if (about := _stat(path)) is not None}
    return pci_names(roots) | frozenset(signature(host)) | stamps


def _stat(path: Path) -> Any:
    try:
        return path.stat()
    except OSError:
        return None


def _custom_rules(host: HostTree, settings: WorkerSettings, notes: list[UserError]) -> list[tuple[str, list[Any]]]:
    """Lists of rules with the place that they are from: the config's, then those of files."""
    found: list[tuple[str, list[Any]]] = [("sources.custom", list(settings.custom))] if settings.custom else []
    for path in folders(host.root / CUSTOM)[:MAX_CUSTOM]:
        inside = folders(path)[:MAX_CUSTOM] if path.is_dir() else [path]
        for file in inside:
            if not file.name.startswith(".") and not path.name.startswith(".") and not file.is_dir():
                found += _rules_of(file, notes)
    return found


def _rules_of(file: Path, notes: list[UserError]) -> list[tuple[str, list[Any]]]:
    from kgpu.formats import yaml

    try:
        content, _ = read_regular(file, MAX_FILE, what="a file of rules")
        value = yaml.load(content, source=str(file))
    except UserError as error:
        notes.append(error)
        return []
    if isinstance(value, list):
        return [(str(file), value)]
    notes.append(HostError(f"{file} is no list of rules", "a list", "put a - before each rule"))
    return []


def _by_rules(rules: list[tuple[str, list[Any]]], features: FeatureSet, notes: list[UserError]) -> Mapping[str, str]:
    # The engine is loaded only where there are rules.
    from kgpu.discovery.rules.local_rules import labels_of

    return labels_of(rules, features, notes)


def _published(labels: Mapping[str, str], settings: WorkerSettings, notes: list[UserError]) -> dict[str, str]:
    """The labels that are legal and allowed, sorted. Of other domains none: an agent may not give its Node any."""
    allowed = _filter(settings, notes)
    own = {key.removeprefix(NFD_PREFIX): value for key, value in sorted(labels.items()) if key.startswith(NFD_PREFIX)}
    legal = {name: value for name, value in own.items() if is_legal(name, value)}
    _tell(notes, [key for key in labels if not key.startswith(NFD_PREFIX)], f"labels of {NFD_PREFIX.rstrip('/')} alone",
          "let the program that left them write them itself")  # fmt: skip
    _tell(notes, [name for name in own if name not in legal],
          "at most 63 letters, digits, - _ and . in name and value", "correct them")  # fmt: skip
    chosen = {NFD_PREFIX + name: (value, allowed(name)) for name, value in legal.items()}
    return {key: value for key, (value, wanted) in chosen.items() if wanted or key in ACCELERATORS}


def _tell(notes: list[UserError], keys: list[str], expected: str, remedy: str) -> None:
    if keys:
        more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        notes.append(HostError(f"the label {keys[0][:100]}{more} of a node's own files is not set", expected, remedy))


def _limited(labels: Mapping[str, str], whose: str, notes: list[UserError]) -> dict[str, str]:
    """As many labels as a Node bears: the API server would refuse all of them together."""
    if len(labels) > MAX_LABELS:
        notes.append(
            HostError(f"the node's {whose} give {len(labels)} labels", f"at most {MAX_LABELS}", "leave some out")
        )
    return dict(sorted(labels.items())[:MAX_LABELS])


def _filter(settings: WorkerSettings, notes: list[UserError]) -> Callable[[str], bool]:
    if not settings.label_pattern:
        return lambda _name: True
    from kgpu.discovery.rules.patterns import PatternError, finds, pattern

    try:
        pattern(settings.label_pattern)
    except PatternError as error:
        notes.append(error)
        return lambda _name: True
    return lambda name: finds(settings.label_pattern, name)
