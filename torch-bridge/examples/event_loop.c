/* Transfers and a commit in an event loop: epoll waits for the library as for a socket. C90.
 *
 *   cc -std=c90 event_loop.c $(pkg-config --cflags --libs tidelog) -o event_loop
 *   ./event_loop /mnt/nvme0/tide,/mnt/nvme1/tide
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tidelog.h"

#define MIB ((uint64_t)1 << 20)
#define TENSORS 16

static void check(int32_t status, const char *what) {
  char text[1024];
  if (status >= 0)
    return;
  tide_last_error(text, sizeof text, NULL);
  fprintf(stderr, "%s: %s (code %d)\n", what, text, (int)status);
  exit(1);
}

int main(int argc, char **argv) {
  tide_pool_options options;
  struct epoll_event event;
  unsigned char *tensors;
  uint64_t pool, batch, commit, ends, tickets[TENSORS + 1];
  size_t count, ended;
  int epoll, events, transfers = 0, commits = 0;

  if (argc != 2) {
    fprintf(stderr, "usage: %s DEVICE[,DEVICE...]\n", argv[0]);
    return 64;
  }
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.devices = argv[1];
  options.data_path = "auto";
  options.staging = 8 * MIB;
  options.pool_size = 256 * MIB;
  check(tide_pool_open(&options, &pool), "open");

  /* The library adds 1 to the eventfd whenever something ends that is begun from now on. */
  events = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  epoll = epoll_create1(EPOLL_CLOEXEC);
  memset(&event, 0, sizeof event);
  event.events = EPOLLIN;
  if (events < 0 || epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, events, &event) != 0)
    return 1;
  check(tide_pool_eventfd(pool, events), "eventfd");

  tensors = malloc(TENSORS * MIB);
  if (tensors == NULL)
    return 1;
  memset(tensors, 7, TENSORS * MIB);
  for (count = 0; count < TENSORS; count++) {
    char name[32];
    sprintf(name, "activations.%d", (int)count);
    check(tide_put(pool, name, tensors + count * MIB, MIB, 0, &tickets[count]), "put");
  }
  check(tide_batch_begin(pool, &batch), "begin");
  check(tide_batch_put(batch, "weights", tensors, MIB), "put into the batch");
  check(tide_batch_start_commit(batch, &commit), "commit");
  tickets[count++] = commit;

  while (count > 0) {
    /* Sockets and timers of the program would be in the same epoll. */
    if (epoll_wait(epoll, &event, 1, -1) != 1)
      return 1;
    if (read(events, &ends, sizeof ends) != (ssize_t)sizeof ends)
      return 1;
    /* Whatever has ended by now; a time-out of 0 does not wait. */
    while (count > 0) {
      int32_t found = tide_ticket_wait_any(tickets, count, 0, &ended);
      check(found, "wait for any");
      if (found == TIDE_WAITING)
        break;
      check(tide_ticket_wait(tickets[ended], 0), "transfer or commit"); /* how it ended */
      if (tickets[ended] == commit)
        commits++;
      else
        transfers++;
      check(tide_ticket_drop(tickets[ended]), "drop");
      tickets[ended] = tickets[--count];
    }
  }
  printf("%d transfers and %d commit ended\n", transfers, commits);

  check(tide_verify(pool, "weights"), "verify");
  check(tide_pool_close(pool), "close");
  close(events);
  close(epoll);
  free(tensors);
  return 0;
}
