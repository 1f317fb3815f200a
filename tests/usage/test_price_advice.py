"""What is told of prices: models that a person's list has no row for, with what would fit, and prices not divided."""

from __future__ import annotations

from kgpu.base.advice import Advice
from kgpu.usage.nodes import PricedNode
from kgpu.usage.price_advice import price_advice
from kgpu.usage.price_file import parse
from kgpu.usage.prices import NodePriceRule, PriceBook

HEAD = "instanceType,capacityType,product,perNodeHour,perGpuHour\n"
L4 = "NVIDIA-L4"


def told(book: PriceBook, *places: tuple[PricedNode, str]) -> list[Advice]:
    return list(price_advice({place: book.price(*place) for place in places}, book))


def on(instance_type: str = "", **fields: object) -> PricedNode:
    return PricedNode(instance_type=instance_type, gpus=8, **fields)


def book(rows: str = "", rule: NodePriceRule = NodePriceRule.GPU_INCLUSIVE) -> PriceBook:
    return PriceBook(parse(HEAD + rows, source="p.csv") if rows else None, rule=rule)


def test_a_model_without_a_row_is_told_with_what_counts_and_what_would_fit() -> None:
    (note,) = told(book(",,*A100*,,3.06\n"), (on("metal", pool="gpus"), L4), (on("bare"), L4), (on("x"), "A100"))
    assert note.reason == "PriceNotListed"
    assert note.what == (
        "p.csv has no row for NVIDIA-L4 on nodes of type bare or metal; kgpu's list price counts, 0.805 USD a GPU's hour"
    )
    assert note.remedy == (
        "add a row to p.csv with product NVIDIA-L4 or *L4, or instanceType bare or metal, or pool gpus, "
        "or perGpuHour alone, for all that no other row fits"
    )
    assert any("g6.xlarge" in fact for fact in note.evidence)


def test_a_row_that_misses_by_one_column_is_named() -> None:
    rows = ",,L4,,0.7\n,,*A100*,,3.06\nmetal,spot,,4,\nother,spot,,4,\n"
    (note,) = told(book(rows), (on("metal"), L4))
    assert note.evidence[1:] == (
        'line 2 would fit, but for product "L4"', 'line 4 would fit, but for capacityType "spot"'
    )  # fmt: skip


def test_a_type_that_kgpus_list_has_is_told_too_where_the_persons_has_not() -> None:
    aws = PricedNode(instance_type="p4d.24xlarge", region="us-east-1", gpus=8)
    (note,) = told(book(",,*L4*,,0.7\n"), (aws, "NVIDIA-A100-SXM4-40GB"))
    assert "no row for NVIDIA-A100-SXM4-40GB on nodes of type p4d.24xlarge" in note.what
    assert told(book(",,*L4*,,0.7\n,,,,2\n"), (aws, "NVIDIA-A100-SXM4-40GB")) == []
    assert told(book(), (aws, "NVIDIA-A100-SXM4-40GB")) == []


def test_without_a_list_an_assumed_price_asks_for_one() -> None:
    (note,) = told(book(), (on("metal"), L4))
    assert (note.reason, note.remedy) == ("PriceAssumed", "give your prices with --prices FILE")


def test_a_split_that_changes_nothing_is_told() -> None:
    split = NodePriceRule.SPLIT
    (note,) = told(book(",,*L4*,,0.7\n", split), (on("metal"), L4))
    assert note.sentence == (
        "--node-price split changes nothing for NVIDIA-L4, because its price is one of a GPU, not of a node; "
        "to do: give the node's: a row with instanceType or pool and perNodeHour in --prices"
    )
    (note,) = told(book("metal,,,8,\n", split), (on("metal"), L4))
    assert "not recorded" in note.why
    assert told(book("metal,,,8,\n", split), (on("metal", cpus=48, memory_mib=1 << 18), L4)) == []


def test_names_of_others_stay_on_their_line() -> None:
    (note,) = told(book(",,*A100*,,3.06\n"), (on("a\x1b[2Jb\nc"), "x\ny"))
    assert "\n" not in note.one_line()
    assert "\x1b" not in note.one_line()
