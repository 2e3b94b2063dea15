/* Parcels, wishes, and what is heard. */
#include "server/peers.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/node_sync.h"
#include "sched/sched.h"
#include "server/events.h"
#include "server/peers_private.h"
#include "server/waiters.h"

enum {
    WISH_EVERY_MS = 2000, /* told again: who came meanwhile does not know */
    WISH_OVER_MS = 6000,  /* not told for so long: over */
    WISH_STAYS_MS = 10000 /* and ours outlives its reason, or it would come and go with each job */
};

bool peers_shared(const struct server *server)
{
    return server->peers != NULL;
}

uint32_t peers_name(const struct peers *peers)
{
    return store_name(peers->keeper->server->store);
}

bool peers_name_read(struct str text, uint32_t *ret_name)
{
    char digits[PEERS_NAME_TEXT + 1];
    char *end;

    if (text.len != PEERS_NAME_TEXT || !str_copy(text, digits, sizeof digits))
        return false;
    *ret_name = (uint32_t)strtoul(digits, &end, 16);
    return *end == '\0' && *ret_name;
}

/* --- what goes out --- */

struct parcel *peers_parcel(struct peers *peers, uint32_t to)
{
    struct parcel *parcel = peers->open;

    while (parcel && parcel->op.u.tell.to != to)
        parcel = parcel->next;
    if (parcel)
        return parcel;
    parcel = mem_new(struct parcel);
    parcel->peers = peers;
    parcel->op.u.tell.to = to;
    parcel->next = peers->open;
    peers->open = parcel;
    return parcel;
}

static void delivered(struct store_op *op)
{
    struct parcel *parcel = container_of(op, struct parcel, op);
    /* Whether it was told is unknown: then they wait for their answers, as for any that was. */
    bool ok = op->err == ERR_UNKNOWN || (!op->err && op->u.tell.heard > 0);

    assert(parcel->seqs.len % sizeof(uint64_t) == 0);
    for (size_t at = 0; !ok && at < parcel->seqs.len; at += sizeof(uint64_t)) {
        uint64_t seq;

        memcpy(&seq, parcel->seqs.at + at, sizeof seq);
        peers_fail(parcel->peers, seq, op->err ? "STORE_DOWN" : "INSTANCE_GONE");
    }
    buf_free(&parcel->frames);
    buf_free(&parcel->seqs);
    free(parcel);
}

void peers_turn(struct peers *peers)
{
    struct parcel *parcel;

    while (peers && (parcel = peers->open)) {
        uint32_t to = parcel->op.u.tell.to;

        assert(parcel->frames.len > 0 && parcel->peers == peers);
        peers->open = parcel->next;
        parcel->op = (struct store_op){
            .verb = STORE_TELL, .reply_to = &peers->keeper->loop.inbox, .done = delivered};
        parcel->op.u.tell.to = to;
        parcel->op.u.tell.text = buf_view(&parcel->frames);
        sched_send(peers->keeper->sched, &parcel->op);
    }
}

/* A short word, on its way from any loop to the keeper's parcel. */
struct word {
    struct msg msg;
    struct peers *peers;
    uint32_t to;
    size_t len;
    char text[];
};

static void word_posted(struct msg *msg)
{
    struct word *word = container_of(msg, struct word, msg);

    buf_add(&peers_parcel(word->peers, word->to)->frames, word->text, word->len);
    free(word);
}

void peers_pass(struct server *server, uint32_t holder, struct str frames)
{
    struct word *word = mem_zeroed(1, sizeof *word + frames.len);

    assert(server->peers && frames.len);
    *word = (struct word){
        .msg = {.run = word_posted}, .peers = server->peers, .to = holder, .len = frames.len};
    memcpy(word->text, frames.at, frames.len);
    inbox_post(&server_keeper(server)->loop.inbox, &word->msg);
}

