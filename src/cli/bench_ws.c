/* The little of RFC 6455 a load generator needs: handshake, whole frames, no fragments. */
#include <assert.h>
#include <string.h>

#include "cli/bench.h"

void bench_ws_hello(struct buf *out, const struct bench_target *target)
{
    buf_fmt(out,
            "GET /v1/node/connect HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: YmVydGggYmVuY2ggbm9kZQ==\r\n\r\n",
            target->host);
}

void bench_ws_put(struct buf *out, int opcode, struct str payload)
{
    unsigned char head[14] = {(unsigned char)(0x80 | opcode)};
    size_t len = 2;

    if (payload.len < 126) {
        head[1] = (unsigned char)(0x80 | payload.len);
    } else {
        assert(payload.len <= UINT16_MAX);
        head[1] = 0x80 | 126;
        head[2] = (unsigned char)(payload.len >> 8);
        head[3] = (unsigned char)payload.len;
        len = 4;
    }
    buf_add(out, head, len + 4); /* four bytes of mask: zero */
    buf_str(out, payload);
}

int bench_ws_next(struct str in, size_t *at, int *ret_opcode, struct str *ret_payload)
{
    const unsigned char *head = (const unsigned char *)in.at + *at;
    size_t left = in.len - *at, head_len = 2, len;

    assert(*at <= in.len);
    if (left < 2)
        return 0;
    if (!(head[0] & 0x80) || (head[1] & 0x80))
        return -1; /* a fragment, or masked by a server */
    len = head[1] & 0x7f;
    head_len += len == 126 ? 2 : len == 127 ? 8 : 0;
    if (left < head_len)
        return 0;
    if (head_len > 2) {
        len = 0;
        for (size_t i = 2; i < head_len; i++)
            len = len << 8 | head[i];
    }
    if (left - head_len < len)
        return 0;
    *ret_opcode = head[0] & 0x0f;
    *ret_payload = (struct str){.at = in.at + *at + head_len, .len = len};
    *at += head_len + len;
    return 1;
}
