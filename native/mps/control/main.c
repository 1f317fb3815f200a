/* nvidia-cuda-mps-control: starts the MPS control daemon (`-d`, `-f`), or hands commands from stdin to it.
 *
 * Without a daemon at CUDA_MPS_PIPE_DIRECTORY it says so and ends with 1, as the vendor's program does. A command that is
 * refused ends it with 1, too, after the later ones have been carried out. */
#define _GNU_SOURCE
#include "control.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

static const char no_daemon[] = "Cannot find MPS control daemon process\n";

static int usage(FILE *out, int code)
{
    fputs("Usage: nvidia-cuda-mps-control [-d | -f]\n"
          "  -d   start the MPS control daemon in the background\n"
          "  -f   start the MPS control daemon in the foreground\n"
          "Without an option it reads commands from stdin: type `help` for a list.\n",
          out);
    return code;
}

/* ---- commands ---- */

/* Print an answer; its last byte is 0 for a command that was carried out, 1 for a refused one. -1: the daemon has gone. */
static int print_answer(int fd)
{
    char c;
    ssize_t got;
    while ((got = recv(fd, &c, 1, 0)) > 0 && c != 0 && c != 1)
        putchar(c);
    fflush(stdout);
    return got > 0 ? c : -1;
}

static int take_commands(void)
{
    char line[KG_MPS_LINE];
    int code = 0, fd = kg_mps_connect(KG_MPS_CONTROL);
    bool prompt = isatty(STDIN_FILENO);
    if (fd < 0) {
        fputs(no_daemon, stdout);
        return 1;
    }
    while (fputs(prompt ? "> " : "", stdout), fflush(stdout), fgets(line, sizeof line - 1, stdin)) {
        size_t length = strcspn(line, "\n");
        bool quits = strncmp(line + strspn(line, " \t"), "quit", 4) == 0;
        line[length] = 0;
        if (line[strspn(line, " \t\r")] == 0)
            continue;
        int answer = kg_mps_say(fd, "%s", line) == 0 ? print_answer(fd) : -1;
        if (answer < 0)
            return quits ? code : 1; /* a daemon that has been told to go answers by going */
        code |= answer;
    }
    return code;
}

/* ---- the daemon ---- */

/* Into the background; returns in the child only. The parent ends once the child listens, or has failed. */
static int into_background(void)
{
    int ready[2];
    char answer;
    if (pipe2(ready, O_CLOEXEC) != 0)
        return -1;
    pid_t child = fork();
    if (child < 0)
        return -1;
    if (child == 0) {
        close(ready[0]);
        setsid();
        return ready[1];
    }
    close(ready[1]);
    if (read(ready[0], &answer, 1) == 1)
        exit(0);
    int status = 1;
    waitpid(child, &status, 0);
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

static int start_daemon(bool foreground)
{
    struct sockaddr_un address;
    kg_mps_own_root();
    if (kg_mps_address(&address, KG_MPS_CONTROL) != 0) { /* the path is too long for a socket */
        fputs(no_daemon, stdout);
        return 1;
    }
    int ready = foreground ? -1 : into_background();
    return daemon_run(foreground, ready);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (argc == 1)
        return take_commands();
    if (argc == 2 && strcmp(argv[1], "-d") == 0)
        return start_daemon(false);
    if (argc == 2 && strcmp(argv[1], "-f") == 0)
        return start_daemon(true);
    bool help = strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0;
    return usage(help ? stdout : stderr, help ? 0 : 1);
}
