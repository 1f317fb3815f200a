"""Price lists are read strictly, and a GPU's price is found by node, else model, else default, and says so."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats import names
from kgpu.formats.usage import RecordedNode
from kgpu.usage.nodes import PRICE_LABELS, PricedNode, priced_node
from kgpu.usage.price_file import PriceList, parse, read_prices
from kgpu.usage.prices import (
    NodePriceRule,
    PriceBasis,
    PriceBook,
    Undivided,
    energy_cost,
    list_prices,
    per_useful_hour,
)
from tests.budget import tries
from tests.usage.recordings import A100, BEGIN

HEAD = "provider,region,instanceType,capacityType,product,perNodeHour,perGpuHour,discount,date,source\n"


def on(instance_type: str = "", region: str = "us-east-1", gpus: int = 8, **fields: Any) -> PricedNode:
    return PricedNode(instance_type=instance_type, region=region, gpus=gpus, **fields)


def book(text: str, name: str = "p.csv", **more: NodePriceRule) -> PriceBook:
    return PriceBook(parse(text, source=name), **more)


BY_MODEL = "{} at the model's list price, as the node's type is not recorded"
LISTED = {
    "by type, region and capacity": (on("p4d.24xlarge"), A100, 2_744_750, "instance", ""),
    "a node with one GPU": (on("p3.2xlarge", gpus=1), "V100", 3_060_000, "instance", ""),
    "H100s": (on("p5.48xlarge", provider="aws"), "x", 6_880_000, "instance", ""),
    "Azure's": (on("Standard_ND96isr_H100_v5", "eastus"), "x", 12_290_000, "instance", ""),
    "spot where that is listed": (on("a3-highgpu-8g", "us-central1", capacity_type="spot"), "x", 6_326_250, "instance",
                                  ""),
    "spot where that is not": (on("p5.48xlarge", capacity_type="spot"), "x", 6_880_000, "instance",
                               "p5.48xlarge at the on-demand price of us-east-1"),
    "another region": (on("p5.48xlarge", "eu-west-1"), "x", 6_880_000, "instance",
                       "p5.48xlarge at the on-demand price of us-east-1"),
    "spot of another region": (on("a3-highgpu-8g", "eu", capacity_type="spot"), "x", 6_326_250, "instance",
                               "a3-highgpu-8g at the spot price of us-central1"),
    "no label says on demand": (on("p4d.24xlarge", capacity_told=False), A100, 2_744_750, "instance",
                                "p4d.24xlarge is on-demand, as no label says"),
    "a type that is not listed, by model": (on("metal"), A100, 2_745_000, "model",
                                            f"{A100} at the model's list price, as there is none for nodes of type metal"),
    "the larger model": (on(), "NVIDIA-A100-SXM4-80GB", 3_431_000, "model", BY_MODEL.format("NVIDIA-A100-SXM4-80GB")),
    "a name as NVML has it": (on(), "NVIDIA A100 80GB PCIe", 3_431_000, "model",
                              BY_MODEL.format("NVIDIA A100 80GB PCIe")),
    "a GB200 is no B200": (on(), "NVIDIA-GB200", 27_040_000, "model", BY_MODEL.format("NVIDIA-GB200")),
    "an L40S is no L4": (on(), "NVIDIA-L40S", 1_861_000, "model", BY_MODEL.format("NVIDIA-L40S")),
    "nothing known": (on(), "Quadro 4000", 950_000, "default", "no price is known for Quadro 4000"),
}  # fmt: skip


@pytest.mark.parametrize("case", LISTED)
def test_kgpus_own_list(case: str) -> None:
    node, product, price, basis, assumed = LISTED[case]
    found = PriceBook().price(node, product)
    assert (found.per_gpu_hour, found.basis.value, found.assumed) == (price, basis, assumed)
    assert found.source[-10:-6].isdigit()


def test_every_listed_price_has_date_and_source() -> None:
    rows = list_prices().rows
    assert len(rows) > 40
    assert all(row.date and row.source for row in rows)
    assert sum(row.is_default for row in rows) == 1


def test_a_persons_rows_go_before_and_the_most_specific_of_them_counts() -> None:
    own = book(
        HEAD
        + ",,,,,,1.5,,,\n,,p4d.24xlarge,,,20,,,,\n,eu,p4d.24xlarge,,,24,,,,\n,,p4d.24xlarge,spot,,8,,,,\n,,,,*A100*,,2,,,\n"
    )
    prices = {
        on("p4d.24xlarge"): 2_500_000,
        on("p4d.24xlarge", "eu"): 3_000_000,
        on("p4d.24xlarge", capacity_type="spot"): 1_000_000,
        on("p5.48xlarge"): 2_000_000,
    }
    assert {node: own.price(node, A100).per_gpu_hour for node in prices} == prices
    found = own.price(on(), "Tesla-T4")
    assert (found.per_gpu_hour, found.basis, found.assumed) == (1_500_000, PriceBasis.DEFAULT, "")
    assert found.source == "p.csv, line 2"


def test_what_a_persons_list_has_not_is_kgpus() -> None:
    assert book(HEAD + "aws,,p4d.24xlarge,,,20,,,,\n").price(on("p5.48xlarge"), "x").per_gpu_hour == 6_880_000
    assert book(HEAD + "gcp,,p5.48xlarge,,,20,,,,\n").price(on("p5.48xlarge", provider="aws"), "x").source[:4] == "karp"


def test_a_discount_is_taken_off() -> None:
    assert book(HEAD + ",,,,,,2,0.25,,\n").price(on(), "x").per_gpu_hour == 1_500_000


def test_what_is_owned_costs_what_it_was_bought_for_over_its_years() -> None:
    own = book("product,capex,years\nA100,10000,3\nB,30000,3\n")
    prices = [own.price(on(gpus=1), product).per_gpu_hour for product in ("A100", "B")]
    assert prices == [380_518, 1_141_553]


def test_a_node_costs_never_more_than_its_price() -> None:
    assert book(HEAD + ",,,,,10,,,,\n").price(on(gpus=3), "x").per_gpu_hour * 3 == 9_999_999


def test_split_leaves_out_processors_and_memory() -> None:
    own = PriceBook(rule=NodePriceRule.SPLIT)
    whole = PricedNode(instance_type="p5.48xlarge", region="us-east-1", gpus=8, cpus=192, memory_mib=2 << 20)
    assert own.price(whole, "x").per_gpu_hour == pytest.approx(2_340_000, abs=1000)
    assert own.price(on("p5.48xlarge"), "x").undivided is Undivided.SIZE_UNKNOWN
    assert own.price(on(), "NVIDIA-L4").undivided is Undivided.OF_GPU


YAML = "currency: EUR\nrows:\n- {product: '*H100*', perGpuHour: 4.5, date: 2026-01-01, source: contract}\n- perGpuHour: 1\n"


def test_yaml_has_a_currency_and_numbers() -> None:
    own = book(YAML, "p.yaml")
    assert own.currency == "EUR"
    assert own.price(on("p5.48xlarge"), "NVIDIA-H100-80GB-HBM3").per_gpu_hour == 4_500_000
    assert own.price(on("p4d.24xlarge"), A100).per_gpu_hour == 1_000_000


REFUSED = {
    HEAD + ",,,,,,3.06/h,,,\n": ('"3.06/h" is no plain number', "per hour"),
    HEAD + ",,,,,,$3.06,,,\n": ('"$3.06" is no plain number', "per hour"),
    HEAD + ",,,,,,306c,,,\n": ("306c", "per hour"),
    HEAD + ',,,,,,"3,06",,,\n': ("3,06", "per hour"),
    HEAD + ",,,,,,-1,,,\n": ("-1", "per hour"),
    HEAD + ",,,,,,1e3,,,\n": ("1e3", "per hour"),
    HEAD + ",,,,,,nan,,,\n": ("nan", "per hour"),
    HEAD + ",,,,,,1,30,,\n": ("30 is out of range", "0.3 is 30 percent"),
    HEAD + ",,,,,,1,,July,\n": ("July", "a date such as"),
    HEAD + ",,,,x,,,,,\n": ("no price", "perNodeHour, perGpuHour"),
    HEAD + ",,,,x,1,1,,,\n": ("both perNodeHour and perGpuHour", "one of"),
    HEAD + ",,,,x,1,,,,\n,,,,x,2,,,,\n": ("it fits what the row in line 2 fits", "one price"),
    HEAD + ",,,ondemand,,,1,,,\n": ("unknown capacityType ondemand", 'did you mean "on-demand"?'),
    HEAD + ",,1\n": ("3 values for 10 columns", "a value"),
    HEAD: ("no prices in it", "a row for each price"),
    "": ("no columns of prices", "the names of columns first"),
    "product,perGpuMonth\nx,1\n": ('unknown key "perGpuMonth"', 'did you mean "perGpuHour"?'),
    "product,perGpuHour,perGpuHour\nx,1,1\n": ("twice", "each column once"),
    "product,capex\nx,1\n": ("capex and years", "how many years"),
    "product,capex,years\nx,1,0\n": ("0 is out of range", "years from 1"),
    'product,perGpuHour\n"x,1\n': ("line 2", "CSV"),
    "product,perGpuHour\nx\0,1\n": ("NUL", "a text file"),
    "rows: []\n": ("no columns of prices", "YAML is read from a file that ends in .yaml"),
}


@pytest.mark.parametrize("text", REFUSED, ids=repr)
def test_a_list_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, source="p.csv")
    said, expected = REFUSED[text]
    assert said in caught.value.what
    assert expected in f"{caught.value.expected} {caught.value.remedy}"
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("currency: EUR\nrows: [{product: x, perGpuHour: 1}]", "prices in EUR, and no default"),
        ("currency: euro\nrows: [{perGpuHour: 1}]", "no currency"),
        ("rows: {perGpuHour: 1}", "no list"),
        ("rows: [3]", "not a mapping"),
        ("rows:\n- perGpuHour: '3.06 USD'", "line 2"),
        ("rows: [{perGpuHour: true}]", "no plain number"),
        ("prices: []", 'unknown key "prices"'),
    ],
)
def test_yaml_that_cannot_be_meant_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, source="p.yaml")
    assert said in caught.value.what


@tries(200)
@given(
    st.text(max_size=80) | st.text("a,\n\"'0123.:-[]{} perGpuHourproduct", max_size=80),
    st.sampled_from(["csv", "yaml"]),
)
def test_no_text_is_a_crash(text: str, ending: str) -> None:
    for content in (text, HEAD + text):
        try:
            assert isinstance(parse(content, source=f"p.{ending}"), PriceList)
        except ConfigError:
            continue


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_prices(str(path))


LABELS = {
    (names.LABEL_KARPENTER_CAPACITY_TYPE, "spot"): "spot",
    (names.LABEL_KARPENTER_CAPACITY_TYPE, "reserved"): "reserved",
    (names.LABEL_EKS_CAPACITY_TYPE, "SPOT"): "spot",
    (names.LABEL_EKS_CAPACITY_TYPE, "ON_DEMAND"): "on-demand",
    (names.LABEL_EKS_CAPACITY_TYPE, "CAPACITY_BLOCK"): "capacity-block",
    (names.LABEL_GKE_SPOT, "true"): "spot",
    (names.LABEL_AKS_PRIORITY, "regular"): "on-demand",
    (names.LABEL_REGION, "eu"): "on-demand",
}


@pytest.mark.parametrize("label", LABELS, ids=str)
def test_a_nodes_capacity_is_told_by_its_labels(label: tuple[str, str]) -> None:
    assert label[0] in PRICE_LABELS
    assert priced_node(RecordedNode(node="n", at=BEGIN, labels=dict([label])), 1).capacity_type == LABELS[label]


def test_a_nodes_provider_and_pool() -> None:
    line = RecordedNode(
        node="n", at=BEGIN, provider_id="gce://project/zone/n", labels={names.LABEL_GKE_NODE_POOL: "a100"}
    )
    assert (priced_node(line, 8).provider, priced_node(line, 8).pool) == ("gcp", "a100")
    assert priced_node(None, 0) == PricedNode()


def test_power_and_useful_hours() -> None:
    assert energy_cost(3_600_000 * 10**6 * 10, tariff=Fraction("0.2"), pue=Fraction("1.5")) == 3_000_000
    useful = [per_useful_hour(Fraction("3.06"), Fraction(part)) for part in ("0.13", "0.80")]
    assert [round(float(one), 3) for one in useful if one is not None] == [23.538, 3.825]
    assert per_useful_hour(Fraction(1), Fraction(0)) is None
