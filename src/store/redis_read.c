/* JOB_GET, JOB_LIST, CALLBACKS, LANES, LANE, SESSION_GET, NODES, COUNTS and PEERS.
 *
 * NODES and COUNTS are read page by page: an HGETALL of ten thousand nodes would block Redis for
 * everyone. A node is one field, so each node is consistent in itself; `order`, read first, says
 * how recent it is. A round trip reads the records of one page and the other data of the previous
 * page, so a Redis some milliseconds away takes one trip per page plus one. Instance records
 * written by another version of the library may have more words than those known here. */
#include "store/redis_read.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "store/record.h"
#include "store/redis_link.h"
#include "store/redis_wire.h"
#include "store/store.h"

/* --- jobs, lists, sessions --- */

enum {
    PAGE = 64,        /* jobs read at once */
    FIRST_PAGE = 8,   /* jobs read at once while their size is unknown */
    SPANS_MAX = 32,   /* lists read at once */
    SCAN_MAX = 4096,  /* jobs checked by one list */
    STEPS_MAX = 256,  /* steps of one list */
    LONG_ENOUGH = 10, /* after this many call times it answers what it has */
    FIELDS = 4,       /* of a job: head, spec, attempts, result */
    LANES_MAX = 64,   /* asked for at once */
    LANE_TEXT = 16,   /* digits of a lane's number */
};

#define MEMBERS "64" /* of a list, at a time */

int64_t redis_read_due_ms(const struct redis_read *read)
{
    return clock_mono_ms() + read->timeout_ms;
}

/* NULL for an error or a malformed reply, which counts as a failure of the store. */
static redisReply *redis_read_checked(struct redis_read *read, redisReply *reply, int type,
                                      const char *what)
{
    if (!reply || reply->type == type ||
        (type == REDIS_REPLY_STRING && reply->type == REDIS_REPLY_NIL))
        return reply;
    redis_link_fail(read->link, what, reply->type == REDIS_REPLY_ERROR ? reply->str : NULL);
    freeReplyObject(reply);
    return NULL;
}

static redisReply *redis_read_list(struct redis_read *read, struct redis_args args,
                                   const char *what)
{
    return redis_read_checked(read, redis_link_call(read->link, &args, redis_read_due_ms(read)),
                              REDIS_REPLY_ARRAY, what);
}

/* True: no record, or one in a known format; otherwise the store cannot be read. The store thread
 * stops when it sees an unknown format; a read may see it first. */
static bool redis_read_known(struct redis_read *read, struct str record)
{
    int format = record.len ? (unsigned char)record.at[0] : 0;
    char text[48];

    if (!record.at || record_is_known(record))
        return true;
    snprintf(text, sizeof text, "%d %d %d", format, format, format);
    format_explain(str_of(text), read->link->why, sizeof read->link->why);
    return false;
}

/* Runs many commands at once. False: there are no replies. */
static bool read_all(struct redis_read *read, const struct redis_args *args, size_t count, int type,
                     const char *what, redisReply **ret_replies)
{
    bool ok = true;

    if (!redis_link_call_all(read->link, args, count, read->timeout_ms, ret_replies))
        return false;
    for (size_t i = 0; i < count; i++) {
        ret_replies[i] = redis_read_checked(read, ret_replies[i], type, what);
        ok = ok && ret_replies[i];
    }
    for (size_t i = 0; !ok && i < count; i++)
        freeReplyObject(ret_replies[i]);
    return ok;
}

/* A command with words allocated for the duration of the read. */
static struct redis_args command(struct redis_read *read, const char *const *words, size_t count)
{
    const char **texts = arena_array(&read->arena, const char *, count);

    memcpy(texts, words, count * sizeof *words);
    return (struct redis_args){.count = (int)count, .texts = texts};
}
#define COMMAND(read, ...)                                                                         \
    command((read), (const char *const[]){__VA_ARGS__},                                            \
            sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

static const char *key_of(struct redis_read *read, const char *kind, int len, const char *id)
{
    return arena_fmt(&read->arena, REDIS_KEY "%s:%.*s", kind, len, id).at;
}

/* Some jobs: one reply for each run of jobs that share a bucket. */
struct page {
    redisReply *replies[PAGE];
    size_t reply_count;
    redisReply *const *fields[PAGE]; /* of each job, FIELDS */
};

static void page_free(struct page *page)
{
    for (size_t i = 0; i < page->reply_count; i++)
        freeReplyObject(page->replies[i]);
    page->reply_count = 0;
}

static struct redis_args ask_jobs(struct redis_read *read, const char *const *ids, size_t count)
{
    static const char *const tails[FIELDS] = {"", ":s", ":h", ":r"};
    const char **words = arena_array(&read->arena, const char *, 2 + FIELDS * count);
    struct redis_args args = {.count = 2, .texts = words};

    words[0] = "HMGET";
    words[1] = key_of(read, "j", RECORD_BUCKET, ids[0]);
    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < FIELDS; k++)
            words[args.count++] = arena_fmt(&read->arena, "%s%s", ids[i], tails[k]).at;
    return args;
}

static bool get_jobs(struct redis_read *read, const char *const *ids, size_t count,
                     struct page *page)
{
    struct redis_args args[PAGE];
    size_t groups = 0, to = 0, at = 0;
    bool ok = true;

