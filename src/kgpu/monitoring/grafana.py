"""Dashboards as Grafana reads them: rows of panels become JSON with places, queries, units and thresholds.

The JSON is Grafana's own model (schema version 38, read by Grafana 9 and later) and names no data source: a variable
lets the user choose one.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.monitoring.model import Object

SCHEMA: Final = 38
WIDTH: Final = 24
SIDECAR_LABEL: Final = {"grafana_dashboard": "1"}
"""By which Grafana's sidecar finds dashboards in most installations."""
HIDDEN: Final = ("Time", "__name__", "endpoint", "job", "service", "device", "pci_bus_id")
"""Columns that say nothing in a table."""
SOURCE: Final[Object] = {"type": "prometheus", "uid": "${datasource}"}


class PanelType(enum.StrEnum):
    """Grafana's names of panels."""

    LINES = "timeseries"
    STAT = "stat"
    GAUGE = "gauge"
    BARS = "bargauge"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Panel:
    """``queries`` are expressions with their legends; ``steps`` where green becomes yellow and red.

    ``width`` in columns of 24; None: what the row's other panels leave, shared evenly.
    """

    title: str
    look: PanelType
    queries: tuple[tuple[str, str], ...]
    unit: str = "none"
    steps: tuple[float, float] | None = None
    width: int | None = None

    def body(self) -> Object:
        """The panel without its place."""
        steps = zip(("green", "yellow", "red"), (None, *(self.steps or ())), strict=False)
        at_once = self.look is not PanelType.LINES
        panel: Object = {
            "type": str(self.look),
            "title": self.title,
            "datasource": SOURCE,
            "targets": [
                {
                    "refId": chr(ord("A") + number),
                    "datasource": SOURCE,
                    "expr": expr,
                    "legendFormat": legend,
                    "instant": at_once,
                    "range": not at_once,
                    **({"format": "table"} if self.look is PanelType.TABLE else {}),
                }
                for number, (expr, legend) in enumerate(self.queries)
            ],
            "fieldConfig": {
                "defaults": {
                    "unit": self.unit,
                    "thresholds": {
                        "mode": "absolute",
                        "steps": [{"color": color, "value": value} for color, value in steps],
                    },
                    **({"min": 0} if self.unit in {"percent", "percentunit"} else {}),
                    **({"max": 100} if self.unit == "percent" else {}),
                    **({"max": 1} if self.unit == "percentunit" else {}),
                },
                "overrides": [],
            },
        }
        if self.look is PanelType.LINES:
            panel["options"] = {
                "legend": {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull", "max"]}
            }
        elif self.look is PanelType.TABLE:
            hidden = dict.fromkeys(HIDDEN, True)
            panel["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
        else:
            panel["options"] = {"reduceOptions": {"calcs": ["lastNotNull"], "values": False}}
        return panel


@dataclass(frozen=True, slots=True)
class PanelRow:
    """Panels beside each other, ``height`` units high."""

    height: int
    panels: tuple[Panel, ...]

    def places(self) -> Iterator[tuple[Panel, int, int]]:
        """Each panel with where it begins and how wide it is."""
        free = WIDTH - sum(panel.width or 0 for panel in self.panels)
        others = sum(panel.width is None for panel in self.panels)
        x = 0
        for panel in self.panels:
            width = panel.width or free // others
            yield panel, x, width
            x += width


@dataclass(frozen=True, slots=True)
class BoardVariable:
    """A variable chosen at the top of a board from the values of a query; at first all of them."""

    name: str
    query: str

    def body(self) -> Object:
        return {
            "name": self.name,
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": self.query, "refId": self.name},
            "refresh": 2,
            "sort": 3,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A dashboard; ``file`` is its name as a file and in ConfigMaps."""

    uid: str
    title: str
    file: str
    variables: tuple[BoardVariable, ...]
    rows: tuple[PanelRow, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)

    def body(self) -> Object:
        """What Grafana imports."""
        panels: list[Object] = []
        y = 0
        for row in self.rows:
            for panel, x, width in row.places():
                place = {"x": x, "y": y, "w": width, "h": row.height}
                panels.append({"id": len(panels) + 1, "gridPos": place, **panel.body()})
            y += row.height
        source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
        return {
            "uid": self.uid,
            "title": self.title,
            "tags": ["gpu", "kgpu"],
            "schemaVersion": SCHEMA,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-3h", "to": "now"},
            "templating": {"list": [source, *(variable.body() for variable in self.variables)]},
            "panels": panels,
        }

    def text(self) -> str:
        """The same as a file."""
        return json.dumps(self.body(), indent=1) + "\n"


def config_map(board: Board, *, namespace: str, labels: dict[str, str]) -> Object:
    """A ConfigMap that Grafana's sidecar finds by its labels."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"kgpu-dashboard-{board.file}", **({"namespace": namespace} if namespace else {}), "labels": labels,
        },
        "data": {f"{board.file}.json": board.text()},
    }  # fmt: skip
