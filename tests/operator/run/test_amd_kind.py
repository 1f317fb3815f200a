"""AMD's kind is made where it is missing and left alone elsewhere; its finalizer goes, and no other."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kgpu.formats import names
from kgpu.formats.crd.definitions import amd_crds
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import CUSTOM_RESOURCE_DEFINITIONS, DEVICE_CONFIGS
from kgpu.kube.port import Object
from kgpu.operator import projections
from kgpu.operator.amd_kind import AmdKind
from kgpu.operator.watching import DEVICE_CONFIGS as FEED
from tests.operator.test_device_configs import manifest

NAME = "deviceconfigs.amd.com"


def kind(api: FakeApi, *stored: Object, wanted: bool = True) -> AmdKind:
    objects = {
        (one["metadata"]["namespace"], one["metadata"]["name"]): projections.device_config(one) for one in stored
    }
    watching = SimpleNamespace(objects=lambda feed: objects if feed == FEED else {})
    return AmdKind(api, cast("Any", watching), wanted=wanted)


def run(made: AmdKind, *released: Any) -> None:
    asyncio.run(made.converge(released))


def test_the_kind_is_made_where_it_is_missing() -> None:
    api = FakeApi()
    run(kind(api))
    found = asyncio.run(api.get(CUSTOM_RESOURCE_DEFINITIONS, NAME))
    assert found is not None
    assert found["spec"]["names"]["kind"] == "DeviceConfig"


def test_amds_own_definition_stays_as_it_is() -> None:
    (theirs,) = amd_crds()
    theirs["metadata"]["labels"] = {"app": "amd-gpu-operator"}
    api = FakeApi()
    asyncio.run(api.create(CUSTOM_RESOURCE_DEFINITIONS, theirs))
    run(kind(api))
    found = asyncio.run(api.get(CUSTOM_RESOURCE_DEFINITIONS, NAME))
    assert found is not None
    assert found["metadata"]["labels"] == {"app": "amd-gpu-operator"}


def test_nothing_is_made_where_nobody_wants_it() -> None:
    api = FakeApi()
    run(kind(api, wanted=False))
    assert asyncio.run(api.get(CUSTOM_RESOURCE_DEFINITIONS, NAME)) is None


@pytest.mark.parametrize("same", [True, False])
def test_only_amds_finalizer_goes_and_only_from_the_object_that_was_meant(same: bool) -> None:
    api = FakeApi()
    going = manifest(finalizers=["mine/own", names.AMD_DEVICECONFIG_FINALIZER])
    stored = asyncio.run(api.create(DEVICE_CONFIGS, going))
    meant = stored if same else {**stored, "metadata": {**stored["metadata"], "uid": "another"}}
    run(kind(api, stored, wanted=False), projections.device_config(meant)["value"])
    found = asyncio.run(api.get(DEVICE_CONFIGS, "default", namespace=going["metadata"]["namespace"]))
    assert found is not None
    assert found["metadata"]["finalizers"] == (["mine/own"] if same else going["metadata"]["finalizers"])
