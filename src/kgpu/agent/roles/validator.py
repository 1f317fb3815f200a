"""The role ``validator``: proves that this node can run GPU work, and reports it on the Node."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final

from kgpu.agent.host import Closing, Host, OwnWork, Role, driver_root, validations_dir
from kgpu.agent.options import AgentOptions
from kgpu.base.supervise import RoleHandle
from kgpu.base.waits import before
from kgpu.formats.names import CDI_STATIC_DIR, ENV_KGPU_TOOLKIT
from kgpu.hw import roots
from kgpu.hw.port import DriverReleasedError
from kgpu.kube.port import KubeApi

if TYPE_CHECKING:
    from kgpu.agent.ordered import OrderedGpus
    from kgpu.validator.cuda import CudaOutcome, CudaRunner


def _has_toolkit(options: AgentOptions) -> bool:
    return options.toolkit_expected and options.env.get(ENV_KGPU_TOOLKIT, "true").lower() != "false"


async def _validator(host: Host, handle: RoleHandle) -> None:
    from kgpu.validator.config import ValidatorSettings, recheck_seconds, skipped_checks, without_effect
    from kgpu.validator.cuda import ChildCuda
    from kgpu.validator.publish import NodeObject
    from kgpu.validator.run import ValidatorContext, run

    options = host.options
    for advice in without_effect(options.env):
        host.decide(advice)
    root = driver_root(options)
    seen = str(options.root or "/")
    known = options.has_api_server and options.node_name
    node = NodeObject(host.api(), node=options.node_name) if known else None
    view = host.reader.view()
    async with contextlib.aclosing(Closing(view)):
        await run(
            ValidatorContext(
                reader=view,
                root=root,
                runner=Noted(WhileFree(ChildCuda(root, env=options.env), host.ordered), host.own_work),
                settings=ValidatorSettings(
                    folder=validations_dir(options),
                    cdi_dirs=(options.host_root / CDI_STATIC_DIR.lstrip("/"), options.cdi_dir),
                    skip=skipped_checks(options.env, toolkit=_has_toolkit(options)),
                    host_root=options.host_root,
                    recheck_seconds=recheck_seconds(options.env),
                ),
                report=host.decide,
                node=node,
                publisher=node,
                offered=lambda: host.offered,
                plugin_off=partial(host.off, "deviceplugin"),
                proc=roots.proc_root(seen),
                sys=roots.sys_root(seen),
                on_state=handle.report,
            )
        )


class Noted:
    """Notes each test as work of kgpu's own."""

    def __init__(self, runner: CudaRunner, own_work: OwnWork) -> None:
        self._runner = runner
        self._own_work = own_work

    async def run(self, uuid: str, *, deadline: float) -> CudaOutcome:
        with self._own_work.on(uuid):
            return await self._runner.run(uuid, deadline=deadline)


class WhileFree:
    """Tests devices only while the driver is not released and no GPU is about to be cut; tests under way end then."""

    def __init__(self, runner: CudaRunner, ordered: OrderedGpus | None) -> None:
        self._runner = runner
        self._ordered = ordered

    async def run(self, uuid: str, *, deadline: float) -> CudaOutcome:
        if self._ordered is None:
            return await self._runner.run(uuid, deadline=deadline)
        if why := _forbidden(self._ordered):
            raise DriverReleasedError(why)
        outcome = await before(self._until_forbidden(self._ordered), self._runner.run(uuid, deadline=deadline))
        if outcome is None:
            raise DriverReleasedError(_forbidden(self._ordered))
        return outcome

    @staticmethod
    async def _until_forbidden(ordered: OrderedGpus) -> None:
        while not _forbidden(ordered):
            await ordered.changed(ordered.revision)


def _forbidden(ordered: OrderedGpus) -> str:
    return ordered.released or ordered.held


async def _withdraw(api: KubeApi, options: AgentOptions) -> None:
    """Remove the condition and the files. Raises KubeError, HostError."""
    from kgpu.validator.files import Folder
    from kgpu.validator.publish import NodeObject

    Folder(validations_dir(options)).clear()
    await NodeObject(api, node=options.node_name).withdraw()


ROLE: Final = Role(
    "validator",
    _validator,
    aliases=("operator-validator",),
    orders=("toolkit_expected", "validations_dir"),
    withdraw=_withdraw,
)
