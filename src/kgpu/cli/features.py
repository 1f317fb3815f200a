"""``kgpu features``: what a node has, why rules of node features match it or don't, what is wrong with them; and the
end of what they gave to Nodes.

Exit code 0 when all went well, 3 when a rule is wrong (``validate``) or could not be carried out (``test``), 2 on bad
input.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.base.errors import ConfigError, KubeError, UserError
from kgpu.base.printable import counted
from kgpu.cli import _complete
from kgpu.cli._common import ExampleGroup, check_kubeconfig, output_option, print_json, run_async
from kgpu.formats import names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgpu.discovery.features.model import FeatureSet
    from kgpu.discovery.features.sources import ReadNode
    from kgpu.discovery.master.plan import NodeChange
    from kgpu.discovery.rules.decode import ObjectFlaw
    from kgpu.discovery.rules.explain import RuleTrace, TermTrace
    from kgpu.discovery.rules.model import RuleSource
    from kgpu.discovery.rules.outputs import NodeOutputs
    from kgpu.kube.port import KubeRefusedError

WRONG: Final = 3
NOT_FOUND: Final = 404
MAX_FILE: Final = 16 << 20
RULE_KINDS: Final = ("NodeFeatureRule", "NodeFeatureGroup")
EXAMPLES: Final = """
kgpu features dump
kgpu features test rule.yaml
kgpu features validate rule.yaml
"""
DUMP_EXAMPLES: Final = """
kgpu features dump > node.yaml
kgpu features dump --root /tmp/node1 -o json
kgpu features dump --node gpu-1
"""
TEST_EXAMPLES: Final = """
kgpu features test rule.yaml
kgpu features test rule.yaml --features node.yaml
kgpu features test rule.yaml --node gpu-1 -o json
"""
PUBLISH_EXAMPLES: Final = """
kgpu features publish --node-name gpu-1 --namespace gpu-operator
"""
PRUNE_EXAMPLES: Final = """
kgpu features prune --dry-run
kgpu features prune --instance blue
"""
VALIDATE_EXAMPLES: Final = """
kgpu features validate rule.yaml
kgpu features validate *.yaml -o json
"""


def _machine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where this machine's features are read."""
    root = click.option("--root", metavar="DIR", default="/", help="The folder that stands for the node's / here.")
    config = click.option("--config", metavar="FILE", default="",
                          help="A config file of nfd-worker, in place of the node's own.")  # fmt: skip
    return root(config(function))


def _node_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Whose features are meant."""
    node = click.option("--node", metavar="NAME", default="", shell_complete=_complete.nodes,
                        help="What the cluster's NodeFeatures say of this node, in place of this machine.")  # fmt: skip
    kubeconfig = click.option("--kubeconfig", envvar="KUBECONFIG", default="", metavar="FILE",
                              help="How to reach the API server.")  # fmt: skip
    return _machine_options(node(kubeconfig(function)))


@click.group("features", cls=ExampleGroup, examples=EXAMPLES)
def features() -> None:
    """What a node has (PCI devices, kernel, processor, ...), and rules of node feature discovery about it."""


@features.command("dump", examples=DUMP_EXAMPLES)
@_node_options
@output_option("yaml", "json", default="yaml")
def dump(*, root: str, config: str, node: str, kubeconfig: str, output: str) -> None:
    """Print a node's features and the labels that come of them, as a NodeFeature object; write nothing."""
    from kgpu.discovery.rules.model import as_spec

    found, labels = _features_of(root, config, node, kubeconfig)
    metadata: dict[str, Any] = {"name": node, "labels": {names.NFD_NODE_NAME_LABEL: node}} if node else {"name": "node"}
    spec: dict[str, Any] = {"features": as_spec(found), "labels": labels}
    printed = {"apiVersion": names.NFD_API_VERSION, "kind": "NodeFeature", "metadata": metadata, "spec": spec}
    if output == "json":
        print_json(printed)
        return
    from kgpu.formats import yaml

    click.echo(yaml.dump(printed), nl=False)


@features.command("publish", examples=PUBLISH_EXAMPLES)
@_machine_options
@click.option("--node-name", envvar="NODE_NAME", required=True, metavar="NODE", help="The Node that this machine is.")
@click.option("--namespace", "-n", envvar="KUBERNETES_NAMESPACE", required=True, metavar="NS",
              help="Where the NodeFeature is: the namespace of the master that reads it.")  # fmt: skip
