"""The cluster's own price list counts wherever a command prints money, as in ``kgpu usage``, and is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kgpu.cli.main import main
from kgpu.formats import names
from kgpu.formats.usage import encode
from kgpu.formats.usage_now import VERSION, LinesPage, encode_page
from kgpu.formats.usage_prices import PRICES_PATH, PricesSaid
from kgpu.formats.usage_prices import encode as encode_prices
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES, PODS
from kgpu.usage.price_file import parse
from kgpu.usage.prices import PriceBook
from kgpu.usage.workload_price import workload_price
from tests.placement.clusters import node as cluster_node
from tests.placement.clusters import pod as cluster_pod
from tests.usage.recordings import Device, holder, node, timeline_of, write

HOUR = 3600
OWN = names.GPU_OPERATOR_NAMESPACE
EUROS = """\
currency: EUR
rows:
- {instanceType: p5.48xlarge, perNodeHour: 40}
- {pool: spare, perGpuHour: 1}
- {perGpuHour: 2}
"""
SAID = PricesSaid(version=1, source="ConfigMap gpu-operator/kgpu-prices, p.yaml", text=EUROS)
P5 = {names.LABEL_INSTANCE_TYPE: "p5.48xlarge"}
Said = pytest.CaptureFixture[str]


class Cluster(FakeApi):
    """kgpu-usage, with its lines and its price list."""

    def __init__(self, *devices: Device, prices: str | None) -> None:
        super().__init__()
        self.asked: list[str] = []
        pod = {"name": "p", "namespace": OWN, "labels": {"app": names.USAGE_DEPLOYMENT}}
        self.put(
            PODS, {"metadata": pod, "spec": {"nodeName": "a"}, "status": {"phase": "Running", "podIP": "10.0.0.1"}}
        )
        nodes = [node(one.node, instance_type="p5.48xlarge", gpus=8) for one in devices]
        lines = [encode(line) for line in (*nodes, *(line for one in devices for line in one.lines))]
        self.lines = encode_page(LinesPage(version=VERSION, node="a", cursor="1"), lines).decode()
        self.prices = prices

    async def pod_page(self, namespace: str, pod: str, port: int, path: str, **more: Any) -> str:
        self.asked.append(path)
        self.pages[namespace, pod] = self.lines
        if path == PRICES_PATH:
            self.pages.pop((namespace, pod))
            if self.prices is not None:
                self.pages[namespace, pod] = self.prices
        return await super().pod_page(namespace, pod, port, path, **more)

    async def close(self) -> None:
        """Several commands use it."""


def device(hours: int, name: str = "a") -> Device:
    found = Device(node=name, device=f"GPU-{name}", product="NVIDIA H100 80GB HBM3")
    for _ in range(hours):
        found.spend(HOUR, holder("serve-1", namespace="ml", owner="Deployment/serve"), busy=0.2, sm=0.02)
    return found


def connected(monkeypatch: pytest.MonkeyPatch, *devices: Device, said: PricesSaid | str | None = SAID) -> Cluster:
    text = encode_prices(said).decode() if isinstance(said, PricesSaid) else said
    cluster = Cluster(*devices, prices=text)
    monkeypatch.setattr("kgpu.kube.client.connect", lambda *_args, **_kwargs: cluster)
    return cluster


def run(capsys: Said, *words: object) -> tuple[int, str, str]:
    code = main(["kgpu", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def advised(capsys: Said, *words: object) -> tuple[dict[str, Any], str]:
    code, out, err = run(capsys, "advise", "workload", "ml/serve", *words, "-o", "json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)["perMonth"]
    return found, err


def test_advice_is_in_the_money_of_the_bill(capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    connected(monkeypatch, device(100))
    found, err = advised(capsys)
    assert (found["currency"], found["perGpuHour"], err) == ("EUR", 5.0, "")
    assert found["whole"] == pytest.approx(5 * 730)
    assert found["priceSources"] == ["ConfigMap gpu-operator/kgpu-prices, p.yaml, line 3"]
    bill = json.loads(run(capsys, "usage", "--by", "owner", "-o", "json")[1])
    (row,) = (one for one in bill["rows"] if one["kind"] == "held")
    assert row["cost"] == pytest.approx(found["perGpuHour"] * 100)
    out = run(capsys, "advise", "workload", "ml/serve")[1]
    assert "  by 5.000 EUR for an hour of a GPU where it ran: ConfigMap gpu-operator/kgpu-prices, p.yaml, line 3" in out


def test_without_the_clusters_list_it_is_kgpus_and_told(capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    connected(monkeypatch, device(100), said=PricesSaid(version=1))
    found, err = advised(capsys)
    assert (found["currency"], found["perGpuHour"], err) == ("USD", 6.88, "")
    assert "pricing_aws" in found["priceSources"][0]
    connected(monkeypatch, device(100), said="{")
    found, err = advised(capsys)
    assert found["currency"] == "USD"
    assert "note: the cluster's price list is not known, kgpu's own is taken" in err


def test_a_list_that_is_not_in_force_is_told(capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    connected(
        monkeypatch, device(100), said=PricesSaid(version=1, source="p.yaml", text=EUROS, problem="line 3 is bad")
    )
    found, err = advised(capsys)
    assert (found["currency"], "line 3 is bad" in err) == ("EUR", True)


def test_a_persons_own_list_goes_before_it(tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("perGpuHour\n7\n")
    cluster = connected(monkeypatch, device(100))
    found, _ = advised(capsys, "--prices", prices)
    assert (found["currency"], found["perGpuHour"]) == ("USD", 7.0)
    assert PRICES_PATH not in cluster.asked
    path = write(tmp_path / "usage.jsonl", device(100), nodes=[node("a", instance_type="p5.48xlarge", gpus=8)])
    found, _ = advised(capsys, "--from", path)
    assert (found["currency"], found["perGpuHour"]) == ("USD", 6.88), "a file's price is that of its node, too"
    assert PRICES_PATH not in cluster.asked


def test_a_workload_on_several_nodes_costs_their_mean_by_time() -> None:
    book = PriceBook(parse(EUROS, source="p.yaml"))
    nodes = [node("a", instance_type="p5.48xlarge", gpus=8), node("b", labels={"karpenter.sh/nodepool": "spare"})]
    times = timeline_of(device(30, "a"), device(10, "b"), nodes=nodes)
    found = workload_price(times, book, "ml", "serve")
    assert found is not None
    assert found.per_gpu_hour == 4_000_000
    assert [source.rpartition(" ")[2] for source in found.sources] == ["3", "4"]
    assert workload_price(times, book, "ml", "other") is None
    short = workload_price(times, book, "ml", "serve", (0, 1))
    assert short is None


# What if


def whatif_cluster(monkeypatch: pytest.MonkeyPatch, said: PricesSaid | str | None = SAID) -> Cluster:
    cluster = connected(monkeypatch, said=said)
    cluster.put(NODES, cluster_node("a", labels=P5))
    cluster.put(PODS, cluster_pod("p", 4, "a"))
    return cluster


def test_a_node_more_costs_what_the_clusters_list_says(capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    whatif_cluster(monkeypatch)
    code, out, err = run(capsys, "whatif", "--add-nodes", "a=2")
    assert code == 0, err
    assert "Cost: +80.00 EUR an hour" in out
    assert "+40.00 (ConfigMap gpu-operator/kgpu-prices, p.yaml, line 3)" in out
    cost = json.loads(run(capsys, "whatif", "--add-nodes", "a=2", "-o", "json")[1])["cost"]
    assert (cost["currency"], cost["perHour"]) == ("EUR", 80.0)
    assert cost["nodes"][0]["source"].startswith("ConfigMap gpu-operator/kgpu-prices")


def test_a_list_that_can_not_be_read_is_a_note(capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    whatif_cluster(monkeypatch, said=None)
    code, out, err = run(capsys, "whatif", "--add-nodes", "a=1")
    assert (code, "Cost: +55.04 USD an hour" in out) == (0, True)
    assert "note: the cluster's price list is not known, kgpu's own is taken" in err


def test_ones_own_prices_and_a_snapshot_ask_nobody(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = whatif_cluster(monkeypatch)
    prices = tmp_path / "prices.csv"
    prices.write_text("instanceType,perNodeHour\np5.48xlarge,40\n")
    assert "Cost: +40.00 USD" in run(capsys, "whatif", "--add-nodes", "a=1", "--prices", prices)[1]
    dump = tmp_path / "cluster.json"
    dump.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [cluster_node("a", labels=P5)]}))
    assert "Cost: +55.04 USD" in run(capsys, "whatif", "--add-nodes", "a=1", "--snapshot", dump)[1]
    assert cluster.asked == []
