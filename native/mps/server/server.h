/* The insides of nvidia-cuda-mps-server. */
#ifndef KGPU_MPS_SERVER_H
#define KGPU_MPS_SERVER_H

#include "kgpu_mps.h"

#include <fcntl.h>
#include <stdbool.h>

struct pollfd;

/* Clients at a time on one GPU, by the manual page: 16 up to compute capability 6.0, 48 from 7.0. */
enum { MOST_CLIENTS = 48, MOST_CLIENTS_BEFORE_VOLTA = 16 };
enum { MOST_DEVICES = 64, MOST_CONNECTIONS = 512 };
enum { LISTEN_FD = 3, CHANNEL_FD = 4, LOG_FD = 5 };

struct mps_device {
    char name[160], uuid[64];
    unsigned long long limit; /* bytes that one client may allocate, 0: no limit */
    unsigned most;            /* clients at a time */
    unsigned clients;
    bool faulted; /* until all who were on it have gone */
};

struct mps_server {
    struct mps_device device[MOST_DEVICES];
    int devices;
    double percent; /* of the threads that one client may use */
    bool started, stopping;
    bool alone; /* the daemon has gone */
};
extern struct mps_server server;

/* ---- state.c ---- */
__attribute__((format(printf, 1, 2))) void note(const char *format, ...);
#define tell_daemon(...) (server.alone ? 0 : kg_mps_say(CHANNEL_FD, __VA_ARGS__))

/* ---- clients.c ---- */
int clients_count(void);
int clients_watch(struct pollfd *out); /* how many */
void clients_serve(const struct pollfd *watched, int count);
void clients_accept(void);
void clients_terminate(int pid);
#endif
