/* The readers behind --query-gpu's fields and what their arguments mean. */
#ifndef KGPU_SMI_READINGS_H
#define KGPU_SMI_READINGS_H

#include "smi.h"

enum { TEXT_NAME, TEXT_UUID, TEXT_SERIAL, TEXT_VBIOS, TEXT_INFOROM, TEXT_PART };
enum { PCI_BUS_ID, PCI_DOMAIN, PCI_BUS, PCI_DEVICE, PCI_DEVICE_ID, PCI_SUBSYSTEM };
enum { NUMBER_FAN, NUMBER_GEN, NUMBER_GEN_MAX, NUMBER_GEN_GPU_MAX, NUMBER_WIDTH, NUMBER_WIDTH_MAX, NUMBER_ACCOUNTING, NUMBER_REPLAYS, NUMBER_NUMA };
enum { MODE_PERSISTENCE, MODE_DISPLAY, MODE_DISPLAY_ACTIVE, MODE_ACCOUNTING, MODE_POWER };
enum { MEMORY_TOTAL, MEMORY_USED, MEMORY_FREE, MEMORY_RESERVED };
enum { UTIL_GPU, UTIL_MEMORY, UTIL_ENCODER, UTIL_DECODER, UTIL_JPEG, UTIL_OFA };
enum { POWER_DRAW, POWER_LIMIT, POWER_ENFORCED, POWER_DEFAULT, POWER_MIN, POWER_MAX };
enum { CLOCK_NOW = 0, CLOCK_MAX = 16, CLOCK_APP = 32, CLOCK_APP_DEFAULT = 48 };
enum { REASONS_SUPPORTED = 64, REASONS_ACTIVE = 65 };
enum { FIELD_MEMORY_TEMP = 82, FIELD_POWER_AVERAGE = 185, FIELD_POWER_INSTANT = 186, FIELD_RECOVERY = 230 };
#define ECC(kind, counter, place) ((kind) << 8 | (counter) << 4 | (place))
#define ECC_TOTAL 15

#define READS(name) nvmlReturn_t name(const struct cell *cell, U argument, char *out, size_t room)
READS(read_timestamp);
READS(read_index);
READS(read_count);
READS(read_driver);
READS(read_text);
READS(read_inforom);
READS(read_pci);
READS(read_number);
READS(read_mode);
READS(read_compute_mode);
READS(read_mig);
READS(read_ecc_mode);
READS(read_operation_mode);
READS(read_memory);
READS(read_utilization);
READS(read_temperature);
READS(read_temperature_limit);
READS(read_field);
READS(read_recovery);
READS(read_power);
READS(read_clock);
READS(read_pstate);
READS(read_reason);
READS(read_ecc);
READS(read_retired);
READS(read_remapped);
READS(read_histogram);
READS(read_capability);
READS(read_fabric);
READS(read_gsp);
READS(read_absent);
#undef READS

#endif
