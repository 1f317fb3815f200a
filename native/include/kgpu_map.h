/* Mapping the simulated driver's state, for every native program that uses it.
 *
 * Header only. Promises: opening checks magic, version and size, so that a missing, foreign or truncated file is an
 * error and not a crash; the write lock is dropped by the kernel when its holder dies; a process that sits in a slot
 * of the process table holds a POSIX lock on the slot's byte, so that its death ends the slot and the kernel tells
 * each reader its pid in the reader's own pid namespace (as the real driver does).
 * Because POSIX locks end when the process closes ANY descriptor of the file, the descriptor is kept for the life of
 * the process: never close `fd`.
 */
#ifndef KGPU_MAP_H
#define KGPU_MAP_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before the first include"
#endif
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kgpu_load.h"
#include "kgpu_state.h"

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#define F_OFD_SETLKW 38
#endif

#define KG_DEFAULT_STATE "/run/kgpu/hw/state"
#define KG_MAYBE __attribute__((unused)) static

typedef struct kg_map {
    kg_state *state; /* the mapping, NULL when not open */
    int fd;
    int writable;
    int host;        /* device nodes come from dirname(state)/dev: a whole driver root */
    dev_t dev;       /* identity of the mapped file */
    ino_t ino;
    pid_t pid;       /* who opened fd: a fork must not share the lock's owner */
    char dev_dir[1024];
    pthread_mutex_t mutex;
} kg_map;

#define KG_MAP_INIT {.fd = -1, .mutex = PTHREAD_MUTEX_INITIALIZER}

KG_MAYBE const char *kg_state_path(void) {
    const char *path = getenv("KGPU_HW_STATE");
    return path && *path ? path : KG_DEFAULT_STATE;
}

/* Map the state file, or keep the map when it is still the same file. 0, or -1 when there is no usable file. */
KG_MAYBE int kg_map_open(kg_map *m) {
    const char *path = kg_state_path();
    struct stat at, dir;
    if (m->state && stat(path, &at) == 0 && at.st_dev == m->dev && at.st_ino == m->ino &&
        at.st_size >= (off_t)sizeof(kg_state))
        goto folder;
    int writable = 1, fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        writable = 0;
        fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    if (fd < 0) return -1;
    kg_state *s = MAP_FAILED;
    if (fstat(fd, &at) == 0 && S_ISREG(at.st_mode) && at.st_size == (off_t)sizeof(kg_state))
        s = mmap(NULL, sizeof(kg_state), writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (s == MAP_FAILED) {
        close(fd);
        return -1;
    }
    if (s->magic != KG_MAGIC || s->version != KG_VERSION || s->size != sizeof(kg_state) || s->gpu_count > KG_MAX_GPUS) {
        munmap(s, sizeof(kg_state));
        close(fd);
        return -1;
    }
    /* An earlier map stays: another thread may still read it, and its locks hold. */
    m->state = s, m->fd = fd, m->writable = writable, m->dev = at.st_dev, m->ino = at.st_ino, m->pid = getpid();
folder:;
    const char *slash = strrchr(path, '/');
    int length = slash ? (int)(slash - path) : 1;
    int n = snprintf(m->dev_dir, sizeof m->dev_dir, "%.*s/dev", length, slash ? path : ".");
    m->host = n > 0 && n < (int)sizeof m->dev_dir && stat(m->dev_dir, &dir) == 0 && S_ISDIR(dir.st_mode);
    if (!m->host) strcpy(m->dev_dir, "/dev");
    return 0;
}

/* The file under the map was cut short or replaced: touching the map might be fatal, or shows what nobody changes. */
KG_MAYBE int kg_map_broken(const kg_map *m) {
    struct stat at;
    return !m->state || fstat(m->fd, &at) != 0 || at.st_size < (off_t)sizeof(kg_state);
}

KG_MAYBE void kg_flock(const kg_map *m, short kind) {
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    while (fcntl(m->fd, F_OFD_SETLKW, &lock) != 0 && errno == EINTR) {
    }
}

/* A forked child has its parent's open file, and with it the parent's lock: get an own one. */
KG_MAYBE void kg_after_fork(kg_map *m) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", m->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) m->fd = fd;
    pthread_mutex_init(&m->mutex, NULL);
    m->pid = getpid();
}

/* Take the node's write lock. 0, or -1 where the file can't be written (then nothing is locked). */
KG_MAYBE int kg_lock(kg_map *m) {
    if (!m->state || !m->writable) return -1;
    if (m->pid != getpid()) kg_after_fork(m);
    pthread_mutex_lock(&m->mutex);
    kg_flock(m, F_WRLCK);
    return 0;
}

KG_MAYBE void kg_unlock(kg_map *m) {
    m->state->generation++;
    kg_flock(m, F_UNLCK);
    pthread_mutex_unlock(&m->mutex);
}

