"""The expressions of a ValidatingAdmissionPolicy: which are required, and whether they compile.

Source: pkg/apis/admissionregistration/validation of Kubernetes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from kgpu.lab.embedded.status import Object, bad_value, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import Errors, duplicate, not_supported, syntax, too_many

if TYPE_CHECKING:
    from kgpu.lab.embedded.cel.program import Environment

_REASONS: Final = ("Forbidden", "Invalid", "RequestEntityTooLarge")
_NAME: Final = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
_RESERVED: Final = frozenset({
    "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let",
    "loop", "package", "namespace", "return", "var", "void", "while",
})  # fmt: skip
_LONGEST: Final = 5 * 1024
_MOST_ANNOTATIONS: Final = 20
_MOST_CONDITIONS: Final = 64
_NEITHER: Final = "validations or auditAnnotations must contain at least one item"


class _Compiler:
    """The environments that the expressions are compiled in, each made once, on demand."""

    def __init__(self, spec: Object) -> None:
        from kgpu.lab.embedded.policy.environment import Declarations

        self._params = spec.get("paramKind") is not None
        self._declarations = Declarations
        self._composed = bool(spec.get("variables"))
        self.variables: list[Any] = []

    @functools.cached_property
    def stateless(self) -> Environment:
        """For match conditions: without variables."""
        return self._declarations(params=self._params).environment()

    @functools.cached_property
    def full(self) -> Environment:
        """With all variables; use it once they have been added."""
        if not self._composed:
            return self.stateless
        return self._declarations(params=self._params).environment(self.variables)

    @functools.cached_property
    def of_messages(self) -> Environment:
        """For message expressions, which have no authorizer."""
        declarations = self._declarations(params=self._params, authorizer=False)
        return declarations.environment(self.variables if self._composed else None)

    def add(self, name: str, text: str) -> str:
        """What is wrong with a variable's expression, or ""; if it has a name, later expressions may use it."""
        from kgpu.lab.embedded.cel.program import CelError
        from kgpu.lab.embedded.policy.environment import PolicyVariable, compiled, mentioned

        known = mentioned(self.variables, text)
        program = compiled(self._declarations(params=self._params).environment(known), text)
        if name:
            self.variables.append(PolicyVariable(name, text, program))
        return str(program) if isinstance(program, CelError) else ""


def expressions(errors: Errors, spec: Object, name: str, *, conditions: bool) -> None:
    """Check the expressions of a policy's spec. ``name``: the policy's; ``conditions``: check match conditions, too."""
    compiler = _Compiler(spec)
    if conditions:
        _conditions(errors, compiler, spec.get("matchConditions") or [])
    for index, row in enumerate(spec.get("variables") or ()):
        _variable(errors, compiler, f"spec.variables[{index}]", row)
    validations, annotations = spec.get("validations") or [], spec.get("auditAnnotations") or []
    if not validations and not annotations:
        errors.append(required("spec.validations", _NEITHER))
        errors.append(required("spec.auditAnnotations", _NEITHER))
        return
    for index, row in enumerate(validations):
        _validation(errors, compiler, f"spec.validations[{index}]", row)
    if len(annotations) > _MOST_ANNOTATIONS:
        words = f"must not have more than {_MOST_ANNOTATIONS} auditAnnotations"
        rows = [
            {"Key": annotation.get("key", ""), "ValueExpression": annotation.get("valueExpression", "")}
            for annotation in annotations
        ]
        errors.append(bad_value("spec.auditAnnotations", rows, words))
    for index, row in enumerate(annotations):
        _annotation(errors, compiler, f"spec.auditAnnotations[{index}]", row, name)
        if any(earlier.get("key") == row.get("key") for earlier in annotations[:index]):
            errors.append(duplicate(f"spec.auditAnnotations[{index}].key", row.get("key", "")))


def _check(errors: Errors, environment: Environment, path: str, text: str, results: Sequence[str]) -> None:
    from kgpu.lab.embedded.cel.program import CelError
    from kgpu.lab.embedded.policy.environment import compiled

    program = compiled(environment, text, results)
    if isinstance(program, CelError):
        errors.append(bad_value(path, text, program.message))


def _conditions(errors: Errors, compiler: _Compiler, rows: Sequence[Object]) -> None:
    path = "spec.matchConditions"
    if len(rows) > _MOST_CONDITIONS:
        errors.append(too_many(path, len(rows), _MOST_CONDITIONS))
    for index, row in enumerate(rows):
        where, name, text = f"{path}[{index}]", row.get("name") or "", (row.get("expression") or "").strip()
        if not text:
            errors.append(required(f"{where}.expression"))
        else:
            _check(errors, compiler.stateless, f"{where}.expression", text, ("bool",))
        if not name:
            errors.append(required(f"{where}.name"))
            continue
        syntax(errors, f"{where}.name", name, texts.qualified)
        if any(earlier.get("name") == name for earlier in rows[:index]):
            errors.append(duplicate(f"{where}.name", name))


def _variable(errors: Errors, compiler: _Compiler, path: str, row: Object) -> None:
    name, text = row.get("name") or "", row.get("expression") or ""
    if not name.strip():
        errors.append(required(f"{path}.name", "name is not specified"))
    elif not _NAME.fullmatch(name) or name in _RESERVED:
        errors.append(bad_value(f"{path}.name", name, "must be a valid CEL identifier"))
        name = ""
    if not text.strip():
        errors.append(required(f"{path}.expression", "expression is not specified"))
    elif wrong := compiler.add(name.strip(), text):
        errors.append(bad_value(f"{path}.expression", text, wrong))


def _validation(errors: Errors, compiler: _Compiler, path: str, row: Object) -> None:
    text, message, message_expression = (
        row.get(field) or "" for field in ("expression", "message", "messageExpression")
    )
    if not text.strip():
        errors.append(required(f"{path}.expression", "expression is not specified"))
    else:
        _check(errors, compiler.full, f"{path}.expression", text, ("bool",))
    if message_expression and not message_expression.strip():
        errors.append(bad_value(f"{path}.messageExpression", message_expression, "must be non-empty if specified"))
    elif message_expression:
        _check(errors, compiler.of_messages, f"{path}.messageExpression", message_expression, ("string",))
    if message and not message.strip():
        errors.append(bad_value(f"{path}.message", message, "must be non-empty if specified"))
    elif "\n" in message.strip() or "\r" in message.strip():
        errors.append(bad_value(f"{path}.message", message, "must not contain line breaks"))
    reason = row.get("reason")
    if reason is not None and reason not in _REASONS:
        errors.append(not_supported(f"{path}.reason", reason, _REASONS))


def _annotation(errors: Errors, compiler: _Compiler, path: str, row: Object, name: str) -> None:
    key, text = row.get("key") or "", row.get("valueExpression") or ""
    if name:
        syntax(errors, f"{path}.key", f"{name}/{key}", texts.qualified)
    else:
        errors.append(bad_value(f"{path}.key", key, "requires metadata.name be non-empty"))
    where = f"{path}.valueExpression"
    if not text.strip():
        errors.append(required(where, "valueExpression is not specified"))
    elif len(text.strip().encode()) > _LONGEST:
        errors.append(required(where, f"must not exceed {_LONGEST} bytes in length"))
    else:
        _check(errors, compiler.full, where, text.strip(), ("string", "null_type"))
