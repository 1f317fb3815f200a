"""The chart's rights against what its programs really ask for: nothing is refused, and nothing is granted for nothing."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from kgpu.formats.names import ACT_APP
from tests.operator import rights
from tests.operator.real.conftest import NAMESPACE, Object, Site

Right = tuple[str, str, str]  # group, resource, verb

ACCOUNTS: Final = {
    "gpu-operator": ("kgpu:operator", "gpu-operator"),
    "kgpu-agent": ("kgpu:agent", "kgpu-agent"),
    "kgpu-node-features": ("kgpu-node-features", "kgpu-node-features"),
}
"""The ClusterRole and the Role of each; beside them are the Events in ``default``."""


def of_rules(rules: Iterable[Object]) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


# What the operator gives to accounts of operands it has to have itself.
PASSED_ON: Final = of_rules(rights.PASSED_ON)
# Kinds of other projects, which this cluster does not have.
OTHERS: Final = {
    *(
        ("monitoring.coreos.com", kind, verb)
        for kind in ("servicemonitors", "podmonitors", "prometheusrules")
        for verb in ("list", "watch", "create", "patch", "delete")
    ),
    *(("nfd.k8s-sigs.io", "nodefeatures", verb) for verb in ("get", "list", "watch", "create", "patch", "delete")),
}
# Used when something happens that this story has not, or in clusters with NVIDIADriver objects.
SOMETIMES: Final = {
    # An Event that is told again is counted up. An operation is read again after a write without an answer, made for a
    # GPU that is not well, let begin once the admin wants that, and deleted when nothing calls for it any more or it has
    # long been over: tests/operations and tests/lab/test_operator.py do all of it.
    "gpu-operator": {
        ("nvidia.com", "nvidiadrivers/status", "patch"), ("", "events", "patch"),
        ("kgpu.dev", "nodeoperations", "get"), ("kgpu.dev", "nodeoperations", "create"),
        ("kgpu.dev", "nodeoperations", "patch"), ("kgpu.dev", "nodeoperations", "delete"),
        # Verbs that the admission policies ask about: no request has them.
        ("kgpu.dev", "nodeoperations", "record"), ("kgpu.dev", "nodeoperations", "upgrade"),
        ("kgpu.dev", "nodeoperations", "cut"),
    },
    "kgpu-agent": {
        ("", "events", "create"), ("", "events", "patch"),
    },
}  # fmt: skip
EXCUSED: Final = {
    "gpu-operator": PASSED_ON | OTHERS | SOMETIMES["gpu-operator"],
    "kgpu-agent": SOMETIMES["kgpu-agent"],
    "kgpu-node-features": SOMETIMES["kgpu-agent"],
}


def asked(site: Site) -> tuple[dict[str, set[Right]], list[str]]:
    """What each of the chart's accounts has asked for, and what was refused and never granted.

    A request that was granted at another time had come a moment before its right was known, or after its operand went.
    """
    used: dict[str, set[Right]] = defaultdict(set)
    refused, granted_once = [], set()
    # The last line may be half written: others than the chart's accounts ask all the time.
    for line in site.lab.paths.audit_log.read_text().split("\n")[:-1]:
        entry = json.loads(line)
        place = f"system:serviceaccount:{NAMESPACE}:"
        if not entry["user"]["username"].startswith(place) or "objectRef" not in entry:
            continue
        if "dryRun=All" in entry["requestURI"]:  # what other tests have tried with these accounts' tokens
            continue
        account, ref, code = entry["user"]["username"].removeprefix(place), entry["objectRef"], 0
        code = entry.get("responseStatus", {}).get("code", 0)
        resource = "/".join(filter(None, (ref["resource"], ref.get("subresource"))))
        used[account].add((ref.get("apiGroup", ""), resource, entry["verb"]))
        if entry["verb"] == "patch" and code == 201:  # an apply that made the object needs both
            used[account].add((ref.get("apiGroup", ""), resource, "create"))
        request = f"{account}: {entry['verb']} {entry['requestURI']}"
        if code == 403:
            # Rights for kinds of other projects are given where there are such kinds, and the API server looks at rights
            # first.
            refused += [request] if (ref.get("apiGroup", ""), resource, entry["verb"]) not in OTHERS else []
        elif code < 300:
            granted_once.add(request)
    return used, [request for request in refused if request not in granted_once]


def granted(site: Site, account: str) -> set[Right]:
    cluster, namespaced = ACCOUNTS[account]
    rules = [*site.get("clusterrole", cluster)["rules"], *site.get("role", namespaced, "-n", NAMESPACE)["rules"]]
    of_events = ["kgpu-events", *(["kgpu-operation-evidence"] if account == "gpu-operator" else [])]
    return of_rules(
        [*rules, *(rule for name in of_events for rule in site.get("role", name, "-n", "default")["rules"])]
    )


def pretended() -> list[Object]:
    """A tenant's namespace with Deployments of no pod that look like programs that kgpu makes room for."""
    found: list[Object] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant"}}]
    for name in ("gpu-operator", "nfd-master"):
        labels = {"app": name}
        pod = {"nodeSelector": {"nowhere": "true"}, "containers": [{"name": "c", "image": "none"}]}
        spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
        metadata = {"name": name, "namespace": "tenant", "labels": labels}
        found.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    return found


