"""The policy that checks parameters of claims: it refuses what a node would refuse, when it is written, and no more."""

from __future__ import annotations

import copy
import json
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.dra_config import parse_parameters
from kgpu.formats.dra_parameters import DRIVER_PARAMETERS, INTERVALS, KINDS, MPS_GATE, TIME_SLICING_GATE
from kgpu.formats.names import (
    CLAIM_PARAMETERS_POLICY,
    DRA_AMD_DRIVER,
    DRA_AMD_PARAMETERS,
    DRA_GAUDI_DRIVER,
    DRA_GPU_DRIVER,
    DRA_PARAMETERS,
)
from kgpu.lab.embedded.core.model import Call
from kgpu.lab.embedded.core.verbs import ApiCore
from kgpu.lab.embedded.policy.plugin import ValidatingPolicies
from kgpu.lab.embedded.status import ApiError
from tests.budget import tries
from tests.charts.conftest import Chart, chart_in
from tests.charts.test_admission import CLAIMS, KIND, KUBERNETES, SERVED
from tests.doctor.test_consequences import report
from tests.lab.embedded.support import ADMIN, CALL, kind, make_core

Object = dict[str, Any]
GATES = (TIME_SLICING_GATE, MPS_GATE)
# What can't be evaluated is to be seen here.
STRICT = (CLAIMS, "dra.webhook.failurePolicy=Fail")
ON = (*STRICT, *(f"dra.featureGates.{gate}=true" for gate in GATES))
WORDS = (*SERVED, *KUBERNETES)
ADMISSION, API = "admissionregistration.k8s.io", "resource.k8s.io"
SLICED: Object = {"strategy": "TimeSlicing"}
SHARED: Object = {"strategy": "MPS"}


def of(kind: str = "GpuConfig", **fields: Any) -> Object:
    return {"apiVersion": DRA_PARAMETERS, "kind": kind, **fields}


def core_with(objects: list[Object]) -> ApiCore:
    plugin = ValidatingPolicies()
    core = make_core(admission=(plugin,))
    plugin.attach(core)
    for obj in objects:
        core.create(kind(core, f"{obj['kind'].lower()}s".replace("ys", "ies"), ADMISSION), "", obj, CALL)
    return core


def policy_of(chart: Chart, *sets: str) -> list[Object]:
    made = chart(*sets, words=WORDS)
    name = CLAIM_PARAMETERS_POLICY
    return [made.one(KIND, name), made.one(f"{KIND}Binding", name)]


@pytest.fixture(scope="module")
def core(helm: str, tmp_path_factory: pytest.TempPathFactory) -> ApiCore:
    return core_with(policy_of(chart_in(helm, tmp_path_factory.mktemp("helm")), *ON))


def claim(*parameters: Any, driver: str = DRA_GPU_DRIVER) -> Object:
    devices = {
        "requests": [{"name": "gpu", "exactly": {"deviceClassName": DRA_GPU_DRIVER}}],
        "config": [{"opaque": {"driver": driver, "parameters": one}} for one in parameters],
    }
    return {"metadata": {"name": "x"}, "spec": {"devices": devices}}


def template(*parameters: Any) -> Object:
    return {"metadata": {"name": "x"}, "spec": {"spec": claim(*parameters)["spec"]}}


def device_class(*parameters: Any) -> Object:
    return {"metadata": {"name": "x"}, "spec": {"config": claim(*parameters)["spec"]["devices"]["config"]}}


KINDS_OF_OBJECTS = {
    "resourceclaims": (claim, "spec.devices.config"),
    "resourceclaimtemplates": (template, "spec.spec.devices.config"),
    "deviceclasses": (device_class, "spec.config"),
}


def said(core: ApiCore, plural: str, obj: Object) -> str:
    """What a create is refused with, "" when it is not."""
    found = core.kinds.need(API, plural)
    body = {"apiVersion": found.api_version, "kind": found.kind, **copy.deepcopy(obj)}
    try:
        core.create(found, "default" if found.namespaced else "", body, Call(user=ADMIN, dry_run=True))
    except ApiError as error:
        return error.message
    return ""


def told(place: str, words: str) -> str:
    name = CLAIM_PARAMETERS_POLICY
    return f"ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: {place}.opaque.parameters{words}"


