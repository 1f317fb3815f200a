"""The replaced master's settings."""

from __future__ import annotations

import pytest

from kgpu.base.errors import ConfigError
from kgpu.discovery.master.config import read_limits
from kgpu.discovery.rules.outputs import OutputLimits


def test_all_settings():
    given = {"denyLabelNs": ["*.a.org"], "extraLabelNs": ["b.org"], "labelWhiteList": "^x", "enableTaints": True}
    assert read_limits(given, "here") == OutputLimits(
        denied_domains=("*.a.org",), extra_domains=("b.org",), allowed_labels="^x", taints=True
    )
    assert read_limits({}, "here") == OutputLimits()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"enableTaint": True}, "enableTaints"),
        ({"enableTaints": "yes"}, "'yes'"),
        ({"denyLabelNs": "a.org"}, "denyLabelNs"),
        ({"extraLabelNs": [1]}, "extraLabelNs"),
        ({"labelWhiteList": 1}, "labelWhiteList"),
        ({"labelWhiteList": "("}, "("),
    ],
)
def test_what_is_wrong_is_named(given, said):
    with pytest.raises(ConfigError) as caught:
        read_limits(given, "here")
    assert said in caught.value.one_line()
