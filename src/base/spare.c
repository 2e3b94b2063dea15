/* A few buffers per thread, freed when the thread ends. */
#include "base/spare.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/mem.h"

enum { SPARES = 64, SPARE_BYTES_MAX = 16 << 10 };

struct spares {
    struct buf bufs[SPARES];
    int count;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static _Thread_local struct spares *own;

static void free_spares(void *mem)
{
    struct spares *spares = mem;

    while (spares->count > 0)
        buf_free(&spares->bufs[--spares->count]);
    free(spares);
    own = NULL;
}

static void make_key(void)
{
    if (pthread_key_create(&key, free_spares))
        abort(); /* fails only when the process has used up some thousand keys */
}

struct buf spare_take(void)
{
    return own && own->count > 0 ? own->bufs[--own->count] : (struct buf){0};
}

void spare_give(struct buf *buf)
{
    if (!own) {
        pthread_once(&once, make_key);
        own = mem_new(struct spares);
        pthread_setspecific(key, own);
    }
    if (!buf->at || buf->cap > SPARE_BYTES_MAX || own->count == SPARES) {
        buf_free(buf);
        return;
    }
    buf_clear(buf);
    own->bufs[own->count++] = *buf;
    *buf = (struct buf){0};
}
