"""The functions of templates, as rows: Go's own, and those of Sprig that make names and values.

Left out, and so refused where a rule is read: what reads the environment or the network, makes random values, or
formats for HTML; dates, secrets and file paths. Arguments and results have at most ``MAX_TEXT`` characters and items in
all, so that no call takes long.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kgpu.discovery.rules.model import RuleError
from kgpu.discovery.rules.pattern_syntax import PatternError
from kgpu.discovery.rules.patterns import finds, pattern
from kgpu.discovery.rules.templates.nodes import Value
from kgpu.discovery.rules.versions import version

MAX_TEXT: Final = 65_536
MAX_ITEMS: Final = 10_000
MAX_WEIGHT: Final = MAX_TEXT + 2
MAX_DEPTH: Final = 50
SEARCH: Final = "regexMatch"
_VERB: Final = re.compile(r"%([-+ 0#]*)(\d{0,3})(?:\.(\d{0,3}))?([a-zA-Z%])")
_INT: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """A function and how many arguments it takes; ``most`` is None for any number."""

    call: Callable[..., Value]
    least: int
    most: int | None


def wrong(what: str, expected: str) -> RuleError:
    """An error while a template is carried out."""
    return RuleError(what, expected, "correct the template, or ask with `if` first")


def truth(value: Value) -> bool:
    """Whether ``if`` takes it for true: not false, not zero and not empty."""
    return bool(value)


def shown(value: Value) -> str:
    """A value as Go prints it."""
    if value is None:
        return "<no value>"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if value != int(value) or abs(value) >= 1e21 else str(int(value))
    if isinstance(value, list):
        return f"[{' '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{shown(item)}' for key, item in sorted(value.items()))}]"
    return str(value)


def text(value: Value) -> str:
    if isinstance(value, str):
        return value
    raise wrong(f"a text is meant, and {shown(value)[:40]} is none", "a text")


def number(value: Value) -> int:
    """As Sprig's arithmetic reads it: a text that is no number is 0."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return int(value)
    return int(value) if isinstance(value, str) and _INT.fullmatch(value) else 0


def listed(value: Value) -> list[Value]:
    if isinstance(value, list):
        return value
    raise wrong(f"a list is meant, and {shown(value)[:40]} is none", "a list, such as a feature's elements")


def mapped(value: Value) -> dict[str, Value]:
    if isinstance(value, dict):
        return value
    raise wrong(f"a mapping is meant, and {shown(value)[:40]} is none", "a mapping, such as an element")


def whole(value: Value) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise wrong(f"a whole number is meant, and {shown(value)[:40]} is none", "a whole number")


def _kind(value: Value) -> str:
    for kind, name in ((bool, "bool"), (int, "int"), (float, "float"), (str, "text")):
        if isinstance(value, kind):
            return name
    raise wrong(f"{shown(value)[:40]} can't be compared", "texts, numbers, true or false")


def equal(first: Value, second: Value) -> bool:
    if _kind(first) != _kind(second):
        raise wrong(f"{shown(first)[:40]} and {shown(second)[:40]} are of different types", "values of one type")
    return first == second


def less(first: Value, second: Value) -> bool:
    equal(first, second)
    if isinstance(first, bool):
        raise wrong("true and false have no order", "texts or numbers")
    return bool(first < second)  # type: ignore[operator]


def index(value: Value, *keys: Value) -> Value:
    for key in keys:
        if isinstance(value, dict):
            value = value.get(text(key), "")  # what a map of texts has for a key that is not there
        elif isinstance(value, list | str):
            place = whole(key)
            if not 0 <= place < len(value):
                raise wrong(f"the index {place} is out of range", f"an index from 0 to {len(value) - 1}")
            value = value[place] if isinstance(value, list) else ord(value[place])
        else:
            raise wrong(f"{shown(value)[:40]} has no items", "a list or a mapping")
    return value


def cut(value: Value, *places: Value) -> Value:
    if not isinstance(value, list | str):
        raise wrong(f"{shown(value)[:40]} can't be cut", "a text or a list")
    begin, end = (*(whole(place) for place in places), *(0, len(value))[len(places) :])[:2]
    if not 0 <= begin <= end <= len(value):
        raise wrong(f"the places {begin} to {end} are out of range", f"places from 0 to {len(value)}")
    return value[begin:end]


def size(value: Value) -> int:
    if isinstance(value, str):
        return len(_bytes(value))
    if isinstance(value, list | dict):
        return len(value)
    raise wrong(f"{shown(value)[:40]} has no length", "a text, a list or a mapping")


