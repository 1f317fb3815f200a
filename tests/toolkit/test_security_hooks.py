"""Hooks run as root on the host beside a container's content. A spec has none unless they were asked for; those that it
has carry an environment, so that none of the container's is inherited, and none changes modes by path.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.cli.nvidia_ctk import HOOK_PLACES
from kgpu.formats.cdi import Hook
from kgpu.toolkit.config import HOOKS, HookConfig
from kgpu.toolkit.hooks import Hooks

WORDS = st.frozensets(st.sampled_from([*HOOKS, "all"]))
PATHS = st.sampled_from(["/usr/bin/nvidia-cdi-hook", "/usr/bin/nvidia-ctk"])


def every_hook(hooks: Hooks) -> tuple[Hook, ...]:
    return (
        *hooks.create_symlinks(["libcuda.so.1::/usr/lib64/libcuda.so"]),
        *hooks.enable_cuda_compat(driver="570.133.20"),
        *hooks.enable_cuda_compat(cuda=(12, 8)),
        *hooks.update_ldcache(["/usr/lib64"]),
        *hooks.chmod(["/dev/dri/card0", "/dev/nvidia-caps/nvidia-cap1"]),
        *(hook for name in HOOKS for hook in hooks.make(name)),
    )


@given(path=PATHS, disabled=WORDS, enabled=WORDS)
def test_every_hook_has_an_environment_of_its_own(path: str, disabled: frozenset[str], enabled: frozenset[str]) -> None:
    made = every_hook(Hooks(path, HookConfig(path=path, disabled=disabled, enabled=enabled)))
    for hook in made:
        assert hook.env
        assert all(name.partition("=")[0] == "NVIDIA_CTK_DEBUG" for name in hook.env)
        assert hook.path == path
        assert hook.hook_name == "createContainer"


def test_without_being_asked_there_is_none() -> None:
    assert every_hook(Hooks()) == ()


@given(disabled=WORDS)
def test_modes_are_not_changed_by_path_unless_that_is_enabled(disabled: frozenset[str]) -> None:
    made = every_hook(Hooks("/usr/bin/nvidia-cdi-hook", HookConfig(disabled=disabled)))
    assert not [hook for hook in made if "chmod" in hook.args]


@pytest.mark.parametrize("name", ["create-symlinks", "update-ldcache", "no-such-hook"])
def test_our_own_hook_command_starts_nothing_of_the_containers(tmp_path: Path, name: str) -> None:
    """It may be run with the environment of an image: its PATH and its folder are not where programs are taken from."""
    for program in ("nvidia-cdi-hook", "nvidia-ctk", "ldconfig"):
        evil = tmp_path / program
        evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        evil.chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:.:{os.environ['PATH']}",
        "NVIDIA_CTK_CDI_HOOK_PATH": str(tmp_path / "ldconfig"),
    }
    if any(os.path.exists(place) for place in HOOK_PLACES):
        pytest.skip("this machine has the toolkit's own hook program, which would run")
    command = [sys.executable, "-c", "from kgpu.cli.main import main; sys.exit(main())", "hook", name, "--folder", "/"]
    command[2] = f"import sys; sys.argv[0] = 'nvidia-ctk'; {command[2]}"
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert not (tmp_path / "ran").exists()
    assert done.returncode == (0 if name == "no-such-hook" else 1), done.stderr
