"""``kgpu operator overview``: the page in the cluster, for whoever the API server knows. Its options, and its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgpu.formats.names import OVERVIEW_PORT
from kgpu.formats.settings import Setting

if TYPE_CHECKING:
    from kgpu.base.http import Address

OVERVIEW: Final = (
    Setting(attr="address", flag="--bind-address", envs=("KGPU_OVERVIEW_ADDRESS",), default=f":{OVERVIEW_PORT}",
            metavar="HOST:PORT", help="Where the page is served, in plain HTTP."),
    Setting(attr="health_address", flag="--health-probe-bind-address", envs=("KGPU_OVERVIEW_HEALTH_ADDRESS",),
            default=":8081", metavar="HOST:PORT", help="Where /healthz and /readyz are served; 0 for nowhere."),
    Setting(attr="doctor", flag="--doctor", envs=("KGPU_OVERVIEW_DOCTOR",), default="true", metavar="BOOL",
            help="Whether kgpu doctor is asked, which needs its rights (docs/how-to/doctor-rights.yaml)."),
    Setting(attr="idle", flag="--idle", envs=("KGPU_OVERVIEW_IDLE",), default="true", metavar="BOOL",
            help="Whether kgpu idle is asked, which needs the right to get pods/proxy, and agents that count use."),
    Setting(attr="through_api_server", flag="--through-api-server", envs=("KGPU_OVERVIEW_THROUGH_API_SERVER",),
            default="false", metavar="BOOL",
            help="Whether exporters are asked through the API server's pod proxy, not at their pods' addresses. It "
                 "needs the right to get pods/proxy."),
)  # fmt: skip


async def host_overview(
    kubeconfig: str,
    namespace: str,
    *,
    address: Address,
    health: Address | None,
    doctor: bool,
    idle: bool,
    proxied: bool,
) -> None:
    """Serve until SIGTERM. Raises HostError where an address is not to be had, KubeError for a bad kubeconfig."""
    from kgpu.kube.client import connect
    from kgpu.overview.cluster import ClusterWorld
    from kgpu.overview.hosted import host
    from kgpu.overview.reviews import ApiReviews
    from kgpu.top.cluster import ClusterSource
    from kgpu.top.exporters import Exporters
    from kgpu.top.find import Via

    api = connect(kubeconfig)
    via = Via.PROXY if proxied else Via.DIRECT
    source = ClusterSource(api, Exporters(api), via=via, inside=True, namespaces=frozenset({namespace}))
    world = ClusterWorld(api, kubeconfig, doctor=doctor, idle=idle)
    await host(source, world, ApiReviews(api), address=address, health=health)