def formatted(form: Value, *values: Value) -> str:
    rest = list(values)

    def verb(found: re.Match[str]) -> str:
        flags, width, precision, letter = found.groups()
        if letter == "%":
            return "%"
        if not rest:
            raise wrong(f"printf has no value for {found[0]}", "a value for each verb")
        return _verb(flags, width, precision, letter, rest.pop(0))

    done = _VERB.sub(verb, text(form))
    if rest:
        raise wrong(f"printf has {len(rest)} values too many", "a verb for each value")
    return done


def _verb(flags: str, width: str, precision: str | None, letter: str, value: Value) -> str:
    shapes: dict[str, Callable[[], str]] = {
        "v": lambda: shown(value),
        "s": lambda: shown(value)[: int(precision)] if precision else shown(value),
        "q": lambda: quoted(text(value)),
        "d": lambda: str(whole(value)),
        "x": lambda: _bytes(text(value)).hex() if isinstance(value, str) else format(whole(value), "x"),
        "X": lambda: format(whole(value), "X"),
        "t": lambda: shown(value),
        "f": lambda: format(float(number(value) if not isinstance(value, float) else value), f".{precision or 6}f"),
    }
    if letter not in shapes or "#" in flags:
        raise wrong(f"printf does not know %{flags}{letter} here", f"one of {', '.join('%' + one for one in shapes)}")
    done = shapes[letter]()
    if "+" in flags and letter == "d" and not done.startswith("-"):
        done = "+" + done
    if "-" in flags:
        return done.ljust(int(width or 0))
    return done.zfill(int(width or 0)) if "0" in flags and letter in "dxXf" else done.rjust(int(width or 0))


def quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'


def replaced(old: Value, new: Value, value: Value) -> str:
    whole_text = text(value)
    _check_length(len(whole_text) + whole_text.count(text(old)) * len(text(new)))
    return whole_text.replace(text(old), text(new))


def joined(by: Value, values: Value) -> str:
    parts = [shown(one) for one in (values if isinstance(values, list) else [values])]
    _check_length(sum(map(len, parts)) + len(parts) * len(text(by)))
    return text(by).join(parts)


def split_in(by: Value, most: Value, value: Value) -> dict[str, Value]:
    count = number(most)
    parts = [text(one) for one in split_at(by, value)]
    if 0 < count < len(parts):
        parts[count - 1 :] = [text(by).join(parts[count - 1 :])]
    return pieces(parts)


def _check_length(length: int) -> None:
    if length > MAX_TEXT:
        raise wrong(f"a text of more than {MAX_TEXT} characters", "a shorter one")


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "replace")


def repeated(count: Value, value: Value) -> str:
    times = max(number(count), 0)
    _check_length(times * len(text(value)))
    return text(value) * times


def shortened(count: Value, value: Value) -> str:
    places, whole_text = number(count), text(value)
    if places < 0:
        return whole_text[places:] if -places < len(whole_text) else whole_text
    return whole_text[:places]


def part(begin: Value, end: Value, value: Value) -> str:
    first, last, whole_text = number(begin), number(end), text(value)
    if first < 0:
        return whole_text[: max(last, 0)]
    return whole_text[first:] if last < 0 or last > len(whole_text) else whole_text[first:last]


def pieces(parts: Sequence[str]) -> dict[str, Value]:
    return {f"_{place}": piece for place, piece in enumerate(parts)}


def split_at(separator: Value, value: Value) -> list[Value]:
    by = text(separator)
    return list(text(value).split(by) if by else text(value))


def steps(begin: Value, end: Value, step: Value) -> list[Value]:
    found = range(number(begin), number(end), number(step) or (MAX_ITEMS + 1))
    if len(found) > MAX_ITEMS or not number(step):
        raise wrong(f"a list of more than {MAX_ITEMS} items", "a shorter one")
    return list(found)


def divided(first: Value, second: Value, *, rest: bool = False) -> int:
    by = number(second)
    if by == 0:
        raise wrong("a division by zero", "another number")
    # Go cuts towards zero, Python rounds down.
    quotient = abs(number(first)) // abs(by) * (1 if (number(first) < 0) == (by < 0) else -1)
    return number(first) - quotient * by if rest else quotient


def unique(values: Value) -> list[Value]:
    return list({repr(value): value for value in reversed(listed(values))}.values())[::-1]


def without(values: Value, *gone: Value) -> list[Value]:
    left_out = {repr(value) for value in gone}
    return [value for value in listed(values) if repr(value) not in left_out]


def made(*pairs: Value) -> dict[str, Value]:
    return {shown(key): pairs[at * 2 + 1] if at * 2 + 1 < len(pairs) else "" for at, key in enumerate(pairs[::2])}


def searched(searched_for: Value, value: Value) -> bool:
    try:
        return finds(text(searched_for), text(value))
    except PatternError as error:
        raise _no_pattern(error) from error


