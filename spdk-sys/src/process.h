/* What SPDK does to the whole process that it is loaded into, and how it is kept from it. */
#pragma once

/* Gives a fault to the handler of SIGBUS that SPDK installs when it is loaded, and that was taken away again. */
void tidelog_spdk_fault(int signal, void *information, void *context);

/* Who is told what SPDK has to say: how bad it is (enum spdk_log_level), and the line, which ends. */
typedef void (*tidelog_spdk_listener)(int level, const char *line);

/* Has SPDK say everything to this listener, on the thread that it happens on. */
void tidelog_spdk_listen(tidelog_spdk_listener listener);

/* Removes the directory that DPDK makes for what several processes share, which is nothing here. */
void tidelog_spdk_tidy(void);
