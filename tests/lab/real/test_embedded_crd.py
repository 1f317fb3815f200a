"""Custom kinds on the real server: recorded answers are still its answers, and both labs play the same story."""

from __future__ import annotations

import json
from pathlib import Path

from tests.lab.embedded.crd import real_answers

from .both import Both, beside
from .conftest import Cluster, until
from .crd_story import GROUP, STORY


def test_the_recorded_answers_are_the_real_server_s(cluster: Cluster) -> None:
    with real_answers.proxy(cluster.lab.kubectl_program, str(cluster.lab.kubeconfig)) as server:
        found = real_answers.ask(server)
    recorded = real_answers.recorded()
    assert found.keys() == recorded.keys()
    assert {name: one for name, one in found.items() if one != recorded[name]} == {}


def test_a_custom_kind_lives_and_dies_alike(cluster: Cluster, tmp_path: Path) -> None:
    with beside(cluster.lab.kubectl_program, cluster.lab.kubeconfig, tmp_path / "lab") as both:
        try:
            play(both)
        finally:
            for kubeconfig in (both.real, both.embedded):
                both.run(kubeconfig, "delete", "crd", f"gpupolicies.{GROUP}", f"others.{GROUP}", "--ignore-not-found")


def play(both: Both) -> None:
    """Every step on both, from its first to its last."""
    differences = []
    for words, manifest in STORY:
        until(lambda: published(both), "the real server to publish what it has accepted")
        found = both.difference(*words, stdin=json.dumps(manifest) if manifest else None)
        if found:
            differences.append(f"{' '.join(words)} {json.dumps(manifest) if manifest else ''}\n{found}")
    assert differences == []


def published(both: Both) -> bool:
    """The real server serves a kind, and tells of it, some time after it has accepted its names."""
    name = f"gpupolicies.{GROUP}"
    if "exit 0" not in both.run(both.real, "get", "crd", name):
        return True
    raw = both.run(both.real, "get", "--raw", f"/openapi/v3/apis/{GROUP}/v1")
    return '"GpuPolicy"' in raw and "exit 0" in both.run(both.real, "get", "--raw", f"/apis/{GROUP}/v1/gpupolicies")
