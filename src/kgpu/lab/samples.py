"""Container images that the lab knows, by name: what they run and which files they have. Data, with one lookup.

Simulated nodes run them as local processes, the real lab builds images of the same rows; any other image is a stand-in
that stays running. A file's content is a script of ``sample_files``, an artifact of the simulated driver's build, a
program that was built from its published source, or one of this machine's, which is left out where there is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kgpu.formats.names import ENV_DRIVER_CAPABILITIES, ENV_SIMULATED_LOAD, ENV_VISIBLE_DEVICES

SCRIPTS: Final = Path(__file__).parent / "sample_files"
_PATH: Final = "/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CUDA_ENV: Final = {
    "PATH": _PATH,
    ENV_VISIBLE_DEVICES: "all",
    ENV_DRIVER_CAPABILITIES: "compute,utility",
}
_PLAIN_ENV: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_LOAD: Final = {"/usr/local/bin/gpu-load": "artifact:gpu-load"}
_VECTORADD: Final = {
    "/cuda-samples/vectorAdd": "artifact:vectoradd",
    "/cuda-samples/vectoradd": "artifact:vectoradd",
    "/tmp/vectorAdd": "artifact:vectoradd",  # noqa: S108 - where older samples have it
}
DRIVER: Final = "driver"
DRIVER_SIDE: Final = "driver-side"
_DRIVER_PARTS: Final = (
    "libnvidia-ml.so.1", "libcuda.so.1", "nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server",
)  # fmt: skip
AGNHOST: Final = "/agnhost"  # what Kubernetes' own end-to-end tests run in most of their pods


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleImage:
    """One row: images whose whole name matches ``pattern``.

    ``files`` maps paths in the image to ``script:NAME``, ``artifact:NAME``, ``program:NAME`` or ``host:NAME``;
    ``serves`` are TCP ports that it listens on; ``pause`` images run nothing and wait. ``listens``: what the entrypoint
    does, by its first word, that needs a network of its own on a simulated node, where all pods have the machine's and
    two that listen on one port would meet.
    """

    name: str
    pattern: str
    env: Mapping[str, str] = field(default_factory=lambda: _PLAIN_ENV)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    workdir: str = "/"
    files: Mapping[str, str] = field(default_factory=dict)
    serves: tuple[int, ...] = ()
    pause: bool = False
    listens: frozenset[str] = frozenset()
    isolated: bool = False
    """It works only with a file system of its own."""

    def needs_network(self, args: Sequence[str]) -> bool:
        """Whether the command listens on ports that others may have, too."""
        return tuple(args[:1]) == self.entrypoint and bool(self.listens.intersection(args[1:2]))


SAMPLES: Final = (
    SampleImage(
        name="vectoradd",
        pattern=r".*cuda-sample:vectoradd.*",
        env=_CUDA_ENV,
        entrypoint=("/cuda-samples/vectorAdd",),
        workdir="/cuda-samples",
        files=_VECTORADD,
    ),
    SampleImage(
        name="nbody",
        pattern=r".*cuda-sample:nbody.*",
        env=_CUDA_ENV,
        entrypoint=("/cuda-samples/nbody",),
        workdir="/cuda-samples",
        files={
            **_VECTORADD,
            "/cuda-samples/nbody": "script:nbody",
            "/tmp/sample": "script:nbody",  # noqa: S108 - where older samples have it
        },
    ),
    SampleImage(
        name="cuda",
        pattern=r"(.*/)?(nvidia/cuda|cuda)[:@].*",
        env=_CUDA_ENV,
        command=("/bin/bash",),
        files={**_VECTORADD, **_LOAD},
    ),
    SampleImage(
        name="notebook",
        pattern=r"(?:.*/)?(?:[^/:@]*(?:notebook|jupyter|jupyterlab)|jupyter-[^/:@]*|k8s-singleuser-sample)(?:[:@].*)?",
        env={**_CUDA_ENV, ENV_SIMULATED_LOAD: "notebook"},
        command=("start-notebook.sh",),
        workdir="/home/jovyan",
        files={
            **{
                f"/usr/local/bin/{name}": "script:notebook"
                for name in ("start-notebook.sh", "start-notebook.py", "start-singleuser.sh", "jupyter", "jupyter-lab")
            },
            **_LOAD,
        },
    ),
    SampleImage(
        name="pytorch",
        pattern=r".*pytorch.*",
        env={**_CUDA_ENV, ENV_SIMULATED_LOAD: "train"},
        command=("/bin/bash",),
        workdir="/workspace",
        files={"/usr/local/bin/torchrun": "script:torchrun", **_LOAD},
    ),
    SampleImage(
        name="tritonserver",
        pattern=r".*tritonserver.*",
        env={**_CUDA_ENV, ENV_SIMULATED_LOAD: "inference"},
        command=("tritonserver",),
        workdir="/opt/tritonserver",
        files={
            "/opt/tritonserver/bin/tritonserver": "script:tritonserver",
            "/usr/local/bin/tritonserver": "script:tritonserver",
            **_LOAD,
        },
        serves=(8000,),
    ),
    # Its shell knows what others do not, such as $RANDOM.
    SampleImage(
        name="busybox", pattern=r"(.*/)?(busybox|alpine)(:.*|@.*)?", command=("sh",), files={"/bin/sh": "host:busybox"}
    ),
    SampleImage(name="shell", pattern=r"(.*/)?(ubuntu|debian|bash)(:.*|@.*)?", command=("sh",)),
    SampleImage(
        name=DRIVER,
        pattern=(  # a branch alone is the version of a driver that is built for one kernel
            r"(?:.*/)?driver(?::(?P<version>\d+\.\d+(?:\.\d+)?|\d{3}(?=-\d+\.\d+\.))(?:-(?P<kernel>\d[\w.-]*))?"
            r"-(?P<system>[a-z]+[\d.]*)|@sha256:(?P<digest>[0-9a-f]{64}))"
        ),
        entrypoint=("nvidia-driver",),
        command=("init",),
        files={
            "/usr/bin/nvidia-driver": "script:nvidia-driver",
            "/usr/bin/nvidia-smi": "script:driver-nvidia-smi",
            **{f"/usr/share/kgpu/driver/{name}": f"artifact:{name}" for name in _DRIVER_PARTS},
        },
        isolated=True,
    ),
    # The containers beside the driver's: GPUDirect Storage and GDRCopy.
    SampleImage(
        name=DRIVER_SIDE,
        pattern=r"(?:.*/)?(?:nvidia-fs|gdrdrv):\S+-[a-z]+[\d.]*",
        files={
            "/usr/bin/nvidia-gds-driver": "script:nvidia-side-driver",
            "/usr/bin/nvidia-gdrcopy-driver": "script:nvidia-side-driver",
        },
        isolated=True,
    ),
    SampleImage(name="pause", pattern=r"(.*/)?pause(:.*|@.*)?", pause=True),
    SampleImage(
        name="agnhost",
        pattern=r"(.*/)?agnhost(:.*|@.*)?",
        entrypoint=(AGNHOST,),
        command=("pause",),
        files={
            AGNHOST: "program:agnhost",
            f"{AGNHOST}-2": "program:agnhost",
            "/bin/sh": "host:busybox",
            "/localhost.crt": "script:localhost.crt",
        },
        listens=frozenset(
            {
                "audit-proxy",
                "crd-conversion-webhook",
                "fake-gitserver",
                "fake-registry-server",
                "grpc-health-checking",
                "guestbook",
                "liveness",
                "mtlsserver",
                "netexec",
                "nettest",
                "no-snat-test",
                "no-snat-test-proxy",
                "port-forward-tester",
                "porter",
                "resource-consumer-controller",
                "serve-hostname",
                "test-webserver",
                "webhook",
            }
        ),
    ),
)


def find(image: str) -> SampleImage | None:
    """The row of an image name; None for an image that the lab does not know."""
    return next((row for row in SAMPLES if re.fullmatch(row.pattern, image)), None)


def by_name(name: str) -> SampleImage:
    """The row of that name."""
    return next(row for row in SAMPLES if row.name == name)


def script(source: str) -> bytes:
    """The content of a ``script:NAME``."""
    return (SCRIPTS / source.removeprefix("script:")).read_bytes()
