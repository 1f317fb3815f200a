"""The exporter's settings from flags and variables, by the tables of ``options.py``.

Precedence is the replaced exporter's: flag, then variable, then default. Names that mean something with DCGM only are
accepted with a note that says why they have no effect, so that manifests keep working. Unknown names, and those that
would change what is exported, are errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kgpu.base.advice import Advice
from kgpu.exporter.counters import CountedMetric, default_counters
from kgpu.exporter.devices import DeviceSelector
from kgpu.exporter.labels import PodLabels, Style
from kgpu.exporter.model import Generation
from kgpu.exporter.options import OPTIONS
from kgpu.exporter.readers import ListenAddress
from kgpu.exporter.settings import ExporterSettings, Pods, Virtual
from kgpu.formats import settings
from kgpu.formats.exporter_flags import REFUSED, WITHOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterOptions:
    """All options of the exporter. Times are seconds. ``without_effect`` are those that change nothing here.

    ``address_given``: the address was given explicitly. ``collectors_given``: the counters file was named explicitly,
    so it has to exist.
    """

    collectors: str
    address: ListenAddress
    interval: float
    kubernetes: bool
    old_namespace: bool
    cpu_devices: DeviceSelector
    config_map: tuple[str, str] | None
    pod_labels: bool
    pod_uid: bool
    gpu_id_type: str
    pod_label_allowed: PodLabels
    devices: DeviceSelector
    no_hostname: bool
    fake_gpus: bool
    web_config: str
    web_socket: bool
    xid_window: float
    clock_window: float
    dashes: bool
    debug: bool
    log_format: str
    pod_resources: str
    jobs_dir: str
    resources: frozenset[str]
    virtual_gpus: Virtual
    dra: bool
    own_metrics: bool
    write_timeout: float
    compat: tuple[Generation, ...]
    extra_fields: bool
    mig_copies: bool
    pods: Pods
    series_limit: int
    amd_config: str
    amd_health_socket: str
    gaudi_port: bool
    address_given: bool = False
    collectors_given: bool = False
    without_effect: tuple[Advice, ...] = ()

    def settings(self, *, hostname: str, counters: tuple[CountedMetric, ...] | None = None) -> ExporterSettings:
        """Return the plan's settings; ``counters`` None: the usual set. The first generation gives the labels."""
        style = Style(
            generation=self.compat[0],
            hostname="" if self.no_hostname else hostname,
            old_namespace=self.old_namespace,
            dashes=self.dashes,
        )
        return ExporterSettings(
            counters=default_counters(self.compat, extra=self.extra_fields) if counters is None else counters,
            style=style,
            devices=self.devices,
            cpus=self.cpu_devices,
            kubernetes=self.kubernetes,
            pods=self.pods,
            pod_uid=self.pod_uid,
            pod_labels=self.pod_label_allowed if self.pod_labels else None,
            virtual_gpus=self.virtual_gpus,
            resources=self.resources,
            mig_copies=self.mig_copies,
            own_metrics=self.own_metrics,
            series_limit=self.series_limit,
        )


def resolve(flags: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None) -> ExporterOptions:
    """Resolve the options. ``flags`` are by attribute, None and empty lists count as not given. Raises ConfigError."""
    flags, env = flags or {}, env or {}
    resolved = settings.resolve(OPTIONS, flags=flags, env=env)
    settings.refuse(REFUSED, flags=flags, env=env, among="the replaced exporter's other flags and variables")
    idle = tuple(settings.without_effect(WITHOUT, settings.resolve(WITHOUT, flags=flags, env=env)))
    return ExporterOptions(
        **resolved.values,
        address_given="address" in resolved.given,
        collectors_given="collectors" in resolved.given,
        without_effect=idle,
    )
