"""Custom kinds on the real server: recorded answers are still its answers, and both labs play the same story."""

from __future__ import annotations

import json
from http import HTTPStatus
from pathlib import Path
from typing import Final

from kgpu.lab.real.server import ApiServerConnection
from tests.lab.embedded.crd import real_answers

from .both import Both, beside
from .conftest import Cluster, until
from .crd_story import GROUP, STORY

CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def test_the_recorded_answers_are_the_real_server_s(cluster: Cluster) -> None:
    with real_answers.proxy(cluster.lab.kubectl_program, str(cluster.lab.kubeconfig)) as server:
        found = real_answers.ask(server)
    recorded = real_answers.recorded()
    assert found.keys() == recorded.keys()
    assert {name: one for name, one in found.items() if one != recorded[name]} == {}


def test_a_custom_kind_lives_and_dies_alike(cluster: Cluster, tmp_path: Path) -> None:
    with beside(cluster.lab.kubectl_program, cluster.lab.kubeconfig, tmp_path / "lab") as both:
        try:
            play(both, cluster.lab.server)
        finally:
            for kubeconfig in (both.real, both.embedded):
                both.run(kubeconfig, "delete", "crd", f"gpupolicies.{GROUP}", f"others.{GROUP}", "--ignore-not-found")


def play(both: Both, server: ApiServerConnection) -> None:
    """Every step on both, from its first to its last."""
    differences = []
    for words, manifest in STORY:
        until(lambda: published(server), "the real server to publish what it has accepted")
        found = both.difference(*words, stdin=json.dumps(manifest) if manifest else None)
        if found:
            differences.append(f"{' '.join(words)} {json.dumps(manifest) if manifest else ''}\n{found}")
    assert differences == []


def published(server: ApiServerConnection) -> bool:
    """The real server serves a kind, and tells of it, some time after it has accepted its names."""
    if server("GET", f"{CRDS}/gpupolicies.{GROUP}")[0] != HTTPStatus.OK:
        return True
    told, raw = server("GET", f"/openapi/v3/apis/{GROUP}/v1")
    return (
        told == HTTPStatus.OK
        and '"GpuPolicy"' in json.dumps(raw)
        and server("GET", f"/apis/{GROUP}/v1/gpupolicies")[0] == HTTPStatus.OK
    )