    assert(count > 0 && count <= PAGE);
    do {
        size_t from = to++;

        while (to < count && strncmp(ids[from], ids[to], RECORD_BUCKET) == 0)
            to++;
        args[groups++] = ask_jobs(read, ids + from, to - from);
    } while (to < count);
    page->reply_count = 0;
    if (!read_all(read, args, groups, REDIS_REPLY_ARRAY, "read a job", page->replies))
        return false;
    page->reply_count = groups;
    for (size_t i = 0; ok && i < groups; i++) {
        const redisReply *reply = page->replies[i];

        ok = reply->elements == (size_t)args[i].count - 2 ||
             redis_link_fail(read->link, "read a job", "not as many fields as were asked for");
        for (size_t k = 0; ok && k < reply->elements; k += FIELDS) {
            page->fields[at++] = &reply->element[k];
            ok = redis_read_known(read, redis_text(reply->element[k]));
        }
    }
    if (!ok)
        page_free(page);
    return ok;
}

/* False: there is no such job (an index may list it too early or too long), or it does not match
 * `op`. */
static bool read_job(const struct redis_read *read, const struct store_op *op, const char *id,
                     redisReply *const *fields, struct store_record *ret_record, bool *ret_has_key)
{
    struct store_record record = {0};
    struct str spec = redis_text(fields[1]);
    struct wire_job job;

    if (!job_id_parse(str_of(id), &record.head.id) ||
        !wire_job_read(redis_text(fields[0]), read->offset_ms, &record.head, &job) ||
        !store_head_fits(&record.head, op) ||
        (op->verb == STORE_JOB_LIST && !store_spec_fits(spec, op)))
        return false;
    record.spec = store_kept(op->arena, spec);
    record.history = store_kept(op->arena, redis_text(fields[2]));
    if (job.done_once)
        record.history = wire_history(&record.head, op->arena);
    else if (!record.history.at)
        record.history = STR("[]");
    record.result = store_kept(op->arena, job.result.at ? job.result : redis_text(fields[3]));
    *ret_record = record;
    *ret_has_key = job.has_key;
    return true;
}

static bool get_each(struct redis_read *read, struct store_op *const *ops, size_t count)
{
    char texts[PAGE][JOB_ID_TEXT + 1];
    const char *ids[PAGE];
    struct page page;

    for (size_t i = 0; i < count; i++) {
        job_id_text(ops[i]->job, texts[i]);
        ids[i] = texts[i];
    }
    if (!get_jobs(read, ids, count, &page))
        return false;
    for (size_t i = 0; i < count; i++) {
        struct store_op *op = ops[i];
        bool has_key;

        if (read_job(read, op, ids[i], page.fields[i], &op->record, &has_key)) {
            op->head = op->record.head;
            op->err = ERR_OK;
        } else {
            op->head.id = 0;
            op->err = ERR_NOT_FOUND;
        }
    }
    page_free(&page);
    return true;
}

static bool job_get(struct redis_read *read)
{
    return get_each(read, &read->op, 1);
}

bool redis_read_jobs(struct redis_link *link, struct store_op *const *ops, size_t count,
                     int64_t timeout_ms, int64_t offset_ms)
{
    struct redis_read read = {.link = link, .timeout_ms = timeout_ms, .offset_ms = offset_ms};
    bool ok;

    static_assert((int)REDIS_READ_JOBS_MAX <= (int)PAGE, "they are one page");
    assert(count > 0 && count <= REDIS_READ_JOBS_MAX);
    ok = get_each(&read, ops, count);
    arena_free(&read.arena);
    return ok;
}

/* Consecutive NUL-terminated job ids. */
struct ids {
    char (*at)[JOB_ID_TEXT + 1];
    size_t count;
    size_t cap;
};

static void ids_add(struct redis_read *read, struct ids *ids, const char *id)
{
    if (ids->count == ids->cap) {
        ids->cap = ids->cap ? ids->cap * 2 : 256;
        ids->at = ids->count ? arena_resize(&read->arena, ids->at, ids->count * sizeof *ids->at,
                                            ids->cap * sizeof *ids->at)
                             : arena_raw(&read->arena, ids->cap * sizeof *ids->at);
    }
    memcpy(ids->at[ids->count], id, JOB_ID_TEXT);
    ids->at[ids->count++][JOB_ID_TEXT] = '\0';
}

/* How many jobs to read at once with a byte limit: first a few, then as many as fit by the average
 * size so far. */
static size_t page_size(size_t bytes_max, size_t bytes, size_t looked, size_t looked_bytes)
{
    size_t left = bytes_max > bytes ? bytes_max - bytes : 0;
    size_t page = !bytes_max ? PAGE : !looked ? FIRST_PAGE : left / (looked_bytes / looked + 1);

    return page < 1 ? 1 : page < PAGE ? page : PAGE;
}

/* Reads a part of a list: ids in order, all of them unless the page fills up first. */
static bool take_ids(struct redis_read *read, const struct ids *list, size_t *ret_looked_at)
{
    struct store_op *op = read->op;
    size_t at = 0;

    while (at < list->count && !store_list_full(op, op->u.list.count)) {
        const char *ids[PAGE];
        struct page page;
        size_t count = 0;
        size_t most = page_size(op->u.list.bytes_max, op->u.list.bytes, read->jobs, read->bytes);

        while (at + count < list->count && count < most) {
            ids[count] = list->at[at + count];
            count++;
        }
        if (!get_jobs(read, ids, count, &page))
            return false;
        for (size_t i = 0; i < count && !store_list_full(op, op->u.list.count); i++, at++) {
            struct store_record *record = &op->u.list.items[op->u.list.count];
            bool has_key;

            read->jobs++;
            for (size_t k = 0; k < FIELDS; k++)
                read->bytes += redis_text(page.fields[i][k]).len;
            if (read_job(read, op, ids[i], page.fields[i], record, &has_key)) {
                op->u.list.bytes += store_record_bytes(record);
                op->u.list.count++;
            }
        }
        page_free(&page);
    }
    *ret_looked_at = at;
    return true;
}

