"""DRA's objects as messages quote them: the real server's internal types, with Go's names and every field.

A type is a row of ``field`` or ``field:type`` in JSON's names. A type with ``[]`` is a list, with ``*`` may be null;
``=x`` is the value of what is absent.
"""

from __future__ import annotations

from typing import Any, Final

CLAIM_SPEC: Final = "ClaimSpec"
TEMPLATE_SPEC: Final = "TemplateSpec"
ALLOCATION: Final = "Allocation"
ATTRIBUTE: Final = "Attribute"
NODE_TERMS: Final = "[]NodeTerm"

_SELECTORS: Final = "selectors:[]Selector allocationMode= count=0"
_TYPES: Final = {
    "ClaimSpec": "devices:Claim",
    "TemplateSpec": "spec:ClaimSpec",
    "Claim": "requests:[]Request constraints:[]Constraint config:[]Config",
    "Request": "name= exactly:*Exact firstAvailable:[]Choice",
    "Exact": f"deviceClassName= {_SELECTORS} adminAccess tolerations:[]Toleration capacity:*Capacity",
    "Choice": f"name= deviceClassName= {_SELECTORS} tolerations:[]Toleration capacity:*Capacity",
    "Selector": "cel:*Expression",
    "Expression": "expression=",
    "Toleration": "key= operator= value= effect= tolerationSeconds",
    "Capacity": "requests",
    "Constraint": "requests matchAttribute distinctAttribute",
    "Config": "requests opaque:*Opaque",
    "Opaque": "driver= parameters",
    "Allocation": "devices:Results nodeSelector:*NodeSelector allocationTimestamp",
    "Results": "results:[]Result config:[]ResultConfig",
    "Result": (
        "request= driver= pool= device= adminAccess tolerations:[]Toleration bindingConditions "
        "bindingFailureConditions shareID consumedCapacity"
    ),
    "ResultConfig": "source= requests opaque:*Opaque",
    "NodeSelector": "nodeSelectorTerms:[]NodeTerm",
    "NodeTerm": "matchExpressions:[]NodeRequirement matchFields:[]NodeRequirement",
    "NodeRequirement": "key= operator= values",
    "Attribute": "int bool string version",
}  # fmt: skip
_NAMES: Final = {
    "cel": "CEL", "shareID": "ShareID", "int": "IntValue", "bool": "BoolValue", "string": "StringValue",
    "version": "VersionValue",
}  # fmt: skip


def internal(kind: str, value: Any) -> Any:
    """``value`` of that type as the real server's messages print it."""
    if kind.startswith("[]"):
        return None if value is None else [internal(kind[2:], item) for item in value]
    if kind.startswith("*"):
        return None if value is None else internal(kind[1:], value)
    value = value or {}
    shown: dict[str, Any] = {}
    if kind == TEMPLATE_SPEC:
        shown |= value.get("metadata") or {}
    for row in _TYPES[kind].split():
        field, absent, zero = row.partition("=")
        name, _, inner = field.partition(":")
        found = value.get(name)
        if found is None and absent:
            found = int(zero) if zero else ""
        shown[_NAMES.get(name, name[0].upper() + name[1:])] = internal(inner, found) if inner else found
    return shown
