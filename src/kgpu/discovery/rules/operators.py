"""The operators of match expressions, as rows: how many values each takes, and when it holds for an element.

An expression with a wrong value is an error only where the element is there, as in the replaced program, because
otherwise a rule would fail on nodes that it is not about; ``flaws`` finds the same errors without any element.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from kgpu.base.suggest import did_you_mean
from kgpu.discovery.rules.model import RuleError
from kgpu.discovery.rules.patterns import PatternError, finds, pattern
from kgpu.discovery.rules.versions import version
from kgpu.formats.crd.nodefeatures import ANY, OPERATORS, MatchExpression

_INT: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_MAX_INT: Final = 2**63 - 1
VERSION: Final = "version"
EXISTS: Final = "Exists"
DOES_NOT_EXIST: Final = "DoesNotExist"
SHOWN: Final = 60

Number: TypeAlias = "tuple[int, ...]"
"""A whole number alone, or a version's three."""
Holds: TypeAlias = "Callable[[MatchExpression, str], bool]"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    """One operator. ``most`` is None for any number of values; ``holds`` compares an element that is there with values
    of the right number. ``ordered``: values are numbers or versions. ``range``: the first has to be the lesser one.
    """

    least: int = 0
    most: int | None = 0
    holds: Holds
    ordered: bool = False
    takes_patterns: bool = False

    @property
    def arity(self) -> str:
        """How many values it takes, for people."""
        if self.most is None:
            return "at least one value"
        return {0: "no value", 1: "one value", 2: "two values"}[self.most]


def holds(expression: MatchExpression, element: str | None) -> bool:
    """Whether it holds for an element's value; None for an element that is not there. Raises RuleError."""
    row = _row(expression)
    if expression.op in _ALWAYS_CHECKED:
        _check_arity(expression, row)
        return row.holds(expression, "") if element is not None else expression.op != EXISTS
    if element is None:
        return False
    _check_arity(expression, row)
    return row.holds(expression, element)


def flag_holds(expression: MatchExpression, *, there: bool) -> bool:
    """Whether it holds for a flag, which has no value to compare. Raises RuleError."""
    return holds(expression, "" if there else None) if expression.op in _ALWAYS_CHECKED else False


def flaws(expression: MatchExpression) -> Iterator[RuleError]:
    """Everything that is wrong with it, whatever a node has."""
    try:
        row = _row(expression)
    except RuleError as error:
        yield error
        return
    try:
        _check_arity(expression, row)
    except RuleError as error:
        yield error
    if expression.type not in {"", VERSION}:
        yield _wrong_type(expression)
    elif expression.type and not row.ordered:
        yield _error(
            expression, "has a type, which changes nothing", "a type with Gt, Ge, Lt, Le, GtLt or GeLe alone",
            "leave `type` out",
        )  # fmt: skip
    elif row.ordered:
        yield from _flawed_numbers(expression)
    for text in expression.value if row.takes_patterns else ():
        try:
            pattern(text)
        except PatternError as error:
            yield _pattern_error(expression, error)


def _flawed_numbers(expression: MatchExpression) -> Iterator[RuleError]:
    numbers = []
    for text in expression.value:
        try:
            numbers.append(_number(expression, text))
        except RuleError as error:
            yield error
    if len(numbers) == 2 and expression.op in _RANGES and not numbers[0] < numbers[1]:
        yield _no_range(expression)


def _row(expression: MatchExpression) -> OperatorRow:
    row = ROWS.get(expression.op)
    if row is None:
        hint = did_you_mean(expression.op[:SHOWN], OPERATORS)
        raise _error(expression, "has no such operator", f"one of {', '.join(OPERATORS)}", hint or "correct `op`")
    return row


def _check_arity(expression: MatchExpression, row: OperatorRow) -> None:
    count = len(expression.value)
    if count < row.least or (row.most is not None and count > row.most):
        raise _error(expression, f"has {count} values", f"{row.arity} with {expression.op or 'no op'}",
                     "correct `value`")  # fmt: skip


def _error(expression: MatchExpression, what: str, expected: str, remedy: str) -> RuleError:
    return RuleError(f"the expression {shown(expression)} {what}", expected, remedy)