@pytest.mark.parametrize("plural", KINDS_OF_OBJECTS)
def test_each_kind_is_checked_and_the_field_named(core: ApiCore, plural: str) -> None:
    make, place = KINDS_OF_OBJECTS[plural]
    assert said(core, plural, make(of(), of("MigDeviceConfig", sharing=SHARED))) == ""
    wrong = make(of(), of(sharing=SLICED | {"timeSlicingConfig": {"interval": "Shrot"}}))
    words = ".sharing.timeSlicingConfig.interval: unknown time-slice interval: Shrot; expected Default, Short, Medium, "
    words += "Long; to do: correct sharing.timeSlicingConfig.interval"
    assert said(core, plural, wrong).endswith(told(f"{place}[1]", words))


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
@pytest.mark.parametrize("plural", KINDS_OF_OBJECTS)
def test_in_each_version_parameters_are_where_the_policy_looks(core: ApiCore, plural: str, version: str) -> None:
    """The embedded API has v1 alone. What the policy looks at is the same object in each."""
    obj = KINDS_OF_OBJECTS[plural][0](of())
    if version == "v1beta1" and plural != "deviceclasses":
        spec = obj["spec"]["spec"] if plural == "resourceclaimtemplates" else obj["spec"]
        spec["devices"]["requests"] = [{"name": "gpu", "deviceClassName": DRA_GPU_DRIVER}]
    body = {"apiVersion": f"{API}/{version}", "kind": core.kinds.need(API, plural).kind, **obj}
    kubernetes_validate.validate(body, "1.34", strict=True)
    (policy,) = core.reads.list(ADMISSION, "validatingadmissionpolicies")
    assert [rule["apiVersions"] for rule in policy["spec"]["matchConstraints"]["resourceRules"]] == [["*"]]


