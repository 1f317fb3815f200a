"""The labels of a series, with names and capitals by generation, in the replaced exporter's order; also as text.

Order: ``gpu``, ``UUID``, ``pci_bus_id``, ``device``, ``modelName``, the MIG instance's, the host's name, label fields
by name, then everything else by name. A duplicate label is renamed, never dropped or doubled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.exporter.model import Generation
from kgpu.exporter.render import escape
from kgpu.formats.names import NVIDIA
from kgpu.hw.port import Accelerator

MANY: Final = 4_000
"""Label sets that are cached as text; with more of them the cache is cleared."""
_BAD: Final = re.compile(r"[^a-zA-Z0-9_]", re.ASCII)
_RUNS: Final = re.compile(r"__+")
_COMPUTE: Final = re.compile(r"^[0-9]+c\.")

Pairs = tuple[tuple[str, str], ...]

POD, NAMESPACE, CONTAINER = "pod", "namespace", "container"
_POD_NAMES: Final[Mapping[bool, Mapping[str, str]]] = {
    False: {POD: "pod", NAMESPACE: "namespace", CONTAINER: "container"},
    True: {POD: "pod_name", NAMESPACE: "pod_namespace", CONTAINER: "container_name"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How labels are spelled. ``hostname`` "" leaves that label out; ``old_namespace`` is an older exporter's spelling.

    ``dashes``: blanks in the model's name become dashes.
    """

    generation: Generation = Generation.B
    hostname: str = ""
    old_namespace: bool = False
    dashes: bool = False

    @property
    def host_label(self) -> str:
        return "Hostname" if self.generation is Generation.A else "hostname"

    def host(self) -> Pairs:
        """The host's label; none when it is left out."""
        return ((self.host_label, self.hostname),) if self.hostname else ()

    def pod(self, namespace: str, pod: str, container: str) -> Pairs:
        """The labels of the container that uses the device."""
        names = _POD_NAMES[self.old_namespace]
        return ((names[POD], pod), (names[NAMESPACE], namespace), (names[CONTAINER], container))


def device_name(gpu: Accelerator) -> str:
    """The name of its first device node; for NVIDIA's also of one that can't be read."""
    if gpu.vendor == NVIDIA or not gpu.device_nodes:
        return f"{gpu.vendor}{gpu.minor}"
    return gpu.device_nodes[0].rpartition("/")[2]


def device_labels(style: Style, gpu: Accelerator, profile: str = "", gpu_instance: int | None = None) -> Pairs:
    """The first labels of a GPU's series, or of one GPU instance's."""
    model = gpu.name.replace(" ", "-") if style.dashes else gpu.name
    labels: list[tuple[str, str]] = [
        ("gpu", str(gpu.index)),
        ("uuid" if style.old_namespace else "UUID", gpu.uuid),
        ("pci_bus_id", long_bus_id(gpu.pci_bus_id)),
        ("device", device_name(gpu)),
        ("modelName", model),
    ]
    if gpu_instance is not None:
        labels += [("GPU_I_PROFILE", whole_profile(profile)), ("GPU_I_ID", str(gpu_instance))]
    return (*labels, *style.host())


def link_labels(style: Style, gpu: Accelerator, link: int) -> Pairs:
    """The labels of one NVLink's series; their spelling differs from a GPU's in the replaced exporter too."""
    return (
        ("nvlink", str(link)),
        ("gpu", str(gpu.index)),
        ("gpu_uuid", gpu.uuid),
        ("pci_bus_id", long_bus_id(gpu.pci_bus_id)),
        ("device", device_name(gpu)),
        ("model_name", gpu.name.replace(" ", "-") if style.dashes else gpu.name),
        *style.host(),
    )


def cpu_labels(style: Style, cpu: int) -> Pairs:
    """The labels of a CPU's series."""
    return (("cpu", str(cpu)), *style.host())


def long_bus_id(bus_id: str) -> str:
    """``0000:1b:00.0`` as NVML and the replaced exporter spell it: ``00000000:1B:00.0``."""
    domain, colon, rest = bus_id.partition(":")
    return f"{domain:0>8}:{rest}".upper() if colon else bus_id.upper()


def whole_profile(profile: str) -> str:
    """The GPU instance's profile of a MIG device's: ``1c.3g.40gb`` is a part of ``3g.40gb``."""
    return _COMPUTE.sub("", profile)


@dataclass(frozen=True, slots=True)
class PodLabels:
    """Which of a pod's own labels become labels of its series: those that match one of ``allowed``, all without any."""

    allowed: tuple[re.Pattern[str], ...] = ()

    def of(self, labels: Mapping[str, str], style: Style) -> Pairs:
        """The labels with names valid in Prometheus, sorted. A number is added where two names become the same."""
        names: dict[str, str] = {}
        for key in sorted(labels):
            if self.allowed and not any(pattern.search(key) for pattern in self.allowed):
                continue
            name = plain_name(key, style.generation)
            free, number = name, 0
            while free in names:
                number += 1
                free = f"{name}_conflict{number}"
            names[free] = labels[key]
        return tuple(names.items())


def read_allowed(texts: Iterable[str], where: str) -> PodLabels:
    """Regular expressions, comma lists of them. Raises ConfigError on a bad one: it must not mean "every label"."""
    patterns: list[re.Pattern[str]] = []
    for text in (word.strip() for joined in texts for word in joined.split(",")):
        if not text:
            continue
        try:
            if "[[:" in text:
                # Go knows them; here they would be a set of letters and let other labels through.
                raise re.error("classes such as [[:alpha:]] are not known here; write a-zA-Z")
            patterns.append(re.compile(text))
        except (re.error, RecursionError, OverflowError) as error:
            raise ConfigError(
                f"{where}: {text[:80]!r} is no regular expression: {error}", "regular expressions with commas between",
                f"correct {where}",
            ) from error  # fmt: skip
    return PodLabels(tuple(patterns))


def plain_name(key: str, generation: Generation) -> str:
    """A pod label's key as a label's name."""
    name = _BAD.sub("_", key)
    if generation is Generation.A:
        return name
    name = _RUNS.sub("_", name)
    return f"_{name}" if name[:1].isdigit() else name or "_"


def joined(first: Pairs, *later: Sequence[tuple[str, str]]) -> Pairs:
    """All pairs in order; a later name that is taken gets the prefix ``pod_label_``, and a number if need be."""
    labels = dict(first)
    for pairs in later:
        for name, value in pairs:
            free = name if name not in labels else f"pod_label_{name}"
            number = 0
            while free in labels:
                number += 1
                free = f"pod_label_{name}_conflict{number}"
            labels[free] = value
    return tuple(labels.items())


class Texts:
    """A cache of label sets as text: a node's series have the same labels at every scrape."""

    def __init__(self) -> None:
        self._made: dict[Pairs, str] = {}

    def text(self, pairs: Pairs) -> str:
        """``gpu="0",UUID="GPU-..."``."""
        text = self._made.get(pairs)
        if text is None:
            if len(self._made) >= MANY:
                self._made.clear()
            text = ",".join(f'{name}="{escape(value)}"' for name, value in pairs)
            self._made[pairs] = text
        return text
