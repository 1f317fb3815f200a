/*
 * A stand-in for libhlml.so, the management library of Gaudi accelerators. It answers from the text files of a simulated
 * node: hlml/<PCI address> beside the state file that KGPU_HW_STATE names, with a line "key value" for each figure.
 * A file that is a pipe blocks its reader, as a firmware that does not answer does. Handles are slots of one table.
 */
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define API __attribute__((visibility("default")))
#define MOST 64
#define ADDRESS 15

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9, LOST = 15,
       NO_DATA = 21 };

typedef struct { char bus[32]; } device_t;
typedef struct { unsigned int aip; } utilization_t;
typedef struct { unsigned long long free, total, used; } memory_t;
typedef struct {
	unsigned int bus;
	char bus_id[ADDRESS];
	unsigned int device, domain, pci_device_id;
	char link_speed[10], link_width[10];
} pci_info_t;

static device_t table[MOST];
static unsigned int count;
static bool ready;
static char root[3072];

static int read_text(const device_t *device, const char *key, char *out, size_t size)
{
	char path[sizeof root + 64], line[512];
	size_t length = strlen(key);
	int found = NO_DATA;

	if (!ready)
		return UNINITIALIZED;
	if (device < table || device >= table + count)
		return INVALID;
	snprintf(path, sizeof path, "%s/hlml/%s", root, device->bus);
	FILE *file = fopen(path, "r");
	if (!file)
		return LOST;
	while (fgets(line, sizeof line, file)) {
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "lost 1") && strcmp(key, "minor")) {
			found = LOST;
			break;
		}
		if (!strncmp(line, key, length) && line[length] == ' ') {
			found = strlen(line + length + 1) < size ? OK : TOO_SMALL;
			snprintf(out, size, "%s", line + length + 1);
		}
	}
	fclose(file);
	return found;
}

static int read_number(const device_t *device, const char *key, unsigned long long *out)
{
	char text[32];
	int code = read_text(device, key, text, sizeof text);

	if (!code)
		*out = strtoull(text, NULL, 10);
	return code;
}

static int read_int(const device_t *device, const char *key, unsigned int *out)
{
	unsigned long long value = 0;
	int code = out ? read_number(device, key, &value) : INVALID;

	if (!code)
		*out = (unsigned int)value;
	return code;
}

static int compare(const void *a, const void *b)
{
	return strcmp(((const device_t *)a)->bus, ((const device_t *)b)->bus);
}

API int hlml_init(void)
{
	const char *state = getenv("KGPU_HW_STATE");
	char path[sizeof root + 64];
	struct stat about;
	struct dirent *entry;

	snprintf(root, sizeof root, "%s", state ? state : "");
	char *slash = strrchr(root, '/');
	if (!slash)
		return NO_DRIVER;
	*slash = 0;
	snprintf(path, sizeof path, "%s/sys/module/habanalabs", root);
	if (stat(path, &about))
		return NO_DRIVER;
	snprintf(path, sizeof path, "%s/hlml", root);
	DIR *folder = opendir(path);
	if (!folder)
		return NO_DRIVER;
	count = 0;
	while (count < MOST && (entry = readdir(folder)))
		if (strlen(entry->d_name) == 12 && entry->d_name[0] != '.')
			snprintf(table[count++].bus, sizeof table->bus, "%.31s", entry->d_name);
	closedir(folder);
	qsort(table, count, sizeof *table, compare);
	ready = true;
	return OK;
}

API int hlml_init_with_flags(unsigned int flags)
{
	(void)flags;
	return hlml_init();
}

API int hlml_shutdown(void)
{
	int code = ready ? OK : UNINITIALIZED;

	ready = false;
	return code;
}

API int hlml_device_get_count(unsigned int *out)
{
	if (!ready)
		return UNINITIALIZED;
	*out = count;
	return OK;
}

API int hlml_device_get_handle_by_index(unsigned int index, void **out)
{
	if (!ready)
		return UNINITIALIZED;
	if (index >= count)
		return INVALID;
	*out = &table[index];
	return OK;
}

API int hlml_device_get_handle_by_pci_bus_id(const char *address, void **out)
{
	if (!ready)
		return UNINITIALIZED;
	for (unsigned int i = 0; i < count; i++)
		if (!strcmp(table[i].bus, address)) {
			*out = &table[i];
			return OK;
		}
	return NOT_FOUND;
}

API int hlml_device_get_handle_by_UUID(const char *uuid, void **out)
{
	char own[96];

	if (!ready)
		return UNINITIALIZED;
	for (unsigned int i = 0; i < count; i++)
		if (!read_text(&table[i], "uuid", own, sizeof own) && !strcmp(own, uuid)) {
			*out = &table[i];
			return OK;
		}
	return NOT_FOUND;
}

#define TEXT(name, key) \
	API int name(void *device, char *out, unsigned int size) { return read_text(device, key, out, size); }
#define NUMBER(name, key) \
	API int name(void *device, unsigned int *out) { return read_int(device, key, out); }

