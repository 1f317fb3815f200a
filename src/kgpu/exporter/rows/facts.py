"""Rows of what identifies a GPU; the CSV makes labels or gauges of them."""

from __future__ import annotations

from typing import Final

from kgpu.exporter.fields import MetricField, ReadingSource
from kgpu.exporter.rows.builders import label, named

FACTS: Final[tuple[MetricField, ...]] = (
    label(1, "DCGM_FI_DRIVER_VERSION", "Version of the driver.",
          ReadingSource("driver_version", "SystemGetDriverVersion"),
          default=True, modern=named("DCGM_FI_SYSTEM_DRIVER_VERSION")),
    label(2, "DCGM_FI_NVML_VERSION", "Version of the management library.",
          ReadingSource("nvml_version", "SystemGetNVMLVersion")),
    label(50, "NAME", "Model.", ReadingSource("name", "GetName"), modern=named("GPU_NAME")),
    label(51, "BRAND", "Brand.", ReadingSource("brand", "GetBrand"), modern=named("GPU_BRAND")),
    label(52, "NVML_INDEX", "Index in the driver's order.", ReadingSource("index", "GetIndex")),
    label(53, "SERIAL", "Serial number of the board.", ReadingSource("serial", "GetSerial"),
          modern=named("BOARD_SERIAL")),
    label(54, "UUID", "UUID of the GPU.", ReadingSource("uuid", "GetUUID"), modern=named("GPU_UUID")),
    label(55, "MINOR_NUMBER", "Number in the device node's name.", ReadingSource("minor", "GetMinorNumber")),
    label(56, "OEM_INFOROM_VER", "Version of the OEM part of the InfoROM.",
          ReadingSource("inforom_oem", "GetInforomVersion(OEM)")),
    label(57, "PCI_BUSID", "Address on the PCI bus.", ReadingSource("pci_bus_id", "GetPciInfo_v3")),
    label(63, "CUDA_COMPUTE_CAPABILITY", "Compute capability: major * 65536 + minor.",
          ReadingSource("compute_capability", "GetCudaComputeCapability")),
    label(80, "ECC_INFOROM_VER", "Version of the ECC part of the InfoROM.",
          ReadingSource("inforom_ecc", "GetInforomVersion(ECC)")),
    label(81, "POWER_INFOROM_VER", "Version of the power part of the InfoROM.",
          ReadingSource("inforom_power", "GetInforomVersion(POWER)")),
    label(82, "INFOROM_IMAGE_VER", "Version of the InfoROM image.",
          ReadingSource("inforom_image", "GetInforomImageVersion")),
    label(85, "VBIOS_VERSION", "Version of the VBIOS.", ReadingSource("vbios_version", "GetVbiosVersion")),
    label(172, "FABRIC_CLUSTER_UUID", "Cluster of the NVLink fabric.",
          ReadingSource("fabric_cluster", "GetGpuFabricInfoV")),
)  # fmt: skip
