"""Device plugins that run without an operator, and configurations that they do not read.

The plugin reads a file, which ``--config-file`` or ``CONFIG_FILE`` names; its Helm chart mounts the ConfigMap at
/config. A ConfigMap given as variables (``envFrom``), or one that nothing mounts, has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kgpu.base.plain import items, mapping, text
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching
from kgpu.doctor.kinds import Container, containers_of, mounted_config_maps
from kgpu.doctor.model import LIKELY, Evidence, Finding
from kgpu.doctor.objects import Obj, at, plain
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.stack_config import SharingConfig, sharing_configs


def unread(snapshot: Snapshot, hurt: tuple[str, ...]) -> Iterator[Finding]:
    """TS-04 without an operator. ``hurt``: the pods for which there would be room if GPUs were shared."""
    if not hurt or any(True for _ in snapshot.all("ClusterPolicy")):
        return
    for daemons in matching.daemon_sets_of_part(snapshot, matching.PLUGIN, vendor=matching.NVIDIA):
        configs = [config for config in sharing_configs(snapshot) if config.source.namespace == daemons.namespace]
        mounted = mounted_config_maps(daemons, "spec.template.spec")
        if not configs or any(config.source.name in mounted for config in configs):
            continue
        yield _finding(snapshot, daemons, configs[0], hurt)
        return


def _finding(snapshot: Snapshot, daemons: Obj, config: SharingConfig, hurt: tuple[str, ...]) -> Finding:
    as_variables = _from(daemons, config.source.name)
    how = "is given to it as variables (envFrom), which it does not read" if as_variables else "is not mounted into it"
    kind = "timeSlicing" if config.block("timeSlicing") else "mps"
    name, key, space = plain(config.source.name), plain(config.key), plain(daemons.namespace)
    return Finding(
        subject=daemons.subject,
        cause=(
            f"{config.source} configures sharing, and {how}: {daemons} takes its configuration from a file, which "
            "CONFIG_FILE or --config-file names"
        ),
        evidence=(
            config.cite(kind),
            *(as_variables or (daemons.cite("spec.template.spec.volumes"),)),
            *_runs_with(snapshot, daemons),
        ),
        remedy=(
            Remedy(
                "mount ConfigMap {} at /config in {}, and set CONFIG_FILE=/config/{} in its env", name, daemons, key
            ),
            Remedy("or install it by its chart:"),
            Remedy(
                "helm upgrade -i nvdp nvdp/nvidia-device-plugin -n {} --set config.name={} --set config.default={}",
                space,
                name,
                key,
            ),
        ),
        confidence=LIKELY,
        pods=hurt,
    )


def _containers(daemons: Obj) -> Iterable[Container]:
    return containers_of(daemons, "spec.template.spec", "")


def _from(daemons: Obj, name: str) -> tuple[Evidence, ...]:
    """Where a ConfigMap's keys are made variables."""
    return tuple(
        Evidence(str(daemons), f"container {one.name}, envFrom[{position}].configMapRef.name", name, daemons.source)
        for one in _containers(daemons)
        for position, row in enumerate(items(at(one.spec, "envFrom")))
        if text(mapping(mapping(row).get("configMapRef")).get("name")) == name
    )[:1]


def _runs_with(snapshot: Snapshot, daemons: Obj) -> tuple[Evidence, ...]:
    """The plugin's own print of what it runs with, where its log is there."""
    for pod in snapshot.pods_of(daemons):
        for log in snapshot.logs_of(pod):
            found = next((at for at, line in enumerate(log.lines) if '"timeSlicing"' in line or '"mps"' in line), None)
            if found is not None:
                return (log.cite(found),)
    return ()
