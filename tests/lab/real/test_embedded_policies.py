"""ValidatingAdmissionPolicies on the real server: the recorded answers are still its answers."""

from __future__ import annotations

from tests.lab.embedded.policy import play, real_answers

from .conftest import Cluster


def test_the_recorded_answers_are_the_real_server_s(cluster: Cluster) -> None:
    with real_answers.proxy(cluster.lab.kubectl_program, str(cluster.lab.kubeconfig)) as call:
        found = play.everything(call)
    recorded = real_answers.recorded()
    assert found.keys() == recorded.keys()
    assert {name: one for name, one in found.items() if one != recorded[name]} == {}
