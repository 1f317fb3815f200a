/* The public symbols that nothing simulates: weak definitions, which a real one in another file replaces.
 *
 * A program that calls a symbol its NVML lacks dies in the loader, so every name must exist. It answers UNINITIALIZED
 * before init, FUNCTION_NOT_FOUND when the simulated driver is older than the function, else NOT_SUPPORTED.
 */
#include <stddef.h>

typedef int answer;
answer kg_ready(void);
int kg_driver_at_least(unsigned major);
answer kg_missing(unsigned since);

answer kg_missing(unsigned since) {
    answer rc = kg_ready();
    if (rc) return rc;
    return kg_driver_at_least(since) ? 3 : 13;
}

#define KG_SYMBOL(name, since)                                             \
    __attribute__((weak, visibility("default"))) answer name(void);        \
    __attribute__((weak, visibility("default"))) answer name(void) {       \
        return kg_missing(since);                                          \
    }
#include "symbols.h"
