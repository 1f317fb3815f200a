/* --query-gpu's fields: name, other name, unit, reader. The order is the one that --help-query-gpu prints. */
#include "readings.h"

#include <stdio.h>

#define EVENT(name) "clocks_event_reasons." name, "clocks_throttle_reasons." name, NULL, read_reason
#define ECC_FIELD(type, life, place, kind, counter, location) \
    {"ecc.errors." type "." life "." place, NULL, NULL, read_ecc, ECC(kind, counter, location), "ECC errors: " type ", " life ", " place "."}
#define ECC_FIELDS(type, life, kind, counter) \
    ECC_FIELD(type, life, "device_memory", kind, counter, 2), ECC_FIELD(type, life, "dram", kind, counter, 2), \
    ECC_FIELD(type, life, "register_file", kind, counter, 3), ECC_FIELD(type, life, "l1_cache", kind, counter, 0), \
    ECC_FIELD(type, life, "l2_cache", kind, counter, 1), ECC_FIELD(type, life, "texture_memory", kind, counter, 4), \
    ECC_FIELD(type, life, "cbu", kind, counter, 6), ECC_FIELD(type, life, "sram", kind, counter, 7), \
    ECC_FIELD(type, life, "total", kind, counter, ECC_TOTAL)

const struct field gpu_fields[] = {
    {"timestamp", NULL, NULL, read_timestamp, 0, "When the query was made: YYYY/MM/DD HH:MM:SS.msec."},
    {"driver_version", NULL, NULL, read_driver, 0, "Version of the installed driver."},
    {"vgpu_driver_capability.heterogenous_multivGPU", NULL, NULL, read_absent, 0, "Whether the driver takes vGPUs of several sizes."},
    {"count", NULL, NULL, read_count, 0, "Number of GPUs in the system."},
    {"name", "gpu_name", NULL, read_text, TEXT_NAME, "Product name."},
    {"serial", "gpu_serial", NULL, read_text, TEXT_SERIAL, "Serial number, as printed on the board."},
    {"uuid", "gpu_uuid", NULL, read_text, TEXT_UUID, "Globally unique identifier."},
    {"pci.bus_id", "gpu_bus_id", NULL, read_pci, PCI_BUS_ID, "PCI address: domain:bus:device.function, in hex."},
    {"pci.domain", NULL, NULL, read_pci, PCI_DOMAIN, "PCI domain, in hex."},
    {"pci.bus", NULL, NULL, read_pci, PCI_BUS, "PCI bus, in hex."},
    {"pci.device", NULL, NULL, read_pci, PCI_DEVICE, "PCI device, in hex."},
    {"pci.device_id", NULL, NULL, read_pci, PCI_DEVICE_ID, "PCI device and vendor id, in hex."},
    {"pci.sub_device_id", NULL, NULL, read_pci, PCI_SUBSYSTEM, "PCI subsystem id, in hex."},
    {"vgpu_device_capability.fractional_multiVgpu", NULL, NULL, read_absent, 0, "Fractional vGPU support."},
    {"pcie.link.gen.current", NULL, NULL, read_number, NUMBER_GEN, "Current PCIe generation; may fall when the GPU is idle."},
    {"pcie.link.gen.gpucurrent", NULL, NULL, read_number, NUMBER_GEN, "Current PCIe generation of the GPU."},
    {"pcie.link.gen.max", NULL, NULL, read_number, NUMBER_GEN_MAX, "Highest PCIe generation of GPU and slot together."},
    {"pcie.link.gen.gpumax", NULL, NULL, read_number, NUMBER_GEN_GPU_MAX, "Highest PCIe generation of the GPU."},
    {"pcie.link.gen.hostmax", NULL, NULL, read_number, NUMBER_GEN_MAX, "Highest PCIe generation of the slot."},
    {"pcie.link.width.current", NULL, NULL, read_number, NUMBER_WIDTH, "Current PCIe lanes."},
    {"pcie.link.width.max", NULL, NULL, read_number, NUMBER_WIDTH_MAX, "Most PCIe lanes of GPU and slot together."},
    {"index", NULL, NULL, read_index, 0, "Index of the GPU, from 0 in the order of PCI addresses."},
    {"display_mode", NULL, NULL, read_mode, MODE_DISPLAY, "Whether a display is connected."},
    {"display_attached", NULL, NULL, read_mode, MODE_DISPLAY, "Whether a display is connected."},
    {"display_active", NULL, NULL, read_mode, MODE_DISPLAY_ACTIVE, "Whether a display is initialised on the GPU."},
    {"persistence_mode", NULL, NULL, read_mode, MODE_PERSISTENCE, "Whether the driver stays loaded without clients."},
    {"addressing_mode", NULL, NULL, read_absent, 0, "HMM or ATS."},
    {"accounting.mode", NULL, NULL, read_mode, MODE_ACCOUNTING, "Whether per-process accounting is on."},
    {"accounting.buffer_size", NULL, NULL, read_number, NUMBER_ACCOUNTING, "Processes that accounting keeps."},
    {"driver_model.current", NULL, NULL, read_absent, 0, "Driver model; on Windows only."},
    {"driver_model.pending", NULL, NULL, read_absent, 0, "Driver model after the next restart; on Windows only."},
    {"vbios_version", NULL, NULL, read_text, TEXT_VBIOS, "Version of the board's BIOS."},
    {"inforom.img", "inforom.image", NULL, read_text, TEXT_INFOROM, "Version of the inforom image."},
    {"inforom.oem", NULL, NULL, read_inforom, 0, "Version of the inforom's OEM object."},
    {"inforom.ecc", NULL, NULL, read_inforom, 1, "Version of the inforom's ECC object."},
    {"inforom.pwr", "inforom.power", NULL, read_inforom, 2, "Version of the inforom's power object."},
    {"gpu_recovery_action", NULL, NULL, read_recovery, FIELD_RECOVERY, "What the GPU needs to work again: None, Reset, Reboot, Drain P2P, Drain and Reset."},
    {"gom.current", "gpu_operation_mode.current", NULL, read_operation_mode, 0, "GPU operation mode."},
    {"gom.pending", "gpu_operation_mode.pending", NULL, read_operation_mode, 1, "GPU operation mode after the next restart."},
    {"fan.speed", NULL, "%", read_number, NUMBER_FAN, "Intended fan speed, percent of the maximum."},
    {"pstate", NULL, NULL, read_pstate, 0, "Performance state, P0 (most) to P12 (least)."},
    {"clocks_event_reasons.supported", "clocks_throttle_reasons.supported", NULL, read_reason, REASONS_SUPPORTED, "Bit mask of the reasons this GPU can report."},
    {"clocks_event_reasons.active", "clocks_throttle_reasons.active", NULL, read_reason, REASONS_ACTIVE, "Bit mask of the reasons in force."},
    {EVENT("gpu_idle"), 0, "Nothing runs: the clocks fall to idle."},
    {EVENT("applications_clocks_setting"), 1, "Limited by the applications clocks."},
    {EVENT("sw_power_cap"), 2, "Limited by the power cap."},
    {EVENT("hw_slowdown"), 3, "Hardware slowdown: too hot, or an external power brake."},
    {EVENT("hw_thermal_slowdown"), 6, "Hardware thermal slowdown."},
    {EVENT("hw_power_brake_slowdown"), 7, "Hardware power brake."},
    {EVENT("sw_thermal_slowdown"), 5, "Software thermal slowdown."},
    {EVENT("sync_boost"), 4, "Held back by another GPU of its sync boost group."},
    {"memory.total", NULL, "MiB", read_memory, MEMORY_TOTAL, "Memory installed."},
    {"memory.reserved", NULL, "MiB", read_memory, MEMORY_RESERVED, "Memory kept by driver and firmware."},
    {"memory.used", NULL, "MiB", read_memory, MEMORY_USED, "Memory in use."},
    {"memory.free", NULL, "MiB", read_memory, MEMORY_FREE, "Memory free."},
    {"compute_mode", NULL, NULL, read_compute_mode, 0, "Who may use the GPU: Default, Exclusive_Process, Prohibited."},
    {"compute_cap", NULL, NULL, read_capability, 0, "CUDA compute capability."},
    {"utilization.gpu", NULL, "%", read_utilization, UTIL_GPU, "Share of time in which a kernel ran."},
    {"utilization.memory", NULL, "%", read_utilization, UTIL_MEMORY, "Share of time in which memory was read or written."},
    {"utilization.encoder", NULL, "%", read_utilization, UTIL_ENCODER, "Share of time in which the encoder worked."},
    {"utilization.decoder", NULL, "%", read_utilization, UTIL_DECODER, "Share of time in which the decoder worked."},
    {"utilization.jpeg", NULL, "%", read_utilization, UTIL_JPEG, "Share of time in which the JPEG engine worked."},
    {"utilization.ofa", NULL, "%", read_utilization, UTIL_OFA, "Share of time in which the optical flow engine worked."},
    {"ecc.mode.current", NULL, NULL, read_ecc_mode, 0, "ECC mode."},
    {"ecc.mode.pending", NULL, NULL, read_ecc_mode, 1, "ECC mode after the next reset."},
    ECC_FIELDS("corrected", "volatile", 0, 0),
    ECC_FIELDS("corrected", "aggregate", 0, 1),
    ECC_FIELDS("uncorrected", "volatile", 1, 0),
    ECC_FIELDS("uncorrected", "aggregate", 1, 1),
    {"retired_pages.single_bit_ecc.count", "retired_pages.sbe", NULL, read_retired, 0, "Pages retired for several single-bit errors."},
    {"retired_pages.double_bit.count", "retired_pages.dbe", NULL, read_retired, 1, "Pages retired for a double-bit error."},
    {"retired_pages.pending", NULL, NULL, read_retired, 2, "Whether pages wait for a reset to be retired."},
    {"remapped_rows.correctable", NULL, NULL, read_remapped, 0, "Rows remapped for correctable errors."},
    {"remapped_rows.uncorrectable", NULL, NULL, read_remapped, 1, "Rows remapped for uncorrectable errors."},
    {"remapped_rows.pending", NULL, NULL, read_remapped, 2, "Whether a remapping waits for a reset."},
    {"remapped_rows.failure", NULL, NULL, read_remapped, 3, "Whether a remapping has failed."},
    {"remapped_rows.histogram.max", NULL, NULL, read_histogram, 0, "Banks with all spare rows left."},
    {"remapped_rows.histogram.high", NULL, NULL, read_histogram, 1, "Banks with most spare rows left."},
    {"remapped_rows.histogram.partial", NULL, NULL, read_histogram, 2, "Banks with some spare rows left."},
    {"remapped_rows.histogram.low", NULL, NULL, read_histogram, 3, "Banks with one spare row left."},
    {"remapped_rows.histogram.none", NULL, NULL, read_histogram, 4, "Banks without spare rows."},
    {"temperature.gpu", NULL, NULL, read_temperature, 0, "Core temperature, degrees C."},
    {"temperature.gpu.tlimit", NULL, NULL, read_temperature_limit, 0, "Degrees C left until the slowdown threshold."},
    {"temperature.memory", NULL, NULL, read_field, FIELD_MEMORY_TEMP, "Memory temperature, degrees C."},
    {"power.management", NULL, NULL, read_mode, MODE_POWER, "Whether power management is on."},
    {"power.draw", NULL, "W", read_power, POWER_DRAW, "Power draw of the board."},
    {"power.draw.average", NULL, "W", read_power, POWER_DRAW, "Power draw of the board, averaged over a second."},
    {"power.draw.instant", NULL, "W", read_power, POWER_DRAW, "Power draw of the board, last reading."},
    {"power.limit", NULL, "W", read_power, POWER_LIMIT, "Power limit set by software."},
    {"enforced.power.limit", NULL, "W", read_power, POWER_ENFORCED, "Power limit in force: the least of all limiters."},
    {"power.default_limit", NULL, "W", read_power, POWER_DEFAULT, "Power limit after the driver loads."},
    {"power.min_limit", NULL, "W", read_power, POWER_MIN, "Least power limit that can be set."},
    {"power.max_limit", NULL, "W", read_power, POWER_MAX, "Highest power limit that can be set."},
    {"clocks.current.graphics", "clocks.gr", "MHz", read_clock, CLOCK_NOW + 0, "Clock of the shaders."},
    {"clocks.current.sm", "clocks.sm", "MHz", read_clock, CLOCK_NOW + 1, "Clock of the multiprocessors."},
    {"clocks.current.memory", "clocks.mem", "MHz", read_clock, CLOCK_NOW + 2, "Clock of the memory."},
    {"clocks.current.video", "clocks.video", "MHz", read_clock, CLOCK_NOW + 3, "Clock of the video engines."},
    {"clocks.applications.graphics", "clocks.applications.gr", "MHz", read_clock, CLOCK_APP + 0, "Applications clock of the shaders."},
    {"clocks.applications.memory", "clocks.applications.mem", "MHz", read_clock, CLOCK_APP + 2, "Applications clock of the memory."},
    {"clocks.default_applications.graphics", "clocks.default_applications.gr", "MHz", read_clock, CLOCK_APP_DEFAULT + 0, "Default applications clock of the shaders."},
    {"clocks.default_applications.memory", "clocks.default_applications.mem", "MHz", read_clock, CLOCK_APP_DEFAULT + 2, "Default applications clock of the memory."},
    {"clocks.max.graphics", "clocks.max.gr", "MHz", read_clock, CLOCK_MAX + 0, "Highest clock of the shaders."},
    {"clocks.max.sm", NULL, "MHz", read_clock, CLOCK_MAX + 1, "Highest clock of the multiprocessors."},
    {"clocks.max.memory", "clocks.max.mem", "MHz", read_clock, CLOCK_MAX + 2, "Highest clock of the memory."},
    {"mig.mode.current", NULL, NULL, read_mig, 0, "MIG mode."},
    {"mig.mode.pending", NULL, NULL, read_mig, 1, "MIG mode after the next reset."},
    {"gsp.mode.current", NULL, NULL, read_absent, 0, "GSP firmware mode."},
    {"gsp.mode.default", NULL, NULL, read_absent, 0, "Default GSP firmware mode."},
    {"gsp.version", "gsp_firmware_version", NULL, read_gsp, 0, "Version of the GSP firmware."},
    {"c2c.mode", NULL, NULL, read_absent, 0, "Chip-to-chip mode."},
    {"fabric.state", NULL, NULL, read_fabric, 0, "Registration with the NVLink fabric."},
    {"fabric.status", NULL, NULL, read_fabric, 1, "Result of the registration with the NVLink fabric."},
    {"board.part_number", NULL, NULL, read_text, TEXT_PART, "Part number of the board."},
    {"numa_node", NULL, NULL, read_number, NUMBER_NUMA, "NUMA node of the GPU's memory."},
};
const size_t gpu_field_count = sizeof gpu_fields / sizeof *gpu_fields;

int show_query(const struct selection *s, const char *fields, bool header, bool units)
{
    struct csv csv = {.header = header, .units = units};
    int code = csv_choose(&csv, gpu_fields, gpu_field_count, fields);
    if (code)
        return code;
    csv_header(&csv);
    for (unsigned i = 0; i < s->count; i++)
        if (s->gpu[i].status == NVML_SUCCESS)
            csv_row(&csv, &(struct cell){.device = s->gpu[i].device, .index = s->gpu[i].index, .total = s->total});
    return report_lost(s);
}

int show_query_help(void)
{
    csv_help(gpu_fields, gpu_field_count, "--query-gpu");
    return 0;
}
