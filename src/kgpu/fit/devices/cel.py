"""Selectors evaluated with CEL as Kubernetes has it for devices, over cel-expr-python (the optional extra ``cel``).

An expression is checked against the types that Kubernetes declares, then evaluated untyped. A domain that a device does
not have is an empty map; a key that it does not have is an error. Known differences from cel-go:

- limits of cost are not enforced;
- functions for addresses, URLs and named formats, ``find``, and those of lists (sum, min, max, isSorted) are not known;
- a version that is compared with a string by ``==`` or ``in`` is unequal, where cel-go fails; with the attribute right
  before ``==`` and the string it fails here too (``with_typed_equality``);
- a domain that a device lacks is an error where it is looked up in a variable bound to ``device.attributes`` itself.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cel_expr_python import cel

from kgpu.fit.devices import cel_values
from kgpu.fit.devices.model import AttributeValue, DeviceKey, SliceDevice
from kgpu.fit.devices.selector import SelectorFault

_T: Final = cel.Type
_EXTENSIONS: Final = ("optional", "bindings", "sets", "strings", "lists", "two-var-comprehensions")
_SIMPLE: Final = {"bool": _T.BOOL, "int": _T.INT, "double": _T.DOUBLE, "string": _T.STRING}
_FAILURES: Final = (RuntimeError, TypeError, ValueError, OverflowError, UnicodeError)
_MAX_LENGTH: Final = 10 * 1024
"""Characters of an expression; the API takes no longer ones."""
_MAX_CACHED: Final = 100_000
_TOKEN: Final = re.compile(
    r"(?P<text>[bBrR]{0,2}(?:'''.*?'''|\"\"\".*?\"\"\"|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"))"
    r"|(?P<lookup>(?<![\w.])device\s*\.\s*(?:attributes|capacity)\s*)(?:\[(?P<optional>\s*\?)?"
    r"|\.\s*(?P<field>[A-Za-z_]\w*)(?!\w|\s*\())"
    r"|(?P<open>[\[({])|(?P<close>[\])}])|(?P<other>\w+|\s+|.)",
    re.DOTALL,
)
_TEXT_EQUALITY: Final = re.compile(
    r"(?P<before>(?:^|[(&|,?:\[])\s*)(?P<attribute>device\.attributes\[\?\"[^\"\\]*\"\]\.orValue\(\{\}\)\.\w+)"
    r"\s*==\s*(?P<text>\"[^\"\\]*\"|'[^'\\]*')(?=\s*(?:$|[),?:&|\]]))"
)
_GO_WORDS: Final = (
    (re.compile(r"\bdivide by zero"), "division by zero"),
    (re.compile(r"Index error: index=(-?\d+) size=\d+"), r"index out of bounds: \1"),
)
"""What cel-go says instead, where that is seen in Events."""
_NO_KEY: Final = re.compile(r"Key not found in map : \"?([^\"]*)\"?")


@functools.cache
def _config() -> Any:
    return cel.NewEnvConfigFromYaml("\n".join(["extensions:", *(f"  - name: {name}" for name in _EXTENSIONS)]) + "\n")


def _type(name: str) -> Any:
    return _SIMPLE[name] if name in _SIMPLE else _T(name)


def _functions(declared: Iterator[tuple[str, Any, Sequence[Any], Any]]) -> list[Any]:
    overloads: dict[str, dict[str, Any]] = {}
    for name, result, parameters, code in declared:
        ident = "_".join([name.lstrip("."), *(str(kind) for kind in parameters)])
        extra = {} if code is None else {"impl": code}
        overload = cel.Overload(
            f"device_{re.sub('[^a-zA-Z0-9]', '_', ident)}", result, parameters, is_member=name.startswith("."), **extra
        )
        overloads.setdefault(name.lstrip("."), {}).setdefault(ident, overload)
    return [cel.FunctionDecl(name, list(found.values())) for name, found in overloads.items()]


def _by_name(kind: Any) -> Any:
    """Of a map by domain of maps by name."""
    return _T.Map(_T.STRING, _T.Map(_T.STRING, kind))


@functools.cache
def _checker() -> Any:
    variables = {
        "device.driver": _T.STRING,
        "device.attributes": _by_name(_T.DYN),
        "device.capacity": _by_name(_T(cel_values.QUANTITY)),
        "device.allowMultipleAllocations": _T.BOOL,
    }
    declared = (
        (name, _type(result), [_type(kind) for kind in parameters], None)
        for name, result, parameters, _ in cel_values.rows()
    )
    return cel.NewEnv(cel_values.POOL, config=_config(), variables=variables, functions=_functions(declared))


@functools.cache
def _evaluator() -> Any:
    """At run time every message is one kind."""
    message = {kind: _T(cel_values.QUANTITY) for kind in (cel_values.QUANTITY, cel_values.SEMVER)}
    declared = (
        (name, _T.DYN, [message.get(kind) or _type(kind) for kind in parameters], code)
        for name, _, parameters, code in (*cel_values.rows(), *cel_values.text_rows())
    )
    return cel.NewEnv(cel_values.POOL, config=_config(), functions=_functions(declared))


def with_typed_equality(expression: str) -> str:
    """The expression with ``==`` of an attribute and a string that fails for a version, as cel-go's does."""
    return _TEXT_EQUALITY.sub(rf"\g<before>{cel_values.SAME_TEXT}(\g<attribute>, \g<text>)", expression)


