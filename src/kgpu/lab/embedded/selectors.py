"""Label and field selectors: parsed with the real API's grammar and error messages.

``labels_of`` returns None for "everything", else a function from an object to whether it matches; ``fields_of`` returns
terms for ``field_match``. Parsed selectors are cached, as clients repeat the same few.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.status import ApiError, Object, bad_request, shown

Match = Callable[[Object], bool]

_SPECIAL: Final = "=!(),<>"
_WORDS: Final = frozenset({")", ",", "!", "==", "=", ">", "in", "<", "!=", "notin", "("})
_BINARY: Final = {"in": "in", "notin": "notin", "=": "=", "==": "=", "!=": "!=", ">": ">", "<": "<"}
_NAME: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_VALUE: Final = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_DOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_RULE: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_DOMAIN_RULE: Final = (
    "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and "
    "must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    """One term of a label selector; ``operator``: ``=``, ``!=``, ``in``, ``notin``, ``exists``, ``!``, ``>``, ``<``."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a set of labels meets it."""
        value = labels.get(self.key)
        match self.operator:
            case "=" | "in":
                return value is not None and value in self.values
            case "!=" | "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "!":
                return value is None
        number = _int64(value) if value is not None else None
        limit = _int64(self.values[0])
        if number is None or limit is None:
            return False
        return number > limit if self.operator == ">" else number < limit


def _int64(text: str) -> int | None:
    return int(text) if _INTEGER.fullmatch(text) and abs(int(text)) < 1 << 63 else None


def labels_of(text: str) -> Match | None:
    """A query's labelSelector. Raises ApiError 400."""
    requirements = parse_labels(text)
    if not requirements:
        return None
    if len(requirements) == 1 and requirements[0].operator == "=":
        key, (wanted,) = requirements[0].key, requirements[0].values

        def equal(obj: Object) -> bool:
            labels = obj["metadata"].get("labels")
            return bool(labels) and labels.get(key) == wanted

        return equal
    return lambda obj: matches(requirements, obj["metadata"].get("labels") or {})


def matches(requirements: tuple[LabelRequirement, ...], labels: Mapping[str, str]) -> bool:
    """Whether a set of labels meets all requirements."""
    return all(requirement.matches(labels) for requirement in requirements)


_OPERATORS: Final = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}


def of_label_selector(selector: Mapping[str, Any] | None) -> tuple[LabelRequirement, ...] | None:
    """A LabelSelector of the API (matchLabels, matchExpressions); None matches nothing, () matches everything."""
    if selector is None:
        return None
    requirements = [LabelRequirement(key, "=", (value,)) for key, value in (selector.get("matchLabels") or {}).items()]
    requirements.extend(
        LabelRequirement(row["key"], _OPERATORS.get(row["operator"], "in"), tuple(row.get("values") or ()))
        for row in selector.get("matchExpressions") or ()
    )
    return tuple(requirements)


@functools.lru_cache(maxsize=4096)
def parse_labels(text: str) -> tuple[LabelRequirement, ...]:
    """``a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1,m<2``. Raises ApiError 400, worded as the real one."""
    return _Parser(text).parse() if text else ()


def _tokens(text: str) -> list[str | None]:
    """The tokens of a selector, with None at the end. One that begins with a NUL is a lexical error."""
    words: list[str | None] = []
    at, end = 0, len(text)
    while at < end:
        if text[at] in " \t\r\n":
            at += 1
        elif text[at] in _SPECIAL:
            start, best = at, 0
            while at < end and text[at] in _SPECIAL:
                at += 1
                if text[start:at] in _WORDS:
                    best = at
                elif best:
                    at = best
                    break
            if not best:
                words.append(f"\0error expected: keyword found '{text[start:at]}'")
                continue
            at = best
            words.append(text[start:at])
        else:
            start = at
            while at < end and text[at] not in _SPECIAL and text[at] not in " \t\r\n\0":
                at += 1
            words.append(text[start:at])
            if at < end and text[at] == "\0":
                break
    words.append(None)
    return words


