/* The MPS control daemon: one loop over its socket, the connections and the servers.
 *
 * Promises: a client is never left waiting for a server that cannot come; what a server has told is taken in before a
 * command is answered; when the daemon ends by `quit` or a signal, its socket, its pid file and its servers are gone. */
#define _GNU_SOURCE
#include "control.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>

static volatile sig_atomic_t asked_to_end;

static void on_signal(int number)
{
    (void)number;
    asked_to_end = 1;
}

/* ---- start and end ---- */

static int failed(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
    fflush(stdout);
    return -1;
}

static void path_of(char out[PATH_MAX], const char *folder, const char *name) { snprintf(out, PATH_MAX, "%s/%s", folder, name); }

static int write_pid(void)
{
    char path[PATH_MAX], text[16];
    path_of(path, kg_mps_pipes(), "nvidia-cuda-mps-control.pid");
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int length = snprintf(text, sizeof text, "%d\n", (int)getpid());
    bool written = fd >= 0 && write(fd, text, (size_t)length) == length;
    if (fd >= 0)
        close(fd);
    return written ? 0 : -1;
}

/* Folders, log, socket. The socket of a daemon that has died is in the way of nobody. */
static int open_all(void)
{
    char path[PATH_MAX];
    struct sockaddr_un address;
    const char *pipes = kg_mps_pipes(), *logs = kg_mps_logs();
    if (mkdir(pipes, 0755) != 0 && errno != EEXIST)
        return failed(pipes);
    if (mkdir(logs, 0755) != 0 && errno != EEXIST)
        return failed(logs);
    path_of(path, pipes, "control_lock"); /* ends with its holder */
    control.lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (control.lock < 0)
        return failed(path);
    if (flock(control.lock, LOCK_EX | LOCK_NB) != 0) {
        puts("An instance of this daemon is already running");
        fflush(stdout);
        return -1;
    }
    path_of(path, logs, "control.log");
    control.log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (control.log < 0)
        return failed(path);
    kg_mps_address(&address, KG_MPS_CONTROL);
    unlink(address.sun_path);
    control.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (control.listener < 0 || bind(control.listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        chmod(address.sun_path, 0666) != 0 || listen(control.listener, 128) != 0 || write_pid() != 0)
        return failed(address.sun_path);
    return 0;
}

/* CUDA_MPS_ACTIVE_THREAD_PERCENTAGE and CUDA_MPS_PINNED_DEVICE_MEM_LIMIT (`0=1G,1=512M`) of the daemon are its defaults. */
static void take_environment(void)
{
    const char *percent = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), *limits = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    if (percent && kg_mps_percent(percent) > 0)
        control.defaults.percent = kg_mps_percent(percent);
    char *copy = limits ? strdup(limits) : NULL, *rest = NULL;
    for (char *entry = copy ? strtok_r(copy, ",", &rest) : NULL; entry; entry = strtok_r(NULL, ",", &rest)) {
        char *value = strchr(entry, '=');
        if (value) {
            *value = 0;
            set_limit(&control.defaults, entry, value + 1);
        }
    }
    free(copy);
}

static void greet(void)
{
    char path[PATH_MAX];
    path_of(path, kg_mps_pipes(), KG_MPS_CONTROL);
    note("Starting control daemon using socket %s", path);
    note("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=%s", kg_mps_pipes());
}

static void leave(void)
{
    char path[PATH_MAX];
    path_of(path, kg_mps_pipes(), KG_MPS_CONTROL);
    unlink(path);
    path_of(path, kg_mps_pipes(), "nvidia-cuda-mps-control.pid");
    unlink(path);
    note("Exit with status 0");
    /* Who waits for `quit` sees the connection close, and may start the next daemon at once: the kernel closes what an
     * ending process has open in no promised order. */
    close(control.lock);
}

/* ---- connections ---- */

static void close_connection(int at)
{
    struct connection *c = control.connection[at];
    if (c->kind == CONNECTION_COMMANDS)
        note("UI closed");
    else if (!c->spoke)
        note("User did not send valid credentials");
    close(c->fd);
    free(c);
    control.connection[at] = control.connection[--control.connections];
}

static void accept_connection(void)
{
    struct ucred peer;
    int fd = kg_mps_accept(control.listener, &peer);
    struct connection *made = fd >= 0 && control.connections < MOST_CONNECTIONS ? calloc(1, sizeof *made) : NULL;
    if (!made) {
        if (fd >= 0)
            close(fd);
        return;
    }
    made->fd = fd;
    made->pid = peer.pid;
    made->uid = peer.uid;
    control.connection[control.connections++] = made;
    note("Accepting connection...");
}

/* Does the caller use the GPUs of this daemon's node? Several simulated nodes can share a machine and its /tmp. */
static bool same_node(unsigned long long device, unsigned long long inode)
{
    struct stat at;
    const char *state = getenv("KGPU_HW_STATE");
    return stat(state && *state ? state : "/run/kgpu/hw/state", &at) == 0 && at.st_dev == device && at.st_ino == inode;
}

