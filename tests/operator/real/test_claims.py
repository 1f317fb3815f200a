"""GPUs by claims, brought by the chart: a node goes from the device plugin to the DRA driver and back."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kgpu.formats import names
from kgpu.hw.simulator import mig
from tests.charts.test_claim_parameters import WRONG_AND_WORDS, claim, device_class, of, template
from tests.operator.real.conftest import CHART, NAMESPACE, Object, Site
from tests.operator.real.picture import difference, take

PAGE = CHART.parents[1] / "docs" / "how-to" / "hand-out-gpus-by-claims.md"
LABEL = names.ALLOCATION_LABEL


def manifests(page: Path) -> dict[str, str]:
    """The manifests of the page that have a pod, by its name."""
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    return {pod: block for block in blocks for pod in re.findall(r"kind: Pod\nmetadata: {name: ([a-z-]+)}", block)}


def slices(site: Site) -> list[Object]:
    found: list[Object] = site.get("resourceslices")["items"]
    return found


def devices(site: Site) -> int:
    return sum(len(one["spec"].get("devices") or ()) for one in slices(site))


def status(site: Site) -> str:
    """What ``kgpu status`` prints, on one line."""
    words = ["status", "--kubeconfig", str(site.lab.kubeconfig), "--namespace", NAMESPACE]
    done = subprocess.run([sys.executable, "-m", "kgpu", *words], capture_output=True, text=True, check=False)
    return " ".join(done.stdout.split())


def ran(site: Site, pod: str) -> None:
    """The page's pod of this name runs to its end, on a GPU."""
    manifest = manifests(PAGE)[pod]
    site.lab.kubectl("apply", "-f", "-", stdin=manifest)
    try:
        site.until(lambda: site.get("pod", pod)["status"].get("phase") == "Succeeded", f"pod {pod} to end well")
        assert "Test PASSED" in site.lab.kubectl("logs", pod)
    finally:
        site.lab.kubectl("delete", "-f", "-", "--force", "--grace-period=0", stdin=manifest)


def kept(site: Site) -> str:
    """The page's pod with a claim, which runs on; its manifest."""
    (template, pod) = yaml.safe_load_all(manifests(PAGE)["by-claim"])
    (container,) = pod["spec"]["containers"]
    container |= {"image": "kgpu.dev/cuda:base", "command": ["sleep", "3600"]}
    pod["spec"]["terminationGracePeriodSeconds"] = 0
    manifest = yaml.safe_dump_all((template, pod))
    site.lab.kubectl("apply", "-f", "-", stdin=manifest)
    site.until(lambda: site.get("pod", "by-claim")["status"].get("phase") == "Running", "the pod with a claim to run")
    return manifest


def wrong_parameters_are_refused(site: Site) -> None:
    """In the words that the embedded API server has for it, and those that are right are taken."""
    for make, kind in ((claim, "ResourceClaim"), (template, "ResourceClaimTemplate"), (device_class, "DeviceClass")):
        assert "created (server dry run)" in written(site, kind, make(of(sharing={"strategy": "MPS"})))
    for parameters, words in WRONG_AND_WORDS:
        assert words in written(site, "ResourceClaim", claim(parameters))


def written(site: Site, kind: str, obj: Object) -> str:
    """What the API server says to this object."""
    body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, **obj}
    done = site.lab.kubectl_run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(body))
    return done.stdout + done.stderr


@pytest.fixture(params=["agent", "operands"])
def installed(site: Site, request: pytest.FixtureRequest) -> Iterator[Site]:
    """kgpu in this layout, with the DRA driver allowed."""
    try:
        site.have(request.param, "dra.enabled=true")
        yield site
    finally:
        site.lab.kubectl("label", "node", site.node, f"{LABEL}-")


def test_a_node_goes_to_claims_and_back_and_the_pages_pods_run(installed: Site) -> None:
    site = installed
    assert slices(site) == []
    ran(site, "by-number")
    site.lab.kubectl("label", "node", site.node, f"{LABEL}=dra")
    site.until(lambda: devices(site) == 8, "eight devices")
    site.until(lambda: site.allocatable() == "0", "the device plugin to offer nothing")
    ran(site, "by-claim")
    ran(site, "by-number")  # DRAExtendedResource is on, and the kubelet counts no nvidia.com/gpu
    site.until(lambda: site.policy_status().get("state") == "ready", "the ClusterPolicy to be ready")
    assert site.conditions()["DRADriverReady"]["message"] == "1 of 1 nodes"
    holder = kept(site)
    site.lab.kubectl("label", "node", site.node, f"{LABEL}-")
    site.until(lambda: site.allocatable() == "7", "the device plugin to offer what no claim has")
    assert site.node_labels()["nvidia.com/gpu.deploy.dra-driver"] == "leaving"
    assert "Test PASSED" in site.run_pod("beside", gpus=7)
    site.lab.kubectl("delete", "-f", "-", "--timeout=120s", stdin=holder)  # the kubelet has to take the claim back
    site.ready()
    site.until(lambda: "nvidia.com/gpu.deploy.dra-driver" not in site.node_labels(), "the driver to be let go")
    ran(site, "by-number")
    site.until(lambda: slices(site) == [], "the kubelet to remove the slices of a driver that has gone")


