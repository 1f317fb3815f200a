"""mig-parted's hooks file: what it takes, and what it refuses that the replaced program takes without a word."""

from __future__ import annotations

import pytest

from kgpu.base.errors import ConfigError
from kgpu.formats.mig_hooks import MigHook, parse_hooks

TEXT = """\
version: v1
hooks:
  apply-start:
  - command: "/bin/bash"
    args: ["-x", "-c", "source hooks.sh; apply-start"]
    workdir: "/etc/nvidia-mig-manager"
    envs: {A: b}
  pre-apply-mode: []
  apply-exit:
  - {command: one}
  - {command: two}
"""


def test_commands_of_each_hook_in_their_order() -> None:
    assert parse_hooks(TEXT) == {
        "apply-start": (
            MigHook(
                command="/bin/bash", args=("-x", "-c", "source hooks.sh; apply-start"), env={"A": "b"},
                folder="/etc/nvidia-mig-manager",
            ),
        ),
        "pre-apply-mode": (),
        "apply-exit": (MigHook(command="one"), MigHook(command="two")),
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "{}", "version: v1", "version: v1\nhooks:", "version: v1\nhooks: {apply-exit: }"])
def test_a_file_without_commands_is_valid(text: str) -> None:
    assert parse_hooks(text) == {}


def of(command: str) -> str:
    return f"version: v1\nhooks: {{apply-start: [{command}]}}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hooks: {}", "hooks.yaml has no version"),
        ("version: v2", "line 1: version: unknown version: v2"),
        ("version: v1\nhooks: {apply-strat: []}", 'line 2: hooks.apply-strat: unknown key "apply-strat"'),
        ("version: v1\nhook: {}", 'unknown key "hook"'),
        ("version: v1\nhooks: []", "is not a mapping"),
        ("version: v1\nhooks: {apply-start: {command: a}}", "is no list"),
        (of("{args: [a]}"), "there is no command"),
        (of('{command: ""}'), "there is no command"),
        (of("{command: 1}"), "is not a text"),
        (of("{command: a, args: [1]}"), "is no list of texts"),
        (of("{command: a, args: b}"), "is no list of texts"),
        (of("{command: a, envs: [b]}"), "its values are not all texts"),
        (of("{command: a, envs: {B: 1}}"), "its values are not all texts"),
        (of('{command: a, envs: {"B=": c}}'), "a variable's name is empty or has a ="),
        (of('{command: "a\\0"}'), "a character of number 0"),
        (of("{command: a, work-dir: /}"), 'unknown key "work-dir"'),
        (of("a"), "is not a mapping"),
        ("version: v1\n---\nversion: v1", "2 documents"),
        ("[", "hooks.yaml"),
    ],
)
def test_anything_else_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_hooks(text, source="hooks.yaml")
    assert refused.value.what.startswith("error parsing hooks file: ")
    assert said in refused.value.what
    assert refused.value.remedy


def test_values_of_variables_are_not_told() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_hooks(of("{command: a, envs: {TOKEN: [s3cret]}}"))
    assert "s3cret" not in str(refused.value)
