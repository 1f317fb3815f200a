"""All rules: functions under ``@rule``, and rows of data in a module's tuple ``RULES``. Each folder is a topic; its
modules are found automatically.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib
import pkgutil

from kgpu.doctor.rule import Rule, declared


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Return all rules, sorted by id. Two rules with the same id are a defect."""
    rules: dict[str, Rule] = {}
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        for rule in () if module.ispkg else rules_in(module.name):
            assert rule.id not in rules, f"rule {rule.id} is there twice"
            rules[rule.id] = rule
    return tuple(rules[name] for name in sorted(rules))


def rules_in(module: str) -> tuple[Rule, ...]:
    """Return a module's rules. A module without any is a defect: nobody would notice that it finds nothing."""
    rows: tuple[Rule, ...] = getattr(importlib.import_module(module), "RULES", ())
    rules = (*declared(module), *rows)
    assert rules, f"{module} declares no rule"
    return rules


@functools.cache
def by_id() -> dict[str, Rule]:
    """Return the rules by id, and by the ids of further catalogue rows that they cover."""
    rules = all_rules()
    return {name: rule for rule in rules for name in rule.also} | {rule.id: rule for rule in rules}


def is_named(rule_id: str, patterns: tuple[str, ...]) -> bool:
    """Whether an id matches one of the ids or patterns (``DPL-*``)."""
    return any(fnmatch.fnmatchcase(rule_id, pattern) for pattern in patterns)
