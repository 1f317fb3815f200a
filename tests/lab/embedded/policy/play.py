"""Plays the cases to an API server: makes what they need, waits until the policies count, asks, and takes it all away.

An answer is ``{"code", "reason", "message", "causes", "warnings"}``; of what is accepted only the code and warnings.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.lab.embedded.policy import checks, more_rows, rows, writes
from tests.lab.embedded.policy.cases import CRD, GROUP, MAP_PARAMS, Ask, Case, Raw, policy, reference

Call = Callable[[Ask], tuple[int, Raw, list[str]]]
CASES: dict[str, Case] = {**rows.CASES, **more_rows.CASES}
POLICIES = f"/apis/{GROUP}/v1/validatingadmissionpolicies"
BINDINGS = f"/apis/{GROUP}/v1/validatingadmissionpolicybindings"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
BOUNDS = "/apis/policies.test.kgpu.dev/v1/bounds"
MARKER = "vap-marker"
KEEPER = "keeps-watching-parameters"
WAIT_S = 120.0
_CONNECTING = ("/exec", "/attach", "/portforward", "/proxy")
_MADE_UP = (
    (re.compile(r"made-[a-z0-9]{5}"), "made-12345"),
    (re.compile(r"\b(selfType|[A-Z][A-Za-z]+)\d{3,}(?:\.[\w.@]+)?"), "TYPE"),
)


def space_of(name: str) -> str:
    return "vap-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def everything(call: Call) -> Raw:
    """Every case's answers by ``ask/case/number``, type checks by ``check/name`` and writes by ``write/name``."""
    with _made(call):
        found = {
            f"ask/{name}/{number}": _answered(call, _filled(ask, space_of(name)))
            for name, case in CASES.items()
            for number, ask in enumerate(case.asked)
        }
        found |= {
            f"check/{name}": _checked(call, space_of(f"check {name}"), spec) for name, spec in checks.CASES.items()
        }
        found |= {f"write/{name}": _written(call, name, body) for name, body in writes.CASES.items()}
    return found


def _filled(ask: Ask, space: str) -> Ask:
    path = ask.path.replace("{space}", space)
    if not any(one in path for one in _CONNECTING):
        path += ("&" if "?" in path else "?") + "dryRun=All"
    return Ask(ask.method, path, _in_space(ask.body, space), ask.user, ask.media)


def _in_space(value: Any, space: str) -> Any:
    return json.loads(json.dumps(value).replace("{space}", space))


def _answered(call: Call, ask: Ask) -> Raw:
    end = time.monotonic() + WAIT_S
    while True:
        found = answer(*call(ask))
        said = found.get("message", "")
        # What a policy's parameters are watched with has to be ready first.
        early = "not yet synced" in said or ("paramKind: 'policies" in said)
        if not early or time.monotonic() > end:
            return found
        time.sleep(0.2)


def answer(code: int, body: Raw, warnings: list[str]) -> Raw:
    """What is compared."""
    found: Raw = {"code": code}
    if warnings:
        found["warnings"] = [_plain(one) for one in warnings]
    if body.get("kind") != "Status" or body.get("status") == "Success":
        return found
    causes = (body.get("details") or {}).get("causes") or ()
    found |= {"reason": body.get("reason", ""), "message": _plain(body.get("message", ""))}
    return {**found, "causes": [[one.get("field", ""), _plain(one.get("message", ""))] for one in causes]}


def _plain(text: str) -> str:
    for pattern, name in _MADE_UP:
        text = pattern.sub(name, text)
    return text


def _checked(call: Call, name: str, spec: Raw) -> Raw:
    """The status that a policy gets, of which nothing comes from a clock."""
    _need(call, POLICIES, {"metadata": {"name": name}, "spec": spec})
    end = time.monotonic() + WAIT_S
    while True:
        _, found, _ = call(Ask("GET", f"{POLICIES}/{name}"))
        status = found.get("status") or {}
        if status.get("observedGeneration") == found["metadata"]["generation"] or time.monotonic() > end:
            return json.loads(_plain(json.dumps(status)))  # type: ignore[no-any-return]
        time.sleep(0.1)


def _written(call: Call, name: str, body: Raw) -> Raw:
    path = BINDINGS if body["kind"].endswith("Binding") else POLICIES
    user = "bob" if name.startswith(writes.BOB) else ""
    body = {"apiVersion": f"{GROUP}/v1", **body}
    return answer(*call(Ask("POST", f"{path}?dryRun=All&fieldValidation=Ignore", body, user)))


