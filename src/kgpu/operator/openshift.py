"""What an OpenShift cluster says of itself: its release, its proxy, and the images that drivers are built in on RHCOS.

Pure: objects of ``config.openshift.io/v1`` and ``image.openshift.io/v1`` in, facts out; shapes are those of
openshift/api. Nothing here raises for what a cluster contains: what has the wrong shape is as good as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.base.plain import items, mapping, text

NAMESPACE: Final = "openshift"
"""Where OpenShift keeps the ImageStreams that everybody may use."""
TOOLKIT_STREAM: Final = "driver-toolkit"
CLUSTER_VERSION: Final = "version"
CLUSTER_PROXY: Final = "cluster"
"""The names of the one ClusterVersion and the one Proxy that count."""

_PROXY_VARIABLES: Final = (("httpProxy", "HTTP_PROXY"), ("httpsProxy", "HTTPS_PROXY"), ("noProxy", "NO_PROXY"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverToolkit:
    """The ImageStream ``driver-toolkit``: images by version of RHCOS. ``broken``: it has tags without a name, which
    some releases of OpenShift left there, so that images may be missing.
    """

    images: Mapping[str, str] = field(default_factory=dict)
    broken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenShift:
    """The cluster. ``version`` is the minor release, such as ``4.16``, "" while none was ever completed. ``proxy`` are
    the variables of a container that reaches the internet through the cluster's proxy. ``trusted_ca``: that proxy needs
    certificates, which OpenShift writes into every ConfigMap that asks for them by a label. ``toolkit`` is None where
    there is no such ImageStream.
    """

    version: str = ""
    proxy: Mapping[str, str] = field(default_factory=dict)
    trusted_ca: bool = False
    toolkit: DriverToolkit | None = None


def read(versions: Iterable[Any], proxies: Iterable[Any], streams: Iterable[Any]) -> OpenShift:
    """Put together what is known from the reduced objects of each kind, which has one or none."""
    proxy = mapping(next(iter(proxies), None))
    stream = next(iter(streams), None)
    variables = proxy.get("variables")
    return OpenShift(
        version=text(mapping(next(iter(versions), None)).get("version")),
        proxy=variables if isinstance(variables, dict) else {},
        trusted_ca=proxy.get("trusted_ca") is True,
        toolkit=None if stream is None else stream["images"],
    )


def minor_release(cluster_version: Any) -> str:
    """The last release that a ClusterVersion's history calls completed, as major and minor number; "" without one."""
    for entry in map(mapping, items(mapping(mapping(cluster_version).get("status")).get("history"))):
        if entry.get("state") == "Completed":
            return ".".join(text(entry.get("version")).split(".")[:2])
    return ""


def proxy_variables(proxy: Any) -> dict[str, str]:
    """The variables that a Proxy stands for, each in capitals and in small letters, as programs read either.

    ``status`` is what is in force: it has the cluster's own addresses among those that need no proxy. Where it is
    empty, the network operator has not got to it, and ``spec`` is what was asked for.
    """
    spec, status = (mapping(mapping(proxy).get(key)) for key in ("spec", "status"))
    source = status if any(text(status.get(key)) for key, _ in _PROXY_VARIABLES) else spec
    variables: dict[str, str] = {}
    for key, name in _PROXY_VARIABLES:
        if value := text(source.get(key)):
            variables |= {name: value, name.lower(): value}
    return variables


def has_trusted_ca(proxy: Any) -> bool:
    """Whether a Proxy names a ConfigMap with certificates."""
    return bool(text(mapping(mapping(mapping(proxy).get("spec")).get("trustedCA")).get("name")))


def driver_toolkit(stream: Any) -> DriverToolkit:
    """The images of an ImageStream by tag, which is a version of RHCOS.

    A tag that names an image of a registry is taken by its word; of others the newest image that was imported counts.
    """
    spec, status = (mapping(mapping(stream).get(key)) for key in ("spec", "status"))
    images: dict[str, str] = {}
    for row in map(mapping, items(status.get("tags"))):
        newest = mapping(next(iter(items(row.get("items"))), None))
        images[text(row.get("tag"))] = text(newest.get("dockerImageReference"))
    tags = [mapping(row) for row in items(spec.get("tags"))]
    for row in tags:
        source = mapping(row.get("from"))
        if source.get("kind") == "DockerImage":
            images[text(row.get("name"))] = text(source.get("name"))
    kept = {tag: image for tag, image in images.items() if tag not in ("", "latest") and image}
    return DriverToolkit(images=kept, broken=any(not text(row.get("name")) for row in tags))
