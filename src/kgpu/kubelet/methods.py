"""The kubelet's remote procedures as rows: path, message types, streaming or not."""

from __future__ import annotations

from typing import Final

from kgpu.kubelet.pb import deviceplugin_v1beta1_pb2 as dp
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
