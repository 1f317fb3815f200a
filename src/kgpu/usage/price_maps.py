"""Price lists of administrators, in ConfigMaps of kgpu's namespace: checked, and followed without a restart.

Promises: a list that can't be read never counts. The last one that could stays in force, also after a restart, and why
is told until it is mended; where there was none, kgpu's own list is in force.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from kgpu.base import typed
from kgpu.base.advice import AdviceSink
from kgpu.base.errors import ConfigError, HostError, UserError
from kgpu.base.plain import mapping, strings
from kgpu.base.printable import one_line
from kgpu.base.service import Complaint
from kgpu.base.threads import beside
from kgpu.formats.usage_prices import MAX_TEXT, VERSION, PricesSaid, encode
from kgpu.kube.port import CONFIG_MAPS, KubeApi, KubeRefusedError, Object, version_of
from kgpu.usage.price_file import parse
from kgpu.usage.prices import PriceBook

ENDINGS: Final = (".csv", ".yaml", ".yml", ".json")
"""Of the key with the list: they say how it is read."""


class PriceMemory(Protocol):
    """Keeps the last good text of each list, so that a restart does not lose it. Both raise HostError."""

    def kept(self, key: str) -> bytes | None:
        """What was kept under a key."""
        ...

    def keep(self, key: str, value: bytes) -> None:
        """Keep it."""
        ...


@dataclass(slots=True)
class _FollowedMap:
    """A ConfigMap: the list in force by it, the version that was looked at last, and what is wrong with that."""

    complaint: Complaint
    book: PriceBook
    good: PricesSaid = field(default_factory=lambda: PricesSaid(version=VERSION))
    looked_at: str = ""
    problem: str = ""


class PriceMaps:
    """``usual`` is the ConfigMap with the cluster's list, "" for none. ``look`` is to be called once in a while."""

    def __init__(self, api: KubeApi, namespace: str, *, usual: str, memory: PriceMemory, report: AdviceSink) -> None:
        self._api = api
        self._namespace = namespace
        self._usual = usual
        self._memory = memory
        self._report = report
        self._shipped = PriceBook()
        self._maps: dict[str, _FollowedMap] = {}

    async def look(self) -> None:
        """Look at the cluster's list."""
        if self._usual:
            await self._look_at(self._usual)

    async def follow(self, names: Collection[str]) -> None:
        """Look at these lists, and forget all others but the cluster's."""
        self._maps = {name: one for name, one in self._maps.items() if name in names or name == self._usual}
        for name in sorted(set(names) - {self._usual, ""}):
            await self._look_at(name)

    def book(self, name: str = "") -> PriceBook:
        """The list in force, the cluster's for "". One that was never looked at is kgpu's own."""
        found = self._maps.get(name or self._usual)
        return self._shipped if found is None else found.book

    def problem(self, name: str = "") -> str:
        """Why a list is not in force as it is written now, "" where it is."""
        found = self._maps.get(name or self._usual)
        return "" if found is None else found.problem

    def said(self) -> PricesSaid:
        """The cluster's list for others."""
        found = self._maps.get(self._usual)
        if found is None:
            return PricesSaid(version=VERSION)
        return PricesSaid(
            version=VERSION, source=found.good.source, text=found.good.text, problem=one_line(found.problem, 4000)
        )

    async def _look_at(self, name: str) -> None:
        one = self._maps.get(name)
        if one is None:
            complaint = Complaint(self._report, reason="PricesUnreadable", subject=self._place(name))
            one = self._maps[name] = _FollowedMap(complaint, self._shipped)
            await self._remembered(name, one)
        try:
            obj = await self._api.get(CONFIG_MAPS, name, namespace=self._namespace)
            version = "" if obj is None else version_of(obj)
            if version and version == one.looked_at:
                return
            one.looked_at = version
            await self._take(name, one, obj)
        except UserError as error:
            self._refused(one, error, name)
        else:
            one.problem = ""
            one.complaint.over()

    async def _take(self, name: str, one: _FollowedMap, obj: Object | None) -> None:
        """Put the ConfigMap's list in force. Raises ConfigError where it is none."""
        key, text = _list_in(obj, self._place(name), self._namespace, name)
        good = PricesSaid(version=VERSION, source=f"{self._place(name)}, {key}", text=text)
        one.book = PriceBook(await beside(parse, text, source=good.source))
        one.good = good
        try:
            await beside(self._memory.keep, _key(name), encode(good))
        except HostError:
            return  # It is in force; only a restart would not know of it. The history tells of the disk.

    def _refused(self, one: _FollowedMap, error: UserError, name: str) -> None:
        if not isinstance(error, ConfigError):
            one.looked_at = ""  # The list may be right: it is only not known.
        remedy = error.remedy
        if isinstance(error, KubeRefusedError) and error.code == 403:
            remedy = f"name {name} in the Helm value usage.prices.configMap or usage.prices.ofPolicies"
        stays = "the list that was read last stays in force" if one.good.text else "kgpu's own list is in force"
        told = UserError(error.what, error.expected, f"{remedy}; until then {stays}")
        one.problem = told.one_line()
        one.complaint.of(told)

    async def _remembered(self, name: str, one: _FollowedMap) -> None:
        """Put in force what was in force before the restart."""
        try:
            kept = await beside(self._memory.kept, _key(name))
            good = None if kept is None else typed.read(kept.decode("utf-8", "replace"), PricesSaid)
            if good is not None and good.text:
                one.book, one.good = PriceBook(await beside(parse, good.text, source=good.source)), good
        except (HostError, ConfigError):
            return  # What can't be remembered is read anew from the ConfigMap.

    def _place(self, name: str) -> str:
        return f"ConfigMap {self._namespace}/{name}"


def _key(name: str) -> str:
    return f"prices:{name}"


def _list_in(obj: Object | None, place: str, namespace: str, name: str) -> tuple[str, str]:
    """The key with the list, and its text. Raises ConfigError."""
    create = f"create it: kubectl -n {namespace} create configmap {name} --from-file=prices.csv"
    if obj is None:
        raise ConfigError(f"there is no {place}", "a ConfigMap with a price list", create)
    data: Mapping[str, str] = strings(obj.get("data"))
    keys = sorted(key for key in data if key.lower().endswith(ENDINGS))
    if len(keys) != 1:
        there = ", ".join(keys or sorted({*data, *mapping(obj.get("binaryData"))})) or "nothing"
        raise ConfigError(
            f"{place} has {'several lists' if keys else 'no list'}: {one_line(there, 200)}",
            "one key, such as prices.csv or prices.yaml", "keep one list in it",
        )  # fmt: skip
    if len(data[keys[0]]) > MAX_TEXT:
        raise ConfigError(f"{place}: {keys[0]} is too long", f"at most {MAX_TEXT} characters", "shorten the list")
    return keys[0], data[keys[0]]
