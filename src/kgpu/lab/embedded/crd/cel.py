"""CEL as Kubernetes speaks it: compile once, evaluate often, errors as values. Independent of CRDs.

Over cel-expr-python (the C++ implementation), with Kubernetes' function libraries (``cel_library``). Expressions are
checked against the types of their variables, and evaluated untyped, as comparisons across number types want it.
Messages are worded as cel-go words them. Known differences: ``cel_library``; cost limits are not enforced.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cel_expr_python import cel

from kgpu.lab.embedded.crd import cel_library, cel_words
from kgpu.lab.embedded.crd.cel_tree import Tree
from kgpu.lab.embedded.crd.cel_values import POOL

Type = cel.Type
_EXTENSIONS: Final = ("optional", "two-var-comprehensions", "lists", "sets", "bindings")
_HAS_OLD: Final = "kgpu_has_"
_OLD: Final = "kgpu_value_"


@dataclass(frozen=True, slots=True)
class CelError:
    """Why an expression could not be compiled or evaluated, worded as cel-go words it."""

    message: str

    def __str__(self) -> str:
        return self.message


@functools.cache
def _config() -> Any:
    lines = ["extensions:", *(f"  - name: {name}" for name in _EXTENSIONS)]
    lines += ["stdlib:", "  exclude_functions:", *(f"    - name: {name!r}" for name in cel_library.REDECLARED)]
    return cel.NewEnvConfigFromYaml("\n".join(lines) + "\n")


@functools.cache
def _evaluator() -> Any:
    """Every expression's run-time environment: types are not checked there."""
    return cel.NewEnv(POOL, config=_config(), functions=[*cel_library.evaluated()])


class Program:
    """A compiled expression. ``result`` is the type's name as cel-go prints it, ``dyn`` when it isn't known before."""

    __slots__ = ("_expression", "_optionals", "names", "result", "text")

    def __init__(self, text: str, expression: Any, result: str, optionals: frozenset[str]) -> None:
        self.text = text
        self.result = result
        self._expression = expression
        self._optionals = optionals

    def evaluate(self, bindings: Mapping[str, Any]) -> Any:
        """The value as plain Python data, or a CelError. Never raises for what the expression does.

        Values are JSON data, datetimes, timedeltas, bytes and those of ``cel_values``. An optional variable is absent
        when it isn't among the bindings.
        """
        if self._optionals:
            bindings = {**{k: v for k, v in bindings.items() if k not in self._optionals}, **self._unpacked(bindings)}
        try:
            found = self._expression.eval(data=bindings)
            if found.type() == Type.ERROR:
                return CelError(cel_words.running(str(found.plain_value())))
            return found.plain_value()
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            return CelError(cel_words.running(str(error)))

    def _unpacked(self, bindings: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in self._optionals:
            found[_HAS_OLD + name] = name in bindings
            found[_OLD + name] = bindings.get(name)
        return found


class Environment:
    """Which variables an expression may name, and of which type. ``optionals`` are optional variables.

    ``pool`` has the descriptors of message types among them (``cel_values.fresh_pool`` with more added). Making one
    costs about 0.3 ms, compiling an expression 0.1 ms; a Program is evaluated in some 5 us. ``names`` are what types
    are called in complaints.
    """

    def __init__(
        self, variables: Mapping[str, Any], *, optionals: frozenset[str] = frozenset(), pool: Any = None,
        names: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._optionals = optionals
        self._names = names or {}
        typed = {name: kind for name, kind in variables.items() if name not in optionals}
        for name in optionals:
            typed |= {_HAS_OLD + name: Type.BOOL, _OLD + name: variables[name]}
        self._checker = cel.NewEnv(pool or POOL, config=_config(), variables=typed, functions=cel_library.checked())

    def compile(self, text: str) -> Program | CelError:
        """The program, or what is wrong with the expression, as ``ERROR: <input>:1:6: undefined field ...``."""
        before, after = "", ""
        for name in sorted(self._optionals):
            some = f"{_HAS_OLD}{name} ? optional.of({_OLD}{name}) : optional.none()"
            before += f"cel.bind({name}, {some},\n"
            after += "\n)"
        full = before + text + after
        try:
            checked = self._checker.compile(full)
            wrong = cel_words.literals(Tree(checked.serialize()), text, len(before), _converts)
            if wrong:
                return CelError(wrong)
            expression = _evaluator().compile(full, disable_check=True)
        except (RuntimeError, UnicodeError) as error:
            lines = len(self._optionals)
            return CelError(cel_words.compiling(str(error), text, lines, self._names, lambda: _unchecked(text)))
        return Program(text, expression, _type_words(str(checked.return_type())), self._optionals)


def _unchecked(text: str) -> Tree:
    return Tree(_evaluator().compile(text, disable_check=True).serialize())


@functools.cache
def _conversion(function: str) -> Any:
    return cel.NewEnv(variables={"text": Type.STRING}).compile(f"{function}(text)")


def _converts(function: str, text: str) -> bool:
    try:
        return bool(_conversion(function).eval(data={"text": text}).type() != Type.ERROR)
    except RuntimeError:
        return False


def _type_words(name: str) -> str:
    return name.lower() if name.isupper() else name
