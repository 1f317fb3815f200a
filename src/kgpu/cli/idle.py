"""``kgpu idle``: which GPUs are held and not used, why that is so, and a person's word about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kgpu.base.errors import ConfigError
from kgpu.cli import _complete
from kgpu.cli._common import ListingGroup, check_kubeconfig, output_option, print_json, run_async, with_api
from kgpu.cli._rights import EXPLAIN, needing

if TYPE_CHECKING:
    from kgpu.cli._idle import IdleLook
    from kgpu.kube.client import Client
    from kgpu.usage.reclaim.model import HeldWorkload
    from kgpu.usage.states import IdleRules

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

EXAMPLES: Final = """
kgpu idle
kgpu idle --min 30m -n team-a -o json
kgpu idle explain team-a/llama-7c9f-x2x4k
kgpu idle keep team-a/llama --for 8h --because "the demo is tomorrow"
kgpu idle resume team-a/llama
"""
LIST: Final = """
kgpu idle list --min 2h
kgpu idle list --state free,held-empty
kgpu idle --watch
"""
KEEP: Final = """
kgpu idle keep team-a/llama --for 8h
kgpu idle keep team-a/llama-7c9f-x2x4k --for 24h --because "weights take an hour to load"
"""
RECLAIM: Final = """
kgpu idle reclaim team-a/llama --dry-run
kgpu idle reclaim team-a/llama
"""
RESUME: Final = """
kgpu idle resume team-a/llama
kgpu idle resume --frozen
"""
IDLE: Final = 3
REFUSED: Final = 4
WATCH_S: Final = 30.0
LEAST_MIN: Final = 300.0


def _connection(function: F) -> F:
    return click.option(
        "--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server."
    )(function)


_who: Final = click.argument("who", metavar="NAMESPACE/NAME", shell_complete=_complete.namespaced_pods)


@click.group("idle", cls=ListingGroup, examples=EXAMPLES)
def idle() -> None:
    """Which GPUs are held and not used, why nothing or something is done about it, and your word about it.

    A GPUUsagePolicy says what becomes of them; without one they are only shown. What readings do not cover is unknown,
    and never idle.
    """


@idle.command("list", examples=LIST)
@click.option(
    "--min", "least", default="1h", show_default=True, metavar="TIME", help="Idle for at least as long, 5m or more."
)
@click.option("--state", "states", default="held-empty,held-idle,hung", show_default=True, metavar="STATES",
              help="Which states, with commas: held-empty, held-idle, hung, free.")  # fmt: skip
@click.option("-n", "--namespace", default="", metavar="NS", help="Only of that namespace.",
              shell_complete=_complete.namespaces)  # fmt: skip
@click.option("--watch", "-w", is_flag=True, help="Look again every half minute, until Ctrl-C.")
@_connection
@output_option()
@click.pass_context
def list_(
    context: click.Context, *, least: str, states: str, namespace: str, watch: bool, kubeconfig: str, output: str
) -> None:
    """List what is idle, what it costs, and who holds it, the dearest first.

    Exit code 3 when something is, 0 when nothing is, 2 when no agent could be asked.
    """
    from kgpu.cli import _idle

    check_kubeconfig(context, kubeconfig)
    wanted, rules = _states(states), _rules(least)

    async def look(api: Client) -> _idle.IdleLook:
        return await _idle.priced(api, await _idle.look(api, rules, time.time()))

    while True:
        found = run_async(with_api(kubeconfig, look))
        if not (found.devices or watch):
            raise _nothing_known(found)
        table = _idle.rows(found, wanted, namespace)
        if output == "json":
            print_json(_idle.as_data(found, table))
        elif table:
            click.echo("\n".join(_idle.table_of(table, found.now)))
        else:
            click.echo(f"nothing is idle for {least} or longer{_idle.too_young(found, namespace)}", err=True)
        _say_silent(found)
        if not watch:
            context.exit(IDLE if table else 0)
        _pause(WATCH_S)


@idle.command("explain", examples="kgpu idle explain team-a/llama-7c9f-x2x4k")
@_who
@_connection
@output_option()
@click.pass_context
def explain(context: click.Context, *, who: str, kubeconfig: str, output: str) -> None:
    """Say what a workload's GPUs do, what every guard says, and what would be done when."""
    from kgpu.cli import _idle
    from kgpu.usage.reclaim import requests
    from kgpu.usage.reclaim.reading import ClusterLook

    check_kubeconfig(context, kubeconfig)

    async def work(api: Client) -> None:
        space, _ = requests.split_name(who)
        async with needing(EXPLAIN, api):
            policy, _ = await ClusterLook(api, "").policy(space)
            found, workload = await _found(api, who, policy.stop)
            _say_silent(found)
            word = await _idle.process_word(api, found.namespace, found.now)
            one = await requests.explain(ClusterLook(api, found.namespace), workload, found.now, word)
        if output == "json":
            print_json(_idle.explained_data(one))
        else:
            click.echo("\n".join(_idle.explained(one)))

    run_async(with_api(kubeconfig, work))


