/* See process.h. In C, as constructors are put in their order by where they are linked, and va_list is none of Rust's. */
#include "process.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <spdk/log.h>

/* Of DPDK. */
const char *rte_eal_get_runtime_dir(void);

static struct sigaction before;
static struct sigaction of_spdk;
static tidelog_spdk_listener listener;

/* Constructors with a priority run before those without, such as SPDK's. */
__attribute__((constructor(101))) static void keep_disposition(void)
{
	sigaction(SIGBUS, NULL, &before);
}

/* This is linked behind SPDK's archives, so it runs after their constructors. */
__attribute__((constructor)) static void restore_disposition(void)
{
	sigaction(SIGBUS, NULL, &of_spdk);
	if (of_spdk.sa_sigaction == before.sa_sigaction) {
		memset(&of_spdk, 0, sizeof(of_spdk));
		return;
	}
	sigaction(SIGBUS, &before, NULL);
}

void tidelog_spdk_fault(int signal, void *information, void *context)
{
	if (of_spdk.sa_flags & SA_SIGINFO) {
		of_spdk.sa_sigaction(signal, information, context);
	}
}

static void say(int level, const char *file, const int line, const char *function, const char *format,
		va_list arguments)
{
	char text[512];
	size_t length;

	(void)file;
	(void)line;
	(void)function;
	vsnprintf(text, sizeof(text), format, arguments);
	length = strlen(text);
	if (length > 0 && text[length - 1] == '\n') {
		text[length - 1] = '\0';
	}
	listener(level, text);
}

void tidelog_spdk_listen(tidelog_spdk_listener wanted)
{
	listener = wanted;
	spdk_log_open(say);
}

void tidelog_spdk_tidy(void)
{
	char above[512];
	const char *directory = rte_eal_get_runtime_dir();
	char *last;

	/* Neither is removed while something is in it. */
	if (directory == NULL || rmdir(directory) != 0) {
		return;
	}
	snprintf(above, sizeof(above), "%s", directory);
	last = strrchr(above, '/');
	if (last != NULL) {
		*last = '\0';
		rmdir(above);
	}
}
