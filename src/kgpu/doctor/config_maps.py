"""What goes into an archive of the data of ConfigMaps: what a rule reads, and of all others nothing but their keys.

A rule reads a ConfigMap because a ClusterPolicy names it, because a part of the GPU stack mounts it, or because it is
of a certain form: a plugin's or a MIG manager's configuration beside the stack, a job that scrapes GPU exporters, a
dashboard of their fields, kgpu's open breaker, a workflow of AMD's operator. Of jobs and dashboards only what rules
read is kept, as things of other teams stand beside it. tests/doctor/test_config_maps.py holds that an archive is judged
like its cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from kgpu.base.plain import items, mapping, text
from kgpu.doctor import matching, stack_config
from kgpu.doctor.kinds import mounted_config_maps
from kgpu.doctor.objects import Key, Obj, plain
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names, yaml

Texts: TypeAlias = dict[str, str]
"""By key of a ConfigMap's data."""

LEFT_OUT: Final = "<left out: no rule of kgpu doctor reads it>"
DATA: Final = "data"
_NAMED: Final = (
    ("spec.devicePlugin.config.name", matching.PLUGIN),
    ("spec.migManager.config.name", matching.MIG_MANAGER),
    ("spec.dcgmExporter.config.name", matching.EXPORTER),
)
"""The fields of a ClusterPolicy that rules follow, and the part that reads the ConfigMap."""
_MOUNTED_BY: Final = (
    matching.PLUGIN,
    matching.CONFIG_MANAGER,
    matching.MIG_MANAGER,
    matching.EXPORTER,
    matching.NFD_MASTER,
)
_USUAL_SPACES: Final = frozenset({"gpu-operator", "nvidia-gpu-operator", "nvidia-device-plugin"})
"""Where the stack is looked for when no pod of it is there."""
_EXPORTERS: Final = re.compile(r"dcgm|gpu[-_]metrics|:9400")
_JOB_FIELDS: Final = (
    "job_name", "scrape_interval", "honor_labels", "metrics_path",
    "static_configs", "relabel_configs", "metric_relabel_configs",
)  # fmt: skip
_FIELD: Final = re.compile(r"\bDCGM_(?:FI|EXP)_[A-Z0-9_]+")


def kept(snapshot: Snapshot) -> Mapping[Key, Texts]:
    """What stays of each ConfigMap of which anything stays."""
    return snapshot.once(_kept)


def shown(snapshot: Snapshot, obj: Obj) -> Mapping[str, Any]:
    """A ConfigMap as an archive has it: its metadata and keys, and the texts that stay."""
    if not obj.map(DATA):
        return obj.data
    texts = kept(snapshot).get(obj.key, {})
    return {**obj.data, DATA: {str(key): texts.get(str(key), LEFT_OUT) for key in obj.map(DATA)}}


def left_out(snapshot: Snapshot) -> int:
    """The number of ConfigMaps of whose data nothing stays."""
    return sum(bool(obj.map(DATA)) and obj.key not in kept(snapshot) for obj in snapshot.all("ConfigMap"))


def _kept(snapshot: Snapshot) -> dict[Key, Texts]:
    texts_by_map: dict[Key, Texts] = {}
    for row in _ROWS:
        for obj, texts in row(snapshot):
            if texts:  # what an earlier row keeps whole no later one cuts
                texts_by_map[obj.key] = texts | texts_by_map.get(obj.key, {})
    return texts_by_map


def _texts(obj: Obj) -> Iterator[tuple[str, str]]:
    return ((str(key), value) for key, value in obj.map(DATA).items() if isinstance(value, str))


def _named(snapshot: Snapshot) -> Iterator[tuple[Obj, Texts]]:
    rows = [(plain(policy.text(path)), part) for policy in snapshot.all("ClusterPolicy") for path, part in _NAMED]
    for name, part in (*rows, (stack_config.mig_config(snapshot).name, matching.MIG_MANAGER)):
        source = stack_config.named_map(snapshot, name, part) if name else None
        if source is not None:
            yield source, dict(_texts(source))


