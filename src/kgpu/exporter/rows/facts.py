"""Rows of what identifies a GPU; the CSV makes labels or gauges of them."""

from __future__ import annotations

from typing import Final

from kgpu.exporter.fields import Field, Source
from kgpu.exporter.rows.make import label, named

FACTS: Final[tuple[Field, ...]] = (
    label(1, "DCGM_FI_DRIVER_VERSION", "Version of the driver.", Source("driver_version", "SystemGetDriverVersion"),
          default=True, modern=named("DCGM_FI_SYSTEM_DRIVER_VERSION")),
    label(2, "DCGM_FI_NVML_VERSION", "Version of the management library.",
          Source("nvml_version", "SystemGetNVMLVersion")),
    label(50, "NAME", "Model.", Source("name", "GetName"), modern=named("GPU_NAME")),
    label(51, "BRAND", "Brand.", Source("brand", "GetBrand"), modern=named("GPU_BRAND")),
    label(52, "NVML_INDEX", "Index in the driver's order.", Source("index", "GetIndex")),
    label(53, "SERIAL", "Serial number of the board.", Source("serial", "GetSerial"), modern=named("BOARD_SERIAL")),
    label(54, "UUID", "UUID of the GPU.", Source("uuid", "GetUUID"), modern=named("GPU_UUID")),
    label(55, "MINOR_NUMBER", "Number in the device node's name.", Source("minor", "GetMinorNumber")),
    label(56, "OEM_INFOROM_VER", "Version of the OEM part of the InfoROM.",
          Source("inforom_oem", "GetInforomVersion(OEM)")),
    label(57, "PCI_BUSID", "Address on the PCI bus.", Source("pci_bus_id", "GetPciInfo_v3")),
    label(63, "CUDA_COMPUTE_CAPABILITY", "Compute capability: major * 65536 + minor.",
          Source("compute_capability", "GetCudaComputeCapability")),
    label(80, "ECC_INFOROM_VER", "Version of the ECC part of the InfoROM.",
          Source("inforom_ecc", "GetInforomVersion(ECC)")),
    label(81, "POWER_INFOROM_VER", "Version of the power part of the InfoROM.",
          Source("inforom_power", "GetInforomVersion(POWER)")),
    label(82, "INFOROM_IMAGE_VER", "Version of the InfoROM image.", Source("inforom_image", "GetInforomImageVersion")),
    label(85, "VBIOS_VERSION", "Version of the VBIOS.", Source("vbios_version", "GetVbiosVersion")),
    label(172, "FABRIC_CLUSTER_UUID", "Cluster of the NVLink fabric.", Source("fabric_cluster", "GetGpuFabricInfoV")),
)  # fmt: skip
