"""CRDs and objects to ask both API servers about: the real one and the embedded one. Rows of data, no expectations.

``SCHEMAS`` have objects (``OBJECTS``) and changes (``UPDATES``); ``DEFINITIONS`` are CRDs that are only tried.
"""

from __future__ import annotations

from typing import Any

Raw = dict[str, Any]
GROUP = "crds.test.kgpu.dev"


def crd(plural: str, versions: list[Raw], **spec: Any) -> Raw:
    """A CRD of the group; the kind is the plural, capitalized, without its last letter."""
    kind = spec.pop("kind", plural[:-1].capitalize())
    names = {"plural": plural, "kind": kind, **spec.pop("names", {})}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": spec.pop("metadata", {"name": f"{plural}.{spec.get('group', GROUP)}"}),
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": versions, **spec},
    }


def version(schema: Raw | None, name: str = "v1", **more: Any) -> Raw:
    found: Raw = {"name": name, "served": True, "storage": True, **more}
    if schema is not None:
        found["schema"] = {"openAPIV3Schema": schema}
    return found


def obj(**properties: Any) -> Raw:
    return {"type": "object", "properties": properties}


def arr(items: Raw, **more: Any) -> Raw:
    return {"type": "array", "items": items, **more}


def rules(schema: Raw, *found: str | Raw) -> Raw:
    return {**schema, "x-kubernetes-validations": [{"rule": one} if isinstance(one, str) else one for one in found]}


STR: Raw = {"type": "string"}
INT: Raw = {"type": "integer"}
NUM: Raw = {"type": "number"}
BOOL: Raw = {"type": "boolean"}
IOS: Raw = {"x-kubernetes-int-or-string": True}
ANY: Raw = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
EITHER: Raw = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}

