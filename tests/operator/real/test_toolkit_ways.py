"""Other ways to run the toolkit: in a pod of its own, switched off again, and with the NRI plugin in place of handlers."""

from __future__ import annotations

import json

from kgpu.formats import names
from tests.operator.real.conftest import NAMESPACE, Site
from tests.operator.real.engine import Engine, patch_policy, pod


def outcome(site: Site, name: str, *, namespace: str, annotation: str) -> str:
    """The phase in which a pod without a request ends, and its output; or why its container was not made."""
    site.lab.kubectl("apply", "-f", "-", stdin=pod(name, namespace=namespace, annotation=annotation))

    def said() -> str:
        status = (site.get("pod", name, "-n", namespace) or {}).get("status", {})
        if status.get("phase") in {"Succeeded", "Failed"}:
            return f"{status['phase']}: {site.lab.kubectl('-n', namespace, 'logs', name)}"
        waiting = [one.get("state", {}).get("waiting", {}) for one in status.get("containerStatuses", ())]
        return next((f"Waiting: {one['message']}" for one in waiting if one.get("message")), "")

    try:
        return site.until(said, f"pod {name} to end or to be refused")
    finally:
        site.lab.kubectl("-n", namespace, "delete", "pod", name, "--force", "--grace-period=0")


def test_in_a_pod_of_its_own_and_switched_off(clean: Site) -> None:
    engine = Engine.of(clean)
    clean.install("layout=operands")
    clean.ready()
    engine.settled("with a toolkit in a pod of its own")
    patch_policy(clean, "/spec/toolkit/enabled", False)
    engine.as_before("after the toolkit was switched off")
    patch_policy(clean, "/spec/toolkit/enabled", True)
    engine.settled("after it was switched on")
    clean.install("layout=agent", verb="upgrade", words=())
    clean.until(
        lambda: engine.role_in(names.ROLES_ANNOTATION).get("state") == "running", "the toolkit in the whole agent"
    )
    clean.ready()
    engine.settled("in the other layout")
    clean.uninstall()
    clean.until(lambda: not clean.get("pods", "-n", NAMESPACE)["items"], "the last pods to go")
    engine.as_before("which another layout's pod has kept")


def test_with_the_nri_plugin_the_engine_is_left_alone(clean: Site) -> None:
    engine = Engine.of(clean)
    pid = engine.pid()
    clean.install("cdi.nriPluginEnabled=true")
    clean.ready()
    clean.until(lambda: engine.role().get("state") == "running", "the plugin to meet the runtime")
    assert "containerd" in engine.role()["reason"]
    assert engine.files() == engine.original
    assert engine.pid() == pid
    ours = outcome(clean, "ours", namespace=NAMESPACE, annotation="nvidia.com/gpu=0")
    assert "Test PASSED" in ours, ours
    theirs = outcome(clean, "theirs", namespace="default", annotation="nvidia.com/gpu=0")
    assert "Test PASSED" not in theirs
    report = json.loads(clean.shell("cat /var/run/cdi/management.nvidia.com-gpu.json"))
    assert report["kind"] == "management.nvidia.com/gpu"
    clean.uninstall()
    clean.until(lambda: not clean.get("pods", "-n", NAMESPACE)["items"], "the last pods to go")
    assert "management" not in clean.shell("ls /var/run/cdi")
