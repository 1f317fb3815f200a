"""Options from rows: what a command gets is in force, its help shows variables and defaults, and what is idle is told."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from kgpu.cli._options import checked_by_click, help_with_variables, options, settled
from kgpu.formats.go_flags import read_bool
from kgpu.formats.settings import FlagShape, Setting, read_list

ROWS = (
    Setting(attr="place", flag="--place", aliases=("--folder",), envs=("PLACE", "FOLDER"), default="/", metavar="DIR",
            help="Where it is."),
    Setting(attr="dry", flag="--dry", read=read_bool, shape=FlagShape.SWITCH, default=False, help="Only look."),
    Setting(attr="names", flag="--name", read=read_list, shape=FlagShape.LIST, default=(), help="Who."),
    Setting(attr="hook", flag="--hook", envs=("HOOK",), idle="there are no hooks", help="Accepted."),
    Setting(attr="quiet", envs=("QUIET",), read=read_bool, default=False),
)  # fmt: skip
DEPTH = Setting(attr="depth", flag="--depth", envs=("DEPTH",), default=3, help="How deep.")


@click.command()
@settled(ROWS)
@checked_by_click(DEPTH, type=int)
def command(**given: Any) -> None:
    click.echo(json.dumps(given))


def run(*words: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(command, words, env=env, catch_exceptions=False)


def values(*words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*words, env=env).stdout)
    assert set(found) == {"place", "dry", "names", "hook", "quiet", "depth"}
    return found


@pytest.mark.parametrize(
    ("words", "env", "place"),
    [
        ((), {}, "/"),
        ((), {"PLACE": "/a", "FOLDER": "/b"}, "/a"),
        ((), {"PLACE": "", "FOLDER": "/b"}, "/b"),
        (("--folder", "/c"), {"PLACE": "/a"}, "/c"),
        (("--place", ""), {"PLACE": "/a"}, ""),
    ],
)
def test_flag_beats_variable_beats_default(words: tuple[str, ...], env: dict[str, str], place: str) -> None:
    assert values(*words, env=env)["place"] == place


def test_values_are_read_and_a_row_without_a_flag_has_its_variable() -> None:
    found = values("--dry", "--name", "a,b", "--name", "b", env={"QUIET": "true", "DEPTH": "5"})
    assert (found["dry"], found["names"], found["quiet"], found["depth"]) == (True, ["a", "b"], True, 5)
    assert values("--dry=false")["dry"] is False


@pytest.mark.parametrize(("words", "env", "name"), [(("--hook", "x"), {}, "--hook"), ((), {"HOOK": "x"}, "HOOK")])
def test_what_changes_nothing_is_told_once(words: tuple[str, ...], env: dict[str, str], name: str) -> None:
    assert run().stderr == ""
    assert run(*words, env=env).stderr == (
        f"warning: {name} has no effect, because there are no hooks [{name}: 'x']; to do: take --hook or HOOK out\n"
    )


def test_help_shows_defaults_and_variables_as_click_does() -> None:
    @click.command()
    @options(ROWS[:1], text=help_with_variables)
    @click.option("--other", envvar=["OTHER", "ALSO"], default="/", show_default=True, show_envvar=True, help="Other.")
    def two(**given: Any) -> None:
        del given

    said = CliRunner().invoke(two, ("--help",), terminal_width=200).stdout
    assert "--place, --folder DIR  Where it is.  [env var: PLACE, FOLDER; default: /]" in said
    assert "Other.  [env var: OTHER, ALSO; default: /]" in said
    assert "Where it is.  [default: /]" in run("--help").stdout
    assert "How deep.  [env var: DEPTH]" in run("--help").stdout
    assert "quiet" not in run("--help").stdout
