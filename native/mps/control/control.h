/* The insides of nvidia-cuda-mps-control: the program that takes commands, and the daemon that answers them.
 *
 * To a server the daemon says `threads PERCENT`, `limit DEVICE VALUE`, `terminate PID` and `stop`; a server tells
 * `device N UUID`, `ready`, `client PID`, `gone PID`, `on PID DEVICE`, `off PID DEVICE`, `fault` and `active`. */
#ifndef KGPU_MPS_CONTROL_H
#define KGPU_MPS_CONTROL_H

#include "kgpu_mps.h"

#include <stdbool.h>
#include <sys/types.h>

enum { MOST_DEVICES = 64, MOST_SERVERS = 8, MOST_CLIENTS = 512, MOST_CONNECTIONS = 512, VALUE = 32 };

/* What a client may have; a server begins with the daemon's. */
struct allowance {
    double percent;
    char limit[MOST_DEVICES][VALUE]; /* as it was given, "" where there is none */
};

struct server_client { int pid; unsigned long long on; /* bit per device */ };

enum server_state { SERVER_INITIALIZING, SERVER_ACTIVE, SERVER_FAULT };

struct server {
    pid_t pid;
    uid_t uid;
    int channel;
    char socket[32]; /* its name in the pipe directory */
    enum server_state state;
    bool stopping;
    int devices;
    char device[MOST_DEVICES][64]; /* UUIDs */
    int clients;
    struct server_client client[MOST_CLIENTS];
    struct allowance allowance;
    struct kg_mps_input input;
};

enum connection_kind { CONNECTION_NEW, CONNECTION_COMMANDS, CONNECTION_PENDING };

struct connection {
    int fd;
    enum connection_kind kind;
    int pid;
    uid_t uid;
    bool spoke;
    struct kg_mps_input input;
};

struct daemon {
    int log, also; /* control.log; where the daemon runs in the foreground, stderr */
    int listener, lock;
    bool quitting, forced;
    time_t deadline; /* of `quit -t`, on the monotonic clock; 0: none */
    struct allowance defaults;
    struct server server[MOST_SERVERS];
    int servers;
    struct connection *connection[MOST_CONNECTIONS];
    int connections;
};
extern struct daemon control;

/* ---- state.c ---- */
__attribute__((format(printf, 1, 2))) void note(const char *format, ...);
bool number(const char *text, long most, long *value); /* a whole number from 0 to `most`, and nothing else */
bool set_limit(struct allowance *allowance, const char *device, const char *value);

/* ---- daemon.c ---- */
int daemon_run(bool foreground, int ready); /* `ready`: a byte is written there once it listens */

/* ---- servers.c ---- */
struct server *server_of_pid(pid_t pid);
struct server *server_for(uid_t uid);       /* one that runs and takes clients of this user */
bool server_start(uid_t uid);
void server_stop(struct server *server, bool force);
void servers_quit(long seconds);            /* the daemon ends with them; <0: waits for the clients of all servers */
void server_read(struct server *server);    /* what it says, and its end */
void servers_tell_allowance(const struct server *server);

/* ---- commands.c ---- */
/* Carry out one line; the answer is the text in `out`, its status 0 or 1. */
int command_run(char *line, char *out, size_t room);
#endif
