"""The role ``health``: judges GPUs by the kernel log and the driver, and reports it in a file and on the Node."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from kgpu.agent.host import Closing, Host, Role, kernel_log, verdicts
from kgpu.agent.options import AgentOptions
from kgpu.base.supervise import RoleHandle
from kgpu.formats.gpu_report import GpuReport, encode, rendered
from kgpu.formats.names import (
    GPUS_ANNOTATION,
    GPUS_HEALTHY_CONDITION,
    HEALTH_FIELD_MANAGER,
    HEALTH_HISTORY,
)
from kgpu.kube.port import KubeApi

if TYPE_CHECKING:
    from kgpu.kube.conditions import NodeConditionWriter


async def _health(host: Host, handle: RoleHandle) -> None:
    from kgpu.health.history import HealthHistory
    from kgpu.health.kmsg import open_log
    from kgpu.health.run import HealthContext, run
    from kgpu.health.settings import HealthSettings

    options = host.options
    log = kernel_log(options)
    known = options.has_api_server and options.node_name
    view = host.reader.view()
    async with contextlib.aclosing(Closing(view)), HealthSettings(options.env, host.decide).following() as settings:
        await run(
            HealthContext(
                reader=view,
                verdicts=verdicts(options),
                report=host.decide,
                kernel_log=partial(open_log, log) if log else None,
                history=HealthHistory(options.state_dir / HEALTH_HISTORY),
                reports=_Reports(host.api, options) if known else None,
                orders=host.ordered,
                config=settings.current,
                node=options.node_name,
                on_state=handle.report,
            )
        )


async def _withdraw(api: KubeApi, options: AgentOptions) -> None:
    """Remove the report, the condition and the verdict file. Raises KubeError, HostError."""
    verdicts(options).remove()
    await _condition(api, options).withdraw()


def _was_reset(options: AgentOptions, gpus: tuple[str, ...]) -> None:
    """Let the verdicts know, which the driver's figures may not show. Raises HostError."""
    from kgpu.health.history import HealthHistory
    from kgpu.health.node import RESET, HealthOrder

    history = HealthHistory(options.state_dir / HEALTH_HISTORY)
    for gpu in gpus:
        history.put(HealthOrder(kind=RESET, gpu=gpu, at=time.time(), who="the act that has reset it"))


class _Reports:
    """Writes report and condition. Its client is made on the first write, as GPUs are judged without it."""

    def __init__(self, api: Callable[[], KubeApi], options: AgentOptions) -> None:
        self._api = api
        self._options = options

    async def write(self, report: GpuReport) -> None:
        shown = rendered(report)
        await _condition(self._api(), self._options).write(
            shown.status, shown.reason, shown.message, annotations={GPUS_ANNOTATION: encode(report)}
        )


def _condition(api: KubeApi, options: AgentOptions) -> NodeConditionWriter:
    from kgpu.kube.conditions import NodeConditionWriter

    return NodeConditionWriter(api, node=options.node_name, kind=GPUS_HEALTHY_CONDITION, manager=HEALTH_FIELD_MANAGER)


ROLE: Final = Role("health", _health, withdraw=_withdraw, was_reset=_was_reset)