__attribute__((format(printf, 3, 4))) static void say(struct server *server, uint32_t to,
                                                      const char *fmt, ...)
{
    struct buf buf = {0};
    size_t begun = frame_begin(&buf);
    char text[512];
    va_list list;

    va_start(list, fmt);
    int len = vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    assert(len > 0 && len < (int)sizeof text);
    buf_add(&buf, text, (size_t)len);
    frame_end(&buf, begun);
    peers_pass(server, to, buf_view(&buf));
    buf_free(&buf);
}

bool peers_want(const struct server *server, unsigned what)
{
    return server->peers &&
           (atomic_load_explicit(&server->peers->wanted, memory_order_relaxed) & what);
}

void peers_ended(struct server *server, uint64_t job)
{
    char id[JOB_ID_TEXT + 1];

    assert(job);
    job_id_text(job, id);
    say(server, 0, "ended %s", id);
}

void peers_room(struct server *server, struct str node_id, const struct lease_node *counts,
                uint64_t order)
{
    assert(node_id.len <= NODE_ID_MAX && lease_counts_ok(counts));
    say(server, 0, "room " STR_FMT " %d %d %d %d %" PRIu32 " %" PRIu64, STR_ARG(node_id),
        (int)counts->health, counts->max, counts->reserved, counts->running, counts->epoch, order);
}

void peers_cancel(struct server *server, uint32_t holder, struct str node_id, uint64_t job,
                  int attempt, const char *reason)
{
    char id[JOB_ID_TEXT + 1];

    assert(holder && node_id.len <= NODE_ID_MAX);
    job_id_text(job, id);
    say(server, holder, "cancel " STR_FMT " %s %d %.*s", STR_ARG(node_id), id, attempt,
        STORE_REASON_MAX, reason);
}

void peers_event(struct server *server, uint64_t job, struct str namespace, struct str text)
{
    char id[JOB_ID_TEXT + 1];
    struct buf *frames = &peers_parcel(server->peers, 0)->frames;
    size_t begun = frame_begin(frames);

    job_id_text(job, id);
    /* An instance of an earlier release knows no namespaces, and would show it to everybody. */
    if (str_eq(namespace, NAMESPACE_DEFAULT))
        buf_fmt(frames, "event %08" PRIx32 " %s ", peers_name(server->peers), id);
    else
        buf_fmt(frames, "event_of %08" PRIx32 " %s " STR_FMT " ", peers_name(server->peers), id,
                STR_ARG(namespace));
    buf_str(frames, text);
    frame_end(frames, begun);
}

/* --- wishes --- */

/* What is needed here: somebody waits for jobs, listens, or a queue waits for room. */
static unsigned needed_now(const struct server *server)
{
    unsigned bits = events_heard_here(server) ? PEERS_EVENTS : 0;

    if (waiters_wait(server))
        bits |= PEERS_ENDS;
    if (atomic_load_explicit(&server->sched.queue_depth, memory_order_relaxed) > 0)
        bits |= PEERS_ROOM;
    return bits;
}

static unsigned our_wish(struct peers *peers)
{
    unsigned now = needed_now(peers->keeper->server);
    unsigned bits = 0;
    int64_t now_ms = peers->keeper->loop.mono_ms;

    for (unsigned i = 0; i < COUNT_OF(peers->needed_ms); i++) {
        if (now & 1u << i)
            peers->needed_ms[i] = now_ms;
        if (peers->needed_ms[i] && now_ms - peers->needed_ms[i] < WISH_STAYS_MS)
            bits |= 1u << i;
    }
    return bits;
}

static void tell_wish(struct peers *peers, bool again)
{
    unsigned bits = our_wish(peers);
    int64_t now_ms = peers->keeper->loop.mono_ms;
    struct buf *frames;
    size_t begun;

    if (bits == peers->wished && !again && (!bits || now_ms - peers->wished_ms < WISH_EVERY_MS))
        return;
    peers->wished = bits;
    peers->wished_ms = now_ms;
    frames = &peers_parcel(peers, 0)->frames;
    begun = frame_begin(frames);
    buf_fmt(frames, "wish %08" PRIx32 " %u", peers_name(peers), bits);
    frame_end(frames, begun);
}

