"""``kubectl-nfd`` and ``nfd``: the command lines of node feature discovery, over ``kgpu features``.

Kept: commands and flags; what is wrong ends with exit code 1. The output is kgpu's own, as theirs is for people.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from kgpu.base.errors import ConfigError
from kgpu.cli import features
from kgpu.cli._common import ExampleGroup, print_json

PLUGIN_EXAMPLES: Final = """
kubectl nfd validate -f rule.yaml
kubectl nfd test -f rule.yaml -n gpu-1
kubectl nfd dryrun -f rule.yaml -n node.yaml
"""
EXPORT_EXAMPLES: Final = """
nfd export features
nfd export labels --path labels.json
"""
WRONG: Final = 1
_RULE: Final = click.option("-f", "rule", required=True, metavar="FILE", help="A file of rules; - is standard input.")


@click.group("kubectl-nfd", cls=ExampleGroup, examples=PLUGIN_EXAMPLES)
def plugin() -> None:
    """Rules of node feature discovery: what is wrong with them, and what nodes get of them."""


@plugin.command("validate")
@_RULE
def validate(*, rule: str) -> None:
    """Find everything that is wrong with rules."""
    _invoke(features.validate, paths=(rule,), output="text")


@plugin.command("test")
@_RULE
@click.option("-n", "node", required=True, metavar="NODE", help="The Node whose features the cluster knows.")
@click.option(
    "-k", "--kubeconfig", envvar="KUBECONFIG", default="", metavar="FILE", help="How to reach the API server."
)
def test(*, rule: str, node: str, kubeconfig: str) -> None:
    """Show what a Node of the cluster gets of rules, and why."""
    _invoke(features.test, paths=(rule,), file="", root="/", config="", node=node, kubeconfig=kubeconfig, output="text")


@plugin.command("dryrun")
@_RULE
@click.option("-n", "file", required=True, metavar="FILE", help="A NodeFeature.")
def dryrun(*, rule: str, file: str) -> None:
    """Show what a node gets of rules that has what a NodeFeature says, and why."""
    _invoke(features.test, paths=(rule,), file=file, root="/", config="", node="", kubeconfig="", output="text")


@click.group("nfd", cls=ExampleGroup, examples=EXPORT_EXAMPLES)
def nfd() -> None:
    """What this machine has, by the command line of node feature discovery."""


@nfd.group("export", cls=ExampleGroup, examples=EXPORT_EXAMPLES)
def export() -> None:
    """Print what this machine has, as JSON."""


_PATH: Final = click.option("--path", "-p", metavar="FILE", default="", help="Write it there.")


@export.command("features")
@_PATH
def export_features(*, path: str) -> None:
    """Its features, as a NodeFeature has them."""
    from kgpu.discovery.rules.model import as_spec

    _write(as_spec(features.read_machine("/", "").features), path)


@export.command("labels")
@_PATH
def export_labels(*, path: str) -> None:
    """The labels that come of them."""
    _write(dict(features.read_machine("/", "").labels), path)


@nfd.command("compat", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def compat(*, words: tuple[str, ...]) -> None:  # noqa: ARG001 - what is refused is not read
    """Refused: kgpu does not check images."""
    raise ConfigError(
        "kgpu does not check whether an image fits a node", "nfd export, or kgpu features",
        "use node feature discovery's own program, or write the image's needs as a NodeFeatureRule",
    )  # fmt: skip


def _write(found: object, path: str) -> None:
    if not path:
        print_json(found)
        return
    try:
        Path(path).write_text(json.dumps(found, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"{path} can't be written ({error.strerror})", "a file that can", "correct --path") from error


def _invoke(command: Callable[..., Any], **given: Any) -> None:
    try:
        click.get_current_context().invoke(command, **given)
    except SystemExit as ended:
        sys.exit(WRONG if ended.code == features.WRONG else ended.code)
