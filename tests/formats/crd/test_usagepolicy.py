"""GPUUsagePolicies and their overrides on an API server: what can't be right is refused before anybody follows it."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.formats.crd.usagepolicy import DAYS, TEMPLATE_FIELDS
from kgpu.kube.kinds import GPU_USAGE_OVERRIDES, GPU_USAGE_POLICIES, NAMESPACES
from kgpu.kube.port import KubeApi, KubeRefusedError
from kgpu.lab.embedded.local_api import LocalApi
from kgpu.usage.reclaim.model import read_policy
from kgpu.usage.reclaim.templates import FIELDS
from tests.usage.reclaim.scene import ADMIN, core_with_kinds

Raw = dict[str, Any]


@pytest.fixture(scope="module")
def api() -> KubeApi:
    return LocalApi(core_with_kinds(), ADMIN, manager="test")


def told(template: str) -> Raw:
    return {"notify": [{"type": "slack", "secretRef": {"name": "hook"}, "template": template}]}


WRONG: dict[str, tuple[Raw, str, str]] = {
    "after": ({"reclaim": {"after": "29m59s"}}, "spec.reclaim.after", "it has to be at least 30m"),
    "grace": ({"reclaim": {"grace": "10s"}}, "spec.reclaim.grace", "it has to be at least 5m"),
    "longest keep": ({"reclaim": {"longestKeep": "59m"}}, "spec.reclaim.longestKeep", "it has to be at least 1h"),
    "far too long": ({"reclaim": {"after": "999999h"}}, "spec.reclaim.after", "at most 27777h"),
    "idle": ({"idle": {"after": "59s"}}, "spec.idle.after", "it has to be at least 1m"),
    "node": ({"idle": {"nodeAfter": "0s"}}, "spec.idle.nodeAfter", "it has to be at least 1m"),
    "warm-up": ({"idle": {"warmUp": "30s"}}, "spec.idle.warmUp", "it has to be at least 1m"),
    "no duration": ({"reclaim": {"after": "2 h"}}, "spec.reclaim.after", "should match"),
    "over midnight": ({"schedule": {"hours": "22:00-06:00"}}, "spec.schedule.hours", "begin before it ends"),
    "no hours": ({"schedule": {"hours": "8-18"}}, "spec.schedule.hours", "should match"),
    "no day": ({"schedule": {"days": ["Monday"]}}, "spec.schedule.days[0]", "Unsupported value"),
    "no zone": ({"schedule": {"timeZone": "Europe Berlin"}}, "spec.schedule.timeZone", "the name of a time zone"),
    "a path": ({"schedule": {"timeZone": "../etc"}}, "spec.schedule.timeZone", "the name of a time zone"),
    "field": (told("{who} and {whom}"), "spec.notify[0].template", "in braces only {who}, {namespace}"),
    "brace": (told("100 % {"), "spec.notify[0].template", "write {{ and }} for braces themselves"),
    "computes": (told("{who!r}"), "spec.notify[0].template", "in braces only"),
    "price": ({"cost": {"perGpuHour": "3", "pricesConfigMap": "a"}}, "spec.cost", "one price, or a list"),
}


@pytest.mark.parametrize(("spec", "where", "why"), WRONG.values(), ids=list(WRONG))
async def test_what_can_t_be_right_is_not_stored(api: KubeApi, spec: Raw, where: str, why: str) -> None:
    with pytest.raises(KubeRefusedError) as refused:
        await api.create(GPU_USAGE_POLICIES, {"metadata": {"name": "wrong"}, "spec": spec})
    assert refused.value.code == 422
    assert where in str(refused.value)
    assert why in str(refused.value)
    # Whoever follows policies says the same of one that was stored all the same.
    assert read_policy({"metadata": {"name": "wrong"}, "spec": spec}, "gpu-operator").policy is None


RIGHT: dict[str, Raw] = {
    "nothing": {},
    "the least": {"reclaim": {"after": "30m", "grace": "5m", "longestKeep": "1h"}, "idle": {"warmUp": "1m"}},
    "in parts": {"reclaim": {"after": "1h30m", "grace": "4m60s"}},
    "the whole day": {"schedule": {"hours": "00:00-24:00", "timeZone": "America/Argentina/Buenos_Aires"}},
    "a zone with a number": {"schedule": {"days": list(DAYS), "timeZone": "Etc/GMT+5"}},
    "all fields": told(", ".join(f"{{{name}}}" for name in TEMPLATE_FIELDS)),
    "braces, lines and quotes": told("{{\"a\": '{who}'}}\nsays \\ 100 %"),
    "a price": {"cost": {"perGpuHour": "0.00", "pricesConfigMap": "prices"}},
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
async def test_what_is_right_is_stored_and_can_be_used(api: KubeApi, name: str) -> None:
    policy = {"metadata": {"name": name.replace(" ", "-").replace(",", "")}, "spec": RIGHT[name]}
    await api.create(GPU_USAGE_POLICIES, policy)
    stored = await api.get(GPU_USAGE_POLICIES, policy["metadata"]["name"])
    assert stored is not None
    assert read_policy(stored, "gpu-operator").problem is None


async def test_overrides_are_bounded_alike(api: KubeApi) -> None:
    def override(**spec: str) -> Raw:
        return {"metadata": {"name": "-".join(spec).lower(), "namespace": "team-a"}, "spec": spec}

    await api.create(NAMESPACES, {"metadata": {"name": "team-a"}})
    for key in ("idleAfter", "reclaimAfter", "grace"):
        with pytest.raises(KubeRefusedError, match="at least 1m"):
            await api.create(GPU_USAGE_OVERRIDES, override(**{key: "20s"}))
        await api.create(GPU_USAGE_OVERRIDES, override(**{key: "90s"}))
    await api.create(GPU_USAGE_OVERRIDES, override(mode="", idleAfter=""))


def test_the_fields_of_texts_are_those_that_are_filled_in() -> None:
    assert [row.name for row in FIELDS] == list(TEMPLATE_FIELDS)
