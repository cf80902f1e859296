/* Moves a tensor out of memory and back, and commits one that outlives the process. C90.
 *
 *   cc -std=c90 tensors.c $(pkg-config --cflags --libs tidelog) -o tensors
 *   ./tensors /mnt/nvme0/tide,/mnt/nvme1/tide
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tidelog.h"

#define MIB ((uint64_t)1 << 20)

/* Ends the program with the library's own words where a call failed. */
static void check(int32_t status, const char *what) {
  char text[1024];
  if (status >= 0)
    return;
  tide_last_error(text, sizeof text, NULL);
  fprintf(stderr, "%s: %s (code %d)\n", what, text, (int)status);
  exit(1);
}

/* A transfer owns its memory until its ticket is released, also where it failed. */
static void finish(uint64_t ticket, const char *what) {
  int32_t status;
  do
    status = tide_ticket_wait(ticket, 1000); /* milliseconds */
  while (status == TIDE_WAITING);
  check(status, what);
  check(tide_ticket_drop(ticket), what);
}

int main(int argc, char **argv) {
  tide_pool_options options;
  uint64_t pool, ticket, batch, length;
  unsigned char *tensor;
  char *names;
  size_t size;

  if (argc != 2) {
    fprintf(stderr, "usage: %s DEVICE[,DEVICE...]\n", argv[0]);
    return 64;
  }
  memset(&options, 0, sizeof options); /* what is 0 is the library's choice */
  options.size = sizeof options;       /* which version of the struct this is */
  options.devices = argv[1];
  options.data_path = "auto";
  options.staging = 8 * MIB;
  options.pool_size = 256 * MIB;
  check(tide_pool_open(&options, &pool), "open");

  tensor = malloc(MIB);
  if (tensor == NULL)
    return 1;
  memset(tensor, 7, MIB);
  check(tide_put(pool, "activations", tensor, MIB, 0, &ticket), "put");
  finish(ticket, "put");
  memset(tensor, 0, MIB); /* the memory could be used for anything now */
  check(tide_get(pool, "activations", 0, tensor, MIB, TIDE_URGENT, &ticket), "get");
  finish(ticket, "get");
  if (tensor[0] != 7 || tensor[MIB - 1] != 7)
    return 1;
  check(tide_delete(pool, "activations"), "delete");
  if (tide_length(pool, "activations", &length) != TIDE_NOT_FOUND)
    return 1;

  /* Durable: everything in the batch is there after the commit, or nothing of it. */
  check(tide_batch_begin(pool, &batch), "begin");
  check(tide_batch_put(batch, "weights", tensor, MIB), "put into the batch");
  check(tide_batch_commit(batch), "commit");

  /* Texts: ask for the length, then for the bytes. */
  size = tide_pool_list(pool, NULL, 0) + 1;
  names = malloc(size);
  if (names == NULL || tide_pool_list(pool, names, size) == 0)
    return 1;
  printf("libtidelog %s, durable tensors: %s\n", tide_version(), names);
  free(names);
  free(tensor);
  check(tide_pool_close(pool), "close");
  return 0;
}
