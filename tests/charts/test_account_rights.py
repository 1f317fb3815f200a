"""What each account may do, by the chart and by what the operator makes, against listings that were read.

To renew them after a wanted change, and then read the difference:
``KGPU_RENEW_GOLDEN=1 pytest tests/charts/test_account_rights.py``.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Final

import pytest

from kgpu.operator.model import ObservedCluster
from kgpu.operator.nodes import read_node
from tests.charts.conftest import CHART, Chart, Object
from tests.operator import account_rights
from tests.operator.objects.scenes import OPERANDS, SETTINGS, UBUNTU, Case, openshift, policy, rhcos
from tests.operator.test_vendors import fresh

PAGE: Final = CHART.parents[1] / "docs" / "reference" / "rights.md"
HOST_DRIVER: Final = "driver: {enabled: false}"
DRIVER: Final = "driver: {enabled: true, repository: nvcr.io/nvidia, image: driver, version: 580.95.05}"
OPTIONS: Final = """
driver: {enabled: false}
cdi: {nriPluginEnabled: true}
devicePlugin: {config: {name: plugin-configs}}
dcgmExporter: {enablePodLabels: true, config: {name: counters}, env: [{name: KUBERNETES_ENABLE_DRA, value: "true"}]}
nodeStatusExporter: {enabled: true}
"""
"""All that adds a right to agents; tests/operator/real/test_stolen_token.py installs the same."""
CHART_OPTIONS: Final = (
    "cdi.nriPluginEnabled=true", "dra.enabled=true", "nfd.nodefeaturerules=true", "deviceConfigs.enabled=true",
    "node-feature-discovery.featureGates.NodeFeatureGroupAPI=true",
    "node-feature-discovery.master.config.restrictions.nodeFeatureNamespaceSelector.matchLabels.nfd=trusted",
)  # fmt: skip
FEATURES: Final = frozenset({"nodefeatures.nfd.k8s-sigs.io"})
ON_OPENSHIFT: Final = "agent-with-openshift"
WITH_OVERVIEW: Final = "agent-with-overview"
AMD: Final = ObservedCluster(nodes=(*UBUNTU.nodes, read_node(fresh("amd"))))
INSTALLATIONS: Final = {
    "agent": (SETTINGS, HOST_DRIVER),
    "agent-with-driver": (SETTINGS, DRIVER),
    "agent-with-options": (dataclasses.replace(SETTINGS, dra=True, feature_rules=True, device_configs=True), OPTIONS),
    ON_OPENSHIFT: (SETTINGS, DRIVER),
    "agent-with-amd": (SETTINGS, HOST_DRIVER),
    WITH_OVERVIEW: (SETTINGS, HOST_DRIVER),
    "operands": (OPERANDS, HOST_DRIVER),
    "operands-with-amd": (OPERANDS, HOST_DRIVER),
    "operands-with-options": (
        dataclasses.replace(OPERANDS, dra=True, feature_rules=True, device_configs=True),
        OPTIONS,
    ),
}


def objects(chart: Chart, installation: str) -> list[Object]:
    """The chart's objects and those of the operator, hooks among them."""
    settings, spec = INSTALLATIONS[installation]
    observed = dataclasses.replace(UBUNTU, kinds=FEATURES) if spec is OPTIONS else UBUNTU
    if installation == ON_OPENSHIFT:
        observed = openshift(rhcos("r1"))
    if installation.endswith("-with-amd"):
        observed = AMD
    rendered = Case(policy=policy(spec), settings=settings, observed=observed).rendered()
    assert rendered.errors == {}
    sets = {OPTIONS: CHART_OPTIONS}.get(spec, ())
    if installation == ON_OPENSHIFT:
        sets = ("platform.openshift=true",)
    if installation == WITH_OVERVIEW:
        sets = ("overview.enabled=true", "usage.enabled=true")
    return [*chart(f"layout={settings.layout}", *sets).objects, *rendered.objects]


def listings(found: list[Object]) -> dict[str, str]:
    """The text for each account, and for what an account may do only while a hook runs."""
    hooks = [one for one in found if account_rights.HOOK in one["metadata"].get("annotations", {})]
    plain = [one for one in found if one not in hooks]
    texts = {
        name: account_rights.text_of(account_rights.rights_of(name, plain)) for name in account_rights.accounts(plain)
    }
    for name in account_rights.accounts(hooks):
        beside = f"{name}-cleanup" if name in texts else name
        texts[beside] = account_rights.text_of(account_rights.rights_of(name, hooks))
    # The Role for Events is bound to the accounts of both layouts, of which one has those of the other not.
    made = {one["metadata"]["name"] for one in found if one["kind"] == "ServiceAccount"}
    return {name: text for name, text in texts.items() if name.removesuffix("-cleanup") in made}


@pytest.mark.parametrize("installation", INSTALLATIONS)
def test_accounts_may_do_what_was_reviewed(chart: Chart, installation: str) -> None:
    folder = account_rights.FOLDER / installation
    found = listings(objects(chart, installation))
    if os.environ.get("KGPU_RENEW_GOLDEN"):
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            file.unlink()
        for name, text in found.items():
            (folder / f"{name}.txt").write_text(text)
    assert found == {file.stem: file.read_text() for file in folder.iterdir()}


def test_a_listing_is_read_as_it_is_written() -> None:
    for file in account_rights.FOLDER.glob("*/*.txt"):
        rights = account_rights.read(file.parent.name, file.stem)
        assert account_rights.text_of(rights) == file.read_text()


def test_kubectls_listing_is_read() -> None:
    printed = """
configmaps              []                    [kgpu-agent]     [list watch]
deployments.apps        []                    []               [list]
                        [/healthz /version]   []               [get]
""".strip("\n")
    assert account_rights.of_kubectl(printed) == {
        ("configmaps", "kgpu-agent", "list"),
        ("configmaps", "kgpu-agent", "watch"),
        ("deployments.apps", "", "list"),
    }


def test_the_page_shows_the_rights_of_now() -> None:
    """Of every account and layout; of an installation with options what these add."""
    shown: set[tuple[str, str]] = set()
    for section in PAGE.read_text().split("\n## ")[1:]:
        head, *lines = section.splitlines()
        rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
        told = {
            (namespace.replace("every", ""), *what.split(" ", 1)): verbs
            for namespace, what, _, verbs in rows
            if verbs != "-"
        }
        for installation, account in re.findall("`(.+?)/(.+?)`", head):
            shown.add((installation, account))
            assert told == added(installation, account), (installation, account)
    for file in account_rights.FOLDER.glob("*/*.txt"):
        key = file.parent.name, file.stem
        assert key in shown or added(*key) == {}, key


def added(installation: str, account: str) -> dict[tuple[str, ...], str]:
    """Verbs by namespace, resource and name, without those that the account has without options."""
    verbs: dict[tuple[str, ...], list[str]] = {}
    plain = installation.partition("-with-")[0]
    known = account_rights.FOLDER / plain / f"{account}.txt"
    without = account_rights.read(plain, account) if installation != plain and known.exists() else {}
    for namespace, rights in account_rights.read(installation, account).items():
        for resource, name, verb in sorted(rights - without.get(namespace, frozenset())):
            verbs.setdefault((namespace, resource, *([name] if name else ())), []).append(verb)
    return {what: " ".join(found) for what, found in verbs.items()}
