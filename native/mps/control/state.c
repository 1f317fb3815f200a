/* What all parts of the control daemon share: its state, its log, and how numbers and limits are read. */
#define _GNU_SOURCE
#include "control.h"

struct daemon control = {.log = -1, .also = -1, .listener = -1, .defaults.percent = 100};

void note(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    kg_mps_write_log(control.log, control.also, "Control", format, values);
    va_end(values);
}

bool number(const char *text, long most, long *value)
{
    char *end;
    errno = 0;
    *value = strtol(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && !errno && *value <= most;
}

/* The documentation takes a UUID for a device, too, but the vendor's device plugin has found that it has no effect: here
 * it is refused, so that nobody relies on it. */
bool set_limit(struct allowance *allowance, const char *device, const char *value)
{
    long index;
    if (!number(device, MOST_DEVICES - 1, &index) || strlen(value) >= VALUE || !kg_mps_bytes(value))
        return false;
    strcpy(allowance->limit[index], value);
    return true;
}
