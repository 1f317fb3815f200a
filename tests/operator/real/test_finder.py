"""A node without a known GPU has the finder and nothing privileged; a GPU brings the agent, its end takes it away again.

The hardware of the lab is on a PCI bus below its driver root: with another root the node has none.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kgpu.formats import names
from tests.operator.own_node import OTHER, OWN_LABEL, REFUSED
from tests.operator.real.account import account_of
from tests.operator.real.conftest import NAMESPACE, Object, Site
from tests.operator.real.picture import difference, take
from tests.operator.real.test_install import host_files

FINDER, AGENT, MARK = names.FINDER_DAEMON_SET, names.AGENT_DAEMON_SET, names.AGENT_NODE_LABEL
BARE = "hostPaths.driverInstallDir=/run/nvidia/driver"
# The one rule of Pod Security that a pod of the finder breaks, as each level calls it.
BROKEN = {"baseline": "hostPath volumes", "restricted": "restricted volume types"}


def apps(site: Site) -> list[str]:
    """The pods of kgpu's that are not ending."""
    return sorted(
        pod["metadata"]["labels"]["app"]
        for pod in site.get("pods", "-n", NAMESPACE)["items"]
        if not pod["metadata"].get("deletionTimestamp")
    )


def process(site: Site, words: str) -> dict[str, str]:
    """``/proc/PID/status`` of the one process of the node whose command line has these words."""
    script = f"""for one in /proc/[0-9]*; do
        if tr '\\0' ' ' <$one/cmdline 2>/dev/null | grep -q -e "{words}"; then cat $one/status; fi
    done"""
    pairs = (line.partition(":") for line in site.shell(script).splitlines())
    return {key: " ".join(value.split()) for key, _, value in pairs}


def violations(site: Site, level: str) -> str:
    """What Pod Security at this level has against the pods that run."""
    rule = f"pod-security.kubernetes.io/enforce={level}"
    done = site.lab.kubectl_run("label", "--dry-run=server", "--overwrite", "namespace", NAMESPACE, rule)
    return "\n".join(line for line in done.stderr.splitlines() if FINDER in line)


@contextmanager
def versions(site: Site, file: Path) -> Iterator[list[Object]]:
    """Every version of the Node meanwhile, once it is over."""
    found: list[Object] = []
    command = [site.lab.kubectl_program, "--kubeconfig", str(site.lab.kubeconfig), "get", "node", site.node]
    with file.open("w") as out:
        process = subprocess.Popen([*command, "--watch", "-o", "json"], stdout=out)
        try:
            site.until(lambda: file.stat().st_size, "the first version")
            yield found
        finally:
            process.terminate()
            process.wait()
    text, decoder, at = file.read_text(), json.JSONDecoder(), 0
    while (at := at + len(text[at:]) - len(text[at:].lstrip())) < len(text):
        try:
            one, at = decoder.raw_decode(text, at)
        except ValueError:  # the last one, half written
            break
        found.append(one)


def features(labels: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key.startswith(names.NFD_PREFIX)}


def test_a_gpu_brings_the_agent_and_takes_it_away(clean: Site, tmp_path: Path) -> None:
    site = clean
    before, host_before = take(site.lab), host_files(site)
    site.install(BARE)
    site.until(lambda: site.policy_status().get("state") == "ready", "the policy to be ready")
    assert site.conditions()["Ready"]["reason"] == "NoGPUNodes"
    assert apps(site) == ["gpu-operator", FINDER]
    assert host_files(site) == host_before
    found = site.node_labels()
    assert {names.NFD_OS_ID, names.NFD_KERNEL_FULL} <= found.keys()
    assert MARK not in found
    assert no_privilege(site) == ""
    published = features(found)

    with versions(site, tmp_path / "nodes.json") as seen:
        site.install(verb="upgrade", words=())
        site.ready()
        site.until(lambda: apps(site) == ["gpu-operator", AGENT], "the agent in place of the finder")
        assert site.node_labels()[MARK] == "true"
        site.install(BARE, verb="upgrade", words=())
        site.until(lambda: MARK not in site.node_labels(), "the agent to have left")
        site.until(lambda: apps(site) == ["gpu-operator", FINDER], "the finder in place of the agent")
    assert len(seen) > 5
    lost = [features(one["metadata"]["labels"]) for one in seen]
    assert [published.keys() - labels.keys() for labels in lost if not published.keys() <= labels.keys()] == []
    assert {one["metadata"]["labels"].get(MARK) for one in seen} == {None, "true", "leaving"}
    site.until(lambda: not own_labels(site), "what the agent had said of its GPUs to go")
    assert host_files(site) == host_before
    # Its last act, when its pod is ending already.
    site.until(
        lambda: names.ROLES_ANNOTATION not in site.lab.node()["metadata"]["annotations"], "the agent's report to go"
    )

    site.uninstall()
    site.until(lambda: not site.get("pods", "-n", NAMESPACE)["items"], "the last pods to go")
    assert difference(before, take(site.lab)) == []


def own_labels(site: Site) -> set[str]:
    """Of NVIDIA's, but for the one that says that there is no GPU any more."""
    prefix = f"{names.NVIDIA_DOMAIN}/"
    return {key for key in site.node_labels() if key.startswith(prefix)} - {names.LABEL_GPU_PRESENT}


def no_privilege(site: Site) -> str:
    """What is wrong about what the finder's process and account may do."""
    wrong = []
    status = process(site, "[a]gent --auto .*--roles features")
    for key, wanted in (
        ("Uid", "65532"),
        ("CapEff", "0" * 16),
        ("CapBnd", "0" * 16),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
    ):
        if status.get(key, "").split()[:1] != [wanted]:
            wrong.append(f"{key}: {status.get(key)}")
    print(f"the finder's VmRSS: {status['VmRSS']}")
    for level, wanted in BROKEN.items():
        said = violations(site, level)
        if not said.endswith(f": {wanted}"):
            wrong.append(f"at {level}: {said}")
    finder = account_of(site, FINDER)
    who = f"--as=system:serviceaccount:{NAMESPACE}:{FINDER}"
    print(site.lab.kubectl("auth", "can-i", "--list", "-n", NAMESPACE, who))
    changes = {what: row[:2] for what, row in REFUSED.items()} | {"labels of the GPUs": (False, OWN_LABEL)}
    for what, (on_status, change) in changes.items():
        code, said = finder.patch(site.node, change, status=on_status)
        if code not in {403, 422}:
            wrong.append(f"{what}: {code} {said}")
    code, said = finder.patch(OTHER, {"metadata": {"labels": {"feature.node.kubernetes.io/x": "true"}}})
    if code not in {403, 404, 422}:
        wrong.append(f"another Node: {code} {said}")
    return "\n".join(wrong)
