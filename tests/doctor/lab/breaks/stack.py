"""A GPU stack of others that is broken on a node: driver, kernel, toolkit, plugin, slices, sharing, metrics."""

from __future__ import annotations

from kgpu.kube.port import Object
from tests.doctor.lab.breaking import Break, Step
from tests.doctor.lab.peers import PLUGIN, SPACE, nvidia, part, parts

DRIVER = "nvidia-driver-daemonset"
TOOLKIT = "nvidia-container-toolkit-daemonset"
EXPORTER = "nvidia-dcgm-exporter"
MIG_MANAGER = "nvidia-mig-manager"
MPS = "nvidia-device-plugin-mps-control-daemon"
GFD = "gpu-feature-discovery"


def says(what: str, first: str, app: str, *lines: str, count: int | None = None, stay: bool = False,
         more: tuple[Object, ...] = (), before: tuple[Step, ...] = (), **labels: str) -> Break:  # fmt: skip
    """A part that says so and ends (or stays), on a node that offers ``count`` GPUs."""
    return Break(
        what=what, first=first, names=f"{SPACE}/{app}",
        steps=(*nvidia(count, **labels), *before, parts(*more, part(app, *lines, stay=stay))),
    )  # fmt: skip


BREAKS = (
    says("no headers for the node's kernel", "KRN-01", DRIVER, "Resolving Linux kernel version...",
         "Could not resolve Linux kernel version"),
    says("Secure Boot refuses the module", "KRN-04", DRIVER,
         "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"),
    says("a driver older than the kernel", "KRN-05", DRIVER,
         "ERROR: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol 'rcu_read_unlock_strict'"),
    says("a module that the driver needs is not loaded", "KRN-11", DRIVER,
         "nvidia: Unknown symbol ipmi_create_user (err -2)"),
    says("pods hold the old driver", "DRV-04", DRIVER, "Could not unload NVIDIA driver kernel modules, driver is in use"),
    says("no way to the package servers", "DRV-24", DRIVER,
         "E: Failed to fetch http://archive.ubuntu.com/ubuntu/pool/main/l/linux/x.deb  Could not connect"),
    says("the driver fails without a word that is known", "DRV-02", DRIVER, "starting"),
    says("a toolkit older than containerd 2", "RUN-06", TOOLKIT,
         'level=fatal msg="unable to load config: unsupported config version: 3"'),
    says("a plugin that sees no devices", "DPL-01", PLUGIN, "I0101 Starting", "E0101 No devices found. Waiting indefinitely.",
         stay=True),
    says("a plugin that does not see the driver", "DPL-02", PLUGIN, "E0101 Incompatible strategy detected auto",
         "E0101 No devices found. Waiting indefinitely.", stay=True),
    says("a kubelet whose folder is elsewhere", "DPL-04", PLUGIN,
         "E0101 dial unix /var/lib/kubelet/device-plugins/kubelet.sock: no such file or directory"),
    says("slices of two sizes under strategy single", "MIG-06", PLUGIN,
         "E0101 main.go:120] error starting plugins: more than one MIG device type present on node", count=0),
    says("MIG on some of the GPUs under strategy single", "MIG-07", PLUGIN,
         "error: all devices on the node must be configured with the same migEnabled value", count=0),
    says("MIG is on and nothing was cut", "MIG-08", PLUGIN,
         "invalid MIG configuration: device 1 has no MIG devices configured", count=0),
    says("MPS and mixed MIG", "MPS-05", PLUGIN, "error: using --mig-strategy=mixed is not supported with MPS"),
    says("no MPS control daemon", "MPS-01", PLUGIN,
         "E0101 error waiting for MPS daemon: error checking MPS daemon health: failed to send command to MPS daemon: exit status 1"),
    says("more replicas than MPS takes", "MPS-07", MPS, "error: invalid device maximum allowed replicas exceeded: 60 > 48", count=2),
    says("the exporter has no host engine", "MET-08", EXPORTER,
         "Error connecting to nv-hostengine: The connection to the host engine is not valid", count=2),
    says("gpu-feature-discovery may not write", "TNT-14", GFD, 'required flag "node-name" not set', count=2),
)  # fmt: skip
