"""``kgpu doctor``: why a GPU pod, a node or a cluster does not work, with proof and a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean, one_of
from kgpu.cli import _complete
from kgpu.cli._common import ExampleCommand, check_kubeconfig, no_namespace, output_option, run_async, with_api
from kgpu.cli._doctor_kinds import KINDS
from kgpu.cli._own_namespace import context_namespace, or_own_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kgpu.doctor.host_facts import Xid
    from kgpu.doctor.model import Report, Subject
    from kgpu.doctor.snapshot import Snapshot
    from kgpu.kube.client import Client

EXAMPLES: Final = """
kgpu doctor
kgpu doctor pod ml/train-0
kgpu doctor pod ml/train-0 --trace
kgpu doctor node gpu-1
kgpu doctor -n ml
kgpu doctor deployment ml/serve --from cluster.yaml
kgpu doctor --from bundle.tar.gz -o json
kubectl describe pod train-0 | kgpu doctor -
kgpu doctor -f train.yaml
kgpu doctor --host
kgpu doctor --watch
kgpu doctor --explain SCH-08
kgpu doctor --explain
"""
STDIN: Final = "-"
ALL: Final = "all"
"""The value of --explain without an id."""
_SHOWN: Final = "node N, pod NS/NAME, deployment NS/NAME, job NS/NAME, statefulset NS/NAME, claim NS/NAME"


@click.command("doctor", cls=ExampleCommand, examples=EXAMPLES)
@click.argument("target", nargs=-1, metavar="[KIND NAME]", shell_complete=_complete.target)
@click.option("-n", "--namespace", default="", metavar="NS",
              help="Of the object, where NAME does not say it; without an object: what is in it, or hurts its pods.",
              shell_complete=_complete.namespaces)  # fmt: skip
@click.option(
    "--from",
    "path",
    default="",
    metavar="PATH",
    help="Look at this archive, folder, dump or text (-, also without --from: standard input).",
)
@click.option("-f", "files", multiple=True, metavar="FILE",
              help="Would the pods of this manifest run, and if not, why? Repeatable; -: standard input.")  # fmt: skip
@click.option("--host", is_flag=True, help="Look at this machine itself: run it on the node.")
@click.option("--root", default="/", show_default=True, metavar="DIR", help="With --host: where the host's root is.")
@click.option("--explain", "explain_id", default="", is_flag=False, flag_value=ALL, metavar="[ID]",
              shell_complete=_complete.rules,
              help="Tell about a rule, with an example, and look at nothing; without ID: which there are.")  # fmt: skip
@click.option("--trace", is_flag=True,
              help="Of a pod also its way to its devices: six steps, each with its proof.")  # fmt: skip
@click.option("-w", "--watch", is_flag=True, help="Look again every --interval seconds; a line for what has changed.")
@click.option("--interval", type=click.FloatRange(min=1), default=15.0, show_default=True, help="For --watch.")
@click.option("-v", "--verbose", is_flag=True, help="Tell all that was not looked at, also where it changes nothing.")
@click.option("--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server.")
@output_option("text", "json", "yaml", "sarif")
@click.pass_context
def doctor(
    context: click.Context, *, target: tuple[str, ...], namespace: str, path: str, files: tuple[str, ...],
    host: bool, root: str, explain_id: str, trace: bool, watch: bool, interval: float, verbose: bool, kubeconfig: str,
    output: str,
) -> None:  # fmt: skip
    """Say why GPU pods, nodes or the cluster do not work: the cause, the proof, and what to do.

    Needs no more than rights to read, and changes nothing; who may read one namespace alone is told of that, by default
    the one of the kubeconfig's context. Exit code 0: nothing is wrong; 1: there are findings; 2: it
    could not look, or what it saw is not enough to judge.
    """
    if explain_id:
        click.echo(_explain(explain_id, output))
        return
    if target == (STDIN,):
        path, target = path or STDIN, ()
    if files:
        check_kubeconfig(context, kubeconfig)
        if target or host or watch or trace:
            raise ConfigError("-f beside an object, --host, --trace or --watch", "one of them", "leave the other out")
        from kgpu.cli._doctor_file import look_at_file, print_would_run

        space = namespace or ("default" if path else context_namespace(kubeconfig))
        found = run_async(look_at_file(files, space, path, kubeconfig, snapshot_of))
        print_would_run(found, output, shown(found.report, "text"))
        raise click.exceptions.Exit(found.exit_code)
    if path and host:
        raise ConfigError("--from and --host exclude each other", "one of the two", "leave one out")
    if namespace and host:
        raise ConfigError("-n beside --host: a machine is in no namespace", "one of them", "leave -n out")
    check_kubeconfig(context, kubeconfig)
    wanted = parse_target(target, namespace, lambda: "default" if path or host else context_namespace(kubeconfig))
    if trace:
        _check_traced(wanted, "--watch" if watch else "-o sarif" if output == "sarif" else "")
    where = (wanted, path, kubeconfig, root if host else "", wanted.namespace if wanted else namespace)
    if watch:
        from kgpu.cli._doctor_watch import DoctorWatch

        watching = DoctorWatch(lambda: look(*where), output, width(), verbose=verbose)
        raise click.exceptions.Exit(watching.until_interrupted(interval))
    report = run_async(look(*where, traced=trace))
    click.echo(shown(report, output, verbose=verbose))
    raise click.exceptions.Exit(report.exit_code)


def parse_target(
    words: tuple[str, ...], namespace: str, usual: Callable[[], str] = lambda: "default"
) -> Subject | None:  # fmt: skip
    """``pod ml/train``, ``pod/train`` with ``-n ml``, ``node gpu-1``; ``usual`` is asked for a namespace where none is
    named. Raises ConfigError.
    """
    from kgpu.doctor.model import Subject

    if not words:
        return None
    parts = tuple(words[0].split("/", 1)) if len(words) == 1 and "/" in words[0] else words
    kind = KINDS.get(parts[0].lower(), "")
    if not kind or len(parts) != 2 or not parts[1]:
        near = "" if kind else did_you_mean(parts[0], KINDS)
        raise ConfigError(
            f"{' '.join(words)!r} names nothing that can be looked at" + (f"; {near}" if near else ""),
            _SHOWN, "for example: kgpu doctor pod ml/train-0",
        )  # fmt: skip
    if kind == "Node":
        return Subject(kind, parts[1])
    space, slash, name = parts[1].rpartition("/")
    return Subject(kind, name, (space if slash else namespace) or usual())


def _explain(wanted: str, output: str) -> str:
    """Explain one rule, the rules of a group (``SCH``), or all."""
    from kgpu.doctor import explain
    from kgpu.doctor.rules import all_rules, by_id

    rule = by_id().get(wanted.upper())
    if rule is not None:
        explanation = explain.about(rule, wanted.upper())
        return explain.as_text(explanation) if output == "text" else _data(explanation.data(), output)
    prefix = f"{wanted.upper().rstrip('-*')}-"
    group = [] if wanted == ALL else [row for row in all_rules() if row.id.startswith(prefix)]
    if wanted != ALL and not group:
        near = did_you_mean(wanted, by_id())
        raise ConfigError(
            f"there is no rule {wanted}" + (f"; {near}" if near else ""),
            "an id such as SCH-08, or a group such as SCH",
            "see which there are: kgpu doctor --explain",
        )  # fmt: skip
    rows = group or list(all_rules())
    if output == "text":
        return "\n".join(f"{row.id:<7} {row.title}" for row in rows)
    return _data([{"id": row.id, "title": row.title, "place": row.place.title} for row in rows], output)


def _data(data: object, output: str) -> str:
    if output == "yaml":
        from kgpu.formats import yaml

        return yaml.dump(data).rstrip("\n")
    if output == "json":
        import json

        return json.dumps(data, indent=2, ensure_ascii=False)
    raise ConfigError(f"--explain has no form {output}", "text, json or yaml", "leave -o out")


def _check_traced(wanted: Subject | None, beside: str) -> None:
    """Raises ConfigError for what has no steps, and for an option that has no place for them."""
    if beside:
        raise ConfigError(f"{beside} has no place for --trace", "one of them", "leave the other out")
    if wanted is None or wanted.kind != "Pod":
        raise ConfigError(
            f"--trace shows the way of a pod, not of {wanted or 'a cluster'}", "a pod",
            "name one, kgpu doctor pod NAMESPACE/NAME --trace; `kubectl get pods` lists them",
        )  # fmt: skip


async def look(
    wanted: Subject | None, path: str, kubeconfig: str, root: str, namespace: str = "", *, traced: bool = False
) -> Report:  # fmt: skip
    """Look once; at a namespace alone where no object of it is wanted, or where no more may be read. ``traced``: with
    the steps of the pod that is wanted.

    Raises UserError when nothing can be seen, or what was named is not there.
    """
    import gc

    from kgpu.doctor.plan import diagnose

    gc.disable()  # a large cluster is millions of objects that all stay: there is no garbage to look for
    try:
        snapshot, namespace = await _seen_in(path, kubeconfig, root, wanted, namespace)
        if wanted is not None and snapshot.get(wanted.kind, wanted.name, wanted.namespace) is None:
            raise _unknown(wanted, snapshot, path)
        if namespace and wanted is None:
            check_namespace(snapshot, namespace)
        report = diagnose(snapshot, target=wanted, namespace=namespace)
        if not report.real:
            check_root(snapshot, root)
        return _traced(report, snapshot, wanted) if traced and wanted is not None else report
    finally:
        gc.enable()


def _traced(report: Report, snapshot: Snapshot, wanted: Subject) -> Report:
    from dataclasses import replace

    from kgpu.doctor.trace import trace

    return replace(report, trace=trace(snapshot, snapshot.pods[(wanted.namespace, wanted.name)]))


async def snapshot_of(
    path: str, kubeconfig: str, root: str = "", target: Subject | None = None, *, namespace: str = ""
) -> Snapshot:  # fmt: skip
    """Look at a path, this host (``root`` not ""), or the cluster, where ``target`` says what is looked at first and
    ``namespace`` what is enough for who may not read the others.
    """
    if path:
        from kgpu.doctor.sources.files import read

        return read(path).judged(xids_in)
    if root:
        from kgpu.doctor.sources.host import snapshot_of_host

        return await snapshot_of_host(root, judge=xids_in)
    return await with_api(kubeconfig, lambda api: _collected(api, target, namespace))


async def _collected(api: Client, target: Subject | None, namespace: str) -> Snapshot:
    from kgpu.doctor.sources.live import collect
    from kgpu.kube.pod_logs import PodLogs

    return (await collect(api, logs=PodLogs(api), target=target, namespace=namespace)).judged(xids_in)


async def _seen_in(
    path: str, kubeconfig: str, root: str, target: Subject | None, namespace: str
) -> tuple[Snapshot, str]:  # fmt: skip
    """What there is to see, and of which namespace, "" for all."""
    if path or root or target is not None:
        return await snapshot_of(path, kubeconfig, root, target, namespace=namespace), namespace

    async def look_at(api: Client) -> tuple[Snapshot, str]:
        return await or_own_namespace(api, namespace, lambda space: _collected(api, None, space), how="-n NS")

    return await with_api(kubeconfig, look_at)


def check_namespace(found: Snapshot, namespace: str) -> None:
    """Raises ConfigError for a namespace that there is not."""
    known = {obj.name for obj in found.all("Namespace")}
    spaces = known | {pod.namespace for pod in found.pods.values()}
    if namespace in spaces or (not known and "Namespace" not in found.listed):
        return
    raise no_namespace(namespace, spaces, "-n")


def check_root(found: Snapshot, root: str) -> None:
    """Raises ConfigError where ``root`` (not "") is no machine's root folder, so that nothing could be read there."""
    if root and not found.counts()["hosts"]:
        raise ConfigError(
            f"{root} has nothing of a node: neither a PCI bus (sys/bus/pci) nor what /proc says",
            "the root of a node, with what is mounted below it",
            "give it as --root, or leave --root out on the node itself; of a kernel log alone: kgpu xid --log FILE",
        )


