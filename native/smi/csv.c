/* The comma-separated tables of --query-gpu and --query-compute-apps: chosen fields, header, rows. */
#define _GNU_SOURCE
#include "smi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *na_text(nvmlReturn_t code)
{
    static const struct { nvmlReturn_t code; const char *text; } texts[] = {
        {NVML_ERROR_NOT_SUPPORTED, "[N/A]"}, {NVML_ERROR_FUNCTION_NOT_FOUND, "[N/A]"}, {NVML_ERROR_NOT_FOUND, "[N/A]"},
        {NVML_ERROR_NO_DATA, "[N/A]"}, {NVML_ERROR_NO_PERMISSION, "[Insufficient Permissions]"},
        {NVML_ERROR_GPU_IS_LOST, "[GPU is lost]"}, {NVML_ERROR_RESET_REQUIRED, "[GPU requires reset]"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].code == code)
            return texts[i].text;
    return "[Unknown Error]";
}

static const struct field *find(const struct field *fields, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcasecmp(fields[i].name, name) == 0 || (fields[i].alias && strcasecmp(fields[i].alias, name) == 0))
            return &fields[i];
    return NULL;
}

int csv_choose(struct csv *csv, const struct field *fields, size_t count, const char *list)
{
    char *copy = strdup(list), *rest = copy;
    int code = copy ? 0 : NVML_ERROR_MEMORY;
    for (char *name = strsep(&rest, ","); name && code == 0; name = strsep(&rest, ",")) {
        name += strspn(name, " ");
        name[strcspn(name, " ")] = 0;
        const struct field *field = find(fields, count, name);
        if (!field || csv->count == sizeof csv->chosen / sizeof *csv->chosen) {
            printf("Field \"%s\" is not a valid field to query.\n\n", name);
            code = EXIT_BAD_USE;
        } else {
            csv->chosen[csv->count++] = field;
        }
    }
    free(copy);
    return code;
}

void csv_header(const struct csv *csv)
{
    if (!csv->header)
        return;
    for (size_t i = 0; i < csv->count; i++) {
        const struct field *field = csv->chosen[i];
        printf("%s%s", i ? ", " : "", field->name);
        if (field->unit)
            printf(" [%s]", field->unit);
    }
    putchar('\n');
}

void csv_row(const struct csv *csv, const struct cell *cell)
{
    for (size_t i = 0; i < csv->count; i++) {
        const struct field *field = csv->chosen[i];
        char value[256] = "";
        nvmlReturn_t rc = field->read(cell, field->argument, value, sizeof value);
        fputs(i ? ", " : "", stdout);
        if (rc != NVML_SUCCESS)
            fputs(na_text(rc), stdout);
        else if (field->unit && csv->units)
            printf("%s %s", value, field->unit);
        else
            fputs(value, stdout);
    }
    putchar('\n');
}

void csv_help(const struct field *fields, size_t count, const char *option)
{
    printf("List of valid properties to query for the switch \"%s=\":\n\n", option);
    for (size_t i = 0; i < count; i++) {
        printf("\"%s\"", fields[i].name);
        if (fields[i].alias)
            printf(" or \"%s\"", fields[i].alias);
        printf("\n%s\n\n", fields[i].help);
    }
}
