"""Pure: a page in, its parts as HTML out, by the name under which a browser replaces each.

Works without any script. No colour says anything that words or a shape do not say as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from kgpu.base.printable import counted, one_line
from kgpu.overview import error_list, gpu_map, lists
from kgpu.overview.figures import age, amount, celsius, gib, percent
from kgpu.overview.markup import NOTHING, Markup, joined, tag
from kgpu.overview.model import HeadTotals, LabButtons, OverviewPage, OverviewQuery, Told
from kgpu.overview.pieces import command, downloads, link, section

_ICON: Final = tag("link", rel="icon", href="data:,")
"""None: without this a browser asks for one."""
_TITLE: Final = "GPU overview"
_TOKEN: Final = (
    "What the API server lets you see is shown. A token of a ServiceAccount that is yours: ",
    command("kubectl create token NAME --namespace NAMESPACE"),
)
_TOLD_BY: Final = (
    ("kgpu doctor", "report"),
    ("kgpu idle", "idleness"),
    ("pods that wait", "waiting"),
    ("quotas", "limits"),
    ("Events of nodes", "events"),
    ("health's reports on nodes", "verdicts"),
)


def parts(page: OverviewPage, *, lab: LabButtons | None = None) -> dict[str, Markup]:
    """What stands below each other, each an element with its name as id. ``lab``: where GPUs can be broken."""

    def listed(name: str, title: str, content: Markup, *, live: bool = False) -> Markup:
        return section(name, title, content, downloads(name, page.query), live=live)

    found = {
        "totals": section("totals", "GPUs", _totals(page)),
        "attention": listed("attention", "Needs attention", lists.attention(page), live=True),
    }
    for number, chunk in enumerate(gpu_map.chunks(page, lab)):
        found[f"map-{number}"] = tag("section", chunk, id=f"map-{number}", class_="map")
    found["errors"] = listed("errors", "Hardware errors of the last 24 hours", error_list.errors(page))
    found["waiting"] = listed("waiting", "Waiting for GPUs", lists.waiting(page))
    found["idle"] = listed("idle", "Held and not used for an hour", lists.idle(page))
    found["namespaces"] = listed("namespaces", "Namespaces", lists.namespaces(page))
    found["gpus"] = listed("gpus", "Every GPU", lists.gpus(page, lab))
    found["sources"] = section("sources", "Where this is from", _sources(page))
    return found


def document(
    query: OverviewQuery, body: Iterable[Markup], *, stamp: str, who: str = "", leaves: bool = False
) -> bytes:  # fmt: skip
    """The whole page. ``stamp`` says which state of it this is, for the updates that follow; ``who``: as whom somebody
    is let in, "" where that needs no words; ``leaves``: he can sign out.
    """
    html = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", _TITLE),
            _ICON,
            tag("link", rel="stylesheet", href="style.css"),
            tag("script", src="page.js", defer=True),
        ),
        tag("body", _top(query, _leave(who, leaves=leaves)), tag("main", *body, id="main", data_stamp=stamp), _help()),
        lang="en",
    )
    return f"<!doctype html>\n{html}\n".encode()


def notice(title: str, *lines: str, refresh: str = "") -> bytes:
    """A page that only says something; ``refresh``: where it goes on by itself."""
    head = tag("meta", http_equiv="refresh", content=f"0;url={refresh}") if refresh else NOTHING
    style = NOTHING if refresh else tag("link", rel="stylesheet", href="style.css")
    text = tag("main", tag("h1", title), *(tag("p", line) for line in lines))
    html = tag(
        "html",
        tag("head", tag("meta", charset="utf-8"), head, _ICON, tag("title", title), style),
        tag("body", text),
        lang="en",
    )
    return f"<!doctype html>\n{html}\n".encode()


def sign_in(title: str, *lines: str, back: str) -> bytes:
    """The page that takes a token; ``back`` is the address of the view that was asked for."""
    asks = tag(
        "form",
        tag("label", "Token ", for_="token"),
        tag("input", id="token", type="password", name="token", autocomplete="off", required=True, maxlength="16000"),
        tag("input", type="hidden", name="view", value=back),
        tag("button", "Sign in"),
        method="post",
        action="sign-in",
    )
    text = tag("main", tag("h1", title), *(tag("p", line) for line in lines), asks, tag("p", *_TOKEN))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        _ICON,
        tag("link", rel="stylesheet", href="style.css"),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', text), lang='en')}\n".encode()


def _leave(who: str, *, leaves: bool) -> Markup:
    if not who:
        return NOTHING
    button = tag("form", tag("button", "Sign out"), method="post", action="sign-out") if leaves else NOTHING
    return joined(tag("span", "as ", one_line(who, 120), class_="quiet"), button)


def _top(query: OverviewQuery, leave: Markup) -> Markup:
    word = tag(
        "input", id="words", type="search", name="q", value=query.words, maxlength="200",
        placeholder="node, model, pod, state", autocomplete="off",
    )  # fmt: skip
    kept = [
        tag("input", type="hidden", name=name, value=value)
        for name, value in (("node", query.node), ("ns", query.namespace))
        if value
    ]
    filters = [
        tag("a", f"{what} {value} ", tag("span", "(show all)", class_="quiet"), class_="chip", href=link(without))
        for what, value, without in (
            ("node", query.node, replace(query, node="", page=1)),
            ("namespace", query.namespace, replace(query, namespace="", page=1)),
        )
        if value
    ]
    form = tag(
        "form", tag("label", "Filter ", for_="words"), word, *kept, tag("button", "Show"), method="get", action="./",
        role="search",
    )  # fmt: skip
    pause = tag("button", "Pause updates", id="pause", type="button", hidden=True, aria_pressed="false")
    keys = tag("button", "Keys", id="keys", type="button", hidden=True, aria_controls="help", aria_expanded="false")
    state = tag("span", tag("noscript", "Reload for newer figures."), id="live", role="status")
    title = tag("h1", tag("a", "GPU overview", href="./"))
    notes = [tag("p", note, class_="note") for note in query.notes]
    skip = tag("a", "To the figures", class_="skip", href="#main")
    return tag("header", skip, title, form, *filters, pause, keys, state, leave, *notes)


def _help() -> Markup:
    rows = (
        ("/", "filter"), ("j, k", "next and previous section"), ("p", "pause updates"), ("?", "this list"),
        ("Esc", "leave the filter, close this list"),
    )  # fmt: skip
    listed = [row for key, does in rows for row in (tag("dt", tag("kbd", key)), tag("dd", does))]
    off = tag("label", tag("input", type="checkbox", id="no-keys"), " single keys off")
    return tag("aside", tag("h2", "Keys"), tag("dl", *listed), off, id="help", hidden=True, aria_label="Keys")


def _totals(page: OverviewPage) -> Markup:
    gathered, totals = page.gathered, page.totals
    if gathered.trouble:
        trouble = tag("p", tag("strong", "Nodes can't be listed: "), gathered.trouble, class_="trouble")
        advice = tag("p", "To do: ", gathered.remedy) if gathered.remedy else NOTHING
        if not gathered.nodes:
            return joined(trouble, advice)
        return joined(trouble, advice, _figures(totals), _gauges(totals))
    if not gathered.found:
        return tag("p", "The nodes are being read for the first time.")
    if not totals.nodes and (page.query.words or page.query.node or page.query.namespace):
        return tag("p", "Nothing is like this filter. ", tag("a", "Show all", href="./"))
    if not totals.nodes:
        return joined(
            tag("p", "No GPU nodes: no node has an exporter or a label of a GPU's."),
            tag("p", "To see what kgpu knows of the nodes: ", command("kgpu status")),
        )
    return joined(_figures(totals), _gauges(totals))


def _figures(totals: HeadTotals) -> Markup:
    whole = totals.whole
    broken = whole.bad + whole.lost
    rows: list[tuple[str, object, str]] = [
        ("GPUs", whole.gpus, f"on {counted(totals.nodes, 'node')}"),
        ("held", whole.used, f"by {counted(whole.pods, 'pod')}" if whole.pods else ""),
        ("busy", totals.busy, "did something at the last reading"),
        ("free", totals.free, "nobody holds them"),
        ("broken", broken, f"{whole.lost} lost" if whole.lost else ""),
    ]
    if totals.stale:
        rows.append(("not read", totals.stale, "shown as last read, in no sum"))
    if totals.idle is not None:
        unknown = f"; not known of {counted(totals.silent, 'node')}" if totals.silent else ""
        rows.append(("unused for an hour", f"{totals.idle:g}", f"held all the same{unknown}"))
    if totals.per_hour and totals.currency:
        rows.append(("wasted an hour", amount(totals.per_hour, totals.currency), ""))
        if totals.wasted is not None:
            rows.append(("wasted so far", amount(totals.wasted, totals.currency), "since each was last used"))
    if totals.errors is not None:
        rows.append(("hardware errors", totals.errors, "in 24 hours, as far as is known"))
    if whole.power_w is not None:
        rows.append(("power", f"{whole.power_w / 1000:.1f} kW", ""))
    return tag("dl", *(_figure(*row) for row in rows), class_="figures")


def _figure(name: str, value: object, more: str) -> Markup:
    alarm = name == "broken" and value != 0
    said = tag("dd", value, *((" ", tag("small", more)) if more else ()), class_="alarm" if alarm else None)
    return tag("div", tag("dt", name), said)


def _gauges(totals: HeadTotals) -> Markup:
    whole = totals.whole
    memory = None
    if whole.memory_mib is not None and whole.total_mib:
        memory = 100 * whole.memory_mib / whole.total_mib
    used = f"{gib(whole.memory_mib)} of {gib(whole.total_mib)}" if memory is not None else ""
    rows = (
        ("Utilisation", whole.utilization, percent(whole.utilization), "of all GPUs"),
        ("Memory", memory, percent(memory), used),
        ("Hottest", whole.temperature_c, celsius(whole.temperature_c), ""),
    )
    return tag("div", *(_gauge(*row) for row in rows), class_="gauges")


def _gauge(name: str, value: float | None, shown: str, more: str) -> Markup:
    bar = NOTHING if value is None else tag("meter", shown, min="0", max="100", value=f"{value:.0f}", aria_label=name)
    return tag("div", tag("span", name, class_="name"), bar, tag("b", shown), tag("small", more))


def _sources(page: OverviewPage) -> Markup:
    """Who has said what is shown, and when: nothing here is without an age."""
    gathered = page.gathered
    fresh = sum(node.trouble is None for node in gathered.nodes)
    rows = [_row("kgpu top", f"{fresh} of {counted(len(gathered.nodes), 'node')} read", "")]
    for name, key in _TOLD_BY:
        told: Told[object] = getattr(gathered, key)
        said = "not yet" if told.at is None else age(gathered.now - told.at)
        rows.append(_row(name, said, told.trouble))
    silent = gathered.idleness.value.silent
    if silent:
        first = next(iter(silent.items()))
        who = "" if first[0] == "*" else f"{first[0]}: "
        more = f" (and {len(silent) - 1} more)" if len(silent) > 1 else ""
        rows.append(_row("use is not known of", f"{who}{first[1]}{more}", ""))
    if gathered.named is not None:
        rows.append(_row("names of nodes", "hidden, but where you see a pod: you may not list nodes", ""))
    return tag("table", tag("tbody", *rows))


def _row(name: str, said: str, trouble: str) -> Markup:
    return tag(
        "tr", tag("th", name, scope="row"), tag("td", said), tag("td", trouble, class_="trouble" if trouble else None)
    )