@click.option("--kubeconfig", envvar="KUBECONFIG", default="", metavar="FILE", help="How to reach the API server.")
def publish(*, root: str, config: str, node_name: str, namespace: str, kubeconfig: str) -> None:
    """Read this machine once, and write what it has into its Node's NodeFeature, as `nfd-worker -oneshot` does.

    kgpu's operator, or node feature discovery's master, labels the Node of it. Agents do the same all the time.
    """
    check_kubeconfig(click.get_current_context(), kubeconfig)
    read = read_machine(root, config, node_name)
    run_async(_published(read, node_name, namespace, kubeconfig))
    count = len(read.features.names())
    click.echo(f"NodeFeature {namespace}/{node_name} has {count} features and asks for {len(read.labels)} labels")


async def _published(read: ReadNode, node: str, namespace: str, kubeconfig: str) -> None:
    from kgpu.discovery.features.feature_object import NodeFeatureObject
    from kgpu.kube.client import connect
    from kgpu.kube.port import KubeRefusedError

    api = connect(kubeconfig)
    try:
        await NodeFeatureObject(api, node=node, namespace=namespace).publish(read)
    except KubeRefusedError as refused:
        raise _without_kind(refused) from refused
    finally:
        await api.close()


def _without_kind(refused: KubeRefusedError) -> KubeError:
    """Why the API server has no NodeFeatures, where that is it: their kind or, for what is written, the namespace."""
    if refused.code != NOT_FOUND or "namespaces" in refused.message:
        return refused
    return KubeError(
        "this cluster has no NodeFeatures: their kind is not installed",
        f"the CustomResourceDefinition nodefeatures.{names.NFD_API_VERSION.partition('/')[0]}",
        "set nfd.nodefeaturerules=true in kgpu's chart, or install node feature discovery; without either "
        "`kgpu features dump` on the node prints what it has",
    )


@features.command("test", examples=TEST_EXAMPLES)
@click.argument("paths", nargs=-1, required=True, metavar="RULE...")
@click.option(
    "--features", "file", metavar="FILE", default="", help="A NodeFeature, as `kgpu features dump` prints it."
)
@_node_options
@output_option()
def test(*, paths: tuple[str, ...], file: str, root: str, config: str, node: str, kubeconfig: str, output: str) -> None:
    """Show why rules match a node or don't, expression by expression; write nothing.

    RULE is a file of NodeFeatureRules; - is standard input.
    """
    from kgpu.discovery.rules.explain import as_data, explain
    from kgpu.discovery.rules.outputs import OutputLimits, settle
    from kgpu.discovery.rules.plan import plan

    if file and node:
        raise ConfigError("--features and --node contradict each other", "one of them", "leave one of them out")
    sources = _sources(paths)
    found = _features_in(file) if file else _features_of(root, config, node, kubeconfig)[0]
    traces = explain(sources, found)
    outputs = settle(plan(sources, found), found, OutputLimits(taints=True))
    if output == "json":
        print_json({"rules": [as_data(trace) for trace in traces], "node": outputs_data(outputs)})
    else:
        for trace in traces:
            _print_trace(trace)
        _print_outputs(outputs)
    if any(trace.outcome.error for trace in traces):
        sys.exit(WRONG)


@features.command("validate", examples=VALIDATE_EXAMPLES)
@click.argument("paths", nargs=-1, required=True, metavar="RULE...")
@output_option()
def validate(*, paths: tuple[str, ...], output: str) -> None:
    """Find everything that is wrong with rules, also what only nodes with certain devices would show.

    RULE is a file of NodeFeatureRules and NodeFeatureGroups; - is standard input. Exit code 3 when a rule is wrong.
    """
    from kgpu.discovery.rules.decode import read_group, read_rules

    found: list[tuple[str, ObjectFlaw]] = []
    count = 0
    for place, obj in _objects(paths):
        read = read_group(obj) if obj.get("kind") == RULE_KINDS[1] else read_rules(obj)
        count += len(read.rules)
        found += [(place, flaw) for flaw in read.flaws]
    if output == "json":
        print_json([
            {"object": place, "place": flaw.place, "warning": flaw.warning, "what": flaw.error.what,
             "expected": flaw.error.expected, "remedy": flaw.error.remedy}
            for place, flaw in found
        ])  # fmt: skip
    else:
        for place, flaw in found:
            click.echo(f"{'warning' if flaw.warning else 'error'}: {place}, {flaw.place}\n  {flaw.error}")
        warnings = sum(flaw.warning for _, flaw in found)
        counts = ((count, "rule"), (len(found) - warnings, "error"), (warnings, "warning"))
        click.echo(", ".join(counted(number, what) for number, what in counts))
    if any(not flaw.warning for _, flaw in found):
        sys.exit(WRONG)


