"""The admission plugin: evaluates the ValidatingAdmissionPolicies whose bindings match a write.

Policies are compiled at their first use, once for each version of them; which policies concern a kind of request is
cached until a policy, a binding or a CRD changes. Without bindings a write costs one look at an empty table.
Sources: pkg/admission/plugin/policy of the API server; pkg/kubeapiserver/admission/exclusion for excluded kinds.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kgpu.lab.embedded.core.convert import converted, storage_key
from kgpu.lab.embedded.core.model import ObjectLookup, Review
from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.policy import params, rights
from kgpu.lab.embedded.policy.matching import Matcher
from kgpu.lab.embedded.policy.params import ParamError
from kgpu.lab.embedded.policy.request import NAMESPACES, AdmissionRequest
from kgpu.lab.embedded.status import ApiError, Object, forbidden

if TYPE_CHECKING:
    from kgpu.lab.embedded.core.verbs import ApiCore
    from kgpu.lab.embedded.policy.compiled import CompiledPolicy, Denial

GROUP: Final = "admissionregistration.k8s.io"
POLICIES: Final = (GROUP, "validatingadmissionpolicies")
BINDINGS: Final = (GROUP, "validatingadmissionpolicybindings")
_CODES: Final = {"Forbidden": 403, "Unauthorized": 401, "RequestEntityTooLarge": 413}
_NEVER: Final = frozenset({
    POLICIES, BINDINGS, (GROUP, "mutatingadmissionpolicies"), (GROUP, "mutatingadmissionpolicybindings"),
    ("authentication.k8s.io", "selfsubjectreviews"), ("authentication.k8s.io", "tokenreviews"),
    *(("authorization.k8s.io", f"{name}reviews") for name in (
        "localsubjectaccess", "selfsubjectaccess", "selfsubjectrules", "subjectaccess",
    )),
})  # fmt: skip


@dataclass(slots=True)
class _BoundPolicy:
    """A policy with its bindings, compiled on demand."""

    policy: Object
    matcher: Matcher
    bindings: list[tuple[Object, Matcher]] = field(default_factory=list)
    compiled: CompiledPolicy | None = None

    @property
    def name(self) -> str:
        return str(self.policy["metadata"]["name"])

    def evaluator(self) -> CompiledPolicy:
        if self.compiled is None:
            from kgpu.lab.embedded.policy.compiled import CompiledPolicy

            self.compiled = CompiledPolicy(self.policy)
        return self.compiled


class ValidatingPolicies:
    """The plugin; attached to a core it follows the core's policies and bindings."""

    def __init__(self) -> None:
        self._core: ApiCore | None = None
        self._bound: dict[str, _BoundPolicy] = {}
        self._concerned: dict[tuple[Any, ...], tuple[_BoundPolicy, ...]] = {}
        self._equivalent_kinds: dict[ApiKind, Sequence[ApiKind]] = {}
        self._stale = False

    def attach(self, core: ApiCore) -> None:
        """Follow the commits of ``core``."""
        self._core = core
        core.on_commit(self._committed)
        core.kinds.on_change(self._forget)
        self._stale = True

    def _forget(self) -> None:
        """Forget what depends on the kinds, which have changed."""
        self._concerned.clear()
        self._equivalent_kinds.clear()

    def _committed(self, key: tuple[str, str], *_: Any) -> None:
        if key in (POLICIES, BINDINGS):
            self._stale = True

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        """Raise ApiError if a policy refuses the write; add the policies' warnings to the call."""
        if review.kind.key in (POLICIES, BINDINGS) and self._core is not None:
            rights.check(review, reads, self._core)
        if self._stale:
            self._read(reads)
        if not self._bound or self._core is None or review.kind.key in _NEVER:
            return
        request = AdmissionRequest.of(review)
        concerned = self._concerning(request)
        if concerned:
            _PolicyCheck(self._core, review, request, reads, self._equivalents).run(concerned)

    def _read(self, reads: ObjectLookup) -> None:
        before, bound = self._bound, {}
        policies = {policy["metadata"]["name"]: policy for policy in reads.list(*POLICIES)}
        for binding in sorted(reads.list(*BINDINGS), key=lambda binding: str(binding["metadata"]["name"])):
            name = binding["spec"]["policyName"]
            policy = policies.get(name)
            if policy is None:
                continue
            if name not in bound:
                known = before.get(name)
                same = known is not None and known.policy["spec"] == policy["spec"]
                matcher = Matcher(policy["spec"].get("matchConstraints"))
                bound[name] = _BoundPolicy(policy, matcher, compiled=known.compiled if known and same else None)
            bound[name].bindings.append((binding, Matcher(binding["spec"].get("matchResources"))))
        self._bound = dict(sorted(bound.items()))
        self._concerned.clear()
        self._stale = False

    def _concerning(self, request: AdmissionRequest) -> tuple[_BoundPolicy, ...]:
        key = (request.operation, request.kind.group, request.kind.version, request.kind.plural, request.subresource)
        concerned = self._concerned.get(key)
        if concerned is None:
            bound = self._bound.values()
            concerned = tuple(policy for policy in bound if policy.matcher.concerns(request, self._equivalents))
            self._concerned[key] = concerned
        return concerned

    def _equivalents(self, kind: ApiKind) -> Sequence[ApiKind]:
        kinds = self._equivalent_kinds.get(kind)
        if kinds is None:
            assert self._core is not None
            kinds = [other for other in self._core.kinds if storage_key(other) == storage_key(kind) and other != kind]
            self._equivalent_kinds[kind] = kinds
        return kinds


