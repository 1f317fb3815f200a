"""The exporter's options as data: the replaced exporter's flags and variables, and kgpu's.

Those that do nothing here, or are refused, are in ``kgpu.formats.exporter_flags``.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kgpu.exporter.readers import (
    NO_CONFIG_MAP,
    one_of,
    read_address,
    read_allowed_labels,
    read_config_map,
    read_duration,
    read_generations,
    read_limit,
    read_milliseconds,
    read_names,
    read_pods,
    read_selector,
    read_virtual,
)
from kgpu.exporter.settings import SERIES_LIMIT
from kgpu.formats.names import ENV_CLAIMS_SHOWN, POD_RESOURCES_SOCKET, ROCM_HEALTH_SOCKET, ROCM_METRICS_CONFIG
from kgpu.formats.settings import FlagShape, Restart, Setting, read_text, switch

DEFAULT_FILE: Final = "/etc/dcgm-exporter/default-counters.csv"
_P: Final = "DCGM_EXPORTER_"
_K: Final = "KGPU_EXPORTER_"


def _switch(attr: str, flag: str, env: str, text: str, *aliases: str, default: str = "false") -> Setting:
    return switch(attr, flag, text, default=default, reads_default=True, envs=(env,), aliases=aliases)


_row = partial(Setting, reads_default=True)

OPTIONS: Final = (
    _row(attr="collectors", flag="--collectors", aliases=("-f",), envs=(f"{_P}COLLECTORS",), read=read_text,
         default=DEFAULT_FILE, help="The counters file: FIELD, type, help on each line.", restart=Restart.NONE),
    _row(attr="address", flag="--address", aliases=("-a",), envs=(f"{_P}LISTEN",), read=read_address,
         default=":9400", help="Where to listen."),
    _row(attr="interval", flag="--collect-interval", aliases=("-c",), envs=(f"{_P}INTERVAL",),
         read=read_milliseconds, default="30000", help="Time between readings, in milliseconds."),
    _switch("kubernetes", "--kubernetes", f"{_P}KUBERNETES", "Show which pods use which device.", "-k"),
    _switch("old_namespace", "--use-old-namespace", f"{_P}USE_OLD_NAMESPACE",
         "Labels uuid, pod_name, pod_namespace, container_name, as exporters before 2.0.", "-o"),
    _row(attr="cpu_devices", flag="--cpu-devices", aliases=("-p",), envs=(f"{_P}CPU_DEVICES_STR",),
         read=read_selector, default="f", help="Which CPUs to export."),
    _row(attr="config_map", flag="--configmap-data", aliases=("-m",), envs=(f"{_P}CONFIGMAP_DATA",),
         read=read_config_map, default=NO_CONFIG_MAP, help="A ConfigMap with counters, namespace:name.",
         restart=Restart.NONE),
    _switch("pod_labels", "--kubernetes-enable-pod-labels", f"{_P}KUBERNETES_ENABLE_POD_LABELS",
         "Add the pods' own labels."),
    _switch("pod_uid", "--kubernetes-enable-pod-uid", f"{_P}KUBERNETES_ENABLE_POD_UID", "Add pod_uid."),
    _row(attr="gpu_id_type", flag="--kubernetes-gpu-id-type", envs=(f"{_P}KUBERNETES_GPU_ID_TYPE",),
         read=one_of("uid", "device-name"), default="uid",
         help="How the device plugin names GPUs; every form is understood with either."),
    _row(attr="pod_label_allowed", flag="--kubernetes-pod-label-allowlist-regex",
         envs=(f"{_P}KUBERNETES_POD_LABEL_ALLOWLIST_REGEX",), read=read_allowed_labels, default="",
         help="Which of the pods' own labels to add, as regular expressions; none: all of them."),
    _row(attr="devices", flag="--devices", aliases=("-d",), envs=(f"{_P}DEVICES_STR",), read=read_selector,
         default="f", help="Which devices to export: f, g:0,2-3, i:0-6, or g:... and i:... joined with +."),
    _switch("no_hostname", "--no-hostname", f"{_P}NO_HOSTNAME", "Leave the hostname label out.", "-n"),
    _switch("fake_gpus", "--fake-gpus", f"{_P}USE_FAKE_GPUS", "Go on without any GPU."),
    _row(attr="web_config", flag="--web-config-file", envs=(f"{_P}WEB_CONFIG_FILE",), read=read_text, default="",
         help="TLS and basic auth, as Prometheus' web config files have them.", restart=Restart.NONE),
    _switch("web_socket", "--web-systemd-socket", f"{_P}SYSTEMD_SOCKET", "Listen on the socket that systemd gives."),
    _row(attr="xid_window", flag="--xid-count-window-size", aliases=("-x",), envs=(f"{_P}XID_COUNT_WINDOW_SIZE",),
         read=read_milliseconds, default="300000", help="Window in which Xids are counted, in milliseconds."),
    _row(attr="clock_window", flag="--clock-events-count-window-size", envs=(f"{_P}CLOCK_EVENTS_COUNT_WINDOW_SIZE",),
         read=read_milliseconds, default="300000",
         help="Window in which clock events are counted, in milliseconds."),
    _switch("dashes", "--replace-blanks-in-model-name", f"{_P}REPLACE_BLANKS_IN_MODEL_NAME",
         "Dashes for blanks in modelName.", "-rbmn"),
    _switch("debug", "--debug", f"{_P}DEBUG", "Log more."),
    _row(attr="log_format", flag="--log-format", envs=(f"{_P}LOG_FORMAT",), read=one_of("text", "json"),
         default="text", help="Log lines for people, or one JSON object per line."),
    _row(attr="pod_resources", flag="--pod-resources-kubelet-socket", envs=("DCGM_POD_RESOURCES_KUBELET_SOCKET",),
         read=read_text, default=POD_RESOURCES_SOCKET, help="Where the kubelet tells who holds what."),
    _row(attr="jobs_dir", flag="--hpc-job-mapping-dir", envs=("DCGM_HPC_JOB_MAPPING_DIR",), read=read_text,
         default="", help="Folder with a file of batch job ids per GPU."),
    _row(attr="resources", flag="--nvidia-resource-names", envs=("NVIDIA_RESOURCE_NAMES",), read=read_names,
         default="", help="Further resources that are GPUs."),
    _row(attr="virtual_gpus", flag="--kubernetes-virtual-gpus", envs=("KUBERNETES_VIRTUAL_GPUS",), read=read_virtual,
         default="auto", shape=FlagShape.SWITCH,
         help="A pod's series have what its own processes use, and vgpu, its share's number; auto: on GPUs that are "
         "offered in shares, true: on every GPU."),
    _switch("dra", "--kubernetes-enable-dra", ENV_CLAIMS_SHOWN, "Resolve the devices of resource claims."),
    _switch("own_metrics", "--enable-exporter-metrics", f"{_P}ENABLE_EXPORTER_METRICS",
         "Metrics about the exporter itself, kgpu_*.", default="true"),
    _row(attr="write_timeout", flag="--web-write-timeout", envs=(f"{_P}WEB_WRITE_TIMEOUT",), read=read_duration,
         default="30s", help="How long an answer may take."),
    _row(attr="compat", flag="--compat", envs=(f"{_K}COMPAT",), read=read_generations, default="b",
         help="Whose names and units: a (up to 4.8.2), b (4.8.3), c (from 4.9.0); two for a while: b,c."),
    _switch("extra_fields", "--extra-fields", f"{_K}EXTRA_FIELDS", "Add SM activity and Xid counts to the usual set.",
         default="true"),
    _switch("mig_copies", "--mig-copies", f"{_K}MIG_COPIES",
         "Give each MIG instance the whole GPU's values too; sums are then wrong."),
    _row(attr="pods", flag="--pods", envs=(f"{_K}PODS",), read=read_pods, default="each",
         help="Pods on each series, or in kgpu_gpu_pod_info to join with: each or join."),
    _row(attr="series_limit", flag="--series-limit", envs=(f"{_K}SERIES_LIMIT",), read=read_limit,
         default=str(SERIES_LIMIT), help="The most series per scrape, and different ones in an hour."),
    _row(attr="amd_config", flag="--amd-metrics-config", envs=(f"{_K}AMD_METRICS_CONFIG",), read=read_text,
         default=ROCM_METRICS_CONFIG, help="On nodes with AMD GPUs: the configuration file of AMD's metrics exporter.",
         restart=Restart.NONE),
    _row(attr="amd_health_socket", flag="--amd-health-socket", envs=(f"{_K}AMD_HEALTH_SOCKET",), read=read_text,
         empty_counts=True, default=ROCM_HEALTH_SOCKET,
         help="On nodes with AMD GPUs: where ROCm's device plugin asks how well they are. Served where its folder is "
         "there and nothing else serves it; empty: not at all."),
    _switch("gaudi_port", "--gaudi-metrics-port", f"{_K}GAUDI_METRICS_PORT",
         "On nodes with Gaudi accelerators: listen on 41611, as Gaudi's metric exporter does; not with --address."),
)  # fmt: skip