/* The position of a list of jobs: below an id of a span, or at the newest. */
struct walk {
    char from[JOB_ID_TEXT + 2];  /* a span, as a bound for ZREVRANGEBYLEX */
    char below[JOB_ID_TEXT + 1]; /* in the first span from there; "": from the newest */
    char last[JOB_ID_TEXT + 1];  /* last id checked */
    size_t width;                /* spans read at once: grows where jobs are sparse */
    size_t scanned;
    bool over;
};

/* Requests members of a span's list from the newest: each has ids of one bucket, in order. */
static struct redis_args ask_members(struct redis_read *read, const char *span, const char *below,
                                     const char *from, const char *limit)
{
    struct redis_args args =
        COMMAND(read, "ZREVRANGEBYLEX", key_of(read, "l", RECORD_SPAN, span),
                *below ? arena_fmt(&read->arena, "(%s", below).at : "+", from, "LIMIT", "0", limit);

    if (!limit)
        args.count = 4;
    return args;
}

static bool are_ids(const redisReply *reply)
{
    for (size_t i = 0; i < reply->elements; i++)
        if (redis_text(reply->element[i]).len < JOB_ID_TEXT ||
            redis_text(reply->element[i]).len % JOB_ID_TEXT != 0)
            return false;
    return true;
}

static int newest_first(const void *a, const void *b)
{
    return strcmp(b, a);
}

static bool add_members(struct redis_read *read, struct ids *ids, const redisReply *reply,
                        size_t count, const char *below)
{
    if (!are_ids(reply))
        return redis_link_fail(read->link, "read a list", "not job ids");
    for (size_t i = 0; i < count; i++)
        for (size_t at = 0; at < reply->element[i]->len; at += JOB_ID_TEXT)
            if (!*below || strncmp(reply->element[i]->str + at, below, JOB_ID_TEXT) < 0)
                ids_add(read, ids, reply->element[i]->str + at);
    return true;
}

/* As many as requested were returned, so there may be more: takes them up to the last complete
 * bucket, as the one at the end may continue. */
static bool add_part(struct redis_read *read, struct ids *ids, const redisReply *reply,
                     const char *span, const char *below)
{
    size_t count = reply->elements;
    redisReply *rest;
    bool ok;

    if (!are_ids(reply))
        return redis_link_fail(read->link, "read a list", "not job ids");
    while (count > 0 && strncmp(reply->element[count - 1]->str,
                                reply->element[reply->elements - 1]->str, RECORD_BUCKET) == 0)
        count--;
    if (count > 0)
        return add_members(read, ids, reply, count, below);
    rest = redis_read_list(
        read,
        ask_members(read, span, below,
                    arena_fmt(&read->arena, "[%.*s", RECORD_BUCKET, reply->element[0]->str).at,
                    NULL),
        "list jobs");
    if (!rest)
        return false;
    ok = add_members(read, ids, rest, rest->elements, below);
    freeReplyObject(rest);
    return ok;
}

/* Reads the ids of some spans. *ret_spans: how many spans were taken; *ret_all: including all of
 * the last. */
static bool get_ids(struct redis_read *read, const struct walk *walk, const char *const *spans,
                    size_t count, struct ids *ids, size_t *ret_spans, bool *ret_all)
{
    struct redis_args args[SPANS_MAX];
    redisReply *replies[SPANS_MAX];
    size_t k = 0;
    bool ok = true;

    for (size_t i = 0; i < count; i++)
        args[i] = ask_members(read, spans[i], i ? "" : walk->below, "-", MEMBERS);
    if (!read_all(read, args, count, REDIS_REPLY_ARRAY, "list jobs", replies))
        return false;
    *ret_all = true;
    while (ok && *ret_all && k < count) {
        const char *below = k ? "" : walk->below;

        *ret_all = replies[k]->elements < (size_t)atoi(MEMBERS);
        ok = *ret_all ? add_members(read, ids, replies[k], replies[k]->elements, below)
                      : add_part(read, ids, replies[k], spans[k], below);
        k++;
    }
    for (size_t i = 0; i < count; i++)
        freeReplyObject(replies[i]);
    if (ids->count)
        qsort(ids->at, ids->count, sizeof *ids->at, newest_first);
    *ret_spans = k;
    return ok;
}

