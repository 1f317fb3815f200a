"""Changes of custom objects, good and bad: schema, what it is about, before, after, subresource."""

from __future__ import annotations

from tests.lab.embedded.crd.cases import Raw

# (plural, label, before, after, subresource)
UPDATES: list[tuple[str, str, Raw, Raw, str]] = [
    ("limits", "fine", {"spec": {"count": 1}}, {"spec": {"count": 2}}, ""),
    ("limits", "wrong", {"spec": {"count": 1}}, {"spec": {"count": 20}}, ""),
    ("rules", "fixed changes", {"spec": {"fixed": "a"}}, {"spec": {"fixed": "b"}}, ""),
    ("rules", "fixed appears", {"spec": {}}, {"spec": {"fixed": "b"}}, ""),
    ("rules", "fixed goes", {"spec": {"fixed": "b"}}, {"spec": {}}, ""),
    ("rules", "once shrinks", {"spec": {"once": 5}}, {"spec": {"once": 4}}, ""),
    ("rules", "once grows", {"spec": {"once": 5}}, {"spec": {"once": 6}}, ""),
    (
        "rules",
        "port of a name",
        {"spec": {"ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}]}},
        {"spec": {"ports": [{"name": "b", "port": 3}, {"name": "c", "port": 1}]}},
        "",
    ),
    (
        "rules",
        "ports move",
        {"spec": {"ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}]}},
        {"spec": {"ports": [{"name": "b", "port": 2}, {"name": "a", "port": 1}]}},
        "",
    ),
    ("rules", "status goes back", {"spec": {}, "status": {"seen": 5}}, {"spec": {}, "status": {"seen": 4}}, "status"),
    (
        "rules",
        "status wrong",
        {"spec": {}, "status": {"seen": 5}},
        {"spec": {"min": 9}, "status": {"seen": "x"}},
        "status",
    ),
    (
        "parts",
        "main leaves status",
        {"spec": {"replicas": 1}, "status": {"state": "Up"}},
        {"spec": {"replicas": 2}, "status": {"state": "Down"}},
        "",
    ),
    (
        "parts",
        "status leaves spec",
        {"spec": {"replicas": 1}},
        {"spec": {"replicas": 2}, "status": {"state": "Down", "x": 1}},
        "status",
    ),
    ("parts", "status wrong", {"spec": {"replicas": 1}}, {"status": {"state": "Sideways", "replicas": -1}}, "status"),
    ("parts", "status of the wrong type", {"spec": {"replicas": 1}}, {"status": {"replicas": "x"}}, "status"),
    ("lists", "twice", {"spec": {"set": ["a"]}}, {"spec": {"set": ["a", "a"]}}, ""),
    ("wides", "labels", {"spec": {"a": "x"}}, {"metadata": {"labels": {"a b": "c"}}, "spec": {"a": "x"}}, ""),
]