def shown(expression: MatchExpression) -> str:
    """An expression for a message, cut short: ``Gt [2.0] as version``."""
    values = f" [{', '.join(expression.value)}]" if expression.value else ""
    text = f"{expression.op or 'any'}{values}{' as ' + expression.type if expression.type else ''}"
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _number(expression: MatchExpression, text: str) -> Number:
    """Raises RuleError for a text that is none of the expression's type."""
    if expression.type == VERSION:
        found = version(text)
        if found is None:
            raise _error(expression, f'is about "{_cut(text)}", which is no version', "such as 1, 1.2 or 1.2.3",
                         "compare another element, or leave it out by a condition of its own")  # fmt: skip
        return found
    if expression.type:
        raise _wrong_type(expression)
    number = int(text) if _INT.fullmatch(text) else None
    if number is None or not -_MAX_INT - 1 <= number <= _MAX_INT:
        raise _error(expression, f'is about "{_cut(text)}", which is no whole number', "digits, maybe with a sign",
                     "say `type: version` if versions are compared")  # fmt: skip
    return (number,)


def _wrong_type(expression: MatchExpression) -> RuleError:
    return _error(expression, f'has the type "{_cut(expression.type)}"', "version, or no type", "correct `type`")


def _no_range(expression: MatchExpression) -> RuleError:
    return _error(expression, "has no range", "the lesser value first", "exchange the two values")


def _pattern_error(expression: MatchExpression, error: PatternError) -> RuleError:
    return _error(expression, f"has a wrong pattern: {error.what}", error.expected, error.remedy)


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _compared(test: Callable[[Number, Sequence[Number]], bool]) -> Holds:
    def ordered(expression: MatchExpression, element: str) -> bool:
        limits = [_number(expression, text) for text in expression.value]
        # Versions in the wrong order are no error in the replaced program either: nothing is between them.
        if len(limits) == 2 and expression.type != VERSION and not limits[0] < limits[1]:
            raise _no_range(expression)
        return test(_number(expression, element), limits)

    return ordered


def _in_regexp(expression: MatchExpression, element: str) -> bool:
    try:
        for text in expression.value:
            pattern(text)  # all of them: a wrong one is an error though another one matches
        return any(finds(text, element) for text in expression.value)
    except PatternError as error:
        raise _pattern_error(expression, error) from error


_RANGES: Final = frozenset({"GtLt", "GeLe"})
_ALWAYS_CHECKED: Final = frozenset({ANY, EXISTS, DOES_NOT_EXIST})
ROWS: Final[dict[str, OperatorRow]] = {
    ANY: OperatorRow(holds=lambda _e, _v: True),
    "In": OperatorRow(least=1, most=None, holds=lambda e, v: v in e.value),
    "NotIn": OperatorRow(least=1, most=None, holds=lambda e, v: v not in e.value),
    "InRegexp": OperatorRow(least=1, most=None, holds=_in_regexp, takes_patterns=True),
    EXISTS: OperatorRow(holds=lambda _e, _v: True),
    DOES_NOT_EXIST: OperatorRow(holds=lambda _e, _v: False),
    "Gt": OperatorRow(least=1, most=1, ordered=True, holds=_compared(lambda v, n: v > n[0])),
    "Ge": OperatorRow(least=1, most=1, ordered=True, holds=_compared(lambda v, n: v >= n[0])),
    "Lt": OperatorRow(least=1, most=1, ordered=True, holds=_compared(lambda v, n: v < n[0])),
    "Le": OperatorRow(least=1, most=1, ordered=True, holds=_compared(lambda v, n: v <= n[0])),
    "GtLt": OperatorRow(least=2, most=2, ordered=True, holds=_compared(lambda v, n: n[0] < v < n[1])),
    "GeLe": OperatorRow(least=2, most=2, ordered=True, holds=_compared(lambda v, n: n[0] <= v <= n[1])),
    "IsTrue": OperatorRow(holds=lambda _e, v: v == "true"),
    "IsFalse": OperatorRow(holds=lambda _e, v: v == "false"),
}