static bool walk_step(struct redis_read *read, struct walk *walk)
{
    const char *spans[SPANS_MAX + 1];
    struct ids ids = {0};
    size_t looked_at = 0, found = 0, count;
    redisReply *reply;
    bool all;

    /* The next spans, plus one to see whether these are the last. */
    reply =
        redis_read_list(read,
                        COMMAND(read, "ZREVRANGEBYLEX", REDIS_KEY "spans", walk->from, "-", "LIMIT",
                                "0", arena_fmt(&read->arena, "%zu", walk->width + 1).at),
                        "list jobs");
    if (!reply)
        return false;
    for (size_t i = 0; i < reply->elements && i <= walk->width; i++)
        if (redis_text(reply->element[i]).len == RECORD_SPAN)
            spans[found++] = arena_str(&read->arena, redis_text(reply->element[i])).at;
    freeReplyObject(reply);
    walk->over = found == 0;
    if (walk->over)
        return true;
    count = found > walk->width ? walk->width : found;
    if (!get_ids(read, walk, spans, count, &ids, &count, &all) || !take_ids(read, &ids, &looked_at))
        return false;
    walk->scanned += looked_at;
    if (looked_at) {
        str_copy(str_of(ids.at[looked_at - 1]), walk->last, sizeof walk->last);
        str_copy(str_of(walk->last), walk->below, sizeof walk->below);
        snprintf(walk->from, sizeof walk->from, "[%.*s", RECORD_SPAN, walk->last);
    }
    if (looked_at < ids.count || !all)
        return true;
    /* All of these are done; the next may be far away, and is empty only if its jobs are gone. */
    snprintf(walk->last, sizeof walk->last, "%.*s0000000", RECORD_SPAN, spans[count - 1]);
    snprintf(walk->from, sizeof walk->from, "(%.*s", RECORD_SPAN, spans[count - 1]);
    walk->below[0] = '\0';
    walk->over = found == count;
    walk->width = ids.count >= PAGE ? 1 : walk->width < SPANS_MAX ? walk->width * 2 : SPANS_MAX;
    return true;
}

static bool job_list(struct redis_read *read)
{
    struct store_op *op = read->op;
    int64_t enough_ms = clock_mono_ms() + LONG_ENOUGH * read->timeout_ms;
    struct walk walk = {.from = "+", .width = 1};

    op->u.list.items = arena_array(op->arena, struct store_record, op->u.list.max);
    op->u.list.count = 0;
    op->u.list.bytes = 0;
    op->u.list.next = 0;
    if (op->u.list.before) {
        job_id_text(op->u.list.before, walk.below);
        snprintf(walk.from, sizeof walk.from, "[%.*s", RECORD_SPAN, walk.below);
    }
    for (int i = 0;
         !walk.over && i < STEPS_MAX && walk.scanned < SCAN_MAX &&
         !store_list_full(op, op->u.list.count) && (i == 0 || clock_mono_ms() < enough_ms);
         i++)
        if (!walk_step(read, &walk))
            return false;
    if (!walk.over && !job_id_parse(str_of(walk.last), &op->u.list.next))
        op->u.list.next = 0;
    return true;
}

static bool callbacks(struct redis_read *read)
{
    struct store_op *op = read->op;
    char after[JOB_ID_TEXT + 2] = "-";
    redisReply *reply;
    struct ids ids = {0};
    size_t looked_at = 0;
    bool ok;

    if (op->u.list.after) {
        after[0] = '(';
        job_id_text(op->u.list.after, after + 1);
    }
    op->u.list.items = arena_array(op->arena, struct store_record, op->u.list.max);
    op->u.list.count = 0;
    op->u.list.bytes = 0;
    op->u.list.next = 0;
    reply = redis_read_list(read,
                            COMMAND(read, "ZRANGEBYLEX", REDIS_KEY "callbacks", after, "+", "LIMIT",
                                    "0", arena_fmt(&read->arena, "%zu", op->u.list.max).at),
                            "list callbacks");
    if (!reply)
        return false;
    for (size_t i = 0; i < reply->elements; i++)
        if (redis_text(reply->element[i]).len == JOB_ID_TEXT)
            ids_add(read, &ids, reply->element[i]->str);
    freeReplyObject(reply);
    ok = take_ids(read, &ids, &looked_at);
    if (ok && looked_at && looked_at == op->u.list.max)
        job_id_parse(str_of(ids.at[looked_at - 1]), &op->u.list.next);
    return ok;
}

/* Lanes. Jobs come and go between these commands: the answers are only approximate snapshots. */

static bool lane_parse(struct str name, uint64_t *ret_lane)
{
    char digits[LANE_TEXT + 1], *end;

    if (name.len != LANE_TEXT || !str_copy(name, digits, sizeof digits))
        return false;
    *ret_lane = strtoull(digits, &end, 16);
    return *end == '\0' && *ret_lane != 0;
}

static const char *lane_key(struct redis_read *read, uint64_t number)
{
    return arena_fmt(&read->arena, REDIS_KEY "q:%016" PRIx64, number).at;
}

/* Adds lanes by number; those empty by now are left out. */
static bool add_lanes(struct redis_read *read, struct store_lane *found, size_t count)
{
    struct store_op *op = read->op;
    struct redis_args args[2 * LANES_MAX];
    redisReply *replies[2 * LANES_MAX];
    const redisReply *first;
    int64_t score;
    bool ok = true;

    assert(count <= LANES_MAX);
    for (size_t i = 0; i < count; i++) {
        const char *key = lane_key(read, found[i].lane);

        args[2 * i] = COMMAND(read, "ZCARD", key);
        args[2 * i + 1] = COMMAND(read, "ZRANGE", key, "0", "0", "WITHSCORES");
    }
    if (!redis_link_call_all(read->link, args, 2 * count, read->timeout_ms, replies))
        return false;
    for (size_t i = 0; i < count; i++) {
        replies[2 * i] =
            redis_read_checked(read, replies[2 * i], REDIS_REPLY_INTEGER, "count a lane");
        replies[2 * i + 1] =
            redis_read_checked(read, replies[2 * i + 1], REDIS_REPLY_ARRAY, "read a lane");
        ok = ok && replies[2 * i] && replies[2 * i + 1];
        if (!ok)
            continue;
        first = replies[2 * i + 1];
        if (first->elements != 2 || !job_id_parse(redis_text(first->element[0]), &found[i].first) ||
            !str_int(redis_text(first->element[1]), &score))
            continue; /* now empty */
        found[i].count = replies[2 * i]->integer;
        found[i].priority = (int)-score;
        op->u.lanes.items[op->u.lanes.count++] = found[i];
    }
    for (size_t i = 0; i < 2 * count; i++)
        freeReplyObject(replies[i]);
    return ok;
}

