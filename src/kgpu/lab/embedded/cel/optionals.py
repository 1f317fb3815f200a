"""Finds expressions that may hand a list or map with an optional value in it to a function of ours.

The engine breaks the process when it makes Python data of such a list. So where an optional value gets to a place at
which it may end up inside of data (an element, an argument of any type), and a function of ours takes lists, the
expression is not evaluated. What is typed as optional all the way, as ``[?a]`` and ``a.?b.orValue(c)``, is no such
place.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

from kgpu.lab.embedded.cel import library
from kgpu.lab.embedded.cel.tree import ExpressionTree

_TYPED: Final = frozenset(
    {"optional.of", "or", "orValue", "value", "hasValue", "_?._", "_[?_]", "_[_]", "_==_", "_!=_", "_?_:_", "type"}
)
"""Functions that take optional values as what they are."""


@functools.cache
def _taking_data() -> frozenset[str]:
    """The names of our functions that get lists, maps or data of any kind."""
    names = set()
    for signature, implementation in library.rows():
        name, _, parameters, _ = library.parsed(signature)
        if implementation is not None and any(kind == "dyn" or kind.startswith("list(") for kind in parameters):
            names.add(name)
    return frozenset(names)


def may_break(tree: ExpressionTree) -> bool:
    """For an expression that was checked."""
    ours = _taking_data()
    if not any(node.HasField("call") and node.call.function in ours for node in tree.nodes()):
        return False
    return any(tree.is_optional(part) for node in tree.nodes() for part in _loose(node, tree))


def _loose(node: Any, tree: ExpressionTree) -> Iterator[Any]:
    """The parts of a node that become data, or that lose their type."""
    if node.HasField("call"):
        call = node.call
        kept = call.function in _TYPED and (call.function != "_?_:_" or tree.is_optional(node))
        if not kept:
            yield from call.args
    elif node.HasField("items"):
        optional = set(node.items.optional)
        yield from (one for position, one in enumerate(node.items.elements) if position not in optional)
    elif node.HasField("struct"):
        yield from (entry.value for entry in node.struct.entries if not entry.optional)
