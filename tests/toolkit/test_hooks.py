"""Hooks of specs: always with an environment of their own, switched on and off by name, their helper found or named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError, HostError
from kgpu.host.root import Tree
from kgpu.toolkit.config import HOOKS, HookConfig, hook_config
from kgpu.toolkit.hooks import Hooks, find_hooks
from tests.host.tree import link, touch

PATH = "/usr/bin/nvidia-cdi-hook"
WORDS = st.lists(st.text(max_size=20), max_size=4)


def made(hooks: Hooks) -> list[str]:
    every = (
        *hooks.create_symlinks(["a::/b"]),
        *hooks.enable_cuda_compat(driver="1.2"),
        *hooks.update_ldcache(["/lib"]),
        *hooks.make("disable-device-node-modification"),
        *hooks.make("update-application-profile"),
        *hooks.chmod(["/dev/dri/card0"]),
    )
    return [hook.args[1] for hook in every]


@given(st.sampled_from([PATH, "/usr/bin/nvidia-ctk", "/x"]), st.sampled_from(HOOKS), WORDS)
def test_every_hook_has_an_environment_of_its_own(path: str, name: str, arguments: list[str]) -> None:
    """Otherwise it inherits the container's, with LD_PRELOAD (CVE-2025-23266)."""
    (hook,) = Hooks(path, HookConfig(enabled=frozenset(HOOKS))).make(name, *arguments)
    assert hook.env == ("NVIDIA_CTK_DEBUG=false",)
    assert hook.hook_name == "createContainer"
    assert hook.path == path


def test_through_nvidia_ctk_the_hook_is_a_subcommand() -> None:
    (hook,) = Hooks("/opt/nvidia-ctk").make("update-ldcache", "--folder", "/lib")
    assert hook.args == ("nvidia-ctk", "hook", "update-ldcache", "--folder", "/lib")


@pytest.mark.parametrize(
    ("disabled", "enabled", "expected"),
    [
        ((), (), HOOKS[:-1]),
        (("update-ldcache",), (), tuple(name for name in HOOKS[:-1] if name != "update-ldcache")),
        (("all",), (), ()),
        (("all",), ("update-ldcache",), ("update-ldcache",)),
        (("chmod,update-ldcache",), ("chmod", "update-ldcache"), HOOKS),
    ],
)
def test_enabling_beats_disabling(disabled, enabled, expected) -> None:
    assert made(Hooks(PATH, hook_config(disabled=disabled, enabled=enabled))) == list(expected)


def test_what_has_nothing_to_do_is_not_there() -> None:
    hooks = Hooks(PATH, HookConfig(enabled=frozenset(HOOKS)))
    assert hooks.create_symlinks([]) == ()
    assert hooks.update_ldcache([]) == ()
    assert hooks.enable_cuda_compat() == ()
    assert hooks.chmod(["/dev/nvidia0"]) == ()
    assert made(Hooks()) == []


def test_arguments_are_the_replaced_programs() -> None:
    hooks = Hooks(PATH, hook_config(ldconfig="/sbin/ldconfig.real"))
    (links,) = hooks.create_symlinks(["a::/b", "c::/d", "a::/b"])
    assert links.args == ("nvidia-cdi-hook", "create-symlinks", "--link", "a::/b", "--link", "c::/d")
    (cache,) = hooks.update_ldcache(["/x", "/y", "/x"])
    assert cache.args[2:] == ("--ldconfig-path", "/sbin/ldconfig.real", "--folder", "/x", "--folder", "/y")
    (compat,) = hooks.enable_cuda_compat(cuda=(12, 10), root="/compat")
    assert compat.args[2:] == ("--host-cuda-version=12.10", "--cuda-compat-container-root=/compat")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"disabled": ["update-ldcash"]}, 'did you mean "update-ldcache"'),
        ({"enabled": ["all"]}, "can't be enabled at once"),
        ({"path": "bin/nvidia-cdi-hook"}, "relative path"),
        ({"ldconfig": "sbin/ldconfig"}, "relative path"),
    ],
)
def test_bad_settings_are_explained(options, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        hook_config(**options)


def test_the_helper_is_looked_for_on_the_host(tmp_path) -> None:
    tree = Tree.at(tmp_path, "/")
    with pytest.raises(HostError, match="there is no nvidia-cdi-hook") as caught:
        find_hooks(HookConfig(), tree)
    assert "leave --hooks out" in caught.value.remedy
    touch(tmp_path, "/opt/toolkit/nvidia-cdi-hook")
    link(tmp_path, PATH, "/opt/toolkit/nvidia-cdi-hook")
    assert find_hooks(HookConfig(), tree).path == PATH
    assert find_hooks(HookConfig(path="/elsewhere/hook"), tree).path == "/elsewhere/hook"
    with pytest.raises(HostError, match="there is no nvidia-ctk"):
        find_hooks(HookConfig(path="nvidia-ctk"), tree)
    assert not find_hooks(None, tree).wanted
