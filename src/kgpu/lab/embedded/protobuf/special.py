"""Messages whose JSON is no object: times, quantities, numbers or texts, JSON itself, schemas or their alternatives."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, Final

from kgpu.lab.embedded.protobuf.wire import BadMessageError

MACHINERY: Final = "io.k8s.apimachinery.pkg."
_META: Final = f"{MACHINERY}apis.meta.v1."
_EXTENSIONS: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1."
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FORMAT: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
# Go's names of messages and fields that have other names in the table.
GO_MESSAGES: Final = {f"{_META}Time": "Timestamp", f"{_META}MicroTime": "Timestamp"}
GO_FIELDS: Final = {(f"{MACHINERY}api.resource.Quantity", "string"): "String_"}

Fields = dict[str, Any]


def _time(fields: Fields) -> str | None:
    moment = _moment(fields.get("seconds", 0), 0) if fields else None
    return f"{moment:%Y-%m-%dT%H:%M:%S}Z".rjust(20, "0") if moment else None


def _micro_time(fields: Fields) -> str | None:
    moment = _moment(fields.get("seconds", 0), fields.get("nanos", 0)) if fields else None
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z".rjust(27, "0") if moment else None


def _moment(seconds: int, nanos: int) -> dt.datetime | None:
    """None for Go's zero time."""
    try:
        moment = _EPOCH + dt.timedelta(seconds=seconds, microseconds=nanos // 1000)
    except OverflowError:
        raise BadMessageError("Time.MarshalJSON: year outside of range [0,9999]") from None
    return moment if moment > dt.datetime.min.replace(tzinfo=dt.UTC) else None


def _quantity(fields: Fields) -> str:
    text: str = fields.get("string", "0")
    if not text:
        raise BadMessageError(_FORMAT)
    return text


def _int_or_string(fields: Fields) -> Any:
    return fields.get("strVal", "") if fields.get("type") else fields.get("intVal", 0)


def _raw(fields: Fields) -> Any:
    return fields.get("-")


def _or_array(fields: Fields) -> Any:
    return fields.get("jSONSchemas") or fields.get("schema")


def _or_bool(fields: Fields) -> Any:
    return fields["schema"] if "schema" in fields else fields.get("allows", False)


def _or_strings(fields: Fields) -> Any:
    return fields.get("property") or fields.get("schema")


# Message -> the function that makes its JSON from its fields; None is null.
SPECIAL: Final[dict[str, Callable[[Fields], Any]]] = {
    f"{_META}Time": _time,
    f"{_META}MicroTime": _micro_time,
    f"{_META}FieldsV1": _raw,
    f"{MACHINERY}runtime.RawExtension": _raw,
    f"{MACHINERY}api.resource.Quantity": _quantity,
    f"{MACHINERY}util.intstr.IntOrString": _int_or_string,
    f"{_EXTENSIONS}JSON": _raw,
    f"{_EXTENSIONS}JSONSchemaPropsOrArray": _or_array,
    f"{_EXTENSIONS}JSONSchemaPropsOrBool": _or_bool,
    f"{_EXTENSIONS}JSONSchemaPropsOrStringArray": _or_strings,
}
