/* What the library keeps of instances and of where nodes are: read, and PEERS answered. Texts of
 * another version of it may have more words behind those known here. */
#include "store/redis_read.h"

#include "store/redis_wire.h"

#include <string.h>

/* Eight hexadecimal digits; 0 is nobody. */
static bool read_name(struct str text, uint32_t *ret_name)
{
    uint32_t name = 0;

    if (text.len != STORE_NAME_TEXT)
        return false;
    for (size_t i = 0; i < text.len; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = memchr(digits, text.at[i], sizeof digits - 1);

        if (!digit)
            return false;
        name = name << 4 | (uint32_t)(digit - digits);
    }
    *ret_name = name;
    return name != 0;
}

static int64_t next_number(struct str *rest, int64_t otherwise)
{
    int64_t value;

    return str_int(str_cut(rest, ' '), &value) ? value : otherwise;
}

static int64_t ago(int64_t then_ms, int64_t now_ms)
{
    return then_ms < now_ms ? now_ms - then_ms : 0;
}

static int32_t figure(struct str *rest)
{
    int64_t value = next_number(rest, -1);

    return value >= -1 && value <= INT32_MAX ? (int32_t)value : -1;
}

void wire_live_read(struct str link, struct str live, int64_t now_ms, struct store_live *ret_live)
{
    struct store_live read = {.silent_ms = -1};
    int64_t kind = 0;

    if (link.at && read_name(str_cut(&link, ' '), &read.holder)) {
        kind = next_number(&link, 0);
        read.incarnation = (uint64_t)next_number(&link, 0);
        read.linked_ms = ago(next_number(&link, now_ms), now_ms);
    }
    read.kind = kind > 0 && kind <= STORE_LINK_LEFT ? (enum store_link_kind)kind : STORE_LINK_NONE;
    if (live.at)
        read.silent_ms = ago(next_number(&live, now_ms), now_ms);
    read.level = figure(&live);
    read.cpu_pm = figure(&live);
    read.gpu_pm = figure(&live);
    read.mem_pm = figure(&live);
    *ret_live = read;
}

bool wire_peer_read(struct str name, struct str text, int64_t now_ms, struct store_peer *ret_peer)
{
    struct store_peer peer = {0};
    int64_t number;

    if (!read_name(name, &peer.name))
        return false;
    peer.silent_ms = ago(next_number(&text, now_ms), now_ms);
    number = next_number(&text, 0);
    if (number <= 0 || number >= STORE_NUMBERS)
        return false;
    peer.number = (unsigned)number;
    next_number(&text, 0); /* the oldest format it reads, */
    next_number(&text, 0); /* the newest it would write */
    if (text.len > STORE_VERSION_MAX)
        text.len = STORE_VERSION_MAX;
    str_copy(text, peer.version, sizeof peer.version);
    *ret_peer = peer;
    return true;
}

bool redis_read_peers(struct redis_read *read)
{
    struct store_op *op = read->op;
    const char *words[] = {"HGETALL", REDIS_KEY "instances"};
    const struct redis_args args[] = {{.count = 4, .texts = redis_state_words},
                                      {.count = 2, .texts = words}};
    struct wire_state state;
    redisReply *replies[2];
    redisReply *reply;
    bool ok;

    if (!redis_link_call_all(read->link, args, 2, read->timeout_ms, replies))
        return false;
    ok = redis_read_state(read, replies[0], &state);
    freeReplyObject(replies[0]);
    reply = redis_read_checked(read, replies[1], REDIS_REPLY_ARRAY, "read the instances");
    if (!ok || !reply) {
        freeReplyObject(reply);
        return false;
    }
    op->u.peers.items = arena_array(op->arena, struct store_peer, reply->elements / 2 + 1);
    op->u.peers.count = 0;
    for (size_t i = 0; i + 1 < reply->elements; i += 2)
        if (wire_peer_read(redis_text(reply->element[i]), redis_text(reply->element[i + 1]),
                           state.now_ms, &op->u.peers.items[op->u.peers.count]))
            op->u.peers.count++;
    freeReplyObject(reply);
    return true;
}
