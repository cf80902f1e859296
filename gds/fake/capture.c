/* A graph that is being captured: which calls it forbids, to whom.
 *
 * The rules are those of CUDA's documentation of cuThreadExchangeStreamCaptureMode, and of the programming guide on
 * prohibited operations. That looks at an event and waits for the GPU are among the unsafe ones is PyTorch's experience
 * (its NCCL watchdog spoiled captures by looking at events). What is put into the captured stream does not happen. */
#include "fake.h"

enum Mode { GLOBAL, THREAD_LOCAL, RELAXED };
static __thread enum Mode mode; /* of the calling thread */
static struct Stream *captured;
static enum Mode begun_as;
static pthread_t owner;
static bool spoiled;

bool is_captured(const struct Stream *stream) { return captured && stream == captured; }
void forget_capture(void) { captured = NULL; }

CUresult if_unsafe(void) {
    pthread_mutex_lock(&fake_lock);
    bool mine = captured && pthread_equal(owner, pthread_self());
    bool forbidden = captured && mode != RELAXED && (mine ? begun_as != RELAXED : mode == GLOBAL && begun_as == GLOBAL);
    spoiled |= forbidden;
    pthread_mutex_unlock(&fake_lock);
    return forbidden ? CAPTURE_UNSUPPORTED : OK;
}

CUresult cuThreadExchangeStreamCaptureMode(int *other) {
    if (*other < GLOBAL || *other > RELAXED) return INVALID;
    enum Mode before = mode;
    mode = *other;
    *other = before;
    return OK;
}

CUresult cuStreamBeginCapture_v2(struct Stream *stream, int as) {
    pthread_mutex_lock(&fake_lock);
    CUresult code = captured || !stream ? CAPTURE_UNSUPPORTED : OK;
    if (!code) { captured = stream; begun_as = as; owner = pthread_self(); spoiled = false; }
    pthread_mutex_unlock(&fake_lock);
    return code;
}

CUresult cuStreamEndCapture(struct Stream *stream, void **graph) {
    pthread_mutex_lock(&fake_lock);
    CUresult code = !is_captured(stream) ? INVALID : spoiled ? CAPTURE_INVALIDATED : OK;
    *graph = NULL;
    if (is_captured(stream)) captured = NULL;
    pthread_mutex_unlock(&fake_lock);
    return code;
}

CUresult cuStreamIsCapturing(struct Stream *stream, unsigned *status) {
    *status = LOCKED(is_captured(stream));
    return OK;
}
