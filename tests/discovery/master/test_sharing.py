"""Equal features are kept once, and different ones stay what they are; what is remembered is bounded."""

from __future__ import annotations

from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.master.sharing import RECENT, FeatureShare


def features(value: str) -> FeatureSet:
    return FeatureSet(
        flags={"f": frozenset({"a", value})}, attributes={"f": {"a": value}}, instances={"f": ({"a": value},)}
    )


def test_equal_features_are_the_same_object():
    share = FeatureShare()
    first, second, other = share.shared(features("1")), share.shared(features("1")), share.shared(features("2"))
    assert first == second == features("1")
    assert other == features("2")
    for kind in ("flags", "attributes", "instances"):
        assert getattr(first, kind)["f"] is getattr(second, kind)["f"]


def test_what_is_remembered_is_bounded():
    share = FeatureShare()
    first = share.shared(features("0"))
    for value in range(1, RECENT + 1):
        share.shared(features(str(value)))
    again = share.shared(features("0"))
    assert again == first
    assert again.attributes["f"] is not first.attributes["f"]
