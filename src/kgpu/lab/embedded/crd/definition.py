"""TypeRules of CustomResourceDefinition itself: decoding, defaults and validation.

Complaints about a schema are made by ``definition_schema``; they name ``spec.validation`` instead of a version where
all versions have the same schema, as the real server's internal form does (likewise subresources, columns and fields).
"""

from __future__ import annotations

import re
from typing import Any, Final

from kgpu.lab.embedded.core.model import Call, TypeRules
from kgpu.lab.embedded.crd import conditions, schema_decoding
from kgpu.lab.embedded.crd.definition_parts import columns, names, selectable_fields, subresources
from kgpu.lab.embedded.crd.definition_schema import schema as check_schema
from kgpu.lab.embedded.crd.depth import refuse_deep
from kgpu.lab.embedded.crd.formats import normalized
from kgpu.lab.embedded.crd.schema_decoding import SchemaTypeError
from kgpu.lab.embedded.crd.schemas import clean, each, go_struct
from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.status import FieldError, Object, Verbatim, bad_request, bad_value, forbidden_field, required
from kgpu.lab.embedded.strict import refusal
from kgpu.lab.embedded.types.validate import base, texts

_OPTIONAL_NAMES: Final = ("singular", "shortNames", "listKind", "categories")
_STAYS: Final = "field is immutable"
_SHARED: Final = ("subresources", "schema", "additionalPrinterColumns", "selectableFields")