def _let_bob(call: Call) -> None:
    """Write policies and bindings, and read secrets."""
    base, name = "/apis/rbac.authorization.k8s.io/v1", {"metadata": {"name": "vap-bob"}}
    reference = {"kind": "ClusterRole", "name": "vap-bob", "apiGroup": "rbac.authorization.k8s.io"}
    bob = {"kind": "User", "name": "bob", "apiGroup": "rbac.authorization.k8s.io"}
    rules = [
        {"apiGroups": [GROUP], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
    ]
    _need(call, f"{base}/clusterroles", {**name, "rules": rules})
    _need(call, f"{base}/clusterrolebindings", {**name, "roleRef": reference, "subjects": [bob]})


def _need(call: Call, path: str, body: Raw) -> None:
    code, found, _ = call(Ask("POST", path, body))
    assert code in (201, 409), (path, found)


@contextmanager
def _made(call: Call) -> Iterator[None]:
    _cleared(call)
    _until(lambda: not list(_mine(call, "/api/v1/namespaces")), "the namespaces of an earlier run to go")
    try:
        _need(call, CRDS, CRD)
        _let_bob(call)
        _keep_watching(call)
        _until(lambda: call(Ask("GET", BOUNDS))[0] == 200, "the custom kind")
        for name in CASES:
            _need(call, "/api/v1/namespaces", {"metadata": {"name": space_of(name)}})
        for name, case in CASES.items():
            space = space_of(name)
            for path, body in case.before:
                filled = _filled(Ask("POST", path, body), space)
                _until_made(call, filled.path.partition("?")[0], filled.body or {})
        for name, case in CASES.items():
            _install(call, space_of(name), case)
        _mark(call)
        yield
    finally:
        _cleared(call)


def _keep_watching(call: Call) -> None:
    """A policy that stays for good and is about nothing.

    The real server watches the parameters of a built-in kind while a policy wants them, and when the last one goes it
    stops, and never begins again: a later run would find the parameters of the first.
    """
    nothing = {"matchLabels": {"kubernetes.io/metadata.name": "nowhere"}}
    spec = _in_space(policy("true", **MAP_PARAMS), "")
    spec["matchConstraints"]["namespaceSelector"] = nothing
    _need(call, POLICIES, {"metadata": {"name": KEEPER}, "spec": spec})
    binding = {"policyName": KEEPER, "validationActions": ["Audit"], **reference(name="none")[0]}
    _need(call, BINDINGS, {"metadata": {"name": KEEPER}, "spec": binding})


def _until_made(call: Call, path: str, body: Raw) -> None:
    # Pods wait for the namespace's service account.
    _until(lambda: call(Ask("POST", path, body))[0] in (201, 409), f"{path} {body}")


def _install(call: Call, space: str, case: Case) -> None:
    own = {"matchLabels": {"kubernetes.io/metadata.name": space}}
    spec = _in_space(case.spec, space)
    if not any(one.get("everywhere") for one in case.bindings):
        # What is wrong with a policy itself is told to all that it is about.
        spec["matchConstraints"].setdefault("namespaceSelector", own)
    _need(call, POLICIES, {"metadata": {"name": space}, "spec": spec})
    for number, raw in enumerate(case.bindings):
        row = dict(raw)
        everywhere = row.pop("everywhere", False)
        resources = dict(row.pop("matchResources", {}))
        if not everywhere:
            resources["namespaceSelector"] = own
        spec = {"policyName": space, "validationActions": ["Deny"], "matchResources": resources, **row}
        _need(call, BINDINGS, {"metadata": {"name": f"{space}-{number}"}, "spec": _in_space(spec, space)})


def _mark(call: Call) -> None:
    """Wait until a policy that came last counts."""
    _need(call, "/api/v1/namespaces", {"metadata": {"name": MARKER}})
    _install(call, MARKER, rows.CASES["message"])
    ask = _filled(rows.CASES["message"].asked[0], MARKER)
    _until(lambda: call(ask)[0] == 422, "the policies to count")


def _until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, f"waited {WAIT_S:.0f} s for {what}"
        time.sleep(0.1)


def _cleared(call: Call) -> None:
    rights = "/apis/rbac.authorization.k8s.io/v1"
    for path in (
        BINDINGS, POLICIES, "/api/v1/namespaces", f"{rights}/clusterroles", f"{rights}/clusterrolebindings",
    ):  # fmt: skip
        for name in _mine(call, path):
            call(Ask("DELETE", f"{path}/{name}"))
    call(Ask("DELETE", f"{CRDS}/{CRD['metadata']['name']}"))


def _mine(call: Call, path: str) -> Iterator[str]:
    _, found, _ = call(Ask("GET", path))
    for one in found.get("items") or ():
        if one["metadata"]["name"].startswith("vap-"):
            yield one["metadata"]["name"]