/* Reads the next lanes after `after`, as many as are still wanted; sets `more`. */
static bool some_lanes(struct redis_read *read, uint64_t *after)
{
    struct store_op *op = read->op;
    size_t left = op->u.lanes.max - op->u.lanes.count;
    size_t want = left < LANES_MAX ? left : LANES_MAX;
    const char *from = *after ? arena_fmt(&read->arena, "(%016" PRIx64, *after).at : "-";
    redisReply *reply =
        redis_read_list(read,
                        COMMAND(read, "ZRANGEBYLEX", REDIS_KEY "lanes", from, "+", "LIMIT", "0",
                                arena_fmt(&read->arena, "%zu", want + 1).at),
                        "list lanes");
    struct store_lane found[LANES_MAX];
    size_t count = 0;

    if (!reply)
        return false;
    op->u.lanes.more = reply->elements > want;
    for (size_t i = 0; i < reply->elements && i < want; i++)
        if (lane_parse(redis_text(reply->element[i]), after))
            found[count++] = (struct store_lane){.lane = *after};
    freeReplyObject(reply);
    op->u.lanes.more &= count > 0 || want == 0; /* foreign entries end the list */
    return count == 0 || add_lanes(read, found, count);
}

static bool lanes(struct redis_read *read)
{
    struct store_op *op = read->op;
    uint64_t after = op->u.lanes.after;

    op->u.lanes.items = arena_array(op->arena, struct store_lane, op->u.lanes.max);
    op->u.lanes.count = 0;
    do {
        if (!some_lanes(read, &after))
            return false;
    } while (op->u.lanes.more && op->u.lanes.count < op->u.lanes.max);
    return true;
}

/* Reads many texts at once into the op's arena; a missing one is STR_NONE. */
static bool read_texts(struct redis_read *read, const struct redis_args *args, size_t count,
                       struct str *ret_texts)
{
    redisReply *replies[PAGE];

    assert(count <= PAGE);
    if (count == 0)
        return true;
    if (!read_all(read, args, count, REDIS_REPLY_STRING, "read a key", replies))
        return false;
    for (size_t i = 0; i < count; i++) {
        ret_texts[i] = store_kept(read->op->arena, redis_text(replies[i]));
        freeReplyObject(replies[i]);
    }
    return true;
}

/* Reads the Idempotency-Keys of jobs that have one: first the keys, then what they map to. */
static bool read_keys(struct redis_read *read, struct store_record *const *keyed, size_t count)
{
    struct redis_args args[PAGE];
    struct str keys[PAGE], leads_to[PAGE];

    for (size_t i = 0; i < count; i++) {
        char id[JOB_ID_TEXT + 1];

        job_id_text(keyed[i]->head.id, id);
        args[i] = COMMAND(read, "HGET", key_of(read, "j", RECORD_BUCKET, id),
                          arena_fmt(&read->arena, "%s:k", id).at);
    }
    if (!read_texts(read, args, count, keys))
        return false;
    for (size_t i = 0; i < count; i++)
        args[i] = COMMAND(read, "GET",
                          arena_fmt(&read->arena, REDIS_KEY "k:" STR_FMT, STR_ARG(keys[i])).at);
    if (!read_texts(read, args, count, leads_to))
        return false;
    for (size_t i = 0; i < count; i++) {
        /* "JOB FINGERPRINT NODE". It may map to another job by now. */
        struct str job = str_cut(&leads_to[i], ' '), digits = str_cut(&leads_to[i], ' ');
        char hex[2 * sizeof keyed[i]->fingerprint + 1];
        uint64_t id;

        if (!job_id_parse(job, &id) || id != keyed[i]->head.id ||
            !str_copy(digits, hex, sizeof hex))
            continue;
        keyed[i]->idem = keys[i];
        keyed[i]->fingerprint = strtoull(hex, NULL, 16);
    }
    return true;
}

/* Adds those of the ids that are still in this lane. */
static bool add_waiting(struct redis_read *read, const char *const *ids, size_t count)
{
    struct store_op *op = read->op;
    struct store_record *keyed[PAGE];
    size_t keyed_count = 0;
    struct page page;

    if (!get_jobs(read, ids, count, &page))
        return false;
    for (size_t i = 0; i < count; i++) {
        struct store_record *record = &op->u.lane.items[op->u.lane.count];
        bool has_key;

        if (!read_job(read, op, ids[i], page.fields[i], record, &has_key) ||
            record->head.lane != op->u.lane.lane)
            continue;
        if (has_key)
            keyed[keyed_count++] = record;
        op->u.lane.count++;
    }
    page_free(&page);
    return read_keys(read, keyed, keyed_count);
}