class DefinitionRules:
    """Over the rules of built-in kinds, which decode it."""

    def __init__(self, builtin: TypeRules) -> None:
        self._builtin = builtin

    def schema(self, kind: ApiKind) -> SchemaNode:
        return self._builtin.schema(kind)

    def decode(self, kind: ApiKind, obj: Object, call: Call) -> Object:
        """A copy as Go prints it: empty fields that are optional are left out, also in schemas."""
        refuse_deep(kind, obj)
        decoded = self._builtin.decode(kind, obj, call)
        try:
            _open_parts(decoded)
        except SchemaTypeError as error:
            raise bad_request(refusal(kind, [str(error)])) from error
        settle(decoded)
        if call.validation != "Ignore":
            call.warnings.extend(_unknown_formats(decoded))
        return decoded

    def default(self, kind: ApiKind, obj: Object) -> None:
        """Set singular, listKind, conversion and the stored version."""
        self._builtin.default(kind, obj)
        spec = obj["spec"]
        own = spec["names"]
        if own.get("kind"):
            own.setdefault("singular", own["kind"].lower())
            own.setdefault("listKind", f"{own['kind']}List")
        spec.setdefault("conversion", {"strategy": "None"})
        _store_version(obj)

    def prepare(self, kind: ApiKind, obj: Object, old: Object | None, subresource: str) -> None:
        """The status is the controllers'; a status update takes nothing else."""
        self._builtin.prepare(kind, obj, old, subresource)
        if old is None:
            obj["metadata"]["generation"] = 1
            obj["status"] = {"conditions": None, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": []}
            _store_version(obj)
        elif subresource == "":
            status = old.get("status") or {}
            obj["status"] = {**status, "storedVersions": list(status.get("storedVersions") or ())}
            if obj["spec"] != old["spec"]:
                obj["metadata"]["generation"] = int(old["metadata"].get("generation", 0)) + 1
            _store_version(obj)

    def deleting(self, kind: ApiKind, obj: Object) -> None:
        """Mark the object for its first DELETE, in place, before finalizers decide whether it stays."""
        del kind
        conditions.mark_dying(obj)

    def validate(self, kind: ApiKind, obj: Object, old: Object | None, subresource: str) -> list[FieldError]:
        del kind
        errors: list[FieldError] = []
        status = obj.get("status") or {}
        if old is None:
            base.metadata(errors, obj["metadata"], namespaced=False, rule=_name_rule(obj))
        else:
            base.metadata_update(errors, obj["metadata"], old["metadata"])
        if subresource != "status":
            errors += _spec(obj["spec"], old)
        errors += names(status.get("acceptedNames") or {}, "status.acceptedNames")
        if subresource != "status":
            errors += _stored(status.get("storedVersions") or [], obj["spec"].get("versions") or [])
            errors += _approval(obj, old)
        return errors


def _name_rule(obj: Object) -> texts.NameRule:
    spec = obj["spec"]
    needed = f"{spec['names'].get('plural', '')}.{spec.get('group', '')}"

    def check(name: str) -> texts.Texts:
        return (*texts.subdomain(name), *(() if name == needed else ('must be spec.names.plural+"."+spec.group',)))

    return check


def _open_parts(obj: Object) -> None:
    for version in (obj.get("spec") or {}).get("versions") or ():
        raw = (version.get("schema") or {}).get("openAPIV3Schema")
        if isinstance(raw, dict):
            schema_decoding.decode(raw)


def settle(obj: Object) -> None:
    """Set and drop empty fields as Go encodes the type, in place."""
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        spec = obj["spec"] = {}
    for field, empty in (("group", ""), ("scope", "")):
        spec.setdefault(field, empty)
    own = spec.setdefault("names", {})
    for field in _OPTIONAL_NAMES:
        if field in own and not own[field]:
            del own[field]
    for field in ("plural", "kind"):
        own.setdefault(field, "")
    if not spec.get("preserveUnknownFields"):
        spec.pop("preserveUnknownFields", None)
    spec.setdefault("versions", None)
    for version in spec["versions"] or ():
        for field, zero in (("name", ""), ("served", False), ("storage", False)):
            version.setdefault(field, zero)
        for field in ("deprecated", "additionalPrinterColumns", "selectableFields"):
            if field in version and not version[field]:
                del version[field]
        for column in version.get("additionalPrinterColumns") or ():
            for field in ("format", "description", "priority"):
                if field in column and not column[field]:
                    del column[field]
        schema = version.get("schema")
        if schema and isinstance(schema.get("openAPIV3Schema"), dict):
            schema["openAPIV3Schema"] = clean(schema["openAPIV3Schema"])
    status = obj.setdefault("status", {})
    status.setdefault("conditions", None)
    status.setdefault("acceptedNames", {"plural": "", "kind": ""})
    status.setdefault("storedVersions", None)


def _store_version(obj: Object) -> None:
    stored = obj["status"].get("storedVersions") or []
    name = next((version["name"] for version in obj["spec"].get("versions") or () if version.get("storage")), None)
    if name is not None and name not in stored:
        stored = [*stored, name]
    obj["status"]["storedVersions"] = stored or None


def _unknown_formats(obj: Object) -> list[str]:
    warnings: list[str] = []
    for version in obj["spec"].get("versions") or ():
        for raw in each((version.get("schema") or {}).get("openAPIV3Schema") or {}):
            form = raw.get("format")
            if form and raw.get("type") == "string" and not normalized(form):
                warnings.append(f'unrecognized format "{form}"')
    return list(dict.fromkeys(warnings))


def _spec(spec: Object, old: Object | None) -> list[FieldError]:
    errors: list[FieldError] = []
    group = spec.get("group", "")
    if not group:
        errors.append(required("spec.group"))
    elif wrong := texts.subdomain(group):
        errors.append(bad_value("spec.group", group, ",".join(wrong)))
    elif "." not in group:
        errors.append(bad_value("spec.group", group, "should be a domain with at least one dot"))
    base.one_of(errors, "spec.scope", spec.get("scope", ""), ("Cluster", "Namespaced"), order=True)
    versions: list[Object] = spec.get("versions") or []
    shared = _shared(versions)
    if (shared.get("schema") or {}).get("openAPIV3Schema") is None:
        for index, version in enumerate(versions):
            if (version.get("schema") or {}).get("openAPIV3Schema") is None:
                errors.append(required(f"spec.versions[{index}].schema.openAPIV3Schema"))
    for index, version in enumerate(versions):
        path = f"spec.versions[{index}]"
        if wrong := texts.label_1035(version["name"]):
            errors.append(bad_value(f"{path}.name", version["name"], ",".join(wrong)))
        errors += _version(version, path, shared)
    internal = [{key: part for key, part in version.items() if key not in shared} for version in versions]
    if len({version["name"] for version in versions}) != len(versions):
        errors.append(bad_value("spec.versions", _printed(internal), "must contain unique version names"))
    if sum(bool(version.get("storage")) for version in versions) != 1:
        words = "must have exactly one version marked as storage version"
        errors.append(bad_value("spec.versions", _printed(internal), words))
    if versions and (wrong := texts.label_1035(versions[0]["name"])):
        errors.append(bad_value("spec.version", versions[0]["name"], ",".join(wrong)))
    for field in ("plural", "singular", "kind", "listKind"):
        if not spec["names"].get(field):
            errors.append(required(f"spec.names.{field}"))
    errors += names(spec["names"], "spec.names")
    parts = [version.get("subresources") for version in versions]
    status = any((subresource or {}).get("status") is not None for subresource in parts)
    if "schema" in shared:
        errors += check_schema(shared["schema"], "spec.validation", status=status)
    errors += subresources(shared.get("subresources"), "spec.subresources")
    errors += columns(shared.get("additionalPrinterColumns"), "spec.additionalPrinterColumns")
    selectable = shared.get("selectableFields")
    if selectable:
        own = (shared.get("schema") or {}).get("openAPIV3Schema")
        errors += selectable_fields(selectable, own, "spec.selectableFields")
    errors += _conversion(spec.get("conversion") or {})
    if spec.get("preserveUnknownFields"):
        words = (
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        )
        errors.append(bad_value("spec.preserveUnknownFields", True, words))
    if old is not None:
        errors += _immutable(spec, old)
    return errors


def _shared(versions: list[Object]) -> dict[str, Any]:
    """The parts that are equal in all versions, which the real server keeps and reports once."""
    shared: dict[str, Any] = {}
    for field in _SHARED:
        if versions and all(version.get(field) == versions[0].get(field) for version in versions):
            shared[field] = versions[0].get(field)
    return {field: value for field, value in shared.items() if value is not None}


def _version(version: Object, path: str, shared: dict[str, Any]) -> list[FieldError]:
    errors: list[FieldError] = []
    warning = version.get("deprecationWarning")
    if warning is not None:
        wrong = _deprecation(bool(version.get("deprecated")), warning)
        errors += (bad_value(f"{path}.deprecationWarning", warning, words) for words in wrong)
    own = {field: value for field, value in version.items() if field not in shared}
    parts = version.get("subresources") or {}
    errors += check_schema(own.get("schema"), f"{path}.schema", status=parts.get("status") is not None)
    errors += subresources(own.get("subresources"), f"{path}.subresources")
    errors += columns(own.get("additionalPrinterColumns"), f"{path}.additionalPrinterColumns")
    if own.get("selectableFields"):
        raw = (own.get("schema") or {}).get("openAPIV3Schema")
        if raw is None:
            words = "may only be set when `version.schema.openAPIV3Schema` is not included"
            errors.append(bad_value(f"{path}.selectableFields", "", words))
        else:
            errors += selectable_fields(own["selectableFields"], raw, f"{path}.selectableFields")
    return errors


def _deprecation(deprecated: bool, warning: str) -> list[str]:
    if not deprecated:
        return ["can only be set for deprecated versions"]
    problems = []
    if len(warning.encode()) > 256:
        problems.append("must be <= 256 characters long")
    if not warning:
        problems.append("must not be an empty string")
    at = next((index for index, character in enumerate(warning) if not character.isprintable()), None)
    if at is not None:
        words = "must only contain printable UTF-8 characters; non-printable character found at index"
        problems.append(f"{words} {len(warning[:at].encode())}")
    return problems


_GO_VERSION: Final = (
    ("Name", "name", ""), ("Served", "served", False), ("Storage", "storage", False),
    ("Deprecated", "deprecated", False), ("DeprecationWarning", "deprecationWarning", None), ("Schema", "schema", None),
    ("Subresources", "subresources", None), ("AdditionalPrinterColumns", "additionalPrinterColumns", None),
    ("SelectableFields", "selectableFields", None),
)  # fmt: skip


def _printed(versions: list[Object]) -> Verbatim:
    """The internal form of versions in a message, as Go prints its fields."""
    return Verbatim("[" + ",".join(go_struct(_GO_VERSION, version) for version in versions) + "]")


def _conversion(conversion: Object) -> list[FieldError]:
    path = "spec.conversion"
    errors: list[FieldError] = []
    base.one_of(errors, f"{path}.strategy", conversion.get("strategy", ""), ("None", "Webhook"), order=True)
    if conversion.get("strategy") == "Webhook":
        words = "conversion webhooks are not supported by the embedded cluster; use None, or the real lab"
        errors.append(forbidden_field(f"{path}.strategy", words))
    else:
        webhook = conversion.get("webhook") or {}
        words = "should not be set when strategy is not set to Webhook"
        if webhook.get("clientConfig"):
            errors.append(forbidden_field(f"{path}.webhookClientConfig", words))
        if webhook.get("conversionReviewVersions"):
            errors.append(forbidden_field(f"{path}.conversionReviewVersions", words))
    return errors


def _immutable(spec: Object, old: Object) -> list[FieldError]:
    fields = [("group", spec["group"], old["spec"]["group"])]
    fields.append(("names.plural", spec["names"]["plural"], old["spec"]["names"]["plural"]))
    if conditions.is_true(old, "Established"):
        own = [("scope", spec["scope"], old["spec"]["scope"])]
        own.append(("names.kind", spec["names"]["kind"], old["spec"]["names"]["kind"]))
        fields = own + fields
    return [bad_value(f"spec.{name}", new, _STAYS) for name, new, before in fields if new != before]


def _stored(stored: list[str], versions: list[Object]) -> list[FieldError]:
    path = "status.storedVersions"
    if not stored:
        return [bad_value(path, stored or None, "must have at least one stored version")]
    errors: list[FieldError] = []
    known = {version["name"] for version in versions}
    missing = (version["name"] for version in versions if version.get("storage") and version["name"] not in stored)
    errors += (bad_value(path, stored, f"must have the storage version {name}") for name in missing)
    for index, name in enumerate(stored):
        if name not in known:
            words = (
                f"missing from spec.versions; {name} was previously a storage version, "
                "and must remain in spec.versions until a storage migration ensures "
                f"no data remains persisted in {name} and removes {name} from status.storedVersions"
            )
            errors.append(bad_value(f"{path}[{index}]", name, words))
    return errors


_PROTECTED: Final = ("k8s.io", "kubernetes.io")
_APPROVED: Final = "api-approved.kubernetes.io"
_PROPOSAL: Final = "see https://github.com/kubernetes/enhancements/pull/1111"


def _approval(obj: Object, old: Object | None) -> list[FieldError]:
    group = obj["spec"].get("group", "")
    if not any(group == domain or group.endswith(f".{domain}") for domain in _PROTECTED):
        return []
    value, before = ((definition or {"metadata": {}})["metadata"].get("annotations") or {} for definition in (obj, old))
    text = value.get(_APPROVED, "")
    if old is not None and text == before.get(_APPROVED, ""):
        return []
    path = f"metadata.annotations[{_APPROVED}]"
    words = f'protected groups must have approval annotation "{_APPROVED}"'
    if not text:
        return [required(path, f"{words}, {_PROPOSAL}")]
    if text.startswith("unapproved") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]", text):
        return []
    return [bad_value(path, text, f'{words} with either a URL or a reason starting with "unapproved", {_PROPOSAL}')]
