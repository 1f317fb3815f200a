"""One policy, compiled once, and its decisions on requests, in the words of the real server.

Source: validator.go of pkg/admission/plugin/policy/validating and matcher.go of .../webhook/matchconditions of the API
server. Audit annotations are evaluated because their errors deny; their values are not kept.
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
from kgpu.lab.embedded.policy.environment import Declarations, PolicyVariable, compiled, composed
from kgpu.lab.embedded.policy.request import AdmissionRequest, namespace_object
from kgpu.lab.embedded.status import Object

BOOL: Final = ("bool",)
STRING: Final = ("string",)
ANNOTATION: Final = ("string", "null_type")
_LONGEST_MESSAGE: Final = 5 * 1024


@dataclass(frozen=True, slots=True)
class Denial:
    """One denial. ``reason`` is "" when an evaluation failed; ``always``: it denies whatever the binding's actions."""

    message: str
    reason: str = ""
    always: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationCase:
    """What a policy is evaluated on. The request is treated as one for ``kind``, which ``obj`` and ``old`` have."""

    request: AdmissionRequest
    kind: ApiKind
    obj: Object | None
    old: Object | None
    params: Any
    namespace: Object | None
    authority: Authority


class CompiledPolicy:
    """A ValidatingAdmissionPolicy with the programs of its expressions."""

    def __init__(self, policy: Object) -> None:
        spec = policy["spec"]
        params = bool(spec.get("paramKind"))
        declarations = Declarations(params=params)
        self._fails = spec.get("failurePolicy") != "Ignore"
        rows = spec.get("variables") or ()
        self._variables = {variable.name: variable for variable in composed(declarations, rows)}
        with_all = declarations.environment(list(self._variables.values()))
        self._conditions = [
            compiled(with_all, condition["expression"], BOOL) for condition in spec.get("matchConditions") or ()
        ]
        self._texts = [condition["expression"] for condition in spec.get("matchConditions") or ()]
        self._validations: list[Object] = spec.get("validations") or []
        self._programs = [compiled(with_all, validation["expression"], BOOL) for validation in self._validations]
        message_expressions = [validation.get("messageExpression") or "" for validation in self._validations]
        bare = Declarations(params=params, authorizer=False)
        without = bare.environment(list(self._variables.values())) if any(message_expressions) else with_all
        self._messages = [compiled(without, text, STRING) if text else None for text in message_expressions]
        self._annotations = [
            (annotation["valueExpression"], compiled(with_all, annotation["valueExpression"], ANNOTATION))
            for annotation in spec.get("auditAnnotations") or ()
        ]

    def evaluate(self, case: EvaluationCase) -> list[Denial]:
        """The policy's denials of the request."""
        if self._conditions:
            wrong = self._unmatched(case)
            if wrong is not None:
                return wrong
        run = _Evaluation(self._variables, case, case.kind)
        denials = []
        for row, program, message in zip(self._validations, self._programs, self._messages, strict=True):
            value = run.evaluate(program, row["expression"])
            if isinstance(value, CelError):
                denials += [Denial(value.message)] * self._fails
            elif value is not True:
                denials.append(Denial(self._words(row, message, case), str(row.get("reason") or "Invalid")))
        return denials + self._annotated(case)

    def _unmatched(self, case: EvaluationCase) -> list[Denial] | None:
        """None when every match condition holds, else the denials without the validations: mostly none."""
        run = _Evaluation({}, case, case.request.kind, with_namespace=False)
        values = [run.evaluate(*condition) for condition in zip(self._conditions, self._texts, strict=True)]
        if any(value is False for value in values):
            return []
        errors = list(dict.fromkeys(value.message for value in values if isinstance(value, CelError)))
        if not errors:
            return None
        return [Denial(errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]")] if self._fails else []

    def _words(self, row: Object, message: CompiledExpression | CelError | None, case: EvaluationCase) -> str:
        if isinstance(message, CompiledExpression):
            value = _Evaluation(self._variables, case, case.kind, authorizer=False).evaluate(message, message.text)
            if isinstance(value, str):
                text = value.strip()
                if text and "\n" not in text and len(text.encode()) <= _LONGEST_MESSAGE:
                    return text
        return str(row.get("message") or "").strip() or f"failed expression: {row['expression'].strip()}"

    def _annotated(self, case: EvaluationCase) -> list[Denial]:
        if not self._annotations:
            return []
        run = _Evaluation(self._variables, case, case.kind, authorizer=False)
        values = [run.evaluate(program, text) for text, program in self._annotations]
        return [Denial(value.message, always=True) for value in values if isinstance(value, CelError) and self._fails]


class _Evaluation:
    """Evaluates expressions on one case. Variables are evaluated on demand, once."""

    def __init__(
        self,
        variables: Mapping[str, PolicyVariable],
        case: EvaluationCase,
        kind: ApiKind,
        *,
        authorizer: bool = True,
        with_namespace: bool = True,
    ) -> None:
        self._variables = variables
        self._known: dict[str, Any] = {}
        request, namespace = case.request, case.namespace if with_namespace else None
        bindings: dict[str, Any] = {
            "object": case.obj, "oldObject": case.old, "params": case.params, "request": request.shown(kind),
            "namespaceObject": None if namespace is None else namespace_object(namespace), "variables": {},
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
        """The value, or a CelError with the message of a denial."""
        if isinstance(program, CelError):
            return CelError(f"compilation error: {program}")
        with cel_scope.within(self._scope):
            value = program.evaluate(self._values)
        return CelError(f"expression '{text}' resulted in error: {value}") if isinstance(value, CelError) else value

    def _variable(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = self._evaluated(self._variables[name])
        value = self._known[name]
        if isinstance(value, CelError):
            raise ValueError(value.message)  # noqa: TRY004 - the evaluator reports ValueError to expressions
        return value

    def _evaluated(self, variable: PolicyVariable) -> Any:
        if isinstance(variable.program, CelError):
            return CelError(f'composited variable "{variable.name}" fails to compile: {variable.program}')
        value = variable.program.evaluate(self._values)
        if isinstance(value, CelError):
            return CelError(f'composited variable "{variable.name}" fails to evaluate: {value}')
        return cel_values.inward(value)


def _account(namespace: str, name: str) -> ApiUser:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return ApiUser(f"system:serviceaccount:{namespace}:{name}", groups)
