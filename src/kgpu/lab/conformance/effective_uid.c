/*
 * Stands in for nnp of the tests' image nonewprivs: it has the set-user-ID bit, and says what that has made of it.
 */
#include <stdio.h>
#include <unistd.h>

int main(void) {
	printf("Effective uid: %u\n", (unsigned)geteuid());
	return 0;
}