# plural -> CRD; each has one or more served versions.
SCHEMAS: dict[str, Raw] = {
    "limits": crd(
        "limits",
        [
            version(
                {
                    **obj(
                        spec={
                            **obj(
                                count={**INT, "minimum": 1, "maximum": 10},
                                open={
                                    **INT,
                                    "minimum": 0,
                                    "exclusiveMinimum": True,
                                    "maximum": 5,
                                    "exclusiveMaximum": True,
                                },
                                step={**INT, "multipleOf": 5},
                                ratio={**NUM, "minimum": 0.5, "maximum": 2.5},
                                fraction={**NUM, "multipleOf": 0.5},
                                name={**STR, "minLength": 2, "maxLength": 5, "pattern": "^[a-z]+$"},
                                color={**STR, "enum": ["red", "green", "blue"]},
                                level={**INT, "enum": [1, 2, 3]},
                                flag=BOOL,
                                tags=arr(STR, minItems=1, maxItems=3),
                                keys={
                                    "type": "object",
                                    "additionalProperties": INT,
                                    "minProperties": 1,
                                    "maxProperties": 2,
                                },
                                maybe={**STR, "nullable": True},
                                port=IOS,
                                size=EITHER,
                                when={**STR, "format": "date-time"},
                                day={**STR, "format": "date"},
                                wait={**STR, "format": "duration"},
                                data={**STR, "format": "byte"},
                                id={**STR, "format": "uuid"},
                                ip={**STR, "format": "ipv4"},
                                six={**STR, "format": "ipv6"},
                                net={**STR, "format": "cidr"},
                                host={**STR, "format": "hostname"},
                                link={**STR, "format": "uri"},
                                mail={**STR, "format": "email"},
                                hw={**STR, "format": "mac"},
                                odd={**STR, "format": "color-of-money"},
                                label={**STR, "format": "k8s-short-name"},
                                i32={**INT, "format": "int32"},
                            ),
                            "required": ["count"],
                        }
                    ),
                    "required": ["spec"],
                }
            )
        ],
    ),
    "junctors": crd(
        "junctors",
        [
            version(
                obj(
                    spec={
                        **obj(a=STR, b=STR, c=INT, port=EITHER, n=INT),
                        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
                        "not": {"required": ["a", "c"]},
                    },
                    any={
                        **obj(x=STR, y=INT),
                        "anyOf": [{"required": ["x"]}, {"properties": {"y": {"minimum": 3}}, "required": ["y"]}],
                    },
                    all={**STR, "allOf": [{"minLength": 2}, {"pattern": "^x"}]},
                )
            )
        ],
    ),
    "defaults": crd(
        "defaults",
        [
            version(
                obj(
                    spec={
                        **obj(
                            replicas={**INT, "default": 3},
                            name={**STR, "default": "anon"},
                            maybe={**STR, "nullable": True, "default": "x"},
                            bare={**STR, "nullable": True},
                            plain=STR,
                            deep={**obj(on={**BOOL, "default": True}, text=STR), "default": {"text": "t"}},
                            lazy=obj(on={**BOOL, "default": True}),
                            list=arr(obj(port={**INT, "default": 80}, name=STR)),
                            map={"type": "object", "additionalProperties": obj(n={**INT, "default": 7})},
                        ),
                        "default": {},
                    }
                )
            )
        ],
    ),
    "prunes": crd(
        "prunes",
        [
            version(
                obj(
                    spec=obj(
                        known=STR,
                        open=ANY,
                        half={**obj(a=STR, b=obj(c=STR)), "x-kubernetes-preserve-unknown-fields": True},
                        list=arr(obj(a=STR)),
                        labels={"type": "object", "additionalProperties": STR},
                        anything={"type": "object", "additionalProperties": True},
                        template={
                            "type": "object",
                            "x-kubernetes-embedded-resource": True,
                            "x-kubernetes-preserve-unknown-fields": True,
                        },
                        strict={**obj(spec=obj(x=INT)), "x-kubernetes-embedded-resource": True},
                    )
                )
            )
        ],
    ),
    "lists": crd(
        "lists",
        [
            version(
                obj(
                    spec=obj(
                        set=arr(STR, **{"x-kubernetes-list-type": "set"}),
                        one=arr(
                            {**obj(name=STR, value=INT), "required": ["name"]},
                            **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
                        ),
                        two=arr(
                            {**obj(port=INT, protocol={**STR, "default": "TCP"}), "required": ["port"]},
                            **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"]},
                        ),
                        numbers=arr(INT, **{"x-kubernetes-list-type": "set"}),
                    )
                )
            )
        ],
    ),
    "parts": crd(
        "parts",
        [
            version(
                obj(
                    spec=obj(replicas={**INT, "maximum": 100}, text=STR),
                    status=obj(replicas=INT, selector=STR, state={**STR, "enum": ["Up", "Down"]}),
                ),
                subresources={
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.replicas",
                        "statusReplicasPath": ".status.replicas",
                        "labelSelectorPath": ".status.selector",
                    },
                },
                additionalPrinterColumns=[{"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"}],
                selectableFields=[{"jsonPath": ".spec.text"}],
            )
        ],
        names={"shortNames": ["pt"], "categories": ["all", "kgpu"]},
    ),
    "rules": crd(
        "rules",
        [
            version(
                rules(
                    obj(
                        spec=rules(
                            obj(
                                min=INT,
                                max=INT,
                                name=rules(STR, {"rule": "self.startsWith('x')", "message": "must start with x"}),
                                fixed=rules(STR, {"rule": "self == oldSelf", "message": "fixed is immutable"}),
                                once=rules(
                                    INT,
                                    {
                                        "rule": "!oldSelf.hasValue() || oldSelf.value() <= self",
                                        "optionalOldSelf": True,
                                        "message": "must not shrink",
                                    },
                                ),
                                tags=rules(arr(STR, maxItems=10), "self.all(t, t.size() < 4)", "self.isSorted()"),
                                size=rules(
                                    STR,
                                    {
                                        "rule": "quantity(self).isLessThan(quantity('10Gi'))",
                                        "messageExpression": "'too much: ' + self",
                                    },
                                ),
                                version=rules(STR, "isSemver(self) && semver(self).major() >= 2"),
                                ip=rules(STR, "isIP(self) && ip(self).family() == 4"),
                                link=rules(STR, "isURL(self) && url(self).getScheme() == 'https'"),
                                ports=arr(
                                    rules(
                                        {**obj(name=STR, port={**INT, "maximum": 70000}), "required": ["name"]},
                                        {
                                            "rule": "self.port == oldSelf.port",
                                            "message": "port of a name can't change",
                                            "fieldPath": ".port",
                                        },
                                    ),
                                    maxItems=20,
                                    **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
                                ),
                                limits={
                                    "type": "object",
                                    "maxProperties": 10,
                                    "additionalProperties": rules(
                                        INT,
                                        {
                                            "rule": "self > 0",
                                            "reason": "FieldValueForbidden",
                                            "message": "positive, please",
                                        },
                                    ),
                                },
                                mixed=rules(IOS, "type(self) == int ? self < 10 : self == 'auto'"),
                                when=rules({**STR, "format": "date-time"}, "self < timestamp('2100-01-01T00:00:00Z')"),
                                wait=rules({**STR, "format": "duration"}, "self <= duration('1h')"),
                                ratio=rules(NUM, "self < 1.0"),
                                kind=STR,
                                **{"x-y": INT, "namespace": STR},
                                maybe={**STR, "nullable": True},
                            ),
                            {
                                "rule": "!has(self.min) || !has(self.max) || self.min <= self.max",
                                "message": "min must not be above max",
                            },
                            {
                                "rule": "!has(self.x__dash__y) || self.x__dash__y > 1",
                                "fieldPath": "['x-y']",
                                "reason": "FieldValueRequired",
                                "message": "x-y matters",
                            },
                            {"rule": "!has(self.__namespace__) || self.__namespace__ != 'kube-system'"},
                            {
                                "rule": "!has(self.kind) || [1, 2, 3][size(self.kind)] > 0",
                                "message": "kind is too long",
                            },
                            {"rule": "!has(self.max) || 10 / self.max >= 0"},
                        ),
                        status=obj(seen=rules(INT, {"rule": "self >= oldSelf", "message": "seen can't go back"})),
                    ),
                    {"rule": "self.metadata.name != 'forbidden'", "message": "a bad name"},
                ),
                subresources={"status": {}},
            )
        ],
    ),
    "twos": crd(
        "twos",
        [
            version(obj(spec=obj(a=STR)), "v1beta1", storage=False, deprecated=True),
            version(obj(spec=obj(a=STR, b={**INT, "default": 1})), "v1"),
            version(
                obj(spec=obj(a=STR)), "v1alpha1", storage=False, deprecated=True, deprecationWarning="use v1, please"
            ),
        ],
        names={"shortNames": ["tw"]},
    ),
    "wides": crd("wides", [version(obj(spec=obj(a=STR)))], scope="Cluster"),
}