@idle.command("keep", examples=KEEP)
@_who
@click.option("--for", "time_", required=True, metavar="TIME", help="For how long, such as 8h or 2d; at most 30d.")
@click.option("--because", default="", metavar="TEXT", help="Why, for whoever asks.")
@_connection
@click.pass_context
def keep(context: click.Context, *, who: str, time_: str, because: str, kubeconfig: str) -> None:
    """Keep a workload for some time, whatever its GPUs do: the annotation kgpu.dev/keep-until.

    A GPUUsagePolicy lets idle workloads be kept for so long (reclaim.longestKeep, a week by default), counted until
    their GPUs are used; a longer time is cut to that, and told.
    """
    import getpass

    from kgpu.base.printable import one_line
    from kgpu.base.times import stamp_of
    from kgpu.cli import _idle
    from kgpu.kube.operator_namespace import operator_namespace
    from kgpu.usage.reclaim import requests

    check_kubeconfig(context, kubeconfig)
    space, name = requests.split_name(who)
    now = time.time()
    until = now + _seconds(time_, "--for", 60.0, 30 * 86_400.0)
    by = one_line(f"{getpass.getuser()}: {because}" if because else getpass.getuser(), 200)

    async def work(api: Client) -> requests.WorkloadKept:
        word = await _idle.process_word(api, await operator_namespace(api), now)
        return await requests.keep(api, space, name, until=until, by=by, now=now, word=word)

    kept = run_async(with_api(kubeconfig, work))
    click.echo(f"{kept.title} is kept until {stamp_of(kept.until)}")
    for note in kept.notes:
        click.echo(f"note: {one_line(note, 600)}", err=True)


@idle.command("reclaim", examples=RECLAIM)
@_who
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@_connection
@click.pass_context
def reclaim(context: click.Context, *, who: str, dry_run: bool, kubeconfig: str) -> None:
    """Stop an idle workload now, so that it can be brought back. Exit code 4 when a guard says no.

    All guards hold but for those of the policy: what is not known to be idle, is kept, or would lose work stays.
    """
    import getpass

    from kgpu.cli import _idle
    from kgpu.operations.writing import evict
    from kgpu.usage.reclaim import requests
    from kgpu.usage.reclaim.reading import ClusterLook

    check_kubeconfig(context, kubeconfig)

    async def work(api: Client) -> int:
        space, _ = requests.split_name(who)
        async with needing(EXPLAIN, api):
            policy, _ = await ClusterLook(api, "").policy(space)
            found, workload = await _found(api, who, policy.stop)
        target, why = await requests.reclaim(
            api, workload, now=found.now, by=getpass.getuser(), own_namespace=found.namespace, evict=evict,
            word=await _idle.process_word(api, found.namespace, found.now), dry_run=dry_run,
        )  # fmt: skip
        if why or target is None:
            click.echo(f"{workload.ref.title} stays: {why}", err=True)
            return REFUSED
        word = "would be stopped" if dry_run else "is stopped"
        click.echo(f"{target.title} {word} ({target.way}); to bring it back: kgpu idle resume {workload.ref}")
        return 0

    context.exit(run_async(with_api(kubeconfig, work)))


