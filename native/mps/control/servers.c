/* MPS servers of the control daemon: started for a user, listened to, stopped, and what is known of their clients. */
#define _GNU_SOURCE
#include "control.h"

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/wait.h>

struct server *server_of_pid(pid_t pid)
{
    for (int i = 0; i < control.servers; i++)
        if (control.server[i].pid == pid)
            return &control.server[i];
    return NULL;
}

struct server *server_for(uid_t uid)
{
    for (int i = 0; i < control.servers; i++)
        if (control.server[i].uid == uid && !control.server[i].stopping)
            return &control.server[i];
    return NULL;
}

/* The socket is made by the daemon: a server of another user could not write to the pipe directory. */
static int listen_for(char name[32])
{
    static unsigned made;
    struct sockaddr_un address;
    snprintf(name, 32, "server-%u", ++made);
    if (kg_mps_address(&address, name) != 0)
        return -1;
    unlink(address.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || chmod(address.sun_path, 0666) != 0 ||
                    listen(fd, 128) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void program(char out[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", out, PATH_MAX - 32);
    out[length > 0 ? length : 0] = 0;
    char *slash = strrchr(out, '/');
    strcpy(slash ? slash + 1 : out, "nvidia-cuda-mps-server");
}

/* Becomes the server: 3 its socket, 4 the channel, 5 its log, 2 the terminal of a daemon in the foreground. */
static void become_server(uid_t uid, int listener, int channel)
{
    char path[PATH_MAX], log[PATH_MAX];
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    snprintf(log, sizeof log, "%s/server.log", kg_mps_logs());
    note("Starting new server %d for user %u", (int)getpid(), uid); /* before 3 to 5 are the server's */
    const int wanted[] = {listener, channel, open(log, O_WRONLY | O_CREAT | O_APPEND, 0666)};
    int kept[3];
    for (int i = 0; i < 3; i++)
        kept[i] = fcntl(wanted[i], F_DUPFD_CLOEXEC, 10); /* out of the way of 3 to 5 */
    for (int i = 0; i < 3; i++)
        if (dup2(kept[i], 3 + i) < 0)
            _exit(1);
    program(path);
    if (uid != geteuid() && (setgroups(0, NULL) != 0 || setgid(uid) != 0 || setuid(uid) != 0))
        _exit(1);
    execl(path, "nvidia-cuda-mps-server", (char *)NULL);
    _exit(127);
}

void servers_tell_allowance(const struct server *server)
{
    kg_mps_say(server->channel, "threads %.1f", server->allowance.percent);
    for (int i = 0; i < MOST_DEVICES; i++)
        if (server->allowance.limit[i][0])
            kg_mps_say(server->channel, "limit %d %s", i, server->allowance.limit[i]);
}

bool server_start(uid_t uid)
{
    int channel[2];
    struct server *made = &control.server[control.servers];
    if (control.servers == MOST_SERVERS || (geteuid() != 0 && uid != geteuid()))
        return false;
    memset(made, 0, sizeof *made);
    int listener = listen_for(made->socket);
    if (listener < 0)
        return false;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) != 0) {
        close(listener);
        return false;
    }
    made->channel = channel[0];
    made->uid = uid;
    made->allowance = control.defaults;
    servers_tell_allowance(made); /* it lies there when the server begins to read */
    made->pid = fork();
    if (made->pid == 0)
        become_server(uid, listener, channel[1]);
    close(listener);
    close(channel[1]);
    if (made->pid < 0) {
        close(channel[0]);
        return false;
    }
    control.servers++;
    return true;
}

void server_stop(struct server *server, bool force)
{
    if (force)
        kill(server->pid, SIGKILL);
    else if (!server->stopping)
        kg_mps_say(server->channel, "stop");
    server->stopping = true;
}

void servers_quit(long seconds)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    control.quitting = true;
    control.deadline = seconds < 0 ? 0 : now.tv_sec + seconds + 1;
    for (int i = 0; i < control.servers; i++)
        server_stop(&control.server[i], false);
}

/* ---- what a server tells ---- */

static struct server_client *client_of(struct server *server, int pid)
{
    for (int i = 0; i < server->clients; i++)
        if (server->client[i].pid == pid)
            return &server->client[i];
    return NULL;
}

static void client_came(struct server *server, int pid)
{
    if (server->clients < MOST_CLIENTS)
        server->client[server->clients++] = (struct server_client){.pid = pid};
}

static void client_went(struct server *server, int pid)
{
    struct server_client *client = client_of(server, pid);
    if (!client)
        return;
    server->clients--;
    memmove(client, client + 1, (size_t)(&server->client[server->clients] - client) * sizeof *client);
}

static void client_device(struct server *server, int pid, int device, bool on)
{
    struct server_client *client = client_of(server, pid);
    if (client && device >= 0 && device < MOST_DEVICES)
        client->on = on ? client->on | 1ull << device : client->on & ~(1ull << device);
}

static void take(struct server *server, const char *line)
{
    int number = 0, device = 0;
    char text[64];
    if (strcmp(line, "ready") == 0) {
        server->state = SERVER_ACTIVE;
        note("NEW SERVER %d: Ready", (int)server->pid);
    } else if (strcmp(line, "fault") == 0) {
        server->state = SERVER_FAULT;
        note("Server %d has a fault", (int)server->pid);
    } else if (strcmp(line, "active") == 0) {
        server->state = SERVER_ACTIVE;
    } else if (sscanf(line, "device %d %63s", &number, text) == 2 && number >= 0 && number < MOST_DEVICES) {
        strcpy(server->device[number], text);
        server->devices = number + 1;
    } else if (sscanf(line, "client %d", &number) == 1) {
        client_came(server, number);
    } else if (sscanf(line, "gone %d", &number) == 1) {
        client_went(server, number);
    } else if (sscanf(line, "on %d %d", &number, &device) == 2) {
        client_device(server, number, device, true);
    } else if (sscanf(line, "off %d %d", &number, &device) == 2) {
        client_device(server, number, device, false);
    }
}

/* Those who wait for a server that did not come are told so; serve_pending() starts one for the others. */
static void refuse_waiting(uid_t uid)
{
    for (int i = 0; i < control.connections; i++) {
        struct connection *c = control.connection[i];
        if (c->kind != CONNECTION_PENDING || c->uid != uid)
            continue;
        kg_mps_say(c->fd, "refuse %d", KG_MPS_CONNECTION_FAILED);
        c->kind = CONNECTION_NEW;
    }
}

static void end(struct server *server)
{
    int status = 0;
    struct sockaddr_un address;
    waitpid(server->pid, &status, 0);
    if (WIFEXITED(status))
        note("Server %d exited with status %d", (int)server->pid, WEXITSTATUS(status));
    else
        note("Server %d was ended by signal %d", (int)server->pid, WTERMSIG(status));
    if (kg_mps_address(&address, server->socket) == 0)
        unlink(address.sun_path);
    close(server->channel);
    if (server->state == SERVER_INITIALIZING)
        refuse_waiting(server->uid);
    *server = control.server[--control.servers];
}

void server_read(struct server *server)
{
    char line[KG_MPS_LINE];
    int got;
    while ((got = kg_mps_line(server->channel, &server->input, line, MSG_DONTWAIT)) > 0)
        take(server, line);
    if (got < 0)
        end(server);
}