/* Reads the lane's length and its first ids. */
static bool get_lane(struct redis_read *read, struct ids *ids)
{
    struct store_op *op = read->op;
    const char *key = lane_key(read, op->u.lane.lane);
    const char *last = arena_fmt(&read->arena, "%zu", op->u.lane.max - 1).at;
    const struct redis_args args[] = {COMMAND(read, "ZCARD", key),
                                      COMMAND(read, "ZRANGE", key, "0", last)};
    size_t asked = op->u.lane.max ? 2 : 1;
    redisReply *replies[2];
    bool ok = true;

    if (!redis_link_call_all(read->link, args, asked, read->timeout_ms, replies))
        return false;
    for (size_t i = 0; i < asked; i++) {
        replies[i] = redis_read_checked(read, replies[i],
                                        i ? REDIS_REPLY_ARRAY : REDIS_REPLY_INTEGER, "read a lane");
        ok = ok && replies[i];
    }
    if (ok)
        op->u.lane.waiting = replies[0]->integer;
    for (size_t i = 0; ok && asked > 1 && i < replies[1]->elements; i++)
        if (redis_text(replies[1]->element[i]).len == JOB_ID_TEXT)
            ids_add(read, ids, replies[1]->element[i]->str);
    for (size_t i = 0; i < asked; i++)
        freeReplyObject(replies[i]);
    return ok;
}

static bool lane(struct redis_read *read)
{
    struct store_op *op = read->op;
    struct ids list = {0};
    size_t bytes = 0;

    op->u.lane.count = 0;
    if (!get_lane(read, &list))
        return false;
    op->u.lane.items = arena_array(op->arena, struct store_record, list.count);
    for (size_t at = 0, count; at < list.count; at += count) {
        const char *ids[PAGE];
        size_t page = page_size(op->u.lane.bytes_max, bytes, at, bytes);
        size_t before = op->u.lane.count;

        for (count = 0; at + count < list.count && count < page; count++)
            ids[count] = list.at[at + count];
        if (!add_waiting(read, ids, count))
            return false;
        for (size_t i = before; i < op->u.lane.count; i++) {
            bytes += store_record_bytes(&op->u.lane.items[i]);
            if (op->u.lane.bytes_max && i > 0 && bytes > op->u.lane.bytes_max) {
                op->u.lane.count = i;
                return true;
            }
        }
    }
    return true;
}

/* "version updated pool\npair" */
static bool session_get(struct redis_read *read)
{
    struct store_op *op = read->op;
    struct str key = op->u.session.key;
    const char *words[] = {"GET", NULL};
    size_t lens[] = {3, 0};
    redisReply *reply;
    struct str text;

    words[1] = arena_fmt(&read->arena, REDIS_KEY "s:" STR_FMT, STR_ARG(key)).at;
    lens[1] = sizeof(REDIS_KEY "s:") - 1 + key.len;
    reply = redis_read_checked(
        read,
        redis_link_call(read->link, &(struct redis_args){.count = 2, .texts = words, .lens = lens},
                        redis_read_due_ms(read)),
        REDIS_REPLY_STRING, "read a session");
    if (!reply)
        return false;
    text = redis_text(reply);
    if (text.at && str_int(str_cut(&text, ' '), &op->u.session.version) &&
        str_int(str_cut(&text, ' '), &op->u.session.updated_ms) && text.at) {
        op->u.session.preferred_pool = arena_str(op->arena, str_cut(&text, '\n'));
        op->u.session.lang_pair = arena_str(op->arena, text);
    } else {
        op->err = ERR_NOT_FOUND;
    }
    freeReplyObject(reply);
    return true;
}

/* --- nodes --- */

#define SCAN_COUNT "512"

enum {
    NODES_PAGE = 512,
    BESIDE_MAX =
        2 * NODES_PAGE, /* nodes of one round trip: a scan may return some more than asked for */
    FIELDS_MAX = 256,   /* of one command */
    ASKS_MAX = 1 + NODES_PAGE / FIELDS_MAX + BESIDE_MAX / FIELDS_MAX * 5,
};

/* Data outside the records, one command each. COUNTS leaves out the last, which is long. */
enum { BESIDE_ADMIN, BESIDE_LINKS, BESIDE_LIVE, BESIDE_RESOURCES, BESIDE_FACTS, BESIDE_COUNT };
static const char *const beside_keys[BESIDE_COUNT] = {
    REDIS_KEY "admin", REDIS_KEY "links", REDIS_KEY "live", REDIS_KEY "r", REDIS_KEY "facts"};

struct nodes {
    struct redis_read *read;
    struct wire_state state; /* before the first of them was read */
    struct map seen;         /* a scan may return one twice */
    struct store_node *items;
    size_t count;
    size_t cap;
    size_t complete; /* how many have their other data */
    size_t named;    /* how many of those asked for by name were read */
    char cursor[32]; /* cursor of the scan */
    bool all_read;   /* no records are left to read */
};

/* Takes the replies starting at one command, which asked about `count` nodes. */
typedef bool take_replies(struct nodes *nodes, redisReply *const *replies, size_t count);

/* One round trip. */
struct round {
    struct arena arena; /* of the commands */
    struct redis_args args[ASKS_MAX];
    redisReply *replies[ASKS_MAX];
    take_replies *takes[ASKS_MAX]; /* NULL: taken with the ones before */
    size_t counts[ASKS_MAX];
    size_t asked;
};

static const char *redis_state_words[4] = {"HMGET", REDIS_KEY "meta", "state", "format"};

