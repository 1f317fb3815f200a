/* What the parts of the server share: its state and its log. */
#define _GNU_SOURCE
#include "server.h"

struct mps_server server = {.percent = 100};

void note(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    kg_mps_write_log(LOG_FD, 2, server.started ? "Server" : "Other", format, values);
    va_end(values);
}
