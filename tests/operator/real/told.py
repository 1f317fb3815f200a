"""What users are told of an installation: the policy's message and Events; and labels, which change what there is to tell."""

from __future__ import annotations

from tests.operator.real.conftest import Site


def label(site: Site, key: str, value: str = "") -> None:
    site.lab.kubectl("label", "--overwrite", "node", site.node, f"{key}={value}" if value else f"{key}-")


def told(site: Site) -> str:
    message: str = site.conditions().get("Ready", {}).get("message", "")
    return message


def events(site: Site) -> list[str]:
    """What the Events about Nodes and ClusterPolicies say."""
    found = site.get("events", "-n", "default")["items"]
    about = {"Node", "ClusterPolicy"}
    return [one["message"] for one in found if one["involvedObject"]["kind"] in about and one["type"] == "Warning"]


def has(words: tuple[str, ...], text: str) -> bool:
    return all(word in text for word in words)
