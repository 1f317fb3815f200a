"""What one role is told: arguments as the replaced programs take them, the environment, and where the driver is."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.agent.driver_place import DriverPlace, find_driver
from kgpu.agent.options import AgentOptions, LabelsSink
from kgpu.agent.role_options import parse_args, role_options
from kgpu.agent.roles import ROLES
from kgpu.base.errors import ConfigError
from kgpu.deviceplugin.config import FLAGS
from kgpu.formats.agent_config import AgentConfig, RoleConfig
from kgpu.hw.simulator.amd import operate as amd
from kgpu.hw.simulator.create import create_root

BY_NAME = {role.name: role for role in ROLES}
PLACE = DriverPlace(seen=Path("/host"), host="/", source="host")
BASE = AgentOptions(auto=True, node_name="n", namespace="ns", host_root=Path("/host"), env={"A": "1", "B": "1"})


@pytest.mark.parametrize(
    ("args", "values"),
    [
        (("--mig-strategy=mixed",), {"mig_strategy": "mixed"}),
        (("--mig-strategy", "mixed"), {"mig_strategy": "mixed"}),
        (("-mig-strategy=mixed",), {"mig_strategy": "mixed"}),
        (("--gds-enabled",), {"gds_enabled": "true"}),
        (("--gds-enabled=false",), {"gds_enabled": "false"}),
        (("--gds-enabled", "--mofed-enabled"), {"gds_enabled": "true", "mofed_enabled": "true"}),
        (("--nvidia-driver-root=/d",), {"driver_root": "/d"}),
        (("--device-list-strategy=envvar", "--device-list-strategy=cdi-cri"),
         {"list_strategies": ["envvar", "cdi-cri"]}),
        ((), {}),
    ],
)  # fmt: skip
def test_arguments(args, values):
    assert parse_args(args, FLAGS, "deviceplugin") == values


@pytest.mark.parametrize("args", [("--mig-stratgy=x",), ("mig-strategy=x",), ("",), ("--",), ("--gds-enabled", "true")])
def test_arguments_that_are_none(args):
    with pytest.raises(ConfigError, match="there is no flag"):
        parse_args(args, FLAGS, "deviceplugin")


@given(st.lists(st.text()))
def test_any_arguments_are_read_or_refused(args):
    with contextlib.suppress(ConfigError):
        assert isinstance(parse_args(args, FLAGS, "x"), dict)


def options(name="deviceplugin", told=None, config=None, place=PLACE, base=BASE):
    return role_options(base, BY_NAME[name], told or RoleConfig(), config or AgentConfig(), place)


def test_the_roles_environment_is_over_the_agents():
    assert options(told=RoleConfig(env={"B": "2"})).env == {"A": "1", "B": "2"}


def test_the_driver_root_here_and_on_the_host():
    found = options()
    assert found.root == Path("/host")
    assert (
        found.overrides_of("deviceplugin")["container_driver_root"],
        found.overrides_of("deviceplugin")["driver_root"],
    ) == ("/host", "/")


def test_an_argument_is_over_where_the_driver_was_found():
    assert options(told=RoleConfig(args=("--driver-root=/d",))).overrides_of("deviceplugin")["driver_root"] == "/d"


def test_a_simulated_roots_state_reaches_the_role(sim_root):
    root = sim_root("hgx-h100")
    found = options(place=DriverPlace(seen=root, host=str(root), source="container"))
    assert found.env["KGPU_HW_STATE"] == str(root / "state")


def test_where_labels_go():
    assert options("labels").sink is LabelsSink.NODE
    assert options("labels", config=AgentConfig(node_feature_api=True)).sink is LabelsSink.NODE_FEATURE


def test_the_gate_is_there_where_a_validator_is():
    assert options().validations_dir is None
    assert options(config=AgentConfig(roles={"validator": RoleConfig(enabled=False)})).validations_dir is None
    gated = options(config=AgentConfig(roles={"validator": RoleConfig()}))
    assert gated.validations_dir == Path("/run/nvidia/validations")


def test_what_a_role_is_not_concerned_with_does_not_change_its_options():
    other = AgentConfig(node_feature_api=True, driver_install_dir="/other", generation=7)
    assert options(config=other) == options()


def test_a_role_without_flags_refuses_arguments():
    with pytest.raises(ConfigError, match="takes no arguments"):
        options("features", told=RoleConfig(args=("--x",)))


@pytest.mark.parametrize("word", ["exporter", "dcgm-exporter"])
def test_arguments_of_a_role_s_own_process_are_for_that_role_alone(word):
    base = dataclasses.replace(BASE, roles=(word, "health"), role_args=("-f", "/c.csv", "-k=false"))
    assert options("exporter", base=base).overrides_of("exporter") == {"collectors": "/c.csv", "kubernetes": "false"}
    assert options("deviceplugin", base=base).overrides_of("exporter") == {}


@pytest.mark.parametrize(
    ("arg", "instead"), [("--config-file=/c", "devicePlugin.config"), ("-kubelet-socket=/s", "kubeletRootDir")]
)
def test_a_flag_for_what_the_policy_says_elsewhere_is_refused_with_the_place(arg, instead):
    with pytest.raises(ConfigError, match="there is no flag") as refused:
        options(told=RoleConfig(args=(arg,)))
    assert instead in refused.value.remedy


def library(root, folder="usr/lib64"):
    (root / folder).mkdir(parents=True)
    (root / folder / "libnvidia-ml.so.1").write_text("")
    return root


def test_an_installed_driver_is_over_the_hosts(tmp_path):
    host, install = library(tmp_path / "host"), library(tmp_path / "install")
    found = find_driver(AgentConfig(driver_install_dir=str(install)), host)
    assert (found.seen, found.host, found.source, found.found) == (install, str(install), "container", True)


def test_an_installed_driver_is_also_found_below_the_hosts_root(tmp_path):
    host = library(tmp_path / "host")
    library(host / "run/kgpu-test/driver")
    found = find_driver(AgentConfig(driver_install_dir="/run/kgpu-test/driver"), host)
    assert (found.seen, found.host, found.source) == (
        host / "run/kgpu-test/driver", "/run/kgpu-test/driver", "container",
    )  # fmt: skip


def test_the_host_is_where_a_driver_may_still_come(tmp_path):
    config = AgentConfig(driver_install_dir=str(tmp_path / "none"), host_root="/")
    place = find_driver(config, tmp_path / "host")
    assert (place.seen, place.host, place.source, place.found) == (tmp_path / "host", "/", "host", False)
    library(tmp_path / "host")
    assert find_driver(config, tmp_path / "host").found


@pytest.mark.parametrize(("told", "seen"), [("/opt/driver", "host/opt/driver"), ("/", "host")])
def test_a_driver_root_that_is_told_is_seen_below_the_hosts(tmp_path, told, seen):
    found = find_driver(AgentConfig(driver_root=told), tmp_path / "host")
    assert (found.seen, found.host, found.source) == (tmp_path / seen, told, "host")


@pytest.mark.parametrize("folder", ["", "relative", "../..", "\x00"])
def test_an_install_folder_that_is_none_is_no_driver(tmp_path, folder):
    assert find_driver(AgentConfig(driver_install_dir=folder), tmp_path).source == "host"


def test_the_driver_of_another_vendor_is_the_hosts_module(tmp_path):
    """The install folder of NVIDIA's driver has no part in it, whatever is there."""
    host, install = tmp_path / "host", library(tmp_path / "install")
    (host / "sys/bus/pci/drivers").mkdir(parents=True)
    config = AgentConfig(driver_install_dir=str(install))
    place = find_driver(config, host, "amd")
    assert (place.seen, place.host, place.source, place.found) == (host, "/", "host", False)
    (host / "sys/module/amdgpu/drivers").mkdir(parents=True)
    assert find_driver(config, host, "amd").found
    assert not find_driver(config, host, "nobody").found


def test_a_simulated_machine_of_another_vendor_is_where_the_lab_shows_it(tmp_path):
    """And nowhere else, also while its driver is not loaded."""
    machine, host = tmp_path / "machine", tmp_path / "host"
    create_root("mi210", machine)
    (host / "sys/module/amdgpu/drivers").mkdir(parents=True)
    config = AgentConfig(driver_install_dir=str(machine))
    place = find_driver(config, host, "amd")
    assert (place.seen, place.host, place.source, place.found) == (machine, str(machine), "host", True)
    amd.unload(machine)
    place = find_driver(config, host, "amd")
    assert (place.seen, place.found) == (machine, False)
