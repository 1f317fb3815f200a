"""The programs of the real lab, as data: which module, package and flags each is built from.

Versions live in ``gomod/*/go.mod`` and are pinned by the ``go.sum`` beside it; ``module_version`` reads them there, so
that they are written down once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MODULES_DIR: Final = Path(__file__).parent / "gomod"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoProgram:
    """One program: ``module`` is a folder of ``gomod``, ``package`` what ``go build`` is given.

    ``ldflags`` may use ``{version}`` (with the ``v``) and ``{minor}`` of ``versioned_by``'s pinned version. ``weight``
    is a rough share of the cold build's time, only used to tell how far the build is. A name that ends
    with ``.test`` is that of the package's tests, as ``go test -c`` calls them.
    """

    name: str
    module: str
    package: str
    versioned_by: str = ""
    cgo: bool = False
    tags: str = ""
    ldflags: str = ""
    weight: int = 1


_K8S = "k8s.io/kubernetes"
_K8S_VERSION = "k8s.io/component-base/version"
# Without these the version reads v0.0.0-master, and clients refuse or warn.
_K8S_LDFLAGS = (
    f"-X {_K8S_VERSION}.gitVersion={{version}} -X {_K8S_VERSION}.gitMajor=1 -X {_K8S_VERSION}.gitMinor={{minor}} "
    f"-X {_K8S_VERSION}.gitTreeState=clean"
)
_CONTAINERD = "github.com/containerd/containerd/v2"
_CONTAINERD_LDFLAGS = f"-X {_CONTAINERD}/version.Version={{version}}"
# Snapshotters that the lab never uses and that would need C headers.
_CONTAINERD_TAGS = "no_btrfs,no_devmapper,no_zfs"
_RUNC = "github.com/opencontainers/runc"
_ETCD = "go.etcd.io/etcd/server/v3"
_CNI = "github.com/containernetworking/plugins"
_CNI_LDFLAGS = f"-X {_CNI}/pkg/utils/buildversion.BuildVersion={{version}}"


def _kubernetes(name: str, weight: int) -> GoProgram:
    return GoProgram(
        name=name,
        module="kubernetes",
        package=f"{_K8S}/cmd/{name}",
        versioned_by=_K8S,
        ldflags=_K8S_LDFLAGS,
        weight=weight,
    )


def _containerd(name: str, weight: int) -> GoProgram:
    return GoProgram(
        name=name,
        module="containerd",
        package=f"{_CONTAINERD}/cmd/{name}",
        versioned_by=_CONTAINERD,
        tags=_CONTAINERD_TAGS,
        ldflags=_CONTAINERD_LDFLAGS,
        weight=weight,
    )


def _cni(name: str, kind: str) -> GoProgram:
    return GoProgram(
        name=name,
        module="cni",
        package=f"{_CNI}/plugins/{kind}/{name}",
        versioned_by=_CNI,
        ldflags=_CNI_LDFLAGS,
    )


# Built in this order: small ones first, so that a missing tool shows early. kubelet is built without cgo like the
# rest of Kubernetes: with it, every shared package would be compiled a second time.
COMPONENTS: Final[tuple[GoProgram, ...]] = (
    GoProgram(name="lab-pki", module="pki", package="kgpu.dev/lab/pki"),
    GoProgram(name="runc", module="runc", package=_RUNC, versioned_by=_RUNC, cgo=True, tags="seccomp", weight=20),
    _cni("bridge", "main"),
    _cni("loopback", "main"),
    _cni("host-local", "ipam"),
    _cni("portmap", "meta"),
    _containerd("containerd", 55),
    _containerd("containerd-shim-runc-v2", 2),
    _containerd("ctr", 2),
    GoProgram(name="etcd", module="etcd", package=_ETCD, versioned_by=_ETCD, weight=20),
    _kubernetes("kube-apiserver", 165),
    _kubernetes("kube-controller-manager", 45),
    _kubernetes("kube-scheduler", 5),
    _kubernetes("kubelet", 15),
    _kubernetes("kube-proxy", 7),
    _kubernetes("kubectl", 18),
)

# What only some tests and users of the chart need: built when asked for, into a cache folder of its own, so that the
# cluster's programs are not built anew for its sake.
_HELM = "helm.sh/helm/v3"
# Which Kubernetes `helm template` and `helm lint` take for granted: the one whose modules it is built with.
HELM_KUBERNETES_MINOR: Final = 35
_HELM_LDFLAGS = " ".join(
    (
        f"-X {_HELM}/internal/version.version={{version}}",
        *(
            f"-X {_HELM}/pkg/{place}.k8sVersionMajor=1 -X {_HELM}/pkg/{place}.k8sVersionMinor={HELM_KUBERNETES_MINOR}"
            for place in ("lint/rules", "chartutil")
        ),
    )
)
HELM: Final = GoProgram(
    name="helm",
    module="helm",
    package=f"{_HELM}/cmd/helm",
    versioned_by=_HELM,
    ldflags=_HELM_LDFLAGS,
    weight=75,
)

# Kubernetes' own end-to-end tests, and the program of the image that most of their pods run. Also built when asked for.
E2E: Final = GoProgram(
    name="e2e.test",
    module="e2e",
    package=f"{_K8S}/test/e2e",
    versioned_by=_K8S,
    ldflags=_K8S_LDFLAGS,
    weight=180,
)
AGNHOST: Final = GoProgram(
    name="agnhost",
    module="e2e",
    package=f"{_K8S}/test/images/agnhost",
    versioned_by=_K8S,
    weight=15,
)
END_TO_END: Final = (E2E, AGNHOST)

# Offers metrics of a Prometheus to HorizontalPodAutoscalers; only a test runs it.
_ADAPTER = "sigs.k8s.io/prometheus-adapter"
METRICS_ADAPTER: Final = GoProgram(
    name="adapter",
    module="adapter",
    package=f"{_ADAPTER}/cmd/adapter",
    versioned_by=_ADAPTER,
    weight=60,
)

CNI_PLUGINS: Final = tuple(component.name for component in COMPONENTS if component.module == "cni")


def module_version(path: str, go_mod: str) -> str:
    """The version that the ``go.mod`` text requires of module ``path``, such as ``v1.35.4``; KeyError when none."""
    hit = re.search(rf"^(?:require)?\s+{re.escape(path)} (v\S+)", go_mod, re.MULTILINE)
    if hit is None:
        raise KeyError(path)
    return hit.group(1)


def version_of(component: GoProgram) -> str:
    """The pinned version of ``component``, or "" for the lab's own programs."""
    if not component.versioned_by:
        return ""
    return module_version(component.versioned_by, (MODULES_DIR / component.module / "go.mod").read_text())


def minimum_go(go_mod: str) -> tuple[int, int]:
    """The oldest Go release, as (1, minor), that the ``go.mod`` text admits."""
    hit = re.search(r"^go (\d+)\.(\d+)", go_mod, re.MULTILINE)
    if hit is None:
        raise ValueError("go.mod without a go directive")
    return int(hit.group(1)), int(hit.group(2))
