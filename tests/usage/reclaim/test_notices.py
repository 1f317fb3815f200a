"""What messages say that GPUs cost: by the policy's price, its list, or the cluster's, and what their node is."""

from __future__ import annotations

import json
from pathlib import Path

from kgpu.formats import names
from kgpu.formats.usage import RecordedNode, UsageState
from kgpu.kube.port import CONFIG_MAPS
from kgpu.operations.writing import evict
from kgpu.usage.hour_prices import HourPrices, KnownNodes
from kgpu.usage.now import DeviceNow
from kgpu.usage.price_file import parse
from kgpu.usage.price_maps import PriceMaps
from kgpu.usage.prices import PriceBook
from kgpu.usage.reclaim.model import ReclaimPolicy
from kgpu.usage.reclaim.notices import HourCost, cost_per_hour
from kgpu.usage.reclaim.run import ReclaimController
from kgpu.usage.states import UsageVerdict
from kgpu.usage.store import UsageStore
from tests.usage.reclaim.scene import HOUR, OWN, START, Scene
from tests.usage.recordings import BEGIN

LISTS = {
    "": PriceBook(),
    "contract": PriceBook(parse(
        "currency: EUR\nrows:\n- {instanceType: p5.48xlarge, perNodeHour: 40}\n- {pool: lab, perGpuHour: 1}\n"
        "- {perGpuHour: 9}\n", source="p.yaml",
    )),
}  # fmt: skip
VERDICT = UsageVerdict(state=UsageState.HELD_IDLE, why="a test")
SPOT = {names.LABEL_INSTANCE_TYPE: "a3-highgpu-8g", names.LABEL_REGION: "us-central1", names.LABEL_GKE_SPOT: "true"}


def nodes() -> KnownNodes:
    facts = KnownNodes()
    for name, labels in {
        "aws": {names.LABEL_INSTANCE_TYPE: "p5.48xlarge", names.LABEL_REGION: "us-east-1"},
        "spot": SPOT,
        "pool": {names.LABEL_INSTANCE_TYPE: "p5.48xlarge", names.LABEL_KARPENTER_NODE_POOL: "lab"},
    }.items():
        facts.learn([RecordedNode(node=name, at=BEGIN, labels=labels)])
        facts.count(name, [f"GPU-{number}" for number in range(8)])
    return facts


PRICES = HourPrices(lambda name: LISTS[name], nodes())


def cost(node: str, share: int = 1_000_000, **policy: object) -> HourCost:
    device = DeviceNow(node=node, device="GPU-1", product="NVIDIA H100 80GB HBM3", verdict=VERDICT)
    made = ReclaimPolicy(name="p", **policy)  # type: ignore[arg-type]
    return cost_per_hour(made, [(device, share), (device, share)], PRICES)


def test_the_clusters_list_prices_by_what_the_node_is() -> None:
    assert cost("aws") == HourCost(
        13_760_000, "USD", "p5.48xlarge is on-demand, as no label says"
    )  # what `kgpu usage` says of that node
    assert cost("spot") == HourCost(12_652_500, "USD")
    assert cost("unknown").assumed.endswith("as the node's type is not recorded")


def test_a_policys_list_goes_before_and_has_its_currency() -> None:
    assert cost("aws", prices="contract") == HourCost(10_000_000, "EUR")
    assert cost("pool", prices="contract") == HourCost(2_000_000, "EUR")
    assert cost("unknown", prices="contract") == HourCost(18_000_000, "EUR")


def test_one_price_for_all_and_parts_of_gpus() -> None:
    assert cost("aws", per_gpu_hour=3_060_000, currency="CHF") == HourCost(6_120_000, "CHF")
    assert cost("aws", share=250_000, per_gpu_hour=4_000_000) == HourCost(2_000_000, "USD")


async def test_a_policys_list_that_turns_bad_is_told_and_its_prices_stay(tmp_path: Path) -> None:
    scene = await Scene().begin()
    store = UsageStore(tmp_path / "h", days=1, max_bytes=64 << 20)
    maps = PriceMaps(scene.api, OWN, usual="", memory=store, report=scene.said.append)
    scene.controller = ReclaimController(
        scene.source, namespace=OWN, opened=scene.webhook.open, evict=evict, report=scene.said.append,
        prices=HourPrices(maps.book), price_maps=maps, clock=scene.clock, now=lambda: scene.now,
    )  # fmt: skip
    about = {"name": "contract", "namespace": OWN}
    await scene.api.create(CONFIG_MAPS, {"metadata": about, "data": {"prices.csv": "perGpuHour\n7\n"}})
    receiver = await scene.secret("https://hooks.example.com/x")
    receiver["template"] = "{who}: {perHour}"
    await scene.policy(mode="notify", notify=[receiver], cost={"pricesConfigMap": "contract"})
    await scene.deployment(idle_since=START - 3 * HOUR)
    await scene.round()
    assert "Deployment team-a/llama: 7.00 USD" in json.loads(scene.webhook.taken[0])["text"]
    assert await priced(scene) == ("True", "the prices are as written")
    await scene.api.patch(CONFIG_MAPS, "contract", {"data": {"prices.csv": "perGpuHour\n$7/h\n"}}, namespace=OWN)
    await scene.round(90_000.0)
    status, told = await priced(scene)
    assert (status, "no plain number" in told, "stays in force" in told) == ("False", True, True)
    assert "7.00 USD" in json.loads(scene.webhook.taken[-1])["text"]
    assert [one.reason for one in scene.said if one.reason == "PricesUnreadable"]


async def priced(scene: Scene) -> tuple[str, str]:
    (found,) = [one for one in (await scene.got_policy())["status"]["conditions"] if one["type"] == "Priced"]
    return found["status"], found["message"]
