/* The commands of nvidia-cuda-mps-control, as the manual page and the MPS documentation list them. */
#define _GNU_SOURCE
#include "control.h"

struct answer { char *at; size_t room; };

__attribute__((format(printf, 2, 3))) static void say(struct answer *out, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int length = vsnprintf(out->at, out->room, format, values);
    va_end(values);
    if (length > 0 && (size_t)length < out->room) {
        out->at += length;
        out->room -= (size_t)length;
    }
    *out->at = 0; /* what does not fit is left out whole */
}

struct call { int count; char *word[6]; struct answer *out; };

static struct server *server_named(const struct call *call, const char *text)
{
    long pid = 0;
    struct server *server = number(text, INT_MAX, &pid) ? server_of_pid((pid_t)pid) : NULL;
    if (!server)
        say(call->out, "There is no MPS server with PID %s\n", text);
    return server;
}

/* ---- servers and clients ---- */

static int get_server_list(const struct call *call)
{
    for (int i = 0; i < control.servers; i++)
        say(call->out, "%d\n", (int)control.server[i].pid);
    return 0;
}

static int get_server_status(const struct call *call)
{
    static const char *const names[] = {"INITIALIZING", "ACTIVE", "FAULT"};
    const struct server *server = server_named(call, call->word[1]);
    if (server)
        say(call->out, "%s\n", names[server->state]);
    return !server;
}

static int get_client_list(const struct call *call)
{
    const struct server *server = server_named(call, call->word[1]);
    for (int i = 0; server && i < server->clients; i++)
        say(call->out, "%d\n", server->client[i].pid);
    return !server;
}

static int get_device_client_list(const struct call *call)
{
    const struct server *only = call->count > 1 ? server_named(call, call->word[1]) : NULL;
    if (call->count > 1 && !only)
        return 1;
    for (int i = 0; i < control.servers; i++) {
        const struct server *server = &control.server[i];
        for (int d = 0; (!only || only == server) && d < server->devices; d++) {
            say(call->out, "Device %s:", server->device[d]);
            for (int c = 0; c < server->clients; c++)
                if (server->client[c].on >> d & 1)
                    say(call->out, " %d", server->client[c].pid);
            say(call->out, "\n");
        }
    }
    return 0;
}

static int start_server(const struct call *call)
{
    long uid;
    if (strcmp(call->word[1], "-uid") != 0 || !number(call->word[2], INT_MAX, &uid)) {
        say(call->out, "Usage: start_server -uid <user id>\n");
        return 1;
    }
    if (control.servers) {
        say(call->out, "An MPS server is already running: %d\n", (int)control.server[0].pid);
        return 1;
    }
    if (server_start((uid_t)uid))
        return 0;
    say(call->out, "Failed to start an MPS server for user %ld\n", uid);
    return 1;
}

static int shutdown_server(const struct call *call)
{
    struct server *server = server_named(call, call->word[1]);
    bool force = call->count > 2 && strcmp(call->word[2], "-f") == 0;
    if (call->count > 2 && !force) {
        say(call->out, "Usage: shutdown_server <PID> [-f]\n");
        return 1;
    }
    if (server)
        server_stop(server, force);
    return !server;
}

static int terminate_client(const struct call *call)
{
    const struct server *server = server_named(call, call->word[1]);
    long pid = 0;
    bool found = false;
    if (!server)
        return 1;
    for (int i = 0; number(call->word[2], INT_MAX, &pid) && i < server->clients; i++)
        found |= server->client[i].pid == pid;
    if (found)
        kg_mps_say(server->channel, "terminate %ld", pid);
    else
        say(call->out, "There is no client with PID %s\n", call->word[2]);
    return !found;
}

static void client_rows(const struct call *call, const struct server *server, const struct server_client *client)
{
    char path[64], command[128] = "", space[64] = "";
    snprintf(path, sizeof path, "/proc/%d/ns/pid", client->pid);
    ssize_t length = readlink(path, space, sizeof space - 1);
    space[length > 0 ? length : 0] = 0;
    space[strcspn(space, "]")] = 0;
    snprintf(path, sizeof path, "/proc/%d/cmdline", client->pid);
    FILE *file = fopen(path, "re");
    if (file) {
        command[fread(command, 1, sizeof command - 1, file)] = 0; /* the first word ends with a zero byte */
        fclose(file);
    }
    const char *inode = strchr(space, '[');
    for (int d = 0; d < server->devices; d++)
        if (client->on >> d & 1)
            say(call->out, "%-9d %-5d %-9d %-18.18s %-12s %s\n", client->pid, d, (int)server->pid, server->device[d],
                inode ? inode + 1 : "", command);
}

static int ps(const struct call *call)
{
    long pid = 0;
    if (call->count > 1 && (call->count != 3 || strcmp(call->word[1], "-p") != 0 || !number(call->word[2], INT_MAX, &pid))) {
        say(call->out, "Usage: ps [-p <PID>]\n");
        return 1;
    }
    say(call->out, "%-9s %-5s %-9s %-18s %-12s %s\n", "PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND");
    for (int i = 0; i < control.servers; i++)
        for (int c = 0; c < control.server[i].clients; c++)
            if (!pid || control.server[i].client[c].pid == pid)
                client_rows(call, &control.server[i], &control.server[i].client[c]);
    return 0;
}

/* ---- allowances: a default holds for servers that start later, a server's for its later clients ---- */