def operate(site: Site) -> None:
    """The node's maintenance, from the wish to the end; a reboot that its machine refuses, as systemd is not its first
    process; and a replacement, whose evidence is kept.
    """
    for name, kind in (("m", "Maintenance"), ("r", "Reboot"), ("x", "Replace")):
        metadata, spec = {"name": name}, {"nodeName": site.node, "type": kind}
        wish = {"apiVersion": "kgpu.dev/v1alpha1", "kind": "NodeOperation", "metadata": metadata, "spec": spec}
        site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(wish))

    def status(name: str) -> Object:
        return dict(site.get("nodeoperation", name).get("status", {}))

    site.until(lambda: status("m").get("phase") == "Acting", "the empty node")
    site.lab.kubectl("patch", "nodeoperation", "m", "--type=merge", "-p", '{"spec": {"resume": true}}')
    site.until(lambda: status("m").get("phase") == "Complete", "the end of the maintenance")
    site.until(lambda: status("r").get("phase") == "Failed", "the refusal")
    assert (status("r")["reason"], "which takes no order to reboot" in status("r")["message"]) == (
        "RebootRefused",
        True,
    )
    acts = ("pods", "-n", NAMESPACE, "-l", f"app={ACT_APP}")
    site.until(lambda: not site.get(*acts)["items"], "the act's pod to go")
    site.until(lambda: status("x").get("phase") == "Acting", "the node that is held for replacement")
    assert "evidence" in status("x"), status("x")["conditions"]
    site.lab.kubectl("patch", "nodeoperation", "x", "--type=merge", "-p", '{"spec": {"resume": true}}')
    site.until(lambda: status("x").get("phase") == "Complete", "the end of the replacement")
    site.lab.kubectl("delete", "nodeoperations", "--all")


def test_every_right_is_used_and_none_is_missing(clean: Site) -> None:
    site = clean
    rights = {}
    # Both layouts, a change, drift, and an end; the clean-up's requests are the operator's account's too. All beside
    # what a tenant has made to look like another operator and another discovery: nobody holds still because of it.
    site.lab.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": pretended()}))
    site.install("layout=operands", "psa.enabled=true")
    site.ready()
    site.install("psa.enabled=true", verb="upgrade", words=("--wait",))
    site.until(lambda: site.get("daemonset", "kgpu-agent", "-n", NAMESPACE), "the agents to come")
    site.ready()
    for words in (("daemonset", "kgpu-agent", "-n", NAMESPACE), ("runtimeclass", "nvidia")):
        site.lab.kubectl("delete", *words)
        site.until(lambda words=words: site.get(*words), f"{words} to be there again")
    site.ready()
    operate(site)
    for account in ACCOUNTS:
        rights[account] = granted(site, account)
    site.uninstall()
    used, refused = asked(site)
    assert refused == []
    unused = []
    for account, has in rights.items():
        unused += [f"{account}: {right}" for right in sorted(has - used[account] - EXCUSED[account])]
    assert "\n".join(unused) == ""
