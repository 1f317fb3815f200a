"""What the plugin does for a write, and what it spares it: nothing without policies, one compilation for each version."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kgpu.lab.embedded.core.model import Call, Review
from kgpu.lab.embedded.core.verbs import ApiCore
from kgpu.lab.embedded.policy import compiled
from kgpu.lab.embedded.policy.plugin import ValidatingPolicies
from kgpu.lab.embedded.status import ApiError
from tests.lab.embedded.policy.cases import GROUP, MAP_PARAMS, Raw, constraints, policy, reference, rule
from tests.lab.embedded.support import ADMIN, CALL, config_map, kind, make_core

POLICIES, BINDINGS = "validatingadmissionpolicies", "validatingadmissionpolicybindings"


@pytest.fixture
def core() -> ApiCore:
    plugin = ValidatingPolicies()
    found = make_core(admission=(plugin,))
    plugin.attach(found)
    return found


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the policies that were compiled, one after the other."""
    names: list[str] = []

    class Counted(compiled.CompiledPolicy):
        def __init__(self, policy: Raw) -> None:
            names.append(policy["metadata"]["name"])
            super().__init__(policy)

    monkeypatch.setattr(compiled, "CompiledPolicy", Counted)
    return names


def install(core: ApiCore, name: str, spec: Raw, **binding: Any) -> None:
    core.create(kind(core, POLICIES, GROUP), "", {"metadata": {"name": name}, "spec": spec}, CALL)
    spec = {"policyName": name, "validationActions": ["Deny"], **binding}
    core.create(kind(core, BINDINGS, GROUP), "", {"metadata": {"name": name}, "spec": spec}, CALL)


def write(core: ApiCore, name: str = "x", data: dict[str, str] | None = None) -> str:
    """What a create is refused with, "" when it isn't."""
    try:
        core.create(kind(core, "configmaps"), "default", config_map(name, data), Call(user=ADMIN, dry_run=True))
    except ApiError as error:
        return error.message
    return ""


class NoReads:
    def get(self, *_: str) -> Raw:
        raise AssertionError("looked something up")

    def list(self, *_: str) -> list[Raw]:
        raise AssertionError("looked something up")


def test_without_policies_nothing_is_looked_up(core: ApiCore) -> None:
    plugin = ValidatingPolicies()
    plugin.attach(core)
    maps = kind(core, "configmaps")
    review = Review(
        operation="CREATE", kind=maps, namespace="default", name="x", obj={}, old=None, subresource="", call=CALL
    )
    plugin.admit(review, core.reads)
    plugin.admit(review, NoReads())


def test_a_policy_is_compiled_once_for_each_version(core: ApiCore, compilations: list[str]) -> None:
    install(core, "p", policy("object.metadata.name != 'x'"))
    assert compilations == []
    assert [bool(write(core, name)) for name in ("x", "y", "x")] == [True, False, True]
    policies = kind(core, POLICIES, GROUP)
    core.patch(
        policies, "", "p", "application/merge-patch+json", {"status": {"observedGeneration": 1}}, CALL,
        subresource="status",
    )  # fmt: skip
    core.patch(policies, "", "p", "application/merge-patch+json", {"metadata": {"labels": {"a": "b"}}}, CALL)
    assert write(core, "x")
    assert compilations == ["p"]
    change = {"spec": policy("object.metadata.name != 'y'")}
    core.patch(policies, "", "p", "application/merge-patch+json", change, CALL)
    assert [bool(write(core, name)) for name in ("x", "y")] == [False, True]
    assert compilations == ["p", "p"]


def test_what_no_policy_is_about_compiles_nothing(core: ApiCore, compilations: list[str]) -> None:
    install(core, "p", policy("false", matchConstraints=constraints(rule("secrets"))))
    assert write(core) == ""
    assert compilations == []


def test_policies_count_at_once_and_as_long_as_they_are_there(core: ApiCore) -> None:
    assert write(core) == ""
    install(core, "p", policy("false"))
    assert "'p' with binding 'p' denied request: failed expression: false" in write(core)
    core.delete(kind(core, BINDINGS, GROUP), "", "p", _options(), CALL)
    assert write(core) == ""


def test_the_first_by_name_of_several_refusals_is_told(core: ApiCore) -> None:
    for name in ("c", "a", "b"):
        install(core, name, policy({"expression": "false", "message": name}))
    assert write(core).endswith("denied request: a")


def test_parameters_are_read_when_a_request_comes(core: ApiCore) -> None:
    (binding,) = reference(name="limits")
    install(core, "p", policy("size(object.data) <= int(params.data.most)", **MAP_PARAMS), **binding)
    assert "no params found" in write(core, data={"a": "1", "b": "2"})
    maps = kind(core, "configmaps")
    core.store.put(("", "configmaps"), {**config_map("limits", {"most": "1"}, namespace="default", uid="u")})
    assert "failed expression" in write(core, data={"a": "1", "b": "2"})
    assert write(core, data={"a": "1"}) == ""
    core.delete(maps, "default", "limits", _options(), CALL)
    assert "no params found" in write(core, data={"a": "1"})


def test_a_variable_is_worked_out_once_and_only_where_it_is_needed(core: ApiCore) -> None:
    asked: list[str] = []

    class Authority:
        def allowed(self, _: object, attributes: Raw) -> tuple[bool, str]:
            asked.append(attributes["verb"])
            return True, ""

    core.authority = Authority()  # type: ignore[assignment]
    variables = [
        {"name": one, "expression": f"authorizer.path('/').check('{one}').allowed()"} for one in ("used", "not")
    ]
    install(
        core,
        "p",
        policy("true || variables.not", "[1, 2].all(i, variables.used)", "variables.used", variables=variables),
    )
    assert write(core) == ""
    assert asked == ["used"]


def test_many_variables_and_odd_objects_do_no_harm(core: ApiCore) -> None:
    names = [f"v{number}" for number in range(60)]
    variables = [{"name": "v0", "expression": "1"}]
    variables += [{"name": name, "expression": f"variables.{before} + 1"} for before, name in itertools.pairwise(names)]
    install(core, "p", policy("variables.v59 == 60", "!has(object.data.a)", variables=variables))
    assert write(core) == ""
    big = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": 2**70}}
    with pytest.raises(ApiError) as refused:
        core.create(kind(core, "configmaps"), "default", big, CALL)
    assert "out of range" in refused.value.message


def _options() -> Any:
    from kgpu.lab.embedded.core.model import DeleteOptions

    return DeleteOptions(grace=0)