TEXT(hlml_device_get_name, "name")
TEXT(hlml_device_get_uuid, "uuid")
TEXT(hlml_device_get_serial, "serial")
NUMBER(hlml_device_get_minor_number, "minor")
NUMBER(hlml_device_get_module_id, "module")
NUMBER(hlml_device_get_power_usage, "power")
NUMBER(hlml_device_get_power_management_default_limit, "power_limit")
NUMBER(hlml_device_get_pcie_replay_counter, "replays")
NUMBER(hlml_device_get_curr_pcie_link_generation, "link_generation")
NUMBER(hlml_device_get_curr_pcie_link_width, "link_width")
NUMBER(hlml_device_get_replaced_rows_pending_status, "rows_pending")

API int hlml_device_get_clock_info(void *device, int type, unsigned int *out)
{
	return type < 0 || type > 3 ? INVALID : type ? NOT_SUPPORTED : read_int(device, "clock", out);
}

API int hlml_device_get_max_clock_info(void *device, int type, unsigned int *out)
{
	return type < 0 || type > 3 ? INVALID : type ? NOT_SUPPORTED : read_int(device, "clock_highest", out);
}

API int hlml_device_get_utilization_rates(void *device, utilization_t *out)
{
	return read_int(device, "utilization", &out->aip);
}

API int hlml_device_get_memory_info(void *device, memory_t *out)
{
	int code = read_number(device, "memory_total", &out->total);

	if (!code)
		code = read_number(device, "memory_used", &out->used);
	out->free = out->total - out->used;
	return code;
}

API int hlml_device_get_temperature(void *device, int sensor, unsigned int *out)
{
	const char *keys[] = { "temperature_chip", "temperature_board" };

	return sensor < 0 || sensor > 1 ? NOT_SUPPORTED : read_int(device, keys[sensor], out);
}

API int hlml_device_get_temperature_threshold(void *device, int type, unsigned int *out)
{
	const char *keys[] = { "temperature_shutdown", "temperature_slowdown", "temperature_memory_highest",
			       "temperature_chip_highest" };

	return type < 0 || type > 3 ? INVALID : read_int(device, keys[type], out);
}

API int hlml_device_get_total_energy_consumption(void *device, unsigned long long *out)
{
	return read_number(device, "energy", out);
}

API int hlml_device_get_ecc_mode(void *device, int *current, int *pending)
{
	unsigned long long any;

	*current = *pending = 1;
	return read_number(device, "ecc_uncorrected", &any);
}

API int hlml_device_get_total_ecc_errors(void *device, int type, int counter, unsigned long long *out)
{
	if (counter < 0 || counter > 1)
		return INVALID;
	return type == 0   ? read_number(device, "ecc_corrected", out)
	       : type == 1 ? read_number(device, "ecc_uncorrected", out)
			   : INVALID;
}

API int hlml_device_get_pci_info(void *device, pci_info_t *out)
{
	unsigned long long id = 0, generation = 0, width = 0;
	int code = read_number(device, "device", &id);

	memset(out, 0, sizeof *out);
	if (code || read_number(device, "link_generation", &generation) || read_number(device, "link_width", &width))
		return code ? code : NO_DATA;
	const device_t *own = device;
	snprintf(out->bus_id, sizeof out->bus_id, "%.14s", own->bus);
	sscanf(own->bus, "%x:%x:%x", &out->domain, &out->bus, &out->device);
	out->pci_device_id = (unsigned int)id << 16 | 0x1da3;
	snprintf(out->link_speed, sizeof out->link_speed, "gen%u", (unsigned int)generation % 100);
	snprintf(out->link_width, sizeof out->link_width, "x%u", (unsigned int)width % 100);
	return OK;
}

API int hlml_device_get_pcie_throughput(void *device, int counter, unsigned int *out)
{
	return counter < 0 || counter > 1 ? INVALID : read_int(device, counter ? "pcie_rx" : "pcie_tx", out);
}

API int hlml_device_get_replaced_rows(void *device, int cause, unsigned int *out, void *addresses)
{
	(void)addresses;
	return cause < 0 || cause > 1 ? INVALID : read_int(device, cause ? "rows_double_bit" : "rows_single_bit", out);
}

API int hlml_get_mac_addr_info(void *device, unsigned long long *mask, unsigned long long *external)
{
	mask[1] = external[1] = 0;
	int code = read_number(device, "ports_mask", &mask[0]);

	return code ? code : read_number(device, "ports_external", &external[0]);
}

API int hlml_nic_get_link(void *device, unsigned int port, bool *up)
{
	unsigned long long mask = 0, down = 0;
	int code = read_number(device, "ports_mask", &mask);

	if (code || port >= 64 || !(mask >> port & 1))
		return code ? code : INVALID;
	code = read_number(device, "ports_down", &down);
	*up = !(down >> port & 1);
	return code;
}

API int hlml_get_hlml_version(char *out, unsigned int size)
{
	snprintf(out, size, "simulated");
	return OK;
}

API int hlml_get_driver_version(char *out, unsigned int size)
{
	char path[sizeof root + 64];

	if (!ready)
		return UNINITIALIZED;
	snprintf(path, sizeof path, "%s/sys/module/habanalabs/version", root);
	FILE *file = fopen(path, "r");
	if (!file)
		return NO_DRIVER;
	if (!fgets(out, (int)size, file))
		out[0] = 0;
	out[strcspn(out, "\n")] = 0;
	fclose(file);
	return OK;
}
