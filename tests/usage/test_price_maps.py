"""Price lists in ConfigMaps: checked, followed without a restart, and a bad one never replaces a good one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.advice import Advice
from kgpu.formats import usage_prices
from kgpu.formats.usage_prices import MAX_TEXT, PricesAnswerError, PricesSaid
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import CONFIG_MAPS
from kgpu.usage.hour_prices import HourPrices, KnownNodes
from kgpu.usage.nodes import PricedNode
from kgpu.usage.price_maps import PriceMaps
from kgpu.usage.store import UsageStore
from tests.budget import tries
from tests.usage.recordings import A100, node

OWN = "gpu-operator"
GOOD = "perGpuHour\n2.50\n"


class Site:
    """The API in memory, the process's store, and what was told."""

    def __init__(self, folder: Path, usual: str = "prices") -> None:
        self.api = FakeApi()
        self.told: list[Advice] = []
        self.folder, self.usual = folder, usual
        self.maps = self.again()

    def again(self) -> PriceMaps:
        """A new process."""
        store = UsageStore(self.folder / "history", days=1, max_bytes=64 << 20)
        store.open()
        self.maps = PriceMaps(self.api, OWN, usual=self.usual, memory=store, report=self.told.append)
        return self.maps

    def write(self, text: str, *, name: str = "prices", key: str = "prices.csv", **more: str) -> None:
        data = {key: text, **more}
        self.api.put(CONFIG_MAPS, {"metadata": {"name": name, "namespace": OWN}, "data": data})

    def hour(self, name: str = "") -> int:
        return self.maps.book(name).price(PricedNode(), A100).per_gpu_hour


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_list_counts_from_the_next_look_on(site: Site) -> None:
    assert site.hour() == 2_745_000
    site.write(GOOD)
    await site.maps.look()
    assert (site.hour(), site.maps.problem()) == (2_500_000, "")
    site.write("currency: EUR\nrows: [{perGpuHour: 4}]", key="list.yaml")
    await site.maps.look()
    assert (site.hour(), site.maps.book().currency) == (4_000_000, "EUR")
    assert not site.told
    said = usage_prices.decode(usage_prices.encode(site.maps.said()).decode(), place="it")
    assert (said.source, said.problem) == ("ConfigMap gpu-operator/prices, list.yaml", "")


BAD = {
    "a wrong unit": ({"text": "perGpuHour\n$3.06/h\n"}, "no plain number"),
    "a wrong column": ({"text": "perGpuHuor\n3\n"}, "prices"),
    "no list": ({"text": "x", "key": "notes.txt"}, "no list: notes.txt"),
    "two lists": ({"text": GOOD, "other.yaml": "rows: []"}, "several lists: other.yaml, prices.csv"),
    "nothing in it": ({"text": "perGpuHour\n"}, "no prices"),
    "too long": ({"text": "x" * (MAX_TEXT + 1)}, "too long"),
    "another currency without a default": (
        {"text": "currency: EUR\nrows: [{product: A, perGpuHour: 4}]", "key": "p.yaml"}, "no default"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_list_is_told_and_the_good_one_stays(site: Site, case: str) -> None:
    fields, said = BAD[case]
    site.write(GOOD)
    await site.maps.look()
    site.write(**fields)
    for _ in range(3):
        await site.maps.look()
    assert site.hour() == 2_500_000
    assert said in site.maps.problem()
    assert "the list that was read last stays in force" in site.maps.problem()
    (advice,) = site.told
    assert advice.reason == "PricesUnreadable"
    assert advice.subject == "ConfigMap gpu-operator/prices"
    assert site.maps.said().problem

    await site.again().look()  # The process ends and comes back.
    assert site.hour() == 2_500_000
    assert said in site.maps.problem()
    site.write("perGpuHour\n7\n")
    await site.maps.look()
    assert (site.hour(), site.maps.problem()) == (7_000_000, "")


async def test_without_any_good_list_it_is_kgpus_own(site: Site) -> None:
    await site.maps.look()
    assert site.hour() == 2_745_000
    assert "there is no ConfigMap gpu-operator/prices" in site.maps.problem()
    assert "kgpu's own list is in force" in site.maps.problem()
    assert "kubectl -n gpu-operator create configmap prices" in site.maps.problem()


async def test_an_outage_changes_no_price_and_is_over_with_it(site: Site) -> None:
    site.write(GOOD)
    await site.maps.look()
    site.api.refuse[("get", "configmaps")] = 403
    await site.maps.look()
    assert site.hour() == 2_500_000
    assert "usage.prices.configMap" in site.maps.problem()
    site.api.refuse.clear()
    site.api.set_down(True)
    await site.maps.look()
    assert site.hour() == 2_500_000
    site.api.set_down(False)
    await site.maps.look()
    assert site.maps.problem() == ""


async def test_policies_lists_are_followed_while_they_are_named(site: Site) -> None:
    site.write(GOOD)
    site.write("perGpuHour\n9\n", name="research")
    await site.maps.look()
    await site.maps.follow({"", "research"})
    assert (site.hour(), site.hour("research")) == (2_500_000, 9_000_000)
    await site.maps.follow({""})
    assert (site.hour(), site.hour("research")) == (2_500_000, 2_745_000)


async def test_without_a_name_nothing_is_asked(tmp_path: Path) -> None:
    site = Site(tmp_path, usual="")
    await site.maps.look()
    await site.maps.follow({""})
    assert site.hour() == 2_745_000
    assert not site.api.calls
    assert site.maps.said() == PricesSaid(version=1)


def test_a_node_is_priced_as_a_recording_of_it_would_be() -> None:
    facts = KnownNodes()
    prices = HourPrices(nodes=facts)
    assert "the node's type is not recorded" in prices.of("n1", A100).assumed
    facts.learn([node(instance_type="p5.48xlarge")])
    assert prices.of("n1", A100).basis == "model"  # Not the whole node's price for one GPU.
    facts.count("n1", [f"GPU-{number}" for number in range(8)])
    facts.count("n1", ["GPU-0"])  # The others are lost for a while.
    facts.learn([node(instance_type="p4d.24xlarge", labels={"topology.kubernetes.io/region": "us-east-1",
                                                            "eks.amazonaws.com/capacityType": "ON_DEMAND"})])  # fmt: skip
    found = prices.of("n1", A100)
    assert (found.per_gpu_hour, found.basis, found.assumed) == (2_744_750, "instance", "")
    facts.learn([node(instance_type="a3-highgpu-8g", labels={"topology.kubernetes.io/region": "us-central1",
                                                             "cloud.google.com/gke-spot": "true"})])  # fmt: skip
    assert prices.of("n1", A100).per_gpu_hour == 6_326_250
    facts.keep([])
    assert prices.of("n1", A100).basis == "model"


@tries(100)
@given(st.text(max_size=200))
def test_any_answer_is_a_list_or_an_error(text: str) -> None:
    with suppress(PricesAnswerError):
        assert usage_prices.decode(text, place="kgpu-usage").version == 1
