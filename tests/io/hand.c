#include "hand.h"

#include "../unit.h"
#include "peer.h"

void hand_run(struct loop *loop, const int *done)
{
    int64_t until_ms = loop->mono_ms + PEER_PATIENCE_S * 1000;

    while (!*done) {
        uv_run(&loop->uv, UV_RUN_ONCE); /* the tick ends it if nothing else does */
        if (loop->mono_ms > until_ms)
            fail_msg("waited in vain");
    }
}
