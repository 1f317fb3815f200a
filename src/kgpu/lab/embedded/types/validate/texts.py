"""Syntax of names, labels, keys, ports and paths: each function returns the errors of one text.

Wording and limits are those of apimachinery's validation packages. Results are cached, as the same texts come again.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable
from typing import Final

Texts = tuple[str, ...]
NameRule = Callable[[str], Texts]

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_LOOSE: Final = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SUBDOMAIN_LOOSE: Final = rf"{_LABEL_LOOSE}(\.{_LABEL_LOOSE})*"
_LABEL_1035: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
_KEY: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"


def explained(message: str, regex: str, *examples: str) -> str:
    """The API's message for a rule, with its examples and its regular expression."""
    if not examples:
        return f"{message} (regex used for validation is '{regex}')"
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{message} (e.g. {shown}regex used for validation is '{regex}')"


def between(low: int, high: int) -> str:
    return f"must be between {low} and {high}, inclusive"


def _at_most(length: int, unit: str = "characters") -> str:
    return f"must be no more than {length} {unit}"


def _rule(regex: str, message: str, length: int, *examples: str, unit: str = "characters") -> NameRule:
    matches = re.compile(regex, re.ASCII).fullmatch
    words = explained(message, regex, *examples)

    @functools.lru_cache(maxsize=4096)
    def check(text: str) -> Texts:
        messages = [_at_most(length, unit)] if len(text.encode()) > length else []
        if not matches(text):
            messages.append(words)
        return tuple(messages)

    return check


_SUBDOMAIN_WORDS: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character"
)
subdomain: Final = _rule(_SUBDOMAIN, _SUBDOMAIN_WORDS, 253, "example.com")
_prefix: Final = _rule(_SUBDOMAIN, _SUBDOMAIN_WORDS, 253, "example.com", unit="bytes")
loose_subdomain: Final = _rule(
    _SUBDOMAIN_LOOSE,
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', "
    "and must start and end with an alphanumeric character",
    253, "example.com",
)  # fmt: skip
label_1035: Final = _rule(
    _LABEL_1035,
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character",
    63, "my-name", "abc-123",
)  # fmt: skip
_label: Final = _rule(
    _LABEL,
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character",
    63, "my-name", "123-abc",
)  # fmt: skip
wildcard_subdomain: Final = _rule(
    rf"\*\.{_SUBDOMAIN}",
    "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of "
    "lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
    253, "*.example.com",
)  # fmt: skip
label_value: Final = _rule(
    f"({_KEY})?",
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character",
    63, "MyValue", "my_value", "12345", unit="bytes",
)  # fmt: skip
header_name: Final = _rule(
    "[-A-Za-z0-9]+", "a valid HTTP header must consist of alphanumeric characters or '-'", 2**31, "X-Header-Name"
)
percent: Final = _rule(
    "[0-9]+%", "a valid percent string must be a numeric string followed by an ending '%'", 2**31, "1%", "93%"
)
c_identifier: Final = _rule(
    "[A-Za-z_][A-Za-z0-9_]*",
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters "
    "or '_'",
    2**31, "my_name", "MY_NAME", "MyName",
)  # fmt: skip
_config_key: Final = _rule(
    "[-._a-zA-Z0-9]+",
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
    253, "key.name", "KEY_NAME", "key-name",
)  # fmt: skip


@functools.lru_cache(maxsize=4096)
def label(text: str) -> Texts:
    """A DNS-1123 label."""
    messages = _label(text)
    if messages and "." in text and not subdomain(text):
        return (*(message for message in messages if message.startswith("must be")), "must not contain dots")
    return messages


_KEY_WORDS: Final = explained(
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
    _KEY, "MyName", "my.name", "123-abc",
)  # fmt: skip
_key_matches: Final = re.compile(_KEY, re.ASCII).fullmatch


@functools.lru_cache(maxsize=8192)
def qualified(text: str) -> Texts:
    """A key of labels and annotations, a finalizer, a resource name: ``name`` or ``prefix/name``."""
    parts = text.split("/")
    if len(parts) > 2:
        return (
            f"a valid label key {_KEY_WORDS} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
        )
    messages: list[str] = []
    if len(parts) == 2:
        if not parts[0]:
            messages.append("prefix part must be non-empty")
        messages += [f"prefix part {message}" for message in _prefix(parts[0]) if parts[0]]
    name = parts[-1]
    if not name:
        messages.append("name part must be non-empty")
    elif len(name.encode()) > 63:
        messages.append(f"name part {_at_most(63, 'bytes')}")
    if not _key_matches(name):
        messages.append(f"name part {_KEY_WORDS}")
    return tuple(messages)


def prefix_of_name(rule: NameRule) -> NameRule:
    """The rule applied to a generateName, which may end in a dash."""
    return lambda text: rule(f"{text[:-2]}a" if len(text) > 1 and text.endswith("-") else text)


def path_segment(text: str) -> Texts:
    """Names of RBAC kinds, which may be nearly anything."""
    if text in {".", ".."}:
        return (f"may not be '{text}'",)
    return tuple(f"may not contain '{character}'" for character in ("/", "%") if character in text)


def _dots(text: str) -> Texts:
    if text in {".", ".."}:
        return (f"must not be '{text}'",)
    return ("must not start with '..'",) if text.startswith("..") else ()


def config_key(text: str) -> Texts:
    """A key of ConfigMaps and Secrets."""
    return (*_config_key(text), *_dots(text))


def environment_name(text: str) -> Texts:
    if not text:
        return ("environment variable name must be non-empty",)
    if all(" " <= character <= "~" and character != "=" for character in text):
        return ()
    return ("a valid environment variable name must consist only of printable ASCII characters other than '='",)


@functools.lru_cache(maxsize=1024)
def port_name(text: str) -> Texts:
    messages = [_at_most(15)] if len(text) > 15 else []
    if not re.fullmatch("[-a-z0-9]+", text):
        messages.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search("[a-z]", text):
        messages.append("must contain at least one letter (a-z)")
    if "--" in text:
        messages.append("must not contain consecutive hyphens")
    if text and (text[0] == "-" or text[-1] == "-"):
        messages.append("must not begin or end with a hyphen")
    return tuple(messages)


def port_number(port: int) -> Texts:
    return () if 1 <= port <= 65535 else (between(1, 65535),)


def ip_address(text: str) -> Texts:
    """An IPv4 or IPv6 address; leading zeros, which old objects may have, are refused."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return ("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",)
    return ()


def cidr(text: str) -> Texts:
    try:
        if "/" not in text:
            raise ValueError
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return ("must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",)
    return ()