def xids_in(lines: Iterable[str]) -> tuple[Xid, ...]:
    """What health's catalogue makes of a kernel log; the doctor does not import its sibling."""
    from kgpu.doctor.host_facts import Xid
    from kgpu.health.klog import read_lines
    from kgpu.health.log_report import summarise

    return tuple(
        Xid(
            code=row.code, kind=row.kind.value, pci=device.pci, count=row.count, first=row.first, last=row.last,
            text=row.text, process=", ".join(row.processes), what=row.what, action=row.guidance.action.value,
            advice=row.guidance.advice, bucket=row.bucket, recovery=device.recovery, over=row.over,
        )
        for device in summarise(read_lines(lines)).devices
        for row in device.rows
        if not row.key
    )  # fmt: skip


def _unknown(wanted: Subject, snapshot: Snapshot, path: str) -> ConfigError:
    known = (
        list(snapshot.nodes)
        if wanted.kind == "Node"
        else [obj.path for obj in (snapshot.pods.values() if wanted.kind == "Pod" else snapshot.all(wanted.kind))]
    )
    name = f"{wanted.namespace}/{wanted.name}" if wanted.namespace else wanted.name
    here = [one for one in known if wanted.namespace and one.startswith(f"{wanted.namespace}/")]
    near = did_you_mean(name, known)
    where = f"in {path}" if path else "in this cluster"
    return ConfigError(
        f"there is no {wanted} {where}" + (f"; {near}" if near else ""),
        one_of(name, here or known) if known else f"a {wanted.kind}",
        "correct the name or the namespace (-n)",
    )


def shown(report: Report, output: str, *, verbose: bool = False) -> str:
    """The report in the form asked for."""
    from kgpu.doctor import render
    from kgpu.doctor.rules import all_rules

    if output == "json":
        return render.as_json(report)
    if output == "yaml":
        return render.as_yaml(report)
    if output == "sarif":
        return render.as_sarif(report, all_rules())
    return render.as_text(report, width(), verbose=verbose)


def width() -> int:
    """Columns of the terminal, as far as text is still easy to read."""
    import shutil

    return min(shutil.get_terminal_size((100, 40)).columns, 120)