@idle.command("resume", examples=RESUME)
@click.argument("who", metavar="[NAMESPACE/NAME]", required=False, default="")
@click.option("--frozen", is_flag=True, help="Let policies act again that doubt the data: all that is idle is so.")
@_connection
@click.pass_context
def resume(context: click.Context, *, who: str, frozen: bool, kubeconfig: str) -> None:
    """Bring back a workload that was stopped, as it was; or let policies act again."""
    from kgpu.kube.operator_namespace import operator_namespace
    from kgpu.usage.reclaim import requests

    check_kubeconfig(context, kubeconfig)
    if bool(who) == frozen:
        raise ConfigError("it is not said what to resume", "NAMESPACE/NAME, or --frozen", "give one of them")

    async def work(api: Client) -> str:
        if frozen:
            why = await requests.lift_freeze(api, await operator_namespace(api))
            return f"policies act again; it was in doubt that {why}" if why else "nothing was frozen"
        return f"{await requests.resume(api, *requests.split_name(who))} is brought back"

    click.echo(run_async(with_api(kubeconfig, work)))


async def _found(api: Client, who: str, rules: IdleRules) -> tuple[IdleLook, HeldWorkload]:
    from kgpu.cli import _idle
    from kgpu.usage.reclaim import requests

    space, name = requests.split_name(who)
    found = await _idle.look(api, rules, time.time())
    workload = requests.workload_named(found.workloads, space, name)
    if workload is None:
        why = _silence(found)
        raise ConfigError(
            f"no agent knows a workload {name} in {space} that holds GPUs" + (f" ({why})" if why else ""),
            "the name of a pod that holds a GPU, or of what it belongs to",
            f"`kgpu top` shows who holds which GPU; what was stopped comes back by: kgpu idle resume {space}/{name}",
        )  # fmt: skip
    return found, workload


def _silence(found: IdleLook) -> str:
    return "; ".join(f"{node or 'agents'}: {said}" for node, said in sorted(found.silent.items())[:3])


def _nothing_known(found: IdleLook) -> ConfigError:
    why = _silence(found) or "their agents see none"
    return ConfigError(
        f"nothing is known of any GPU ({why})", "an agent that watches usage on a node with GPUs",
        "`kgpu status` shows the agents; usage.enabled of the chart lets them watch",
    )  # fmt: skip


_pause: Final = time.sleep


def _say_silent(found: IdleLook) -> None:
    from kgpu.base.printable import one_line

    for note in found.notes:
        click.echo(f"note: {one_line(note, 600)}", err=True)
    for node, why in sorted(found.silent.items())[:5]:
        click.echo(f"note: {f'{one_line(node)} is unknown: ' if node else ''}{one_line(why)}", err=True)
    if len(found.silent) > 5:
        click.echo(f"note: and {len(found.silent) - 5} more nodes are unknown", err=True)


def _states(text: str) -> tuple[str, ...]:
    from kgpu.base.suggest import did_you_mean
    from kgpu.cli._idle import STATES

    words = tuple(word.strip() for word in text.split(",") if word.strip())
    wrong = next((word for word in words if word not in STATES), None)
    if wrong is not None or not words:
        raise ConfigError(
            f"--state has {wrong or 'no state'!r}", f"some of: {', '.join(STATES)}",
            did_you_mean(wrong or "", STATES) or "correct it",
        )  # fmt: skip
    return words


def _rules(least: str) -> IdleRules:
    from msgspec.structs import replace

    from kgpu.usage.states import USUAL_RULES

    return replace(USUAL_RULES, window=_seconds(least, "--min", LEAST_MIN, 86_400.0))


def _seconds(text: str, flag: str, least: float, most: float) -> float:
    from kgpu.usage.window import length_us

    value = length_us(text) / 1e6
    if not least <= value <= most:
        raise ConfigError(
            f"{flag} is {text[:40]!r}", f"a time from {least / 60:g}m to {most / 3600:g}h, such as 2h", "correct it"
        )
    return value