# (plural, label, body without apiVersion, kind and metadata.name; "metadata" and others are merged in)
OBJECTS: list[tuple[str, str, Raw]] = [
    ("limits", "good", {"spec": {"count": 3}}),
    ("limits", "everything", {"spec": {
        "count": 1, "open": 3, "step": 10, "ratio": 1, "fraction": 1.5, "name": "abc", "color": "red", "level": 2,
        "flag": True, "tags": ["a"], "keys": {"a": 1}, "maybe": None, "port": "http", "size": "1Gi",
        "when": "2020-01-01T00:00:00Z", "day": "2020-01-31", "wait": "1h30m", "data": "aGVsbG8=",
        "id": "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "ip": "10.0.0.1", "six": "::1", "net": "10.0.0.0/8", "host": "a.b-c.d",
        "link": "https://a.b/c", "mail": "a@b.c", "hw": "00:11:22:33:44:55", "odd": "any", "label": "a-b", "i32": 7,
    }}),
    ("limits", "no spec", {}),
    ("limits", "no count", {"spec": {}}),
    ("limits", "spec is null", {"spec": None}),
    ("limits", "spec is text", {"spec": "x"}),
    ("limits", "spec is a list", {"spec": []}),
    ("limits", "count text", {"spec": {"count": "3"}}),
    ("limits", "count float", {"spec": {"count": 3.5}}),
    ("limits", "count whole float", {"spec": {"count": 3.0}}),
    ("limits", "count bool", {"spec": {"count": True}}),
    ("limits", "count null", {"spec": {"count": None}}),
    ("limits", "count object", {"spec": {"count": {}}}),
    ("limits", "count low", {"spec": {"count": 0}}),
    ("limits", "count high", {"spec": {"count": 11}}),
    ("limits", "open low", {"spec": {"count": 1, "open": 0}}),
    ("limits", "open high", {"spec": {"count": 1, "open": 5}}),
    ("limits", "step", {"spec": {"count": 1, "step": 7}}),
    ("limits", "ratio low", {"spec": {"count": 1, "ratio": 0.25}}),
    ("limits", "ratio high", {"spec": {"count": 1, "ratio": 3}}),
    ("limits", "ratio text", {"spec": {"count": 1, "ratio": "1"}}),
    ("limits", "fraction", {"spec": {"count": 1, "fraction": 0.7}}),
    ("limits", "name short", {"spec": {"count": 1, "name": "a"}}),
    ("limits", "name long", {"spec": {"count": 1, "name": "abcdef"}}),
    ("limits", "name long in bytes only", {"spec": {"count": 1, "name": "ääää"}}),
    ("limits", "name pattern", {"spec": {"count": 1, "name": "aB"}}),
    ("limits", "name with newline", {"spec": {"count": 1, "name": "ab\n"}}),
    ("limits", "name number", {"spec": {"count": 1, "name": 7}}),
    ("limits", "color", {"spec": {"count": 1, "color": "pink"}}),
    ("limits", "color null", {"spec": {"count": 1, "color": None}}),
    ("limits", "level", {"spec": {"count": 1, "level": 4}}),
    ("limits", "flag text", {"spec": {"count": 1, "flag": "true"}}),
    ("limits", "tags none", {"spec": {"count": 1, "tags": []}}),
    ("limits", "tags many", {"spec": {"count": 1, "tags": ["a", "b", "c", "d"]}}),
    ("limits", "tags wrong item", {"spec": {"count": 1, "tags": ["a", 1, None]}}),
    ("limits", "tags text", {"spec": {"count": 1, "tags": "a"}}),
    ("limits", "keys none", {"spec": {"count": 1, "keys": {}}}),
    ("limits", "keys many", {"spec": {"count": 1, "keys": {"a": 1, "b": 2, "c": 3}}}),
    ("limits", "keys wrong", {"spec": {"count": 1, "keys": {"a.b": "x"}}}),
    ("limits", "maybe number", {"spec": {"count": 1, "maybe": 1}}),
    ("limits", "port bool", {"spec": {"count": 1, "port": True}}),
    ("limits", "port float", {"spec": {"count": 1, "port": 1.5}}),
    ("limits", "size bool", {"spec": {"count": 1, "size": True}}),
    ("limits", "size list", {"spec": {"count": 1, "size": []}}),
    ("limits", "unknown", {"spec": {"count": 1, "what": 1, "tags": ["a"]}, "who": 1}),
    ("limits", "many wrong", {"spec": {"count": "x", "name": "A", "color": 1, "flag": 0}}),
    *(
        ("limits", f"format {field} {number}", {"spec": {"count": 1, field: value}})
        for field, values in {
            "when": ["2020-01-01", "2020-01-01T00:00:00", "2020-13-01T00:00:00Z", "2020-01-01T00:00:00.123+02:00", "x", 5],
            "day": ["2020-02-30", "2020-1-1", "2020-01-01T00:00:00Z"],
            "wait": ["1 hour", "x", "-1h", "1.5s", "3", "2 weeks"],
            "data": ["a", "aGVs bG8=", "-_-_", ""],
            "id": ["f81d4fae7dec11d0a76500a0c91e6bf6", "F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6", "x"],
            "ip": ["10.0.0.256", "::1", "010.0.0.1", "1.2.3"],
            "six": ["10.0.0.1", "fe80::1%eth0", "::ffff:1.2.3.4", "x"],
            "net": ["10.0.0.1", "10.0.0.1/33", "fd00::/8"],
            "host": ["a_b", "-a", "a.", ""],
            "link": ["a/b", "/a/b", "a b:c", "mailto:x"],
            "mail": ["x", "A <a@b.c>", "a@b"],
            "hw": ["00-11-22-33-44-55", "00:11", "0011.2233.4455"],
            "label": ["A", "a" * 64, "-a"],
            "i32": [2**31, 1.5],
        }.items()
        for number, value in enumerate(values)
    ),
    ("limits", "bad name", {"metadata": {"name": "A_B"}, "spec": {"count": 1}}),
    ("limits", "bad label", {"metadata": {"name": "x", "labels": {"a b": "c d"}}, "spec": {"count": 1}}),
    ("limits", "bad annotation", {"metadata": {"name": "x", "annotations": {"a b": "c d"}}, "spec": {"count": 1}}),
    ("limits", "labels are a list", {"metadata": {"name": "x", "labels": ["a"]}, "spec": {"count": 1}}),
    ("limits", "label is a number", {"metadata": {"name": "x", "labels": {"a": 1}}, "spec": {"count": 1}}),
    ("limits", "unknown metadata", {"metadata": {"name": "x", "foo": 1}, "spec": {"count": 1}}),
    ("limits", "finalizer", {"metadata": {"name": "x", "finalizers": ["a b"]}, "spec": {"count": 1}}),
    ("limits", "owner", {"metadata": {"name": "x", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod"}]}, "spec": {"count": 1}}),
    ("limits", "generate name", {"metadata": {"name": "", "generateName": "X-"}, "spec": {"count": 1}}),
    ("junctors", "one", {"spec": {"a": "x"}}),
    ("junctors", "none", {"spec": {}}),
    ("junctors", "both", {"spec": {"a": "x", "b": "y"}}),
    ("junctors", "not", {"spec": {"a": "x", "c": 1}}),
    ("junctors", "wrong type too", {"spec": {"a": 1}}),
    ("junctors", "port", {"spec": {"a": "x", "port": 1.5}}),
    ("junctors", "any x", {"any": {"x": "a"}}),
    ("junctors", "any y", {"any": {"y": 3}}),
    ("junctors", "any low y", {"any": {"y": 2}}),
    ("junctors", "any none", {"any": {}}),
    ("junctors", "all good", {"all": "xy"}),
    ("junctors", "all one", {"all": "x"}),
    ("junctors", "all two", {"all": "y"}),
    ("defaults", "empty", {}),
    ("defaults", "spec empty", {"spec": {}}),
    ("defaults", "spec null", {"spec": None}),
    ("defaults", "nulls", {"spec": {"replicas": None, "name": None, "maybe": None, "bare": None, "plain": None}}),
    ("defaults", "given", {"spec": {"replicas": 0, "name": "", "maybe": "y", "deep": {}}}),
    ("defaults", "nested", {"spec": {"lazy": {}, "list": [{}, {"port": 1}, {"port": None}], "map": {"a": {}, "b": {"n": None}}}}),
    ("defaults", "null items", {"spec": {"list": [None]}}),
    ("defaults", "null values", {"spec": {"map": {"a": None}}}),
    ("prunes", "unknown", {"spec": {"known": "a", "unknown": 1}, "extra": {"a": 1}}),
    ("prunes", "open", {"spec": {"open": {"a": {"b": [1, {"c": None}]}}}}),
    ("prunes", "half", {"spec": {"half": {"a": "x", "z": 1, "b": {"c": "x", "d": 1}}}}),
    ("prunes", "list", {"spec": {"list": [{"a": "x", "b": 1}, {"c": 2}]}}),
    ("prunes", "labels", {"spec": {"labels": {"a": "b", "c.d/e": "f"}, "anything": {"a": 1, "b": {"c": 1}}}}),
    ("prunes", "template", {"spec": {"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "foo": "b"}, "spec": {"x": 1}}}}),
    ("prunes", "template without kind", {"spec": {"template": {"metadata": {"labels": {"a b": "c"}}}}}),
    ("prunes", "template wrong", {"spec": {"template": {"apiVersion": "a/b/c", "kind": "no kind", "metadata": {"name": "x/y"}}}}),
    ("prunes", "template labels wrong", {"spec": {"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": 1}}}}}),
    ("prunes", "template kind number", {"spec": {"template": {"apiVersion": "v1", "kind": 1}}}),
    ("prunes", "strict", {"spec": {"strict": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "a"}, "spec": {"x": 1, "y": 2}, "z": 1}}}),
    ("lists", "good", {"spec": {"set": ["a", "b"], "one": [{"name": "a"}, {"name": "b"}], "two": [{"port": 1}, {"port": 1, "protocol": "UDP"}]}}),
    ("lists", "set twice", {"spec": {"set": ["a", "b", "a", "a", "b"]}}),
    ("lists", "numbers twice", {"spec": {"numbers": [1, 2, 1]}}),
    ("lists", "one twice", {"spec": {"one": [{"name": "a", "value": 1}, {"name": "a", "value": 2}]}}),
    ("lists", "two twice", {"spec": {"two": [{"port": 1}, {"port": 1, "protocol": "TCP"}]}}),
    ("lists", "key missing", {"spec": {"one": [{"value": 1}]}}),
    ("lists", "no object", {"spec": {"one": ["a"]}}),
    ("parts", "good", {"spec": {"replicas": 3}, "status": {"replicas": 1, "state": "Up"}}),
    ("parts", "status is dropped unseen", {"spec": {}, "status": {"state": "Sideways"}}),
    ("parts", "negative", {"spec": {"replicas": -1}}),
    ("parts", "text", {"spec": {"replicas": "x"}}),
    ("parts", "float", {"spec": {"replicas": 1.5}}),
    ("rules", "good", {"spec": {"min": 1, "max": 2, "name": "xa", "tags": ["a", "b"], "size": "1Gi", "version": "2.0.0"}}),
    ("rules", "min above max", {"spec": {"min": 3, "max": 2}}),
    ("rules", "name", {"spec": {"name": "a"}}),
    ("rules", "first of fixed", {"spec": {"fixed": "a", "once": 5}}),
    ("rules", "tags long", {"spec": {"tags": ["abcde"]}}),
    ("rules", "tags unsorted", {"spec": {"tags": ["b", "a"]}}),
    ("rules", "size", {"spec": {"size": "11Gi"}}),
    ("rules", "size is no quantity", {"spec": {"size": "lots"}}),
    ("rules", "version", {"spec": {"version": "1.9.9"}}),
    ("rules", "no version", {"spec": {"version": "two"}}),
    ("rules", "ip", {"spec": {"ip": "::1"}}),
    ("rules", "link", {"spec": {"link": "http://a.b"}}),
    ("rules", "limits", {"spec": {"limits": {"cpu": 0, "mem": 1}}}),
    ("rules", "mixed int", {"spec": {"mixed": 11}}),
    ("rules", "mixed text", {"spec": {"mixed": "auto"}}),
    ("rules", "mixed wrong text", {"spec": {"mixed": "manual"}}),
    ("rules", "when", {"spec": {"when": "2200-01-01T00:00:00Z"}}),
    ("rules", "wait", {"spec": {"wait": "2h"}}),
    ("rules", "ratio whole", {"spec": {"ratio": 1}}),
    ("rules", "ratio", {"spec": {"ratio": 0.5}}),
    ("rules", "escaped", {"spec": {"x-y": 1}}),
    ("rules", "keyword", {"spec": {"namespace": "kube-system"}}),
    ("rules", "index", {"spec": {"kind": "abcdefg"}}),
    ("rules", "division", {"spec": {"max": 0}}),
    ("rules", "root", {"metadata": {"name": "forbidden"}}),
    ("rules", "blocked by type", {"spec": {"min": "x", "max": 1, "name": "a"}}),
    ("rules", "not blocked by range", {"spec": {"name": "a", "ports": [{"name": "a", "port": 70001}]}}),
    ("rules", "null", {"spec": {"maybe": None, "name": None}}),
    ("twos", "v1", {"spec": {"a": "x"}}),
    ("twos", "v1beta1", {"apiVersion": f"{GROUP}/v1beta1", "spec": {"a": "x", "b": 1}}),
    ("twos", "v1alpha1", {"apiVersion": f"{GROUP}/v1alpha1", "spec": {"a": 1}}),
    ("wides", "good", {"spec": {"a": "x"}}),
    ("wides", "dots", {"metadata": {"name": "a..b"}, "spec": {"a": "x"}}),
]  # fmt: skip