def test_a_pod_gets_the_share_that_its_claim_says(site: Site) -> None:
    """From a driver in a pod of its own, which makes the daemon's shared memory where the claim's containers get it."""
    gates = [f"dra.featureGates.{gate}=true" for gate in ("MPSSupport", "TimeSlicingSettings")]
    site.have("operands", "dra.enabled=true", "dra.webhook.failurePolicy=Fail", *gates)
    wrong_parameters_are_refused(site)
    site.lab.kubectl("label", "node", site.node, f"{LABEL}=dra")
    shared, pod = yaml.safe_load_all(manifests(PAGE)["by-share"])
    (container,) = pod["spec"]["containers"]
    container |= {"image": "kgpu.dev/cuda-sample:vectoradd", "command": ["./vectoradd", "--memory"]}
    manifest = yaml.safe_dump_all((shared, pod))
    try:
        site.until(lambda: devices(site) == 8, "eight devices")
        site.lab.kubectl("apply", "-f", "-", stdin=manifest)
        site.until(lambda: site.get("pod", "by-share")["status"].get("phase") == "Succeeded", "the pod to end well")
        assert "of 10240 MiB" in site.lab.kubectl("logs", "by-share")
    finally:
        site.lab.kubectl("delete", "-f", "-", "--timeout=120s", "--ignore-not-found", stdin=manifest)
        site.lab.kubectl("label", "node", site.node, f"{LABEL}-")


CUT = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: cut}
spec: {devices: {requests: [{name: slice, exactly: {deviceClassName: mig.nvidia.com}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: by-slice}
spec:
  restartPolicy: Never
  resourceClaims: [{name: slice, resourceClaimName: cut}]
  containers:
    - {name: c, image: "ubuntu:22.04", command: [nvidia-smi, -L], resources: {claims: [{name: slice}]}}
"""


def test_without_the_gates_slices_that_are_there_are_devices_and_status_says_what_is_missing(site: Site) -> None:
    """Of this cluster DRAPartitionableDevices and DRADeviceTaints are off, as everywhere before 1.36."""
    site.have("agent", "dra.enabled=true", "dra.featureGates.DynamicMIG=true")
    site.lab.kubectl("label", "node", site.node, f"{LABEL}=dra")
    try:
        site.until(lambda: devices(site) == 8, "eight whole GPUs, and no slice that could be made")
        site.until(lambda: "DRAPartitionableDevices is off" in status(site), "kgpu status to say which gate is off")
        mig.partition(site.lab.hw_root, 7, ["3g.40gb", "3g.40gb"])
        site.until(lambda: devices(site) == 9, "two slices in place of the GPU that was cut")
        site.lab.kubectl("apply", "-f", "-", stdin=CUT)
        site.until(lambda: site.get("pod", "by-slice")["status"].get("phase") == "Succeeded", "the pod to end well")
        assert "MIG 3g.40gb" in site.lab.kubectl("logs", "by-slice")
    finally:
        site.lab.kubectl("delete", "-f", "-", "--timeout=120s", "--ignore-not-found", stdin=CUT)
        mig.disable(site.lab.hw_root, 7)
        site.lab.kubectl("label", "node", site.node, f"{LABEL}-")


def test_a_node_of_claims_is_as_before_once_kgpu_has_gone(clean: Site) -> None:
    """That the kubelet takes the slices, only a kubelet can say; most of the time is its own half minute."""
    site = clean
    site.until(lambda: slices(site) == [], "the slices of the test before to go")
    before = take(site.lab)
    site.install("dra.enabled=true", "allocation=dra")
    site.until(lambda: devices(site) == 8, "eight devices without a label")
    ran(site, "by-claim")
    site.uninstall()
    site.until(lambda: not site.get("pods", "-n", "gpu-operator")["items"], "the last pods to go")
    site.until(lambda: slices(site) == [], "the kubelet to remove the slices of a driver that has gone")
    assert difference(before, take(site.lab)) == []
    assert site.shell("find /var/lib/kubelet/plugins -type f -o -type s") == ""
    assert site.shell("ls /var/lib/kubelet/plugins_registry | grep nvidia || true") == ""
    assert site.shell("ls /var/run/cdi | grep claim || true") == ""