def with_default_domains(expression: str) -> str:
    """The expression with lookups of domains that give an empty map for one that is not there."""
    pieces: list[str] = []
    closing: list[str] = []
    for match in _TOKEN.finditer(expression):
        if match["lookup"] is None:
            pieces.append(match[0])
            if match["open"]:
                closing.append("")
            elif match["close"]:
                pieces.append(closing.pop() if closing else "")
        elif match["field"]:
            pieces.append(f'{match["lookup"]}[?"{match["field"]}"].orValue({{}})')
        else:
            pieces.append(("optional.of(" if match["optional"] else "") + match["lookup"] + "[?")
            closing.append(".orValue({})" + (")" if match["optional"] else ""))
    return "".join(pieces)


class CelSelectors:
    """A SelectorEngine. Stored selectors may name every field of devices, whatever the scheduler's gates are."""

    def __init__(self) -> None:
        self._programs: dict[str, Any] = {}
        self._inputs: dict[SliceDevice, Any] = {}
        self._verdicts: dict[tuple[str, SliceDevice], bool | SelectorFault] = {}

    def evaluate(self, expression: str, key: DeviceKey, device: SliceDevice) -> bool | SelectorFault:
        known = self._verdicts.get((expression, device))
        if known is not None:
            return known
        if len(self._verdicts) >= _MAX_CACHED:
            for cache in (self._verdicts, self._inputs, self._programs):
                cache.clear()
        verdict = self._verdicts[expression, device] = self._evaluate(expression, key, device)
        return verdict

    def _evaluate(self, expression: str, key: DeviceKey, device: SliceDevice) -> bool | SelectorFault:
        program = self._programs.get(expression)
        if program is None:
            program = self._programs[expression] = self._compile(expression)
        if isinstance(program, SelectorFault):
            return program
        given = self._inputs.get(device)
        if given is None:
            given = self._inputs[device] = _input(key.driver, device)
        if isinstance(given, SelectorFault):
            return given
        try:
            found = program.eval(given)
            kind = found.type()
            # Of other types the engine may crash when it is asked for the value.
            value = found.plain_value() if kind in (_T.BOOL, _T.ERROR) else None
        except TypeError:
            return SelectorFault("the result is of another type than true or false")
        except _FAILURES as error:
            return _fault(str(error))
        if kind == _T.BOOL:
            return bool(value)
        return _fault(str(value)) if kind == _T.ERROR else SelectorFault(f"the result is {kind}, not true or false")

    def _compile(self, expression: str) -> Any:
        if len(expression) > _MAX_LENGTH:
            return SelectorFault(f"longer than {_MAX_LENGTH} characters", compiling=True)
        checker, evaluator = _checker(), _evaluator()
        try:
            checked = checker.compile(expression)
            if checked.return_type() not in (_T.BOOL, _T.DYN):
                kind = str(checked.return_type()).lower()
                return SelectorFault(f"must evaluate to true or false, not to {kind}", compiling=True)
        except _FAILURES as error:
            # The checker knows the fields of ``device``, not the variable that has them.
            if "undeclared reference to 'device'" not in str(error):
                return SelectorFault(_compile_words(str(error)), compiling=True)
        try:
            return evaluator.compile(with_typed_equality(with_default_domains(expression)), disable_check=True)
        except _FAILURES as error:
            return SelectorFault(_compile_words(str(error)), compiling=True)


def _input(driver: str, device: SliceDevice) -> Any:
    try:
        attributes = {name: _value(name, value) for name, value in device.attributes.items()}
        capacity = {name: cel_values.of_quantity(value.value) for name, value in device.capacity.items()}
    except ValueError as error:
        return SelectorFault(str(error))
    fields = {
        "driver": driver,
        "allowMultipleAllocations": device.shareable,
        "attributes": _by_domain(driver, attributes),
        "capacity": _by_domain(driver, capacity),
    }
    return _evaluator().Activation(data={"device": fields})


def _value(name: str, value: AttributeValue) -> Any:
    if not value.kind:
        raise ValueError(f"attribute {name}: unsupported attribute value")
    try:
        return cel_values.of_version(value.value) if value.kind == "version" else value.value
    except ValueError as error:
        raise ValueError(f"attribute {name}: {error}") from error


def _by_domain(driver: str, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        domain, slash, identifier = name.partition("/")
        found.setdefault(domain if slash else driver, {})[identifier if slash else name] = value
    return found


def _fault(words: str) -> SelectorFault:
    missing = _NO_KEY.search(words)
    if missing is not None:
        return SelectorFault(f"no such key: {missing[1]}", missing=missing[1])
    if "No matching overloads" in words:
        return SelectorFault("no such overload")
    words = re.sub(r"^[A-Z_]+: ", "", words)
    for pattern, said in _GO_WORDS:
        words = pattern.sub(said, words)
    return SelectorFault(words)


def _compile_words(words: str) -> str:
    return re.sub(r"^[A-Z_]+: ", "", words).strip()