KG_MAYBE void kg_wake(kg_state *s) {
    __atomic_add_fetch(&s->event_futex, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &s->event_futex, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}

/* Append an event and wake the waiters. Call with the lock held. */
KG_MAYBE void kg_push_event(kg_state *s, uint32_t gpu, uint64_t type, uint64_t data, uint32_t gi, uint32_t ci) {
    uint64_t seq = s->event_head + 1;
    kg_event *e = &s->event[(seq - 1) % KG_EVENT_RING];
    __atomic_store_n(&e->seq, 0, __ATOMIC_SEQ_CST);
    e->gpu = gpu, e->type = type, e->data = data, e->gi_id = gi, e->ci_id = ci, e->time_us = kg_now_ns(s) / 1000;
    __atomic_store_n(&e->seq, seq, __ATOMIC_SEQ_CST);
    __atomic_store_n(&s->event_head, seq, __ATOMIC_SEQ_CST);
    kg_wake(s);
}

/* ---- what this process may see ---- */

KG_MAYBE int kg_node_exists(const kg_map *m, const char *name) {
    char path[1200];
    struct stat at;
    snprintf(path, sizeof path, "%s/%s", m->dev_dir, name);
    return stat(path, &at) == 0;
}

KG_MAYBE int kg_gpu_visible(const kg_map *m, uint32_t minor) {
    char name[32];
    snprintf(name, sizeof name, "nvidia%u", minor);
    return kg_node_exists(m, name);
}

/* Minors of /dev/nvidia-caps as the driver numbers them: config 1, monitor 2, then 9 per GPU instance, 15 of those
 * per GPU. `ci` NO_INSTANCE asks for the GPU instance's own node. */
KG_MAYBE uint32_t kg_cap_minor(uint32_t gpu_minor, uint32_t gi, uint32_t ci) {
    return 3 + gpu_minor * 135 + gi * 9 + (ci == KG_NO_INSTANCE ? 0 : ci + 1);
}

/* A slice needs both its nodes; a driver root without any capability node counts as having all of them. */
KG_MAYBE int kg_mig_visible(const kg_map *m, uint32_t gpu_minor, uint32_t gi, uint32_t ci) {
    char name[64];
    if (m->host && !kg_node_exists(m, "nvidia-caps")) return 1;
    snprintf(name, sizeof name, "nvidia-caps/nvidia-cap%u", kg_cap_minor(gpu_minor, gi, KG_NO_INSTANCE));
    if (!kg_node_exists(m, name)) return 0;
    snprintf(name, sizeof name, "nvidia-caps/nvidia-cap%u", kg_cap_minor(gpu_minor, gi, ci));
    return kg_node_exists(m, name);
}

/* Have a device node open as a program on the real driver has it, so that /proc/PID/fd tells who uses a GPU. O_PATH: a
 * node without a driver behind it can't be opened otherwise. -1 where the node is missing. */
KG_MAYBE int kg_node_hold(const kg_map *m, const char *name) {
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", m->dev_dir, name);
    return open(path, O_PATH | O_CLOEXEC);
}

KG_MAYBE int kg_gpu_hold(const kg_map *m, uint32_t minor) {
    char name[32];
    snprintf(name, sizeof name, "nvidia%u", minor);
    return kg_node_hold(m, name);
}

/* Begin (F_RDLCK) or stop (F_UNLCK) being an NVML client of a GPU; the process's death stops it, too. */
KG_MAYBE void kg_client_set(const kg_map *m, uint32_t gpu, short kind) {
    struct flock lock = {
        .l_type = kind, .l_whence = SEEK_SET, .l_start = (off_t)(KG_CLIENT_LOCK_BASE + gpu), .l_len = 1};
    fcntl(m->fd, F_OFD_SETLK, &lock);
}

/* Does another process use NVML on this GPU? */
KG_MAYBE int kg_client_other(const kg_map *m, uint32_t gpu) {
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)(KG_CLIENT_LOCK_BASE + gpu), .l_len = 1};
    return fcntl(m->fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* ---- processes ---- */

KG_MAYBE off_t kg_proc_byte(uint32_t gpu, uint32_t slot) {
    return (off_t)(KG_PROC_LOCK_BASE + (uint64_t)gpu * KG_MAX_PROCESSES + slot);
}

/* Pid of a slot's owner in this process's pid namespace; 0 when it lives outside of it; -1 when it is dead. */
KG_MAYBE int kg_proc_owner(const kg_map *m, uint32_t gpu, uint32_t slot) {
    const kg_process *p = &m->state->gpu[gpu].process[slot];
    if (!p->live) return (int)p->pid;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = kg_proc_byte(gpu, slot), .l_len = 1};
    if (fcntl(m->fd, F_OFD_GETLK, &lock) != 0) return (int)p->pid;
    return lock.l_type == F_UNLCK ? -1 : lock.l_pid;
}

