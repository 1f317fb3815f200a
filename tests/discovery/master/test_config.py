"""The replaced master's settings."""

from __future__ import annotations

import pytest

from kgpu.base.errors import ConfigError
from kgpu.discovery.master.config import read_master
from kgpu.discovery.master.model import MasterSettings
from kgpu.discovery.rules.outputs import ANNOTATION, LABEL, RESOURCE, OutputLimits
from kgpu.fit.selectors import LabelSelector, Requirement

NAMESPACE = "gpu-operator"


def test_all_settings():
    given = {
        "denyLabelNs": ["*.a.org"], "extraLabelNs": ["b.org"], "labelWhiteList": "^x", "enableTaints": True,
        "instance": "blue", "featureGates": {"NodeFeatureGroupAPI": True},
        "restrictions": {
            "disableLabels": True, "disableExtendedResources": True, "disableAnnotations": True,
            "allowOverwrite": False, "denyNodeFeatureLabels": True,
            "nodeFeatureNamespaceSelector": {"matchLabels": {"trusted": "yes"}},
        },
    }  # fmt: skip
    assert read_master(given, NAMESPACE, "here") == MasterSettings(
        namespace=NAMESPACE,
        limits=OutputLimits(
            denied_domains=("*.a.org",), extra_domains=("b.org",), allowed_labels="^x", taints=True,
            off=frozenset({LABEL, RESOURCE, ANNOTATION}),
        ),
        overwrite=False, foreign_labels=False, instance="blue", groups=True,
        namespaces=LabelSelector((Requirement("trusted", "In", ("yes",)),)),
    )  # fmt: skip


def test_the_defaults_are_the_replaced_masters_but_for_namespaces():
    assert read_master({"restrictions": None, "labelWhiteList": ""}, NAMESPACE, "here") == MasterSettings(
        namespace=NAMESPACE
    )
    everywhere = read_master({"restrictions": {"nodeFeatureNamespaceSelector": {}}}, NAMESPACE, "here").namespaces
    assert everywhere is not None
    assert everywhere.everything


def test_taints_can_be_switched_off_by_the_key_that_the_peers_examples_show():
    given = {"enableTaints": True, "restrictions": {"disableTaints": True}}
    assert not read_master(given, NAMESPACE, "here").limits.taints


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"enableTaint": True}, "enableTaints"),
        ({"enableTaints": "yes"}, "'yes'"),
        ({"denyLabelNs": "a.org"}, "denyLabelNs"),
        ({"extraLabelNs": [1]}, "extraLabelNs"),
        ({"labelWhiteList": 1}, "labelWhiteList"),
        ({"labelWhiteList": "("}, "("),
        ({"restrictions": {"disableLabel": True}}, "disableLabels"),
        ({"restrictions": {"allowOverwrite": "no"}}, "allowOverwrite"),
        ({"restrictions": True}, "restrictions"),
        ({"restrictions": {"nodeFeatureNamespaceSelector": {"labels": {}}}}, "it has other keys"),
        ({"restrictions": {"nodeFeatureNamespaceSelector": "all"}}, "it has other keys"),
        ({"restrictions": {"nodeFeatureNamespaceSelector": {"matchLabels": {"a b": "c"}}}}, "'a b'"),
        ({"instance": "a/b"}, "'a/b'"),
        ({"instance": "true"}, "'true'"),
        ({"featureGates": {"DisableAutoPrefix": True}}, "DisableAutoPrefix has no effect"),
        ({"noPublish": True}, "noPublish has no effect"),
    ],
)
def test_what_is_wrong_is_named(given, said):
    with pytest.raises(ConfigError) as caught:
        read_master(given, NAMESPACE, "here")
    assert said in caught.value.one_line()
