"""What a node has, as plain data: its features by name, as node feature discovery calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSet:
    """What a node has. Keys are names of features, such as ``cpu.cpuid``; one name may be of several types.

    A feature that is there without an element was looked for and found empty; one that is missing was not looked for.
    """

    flags: Mapping[str, frozenset[str]] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    instances: Mapping[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)

    def has(self, feature: str) -> bool:
        """Whether it was discovered, whatever its type."""
        return feature in self.flags or feature in self.attributes or feature in self.instances

    def names(self) -> list[str]:
        """All features, sorted."""
        return sorted({*self.flags, *self.attributes, *self.instances})

    def only(self, wanted: Callable[[str], bool]) -> FeatureSet:
        """Those of wanted names."""
        return FeatureSet(
            flags={name: found for name, found in self.flags.items() if wanted(name)},
            attributes={name: found for name, found in self.attributes.items() if wanted(name)},
            instances={name: found for name, found in self.instances.items() if wanted(name)},
        )

    def values(self, feature: str) -> Mapping[str, str]:
        """The values of its attributes."""
        return self.attributes.get(feature, {})


def merged(sets: Iterable[FeatureSet]) -> FeatureSet:
    """Several programs' or sources' features of one node: later values win, instances add up."""
    sets = tuple(sets)
    if len(sets) == 1:
        return sets[0]
    flags: dict[str, frozenset[str]] = {}
    attributes: dict[str, dict[str, str]] = {}
    instances: dict[str, tuple[Mapping[str, str], ...]] = {}
    for one in sets:
        for name, names in one.flags.items():
            flags[name] = flags.get(name, frozenset()) | names
        for name, values in one.attributes.items():
            attributes.setdefault(name, {}).update(values)
        for name, found in one.instances.items():
            instances[name] = (*instances.get(name, ()), *found)
    return FeatureSet(flags=flags, attributes=attributes, instances=instances)
