"""NodeFeature, NodeFeatureRule and NodeFeatureGroup have node feature discovery's fields, names and types."""

from __future__ import annotations

import pytest

from kgpu.formats.crd.definitions import nfd_crds
from kgpu.formats.crd.nodefeatures import OPERATORS

EXPRESSION = {"op*": "string", "value[]": "string", "type": "string"}
TERM = {
    "feature*": "string",
    **{f"matchExpressions{{}}.{path}": kind for path, kind in EXPRESSION.items()},
    **{f"matchName.{path}": kind for path, kind in EXPRESSION.items()},
}
TERMS = {f"matchFeatures[].{path}": kind for path, kind in TERM.items()}
GROUP_RULE = {
    "name*": "string", "vars{}": "string", "varsTemplate": "string", **TERMS,
    **{f"matchAny[].{path.replace('matchFeatures[]', 'matchFeatures*[]')}": kind for path, kind in TERMS.items()},
}  # fmt: skip
RULE = {
    **GROUP_RULE, "labels{}": "string", "labelsTemplate": "string", "annotations{}": "string", "extendedResources{}": "string",
    "taints[].key*": "string", "taints[].value": "string", "taints[].effect*": "string", "taints[].timeAdded": "string",
}  # fmt: skip
KINDS = {
    "nodefeatures.nfd.k8s-sigs.io": ("NodeFeature", "Namespaced", [], {
        "features.flags{}.elements{}": "object", "features.attributes{}.elements{}": "string",
        "features.instances{}.elements[].attributes{}": "string", "labels{}": "string",
    }),
    "nodefeaturerules.nfd.k8s-sigs.io": ("NodeFeatureRule", "Cluster", ["nfr"], {f"rules*[].{path}": kind for path, kind in RULE.items()}),
    "nodefeaturegroups.nfd.k8s-sigs.io": ("NodeFeatureGroup", "Namespaced", ["nfg"],
                                          {f"featureGroupRules*[].{path}": kind for path, kind in GROUP_RULE.items()}),
}  # fmt: skip
BY_NAME = {crd["metadata"]["name"]: crd for crd in nfd_crds()}


def leaves(schema, path=""):
    for name, below in schema.get("properties", {}).items():
        mark = "*" if name in schema.get("required", ()) else ""
        yield from leaves(below, f"{path}.{name}{mark}".lstrip("."))
    if "items" in schema:
        yield from leaves(schema["items"], path + "[]")
    if "additionalProperties" in schema:
        yield from leaves(schema["additionalProperties"], path + "{}")
    if not any(schema.get(key) for key in ("properties", "items", "additionalProperties")):
        yield path, schema["type"]


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_as_in_the_table(name):
    kind, scope, short, fields = KINDS[name]
    spec = BY_NAME[name]["spec"]
    (version,) = spec["versions"]
    assert (spec["group"], version["name"]) == ("nfd.k8s-sigs.io", "v1alpha1")
    assert (spec["names"]["kind"], spec["scope"], spec["names"].get("shortNames", [])) == (kind, scope, short)
    assert dict(leaves(version["schema"]["openAPIV3Schema"]["properties"]["spec"])) == fields


def test_only_groups_have_a_status():
    with_status = {
        name for name, crd in BY_NAME.items() if "status" in crd["spec"]["versions"][0].get("subresources", {})
    }
    assert with_status == {"nodefeaturegroups.nfd.k8s-sigs.io"}
    root = BY_NAME["nodefeaturegroups.nfd.k8s-sigs.io"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    nodes = root["properties"]["status"]["properties"]["nodes"]
    assert (nodes["x-kubernetes-list-type"], nodes["x-kubernetes-list-map-keys"]) == ("map", ["name"])


def test_the_operators_are_those_of_the_table():
    assert OPERATORS == (
        "In", "NotIn", "InRegexp", "Exists", "DoesNotExist", "Gt", "Ge", "Lt", "Le", "GtLt", "GeLe", "IsTrue", "IsFalse",
    )  # fmt: skip
