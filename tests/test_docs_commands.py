"""The documentation's commands are ones that kgpu has, with options that they take; its Helm values are the chart's."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from kgpu.base.errors import ConfigError
from kgpu.cli.main import cli

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "reference" / "figures.md"  # names of measurements
PAGES = sorted({ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/kgpu/**/README.md")} - {FIGURES})
FENCES = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
# Where a command begins in a block: at a line's start, at a prompt, after another one, and in a scenario's step. What
# has lines or columns in it is a picture or a screen.
BEGINS = re.compile(r"(?:^\s*(?:\$ |alias \w+=\$\(|run: )?|\| |&& )(kgpu(?!.*(?: ──|  \d))(?: .*)?)$", re.MULTILINE)
INLINE = re.compile(r"`(?:kubectl g|kg)pu( [^`\n]+)`")
OPERATORS = re.compile(r"[|&;<>()]+")
SETS = re.compile(r"--set(?:-json|-string)? '?([\w.]+)")


def commands(page: Path) -> Iterator[str]:
    text = page.read_text().replace("\\\n", " ")
    for language, block in FENCES.findall(text):
        if language in {"", "sh", "bash", "yaml"}:
            yield from BEGINS.findall(block)
    yield from (f"kgpu{found}" for found in INLINE.findall(FENCES.sub("", text)))


def words(line: str) -> list[str]:
    """The words of the first command on a line, without its comment and the brackets around what may be left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found = []
    for word in lexer:
        if OPERATORS.fullmatch(word):
            break
        found.append(word.strip("[]"))
    return [word for word in found if word != "..."]


def resolved(line: str) -> tuple[click.Command, click.Context, list[str]]:
    """The command that a line calls, with what is left for it. Raises click.UsageError or ConfigError for none."""
    name, *rest = words(line)
    command: click.Command = cli
    context = click.Context(cli, info_name=name)
    while isinstance(command, click.Group):
        # Without its help or version being printed, or anything run.
        context = command.make_context(name, rest, context.parent, resilient_parsing=True)
        rest = [*context._protected_args, *context.args]
        if not rest:
            break
        found, command_found, rest = command.resolve_command(context, rest)
        assert command_found is not None
        name, command = str(found), command_found
        context = click.Context(command, parent=context, info_name=name, **command.context_settings)
    return command, context, rest


def problem(line: str) -> str:
    """What is wrong with a command, "" when kgpu takes it."""
    try:
        command, context, rest = resolved(line)
        given, left, _ = command.make_parser(context).parse_args(list(rest))
        for parameter in command.params:
            value = given.get(parameter.name)
            if isinstance(parameter.type, click.Choice) and isinstance(value, str) and not value.isupper():
                parameter.type_cast_value(context, value)
    except click.BadOptionUsage as error:
        return "" if error.option_name == words(line)[-1] else str(error)  # a sentence may name an option alone
    except (click.UsageError, ConfigError) as error:
        return str(error)
    return f"too many words: {left}" if left and not context.allow_extra_args else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_ones_that_kgpu_has(page: Path) -> None:
    wrong = {line: said for line in commands(page) if (said := problem(line))}
    assert wrong == {}


@pytest.mark.parametrize(
    "line",
    [
        "kgpu statos",
        "kgpu lab build --helmet",
        "kgpu lab build -o jason",
        "kgpu lab down now",
        "kgpu health hist --since",
    ],
)
def test_a_command_that_kgpu_has_not_is_found(line: str) -> None:
    assert problem(line)


def chart_values() -> Iterator[tuple[str, str]]:
    """Each ``--set`` for kgpu's chart: its page, and the value's name."""
    for page in PAGES:
        for line in page.read_text().replace("\\\n", " ").splitlines():
            if "helm" not in line or "charts/kgpu" in line:
                yield from ((str(page.relative_to(ROOT)), name) for name in SETS.findall(line))


def known(name: str) -> bool:
    """Whether the chart has a value of that name; below one without names of its own anything goes."""
    names: dict[str, Any] = json.loads((ROOT / "charts/kgpu/values.names.json").read_text())
    for part in name.split("."):
        if part not in names:
            return False
        names = names[part]
        if not names:
            break
    return True


def written_values(page: Path) -> Iterator[tuple[str, Any]]:
    """The values in a page's blocks of YAML: name and value."""
    for language, block in FENCES.findall(page.read_text()):
        document = yaml.safe_load(block) if language == "yaml" else None
        if isinstance(document, dict) and known(next(iter(document))):
            yield from document.items()


def unknown(name: str, value: Any) -> Iterator[str]:
    """The names below a value that the chart has not."""
    if not known(name):
        yield name
    elif isinstance(value, dict):
        for key, below in value.items():
            yield from unknown(f"{name}.{key}", below)


def test_values_are_ones_that_the_chart_has() -> None:
    found = set(chart_values())
    assert len(found) > 10
    assert sorted((page, name) for page, name in found if not known(name)) == []
    assert not known("cdi.nriPlugin")


@pytest.mark.parametrize("page", ["install.md", "monitor-with-prometheus.md"])
def test_values_in_blocks_are_ones_that_the_chart_has(page: str) -> None:
    found = list(written_values(ROOT / "docs" / "how-to" / page))
    assert len(found) > 1
    assert [wrong for name, value in found for wrong in unknown(name, value)] == []
    assert list(unknown("monitoring", {"scrape": {"knd": "PodMonitor"}})) == ["monitoring.scrape.knd"]
