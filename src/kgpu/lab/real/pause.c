/*
 * The first process of every pod of the lab: it holds the pod's namespaces open, reaps orphans and ends when asked to.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void on_end(int number) { (void)number; _exit(0); }

static void on_child(int number) {
	(void)number;
	while (waitpid(-1, NULL, WNOHANG) > 0) {
	}
}

int main(void) {
	struct sigaction end = {.sa_handler = on_end};
	struct sigaction child = {.sa_handler = on_child, .sa_flags = SA_NOCLDSTOP | SA_RESTART};

	if (sigaction(SIGINT, &end, NULL) || sigaction(SIGTERM, &end, NULL) || sigaction(SIGCHLD, &child, NULL))
		return 1;
	for (;;)
		pause();
}