bool redis_read_state(struct redis_read *read, const redisReply *reply,
                      struct wire_state *ret_state)
{
    struct str state, format;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2)
        return redis_link_fail(read->link, "read the state",
                               reply->type == REDIS_REPLY_ERROR ? reply->str : NULL);
    state = redis_text(reply->element[0]);
    format = redis_text(reply->element[1]);
    *ret_state = (struct wire_state){0};
    if (!state.at || (format_is_readable(format) && wire_state_read(state, ret_state)))
        return true;
    format_explain(format, read->link->why, sizeof read->link->why);
    return false;
}

/* Eight hexadecimal digits; 0: no instance. */
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

/* Decodes `links` and `live` of lua/peer.lua; `now_ms` is store time. */
static void wire_live_read(struct str link, struct str live, int64_t now_ms,
                           struct store_live *ret_live)
{
    struct store_live read = {.silent_ms = -1};
    int64_t kind = 0;

    if (link.at && read_name(str_cut(&link, ' '), &read.instance)) {
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

static bool add_node(struct nodes *nodes, struct str id, struct str packed)
{
    struct arena *arena = nodes->read->op->arena;
    struct wire_node node;
    size_t cap = nodes->cap;

    if (!redis_read_known(nodes->read, packed))
        return false;
    if (map_get(&nodes->seen, id) || !wire_node_read(packed, &node) || !node.known)
        return true;
    if (nodes->count == cap) {
        nodes->cap = cap ? cap * 2 : 64;
        nodes->items = cap ? arena_resize(arena, nodes->items, cap * sizeof *nodes->items,
                                          nodes->cap * sizeof *nodes->items)
                           : arena_array(arena, struct store_node, nodes->cap);
    }
    nodes->items[nodes->count] = (struct store_node){.id = arena_str(arena, id),
                                                     .counts = node.counts,
                                                     .own = node.own,
                                                     .admin = node.admin,
                                                     .admin_reason = STR(""),
                                                     .registered_ms = node.registered_ms,
                                                     .version = node.version};
    map_put(&nodes->seen, nodes->items[nodes->count].id, nodes->read);
    nodes->count++;
    return true;
}

static size_t at_most(size_t count, size_t max)
{
    return count < max ? count : max;
}

static size_t beside_count(const struct nodes *nodes)
{
    return nodes->read->op->verb == STORE_NODES ? BESIDE_COUNT : BESIDE_FACTS;
}

/* --- taking --- */

static bool is_broken(struct nodes *nodes, const redisReply *reply, const char *why)
{
    redis_link_fail(nodes->read->link, "read the nodes",
                    reply->type == REDIS_REPLY_ERROR ? reply->str : why);
    return false;
}

static bool take_state(struct nodes *nodes, redisReply *const *replies, size_t count)
{
    return redis_read_state(nodes->read, replies[0], &nodes->state);
}

static bool are_fields(struct nodes *nodes, const redisReply *reply, size_t count)
{
    return (reply->type == REDIS_REPLY_ARRAY && reply->elements == count) ||
           is_broken(nodes, reply, "not as many as were asked for");
}

static bool take_named(struct nodes *nodes, redisReply *const *replies, size_t count)
{
    const struct store_op *op = nodes->read->op;

    if (!are_fields(nodes, replies[0], count))
        return false;
    for (size_t i = 0; i < count; i++, nodes->named++)
        if (!add_node(nodes, op->u.nodes.ids[nodes->named], redis_text(replies[0]->element[i])))
            return false;
    nodes->all_read = nodes->named == op->u.nodes.id_count;
    return true;
}

/* The cursor is "0" at the end. */
static bool take_scan(struct nodes *nodes, redisReply *const *replies, size_t count)
{
    const redisReply *reply = replies[0];
    const redisReply *list;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        reply->element[1]->type != REDIS_REPLY_ARRAY ||
        !str_copy(redis_text(reply->element[0]), nodes->cursor, sizeof nodes->cursor))
        return is_broken(nodes, reply, "not a page");
    list = reply->element[1];
    for (size_t i = 0; i + 1 < list->elements; i += 2)
        if (!add_node(nodes, redis_text(list->element[i]), redis_text(list->element[i + 1])))
            return false;
    nodes->all_read = strcmp(nodes->cursor, "0") == 0;
    return true;
}

static struct str kept_node(struct nodes *nodes, const redisReply *reply)
{
    struct str text = redis_text(reply);

