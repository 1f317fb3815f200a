/* The objects that a program has pointers to: the list of those that are good. It knows nothing of what they are. */
#include "cu_sim.h"

void handle_add(struct handle *handle, enum handle_kind kind, CUcontext context)
{
    handle->kind = kind;
    handle->context = context;
    handle->next = sim.handles;
    sim.handles = handle;
}

void handle_remove(struct handle *handle)
{
    for (struct handle **at = &sim.handles; *at; at = &(*at)->next)
        if (*at == handle) {
            *at = handle->next;
            return;
        }
}

bool handle_ok(const void *handle, enum handle_kind kind)
{
    pthread_mutex_lock(&sim.mutex);
    const struct handle *at = sim.handles;
    while (at && at != handle)
        at = at->next;
    bool good = at && at->kind == kind;
    pthread_mutex_unlock(&sim.mutex);
    return good;
}

void handle_free_context(CUcontext context)
{
    for (struct handle **at = &sim.handles; *at;) {
        struct handle *handle = *at;
        if (handle->context == context) {
            *at = handle->next;
            if (handle->release)
                handle->release(handle);
            free(handle);
        } else {
            at = &handle->next;
        }
    }
}
