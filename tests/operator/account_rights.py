"""What an account may do by given Roles, ClusterRoles and their bindings, as text that one can read and compare.

``kubectl auth can-i --list`` says the same of a cluster; ``tests/operator/real/test_stolen_token.py`` compares the two.
``golden_rights/INSTALLATION/ACCOUNT.txt`` are what was reviewed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

Object = dict[str, Any]
Right = tuple[str, str, str]
"""Resource with its group, the name to which it ends ("" for none) and verb."""
Rights = Mapping[str, frozenset[Right]]
"""By namespace, "" for every one."""

FOLDER: Final = Path(__file__).parent / "golden_rights"
EVERYWHERE: Final = "in every namespace"
HOOK: Final = "helm.sh/hook"
_ROW: Final = re.compile(r"(\S*)\s+\[(.*?)\] +\[(.*?)\] +\[(.*?)\]")


def of_rules(rules: Iterable[Object]) -> Iterator[Right]:
    """Every right of the rules."""
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames", [""]):
                    yield from ((_shown(resource, group), name, verb) for verb in rule["verbs"])


def _shown(resource: str, group: str) -> str:
    """As kubectl writes it: the group stands before the subresource."""
    whole, slash, part = resource.partition("/")
    return f"{whole}.{group}".rstrip(".") + slash + part


def rights_of(account: str, objects: Iterable[Object]) -> Rights:
    """What the ServiceAccount may do by those of the objects that are roles and bindings."""
    objects = list(objects)
    roles = {_place(one): one for one in objects if one["kind"] in {"Role", "ClusterRole"}}
    found: dict[str, set[Right]] = defaultdict(set)
    for binding in objects:
        if not binding["kind"].endswith("Binding") or account not in {
            one["name"] for one in binding.get("subjects", ())
        }:
            continue
        reference, namespace = binding["roleRef"], binding["metadata"].get("namespace", "")
        role = roles[reference["kind"], namespace if reference["kind"] == "Role" else "", reference["name"]]
        found[namespace].update(of_rules(role["rules"]))
    return {namespace: frozenset(rights) for namespace, rights in found.items()}


def _place(one: Object) -> tuple[str, str, str]:
    return one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]


def accounts(objects: Iterable[Object]) -> list[str]:
    """The ServiceAccounts to which something is bound."""
    subjects = (one.get("subjects", ()) for one in objects if one["kind"].endswith("Binding"))
    return sorted({subject["name"] for found in subjects for subject in found})


def text_of(rights: Rights) -> str:
    """One line for each resource, below the namespace."""
    lines = []
    for namespace in sorted(rights):
        verbs: dict[str, set[str]] = defaultdict(set)
        for resource, name, verb in rights[namespace]:
            verbs[f"{resource} {name}".rstrip()].add(verb)
        lines += [f"in {namespace}" if namespace else EVERYWHERE]
        lines += [f"  {what:<48}  {' '.join(sorted(verbs[what]))}" for what in sorted(verbs)]
    return "\n".join(lines) + "\n"


def read(installation: str, account: str) -> Rights:
    """What was reviewed."""
    found: dict[str, set[Right]] = {}
    namespace = ""
    for line in (FOLDER / installation / f"{account}.txt").read_text().splitlines():
        if not line.startswith(" "):
            namespace = "" if line == EVERYWHERE else line.removeprefix("in ")
            continue
        what, verbs = re.split(" {2,}", line.strip())
        resource, _, name = what.partition(" ")
        found.setdefault(namespace, set()).update((resource, name, verb) for verb in verbs.split())
    return {place: frozenset(rights) for place, rights in found.items()}


def of_kubectl(printed: str) -> frozenset[Right]:
    """The rights on resources that ``kubectl auth can-i --list --no-headers`` has printed."""
    found = set()
    for line in printed.splitlines():
        match = _ROW.fullmatch(line.rstrip())
        assert match, line
        resource, _, names, verbs = match.groups()
        if resource:
            found |= {(resource, name, verb) for name in names.split() or [""] for verb in verbs.split()}
    return frozenset(found)
