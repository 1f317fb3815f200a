"""Remote procedures of the kubelet and of container runtimes as rows: path, message types, streaming or not."""

from __future__ import annotations

from typing import Final

from kgpu.kubelet.pb import cri_v1_pb2 as cri
from kgpu.kubelet.pb import deviceplugin_v1beta1_pb2 as dp
from kgpu.kubelet.pb import dra_v1_pb2 as dra
from kgpu.kubelet.pb import pluginregistration_v1_pb2 as registry
from kgpu.kubelet.pb import podresources_v1_pb2 as podresources
from kgpu.kubelet.rpc import Method

REGISTER: Final = Method(path="/v1beta1.Registration/Register", request=dp.RegisterRequest, reply=dp.Empty)
REGISTRATION: Final = (REGISTER,)

GET_OPTIONS: Final = Method(
    path="/v1beta1.DevicePlugin/GetDevicePluginOptions", request=dp.Empty, reply=dp.DevicePluginOptions
)
LIST_AND_WATCH: Final = Method(
    path="/v1beta1.DevicePlugin/ListAndWatch", request=dp.Empty, reply=dp.ListAndWatchResponse, streams=True
)
GET_PREFERRED: Final = Method(
    path="/v1beta1.DevicePlugin/GetPreferredAllocation",
    request=dp.PreferredAllocationRequest,
    reply=dp.PreferredAllocationResponse,
)
ALLOCATE: Final = Method(path="/v1beta1.DevicePlugin/Allocate", request=dp.AllocateRequest, reply=dp.AllocateResponse)
PRE_START: Final = Method(
    path="/v1beta1.DevicePlugin/PreStartContainer",
    request=dp.PreStartContainerRequest,
    reply=dp.PreStartContainerResponse,
)
DEVICE_PLUGIN: Final = (GET_OPTIONS, LIST_AND_WATCH, GET_PREFERRED, ALLOCATE, PRE_START)

LIST_POD_RESOURCES: Final = Method(
    path="/v1.PodResourcesLister/List",
    request=podresources.ListPodResourcesRequest,
    reply=podresources.ListPodResourcesResponse,
)
GET_ALLOCATABLE: Final = Method(
    path="/v1.PodResourcesLister/GetAllocatableResources",
    request=podresources.AllocatableResourcesRequest,
    reply=podresources.AllocatableResourcesResponse,
)
GET_POD_RESOURCES: Final = Method(
    path="/v1.PodResourcesLister/Get",
    request=podresources.GetPodResourcesRequest,
    reply=podresources.GetPodResourcesResponse,
)
POD_RESOURCES: Final = (LIST_POD_RESOURCES, GET_ALLOCATABLE, GET_POD_RESOURCES)

GET_INFO: Final = Method(
    path="/pluginregistration.Registration/GetInfo", request=registry.InfoRequest, reply=registry.PluginInfo
)
NOTIFY_STATUS: Final = Method(
    path="/pluginregistration.Registration/NotifyRegistrationStatus",
    request=registry.RegistrationStatus,
    reply=registry.RegistrationStatusResponse,
)
PLUGIN_REGISTRATION: Final = (GET_INFO, NOTIFY_STATUS)

_DRA_SERVICE: Final = "/k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin/{name}"


def dra_methods(version: str) -> tuple[Method, Method]:
    """Prepare and unprepare of one version of the DRA API (``v1``, ``v1beta1``): the messages are the same."""
    return (
        Method(
            path=_DRA_SERVICE.format(version=version, name="NodePrepareResources"),
            request=dra.NodePrepareResourcesRequest,
            reply=dra.NodePrepareResourcesResponse,
        ),
        Method(
            path=_DRA_SERVICE.format(version=version, name="NodeUnprepareResources"),
            request=dra.NodeUnprepareResourcesRequest,
            reply=dra.NodeUnprepareResourcesResponse,
        ),
    )


CRI_VERSION: Final = Method(
    path="/runtime.v1.RuntimeService/Version", request=cri.VersionRequest, reply=cri.VersionResponse
)
CRI_STATUS: Final = Method(
    path="/runtime.v1.RuntimeService/Status", request=cri.StatusRequest, reply=cri.StatusResponse
)
CRI_CONFIG: Final = Method(
    path="/runtime.v1.RuntimeService/RuntimeConfig",
    request=cri.RuntimeConfigRequest,
    reply=cri.RuntimeConfigResponse,
)
CRI: Final = (CRI_VERSION, CRI_STATUS, CRI_CONFIG)