/* Drop the slots whose owner died, so that their memory and load end. Takes the lock only when there is one. */
KG_MAYBE void kg_proc_reap(kg_map *m, uint32_t gpu) {
    kg_gpu *g = &m->state->gpu[gpu];
    int dead = 0;
    for (uint32_t i = 0; i < KG_MAX_PROCESSES && !dead; i++)
        dead = g->process[i].used && g->process[i].live && kg_proc_owner(m, gpu, i) < 0;
    if (!dead || kg_lock(m) != 0) return;
    uint64_t now = kg_now_ns(m->state);
    uint32_t level = kg_load_settle(m->state, g, now);
    for (uint32_t i = 0; i < KG_MAX_PROCESSES; i++)
        if (g->process[i].used && g->process[i].live && kg_proc_owner(m, gpu, i) < 0)
            memset(&g->process[i], 0, sizeof g->process[i]);
    kg_load_head(m->state, g, now, level);
    kg_unlock(m);
}

/* Enter this process into the table; `want` gives kind, instance ids, memory, utilisation. The slot, or -1. */
KG_MAYBE int kg_proc_add(kg_map *m, uint32_t gpu, const kg_process *want) {
    if (gpu >= KG_MAX_GPUS) return -1;
    kg_proc_reap(m, gpu);
    if (kg_lock(m) != 0) return -1;
    kg_gpu *g = &m->state->gpu[gpu];
    int found = -1;
    uint64_t now = kg_now_ns(m->state);
    uint32_t level = kg_load_settle(m->state, g, now);
    for (uint32_t i = 0; i < KG_MAX_PROCESSES && found < 0; i++) {
        if (g->process[i].used) continue;
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = kg_proc_byte(gpu, i), .l_len = 1};
        if (fcntl(m->fd, F_SETLK, &lock) != 0) continue;
        kg_process p = *want;
        p.used = 1, p.live = 1, p.pid = (uint32_t)getpid(), p.start_us = now / 1000;
        if (!p.name[0]) {
            ssize_t n = readlink("/proc/self/exe", p.name, sizeof p.name - 1);
            p.name[n > 0 ? n : 0] = 0;
        }
        g->process[i] = p;
        found = (int)i;
    }
    kg_load_head(m->state, g, now, level);
    kg_unlock(m);
    return found;
}

/* Change the busy share that an own slot's kernels cause. */
KG_MAYBE void kg_proc_busy(kg_map *m, uint32_t gpu, int slot, uint32_t sm_util) {
    if (slot < 0 || slot >= (int)KG_MAX_PROCESSES || gpu >= KG_MAX_GPUS || kg_lock(m) != 0) return;
    kg_gpu *g = &m->state->gpu[gpu];
    uint64_t now = kg_now_ns(m->state);
    uint32_t level = kg_load_settle(m->state, g, now);
    g->process[slot].sm_util = sm_util;
    kg_load_head(m->state, g, now, level);
    kg_unlock(m);
}

/* Leave the table. */
KG_MAYBE void kg_proc_remove(kg_map *m, uint32_t gpu, int slot) {
    if (slot < 0 || slot >= (int)KG_MAX_PROCESSES || gpu >= KG_MAX_GPUS || kg_lock(m) != 0) return;
    kg_gpu *g = &m->state->gpu[gpu];
    uint64_t now = kg_now_ns(m->state);
    uint32_t level = kg_load_settle(m->state, g, now);
    memset(&g->process[slot], 0, sizeof(kg_process));
    struct flock lock = {
        .l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = kg_proc_byte(gpu, (uint32_t)slot), .l_len = 1};
    fcntl(m->fd, F_SETLK, &lock);
    kg_load_head(m->state, g, now, level);
    kg_unlock(m);
}

/* ---- instances ---- */

KG_MAYBE kg_gi *kg_find_gi(kg_gpu *g, uint32_t id) {
    for (uint32_t i = 0; i < KG_MAX_GI; i++)
        if (g->gi[i].used && g->gi[i].id == id && g->gi[i].row < KG_MAX_GI_PROFILES) return &g->gi[i];
    return NULL;
}

KG_MAYBE kg_ci *kg_find_ci(kg_gpu *g, uint32_t gi, uint32_t id) {
    for (uint32_t i = 0; i < KG_MAX_CI; i++)
        if (g->ci[i].used && g->ci[i].gi_id == gi && g->ci[i].id == id && g->ci[i].row < KG_MAX_CI_PROFILES)
            return &g->ci[i];
    return NULL;
}

/* Copy a fixed text field that may lack its terminating zero. */
KG_MAYBE void kg_text(char *out, size_t room, const char *field, size_t size) {
    size_t n = strnlen(field, size);
    if (n >= room) n = room - 1;
    memcpy(out, field, n);
    out[n] = 0;
}

#endif
