/* The clients of an MPS server: who is connected, on which devices, and what a fault of one means for the others.
 *
 * A fatal fault ends every client on that device; the server takes no new ones until they have gone (NVIDIA's MPS
 * documentation, "Error Containment"). Pids are those of the server's own pid namespace, 0 for a client outside of it. */
#define _GNU_SOURCE
#include "server.h"

#include <poll.h>

struct client {
    int fd;
    int pid;
    bool known; /* has said that it is a client */
    bool on[MOST_DEVICES];
    struct kg_mps_input input;
};
static struct client *all[MOST_CONNECTIONS];
static int total;

int clients_count(void)
{
    int known = 0;
    for (int i = 0; i < total; i++)
        known += all[i]->known;
    return known;
}

int clients_watch(struct pollfd *out)
{
    for (int i = 0; i < total; i++)
        out[i] = (struct pollfd){.fd = all[i]->fd, .events = POLLIN};
    return total;
}

void clients_accept(void)
{
    struct ucred peer;
    int fd = kg_mps_accept(LISTEN_FD, &peer);
    struct client *made = fd >= 0 && total < MOST_CONNECTIONS ? calloc(1, sizeof *made) : NULL;
    if (!made) {
        if (fd >= 0)
            close(fd);
        return;
    }
    made->fd = fd;
    made->pid = peer.pid;
    all[total++] = made;
}

static bool faulted(void)
{
    for (int i = 0; i < server.devices; i++)
        if (server.device[i].faulted)
            return true;
    return false;
}

static void off_device(struct client *client, int device)
{
    if (!client->on[device])
        return;
    client->on[device] = false;
    struct mps_device *d = &server.device[device];
    d->clients--;
    tell_daemon("off %d %d", client->pid, device);
    note("Client {PID: %d, Context ID: %d} disconnected", client->pid, device + 1);
    if (d->faulted && d->clients == 0) {
        d->faulted = false;
        note("Device %s (uuid %s) has recovered", d->name, d->uuid);
        if (!faulted())
            tell_daemon("active");
    }
}

static void drop(int at)
{
    struct client *client = all[at];
    for (int i = 0; i < server.devices; i++)
        off_device(client, i);
    if (client->known) {
        note("Receive command failed, assuming client exit");
        note("Client process disconnected");
        tell_daemon("gone %d", client->pid);
    }
    close(client->fd);
    free(client);
    memmove(&all[at], &all[at + 1], (size_t)(--total - at) * sizeof *all);
}

/* The devices and what the client may have of each; the daemon knows of the client before the client hears. */
static void welcome(struct client *client)
{
    note("Received new client request for {PID: %d, Context ID: 0}", client->pid);
    if (faulted() || server.stopping) {
        kg_mps_say(client->fd, "refuse %d", KG_MPS_SERVER_NOT_READY);
        return;
    }
    client->known = true;
    tell_daemon("client %d", client->pid);
    note("Client {PID: %d, Context ID: 0} connected", client->pid);
    note("Creating worker thread for client {PID: %d, Context ID: 0}", client->pid);
    kg_mps_say(client->fd, "devices %d", server.devices);
    for (int i = 0; i < server.devices; i++)
        kg_mps_say(client->fd, "%s %.1f %llu", server.device[i].uuid, server.percent, server.device[i].limit);
}

static void open_device(struct client *client, int device)
{
    struct mps_device *d = &server.device[device];
    note("Received new client request for {PID: %d, Context ID: %d}", client->pid, device + 1);
    if (d->faulted || (!client->on[device] && d->clients >= d->most)) {
        if (!d->faulted)
            note("Client {PID: %d, Context ID: %d} refused: %u clients at most", client->pid, device + 1, d->most);
        kg_mps_say(client->fd, "refuse %d", d->faulted ? KG_MPS_SERVER_NOT_READY : KG_MPS_MAX_CLIENTS);
        return;
    }
    d->clients += !client->on[device];
    client->on[device] = true;
    tell_daemon("on %d %d", client->pid, device);
    note("Client {PID: %d, Context ID: %d} connected", client->pid, device + 1);
    note("Device %s (uuid %s) is associated", d->name, d->uuid);
    kg_mps_say(client->fd, "ok");
}

static void fault(const struct client *source, int device)
{
    note("Fatal error on device %d, caused by client {PID: %d, Context ID: %d}", device, source->pid, device + 1);
    server.device[device].faulted = true;
    for (int i = 0; i < total; i++)
        if (all[i] != source && all[i]->on[device])
            kg_mps_say(all[i]->fd, "fault %d", device);
    tell_daemon("fault"); /* after them: whoever reads FAULT there finds that every client has heard */
}

/* 0, or -1 for what no client says. */
static int handle(struct client *client, const char *line)
{
    char word[16];
    int device = 0;
    if (strcmp(line, "client") == 0 && !client->known) {
        welcome(client);
        return 0;
    }
    if (!client->known || sscanf(line, "%15s %d", word, &device) != 2 || device < 0 || device >= server.devices)
        return -1;
    if (strcmp(word, "open") == 0)
        open_device(client, device);
    else if (strcmp(word, "close") == 0)
        off_device(client, device);
    else if (strcmp(word, "fault") == 0 && client->on[device])
        fault(client, device);
    return 0;
}

void clients_serve(const struct pollfd *watched, int count)
{
    for (int i = count - 1; i >= 0; i--) { /* from the end: `drop` moves the later ones */
        char line[KG_MPS_LINE];
        int got = 0;
        if (!watched[i].revents)
            continue;
        while ((got = kg_mps_line(all[i]->fd, &all[i]->input, line, MSG_DONTWAIT)) > 0 && (got = handle(all[i], line)) == 0)
            ;
        if (got < 0)
            drop(i);
    }
}

void clients_terminate(int pid)
{
    for (int i = 0; i < total; i++)
        if (all[i]->known && all[i]->pid == pid) {
            note("Client {PID: %d} is terminated", pid);
            kg_mps_say(all[i]->fd, "terminated");
        }
}
