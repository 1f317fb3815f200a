"""``kgpu features`` from the outside: what a node has, why rules match, what is wrong with them."""

from __future__ import annotations

import asyncio
import json
import os

import pytest
import yaml
from click.testing import CliRunner

from kgpu.base.errors import UserError
from kgpu.cli.features import features
from kgpu.cli.main import main
from kgpu.kube import client
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODE_FEATURES, NODES

OWN = "feature.node.kubernetes.io/"
FEATURES = {
    "flags": {"kernel.loadedmodule": {"elements": {"mlx5_core": {}}}},
    "attributes": {"kernel.version": {"elements": {"full": "6.8.0-45"}}},
    "instances": {"pci.device": {"elements": [
        {"attributes": {"class": "0207", "vendor": "15b3", "device": "1021"}},
        {"attributes": {"class": "0200", "vendor": "15b3", "device": "a2dc"}},
    ]}},
}  # fmt: skip
RULES = """
apiVersion: nfd.k8s-sigs.io/v1alpha1
kind: NodeFeatureRule
metadata: {name: mine}
spec:
  rules:
    - name: network
      labels: {network: "@kernel.version.full", kubernetes.io/no: "x"}
      vars: {seen: "1"}
      taints: [{key: example.com/fast, effect: NoSchedule}]
      matchFeatures:
        - {feature: kernel.loadedmodule, matchExpressions: {mlx5_core: {op: Exists}}}
        - {feature: pci.device, matchExpressions: {class: {op: In, value: ["0207"]}}}
    - name: both in one
      labels: {both: "true"}
      matchFeatures:
        - {feature: pci.device, matchExpressions: {class: {op: In, value: ["0207"]}, device: {op: In, value: ["a2dc"]}}}
    - name: after it
      labels: {after: "true"}
      matchAny:
        - matchFeatures: [{feature: usb.device}]
        - matchFeatures: [{feature: rule.matched, matchExpressions: {seen: {op: IsTrue}}, matchName: {op: In, value: [seen]}}]
"""
REFUSED = (
    "the label kubernetes.io/no is in the domain kubernetes.io, which is not allowed; expected a vendor's own domain, or "
    f"{OWN[:-1]}; to do: use another domain, or allow it by extraLabelNs"
)
WRONG = "    - {name: wrong, matchFeatures: [{feature: kernel.version, matchExpressions: {full: {op: Gt, value: ['5']}}}]}\n"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("KGPU_", "KUBE"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def node(tmp_path):
    file = tmp_path / "node.yaml"
    file.write_text(yaml.safe_dump({"kind": "NodeFeature", "metadata": {"name": "n"}, "spec": {"features": FEATURES}}))
    return file


def rules(tmp_path, text=RULES, name="rule.yaml"):
    file = tmp_path / name
    file.write_text(text)
    return file


def invoke(*words, code=0, given=None):
    result = CliRunner().invoke(features, list(map(str, words)), catch_exceptions=False, input=given)
    assert result.exit_code == code, result.output
    return result


def test_why_rules_match_and_what_the_node_gets(tmp_path, node):
    assert invoke("test", rules(tmp_path), "--features", node).stdout.splitlines() == [
        "mine: network: matches",
        "  yes kernel.loadedmodule",
        "    yes mlx5_core Exists: it is there",
        "  yes pci.device",
        '    yes class In [0207]: instances have "0200" (1), "0207" (1)',
        "  gives the variable seen=1",
        "mine: both in one: does not match",
        "  no  pci.device: no instance meets all of them",
        '    yes class In [0207]: instances have "0200" (1), "0207" (1)',
        '    yes device In [a2dc]: instances have "1021" (1), "a2dc" (1)',
        "mine: after it: does not match",
        "  alternative 1",
        "    no  usb.device: this node has no such feature",
        "  alternative 2",
        "    no  rule.matched",
        '      no  seen IsTrue: it is "1"',
        "      yes (name) In [seen]: 1 names do",
        "the node gets",
        f"  label {OWN}network=6.8.0-45",
        "  taint example.com/fast=:NoSchedule (where taints are allowed)",
        f"  not label kubernetes.io/no: {REFUSED}",
    ]


def test_a_rule_that_can_not_be_carried_out_is_told(tmp_path, node):
    result = invoke("test", rules(tmp_path, RULES + WRONG), "--features", node, code=3)
    assert "mine: wrong: can't be carried out" in result.stdout
    assert "to do: say `type: version`" in result.stdout
    assert f"label {OWN}network" in result.stdout


def test_the_same_for_programs(tmp_path, node):
    found = json.loads(invoke("test", rules(tmp_path, RULES + WRONG), "--features", node, "-o", "json", code=3).stdout)
    assert [one["matches"] for one in found["rules"]] == [True, False, False, False]
    assert found["node"]["labels"] == {f"{OWN}network": "6.8.0-45"}
    assert [one["key"] for one in found["node"]["refused"]] == ["kubernetes.io/no"]
    (term,) = found["rules"][1]["matchFeatures"]
    assert (term["matches"], [one["holds"] for one in term["expressions"]]) == (False, [True, True])
    assert "no whole number" in found["rules"][3]["error"]


def test_what_a_node_has_goes_back_in(tmp_path):
    root = tmp_path / "root"
    for name, text in {"vendor": "0x10de", "class": "0x030200", "device": "0x2330"}.items():
        file = root / "sys/bus/pci/devices/0000:01:00.0" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (root / "proc").mkdir()
    printed = invoke("dump", "--root", root).stdout
    found = yaml.safe_load(printed)
    assert found["kind"] == "NodeFeature"
    assert found["spec"]["labels"][f"{OWN}pci-10de.present"] == "true"
    assert json.loads(invoke("dump", "--root", root, "-o", "json").stdout) == found
    file = tmp_path / "node.yaml"
    file.write_text(printed)
    rule = rules(
        tmp_path,
        RULES.replace("0207", "0302").replace("kernel.loadedmodule", "pci.device").replace("mlx5_core", "vendor"),
    )
    assert "mine: network: matches" in invoke("test", rule, "--features", file).stdout
    assert "mine: network: matches" in invoke("test", rule, "--root", root).stdout


def test_a_config_of_the_worker_counts_and_is_judged(tmp_path):
    config = tmp_path / "conf"
    config.write_text("core: {featureSources: [fake], labelSources: [fake], noPublish: true}")
    result = invoke("dump", "--root", tmp_path, "--config", config)
    assert set(yaml.safe_load(result.stdout)["spec"]["labels"]) == {
        f"{OWN}fake-fakefeature{number}" for number in (1, 2, 3)
    }
    assert "core.noPublish: changes nothing here" in result.stderr


def test_what_the_cluster_knows_of_a_node(tmp_path, monkeypatch):
    api = FakeApi()
    for name, value in (("n1", "1"), ("n1-more", "2"), ("other", "3")):
        labels = {"nfd.node.kubernetes.io/node-name": name.partition("-")[0]}
        spec = {"features": {"attributes": {"a.b": {"elements": {name: value}}}}, "labels": {f"l-{name}": value}}
        api.put(NODE_FEATURES, {"metadata": {"name": name, "namespace": "nfd", "labels": labels}, "spec": spec})
    monkeypatch.setattr(client, "connect", lambda _kubeconfig: api)
    found = yaml.safe_load(invoke("dump", "--node", "n1").stdout)
    assert found["spec"]["features"]["attributes"]["a.b"]["elements"] == {"n1": "1", "n1-more": "2"}
    assert found["spec"]["labels"] == {"l-n1": "1", "l-n1-more": "2"}
    assert found["metadata"]["labels"] == {"nfd.node.kubernetes.io/node-name": "n1"}
    monkeypatch.setattr(client, "connect", lambda _kubeconfig: FakeApi())
    with pytest.raises(UserError, match="no NodeFeature of the node n9"):
        invoke("dump", "--node", "n9")


def test_good_rules_have_nothing_wrong(tmp_path):
    text = RULES.replace(', kubernetes.io/no: "x"', "")
    assert invoke("validate", rules(tmp_path, text)).stdout == "3 rules, 0 errors, 0 warnings\n"
    assert invoke("validate", "-", given=text).stdout == "3 rules, 0 errors, 0 warnings\n"
    listed = {"kind": "List", "items": [*yaml.safe_load_all(text)]}
    assert invoke("validate", rules(tmp_path, yaml.safe_dump(listed))).stdout == "3 rules, 0 errors, 0 warnings\n"


GROUP = """
kind: NodeFeatureGroup
metadata: {name: g}
spec: {featureGroupRules: [{name: a, labels: {x: y}, matchFeatures: [{feature: pci, matchExpressions: {a: {op: In}}}]}]}
"""


def test_all_that_is_wrong_is_found(tmp_path):
    result = invoke("validate", rules(tmp_path), rules(tmp_path, GROUP, "g.yaml"), code=3)
    lines = [line for line in result.stdout.splitlines() if line.startswith(("error", "warning"))]
    assert [line.rpartition("/")[2] for line in lines] == [
        "rule.yaml, NodeFeatureRule mine, spec.rules[0].labels",
        "g.yaml, NodeFeatureGroup g, spec.featureGroupRules[0].labels",
        "g.yaml, NodeFeatureGroup g, spec.featureGroupRules[0].matchFeatures[0].feature",
        'g.yaml, NodeFeatureGroup g, spec.featureGroupRules[0].matchFeatures[0].matchExpressions["a"]',
    ]
    assert result.stdout.endswith("4 rules, 3 errors, 1 warning\n")
    found = json.loads(invoke("validate", rules(tmp_path, GROUP, "g.yaml"), "-o", "json", code=3).stdout)
    assert [one["warning"] for one in found] == [True, False, False]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["test", "{dir}/none.yaml"], "can't be read"),
        (["test", "{dir}/empty.yaml"], "there are no rules in"),
        (["validate", "{dir}/node.yaml"], "there are no rules in"),
        (["validate", "{dir}/broken.yaml"], "error parsing"),
        (["test", "{dir}/g.yaml"], "is a NodeFeatureGroup"),
        (["test", "{dir}/rule.yaml", "--features", "{dir}/rule.yaml"], "has no NodeFeature"),
        (["test", "{dir}/rule.yaml", "--features", "{dir}/bad.yaml"], "spec.features.flags"),
        (["test", "{dir}/rule.yaml", "--features", "x", "--node", "y"], "contradict each other"),
        (["dump", "--root", "{dir}/nowhere"], "there is no folder"),
        (["dump", "--config", "{dir}/nowhere"], "can't be read"),
    ],
)
def test_wrong_input_is_explained(tmp_path, node, capsys, words, said):
    rules(tmp_path)
    rules(tmp_path, GROUP, "g.yaml")
    rules(tmp_path, "", "empty.yaml")
    rules(tmp_path, "a: [", "broken.yaml")
    rules(tmp_path, "{kind: NodeFeature, spec: {features: {flags: 5}}}", "bad.yaml")
    assert main(["kgpu", "features", *(word.format(dir=tmp_path) for word in words)]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "to do:" in told


def test_prune_takes_what_is_on_the_lists_and_says_what(monkeypatch):
    api = FakeApi()
    lists = {
        "nfd.node.kubernetes.io/feature-labels": "a,example.com/b",
        "nfd.node.kubernetes.io/taints": "t/x:NoSchedule",
    }
    labels = {f"{OWN}a": "1", "example.com/b": "2", "team": "x", "kgpu.dev/feature-rules": "true"}
    taints = [{"key": "t/x", "effect": "NoSchedule"}, {"key": "kept", "effect": "NoExecute"}]
    metadata = {"name": "n1", "labels": labels, "annotations": lists}
    api.put(NODES, {"metadata": metadata, "spec": {"taints": taints}})
    api.put(NODES, {"metadata": {"name": "n2", "labels": {"team": "x"}}})

    def connect(_kubeconfig: str) -> FakeApi:
        api.set_down(False)  # the command before has closed it
        return api

    monkeypatch.setattr(client, "connect", connect)
    said = invoke("prune", "--dry-run").output
    assert f"n1: labels example.com/b, {OWN}a\nn1: taints t/x\n1 Nodes would be cleared\n" == said
    assert not [call for call in api.calls if call[0] == "patch"]
    assert json.loads(invoke("prune", "-o", "json").output) == {
        "n1": {"labels": ["example.com/b", f"{OWN}a"], "taints": ["t/x"]}
    }
    api.set_down(False)  # the command has closed it
    node = asyncio.run(api.get(NODES, "n1"))
    assert node is not None
    assert node["metadata"]["labels"] == {"team": "x"}
    assert node["spec"]["taints"] == [taints[1]]
    assert invoke("prune").output == "0 Nodes were cleared\n"
    with pytest.raises(UserError, match="--instance"):
        invoke("prune", "--instance", "a/b")


def test_publish_writes_the_machine_once(monkeypatch, tmp_path):
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.1.0\n")
    api = FakeApi()
    monkeypatch.setattr(client, "connect", lambda _kubeconfig: api)
    monkeypatch.setenv("NODE_NAME", "n1")
    said = invoke("publish", "--root", tmp_path, "-n", "nfd").output
    assert said.startswith("NodeFeature nfd/n1 has ")
    api.set_down(False)  # the command has closed it
    written = asyncio.run(api.get(NODE_FEATURES, "n1", namespace="nfd"))
    assert written is not None
    assert written["metadata"]["labels"]["nfd.node.kubernetes.io/node-name"] == "n1"
    assert written["spec"]["labels"][f"{OWN}kernel-version.full"] == "6.1.0"
    assert written["spec"]["features"]["attributes"]["system.name"] == {"elements": {"nodename": "n1"}}


@pytest.mark.parametrize("words", [("publish", "--root", "ROOT", "-n", "nfd"), ("dump", "--node", "n1")], ids=" ".join)
def test_a_cluster_without_the_kinds_is_told_and_how_to_get_them(monkeypatch, tmp_path, words):
    api = FakeApi()
    api.refuse.update({("apply", NODE_FEATURES.plural): 404, ("list", NODE_FEATURES.plural): 404})
    monkeypatch.setattr(client, "connect", lambda _kubeconfig: api)
    monkeypatch.setenv("NODE_NAME", "n1")
    with pytest.raises(UserError) as caught:
        invoke(*(tmp_path if word == "ROOT" else word for word in words))
    assert "no NodeFeatures: their kind is not installed" in caught.value.what
    assert "nodefeatures.nfd.k8s-sigs.io" in caught.value.expected
    assert "nfd.nodefeaturerules=true" in caught.value.remedy


def test_another_refusal_is_told_as_the_server_has_it(monkeypatch):
    api = FakeApi()
    api.refuse["list", NODE_FEATURES.plural] = 403
    monkeypatch.setattr(client, "connect", lambda _kubeconfig: api)
    with pytest.raises(UserError) as caught:
        invoke("dump", "--node", "n1")
    assert "kind is not installed" not in str(caught.value)
