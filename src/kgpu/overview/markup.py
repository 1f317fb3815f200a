"""HTML from data: whatever is not markup already is made printable and escaped, so that no text can become a tag."""

from __future__ import annotations

from html import escape
from typing import Final

from kgpu.base.printable import printable

_EMPTY: Final = frozenset({"br", "input", "link", "meta", "hr"})


class Markup(str):
    """HTML that was made here."""

    __slots__ = ()


NOTHING: Final = Markup()


def text(value: object) -> Markup:
    """Plain text as HTML, also inside an attribute's quotes; markup stays as it is, None is nothing."""
    if isinstance(value, Markup):
        return value
    return NOTHING if value is None else Markup(escape(printable(str(value))))


def joined(*parts: object) -> Markup:
    """One after another."""
    return Markup("".join(map(text, parts)))


def tag(name: str, /, *content: object, **attributes: object) -> Markup:
    """An element. In names of attributes ``_`` is ``-`` and one at the end is dropped; True is an attribute without a
    value, None and False are none.
    """
    said = "".join(
        _attribute(key, value) for key, value in attributes.items() if value is not None and value is not False
    )
    if name in _EMPTY:
        return Markup(f"<{name}{said}>")
    return Markup(f"<{name}{said}>{joined(*content)}</{name}>")


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(value)}"'