static int set_percent(const struct call *call, struct allowance *allowance, const char *text)
{
    double percent = kg_mps_percent(text);
    if (percent <= 0) {
        say(call->out, "Invalid active thread percentage %s: a number above 0, 100 at most\n", text);
        return 1;
    }
    allowance->percent = percent;
    say(call->out, "%.1f\n", percent);
    return 0;
}

static int get_default_percent(const struct call *call) { say(call->out, "%.1f\n", control.defaults.percent); return 0; }
static int set_default_percent(const struct call *call) { return set_percent(call, &control.defaults, call->word[1]); }

static int get_percent(const struct call *call)
{
    const struct server *server = server_named(call, call->word[1]);
    if (server)
        say(call->out, "%.1f\n", server->allowance.percent);
    return !server;
}

static int set_server_percent(const struct call *call)
{
    struct server *server = server_named(call, call->word[1]);
    int code = server ? set_percent(call, &server->allowance, call->word[2]) : 1;
    if (code == 0)
        servers_tell_allowance(server);
    return code;
}

static int limit_into(const struct call *call, struct allowance *allowance, int first)
{
    if (set_limit(allowance, call->word[first], call->word[first + 1]))
        return 0;
    say(call->out, "Invalid device memory limit: a device's number, and an integer followed by G or M\n");
    return 1;
}

static int limit_from(const struct call *call, const struct allowance *allowance, const char *device)
{
    long index;
    if (!number(device, MOST_DEVICES - 1, &index)) {
        say(call->out, "Invalid device %s: a device's number\n", device);
        return 1;
    }
    say(call->out, "%s\n", allowance->limit[index][0] ? allowance->limit[index] : "No limit");
    return 0;
}

/* Without a device it tells device 0's: NVIDIA's documentation of the GPU operator asks in this way. */
static int get_default_limit(const struct call *call)
{
    return limit_from(call, &control.defaults, call->count > 1 ? call->word[1] : "0");
}

static int set_default_limit(const struct call *call) { return limit_into(call, &control.defaults, 1); }

static int get_limit(const struct call *call)
{
    const struct server *server = server_named(call, call->word[1]);
    return server ? limit_from(call, &server->allowance, call->word[2]) : 1;
}

static int set_server_limit(const struct call *call)
{
    struct server *server = server_named(call, call->word[1]);
    int code = server ? limit_into(call, &server->allowance, 2) : 1;
    if (code == 0)
        servers_tell_allowance(server);
    return code;
}

/* ---- the daemon ---- */

static int quit(const struct call *call)
{
    long seconds = -1;
    if (call->count > 1 && (call->count != 3 || strcmp(call->word[1], "-t") != 0 || !number(call->word[2], 86400, &seconds))) {
        say(call->out, "Usage: quit [-t <TIMEOUT>]\n");
        return 1;
    }
    servers_quit(seconds);
    return 0;
}

static int help(const struct call *call);

static const struct { const char *name; int least, most; const char *arguments; int (*run)(const struct call *); } commands[] = {
    {"help", 0, 0, "", help},
    {"get_server_list", 0, 0, "", get_server_list},
    {"get_server_status", 1, 1, " <PID>", get_server_status},
    {"start_server", 2, 2, " -uid <user id>", start_server},
    {"shutdown_server", 1, 2, " <PID> [-f]", shutdown_server},
    {"get_client_list", 1, 1, " <PID>", get_client_list},
    {"get_device_client_list", 0, 1, " [<PID>]", get_device_client_list},
    {"terminate_client", 2, 2, " <server PID> <client PID>", terminate_client},
    {"ps", 0, 2, " [-p <PID>]", ps},
    {"get_default_active_thread_percentage", 0, 0, "", get_default_percent},
    {"set_default_active_thread_percentage", 1, 1, " <percentage>", set_default_percent},
    {"get_active_thread_percentage", 1, 1, " <PID>", get_percent},
    {"set_active_thread_percentage", 2, 2, " <PID> <percentage>", set_server_percent},
    {"get_default_device_pinned_mem_limit", 0, 1, " <device>", get_default_limit},
    {"set_default_device_pinned_mem_limit", 2, 2, " <device> <value>", set_default_limit},
    {"get_device_pinned_mem_limit", 2, 2, " <PID> <device>", get_limit},
    {"set_device_pinned_mem_limit", 3, 3, " <PID> <device> <value>", set_server_limit},
    {"quit", 0, 2, " [-t <TIMEOUT>]", quit},
};
#define COMMANDS (sizeof commands / sizeof *commands)

static int help(const struct call *call)
{
    for (size_t i = 0; i < COMMANDS; i++)
        say(call->out, "%s%s\n", commands[i].name, commands[i].arguments);
    return 0;
}

int command_run(char *line, char *text, size_t room)
{
    struct answer out = {text, room};
    struct call call = {.out = &out};
    char copy[KG_MPS_LINE], *rest = NULL;
    *text = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok_r(copy, " \t\r", &rest); word; word = strtok_r(NULL, " \t\r", &rest)) {
        if (call.count == 6)
            break;
        call.word[call.count++] = word;
    }
    for (size_t i = 0; call.count && i < COMMANDS; i++) {
        if (strcmp(call.word[0], commands[i].name) != 0)
            continue;
        if (call.count - 1 >= commands[i].least && call.count - 1 <= commands[i].most)
            return commands[i].run(&call);
        say(&out, "Usage: %s%s\n", commands[i].name, commands[i].arguments);
        return 1;
    }
    say(&out, "Unknown command: %.64s\n", call.count ? call.word[0] : "");
    return 1;
}
