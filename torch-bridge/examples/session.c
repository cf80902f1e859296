/* A session that calls back: buffers of twice the budget are counted up, and SSDs hold what does not fit. C90.
 *
 *   cc -std=c90 session.c $(pkg-config --cflags --libs tidelog) -o session
 *   ./session /mnt/nvme0/tide,/mnt/nvme1/tide
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tidelog.h"

#define MIB ((uint64_t)1 << 20)
#define BUFFERS 16
#define ROUNDS 3

typedef struct program {
  unsigned char *buffers[BUFFERS]; /* null: it is out */
  int fetches;
} program;

static void check(int32_t status, const char *what) {
  char text[1024];
  if (status >= 0)
    return;
  tide_last_error(text, sizeof text, NULL);
  fprintf(stderr, "%s: %s (code %d)\n", what, text, (int)status);
  exit(1);
}

/* The bytes are about to be written to SSDs. They stay where they are, and as they are. */
static int32_t evict(void *context, const tide_bytes *bytes, tide_memory *memory) {
  program *self = context;
  memory->address = (uint64_t)(size_t)self->buffers[bytes->storage];
  return 0;
}

/* They are there. A call that was interrupted may come twice, so this looks first. */
static int32_t release(void *context, const tide_bytes *bytes) {
  program *self = context;
  free(self->buffers[bytes->storage]);
  self->buffers[bytes->storage] = NULL;
  return 0;
}

/* They are about to be read. Without memory other buffers leave, and this is called again. */
static int32_t allocate(void *context, const tide_bytes *bytes, tide_memory *memory) {
  program *self = context;
  if (self->buffers[bytes->storage] == NULL)
    self->buffers[bytes->storage] = malloc((size_t)bytes->length);
  memory->address = (uint64_t)(size_t)self->buffers[bytes->storage];
  return 0;
}

/* The buffer is in memory, and nothing moves it. */
static int32_t settle(void *context, const tide_bytes *bytes, uint64_t state) {
  program *self = context;
  (void)bytes;
  (void)state;
  self->fetches++;
  return 0;
}

int main(int argc, char **argv) {
  static program self; /* zeroes */
  tide_session_options options;
  tide_session_callbacks callbacks;
  uint64_t session;
  uint32_t number;
  int round;

  if (argc != 2) {
    fprintf(stderr, "usage: %s DEVICE[,DEVICE...]\n", argv[0]);
    return 64;
  }
  memset(&options, 0, sizeof options); /* what is 0 is the library's choice */
  options.size = sizeof options;
  options.devices = argv[1];
  options.data_path = "auto";
  options.staging = 4 * MIB;
  options.budget = options.staging + BUFFERS / 2 * MIB;
  options.pool_size = 256 * MIB;
  check(tide_session_open(&options, &session), "open");
  memset(&callbacks, 0, sizeof callbacks); /* no lock to give up for waits */
  callbacks.size = sizeof callbacks;
  callbacks.context = &self;
  callbacks.evict = evict;
  callbacks.release = release;
  callbacks.allocate = allocate;
  callbacks.settle = settle;
  check(tide_session_set_callbacks(session, &callbacks), "callbacks");

  for (number = 0; number < BUFFERS; number++) {
    tide_birth birth;
    birth.storage = number;
    birth.size = MIB;
    birth.place = (uint64_t)0xFFFFFFFF << 16; /* made outside a step */
    /* Room for it first; then it is there, and counts. */
    check(tide_session_op_begin(session, -1, 0, "make", NULL, 0, MIB), "room for a buffer");
    self.buffers[number] = calloc(1, MIB);
    if (self.buffers[number] == NULL)
      return 1;
    check(tide_session_sync(session, &birth, 1, NULL, 0), "birth");
    check(tide_session_op_end(session), "end of the op");
  }
  for (round = 0; round < ROUNDS; round++)
    for (number = 0; number < BUFFERS; number++) {
      uint32_t use = number | TIDE_MODIFIES;
      size_t at;
      check(tide_session_op_begin(session, -1, 0, "count", &use, 1, 0), "begin of an op");
      for (at = 0; at < MIB; at++)
        self.buffers[number][at]++;
      check(tide_session_op_end(session), "end of an op");
    }
  for (number = 0; number < BUFFERS; number++) {
    check(tide_session_op_begin(session, -1, 0, "look", &number, 1, 0), "begin of a look");
    if (self.buffers[number][0] != ROUNDS || self.buffers[number][MIB - 1] != ROUNDS)
      return 1;
    check(tide_session_op_end(session), "end of a look");
  }
  printf("%d buffers of 1 MiB in %d MiB: %s\n", BUFFERS, BUFFERS / 2, self.fetches > 0 ? "they moved" : "nothing moved");
  check(tide_session_close(session), "close"); /* from here on nothing touches the buffers */
  for (number = 0; number < BUFFERS; number++)
    free(self.buffers[number]);
  return 0;
}
