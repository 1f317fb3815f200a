"""Clusters that have no GPUs to give, and why: status and Event say what was looked for, and what to do.

One installation, changed by upgrades, for no node of it has ever been validated: only the last test brings an agent.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kgpu.formats import names
from tests.operator.real.conftest import Site
from tests.operator.real.told import events, has, label, told

NO_GPUS = {
    "NFD labels are missing": ("nfd.enabled=false", ("No NFD labels found", "gpu-node-1", "nfd.enabled")),
    "there are no GPU nodes": ("hostPaths.driverInstallDir=/run/nvidia/none", ("No GPU node found", "gpu-node-1")),
}


@pytest.fixture(scope="module")
def fresh(site: Site) -> Iterator[Site]:
    """A cluster without kgpu, and afterwards again."""
    site.gone()
    yield site
    site.gone()


def bring(site: Site, *values: str) -> None:
    """Have the chart with these values, by an upgrade where it is there already."""
    site.install(*values, verb="upgrade", words=("--install", "--create-namespace"))


@pytest.mark.parametrize("name", NO_GPUS)
def test_a_cluster_without_gpus_is_ready_and_told_what_was_looked_for(fresh: Site, name: str) -> None:
    site = fresh
    value, words = NO_GPUS[name]
    bring(site, value)
    site.until(lambda: has(words, told(site)), f"{name}: {words} in the policy's message")
    assert site.policy_status()["state"] == "ready"
    site.until(lambda: any(has(words, text) for text in events(site)), f"{name}: {words} in an Event")


def test_a_node_whose_toolkit_is_switched_off_gives_no_gpus(fresh: Site) -> None:
    """Last: an agent comes. Its node has never been validated."""
    site = fresh
    key = f"{names.LABEL_DEPLOY_PREFIX}container-toolkit"
    words = ("gpu-node-1", f'{key} is "false"', "no CDI spec", f"to do: kubectl label node gpu-node-1 {key}-")
    label(site, key, "false")
    try:
        bring(site)
        site.until(lambda: has(words, told(site)), f"{words} in the policy's message")
        site.until(lambda: any(has(words, text) for text in events(site)), f"{words} in an Event")
        assert site.allocatable() in {"", "0"}
    finally:
        label(site, key)
    site.ready()