def _no_pattern(error: PatternError) -> RuleError:
    return RuleError(f"{SEARCH}: {error.what}", error.expected, error.remedy)


def fitting(condition: Value, value: Value) -> bool:
    """``semverCompare`` with one comparison, such as ``>=1.2``."""
    found = re.fullmatch(r"\s*(=|!=|>=|<=|>|<)?\s*(\S+)\s*", text(condition))
    limit, given = version(found[2]) if found else None, version(text(value))
    if found is None or limit is None or given is None:
        raise wrong(f"semverCompare can't compare {text(condition)[:40]} and {text(value)[:40]}",
                    "one comparison such as >=1.2, and a version")  # fmt: skip
    tests = {"!=": given != limit, ">=": given >= limit, "<=": given <= limit, ">": given > limit, "<": given < limit}
    return tests.get(found[1] or "=", given == limit)


def failed(message: Value) -> Value:
    raise wrong(f"the template says: {text(message)[:200]}", "what its author has thought of")


def _texts(change: Callable[[str], str]) -> FunctionRow:
    return FunctionRow(lambda value: change(text(value)), 1, 1)


def _with(change: Callable[[str, str], Any]) -> FunctionRow:
    """Of two texts, the second of which is the one that it is about."""
    return FunctionRow(lambda first, second: change(text(second), text(first)), 2, 2)


def _printed(values: Sequence[Value]) -> str:
    """As Go's Print: spaces between neighbours of which neither is a text."""
    done = ""
    for place, value in enumerate(values):
        apart = place > 0 and not isinstance(value, str) and not isinstance(values[place - 1], str)
        done += (" " if apart else "") + shown(value)
    return done


def _sum(*values: Value) -> int:
    return sum(map(number, values))


def _product(first: Value, *values: Value) -> int:
    done = number(first)
    for value in values:
        done *= number(value)
    return done


def _default(default: Value, value: Value = "") -> Value:
    return value if truth(value) else default


def _has(needle: Value, values: Value) -> bool:
    return needle in listed(values)