static void wish_posted(struct msg *msg)
{
    struct peers *peers = container_of(msg, struct peers, wish_msg);

    atomic_store(&peers->wish_posted, false);
    tell_wish(peers, false);
}

void peers_wish(struct server *server)
{
    struct peers *peers = server->peers;

    if (peers && !atomic_exchange(&peers->wish_posted, true))
        inbox_post(&peers->keeper->loop.inbox, &peers->wish_msg);
}

static void sum_wishes(struct peers *peers)
{
    int64_t now_ms = peers->keeper->loop.mono_ms;
    unsigned wanted = 0;

    for (size_t i = 0; i < PEERS_MAX; i++) {
        if (peers->wishes[i].name && now_ms - peers->wishes[i].heard_ms > WISH_OVER_MS)
            peers->wishes[i] = (struct wish){0};
        wanted |= peers->wishes[i].bits;
    }
    atomic_store_explicit(&peers->wanted, wanted, memory_order_relaxed);
}

/* "NAME BITS" */
static void hear_wish(struct peers *peers, struct str rest)
{
    struct wish *free_slot = NULL, *slot = NULL;
    uint32_t name;
    int64_t bits;

    _Static_assert(COUNT_OF(peers->needed_ms) == 3 && PEERS_ROOM == 1 << 2, "a time for each bit");
    if (!peers_name_read(str_cut(&rest, ' '), &name) || name == peers_name(peers) ||
        !str_int(str_cut(&rest, ' '), &bits))
        return;
    for (size_t i = 0; i < PEERS_MAX; i++) {
        if (peers->wishes[i].name == name)
            slot = &peers->wishes[i];
        else if (!peers->wishes[i].name)
            free_slot = &peers->wishes[i];
    }
    slot = slot ? slot : free_slot;
    if (slot)
        *slot = (struct wish){.name = name,
                              .bits = (unsigned)bits & (PEERS_ENDS | PEERS_EVENTS | PEERS_ROOM),
                              .heard_ms = peers->keeper->loop.mono_ms};
    sum_wishes(peers);
}

/* --- what is heard --- */

static void hear_hello(struct peers *peers, struct str rest)
{
    uint32_t name;

    if (peers_name_read(str_cut(&rest, ' '), &name) && name != peers_name(peers) && peers->wished)
        tell_wish(peers, true);
}

static void hear_ended(struct peers *peers, struct str rest)
{
    uint64_t job;

    if (job_id_parse(str_cut(&rest, ' '), &job))
        waiters_tell(peers->keeper->server, job, NULL);
}

/* "NAME JOB {...}" */
static void hear_event(struct peers *peers, struct str rest)
{
    uint32_t name;
    uint64_t job;

    if (peers_name_read(str_cut(&rest, ' '), &name) && name != peers_name(peers) &&
        job_id_parse(str_cut(&rest, ' '), &job) && rest.len > 2)
        events_elsewhere(peers->keeper->server, job, NAMESPACE_DEFAULT, rest);
}

/* "NAME JOB NAMESPACE TEXT" */
static void hear_event_of(struct peers *peers, struct str rest)
{
    struct str namespace;
    uint32_t name;
    uint64_t job;

    if (!peers_name_read(str_cut(&rest, ' '), &name) || name == peers_name(peers) ||
        !job_id_parse(str_cut(&rest, ' '), &job))
        return;
    namespace = str_cut(&rest, ' ');
    if (namespace_valid(namespace) && rest.len > 2)
        events_elsewhere(peers->keeper->server, job, namespace, rest);
}