@features.command("prune", examples=PRUNE_EXAMPLES)
@click.option("--instance", default="", metavar="NAME", help="Whose lists are meant; without it the usual ones.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@click.option("--kubeconfig", envvar="KUBECONFIG", default="", metavar="FILE", help="How to reach the API server.")
@output_option()
def prune(*, instance: str, dry_run: bool, kubeconfig: str, output: str) -> None:
    """Take from all Nodes what rules and discoveries have given them, as node feature discovery's master does.

    What that is, its lists in the Nodes' annotations say: labels, annotations, taints, extended resources; nothing else
    goes. A master or worker that still runs gives it to them again.
    """
    from kgpu.discovery.master.config import read_instance
    from kgpu.discovery.master.plan import removals

    check_kubeconfig(click.get_current_context(), kubeconfig)
    changes = run_async(_pruned(kubeconfig, read_instance(instance, "--instance"), dry_run=dry_run))
    gone = {change.node.name: removals(change) for change in changes}
    if output == "json":
        print_json(gone)
        return
    for name, removed in sorted(gone.items()):
        for kind, keys in removed.items():
            click.echo(f"{name}: {kind} {', '.join(keys)}")
    click.echo(f"{len(gone)} Nodes {'would be' if dry_run else 'were'} cleared")


async def _pruned(kubeconfig: str, instance: str, *, dry_run: bool) -> list[NodeChange]:
    from kgpu.discovery.master.writing import prune
    from kgpu.kube.client import connect

    api = connect(kubeconfig)
    try:
        return await prune(api, instance, dry_run=dry_run)
    finally:
        await api.close()


def _features_of(root: str, config: str, node: str, kubeconfig: str) -> tuple[FeatureSet, dict[str, str]]:
    """The features and labels of this machine, or those that the cluster knows of a node."""
    if node:
        check_kubeconfig(click.get_current_context(), kubeconfig)
        return run_async(_known(node, kubeconfig))
    read = read_machine(root, config)
    return read.features, dict(read.labels)


def read_machine(root: str, config: str, node_name: str = "") -> ReadNode:
    """What this machine has; what can't be used of its files goes to standard error. Raises UserError."""
    from kgpu.discovery.features.sources import read_node

    if not Path(root).is_dir():
        raise ConfigError(f"there is no folder {root}", "the folder that stands for the node's /", "correct --root")
    read = read_node([Path(root)], config=Path(config) if config else None, node_name=node_name)
    for note in read.notes:
        click.echo(f"kgpu features: {note.one_line()}", err=True)
    return read


async def _known(node: str, kubeconfig: str) -> tuple[FeatureSet, dict[str, str]]:
    from kgpu.discovery.features.model import merged
    from kgpu.discovery.rules.decode import read_feature
    from kgpu.discovery.rules.model import feature_set
    from kgpu.kube.client import connect
    from kgpu.kube.port import NODE_FEATURES, KubeRefusedError, Selector

    api = connect(kubeconfig)
    try:
        listed = await api.list(NODE_FEATURES, selector=Selector(labels=((names.NFD_NODE_NAME_LABEL, node),)))
    except KubeRefusedError as refused:
        raise _without_kind(refused) from refused
    finally:
        await api.close()
    if not listed.items:
        raise KubeError(
            f"there is no NodeFeature of the node {node}", "one that a discovery has written, such as nfd-worker",
            "run `kgpu features dump` on the node, and give the file by --features",
        )  # fmt: skip
    ordered = sorted(listed.items, key=lambda one: (one["metadata"]["name"], one["metadata"].get("namespace", "")))
    specs = [read_feature(one).spec for one in ordered]
    labels = {key: value for spec in specs for key, value in spec.labels.items()}
    return merged(feature_set(spec.features) for spec in specs), labels


def _features_in(file: str) -> FeatureSet:
    from kgpu.discovery.features.model import merged
    from kgpu.discovery.rules.decode import read_feature
    from kgpu.discovery.rules.model import feature_set

    read = [read_feature(obj) for obj in _documents(file) if obj.get("kind") == "NodeFeature"]
    if not read:
        raise ConfigError(f"{file} has no NodeFeature", "what `kgpu features dump` prints", "correct --features")
    wrong = [flaw for one in read for flaw in one.flaws if not flaw.warning]
    if wrong:
        raise ConfigError(
            f"{file}, {wrong[0].place}: {wrong[0].error.what}", wrong[0].error.expected, "correct the file"
        )
    return merged(feature_set(one.spec.features) for one in read)


def _sources(paths: Sequence[str]) -> list[RuleSource]:
    """The rules of all files. What is wrong with them goes to standard error; a rule that can't be read is left out."""
    from kgpu.discovery.rules.decode import read_rules
    from kgpu.discovery.rules.model import RuleSource

    sources = []
    for place, obj in _objects(paths):
        if obj.get("kind") != RULE_KINDS[0]:
            raise ConfigError(f"{place} is a {obj.get('kind')}", f"a {RULE_KINDS[0]}", "validate it instead")
        read = read_rules(obj)
        for flaw in read.flaws:
            click.echo(f"kgpu features: {place}, {flaw.one_line()}", err=True)
        metadata = obj.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        sources.append(RuleSource(name=name if isinstance(name, str) else place, rules=read.rules))
    return sources


def _objects(paths: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """The rule objects of files, each with the place that it is from. Raises ConfigError where there is none."""
    found = [
        (f"{path}, {_title(obj)}", obj) for path in paths for obj in _documents(path) if obj.get("kind") in RULE_KINDS
    ]
    if not found:
        raise ConfigError(
            f"there are no rules in {', '.join(paths)}", f"objects of the kinds {' and '.join(RULE_KINDS)}",
            "name a file of them",
        )  # fmt: skip
    return found


def _title(obj: dict[str, Any]) -> str:
    metadata = obj.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{obj['kind']} {str(name)[:80]}" if name else str(obj["kind"])


def _documents(path: str) -> list[dict[str, Any]]:
    """The objects of a file, lists of objects taken apart. Raises UserError."""
    from kgpu.formats import yaml
    from kgpu.host.bounded import read_regular

    piped = path == "-"
    content = sys.stdin.buffer.read(MAX_FILE) if piped else read_regular(path, MAX_FILE, what="a file of objects")[0]
    found: list[dict[str, Any]] = []
    for value in yaml.load_all(content, source=path):
        listed = isinstance(value, dict) and str(value.get("kind")).endswith("List")
        items = value.get("items") if listed else [value]
        found += [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []
    return found


def _print_trace(trace: RuleTrace) -> None:
    outcome = trace.outcome
    word = "can't be carried out" if outcome.error else "matches" if outcome.matched else "does not match"
    click.echo(f"{trace.source}: {trace.rule}: {word}")
    if outcome.error is not None:
        click.echo(f"  {_indented(outcome.error)}")
    for term in trace.terms:
        _print_term(term, "  ")
    for number, terms in enumerate(trace.alternatives, 1):
        click.echo(f"  alternative {number}")
        for term in terms:
            _print_term(term, "    ")
    for key, value in sorted(outcome.vars.items()):
        click.echo(f"  gives the variable {key}={value}")


def _print_outputs(outputs: NodeOutputs) -> None:
    """What the node gets of all rules, and what it does not get."""
    lines = [
        f"  {kind} {key}={value}"
        for kind, pairs in (
            ("label", outputs.labels), ("annotation", outputs.annotations),
            ("extended resource", outputs.extended_resources),
        )
        for key, value in sorted(pairs.items())
    ]  # fmt: skip
    lines += [f"  taint {one.key}={one.value}:{one.effect} (where taints are allowed)" for one in outputs.taints]
    click.echo("the node gets" + ("" if lines else " nothing"))
    for line in lines:
        click.echo(line)
    for refused in outputs.rejected:
        click.echo(f"  not {refused.kind} {refused.key}: {refused.error.one_line()}")


def outputs_data(outputs: NodeOutputs) -> dict[str, Any]:
    """The same as data."""
    return {
        "labels": dict(outputs.labels),
        "annotations": dict(outputs.annotations),
        "extendedResources": dict(outputs.extended_resources),
        "taints": [{"key": one.key, "value": one.value, "effect": one.effect} for one in outputs.taints],
        "refused": [{"kind": one.kind, "key": one.key, "why": one.error.one_line()} for one in outputs.rejected],
    }


def _print_term(term: TermTrace, indent: str) -> None:
    note = f": {term.note}" if term.note else ""
    click.echo(f"{indent}{'yes' if term.matches else 'no '} {term.feature}{note}")
    for one in term.expressions:
        why = one.error or one.found
        click.echo(f"{indent}  {'yes' if one.holds else 'no '} {one.name} {one.condition}: {why}")


def _indented(error: UserError) -> str:
    return str(error).replace("\n", "\n  ")