static void new_client(struct connection *c)
{
    struct server *server = server_for(c->uid);
    if (control.quitting) {
        kg_mps_say(c->fd, "refuse %d", KG_MPS_SERVER_NOT_READY);
    } else if (server && server->state == SERVER_FAULT) {
        note("NEW CLIENT %d from user %u: Server is in fault state", c->pid, c->uid);
        kg_mps_say(c->fd, "refuse %d", KG_MPS_SERVER_NOT_READY);
    } else if (server && server->state == SERVER_ACTIVE) {
        note("NEW CLIENT %d from user %u: Server already exists", c->pid, c->uid);
        kg_mps_say(c->fd, "server %s", server->socket);
    } else {
        note("NEW CLIENT %d from user %u: Server is not ready, push client to pending list", c->pid, c->uid);
        c->kind = CONNECTION_PENDING;
    }
}

/* One server at a time: another user's client waits until the server there is has ended (the manual page). */
static void serve_pending(void)
{
    for (int i = 0; i < control.connections; i++) {
        struct connection *c = control.connection[i];
        if (c->kind != CONNECTION_PENDING)
            continue;
        struct server *server = server_for(c->uid);
        if (server && server->state == SERVER_ACTIVE) {
            kg_mps_say(c->fd, "server %s", server->socket);
            c->kind = CONNECTION_NEW; /* has its answer */
        } else if (control.quitting) {
            kg_mps_say(c->fd, "refuse %d", KG_MPS_SERVER_NOT_READY);
            c->kind = CONNECTION_NEW;
        } else if (control.servers) {
            if (!server)
                server_stop(&control.server[0], false);
        } else if (!server_start(c->uid)) {
            kg_mps_say(c->fd, "refuse %d", KG_MPS_CONNECTION_FAILED);
            c->kind = CONNECTION_NEW;
        }
    }
}

/* 0, or -1 to close the connection. */
static int handle_line(struct connection *c, char *line)
{
    static char answer[1 << 16];
    unsigned long long device, inode;
    if (c->kind == CONNECTION_NEW && !c->spoke && sscanf(line, "client %llu %llu", &device, &inode) == 2) {
        c->spoke = true;
        if (!same_node(device, inode))
            return kg_mps_say(c->fd, "other"), 0;
        new_client(c);
        return 0;
    }
    if (c->kind == CONNECTION_PENDING || (c->kind == CONNECTION_NEW && c->spoke))
        return -1;
    if (c->kind == CONNECTION_NEW) {
        note("NEW UI");
        c->kind = CONNECTION_COMMANDS;
        c->spoke = true;
    }
    note("Cmd:%s", line);
    int status = command_run(line, answer, sizeof answer - 1);
    if (control.quitting && strncmp(line, "quit", 4) == 0)
        return 0; /* the answer is the end of the daemon */
    size_t length = strlen(answer);
    if (length)
        note("%.*s", (int)length - 1, answer);
    answer[length] = (char)status;
    return kg_mps_send(c->fd, answer, length + 1);
}

static void read_connection(int at)
{
    char line[KG_MPS_LINE];
    struct connection *c = control.connection[at];
    int got;
    while ((got = kg_mps_line(c->fd, &c->input, line, MSG_DONTWAIT)) > 0 && (got = handle_line(c, line)) == 0)
        ;
    if (got < 0)
        close_connection(at);
}

/* ---- the loop ---- */

/* Milliseconds until the deadline of `quit -t`; -1: none. Forces the servers to end when it has passed. */
static int wait_ms(void)
{
    struct timespec now;
    if (!control.deadline || control.forced)
        return -1;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec < control.deadline)
        return (int)(control.deadline - now.tv_sec) * 1000;
    control.forced = true;
    for (int i = 0; i < control.servers; i++)
        server_stop(&control.server[i], true);
    return -1;
}

static void turn(void)
{
    static struct pollfd watched[1 + MOST_SERVERS + MOST_CONNECTIONS];
    int servers = control.servers, connections = control.connections;
    watched[0] = (struct pollfd){.fd = control.listener, .events = POLLIN};
    for (int i = 0; i < servers; i++)
        watched[1 + i] = (struct pollfd){.fd = control.server[i].channel, .events = POLLIN};
    for (int i = 0; i < connections; i++)
        watched[1 + servers + i] = (struct pollfd){.fd = control.connection[i]->fd, .events = POLLIN};
    int ms = wait_ms();
    struct timespec wait = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    sigset_t none;
    sigemptyset(&none); /* a signal comes while it waits, or the next time: never between a look and the wait */
    if (ppoll(watched, (nfds_t)(1 + servers + connections), ms < 0 ? NULL : &wait, &none) < 0)
        return;
    for (int i = connections - 1; i >= 0; i--) {
        if (!watched[1 + servers + i].revents)
            continue;
        for (int k = control.servers - 1; k >= 0; k--) /* first what a server has said before */
            server_read(&control.server[k]);
        read_connection(i);
    }
    for (int k = control.servers - 1; k >= 0; k--)
        server_read(&control.server[k]);
    if (watched[0].revents)
        accept_connection();
    serve_pending();
}

int daemon_run(bool foreground, int ready)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (open_all() != 0)
        return 1;
    take_environment();
    control.also = foreground ? STDERR_FILENO : -1;
    greet();
    if (!foreground) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        for (int fd = 0; fd < 3 && null >= 0; fd++)
            dup2(null, fd);
        if (write(ready, "r", 1) != 1)
            return 1;
        close(ready);
    }
    while (!(control.quitting && control.servers == 0)) {
        if (asked_to_end && !control.quitting) {
            servers_quit(0);
            control.deadline = 1; /* long past: the servers end at once */
        } else {
            turn();
        }
    }
    leave();
    return 0;
}