/* "NODE HEALTH MAX RESERVED RUNNING EPOCH ORDER": a slot became free elsewhere. */
static void hear_room(struct peers *peers, struct str rest)
{
    const struct snap_node *known =
        snapshot_node(peers->keeper->sched->snapshot, str_cut(&rest, ' '));
    int64_t values[6];

    for (size_t i = 0; i < COUNT_OF(values); i++)
        if (!str_int(str_cut(&rest, ' '), &values[i]) || values[i] < 0)
            return;
    struct lease_node counts = {.health = (enum node_health)values[0],
                                .max = (int32_t)values[1],
                                .reserved = (int32_t)values[2],
                                .running = (int32_t)values[3],
                                .epoch = (uint32_t)values[4]};
    if (!known || values[0] >= NODE_HEALTH_COUNT || !lease_counts_ok(&counts))
        return;
    counts_take(known->node, &counts, (uint64_t)values[5], false);
    keeper_freed(peers->keeper->server->sched.keeper, known->node);
}

/* "seen\nNODE ..." */
static void hear_seen(struct peers *peers, struct str rest)
{
    node_sync_seen(keeper_view(peers->keeper->server->sched.keeper), rest);
}

/* Words of a newer version that are not here are passed over. */
static const struct {
    const char *word;
    char after; /* what ends it */
    void (*hear)(struct peers *peers, struct str rest);
} rows[] = {
    {"job", ' ', peers_hear_job},       {"sent", ' ', peers_hear_sent},
    {"cancel", ' ', peers_hear_cancel}, {"ask", ' ', peers_hear_ask},
    {"answer", ' ', peers_hear_answer}, {"wish", ' ', hear_wish},
    {"hello", ' ', hear_hello},         {"ended", ' ', hear_ended},
    {"event", ' ', hear_event},         {"room", ' ', hear_room},
    {"event_of", ' ', hear_event_of},   {"seen", '\n', hear_seen},
};

static void hear_frame(struct peers *peers, struct str frame)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        size_t len = strlen(rows[i].word);

        if (frame.len > len && memcmp(frame.at, rows[i].word, len) == 0 &&
            frame.at[len] == rows[i].after) {
            rows[i].hear(peers, (struct str){.at = frame.at + len + 1, .len = frame.len - len - 1});
            return;
        }
    }
}

static void hear(struct store_ear *ear, const struct store_word *word)
{
    struct peers *peers = container_of(ear, struct peers, ear);
    struct str rest = word->text, frame;

    if (word->kind != STORE_WORD_TOLD)
        keeper_heard(peers->keeper->server->sched.keeper, word);
    else
        while (frame_next(&rest, &frame))
            hear_frame(peers, frame);
    if (word->kind == STORE_WORD_GAP)
        say(peers->keeper->server, 0, "hello %08" PRIx32, peers_name(peers));
}

/* --- beginning and end --- */

struct peers *peers_new(struct worker *keeper)
{
    struct peers *peers;

    if (!store_name(keeper->server->store))
        return NULL;
    peers = mem_new(struct peers);
    peers->keeper = keeper;
    peers->ear = (struct store_ear){.inbox = &keeper->loop.inbox, .hear = hear};
    peers->wish_msg.run = wish_posted;
    return peers;
}

void peers_start(struct peers *peers)
{
    if (peers)
        store_listen(peers->keeper->server->store, &peers->ear);
}

void peers_stop(struct peers *peers)
{
    if (peers)
        store_listen(peers->keeper->server->store, NULL);
}

void peers_free(struct peers *peers)
{
    struct parcel *parcel;

    if (!peers)
        return;
    while ((parcel = peers->open)) {
        peers->open = parcel->next;
        buf_free(&parcel->frames);
        buf_free(&parcel->seqs);
        free(parcel);
    }
    peers_jobs_free(peers);
    free(peers);
}

void peers_tick(struct peers *peers)
{
    if (!peers)
        return;
    sum_wishes(peers);
    tell_wish(peers, false);
    peers_jobs_tick(peers);
}