class _Parser:
    def __init__(self, text: str) -> None:
        self._words = _tokens(text)
        self._at = 0

    def _look(self) -> str | None:
        return self._words[self._at]

    def _take(self) -> str | None:
        word = self._words[self._at]
        if word is not None:
            self._at += 1
        return word

    def parse(self) -> tuple[LabelRequirement, ...]:
        requirements: list[LabelRequirement] = []
        while (word := self._look()) is not None:
            if not _identifier(word) and word != "!":
                raise _bad(f"found '{_literal(word)}', expected: !, identifier, or 'end of string'")
            requirements.append(self._requirement())
            after = self._take()
            if after is None:
                break
            if after != ",":
                raise _bad(f"found '{_literal(after)}', expected: ',' or 'end of string'")
            following = self._look()
            if not _identifier(following) and following != "!":
                raise _bad(f"found '{_literal(following)}', expected: identifier after ','")
        return tuple(sorted(requirements, key=lambda requirement: requirement.key))

    def _requirement(self) -> LabelRequirement:
        word = self._take()
        absent = word == "!"
        if absent:
            word = self._take()
        if word is None or not _identifier(word):
            raise _unparsed(f"found '{_literal(word)}', expected: identifier")
        _check_key(word)
        if absent or self._look() in (None, ","):
            return LabelRequirement(word, "!" if absent else "exists")
        operator = self._take()
        if operator not in _BINARY:
            raise _unparsed(f"found '{_literal(operator)}', expected: in, notin, =, ==, !=, gt, lt")
        values = self._values() if operator in ("in", "notin") else (self._value(),)
        for position, value in enumerate(values):
            if operator in (">", "<") and _int64(value) is None:
                why = "for 'Gt', 'Lt' operators, the value must be an integer"
                raise _unparsed(f"values[{position}]: Invalid value: {shown(value)}: {why}")
            _check_value(word, position, value)
        return LabelRequirement(word, _BINARY[operator], values)

    def _value(self) -> str:
        if self._look() in (None, ","):
            return ""
        word = self._take()
        if word is None or not _identifier(word):
            raise _unparsed(f"found '{_literal(word)}', expected: identifier")
        return word

    def _values(self) -> tuple[str, ...]:
        word = self._take()
        if word != "(":
            raise _unparsed(f"found '{_literal(word)}' expected: '('")
        values: set[str] = set()
        word = self._look()
        if word == ")":
            self._take()
            return ("",)
        if word != "," and not _identifier(word):
            raise _unparsed(f"found '{_literal(word)}', expected: ',', ')' or identifier")
        while True:
            word = self._take()
            following = self._look()
            if word == ",":
                if not values or following in (",", ")"):
                    values.add("")
                if following == ")":
                    break
            elif word is not None and _identifier(word):
                values.add(word)
                if following == ")":
                    break
                if following != ",":
                    raise _unparsed(f"found '{_literal(following)}', expected: ',' or ')'")
            else:
                raise _unparsed(f"found '{_literal(word)}', expected: ',', or identifier")
        self._take()
        return tuple(sorted(values))


def _identifier(word: str | None) -> bool:
    return word is not None and not word.startswith("\0") and (word not in _WORDS or word in ("in", "notin"))


def _literal(word: str | None) -> str:
    return (word or "").lstrip("\0")


def _bad(message: str) -> ApiError:
    return bad_request(message)


def _unparsed(message: str) -> ApiError:
    return bad_request(f"unable to parse requirement: {message}")


def _check_key(key: str) -> None:
    problems = []
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        problems.append(
            "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
            "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
            "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. "
            "'example.com/MyName')"
        )
    else:
        if slash and not prefix:
            problems.append("prefix part must be non-empty")
        elif slash and not _DOMAIN.fullmatch(prefix):
            problems.append(_DOMAIN_RULE)
        if not name:
            problems.append("name part must be non-empty")
        elif len(name) > 63:
            problems.append("name part must be no more than 63 bytes")
        if not _NAME.fullmatch(name):
            problems.append(_NAME_RULE)
    if problems:
        raise _unparsed(f"<nil>: Invalid value: {shown(key)}: {'; '.join(problems)}")


def _check_value(key: str, position: int, value: str) -> None:
    problems = []
    if len(value.encode()) > 63:
        problems.append("must be no more than 63 bytes")
    if not _VALUE.fullmatch(value):
        problems.append(_VALUE_RULE)
    if problems:
        raise _unparsed(f"values[{position}][{key}]: Invalid value: {shown(value)}: {'; '.join(problems)}")


# Fields


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """One term of a field selector."""

    field: str
    value: str
    equal: bool = True


