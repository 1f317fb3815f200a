"""One policy, compiled once, and what it says to a request: decisions, in the words of the real server.

Source: validator.go of pkg/admission/plugin/policy/validating and matcher.go of .../webhook/matchconditions of the API
server. Audit annotations are evaluated, for their errors deny; nobody keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.lab.embedded.cel import authorizer as cel_authorizer
from kgpu.lab.embedded.cel import scope as cel_scope
from kgpu.lab.embedded.cel import values as cel_values
from kgpu.lab.embedded.cel.program import Bindings, CelError, CompiledExpression
from kgpu.lab.embedded.core.model import ApiUser, Authority
from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.policy.environment import Names, PolicyVariable, compiled, composed
from kgpu.lab.embedded.policy.request import AdmissionRequest, namespace_object
from kgpu.lab.embedded.status import Object

BOOL: Final = ("bool",)
STRING: Final = ("string",)
ANNOTATION: Final = ("string", "null_type")
_LONGEST_MESSAGE: Final = 5 * 1024


@dataclass(frozen=True, slots=True)
class Denial:
    """One complaint. ``reason`` is "" for what could not be evaluated; ``always``: whatever the binding says."""

    message: str
    reason: str = ""
    always: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a policy is evaluated on. The request is seen as one for ``kind``, of which ``obj`` and ``old`` are."""

    request: AdmissionRequest
    kind: ApiKind
    obj: Object | None
    old: Object | None
    params: Any
    space: Object | None
    authority: Authority


class CompiledPolicy:
    """A ValidatingAdmissionPolicy with the programs of its expressions."""

    def __init__(self, policy: Object) -> None:
        spec = policy["spec"]
        params = bool(spec.get("paramKind"))
        names = Names(params=params)
        self._fails = spec.get("failurePolicy") != "Ignore"
        rows = spec.get("variables") or ()
        self._variables = {one.name: one for one in composed(names, rows)}
        with_all = names.environment(list(self._variables.values()))
        self._conditions = [compiled(with_all, one["expression"], BOOL) for one in spec.get("matchConditions") or ()]
        self._texts = [one["expression"] for one in spec.get("matchConditions") or ()]
        self._validations: list[Object] = spec.get("validations") or []
        self._programs = [compiled(with_all, one["expression"], BOOL) for one in self._validations]
        told = [one.get("messageExpression") or "" for one in self._validations]
        bare = Names(params=params, authorizer=False)
        without = bare.environment(list(self._variables.values())) if any(told) else with_all
        self._messages = [compiled(without, one, STRING) if one else None for one in told]
        self._annotations = [
            (one["valueExpression"], compiled(with_all, one["valueExpression"], ANNOTATION))
            for one in spec.get("auditAnnotations") or ()
        ]

    def evaluate(self, case: Case) -> list[Denial]:
        """What it has against the request."""
        if self._conditions:
            wrong = self._unmatched(case)
            if wrong is not None:
                return wrong
        run = _Run(self._variables, case, case.kind)
        found = []
        for row, program, message in zip(self._validations, self._programs, self._messages, strict=True):
            value = run.evaluate(program, row["expression"])
            if isinstance(value, CelError):
                found += [Denial(value.message)] * self._fails
            elif value is not True:
                found.append(Denial(self._words(row, message, case), str(row.get("reason") or "Invalid")))
        return found + self._annotated(case)

    def _unmatched(self, case: Case) -> list[Denial] | None:
        """None when every condition holds, else what is said instead of asking the validations: mostly nothing."""
        run = _Run({}, case, case.request.kind, namespace=False)
        values = [run.evaluate(*one) for one in zip(self._conditions, self._texts, strict=True)]
        if any(value is False for value in values):
            return []
        errors = list(dict.fromkeys(value.message for value in values if isinstance(value, CelError)))
        if not errors:
            return None
        return [Denial(errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]")] if self._fails else []

    def _words(self, row: Object, message: CompiledExpression | CelError | None, case: Case) -> str:
        if isinstance(message, CompiledExpression):
            value = _Run(self._variables, case, case.kind, authorizer=False).evaluate(message, message.text)
            if isinstance(value, str):
                text = value.strip()
                if text and "\n" not in text and len(text.encode()) <= _LONGEST_MESSAGE:
                    return text
        return str(row.get("message") or "").strip() or f"failed expression: {row['expression'].strip()}"

    def _annotated(self, case: Case) -> list[Denial]:
        if not self._annotations:
            return []
        run = _Run(self._variables, case, case.kind, authorizer=False)
        values = [run.evaluate(program, text) for text, program in self._annotations]
        return [Denial(one.message, always=True) for one in values if isinstance(one, CelError) and self._fails]


class _Run:
    """Expressions evaluated on one case. Variables are worked out when they are asked for, once."""

    def __init__(
        self,
        variables: Mapping[str, PolicyVariable],
        case: Case,
        kind: ApiKind,
        *,
        authorizer: bool = True,
        namespace: bool = True,
    ) -> None:
        self._variables = variables
        self._known: dict[str, Any] = {}
        request, space = case.request, case.space if namespace else None
        bindings: dict[str, Any] = {
            "object": case.obj, "oldObject": case.old, "params": case.params, "request": request.shown(kind),
            "namespaceObject": None if space is None else namespace_object(space), "variables": {},
        }  # fmt: skip
        if authorizer:
            bindings["authorizer"] = cel_authorizer.authorizer()
            bindings["authorizer.requestResource"] = cel_authorizer.resource_check(
                request.kind.group, request.kind.plural, request.subresource, request.namespace, request.name
            )
        self._values = Bindings(bindings)
        self._scope = cel_scope.EvaluationScope(
            variable=self._variable, user=request.user, account=_account, decide=case.authority.allowed
        )

    def evaluate(self, program: CompiledExpression | CelError, text: str) -> Any:
        """The value, or a CelError as a refusal words it."""
        if isinstance(program, CelError):
            return CelError(f"compilation error: {program}")
        with cel_scope.within(self._scope):
            value = program.evaluate(self._values)
        return CelError(f"expression '{text}' resulted in error: {value}") if isinstance(value, CelError) else value

    def _variable(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = self._worked_out(self._variables[name])
        found = self._known[name]
        if isinstance(found, CelError):
            raise ValueError(found.message)  # noqa: TRY004 - what expressions are told goes by this name
        return found

    def _worked_out(self, variable: PolicyVariable) -> Any:
        if isinstance(variable.program, CelError):
            return CelError(f'composited variable "{variable.name}" fails to compile: {variable.program}')
        value = variable.program.evaluate(self._values)
        if isinstance(value, CelError):
            return CelError(f'composited variable "{variable.name}" fails to evaluate: {value}')
        return cel_values.inward(value)


def _account(namespace: str, name: str) -> ApiUser:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return ApiUser(f"system:serviceaccount:{namespace}:{name}", groups)
