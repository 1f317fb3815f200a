"""``kgpu monitoring``: the alert rules, recording rules and dashboards that kgpu brings, as files or objects.

For Prometheus without its operator, for Grafana without its sidecar, and for whoever wants to change them.
"""

from __future__ import annotations

from typing import Any, Final

import click

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.cli._common import ExampleGroup, print_json

EXAMPLES: Final = """
kgpu monitoring rules > gpu-rules.yaml
kgpu monitoring dashboards gpu-cluster-overview > overview.json
"""
RULES_EXAMPLES: Final = """
kgpu monitoring rules > gpu-rules.yaml
kgpu monitoring rules --set GPUHighTemperature.threshold=80 --set GPUMemoryAlmostFull.enabled=false
kgpu monitoring rules -o object --namespace monitoring --label release=kube-prometheus | kubectl apply -f -
kgpu monitoring rules -o list
"""
BOARDS_EXAMPLES: Final = """
kgpu monitoring dashboards
kgpu monitoring dashboards gpu-cluster-overview > overview.json
kgpu monitoring dashboards -o object --namespace monitoring | kubectl apply -f -
"""
_BOOLS: Final = {"true": True, "false": False}


@click.group("monitoring", cls=ExampleGroup, examples=EXAMPLES)
def monitoring() -> None:
    """Alert rules and dashboards for Prometheus and Grafana."""


_namespace: Final = click.option("--namespace", "-n", default="", metavar="NS", help="For -o object: where it goes.")
_label: Final = click.option(
    "--label", "labels", multiple=True, metavar="KEY=VALUE", help="For -o object: a label; several times."
)


@monitoring.command("rules", examples=RULES_EXAMPLES)
@click.option("-o", "--output", type=click.Choice(("yaml", "json", "object", "list")), default="yaml",
              show_default=True, help="A rules file, an object of the Prometheus operator, or lines.")  # fmt: skip
@click.option("--set", "changes", multiple=True, metavar="ALERT.KEY=VALUE",
              help="Change an alert: enabled, threshold, for or severity; several times.")  # fmt: skip
@_namespace
@_label
def rules(output: str, changes: tuple[str, ...], namespace: str, labels: tuple[str, ...]) -> None:
    """Print alerts and recorded series as Prometheus loads them."""
    from kgpu.formats import yaml
    from kgpu.monitoring.rules import adjusted, groups, prometheus_rule

    wanted = adjusted(read_changes(changes), "--set")
    if output == "list":
        for alert in wanted:
            about = "" if alert.threshold is None else f", threshold {alert.threshold:g}"
            click.echo(f"{alert.name}: {alert.severity} after {alert.lasting}{about}: {alert.filled(alert.expr)}")
    elif output == "object":
        click.echo(yaml.dump(prometheus_rule(wanted, namespace=namespace, labels=read_labels(labels))), nl=False)
    elif output == "json":
        print_json({"groups": groups(wanted)})
    else:
        click.echo(yaml.dump({"groups": groups(wanted)}), nl=False)


@monitoring.command("dashboards", examples=BOARDS_EXAMPLES)
@click.argument("name", default="")
@click.option("-o", "--output", type=click.Choice(("json", "object")), default="json", show_default=True,
              help="What Grafana imports, or ConfigMaps that its sidecar finds.")  # fmt: skip
@_namespace
@_label
def dashboards(name: str, output: str, namespace: str, labels: tuple[str, ...]) -> None:
    """Print dashboards; without a name: which there are."""
    from kgpu.formats import yaml
    from kgpu.monitoring.boards import BOARDS
    from kgpu.monitoring.grafana import SIDECAR_LABEL, config_map

    chosen = [board for board in BOARDS if name in {"", board.file}]
    if not chosen:
        known = [board.file for board in BOARDS]
        raise ConfigError(
            f'there is no dashboard "{name}"', f"one of: {', '.join(known)}", did_you_mean(name, known) or "correct it"
        )
    if output == "object":
        labels_of_maps = read_labels(labels) or dict(SIDECAR_LABEL)
        objects = [config_map(board, namespace=namespace, labels=labels_of_maps) for board in chosen]
        click.echo("---\n".join(yaml.dump(obj) for obj in objects), nl=False)
    elif name:
        click.echo(chosen[0].text(), nl=False)
    else:
        for board in chosen:
            click.echo(f"{board.file}: {board.title}")


def read_changes(words: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """``ALERT.KEY=VALUE`` as entries per alert. Raises ConfigError."""
    found: dict[str, dict[str, Any]] = {}
    for word in words:
        place, equals, text = word.partition("=")
        name, dot, key = place.partition(".")
        if not (equals and dot and name and key):
            raise ConfigError(f"--set {word}", "ALERT.KEY=VALUE, such as GPUIdle.for=2h", "write it like that")
        found.setdefault(name, {})[key] = _value(key, text)
    return found


def _value(key: str, text: str) -> Any:
    if key == "enabled":
        return _BOOLS.get(text, text)
    if key == "threshold":
        try:
            return float(text)
        except ValueError:
            return text
    return text


def read_labels(words: tuple[str, ...]) -> dict[str, str]:
    """``KEY=VALUE`` as a mapping. Raises ConfigError."""
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise ConfigError(f"--label {word}", "KEY=VALUE", "write it like that")
        found[key] = value
    return found