_NAMED: Final = ("metadata.name", "metadata.namespace")
_INVOLVED: Final = tuple(
    f"involvedObject.{name}"
    for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
)
# By group and plural: the fields that the real API selects by, where they are more than name and namespace.
_FIELDS: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("", "pods"): (
        *_NAMED, "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
        "spec.hostNetwork", "status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName", "spec.host",
    ),
    ("", "nodes"): ("metadata.name", "spec.unschedulable"),
    ("", "replicationcontrollers"): (*_NAMED, "status.replicas"),
    ("", "events"): (*_NAMED, *_INVOLVED, "reason", "reportingComponent", "source", "type"),
    ("events.k8s.io", "events"): (
        *_NAMED, *(name.replace("involvedObject", "regarding") for name in _INVOLVED), "reason", "reportingController",
        "type",
    ),
    ("", "namespaces"): ("metadata.name", "status.phase"),
    ("", "secrets"): (*_NAMED, "type"),
    ("", "services"): (*_NAMED, "spec.clusterIP", "spec.type"),
    ("batch", "jobs"): (*_NAMED, "status.successful"),
    ("certificates.k8s.io", "certificatesigningrequests"): ("metadata.name", "spec.signerName"),
    ("resource.k8s.io", "resourceslices"): ("metadata.name", "spec.nodeName", "spec.driver"),
}  # fmt: skip
# Where a field's value is not at the path of its name in the stored object.
_ALIASES: Final[dict[tuple[str, str], dict[str, str]]] = {
    ("", "pods"): {"spec.host": "spec.nodeName", "status.podIPs": "", "status.podIP": "status.podIPs.0.ip"},
    ("", "events"): {"source": "source.component|reportingComponent"},
    ("events.k8s.io", "events"): {
        **{name.replace("involvedObject", "regarding"): name for name in _INVOLVED},
        "reportingController": "reportingComponent",
    },
    ("batch", "jobs"): {"status.successful": "status.succeeded"},
}
# The value of a field that the object lacks, where that is not "".
_ABSENT: Final[dict[tuple[str, str], dict[str, str]]] = {
    ("", "pods"): {"spec.hostNetwork": "false"},
    ("", "nodes"): {"spec.unschedulable": "false"},
    ("", "replicationcontrollers"): {"status.replicas": "0"},
    ("batch", "jobs"): {"status.successful": "0"},
}


def fields_of(kind: ApiKind, text: str, custom: tuple[str, ...] = ()) -> tuple[FieldTerm, ...]:
    """A query's fieldSelector; ``custom`` are a CRD's selectable fields. Raises ApiError 400."""
    return _parse_fields(kind, text, custom) if text else ()


@functools.lru_cache(maxsize=4096)
def _parse_fields(kind: ApiKind, text: str, custom: tuple[str, ...]) -> tuple[FieldTerm, ...]:
    known = _FIELDS.get(kind.key)
    terms = []
    for part in sorted(_split_terms(text)):
        if not part:
            continue
        match = re.match(r"(.*?)(!=|==|=)(.*)", part, re.DOTALL)
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        name, operator, value = match.groups()
        term = FieldTerm(name, _unescape(value), operator != "!=")
        if known is not None:
            if name not in known:
                of = f" for {kind.group}/{kind.version}, Kind={kind.kind}" if kind.plural == "resourceslices" else ""
                raise bad_request(f"field label not supported{of}: {name}")
        elif kind.custom:
            if name not in _NAMED and name not in custom:
                raise bad_request(f"field label not supported: {name}")
        elif name not in _NAMED:
            raise bad_request(f'"{name}" is not a known field selector: only "metadata.name", "metadata.namespace"')
        terms.append(term)
    return tuple(terms)


def _split_terms(text: str) -> list[str]:
    return re.findall(r"((?:\\.|[^,\\]|\\$)*)(?:,|$)", text, re.DOTALL)


def _unescape(text: str) -> str:
    characters, at = [], 0
    while at < len(text):
        character = text[at]
        if character == "\\":
            escaped = text[at + 1 : at + 2]
            if escaped not in ("\\", ",", "=") or not escaped:
                raise bad_request(f"invalid field selector: invalid escape sequence: \\{escaped}")
            characters.append(escaped)
            at += 2
            continue
        if character in ",=":
            raise bad_request(f"invalid field selector: unescaped character in value: {ord(character)}")
        characters.append(character)
        at += 1
    return "".join(characters)


def field_match(kind: ApiKind, terms: tuple[FieldTerm, ...]) -> Match | None:
    """A function from an object (as stored) to whether it meets every term; None for no terms."""
    if not terms:
        return None
    aliases, absent = _ALIASES.get(kind.key, {}), _ABSENT.get(kind.key, {})
    rows = []
    for term in terms:
        paths = [path.split(".") for path in aliases.get(term.field, term.field).split("|") if path]
        rows.append((paths, absent.get(term.field, ""), term.value, term.equal))
    return lambda obj: all((_value(obj, paths, default) == value) is equal for paths, default, value, equal in rows)


def _value(obj: Object, paths: list[list[str]], default: str) -> str:
    for path in paths:
        value: Any = obj
        for part in path:
            if isinstance(value, list):
                value = value[int(part)] if part.isdigit() and int(part) < len(value) else None
            else:
                value = value.get(part) if isinstance(value, dict) else None
        if value is not None and value != "":
            return str(value).lower() if isinstance(value, bool) else str(value)
    return default


def named(terms: tuple[FieldTerm, ...], field: str) -> str | None:
    """The value that a field must have, None when it may have any."""
    return next((term.value for term in terms if term.field == field and term.equal), None)