def _mounted(snapshot: Snapshot) -> Iterator[tuple[Obj, Texts]]:
    for part in _MOUNTED_BY:
        for pod in matching.pods_of_part(snapshot, part):
            for name in sorted(mounted_config_maps(pod)):
                source = snapshot.get("ConfigMap", name, pod.namespace)
                if source is not None:
                    yield source, dict(_texts(source))


def spaces(snapshot: Snapshot) -> frozenset[str]:
    """The namespaces in which parts of a GPU stack are."""
    pods = (pod for part in matching.PARTS for pod in matching.pods_of_part(snapshot, part.name))
    return _USUAL_SPACES | {pod.namespace for pod in pods}


def _beside_the_stack(snapshot: Snapshot) -> Iterator[tuple[Obj, Texts]]:
    stack_spaces = spaces(snapshot)
    for obj in snapshot.all("ConfigMap"):
        if obj.namespace in stack_spaces:
            yield obj, {key: value for key, value in _texts(obj) if _is_configuration(value)}


def _is_configuration(value: str) -> bool:
    """Whether it is a device plugin's with sharing, a MIG manager's, or that of nfd-master about taints."""
    if not any(word in value for word in ("sharing:", "mig-configs:", "enableTaints:")):
        return False
    tree = mapping(stack_config.parsed(value))
    return bool(mapping(tree.get("sharing")) or mapping(tree.get("mig-configs")) or "enableTaints" in tree)


def _scraped(snapshot: Snapshot) -> Iterator[tuple[Obj, Texts]]:
    stack_spaces = spaces(snapshot)
    jobs_by_map: dict[Key, tuple[Obj, dict[str, list[Any]]]] = {}
    for obj, key, job in stack_config.scrape_jobs(snapshot):
        targets = [mapping(row) for row in items(job.get("kubernetes_sd_configs"))]
        listed = [name for row in targets for name in items(mapping(row.get("namespaces")).get("names"))]
        lean = {field: job[field] for field in _JOB_FIELDS if field in job}
        if _EXPORTERS.search(str(lean)) or stack_spaces.intersection(map(text, listed)):
            discovered = [{field: row[field] for field in ("role", "namespaces") if field in row} for row in targets]
            lean |= {"kubernetes_sd_configs": discovered} if discovered else {}
            jobs_by_map.setdefault(obj.key, (obj, {}))[1].setdefault(key, []).append(lean)
    for obj, jobs in jobs_by_map.values():
        yield obj, {key: yaml.dump({"scrape_configs": rows}) for key, rows in jobs.items()}


def _dashboards(snapshot: Snapshot) -> Iterator[tuple[Obj, Texts]]:
    for obj in snapshot.all("ConfigMap"):
        if "grafana_dashboard" in obj.labels:
            fields = {key: " ".join(sorted(set(_FIELD.findall(value)))) for key, value in _texts(obj)}
            yield obj, {key: value for key, value in fields.items() if value}


def open_breakers(snapshot: Snapshot) -> Iterator[Obj]:
    """The ConfigMaps that say that kgpu does nothing more about verdicts; one of a tenant's says nothing."""
    stack_spaces = spaces(snapshot)
    for obj in snapshot.all("ConfigMap"):
        if obj.name == names.REMEDIATION_CONFIG_MAP and obj.namespace in stack_spaces:
            yield obj


def _breakers(snapshot: Snapshot) -> Iterator[tuple[Obj, Texts]]:
    return ((obj, dict(_texts(obj))) for obj in open_breakers(snapshot))


def _workflows(snapshot: Snapshot) -> Iterator[tuple[Obj, Texts]]:
    amd_spaces = {one.namespace for one in snapshot.all("DeviceConfig")}
    for obj in snapshot.all("ConfigMap"):
        if obj.namespace in amd_spaces:
            yield obj, {key: value for key, value in _texts(obj) if "nodeCondition:" in value}


_ROWS: Final[tuple[Callable[[Snapshot], Iterator[tuple[Obj, Texts]]], ...]] = (
    _named, _mounted, _beside_the_stack, _scraped, _dashboards, _breakers, _workflows,
)  # fmt: skip
