"""Under the operator, roles follow the node's labels and the operator's document, each alone."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import msgspec
import pytest

from kgpu.agent import auto
from kgpu.agent.host import Role
from kgpu.base import http
from kgpu.base.errors import HostError
from kgpu.formats import names
from kgpu.formats.agent_config import AgentConfig, ConfigRef, RoleConfig
from kgpu.formats.config_choice import ConfigText
from kgpu.kube.port import CONFIG_MAPS, EVENTS, NODE_FEATURES, NODES

from .support_auto import BOTH, LABELS_LABEL, NODE, PLUGIN_LABEL, eventually, hosted, role_config, state
from .test_run import get

pytestmark = pytest.mark.usefixtures("nothing_flushed_on_the_loop")
CONFIG = ConfigText(name="none yet")


def managers(cluster):
    """The field managers of the Node."""
    return {one["manager"] for one in cluster.node["metadata"].get("managedFields") or ()}


async def test_a_label_starts_a_role_and_another_value_stops_it_and_no_other(cluster, started, roles, tmp_path):
    cluster.tell(BOTH)
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: state(cluster, "one") == ("stopped", "NotLabelled"))
        cluster.label(plugin="true", **{"gpu-feature-discovery": "true"})
        await eventually(lambda: {"+one", "+two"} <= set(started.log))
        cluster.label(plugin="paused-for-driver-upgrade")
        await eventually(lambda: state(cluster, "one") == ("stopped", "Paused"))
        assert '"paused-for-driver-upgrade", not "true"' in cluster.report.roles["one"].reason
        cluster.label(plugin="true")
        await eventually(lambda: state(cluster, "one") == ("running", ""))
        assert state(cluster, "two") == ("running", "")
        assert [entry for entry in started.log if entry.endswith("one")] == ["+one", "-one", "+one"]
        assert started.log.count("+two") == 1


@pytest.mark.parametrize("value", ["True", "1", "", " true", "false", "x_paused-for-driver-upgrade"])
async def test_only_exactly_true_runs_a_role(cluster, started, roles, tmp_path, value):
    cluster.tell(BOTH)
    cluster.label(plugin=value, **{"gpu-feature-discovery": "true"})
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: state(cluster, "two") == ("running", ""))
        assert state(cluster, "one")[0] == "stopped"
    assert "+one" not in started.log


async def test_changed_environment_restarts_only_its_role(cluster, started, roles, tmp_path):
    cluster.tell(BOTH)
    cluster.label(plugin="true", **{"gpu-feature-discovery": "true"})
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: {"+one", "+two"} <= set(started.log))
        roles_now = {**BOTH.roles, "one": role_config(env={"MIG_STRATEGY": "single"})}
        cluster.tell(msgspec.structs.replace(BOTH, roles=roles_now, generation=4))
        await eventually(lambda: started.log.count("+one") == 2)
        assert started.options["one"].env["MIG_STRATEGY"] == "single"
        assert "MIG_STRATEGY" not in started.options["two"].env
    assert started.log.count("+two") == 1


async def test_a_document_for_pods_of_their_own_changes_nothing_for_an_agent_of_all_roles(
    cluster, started, roles, tmp_path
):
    """It has no environment: where the layout changes, the agent is about to be removed."""
    told = {**BOTH.roles, "one": role_config(env={"MIG_STRATEGY": "single"})}
    cluster.tell(msgspec.structs.replace(BOTH, roles=told))
    cluster.label(plugin="true", **{"gpu-feature-discovery": "true"})
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: {"+one", "+two"} <= set(started.log))
        cluster.tell(msgspec.structs.replace(BOTH, own_pods=True, generation=4))
        await asyncio.sleep(0.5)
        assert (started.log.count("+one"), "-one" in started.log) == (1, False)
        cluster.tell(msgspec.structs.replace(BOTH, generation=5))
        await eventually(lambda: started.log.count("+one") == 2)


async def test_the_document_ends_a_role_that_it_no_longer_names(cluster, started, roles, tmp_path):
    cluster.tell(BOTH)
    cluster.label(plugin="true", **{"gpu-feature-discovery": "true"})
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: {"+one", "+two"} <= set(started.log))
        cluster.tell(AgentConfig(roles={"two": BOTH.roles["two"], "one": role_config(enabled=False)}))
        await eventually(lambda: state(cluster, "one") == ("stopped", "Disabled"))
        cluster.tell(AgentConfig(roles={"two": BOTH.roles["two"]}))
        await eventually(lambda: "one" not in cluster.report.roles)
        assert state(cluster, "two") == ("running", "")


async def test_a_role_that_a_later_operator_has_is_named_as_unknown(cluster, roles, tmp_path):
    cluster.tell(AgentConfig(roles={"plain": RoleConfig(), "ones": RoleConfig()}))
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: state(cluster, "ones") == ("stopped", "UnknownRole"))
        await eventually(lambda: state(cluster, "plain") == ("running", ""))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"roles": 3}', '{"roles": {"one": {"label": 7}}}', "null", "[" * 5000]
)
async def test_a_bad_document_leaves_the_last_good_one_and_is_told(cluster, started, roles, tmp_path, text):
    cluster.tell(BOTH)
    cluster.label(plugin="true")
    async with hosted(cluster, tmp_path, roles) as agent:
        await eventually(lambda: state(cluster, "one") == ("running", ""))
        cluster.tell(text)
        await eventually(lambda: agent.orders.problem is not None)
        page = agent._readyz()
        assert "[-]orders the agent's configuration in ConfigMap gpu-operator/kgpu-agent can't be read" in page.body
        assert "[+]one running" in page.body
        events = await eventually(lambda: [k for k in cluster.api._objects if k[0] == EVENTS])
        event = cluster.api._objects[events[0]].shown()
        assert event["reason"] == "AgentConfigRefused"
        cluster.tell(BOTH)
        await eventually(lambda: agent.orders.problem is None)
    assert started.log.count("+one") == 1


@pytest.mark.parametrize(("peer", "status"), [("127.0.0.1", 200), ("10.0.0.1", 403)])
async def test_the_page_that_says_all_is_for_this_machine_alone(cluster, tmp_path, monkeypatch, peer, status):
    monkeypatch.setattr(http, "_host", lambda _: peer)
    async with hosted(cluster, tmp_path) as agent:
        assert ((await get(agent, "/statusz"))[0], (await get(agent, "/healthz"))[0]) == (status, 200)


async def test_nothing_runs_before_there_is_a_document(cluster, started, roles, tmp_path):
    cluster.label(plugin="true")
    async with hosted(cluster, tmp_path, roles) as agent:
        await eventually(lambda: agent.orders.problem is not None)
        assert agent._readyz().status == 503
        cluster.tell(BOTH)
        await eventually(lambda: started.log == ["+one"])


async def test_a_deleted_document_or_node_takes_nothing_away(cluster, started, roles, tmp_path):
    cluster.tell(BOTH)
    cluster.label(plugin="true")
    async with hosted(cluster, tmp_path, roles) as agent:
        await eventually(lambda: started.log == ["+one"])
        await cluster.api.delete(CONFIG_MAPS, names.AGENT_CONFIG_MAP, namespace="gpu-operator")
        await cluster.api.delete(NODES, "node-1")
        await eventually(lambda: "does not exist" in agent._readyz().body)
        assert "[+]one running" in agent._readyz().body
    assert started.log == ["+one", "-one"]


async def test_an_api_server_that_is_away_at_the_start_costs_nothing(cluster, started, roles, tmp_path):
    cluster.tell(BOTH)
    cluster.label(plugin="true", **{"gpu-feature-discovery": "false"})
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: (tmp_path / "state/agent.json").exists() and started.log)
    cluster.api.set_down(True)
    async with hosted(cluster, tmp_path, roles) as agent:
        await eventually(lambda: started.log == ["+one", "-one", "+one"])
        assert "[-]orders no answer from the API server" in agent._readyz().body
        cluster.api.set_down(False)
        cluster.label(plugin="false")
        await eventually(lambda: started.log[-1] == "-one")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"config": 1, "labels": {}}', '{"config": "{}"}', "[" * 100000])
async def test_a_spoilt_memory_counts_as_none(cluster, roles, started, tmp_path, text):
    (tmp_path / "state").mkdir()
    (tmp_path / "state/agent.json").write_text(text)
    cluster.api.set_down(True)
    async with hosted(cluster, tmp_path, roles) as agent:
        await eventually(lambda: agent.orders.error is not None)
        cluster.api.set_down(False)
        cluster.tell(BOTH)
        cluster.label(plugin="true")
        await eventually(lambda: started.log == ["+one"])


async def test_wrong_arguments_are_told_and_the_role_goes_on_as_before(cluster, started, tmp_path):
    from kgpu.agent.roles import ROLES

    real = next(role for role in ROLES if role.name == "deviceplugin")
    role = dataclasses.replace(real, start=started.role("deviceplugin"))
    cluster.tell(AgentConfig(roles={"deviceplugin": RoleConfig(args=("--mig-strategy=single", "--gds-enabled"))}))
    async with hosted(cluster, tmp_path, (role,)):
        await eventually(lambda: started.log == ["+deviceplugin"])
        overrides = started.options["deviceplugin"].overrides_of("deviceplugin")
        assert (overrides["mig_strategy"], overrides["gds_enabled"]) == ("single", "true")
        await eventually(lambda: state(cluster, "deviceplugin") == ("running", ""))
        cluster.tell(AgentConfig(roles={"deviceplugin": RoleConfig(args=("--mig-stratgy=single",))}))
        await eventually(lambda: "did you mean" in cluster.report.roles["deviceplugin"].reason)
        assert cluster.report.roles["deviceplugin"].state == "running"
    assert started.log == ["+deviceplugin", "-deviceplugin"]


@pytest.mark.parametrize("name", ["deviceplugin", "mps"])
async def test_options_that_the_configuration_clashes_with_change_nothing(cluster, started, tmp_path, name):
    """With MIG strategy mixed nothing is shared by MPS: what is shared now stays, and the next options count."""
    from kgpu.agent.roles import ROLES

    role = dataclasses.replace(next(row for row in ROLES if row.name == name), start=started.role(name))

    def tell(strategy: str, **more: str) -> None:
        env = {"MPS_ROOT": "/mps", "MIG_STRATEGY": strategy, **more}
        cluster.tell(
            AgentConfig(
                roles={name: RoleConfig(env=env)}, device_plugin_config=ConfigRef(name="plugins", default="mps")
            )
        )

    def share(kind: str) -> None:
        text = f"version: v1\nsharing: {{{kind}: {{resources: [{{name: nvidia.com/gpu, replicas: 4}}]}}}}\n"
        cluster.api.put(
            CONFIG_MAPS, {"metadata": {"name": "plugins", "namespace": "gpu-operator"}, "data": {"mps": text}}
        )

    share("mps")
    tell("none")
    async with hosted(cluster, tmp_path, (role,)) as agent:
        await eventually(lambda: started.log == [f"+{name}"] and "mps" in (agent._config.current() or CONFIG).text)
        tell("mixed", GDS_ENABLED="true")
        await eventually(lambda: state(cluster, name) == ("running", "ConfigRefused"))
        told = cluster.report.roles[name]
        assert "--mig-strategy=mixed is not supported with MPS; expected MIG strategy none or single" in told.reason
        assert told.reason.endswith("it goes on as it was told before")
        assert told.remedy == "change flags.migStrategy, or share by timeSlicing"
        (key,) = await eventually(lambda: [known for known in cluster.api._objects if known[0] == EVENTS])
        event = cluster.api._objects[key].shown()
        assert event["reason"] == "ConfigRefused"
        assert "to do: change flags.migStrategy" in str(event)
        assert started.log == [f"+{name}"]
        share("timeSlicing")
        await eventually(lambda: started.log == [f"+{name}", f"-{name}", f"+{name}"])
        assert started.options[name].env["MIG_STRATEGY"] == "mixed"
        await eventually(lambda: state(cluster, name) == ("running", ""))


# Hardware, driver, configuration, labels


def a_driver(root):
    path = root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    path.parent.mkdir(parents=True)
    path.write_text("")


async def test_what_one_role_does_on_a_device_the_others_know(cluster, started, roles, tmp_path):
    cluster.tell(BOTH)
    cluster.label(**{"plugin": "true", "gpu-feature-discovery": "true"})
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: len(started.hosts) == 2)
        one, two = (started.hosts[name].own_work for name in ("one", "two"))
        with one.on("GPU-1"):
            assert two.since("GPU-1", float("inf"))
        assert not two.since("GPU-2", 0.0)


async def test_no_hardware_is_touched_before_a_role_needs_it_and_it_is_let_go_after(cluster, tmp_path):
    config = AgentConfig(
        roles={"features": RoleConfig(), "labels": RoleConfig(label=LABELS_LABEL)}, driver_install_dir="/nowhere"
    )
    cluster.tell(config)
    async with hosted(cluster, tmp_path) as agent:
        await eventually(lambda: state(cluster, "features") == ("running", ""))
        assert agent.readers == []
        cluster.label(**{"gpu-feature-discovery": "true"})
        await eventually(lambda: cluster.report.gpus == 1)
        assert cluster.labels[names.LABEL_GPU_PRODUCT] == "H100"
        assert (cluster.report.driver, cluster.report.cuda) == ("580.1", "13.0")
        (reader,) = agent.readers
        cluster.label(**{"gpu-feature-discovery": names.PAUSED_FOR_DRIVER_UPGRADE})
        await eventually(lambda: reader._closed)
        assert cluster.labels[names.LABEL_GPU_PRODUCT] == "H100"  # pods that select it stay where they are


async def test_a_driver_that_is_installed_later_is_used_from_then_on(cluster, started, roles, tmp_path):
    install = tmp_path / "install"
    cluster.tell(msgspec.structs.replace(BOTH, driver_install_dir=str(install)))
    cluster.label(plugin="true")
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: started.log == ["+one"])
        assert started.options["one"].root == tmp_path / "host"
        await eventually(lambda: cluster.report.generation == 3)
        assert cluster.report.driver_source == ""
        a_driver(install)
        await eventually(lambda: started.log == ["+one", "-one", "+one"])
        assert started.options["one"].root == install
        assert started.options["one"].overrides_of("deviceplugin")["driver_root"] == str(install)
        await eventually(lambda: cluster.report.driver_source == "container")


async def test_the_device_plugins_configuration_is_followed_without_a_restart(cluster, tmp_path):
    seen: list[str] = []
    starts: list[str] = []

    async def following(host, handle) -> None:
        starts.append("+")
        handle.running()
        current = None
        while True:
            current = await host.config.next(current)
            seen.append(current.text)

    def config_map(name, **data):
        cluster.api.put(CONFIG_MAPS, {"metadata": {"name": name, "namespace": "gpu-operator"}, "data": data})

    def told(**ref):
        cluster.tell(AgentConfig(roles={"one": RoleConfig()}, device_plugin_config=ConfigRef(**ref)))

    told()
    config_map("plugins", a="A", b="B")
    config_map("others", a="OTHER")
    async with hosted(cluster, tmp_path, (Role("one", following, configured=True),)):
        await eventually(lambda: seen == [""])
        told(name="plugins", default="a")
        await eventually(lambda: seen == ["", "A"])
        cluster.api.put(NODES, {"metadata": {"name": "node-1", "labels": {names.DEVICE_PLUGIN_CONFIG_LABEL: "b"}}})
        await eventually(lambda: seen == ["", "A", "B"])
        config_map("plugins", a="A", b="B2")
        await eventually(lambda: seen == ["", "A", "B", "B2"])
        cluster.api.put(NODES, {"metadata": {"name": "node-1", "labels": {}}})
        told(name="others", default="a")
        await eventually(lambda: seen[-1] == "OTHER")
        told()
        await eventually(lambda: seen[-1] == "")
    assert starts == ["+"]


async def test_who_has_no_role_for_it_does_not_ask_for_the_configuration(cluster, started, tmp_path):
    """Its account has no right to read it."""
    asked: list[str] = []
    real = cluster.api.list

    async def listed(resource, *, selector, **more):
        if resource is CONFIG_MAPS:
            asked.extend(value for _, value in selector.fields)
        return await real(resource, selector=selector, **more)

    cluster.api.list = listed
    config = AgentConfig(roles={"one": RoleConfig()}, device_plugin_config=ConfigRef(name="plugins"))
    for configured, wanted in ((False, {names.AGENT_CONFIG_MAP}), (True, {names.AGENT_CONFIG_MAP, "plugins"})):
        asked.clear()
        started.log.clear()
        cluster.tell(config)
        async with hosted(cluster, tmp_path, (Role("one", started.role("one"), configured=configured),)):
            await eventually(lambda wanted=wanted: "+one" in started.log and set(asked) == wanted)
            cluster.tell(msgspec.structs.replace(config, generation=7))
            await eventually(lambda: "annotations" in cluster.node["metadata"] and cluster.report.generation == 7)
        assert set(asked) == wanted


async def test_without_a_default_configuration_only_labelled_nodes_share(cluster, tmp_path):
    """Neither a lone configuration nor one with the name ``default`` is taken for nodes that nobody has labelled."""
    seen: list[str] = []

    async def following(host, handle) -> None:
        handle.running()
        current = None
        while True:
            current = await host.config.next(current)
            seen.append(current.text if current.problem is None else str(current.problem))

    def label(**labels):
        cluster.api.put(NODES, {"metadata": {"name": "node-1", "labels": labels}})

    shares = {"metadata": {"name": "plugins", "namespace": "gpu-operator"}, "data": {"default": "shares"}}
    cluster.api.put(CONFIG_MAPS, shares)
    cluster.tell(AgentConfig(roles={"one": RoleConfig()}, device_plugin_config=ConfigRef(name="plugins")))
    async with hosted(cluster, tmp_path, (Role("one", following, configured=True),)):
        await eventually(lambda: seen)
        label(**{names.DEVICE_PLUGIN_CONFIG_LABEL: "default"})
        await eventually(lambda: seen[-1] == "shares")
        label()
        await eventually(lambda: seen[-1] != "shares")
    # What follows the orders begins with all defaults, so that the first may be told twice.
    assert list(dict.fromkeys(seen)) == ["", "shares"]
    assert seen[-1] == ""


async def test_labels_move_between_node_and_node_feature(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "HAND_OVER", 0.05)
    config = AgentConfig(roles={"labels": RoleConfig()}, driver_install_dir="/nowhere")
    feature = (NODE_FEATURES, "gpu-operator", names.NODE_FEATURE_PREFIX + "node-1")
    cluster.tell(config)
    async with hosted(cluster, tmp_path):
        await eventually(lambda: names.LABEL_GPU_PRODUCT in cluster.labels)
        cluster.tell(msgspec.structs.replace(config, node_feature_api=True))
        await eventually(lambda: feature in cluster.api._objects)
        await asyncio.sleep(0.3)
        published = {key: value for key, value in cluster.labels.items() if key.startswith(names.NVIDIA_DOMAIN)}
        assert names.LABEL_GPU_PRODUCT in published, "nobody else has published it yet"
        theirs = {"metadata": {"name": "node-1", "labels": published}}
        await cluster.api.apply(NODES, theirs, manager="nfd-master")
        await eventually(lambda: names.LABELS_FIELD_MANAGER not in managers(cluster))
        assert published.items() <= cluster.labels.items()
        cluster.tell(config)
        await eventually(
            lambda: feature not in cluster.api._objects and names.LABELS_FIELD_MANAGER in managers(cluster)
        )


async def test_a_role_that_the_policy_switches_off_leaves_nothing_on_the_node(cluster, tmp_path):
    config = AgentConfig(roles={"features": RoleConfig()}, driver_install_dir="/nowhere")
    cluster.tell(config)
    (tmp_path / "host/proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "host/proc/sys/kernel/osrelease").write_text("6.1\n")
    async with hosted(cluster, tmp_path):
        await eventually(lambda: cluster.labels.get(names.NFD_KERNEL_FULL) == "6.1")
        cluster.tell(AgentConfig(roles={"features": RoleConfig(enabled=False)}))
        await eventually(lambda: names.NFD_KERNEL_FULL not in cluster.labels)


async def test_feature_labels_that_somebody_takes_away_come_back_long_before_the_next_round(cluster, tmp_path):
    cluster.tell(AgentConfig(roles={"features": RoleConfig()}, driver_install_dir="/nowhere"))
    (tmp_path / "host/proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "host/proc/sys/kernel/osrelease").write_text("6.1\n")
    async with hosted(cluster, tmp_path) as agent:
        await eventually(lambda: agent.orders.labels.get(names.NFD_KERNEL_FULL) == "6.1")
        await eventually(lambda: state(cluster, "features") == ("running", ""))
        cluster.api.put(NODES, {"metadata": {"name": NODE, "labels": {}}})
        assert names.NFD_KERNEL_FULL not in cluster.labels
        await eventually(lambda: cluster.labels.get(names.NFD_KERNEL_FULL) == "6.1")


async def test_a_role_learns_what_the_label_of_another_says(cluster, tmp_path):
    hosts = []

    async def start(host, handle) -> None:
        hosts.append(host)
        handle.running()
        await asyncio.Event().wait()

    cluster.tell(BOTH)
    cluster.label(plugin="false", **{"gpu-feature-discovery": "true"})
    async with hosted(cluster, tmp_path, (Role("one", start), Role("two", start))):
        await eventually(lambda: hosts)
        assert hosts[0].off("two") == ""
        assert PLUGIN_LABEL in hosts[0].off("one")
        cluster.label(plugin="true")
        await eventually(lambda: hosts[0].off("one") == "")


async def test_a_role_that_pods_still_need_goes_on_until_they_have_ended(cluster, tmp_path):
    """What a DRA driver has prepared only it can take back: without it the pods could not end."""
    log, needed = [], tmp_path / "needed"
    needed.touch()

    async def start(host, handle) -> None:
        log.append("+")
        handle.running()
        try:
            while not host.off("one"):  # noqa: ASYNC110 - the agent changes it
                await asyncio.sleep(0.01)
            log.append("gives no more")
            await asyncio.Event().wait()
        finally:
            log.append("-")

    role = Role("one", start, lingers=lambda _: "pods still have 1 claim" if needed.exists() else "")
    cluster.tell(AgentConfig(roles={"one": role_config()}, driver_install_dir="/nowhere"))
    cluster.label(plugin="true")
    async with hosted(cluster, tmp_path, (role,)):
        await eventually(lambda: log == ["+"])
        cluster.label(plugin="false")
        await eventually(lambda: log == ["+", "gives no more"])
        await eventually(lambda: state(cluster, "one") == ("waiting", "SwitchedOff"))
        assert cluster.report.roles["one"].reason.startswith("pods still have 1 claim; then it stops: the node label ")
        needed.unlink()
        await eventually(lambda: log[-1] == "-")
        await eventually(lambda: state(cluster, "one") == ("stopped", "SwitchedOff"))


async def test_a_role_that_pods_still_need_is_started_for_them_and_leaves_with_kgpu(cluster, started, tmp_path):
    role = Role("one", started.role("one"), lingers=lambda _: "pods still have 2 claims")
    config = AgentConfig(roles={"one": role_config()}, driver_install_dir="/nowhere")
    cluster.tell(config)
    cluster.label(plugin="false")
    async with hosted(cluster, tmp_path, (role,)):
        await eventually(lambda: started.log == ["+one"])
        cluster.tell(msgspec.structs.replace(config, roles={}))
        await eventually(lambda: state(cluster, "one") is None)
        assert started.log == ["+one"], "no role of the policy's any more, and the pods are still there"
        cluster.tell(msgspec.structs.replace(config, leaving=True))
        await eventually(lambda: started.log == ["+one", "-one"])


# Leaving


async def test_a_start_while_the_document_is_gone_goes_on_with_the_last_one(cluster, started, roles, tmp_path):
    cluster.tell(BOTH)
    cluster.label(plugin="true")
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: state(cluster, "one") == ("running", ""))
        await eventually((tmp_path / "state/agent.json").exists)
    cluster.api.set_down(False)  # the agent closed its client
    del cluster.api._objects[(CONFIG_MAPS, "gpu-operator", names.AGENT_CONFIG_MAP)]
    async with hosted(cluster, tmp_path, roles) as agent:
        await eventually(lambda: started.log.count("+one") == 2)
        assert "does not exist" in agent.orders.problem.what
        cluster.label(plugin="false")  # the Node's own labels count, not remembered ones
        await eventually(lambda: started.log.count("-one") == 2)


@pytest.mark.parametrize("text", ["{", '{"roles": 3}'])
async def test_a_start_with_a_document_that_is_spoilt_goes_on_with_the_last_one(
    cluster, started, roles, tmp_path, text
):
    cluster.tell(BOTH)
    cluster.label(plugin="true")
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: state(cluster, "one") == ("running", ""))
        await eventually((tmp_path / "state/agent.json").exists)
    cluster.api.set_down(False)  # the agent closed its client
    cluster.tell(text)
    async with hosted(cluster, tmp_path, roles) as agent:
        await eventually(lambda: started.log.count("+one") == 2)
        assert "can't be read" in agent.orders.problem.what


async def test_a_start_while_the_node_is_gone_goes_on_with_the_last_labels(cluster, started, roles, tmp_path):
    cluster.tell(BOTH)
    cluster.label(plugin="true")
    memory = tmp_path / "state/agent.json"
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: state(cluster, "one") == ("running", ""))
        await eventually(memory.exists)
    cluster.api.set_down(False)  # the agent closed its client
    del cluster.api._objects[(NODES, "", "node-1")]
    before = memory.read_text()
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: started.log.count("+one") == 2)
        assert memory.read_text() == before


# The report


async def test_a_report_that_somebody_removes_is_put_back(cluster, roles, tmp_path):
    cluster.tell(AgentConfig(roles={"plain": RoleConfig()}))
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: state(cluster, "plain") == ("running", ""))
        change = {"metadata": {"annotations": {names.ROLES_ANNOTATION: "{}"}}}
        await cluster.api.patch(NODES, "node-1", change)
        await eventually(lambda: state(cluster, "plain") == ("running", ""))


async def test_a_failing_role_is_reported_and_the_others_run(cluster, started, tmp_path):
    async def failing(host, handle) -> None:
        raise HostError("no folder", "a folder", "make one")

    roles = (Role("bad", failing, hardware=False), Role("good", started.role("good"), hardware=False))
    cluster.tell(AgentConfig(roles={"bad": RoleConfig(), "good": RoleConfig()}))
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: state(cluster, "bad") == ("waiting", "Waiting"))
        bad = cluster.report.roles["bad"]
        assert (bad.reason, bad.remedy) == ("no folder; expected a folder", "make one")
        await eventually(lambda: state(cluster, "good") == ("running", ""))


async def test_a_role_that_does_not_end_is_not_started_twice(cluster, tmp_path):
    release, lives = asyncio.Event(), []

    async def stubborn(host, handle) -> None:
        lives.append("+")
        handle.running()
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()
        lives.append("-")

    cluster.tell(AgentConfig(roles={"one": role_config()}))
    cluster.label(plugin="true")
    async with hosted(cluster, tmp_path, (Role("one", stubborn),), shutdown_seconds=0.1) as agent:
        await eventually(lambda: lives == ["+"])
        cluster.label(plugin="false")
        await eventually(lambda: agent._slots["one"].stuck)
        assert "it is being stopped" in agent._readyz().body
        cluster.label(plugin="true")
        await eventually(lambda: agent.wanted["one"].run)
        assert lives == ["+"]
        release.set()
        await eventually(lambda: lives[:3] == ["+", "-", "+"])