    return text.at ? arena_str(nodes->read->op->arena, text) : STR("");
}

static bool take_beside(struct nodes *nodes, redisReply *const *replies, size_t count)
{
    for (size_t kind = 0; kind < beside_count(nodes); kind++)
        if (!are_fields(nodes, replies[kind], count))
            return false;
    for (size_t i = 0; i < count; i++) {
        struct store_node *node = &nodes->items[nodes->complete++];
        struct str declared;

        node->admin_reason = kept_node(nodes, replies[BESIDE_ADMIN]->element[i]);
        wire_live_read(redis_text(replies[BESIDE_LINKS]->element[i]),
                       redis_text(replies[BESIDE_LIVE]->element[i]), nodes->state.now_ms,
                       &node->live);
        node->resources = STR("");
        declared = STR("");
        if (wire_resources_read(redis_text(replies[BESIDE_RESOURCES]->element[i]), &declared,
                                &node->left) &&
            beside_count(nodes) == BESIDE_COUNT)
            node->resources = arena_str(nodes->read->op->arena, declared);
        if (beside_count(nodes) == BESIDE_COUNT)
            node->facts = kept_node(nodes, replies[BESIDE_FACTS]->element[i]);
    }
    return true;
}

/* --- asking --- */

static void ask(struct round *round, struct redis_args args, take_replies *take, size_t count)
{
    assert(round->asked < ASKS_MAX);
    round->args[round->asked] = args;
    round->takes[round->asked] = take;
    round->counts[round->asked++] = count;
}

static void ask_fields(struct round *round, const char *key, const struct str *ids, size_t count,
                       take_replies *take)
{
    const char **words = arena_array(&round->arena, const char *, count + 2);
    size_t *lens = arena_array(&round->arena, size_t, count + 2);

    assert(count > 0 && count <= FIELDS_MAX);
    words[0] = "HMGET";
    words[1] = key;
    lens[0] = strlen(words[0]);
    lens[1] = strlen(key);
    for (size_t i = 0; i < count; i++) {
        words[i + 2] = ids[i].at;
        lens[i + 2] = ids[i].len;
    }
    ask(round, (struct redis_args){.count = (int)count + 2, .texts = words, .lens = lens}, take,
        count);
}

static void ask_named(struct nodes *nodes, struct round *round)
{
    const struct store_op *op = nodes->read->op;
    size_t end = at_most(op->u.nodes.id_count, nodes->named + NODES_PAGE);

    for (size_t at = nodes->named; at < end; at += FIELDS_MAX)
        ask_fields(round, REDIS_KEY "n", op->u.nodes.ids + at, at_most(end - at, FIELDS_MAX),
                   take_named);
}

static void ask_beside(struct nodes *nodes, struct round *round)
{
    size_t end = at_most(nodes->count, nodes->complete + BESIDE_MAX);

    for (size_t at = nodes->complete; at < end; at += FIELDS_MAX) {
        size_t count = at_most(end - at, FIELDS_MAX);
        struct str *ids = arena_array(&round->arena, struct str, count);

        for (size_t i = 0; i < count; i++)
            ids[i] = nodes->items[at + i].id;
        for (size_t kind = 0; kind < beside_count(nodes); kind++)
            ask_fields(round, beside_keys[kind], ids, count, kind == 0 ? take_beside : NULL);
    }
}

/* NODES, COUNTS. */
static bool redis_read_nodes(struct redis_read *read)
{
    struct store_op *op = read->op;
    struct nodes nodes = {.read = read, .cursor = "0"};
    const char *scan[] = {"HSCAN", REDIS_KEY "n", nodes.cursor, "COUNT", SCAN_COUNT};
    struct round *round = mem_new(struct round);
    bool named = op->verb == STORE_NODES && op->u.nodes.ids;
    bool ok = true;

    ask(round,
        (struct redis_args){.count = COUNT_OF(redis_state_words), .texts = redis_state_words},
        take_state, 0);
    nodes.all_read = named && op->u.nodes.id_count == 0;
    do {
        if (!nodes.all_read && named)
            ask_named(&nodes, round);
        else if (!nodes.all_read)
            ask(round, (struct redis_args){.count = COUNT_OF(scan), .texts = scan}, take_scan, 0);
        ask_beside(&nodes, round);
        if (!redis_link_call_all(read->link, round->args, round->asked, read->timeout_ms,
                                 round->replies)) {
            ok = false;
            break;
        }
        for (size_t i = 0; ok && i < round->asked; i++)
            if (round->takes[i])
                ok = round->takes[i](&nodes, &round->replies[i], round->counts[i]);
        for (size_t i = 0; i < round->asked; i++)
            freeReplyObject(round->replies[i]);
        arena_reset(&round->arena);
        round->asked = 0;
    } while (ok && (!nodes.all_read || nodes.complete < nodes.count));
    arena_free(&round->arena);
    free(round);
    map_free(&nodes.seen);
    op->order = nodes.state.order;
    op->u.nodes.version = nodes.state.version;
    op->u.nodes.items = nodes.items;
    op->u.nodes.count = ok ? nodes.count : 0;
    return ok;
}

/* --- instances --- */

static bool wire_peer_read(struct str name, struct str text, int64_t now_ms,
                           struct store_peer *ret_peer)
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

/* PEERS. */
static bool redis_read_peers(struct redis_read *read)
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

/* --- verbs --- */

typedef bool read_verb(struct redis_read *read); /* false: the store failed */

static read_verb *const verbs[STORE_VERB_COUNT] = {
    [STORE_JOB_GET] = job_get,
    [STORE_JOB_LIST] = job_list,
    [STORE_CALLBACKS] = callbacks,
    [STORE_SESSION_GET] = session_get,
    [STORE_LANES] = lanes,
    [STORE_LANE] = lane,
    [STORE_NODES] = redis_read_nodes,
    [STORE_COUNTS] = redis_read_nodes,
    [STORE_PEERS] = redis_read_peers,
};

bool redis_read_answers(enum store_verb verb)
{
    assert(verb < STORE_VERB_COUNT);
    return verbs[verb] != NULL;
}

bool redis_read_is_long(enum store_verb verb)
{
    return verb == STORE_NODES || verb == STORE_COUNTS || verb == STORE_JOB_LIST ||
           verb == STORE_CALLBACKS;
}

bool redis_read_run(struct redis_link *link, struct store_op *op, int64_t timeout_ms,
                    int64_t offset_ms)
{
    struct redis_read read = {
        .link = link, .op = op, .timeout_ms = timeout_ms, .offset_ms = offset_ms};
    bool ok;

    assert(op->arena);
    op->err = ERR_OK;
    op->head.id = 0;
    ok = verbs[op->verb](&read);
    arena_free(&read.arena);
    return ok;
}