class _PolicyCheck:
    """Evaluates the policies that may concern one request."""

    def __init__(
        self, core: ApiCore, review: Review, request: AdmissionRequest, reads: ObjectLookup, equivalents: Any
    ) -> None:
        self._core = core
        self._review = review
        self._request = request
        self._reads = reads
        self._equivalents = equivalents

    def run(self, concerned: Sequence[_BoundPolicy]) -> None:
        """Evaluate all policies, then raise ApiError for the first denial."""
        denied: list[tuple[str, str, str]] = []
        for bound in concerned:
            denied += self._of_policy(bound)
        if not denied:
            return
        who, message, reason = denied[0]
        raise self._refusal(f"ValidatingAdmissionPolicy {who} denied request: {message}", reason or "Invalid")

    def _refusal(self, message: str, reason: str) -> ApiError:
        metadata = self._review.obj.get("metadata") or {}
        name = self._request.name or metadata.get("name") or metadata.get("generateName") or "Unknown"
        error = forbidden(self._request.kind.group, self._request.kind.plural, name, message)
        error.code, error.reason = _CODES.get(reason, 422), reason
        error.details = {**(error.details or {}), "causes": [{"message": message}]}
        return error

    def _of_policy(self, bound: _BoundPolicy) -> Iterator[tuple[str, str, str]]:
        """(policy and binding, message, reason) of every denial."""
        kind = bound.matcher.match(self._request, self._equivalents, self._namespace)
        if kind is None:
            return
        spec = bound.policy["spec"]
        fails = spec.get("failurePolicy") != "Ignore"
        try:
            wanted = params.kind_of(self._core.kinds, spec.get("paramKind"))
        except ParamError as error:
            if fails:
                yield f"'{bound.name}'", f"failed to configure policy: {error}", ""
            return
        for binding, matcher in bound.bindings:
            if matcher.match(self._request, self._equivalents, self._namespace) is None:
                continue
            who = f"'{bound.name}' with binding '{binding['metadata']['name']}'"
            reference = binding["spec"].get("paramRef")
            try:
                param_objects = params.collect(wanted, reference, self._request.namespace, self._reads, self._as_kind)
            except ParamError as error:
                if fails:
                    yield who, f"failed to configure binding: {error}", ""
                continue
            for param in param_objects:
                for denial in self._evaluate(bound, kind, param):
                    yield from self._enforced(who, denial, binding["spec"].get("validationActions") or ())

    def _enforced(self, who: str, denial: Denial, actions: Sequence[str]) -> Iterator[tuple[str, str, str]]:
        if denial.always or "Deny" in actions:
            yield who, denial.message, denial.reason
        elif "Warn" in actions:
            text = f"Validation failed for ValidatingAdmissionPolicy {who}: {denial.message}"
            self._review.call.warnings.append(text)

    def _evaluate(self, bound: _BoundPolicy, kind: ApiKind, param: Any) -> list[Denial]:
        from kgpu.lab.embedded.policy.compiled import EvaluationCase

        request = self._request
        case = EvaluationCase(
            request=request, kind=kind, obj=self._in_kind(kind, request.obj), old=self._in_kind(kind, request.old),
            params=param, namespace=None if request.kind.key == NAMESPACES else self._namespace,
            authority=self._core.authority,
        )  # fmt: skip
        return bound.evaluator().evaluate(case)

    @functools.cached_property
    def _namespace(self) -> Object | None:
        return self._reads.get("", "namespaces", "", self._request.namespace) if self._request.namespace else None

    def _in_kind(self, kind: ApiKind, obj: Object | None) -> Object | None:
        """An object of the request in the version that the policy wants."""
        if obj is None or kind == self._request.kind or self._request.subresource == "scale":
            return obj
        return self._as_kind(kind, obj)

    def _as_kind(self, kind: ApiKind, obj: Object) -> Object:
        if obj.get("apiVersion") == kind.api_version:
            return obj
        custom = self._core.custom
        return custom.convert(kind, obj) if kind.custom and custom is not None else converted(obj, kind)
