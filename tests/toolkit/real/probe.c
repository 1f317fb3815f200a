/* Loads each library that it is told of by its bare name, as programs do, and prints where each one came from; then the
 * device nodes that it can open. Exit status 1 when a library can't be loaded.
 *
 *     probe LIBRARY... -- DEVICE...
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int load(const char *name)
{
    void *library = dlopen(name, RTLD_NOW);
    struct link_map *map;
    if (!library || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) {
        printf("%s: %s\n", name, dlerror());
        return 1;
    }
    printf("%s: %s\n", name, map->l_name);
    return 0;
}

static void open_node(const char *path)
{
    int opened = open(path, O_RDWR);
    printf("%s: %s\n", path, opened < 0 ? strerror(errno) : "open");
    if (opened >= 0)
        close(opened);
}

int main(int count, char **words)
{
    int failed = 0, devices = 0;
    for (int at = 1; at < count; at++) {
        if (strcmp(words[at], "--") == 0)
            devices = 1;
        else if (devices)
            open_node(words[at]);
        else
            failed |= load(words[at]);
    }
    return failed;
}
