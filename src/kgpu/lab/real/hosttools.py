"""The programs that the lab needs from the machine, and how to get them.

A missing tool is named with its package; ``ensure_host_tools`` installs what is missing where that is possible (root on
a Debian-like machine) and says what to do elsewhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import LabError
from kgpu.lab.progress import PlainProgress, Progress


@dataclass(frozen=True, slots=True)
class HostTool:
    """``program`` comes with Debian's ``package``; ``why`` is what the lab does with it.

    With ``library``, what is looked for is that library's headers, by way of ``program``, which is pkg-config.
    """

    program: str
    package: str
    why: str
    library: str = ""

    @property
    def title(self) -> str:
        return f"{self.library} headers" if self.library else self.program

    def present(self) -> bool:
        program = shutil.which(self.program, path=_SEARCH)
        if program is None or not self.library:
            return program is not None
        return subprocess.run([program, "--exists", self.library], capture_output=True, check=False).returncode == 0


TOOLS: Final = (
    HostTool("ip", "iproute2", "to link the node to this machine"),
    HostTool("iptables", "iptables", "by kube-proxy and the pod network"),
    HostTool("iptables-save", "iptables", "by kube-proxy"),
    HostTool("conntrack", "conntrack", "by kube-proxy"),
    HostTool("mount", "mount", "for the node's own folders"),
    HostTool("nsenter", "util-linux", "to run commands in the node"),
    HostTool("busybox", "busybox-static", "as the shell of the lab's images"),
    HostTool("ldconfig", "libc-bin", "to find the C library for the lab's images"),
)
# Needed only while the programs are built.
BUILD_TOOLS: Final = (
    HostTool("cc", "gcc", "for runc, the pause program and the simulated driver"),
    HostTool("nice", "coreutils", "to build without disturbing others"),
    HostTool("pkg-config", "pkg-config", "for runc"),
    # Every pod's sandbox has a seccomp profile: a runc without it can't start one.
    HostTool("pkg-config", "libseccomp-dev", "for runc", library="libseccomp"),
)
_SEARCH: Final = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def missing_tools(tools: Iterable[HostTool] = TOOLS) -> list[HostTool]:
    """Those of ``tools`` that this machine does not have."""
    return [tool for tool in tools if not tool.present()]


def require_platform() -> None:
    """Raises LabError unless this is Linux and we are root."""
    if sys.platform != "linux":
        raise LabError(
            f"the real lab can't run on {sys.platform}",
            "Linux: it makes namespaces and cgroups",
            "use a Linux machine, real or virtual",
        )
    if os.geteuid() != 0:
        raise LabError(
            "the real lab needs root",
            "root: it makes namespaces, mounts and cgroups",
            'run it with sudo; "kgpu lab demo" needs neither root nor a cluster',
        )


def require_host_tools(tools: Iterable[HostTool] = TOOLS) -> None:
    """Raises LabError that names every missing tool with its package."""
    missing = missing_tools(tools)
    if missing:
        packages = " ".join(sorted({tool.package for tool in missing}))
        raise LabError(
            "the real lab needs programs that this machine lacks: "
            + ", ".join(f"{tool.title} ({tool.why})" for tool in missing),
            "each of them installed",
            f'on Debian or Ubuntu "apt-get install {packages}"; elsewhere the packages of the same programs',
        )


def ensure_host_tools(progress: Progress | None = None) -> None:
    """Install what is missing when root on a machine with apt-get; LabError when something is still missing then."""
    progress = progress or PlainProgress()
    packages = sorted({tool.package for tool in missing_tools((*TOOLS, *BUILD_TOOLS))})
    apt = shutil.which("apt-get")
    if packages and apt and os.geteuid() == 0:
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = [apt, "install", "-qq", "-y", "--no-install-recommends", *packages]
        with progress.step(f"install {', '.join(packages)}"):
            for command in ([apt, "update", "-qq"], install):
                done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    tail = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
                    progress.note(f"  {' '.join(command)} failed: {' / '.join(tail)}")
    require_host_tools((*TOOLS, *BUILD_TOOLS))