LAZY: Final = frozenset({"and", "or"})
"""They end at the first argument that decides."""
FUNCTIONS: Final[dict[str, FunctionRow]] = {
    # Go's own
    "and": FunctionRow(lambda *values: values[-1], 1, None),
    "or": FunctionRow(lambda *values: values[-1], 1, None),
    "not": FunctionRow(lambda value: not truth(value), 1, 1),
    "eq": FunctionRow(lambda first, *rest: any(equal(first, value) for value in rest), 2, None),
    "ne": FunctionRow(lambda first, second: not equal(first, second), 2, 2),
    "lt": FunctionRow(less, 2, 2),
    "le": FunctionRow(lambda first, second: less(first, second) or equal(first, second), 2, 2),
    "gt": FunctionRow(lambda first, second: less(second, first), 2, 2),
    "ge": FunctionRow(lambda first, second: less(second, first) or equal(first, second), 2, 2),
    "len": FunctionRow(size, 1, 1),
    "index": FunctionRow(index, 1, None),
    "slice": FunctionRow(cut, 1, 3),
    "print": FunctionRow(lambda *values: _printed(values), 0, None),
    "println": FunctionRow(lambda *values: " ".join(map(shown, values)) + "\n", 0, None),
    "printf": FunctionRow(formatted, 1, None),
    # Sprig's texts
    "upper": _texts(str.upper),
    "lower": _texts(str.lower),
    "trim": _texts(str.strip),
    "nospace": _texts(lambda value: "".join(value.split())),
    "trimAll": _with(lambda value, chars: value.strip(chars)),
    "trimPrefix": _with(str.removeprefix),
    "trimSuffix": _with(str.removesuffix),
    "hasPrefix": _with(str.startswith),
    "hasSuffix": _with(str.endswith),
    "contains": _with(lambda value, within: within in value),
    "replace": FunctionRow(replaced, 3, 3),
    "repeat": FunctionRow(repeated, 2, 2),
    "trunc": FunctionRow(shortened, 2, 2),
    "substr": FunctionRow(part, 3, 3),
    "quote": FunctionRow(lambda *values: " ".join(quoted(shown(value)) for value in values), 1, None),
    "squote": FunctionRow(lambda *values: " ".join(f"'{shown(value)}'" for value in values), 1, None),
    "cat": FunctionRow(lambda *values: " ".join(map(shown, values)), 1, None),
    "toString": FunctionRow(shown, 1, 1),
    "split": FunctionRow(lambda by, value: pieces([text(one) for one in split_at(by, value)]), 2, 2),
    "splitn": FunctionRow(split_in, 3, 3),
    "splitList": FunctionRow(split_at, 2, 2),
    "join": FunctionRow(joined, 2, 2),
    SEARCH: FunctionRow(searched, 2, 2),
    "semverCompare": FunctionRow(fitting, 2, 2),
    "b64enc": _texts(lambda value: base64.b64encode(_bytes(value)).decode()),
    "sha256sum": _texts(lambda value: hashlib.sha256(_bytes(value)).hexdigest()),
    # Numbers
    "int": FunctionRow(number, 1, 1),
    "int64": FunctionRow(number, 1, 1),
    "atoi": FunctionRow(number, 1, 1),
    "add": FunctionRow(_sum, 1, None),
    "add1": FunctionRow(lambda value: number(value) + 1, 1, 1),
    "sub": FunctionRow(lambda first, second: number(first) - number(second), 2, 2),
    "mul": FunctionRow(_product, 1, None),
    "div": FunctionRow(divided, 2, 2),
    "mod": FunctionRow(lambda first, second: divided(first, second, rest=True), 2, 2),
    "max": FunctionRow(lambda *values: max(map(number, values)), 1, None),
    "min": FunctionRow(lambda *values: min(map(number, values)), 1, None),
    "until": FunctionRow(lambda count: steps(0, count, 1 if number(count) >= 0 else -1), 1, 1),
    "untilStep": FunctionRow(steps, 3, 3),
    # What to take
    "default": FunctionRow(_default, 1, 2),
    "empty": FunctionRow(lambda value: not truth(value), 1, 1),
    "coalesce": FunctionRow(lambda *values: next((value for value in values if truth(value)), None), 0, None),
    "ternary": FunctionRow(lambda first, second, test: first if test is True else second, 3, 3),
    "fail": FunctionRow(failed, 1, 1),
    # Lists and mappings
    "list": FunctionRow(lambda *values: list(values), 0, None),
    "first": FunctionRow(lambda values: next(iter(listed(values)), None), 1, 1),
    "last": FunctionRow(lambda values: listed(values)[-1] if values else None, 1, 1),
    "rest": FunctionRow(lambda values: listed(values)[1:], 1, 1),
    "initial": FunctionRow(lambda values: listed(values)[:-1], 1, 1),
    "reverse": FunctionRow(lambda values: listed(values)[::-1], 1, 1),
    "append": FunctionRow(lambda values, value: [*listed(values), value], 2, 2),
    "prepend": FunctionRow(lambda values, value: [value, *listed(values)], 2, 2),
    "concat": FunctionRow(lambda *lists: [value for values in lists for value in listed(values)], 0, None),
    "has": FunctionRow(_has, 2, 2),
    "without": FunctionRow(without, 1, None),
    "uniq": FunctionRow(unique, 1, 1),
    "compact": FunctionRow(lambda values: [value for value in listed(values) if truth(value)], 1, 1),
    "sortAlpha": FunctionRow(lambda values: [*sorted(shown(value) for value in listed(values))], 1, 1),
    "dict": FunctionRow(made, 0, None),
    "get": FunctionRow(lambda values, key: mapped(values).get(text(key), ""), 2, 2),
    "hasKey": FunctionRow(lambda values, key: text(key) in mapped(values), 2, 2),
    "keys": FunctionRow(lambda *dicts: [key for values in dicts for key in sorted(mapped(values))], 1, None),
    "values": FunctionRow(lambda values: [mapped(values)[key] for key in sorted(mapped(values))], 1, 1),
}


def weight(values: Sequence[Value]) -> int:
    """How many characters and items values have, within each other too. Raises RuleError for too many, or too deep."""
    total = 0
    todo: list[tuple[Value, int]] = [(value, 0) for value in values]
    while todo:
        value, depth = todo.pop()
        total += 1 + (len(value) if isinstance(value, str) else 0)
        if isinstance(value, dict):
            total += sum(map(len, value))
            todo += [(item, depth + 1) for item in value.values()]
        elif isinstance(value, list):
            todo += [(item, depth + 1) for item in value]
        elif isinstance(value, int) and abs(value) >= 1 << 63:
            raise wrong("a number of more than 64 bits", "a smaller one")
        if total + len(todo) > MAX_WEIGHT or depth > MAX_DEPTH:
            raise wrong(f"more than {MAX_TEXT} characters and items, or lists too deep", "less")
    return total


def cost(name: str, values: Sequence[Value]) -> int:
    """How many steps a call counts for. Raises RuleError for arguments that are too large."""
    steps_of_search = 0
    if name == SEARCH:
        try:
            steps_of_search = len(pattern(text(values[0])).steps) * len(text(values[1]))
        except PatternError as error:
            raise _no_pattern(error) from error
    return (weight(values) + steps_of_search) // 16
