"""Rows of the computed metrics, which no driver call gives: counts over windows, health, peer-to-peer status."""

from __future__ import annotations

from typing import Final

from kgpu.exporter.fields import FieldScope, MetricField
from kgpu.exporter.rows.builders import counter, gauge

_E = FieldScope.EITHER

COMPUTED: Final[tuple[MetricField, ...]] = (
    gauge(9001, "DCGM_EXP_XID_ERRORS_COUNT", "Xids within the window.", "", scope=_E, extra=True),
    gauge(9002, "DCGM_EXP_CLOCK_EVENTS_COUNT", "Readings within the window at which clocks were held back.", "",
          scope=_E),
    gauge(9003, "DCGM_EXP_GPU_HEALTH_STATUS", "Health: 0 well, 10 warning, 20 failed.", "", scope=_E),
    gauge(9004, "DCGM_EXP_P2P_STATUS", "How GPUs reach each other's memory: 0 well.", "", scope=_E),
    counter(9005, "DCGM_EXP_XID_ERRORS_TOTAL", "Xids so far.", "", scope=_E, extra=True),
    counter(9006, "DCGM_EXP_CLOCK_EVENTS_TOTAL", "How often clocks began to be held back.", "", scope=_E),
)  # fmt: skip
