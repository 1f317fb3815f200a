"""What an error costs, what restarts pods and what does not, and what the agents are told."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.agent.roles import ROLES
from kgpu.base.errors import ConfigError
from kgpu.formats import agent_config as agent_format
from kgpu.formats import names, yaml
from kgpu.formats.operands import OPERANDS
from kgpu.operator.model import NodeLayout, Object, ObservedCluster, OtherPresence
from kgpu.operator.objects import shape
from kgpu.operator.objects.containers import RUN
from kgpu.operator.operands import OF_ROLE
from kgpu.operator.rendering.agent_settings import agent_config
from tests.operator.objects.scenes import CASES, FULL, HOST_DRIVER, MONITORING, SETTINGS, UBUNTU, Case, node, policy
from tests.operator.objects.scenes import OPERANDS as AS_OPERANDS

DAEMON_SET = ("DaemonSet", "kgpu-agent")


def by_key(case: Case) -> dict[tuple[str, str], Object]:
    return {(one["kind"], one["metadata"]["name"]): one for one in case.rendered().objects}


def config(spec: str, **observed: Any) -> agent_format.AgentConfig:
    return agent_config(policy(spec), SETTINGS, ObservedCluster(**observed))


def test_the_config_map_has_what_agent_config_says() -> None:
    case = CASES["agent-full"]
    text = by_key(case)["ConfigMap", names.AGENT_CONFIG_MAP]["data"][names.AGENT_CONFIG_KEY]
    assert agent_format.decode(text, source="test") == agent_config(case.policy, case.settings, case.observed)


@pytest.mark.parametrize(
    "spec",
    ["mig: {strategy: mixed}", "devicePlugin: {config: {name: a, default: b}}", "devicePlugin: {enabled: false}",
     "toolkit: {enabled: false}", "nodeStatusExporter: {enabled: true}", "cdi: {enabled: false}",
     "devicePlugin: {version: v9, image: x, repository: z.io}", "gfd: {env: [{name: A, value: b}]}",
     "validator: {version: v2}", "daemonsets: {labels: {helm.sh/chart: kgpu-9, app.kubernetes.io/version: '9'}}",
     "daemonsets: {annotations: {helm.sh/chart: kgpu-9}}", "operator: {labels: {a: b}}"],
)  # fmt: skip
def test_what_agents_are_told_does_not_restart_them(spec: str) -> None:
    plain = by_key(Case(policy=policy()))[DAEMON_SET]["spec"]
    assert by_key(Case(policy=policy(spec)))[DAEMON_SET]["spec"] == plain


def test_in_pods_of_their_own_each_process_that_reads_the_driver_can_speak_for_all() -> None:
    pods = {role.name: OF_ROLE[role.name].pod for role in ROLES if role.hardware and role.name in OF_ROLE}
    volumes = {name: set(pod.volumes) for name, pod in pods.items() if pod is not None}
    assert len(volumes) > 7
    assert {name for name, has in volumes.items() if not {"pod-resources", RUN} <= has} == set()


def test_every_role_of_an_operand_is_told_with_its_label() -> None:
    roles = config(HOST_DRIVER).roles
    assert set(roles) == {one.role for one in OPERANDS if one.role}
    assert {role for role, spec in OF_ROLE.items() if spec.pod} == {
        one.role for one in OPERANDS if one.role and not one.within
    }
    assert roles["features"].label == ""
    assert roles["deviceplugin"].label == "nvidia.com/gpu.deploy.device-plugin"


@pytest.mark.parametrize(
    ("spec", "on"),
    [("{}", {"toolkit", "deviceplugin", "mps", "exporter", "labels"}),
     ("devicePlugin: {enabled: false}\ngfd: {enabled: false}", {"toolkit", "exporter"}),
     ("dcgmExporter: {enabled: false}", {"toolkit", "deviceplugin", "mps", "labels"}),
     ("toolkit: {enabled: false}\nnodeStatusExporter: {enabled: true}",
      {"deviceplugin", "mps", "exporter", "labels", "node-status"})],
)  # fmt: skip
def test_which_roles_are_on(spec: str, on: set[str]) -> None:
    always = {"features", "validator", "health", "probe", "mig-manager", "device-config-manager"}
    assert {name for name, role in config(spec).roles.items() if role.enabled} == on | always


@pytest.mark.parametrize(("wanted", "roles"), [(True, "validator,probe"), (False, "validator")])
def test_host_facts_come_from_the_validators_pod(wanted: bool, roles: str) -> None:
    settings = dataclasses.replace(AS_OPERANDS, host_facts=wanted)
    found = by_key(Case(policy=policy(HOST_DRIVER), settings=settings))
    pod = found["DaemonSet", "nvidia-operator-validator"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"][-2:] == ["--roles", roles]
    assert agent_config(policy("{}"), settings, ObservedCluster()).roles["probe"].enabled is wanted


def test_another_discovery_is_left_to_its_work() -> None:
    told = config("{}", foreign_nfd=True, kinds=frozenset({"nodefeatures.nfd.k8s-sigs.io"}))
    assert told.roles["features"].enabled, "it keeps what the other one has not published"
    assert told.other_discovery
    assert told.node_feature_api
    old = config("{}", foreign_nfd=True)
    assert (old.other_discovery, old.node_feature_api) == (True, False)
    for word in OtherPresence:
        said = agent_config(policy(), dataclasses.replace(SETTINGS, other_discovery=word), ObservedCluster())
        assert said.take_over_features is (word is OtherPresence.IGNORE)
    off = dataclasses.replace(SETTINGS, discovery=False)
    assert not agent_config(policy(), off, ObservedCluster()).roles["features"].enabled


def test_the_user_s_environment_wins_and_is_last() -> None:
    env = (
        config("devicePlugin: {env: [{name: PASS_DEVICE_SPECS, value: 'false'}, {name: X, value: '1'}]}")
        .roles["deviceplugin"]
        .env
    )
    assert list(env)[-2:] == ["PASS_DEVICE_SPECS", "X"]
    assert env["PASS_DEVICE_SPECS"] == "false"


@pytest.mark.parametrize(
    ("spec", "strategy"),
    [("{}", "cdi-annotations,cdi-cri"), ("cdi: {enabled: false}", "envvar"),
     ("devicePlugin: {env: [{name: DEVICE_LIST_STRATEGY, value: volume-mounts}]}", "volume-mounts")],
)  # fmt: skip
def test_how_containers_learn_of_devices(spec: str, strategy: str) -> None:
    assert config(spec).roles["deviceplugin"].env["DEVICE_LIST_STRATEGY"] == strategy


def test_mig_strategy_reaches_the_plugin_and_the_labels() -> None:
    roles = config("mig: {strategy: single}").roles
    assert {name for name, role in roles.items() if role.env.get("MIG_STRATEGY") == "single"} == {
        "deviceplugin", "mps", "labels", "validator",
    }  # fmt: skip


@pytest.mark.parametrize("amount", ["x", "0", "0%", "-1", "1.5", "101%", "10 %"])
def test_a_bad_amount_is_said_and_what_runs_stays(amount: str) -> None:
    spec = f"daemonsets: {{rollingUpdate: {{maxUnavailable: '{amount}'}}}}\n{HOST_DRIVER}"
    found = Case(policy=policy(spec)).rendered()
    assert amount in found.errors["agent"].what
    assert found.keep == {"kgpu-agent", "node-features"}
    assert len(found.errors) == 1, "what agent and finder share is said once"
    # The agents that run go on being told what to do.
    rights = {"Role", "RoleBinding"}
    assert {one["kind"] for one in found.objects} == {"RuntimeClass", "Service", "ConfigMap"} | rights


@pytest.mark.parametrize(("amount", "wanted"), [("1", 1), ("25%", "25%"), ("100%", "100%")])
def test_a_good_amount(amount: str, wanted: int | str) -> None:
    told = policy(f"daemonsets: {{rollingUpdate: {{maxUnavailable: '{amount}'}}}}").spec.daemonsets
    assert shape.update_strategy(told)["rollingUpdate"] == {"maxUnavailable": wanted}


def test_on_delete() -> None:
    told = policy("daemonsets: {updateStrategy: OnDelete, rollingUpdate: {maxUnavailable: 'x'}}").spec.daemonsets
    assert shape.update_strategy(told) == {"type": "OnDelete"}


# Among them: where kgpu's own program is in its image (Dockerfile), and where other folders of the host are mounted.
BAD_PATHS = (
    "relative", "/", "/usr", "/usr/", "/a/../etc", "/a:b", "//", "/var", "/opt/kgpu", "/opt/kgpu/lib", "/usr/local/lib",
    "/usr/local", "/run", "/var/run/cdi", "/var/lib/kgpu/", "/host", "/host/opt", "/dev/shm", "/proc/1",
    "/var/lib/kubelet/device-plugins", "/run/nvidia/validations", "/var/run/secrets/kubernetes.io",
)  # fmt: skip


@pytest.mark.parametrize("path", BAD_PATHS)
def test_paths_that_would_break_the_pod_are_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="driverInstallDir"):
        shape.paths(policy(f"hostPaths: {{driverInstallDir: '{path}'}}"))
    told = config(f"hostPaths: {{driverInstallDir: '{path}'}}")
    assert told.driver_install_dir == "/run/nvidia/driver"


@pytest.mark.parametrize(
    "path", ["/home/kubernetes/bin/nvidia", "/opt/nvidia", "/usr/local/nvidia", "/run/nvidia/driver"]
)
def test_usual_paths_are_taken(path: str) -> None:
    assert shape.paths(policy(f"hostPaths: {{driverInstallDir: '{path}'}}")).driver_install_dir == path


def test_a_typo_in_a_path_leaves_running_agents_what_they_have() -> None:
    live = by_key(CASES["agent-full"])[DAEMON_SET]
    broken = policy("hostPaths: {driverInstallDir: relative}")
    told = agent_config(broken, SETTINGS, ObservedCluster(daemon_sets={"kgpu-agent": live}))
    assert (told.host_root, told.driver_install_dir) == ("/host-system", "/opt/nvidia/driver")


def test_one_operand_s_error_is_its_own() -> None:
    spec = f"{HOST_DRIVER}\ndevicePlugin: {{repository: 'bad?', image: kgpu, version: '1'}}"
    found = Case(policy=policy(spec), settings=AS_OPERANDS).rendered()
    assert set(found.errors) == {"device-plugin", "mps"}, "they have one section"
    assert found.keep == {"state-device-plugin", "state-mps-control-daemon"}
    sets = {one["metadata"]["name"] for one in found.objects if one["kind"] == "DaemonSet"}
    assert sets == {"kgpu-node-features", "nvidia-container-toolkit-daemonset", "nvidia-operator-validator",
                    "gpu-feature-discovery", "nvidia-dcgm-exporter", "kgpu-gpu-health", "nvidia-mig-manager"}  # fmt: skip


def test_images_of_the_replaced_programs_are_not_run() -> None:
    for settings in (SETTINGS, AS_OPERANDS):
        found = Case(policy=policy(FULL), settings=settings, observed=UBUNTU).rendered()
        told = [one for one in found.advice if one.reason == "ImageIgnored"]
        assert [one.evidence for one in told] == [("nvcr.io/nvidia", "k8s-device-plugin", "v0.20.0")]
        used = {
            container["image"]
            for one in found.objects
            if one["kind"] == "DaemonSet"
            for container in one["spec"]["template"]["spec"]["containers"]
        }
        assert used == {"kgpu.dev/kgpu:1.2.3"}


def test_another_build_of_kgpu_for_one_operand() -> None:
    spec = f"{HOST_DRIVER}\ndevicePlugin: {{repository: example.org, image: kgpu, version: '2', imagePullSecrets: [s]}}"
    found = by_key(Case(policy=policy(spec), settings=AS_OPERANDS))["DaemonSet", "nvidia-device-plugin-daemonset"]
    pod = found["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "example.org/kgpu:2"
    assert pod["imagePullSecrets"] == [{"name": "s"}]


def test_a_monitor_without_its_kind_is_said() -> None:
    spec = "operator: {metrics: {serviceMonitor: {enabled: true}}}"
    assert "ServiceMonitorUnavailable" in {one.reason for one in Case(policy=policy(spec)).rendered().advice}
    with_kinds = Case(policy=policy(spec), observed=ObservedCluster(kinds=MONITORING)).rendered()
    assert not with_kinds.advice
    assert {"ServiceMonitor", "PrometheusRule"} <= {one["kind"] for one in with_kinds.objects}


# The policy, words of the decision, and whether only one layout has it.
WITHOUT_EFFECT = {
    "sandboxWorkloads: {enabled: true}": ("SandboxNotProvided", "nothing for virtual machines", False),
    "cdi: {enabled: false}": ("CDISwitchedOff", "the driver's libraries only where", False),
    "devicePlugin: {resources: {limits: {memory: 1Gi}}}": ("SettingIgnored", "device plugin: resources", True),
    "validator: {hostNetwork: true, resources: {limits: {cpu: 1}}}": (
        "SettingIgnored", "validator: resources and hostNetwork", True,
    ),
    "dcgmExporter: {annotations: {a: b}, hostNetwork: true, resources: {limits: {cpu: 1}}}": (
        "SettingIgnored", "exporter: resources, hostNetwork and annotations", True,
    ),
    "gfd: {imagePullSecrets: [s], imagePullPolicy: Always}": (
        "SettingIgnored", "imagePullPolicy and imagePullSecrets", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("spec", WITHOUT_EFFECT)
def test_what_has_no_effect_is_said_once(spec: str) -> None:
    reason, words, agent_only = WITHOUT_EFFECT[spec]
    for settings in (SETTINGS, AS_OPERANDS):
        found = Case(policy=policy(f"{HOST_DRIVER}\n{spec}"), settings=settings).rendered()
        told = [one for one in found.advice if one.reason == reason]
        assert len(told) == (settings is SETTINGS or not agent_only)
        assert not found.errors
        for one in told:
            assert words in one.what
            assert one.remedy
            assert one.severity.notable
            assert one.subject.startswith("ClusterPolicy/")


def test_the_usual_policy_has_nothing_without_effect() -> None:
    assert not Case(policy=policy(HOST_DRIVER)).rendered().advice


BAD_NAMES = {
    "devicePlugin: {env: [{name: GOOD, value: x}, {name: A=B}]}": ("device-plugin", "devicePlugin.env[1].name"),
    "validator: {cuda: {env: [{name: ''}]}}": ("validator", "validator.cuda.env[0].name"),
    "gfd: {env: [{name: 'Ä'}]}": ("gfd", "gfd.env[0].name"),
    "driver: {repository: r.io/n, image: driver, version: '1', env: [{name: 'a=b'}]}": ("driver", "driver.env[0].name"),
    "driver: {repository: r.io/n, image: driver, version: '1', manager: {env: [{name: 'a=b'}]}}": (
        "driver", "driver.manager.env[0].name",
    ),
}  # fmt: skip


@pytest.mark.parametrize("spec", BAD_NAMES)
def test_a_bad_name_of_a_variable_is_an_error_of_its_operand(spec: str) -> None:
    operand, path = BAD_NAMES[spec]
    text = spec if spec.startswith("driver") else f"{HOST_DRIVER}\n{spec}"
    for settings in (SETTINGS, AS_OPERANDS):
        found = Case(policy=policy(text), settings=settings, observed=UBUNTU).rendered()
        beside = {"mps"} if operand == "device-plugin" else set()
        assert set(found.errors) == {operand} | beside
        assert path in found.errors[operand].what
        told = agent_config(policy(text), settings, UBUNTU)
        assert "A=B" not in told.roles["deviceplugin"].env


def test_names_of_variables_are_those_of_the_cluster_s_version() -> None:
    spec = f"{HOST_DRIVER}\ngfd: {{env: [{{name: 'odd name'}}]}}"
    for version, refused in (((1, 31), {"gfd"}), ((1, 32), set())):
        found = Case(policy=policy(spec), observed=ObservedCluster(kube_version=version)).rendered()
        assert set(found.errors) == refused


def test_runtimes_may_be_mixed() -> None:
    nodes = (node("a"), node("b", runtime="cri-o"))
    for settings in (SETTINGS, AS_OPERANDS):
        one = Case(policy=policy(HOST_DRIVER), settings=settings, observed=ObservedCluster(nodes=nodes[:1])).rendered()
        both = Case(policy=policy(HOST_DRIVER), settings=settings, observed=ObservedCluster(nodes=nodes)).rendered()
        assert one == both


def test_a_node_without_its_system_is_told() -> None:
    bare = node("bare", "", "")
    (told,) = Case(observed=ObservedCluster(nodes=(bare,))).rendered().advice
    assert (told.subject, told.reason) == ("Node/bare", "SystemUnknown")


def test_what_is_rendered_is_never_shared() -> None:
    case = CASES["operands-full"]
    first = case.rendered().objects
    before = [yaml.dump(one) for one in first]
    for one in first:
        spoil(one)
    assert [yaml.dump(one) for one in case.rendered().objects] == before


def spoil(value: Any) -> None:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in list(children):
        spoil(child)
    if isinstance(value, (dict, list)):
        value.clear()


words = st.text(max_size=12)
SECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "daemonsets": st.fixed_dictionaries({"rollingUpdate": st.fixed_dictionaries({"maxUnavailable": words})}),
        "hostPaths": st.fixed_dictionaries(
            {}, optional={"rootFS": words, "driverInstallDir": words, "kubeletRootDir": words}
        ),
        "driver": st.fixed_dictionaries(
            {}, optional={"repository": words, "image": words, "version": words, "usePrecompiled": st.booleans()}
        ),
        "devicePlugin": st.fixed_dictionaries(
            {}, optional={"repository": words, "image": words, "version": words, "args": st.lists(words)}
        ),
        "cdi": st.fixed_dictionaries({"enabled": st.booleans(), "nriPluginEnabled": st.booleans()}),
    },
)


@given(SECTIONS, st.sampled_from(NodeLayout))
def test_no_policy_makes_it_fail(spec: dict[str, Any], layout: NodeLayout) -> None:
    from kgpu.formats.crd import decode
    from kgpu.operator.model import Policy

    decoded = decode.clusterpolicy({"metadata": {"name": "p"}, "spec": spec})
    given = Policy(name="p", uid="u", generation=1, created="", spec=decoded.spec)
    settings = dataclasses.replace(SETTINGS, layout=layout)
    found = Case(policy=given, settings=settings, observed=UBUNTU).rendered()
    assert all((error.what, error.expected, error.remedy) for error in found.errors.values())
    assert bool(found.errors) == bool(found.keep)


def test_only_what_needs_them_sees_the_hosts_processes() -> None:
    apart = by_key(Case(policy=policy(HOST_DRIVER), settings=AS_OPERANDS))
    sees = {
        name
        for (kind, name), made in apart.items()
        if kind == "DaemonSet" and made["spec"]["template"]["spec"].get("hostPID")
    }
    mps, mig = "nvidia-device-plugin-mps-control-daemon", "nvidia-mig-manager"
    assert sees == {"nvidia-container-toolkit-daemonset", "nvidia-dcgm-exporter", mps, mig}
    spec = f"{HOST_DRIVER}\ndcgmExporter: {{hostPID: false, annotations: {{a: b}}}}"
    exporter = by_key(Case(policy=policy(spec), settings=AS_OPERANDS))["DaemonSet", "nvidia-dcgm-exporter"]
    template = exporter["spec"]["template"]
    assert "hostPID" not in template["spec"]
    assert template["metadata"]["annotations"] == {"a": "b"}


def test_both_layouts_keep_the_engines_originals_at_one_place() -> None:
    """A pod of the one layout gives back what a pod of the other has changed."""
    folder = f"{names.STATE_DIR}/{names.ENGINES_FOLDER}"

    def source(spec: Object) -> str:
        (container,) = spec["containers"]
        paths = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"]}
        mounts = [one for one in container["volumeMounts"] if f"{folder}/".startswith(f"{one['mountPath']}/")]
        nearest = max(mounts, key=lambda one: len(one["mountPath"]))
        return str(paths[nearest["name"]] + folder.removeprefix(nearest["mountPath"]))

    one, other = (
        by_key(Case(policy=policy(HOST_DRIVER), settings=settings))["DaemonSet", name]["spec"]["template"]["spec"]
        for settings, name in ((SETTINGS, "kgpu-agent"), (AS_OPERANDS, "nvidia-container-toolkit-daemonset"))
    )
    assert source(one) == source(other) == folder


def test_the_toolkit_is_told_another_name_of_the_runtime_class() -> None:
    told = config(f"{HOST_DRIVER}\noperator: {{runtimeClass: gpu}}").roles["toolkit"].env
    assert told["NVIDIA_RUNTIME_NAME"] == "gpu"
    assert "NVIDIA_RUNTIME_NAME" not in config(HOST_DRIVER).roles["toolkit"].env


def test_the_right_to_read_pods_comes_with_the_nri_plugin_alone() -> None:
    def rules(spec: str) -> list[Object]:
        made = by_key(Case(policy=policy(spec), settings=AS_OPERANDS))
        found: list[Object] = made["ClusterRole", "nvidia-container-toolkit"]["rules"]
        return [rule for rule in found if "pods" in rule["resources"]]

    assert rules(HOST_DRIVER) == []
    assert [rule["verbs"] for rule in rules(f"{HOST_DRIVER}\ncdi: {{nriPluginEnabled: true}}")] == [["get"]]
