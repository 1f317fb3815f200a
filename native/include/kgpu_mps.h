/* What the parts of the simulated Multi-Process Service share: where they meet, how they speak, how they write logs.
 *
 * Paths, variables and the log's form are those of NVIDIA's MPS documentation and of published logs. What goes over the
 * sockets is the simulator's own: one line of text is one message.
 *   to the daemon   `client DEV INODE` (which state file the caller has), or the lines of a user's commands
 *   to a client     `server NAME` (a socket in the pipe directory), `refuse CODE`, or `other` (another node's daemon)
 *   to a server     `client`, `open DEVICE`, `close DEVICE`, `fault DEVICE` from clients; see control.h for the daemon's
 * Header only. */
#ifndef KGPU_MPS_H
#define KGPU_MPS_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before the first include"
#endif
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define KG_MPS_SHARED __attribute__((unused)) static
#define KG_MPS_CONTROL "control"
#define KG_MPS_LINE 256

enum { KG_MPS_CONNECTION_FAILED = 805, KG_MPS_SERVER_NOT_READY = 807, KG_MPS_MAX_CLIENTS = 808, KG_MPS_TERMINATED = 810 };

KG_MPS_SHARED const char *kg_mps_folder(const char *variable, const char *usual) {
    const char *value = getenv(variable);
    return value && *value ? value : usual;
}

KG_MPS_SHARED const char *kg_mps_pipes(void) { return kg_mps_folder("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"); }
KG_MPS_SHARED const char *kg_mps_logs(void) { return kg_mps_folder("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"); }

/* -1 where the path has more bytes than a socket's address can hold, as with the real daemon. */
KG_MPS_SHARED int kg_mps_address(struct sockaddr_un *out, const char *name) {
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    int length = snprintf(out->sun_path, sizeof out->sun_path, "%s/%s", kg_mps_pipes(), name);
    if (length > 0 && length < (int)sizeof out->sun_path) return 0;
    errno = ENAMETOOLONG;
    return -1;
}

/* A connected socket, or -1. */
KG_MPS_SHARED int kg_mps_connect(const char *name) {
    struct sockaddr_un at;
    if (kg_mps_address(&at, name) != 0) return -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* A connection that waits, and who has made it; -1 for none. */
KG_MPS_SHARED int kg_mps_accept(int listener, struct ucred *peer) {
    socklen_t size = sizeof *peer;
    *peer = (struct ucred){.uid = (uid_t)-1};
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, peer, &size);
    return fd;
}

/* Send all of a text; 0, or -1 when the other side has gone. */
KG_MPS_SHARED int kg_mps_send(int fd, const char *text, size_t length) {
    while (length) {
        ssize_t sent = send(fd, text, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return -1;
        text += sent, length -= (size_t)sent;
    }
    return 0;
}

__attribute__((unused, format(printf, 2, 3))) static int kg_mps_say(int fd, const char *format, ...) {
    char line[KG_MPS_LINE];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(line, sizeof line - 1, format, values);
    va_end(values);
    if (length < 0 || length >= (int)sizeof line - 1) return -1;
    line[length++] = '\n';
    return kg_mps_send(fd, line, (size_t)length);
}

/* The bytes of a connection that are not yet a whole line. */
struct kg_mps_input { char data[1024]; size_t have; };

/* The next line, without its end. 1; 0: none yet (`flags` has MSG_DONTWAIT); -1: the other side has gone or sends nonsense. */
KG_MPS_SHARED int kg_mps_line(int fd, struct kg_mps_input *in, char out[KG_MPS_LINE], int flags) {
    for (;;) {
        char *end = memchr(in->data, '\n', in->have);
        if (end) {
            size_t length = (size_t)(end - in->data);
            if (length >= KG_MPS_LINE) return -1;
            memcpy(out, in->data, length);
            out[length] = 0;
            in->have -= length + 1;
            memmove(in->data, end + 1, in->have);
            return 1;
        }
        if (in->have == sizeof in->data) return -1;
        ssize_t got = recv(fd, in->data + in->have, sizeof in->data - in->have, flags);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return flags & MSG_DONTWAIT ? 0 : -1;
        if (got <= 0) return -1;
        in->have += (size_t)got;
    }
}

/* `16G` or `512M` in bytes; 0 where it is neither ("an integer followed by G or M"). */
KG_MPS_SHARED unsigned long long kg_mps_bytes(const char *text) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    int shift = *end == 'G' ? 30 : *end == 'M' ? 20 : 0;
    if (*text < '0' || *text > '9' || errno || !shift || end[1] || value > ULLONG_MAX >> shift) return 0;
    return value << shift;
}

/* A share of the threads in percent, or 0 where it is none. */
KG_MPS_SHARED double kg_mps_percent(const char *text) {
    char *end;
    double value = strtod(text, &end);
    return *text >= '0' && *text <= '9' && !*end && value > 0 && value <= 100 ? value : 0;
}

/* Write `[2026-02-06 09:34:17.770 Control   261] ...` to up to two files; a negative descriptor is none. */
KG_MPS_SHARED void kg_mps_write_log(int file, int also, const char *who, const char *format, va_list values) {
    char line[1024], when[32];
    struct timespec now;
    struct tm local;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
    int head = snprintf(line, sizeof line, "[%s.%03ld %s %5d] ", when, now.tv_nsec / 1000000, who, (int)getpid());
    int text = vsnprintf(line + head, sizeof line - (size_t)head - 1, format, values);
    size_t length = (size_t)head + (text < 0 ? 0 : (size_t)text);
    if (length > sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    const int files[] = {file, also};
    for (size_t i = 0; i < 2; i++)
        if (files[i] >= 0 && write(files[i], line, length) < 0) continue; /* a full disk stops no daemon */
}

#if defined(__aarch64__)
#define KG_MPS_LIBRARIES "usr/lib/aarch64-linux-gnu"
#else
#define KG_MPS_LIBRARIES "usr/lib/x86_64-linux-gnu"
#endif

/* A program that lies in a simulated driver root uses that root's state where no other is named; its root, or "". */
KG_MPS_SHARED const char *kg_mps_own_root(void) {
    static char root[PATH_MAX];
    char state[PATH_MAX + 8];
    ssize_t length = readlink("/proc/self/exe", root, sizeof root - 1);
    root[length > 0 ? length : 0] = 0;
    for (int level = 0; level < 3; level++) { /* <root>/usr/bin/program */
        char *slash = strrchr(root, '/');
        if (!slash) return "";
        *slash = 0;
    }
    snprintf(state, sizeof state, "%s/state", root);
    if (access(state, R_OK) != 0) return "";
    setenv("KGPU_HW_STATE", state, 0);
    return root;
}

#endif
