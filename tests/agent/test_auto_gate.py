"""The device plugin and the validator in one agent: what the one waits for is named, what it offers the other knows."""

from __future__ import annotations

import pytest

from kgpu.formats import names
from kgpu.formats.agent_config import AgentConfig, RoleConfig
from kgpu.kubelet.fake import FakeKubelet

from .support_auto import PLUGIN_LABEL, Cluster, eventually, hosted

VALIDATOR_LABEL = names.LABEL_DEPLOY_PREFIX + "operator-validator"
PLUGIN = {"deviceplugin": RoleConfig(label=PLUGIN_LABEL)}
BOTH = AgentConfig(
    roles={**PLUGIN, "validator": RoleConfig(label=VALIDATOR_LABEL)}, generation=1, driver_install_dir="/nowhere"
)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.parametrize("only", [(), ("deviceplugin",)], ids=["one process", "a process per role"])
async def test_a_validator_that_a_label_stops_is_named_where_it_is_waited_for(cluster, tmp_path, only):
    from kgpu.agent.roles import ROLES, choose_roles

    cluster.tell(BOTH)
    cluster.label(plugin="true", **{"operator-validator": "false"})
    roles = choose_roles(only) if only else ROLES
    async with hosted(cluster, tmp_path, roles, only, validations_dir=tmp_path / "v") as agent:

        def reason() -> str:
            return next((one.reason for one in agent.statuses() if one.name == "deviceplugin"), "")

        await eventually(lambda: f'the node label {VALIDATOR_LABEL} is "false", not "true"' in reason())
        cluster.label(**{"operator-validator": None})
        await eventually(lambda: f"the node label {VALIDATOR_LABEL} is not set" in reason())


async def test_what_the_plugin_offers_is_known_in_its_process(cluster, tmp_path):
    cluster.tell(AgentConfig(roles=PLUGIN, generation=1, driver_install_dir="/nowhere"))
    kubelet = FakeKubelet(tmp_path / "kubelet")
    await kubelet.start()
    try:
        cluster.label(plugin="true")
        async with hosted(cluster, tmp_path, kubelet_socket=kubelet.socket) as agent:
            await eventually(lambda: agent.offered == {names.GPU_RESOURCE: 1})
            cluster.label(plugin="false")
            await eventually(lambda: agent.offered == {})
    finally:
        await kubelet.stop()