WRONG_AND_WORDS: list[tuple[Object, str]] = [
    ({}, ".apiVersion: unknown version this value; expected resource.nvidia.com/v1beta1; to do: correct apiVersion"),
    (of("GpuConfg"), ".kind: unknown kind GpuConfg; expected GpuConfig or MigDeviceConfig; to do: correct kind"),
    (
        of("VfioDeviceConfig"),
        (".kind: unknown kind VfioDeviceConfig; expected GpuConfig or MigDeviceConfig; to do: GPUs for virtual "
         "machines are out of kgpu's scope"),
    ),
    (
        of(shraing={}),
        ': unknown field "shraing"; expected apiVersion, kind, sharing; to do: correct the parameters',
    ),
    (
        of("MigDeviceConfig", sharing=SLICED | {"timeSlicingConfig": {}}),
        '.sharing: unknown field "timeSlicingConfig"; expected strategy, mpsConfig; to do: correct sharing',
    ),
    (
        of(sharing=SLICED | {"mpsConfig": {}}),
        (".sharing.mpsConfig: it has no effect with the strategy TimeSlicing; expected one kind of sharing; to do: "
         "correct sharing.mpsConfig"),
    ),
    (
        of(sharing=SHARED | {"mpsConfig": {"defaultActiveThreadPercentage": 101}}),
        (".sharing.mpsConfig.defaultActiveThreadPercentage: 101 is no percentage of threads that a client can run "
         "with; expected 1 to 100; to do: correct sharing.mpsConfig.defaultActiveThreadPercentage"),
    ),
    (
        of(sharing=SHARED | {"mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"0": "2Gi", "1": "1023Ki"}}}),
        (".sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit: 1: its value is no limit of memory; expected a "
         "quantity of 1Mi at least; to do: correct sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit"),
    ),
    (
        of(sharing={"strategy": "two\nlines"}),
        (".sharing.strategy: unknown strategy that can not be shown; expected TimeSlicing or MPS; to do: correct "
         "sharing.strategy"),
    ),
]  # fmt: skip
"""Parameters that are wrong, and what is said after where they stand; a real API server says it, too."""


@pytest.mark.parametrize(("parameters", "words"), WRONG_AND_WORDS)
def test_what_is_wrong_is_told_in_three_parts(core: ApiCore, parameters: Object, words: str) -> None:
    assert said(core, "resourceclaims", claim(parameters)).endswith(told("spec.devices.config[0]", words))


def test_who_has_no_gate_is_told_which(chart: Chart) -> None:
    core = core_with(
        policy_of(chart, *STRICT, f"dra.featureGates.{MPS_GATE}=true", f"dra.featureGates.{GATES[0]}=false")
    )
    assert said(core, "resourceclaims", claim(of(sharing=SHARED))) == ""
    words = ".sharing.strategy: TimeSlicing is not enabled; expected the feature gate TimeSlicingSettings; to do: have "
    words += "the administrator switch it on (TimeSlicingSettings=true), or remove the configuration"
    wrong = said(core, "resourceclaims", claim(of(sharing=SLICED)))
    assert wrong.endswith(told("spec.devices.config[0]", words))


def test_other_drivers_parameters_are_not_looked_at(core: ApiCore) -> None:
    assert said(core, "resourceclaims", claim({"x": 1}, driver="compute-domain.nvidia.com")) == ""
    assert said(core, "resourceclaims", {"metadata": {"name": "x"}, "spec": claim()["spec"]}) == ""


def test_as_many_entries_as_there_may_be_are_checked(core: ApiCore) -> None:
    assert said(core, "resourceclaims", claim(*[of()] * 32)) == ""
    assert "spec.devices.config[31].opaque" in said(core, "resourceclaims", claim(*[of()] * 31, of("X")))


def test_what_is_there_can_be_changed_and_given_back(chart: Chart) -> None:
    """Written before the rules were, or before a gate was switched off."""
    core, policy = core_with([]), policy_of(chart, *STRICT)
    claims, classes = (core.kinds.need(API, one) for one in ("resourceclaims", "deviceclasses"))
    core.create(claims, "default", claim(of(sharing=SHARED)), CALL)
    core.create(classes, "", device_class(of(sharing=SHARED)), CALL)
    for obj in policy:
        core.create(kind(core, f"{obj['kind'].lower()}s".replace("ys", "ies"), ADMISSION), "", obj, CALL)
    media, change = "application/merge-patch+json", {"metadata": {"finalizers": ["a/b"]}}
    core.patch(claims, "default", "x", media, change, CALL)
    core.patch(classes, "", "x", media, {"metadata": {"labels": {"a": "b"}}}, CALL)
    config = device_class(of(sharing=SLICED))["spec"]
    with pytest.raises(ApiError, match="TimeSlicing is not enabled"):
        core.patch(classes, "", "x", media, {"spec": config}, CALL)
    core.patch(classes, "", "x", media, {"spec": {"config": None}}, CALL)


NUMBERS = st.sampled_from([0, 1, 50, 100, 101, -1, 1 << 20, (1 << 20) - 1, 1048575.5, 1048576.0, 1.5e9, 50.0])
GOOD_LIMITS = st.sampled_from(["1Mi", "10Gi", " 2Gi", "1048576", "1e7", 1 << 20, 1048576.0, 1.5e9])
LIMITS = GOOD_LIMITS | st.sampled_from(["1023Ki", "", "lots", "-1Gi", "1048575.5", "1e", "5m"])
WRONG = st.sampled_from([None, True, "", "x", [], ["MPS"], {}, {"x": 1}]) | NUMBERS


def mostly(*usual: Any) -> st.SearchStrategy[Any]:
    good = st.one_of(*(one if isinstance(one, st.SearchStrategy) else st.just(one) for one in usual))
    return st.integers(0, 9).flatmap(lambda drawn: WRONG if drawn == 0 else good)


def with_fields(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Object]:
    usual = st.fixed_dictionaries({}, optional=fields)
    return st.integers(0, 9).flatmap(lambda drawn: usual.map(lambda found: found | {"x": 1}) if drawn == 0 else usual)


MPS_CONFIG = with_fields({
    "defaultActiveThreadPercentage": mostly(50, 1, 100),
    "defaultPinnedDeviceMemoryLimit": mostly(GOOD_LIMITS, GOOD_LIMITS, LIMITS),
    "defaultPerDevicePinnedMemoryLimit": mostly(st.dictionaries(st.sampled_from(["0", "GPU-1", ""]), mostly(GOOD_LIMITS, LIMITS))),
})  # fmt: skip
SHARING = with_fields({
    "strategy": mostly("TimeSlicing", "MPS", "MPS"),
    "timeSlicingConfig": mostly(with_fields({"interval": mostly(st.sampled_from(INTERVALS))})),
    "mpsConfig": mostly(MPS_CONFIG, MPS_CONFIG),
})  # fmt: skip
PARAMETERS = st.one_of(
    st.builds(lambda kind, sharing: of(kind, sharing=sharing), st.sampled_from(list(KINDS)), SHARING),
    st.builds(
        lambda kind, strategy, config: of(kind, sharing={"strategy": strategy, "mpsConfig": config}),
        st.sampled_from(list(KINDS)), st.just("MPS"), MPS_CONFIG,
    ),
    with_fields({"apiVersion": mostly(DRA_PARAMETERS), "kind": mostly(*KINDS), "sharing": mostly(SHARING)}),
)  # fmt: skip


AMDS = with_fields(
    {"apiVersion": mostly(DRA_AMD_PARAMETERS), "kind": mostly("GpuConfig", "GpuConfig", "MigDeviceConfig")}
)
PAIRS = st.one_of(
    st.tuples(st.just(DRA_GPU_DRIVER), PARAMETERS),
    st.tuples(st.just(DRA_AMD_DRIVER), AMDS),
    st.tuples(st.just(DRA_GAUDI_DRIVER), AMDS),
)


def place_by_a_node(driver: str, parameters: Object) -> str | None:
    """The field that a node refuses, "" for the whole; None where it takes all."""
    try:
        parse_parameters(parameters, GATES, driver=driver)
    except ConfigError as error:
        path = error.what.partition(": ")[0]
        return path if path.partition(".")[0] in DRIVER_PARAMETERS[driver].fields else ""
    return None


@tries(1000)
@given(PAIRS)
@example((DRA_GPU_DRIVER, of(sharing=SHARED | {"mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1e400"}})))
@example((DRA_GPU_DRIVER, of(sharing=SHARED | {"mpsConfig": {"defaultPinnedDeviceMemoryLimit": "\u00a02Gi"}})))
@example((DRA_GPU_DRIVER, of(sharing=SLICED | {"timeSlicingConfig": {"interval": "Long"}})))
@example((DRA_AMD_DRIVER, {"apiVersion": DRA_AMD_PARAMETERS, "kind": "GpuConfig"}))
@example((DRA_AMD_DRIVER, {"apiVersion": DRA_AMD_PARAMETERS, "kind": "GpuConfig", "sharing": {}}))
@example((DRA_AMD_DRIVER, of()))
@example((DRA_GAUDI_DRIVER, {}))
def test_a_node_and_the_policy_judge_alike(core: ApiCore, pair: tuple[str, Object]) -> None:
    driver, parameters = pair[0], json.loads(json.dumps(pair[1]))
    refused = said(core, "resourceclaims", claim(parameters, driver=driver))
    place = place_by_a_node(driver, parameters)
    if place is None:
        assert refused == ""
        return
    about = refused.partition(".opaque.parameters")[2]
    path = about.partition(": ")[0].removeprefix(".")
    assert place == path or place.startswith(f"{path}."), refused
    assert about.count("; expected ") == about.count("; to do: ") == 1


def test_kubernetes_admits_it(chart: Chart) -> None:
    for obj in policy_of(chart, *ON):
        for version in ("1.30", "1.35"):
            kubernetes_validate.validate(obj, version, strict=True)


@pytest.mark.parametrize(
    ("sets", "there"),
    [
        ((CLAIMS,), True),
        ((), False),
        ((CLAIMS, "dra.webhook.enabled=false"), False),
        ((CLAIMS, "admissionPolicy.enabled=false"), False),
    ],
)
def test_it_is_there_where_claims_are(chart: Chart, sets: tuple[str, ...], there: bool) -> None:
    assert chart(*sets, words=WORDS).has(KIND, CLAIM_PARAMETERS_POLICY) == there


def test_what_becomes_of_a_write_that_can_not_be_evaluated_is_a_choice(chart: Chart) -> None:
    assert policy_of(chart, CLAIMS)[0]["spec"]["failurePolicy"] == "Ignore"
    assert policy_of(chart, CLAIMS, "dra.webhook.failurePolicy=Fail")[0]["spec"]["failurePolicy"] == "Fail"


@pytest.mark.parametrize(
    ("one", "words"),
    [
        ("dra.webhook.failurePolicy=Perhaps", "failurePolicy"),
        ("dra.webhook.tls.mode=secret", "the chart has no value dra.webhook.tls"),
        ("dra.webhook=null", "dra.webhook is empty"),
        ("webhook.enabled=true", "the chart has no value webhook"),
    ],
)
def test_what_only_a_server_would_need_is_refused(chart: Chart, one: str, words: str) -> None:
    made = chart(CLAIMS, one)
    assert made.code != 0
    assert words in made.error


def test_the_doctor_knows_what_is_refused_of_a_template(core: ApiCore) -> None:
    """One that was written before the policy: its claims are refused, which is in an Event of the pod."""
    words = said(core, "resourceclaims", claim(of("GpuConfg")))
    pod = {"kind": "Pod", "namespace": "ml", "name": "train"}
    event = {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "ml"}, "type": "Warning",
        "reason": "FailedResourceClaimCreation", "involvedObject": pod,
        "message": f"PodResourceClaim gpu: failed to create ResourceClaim: {words}",
    }  # fmt: skip
    found = report(event, bases=("dra",))
    assert [one.id for one in found.findings] == ["DRA-21"]
