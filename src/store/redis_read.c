/* JOB_GET, JOB_LIST, CALLBACKS, SESSION_GET, NODES and COUNTS. */
#include "store/redis_read.h"

#include "base/json.h"
#include "store/redis_wire.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BUCKET_LEN = 6,  /* as lua/unit.lua has it */
    WINDOW_LEN = 8,  /* likewise */
    PAGE = 64,       /* jobs of one HMGET */
    SCAN_MAX = 4096, /* jobs one list looks at */
    STEPS_MAX = 256, /* and calls it makes */
    FIELDS = 4,      /* of a job: head, spec, attempts, result */
};

#define MEMBERS "64" /* of a bucket's list, at a time */

typedef bool read_verb(struct redis_read *read); /* false: the store failed */
static read_verb job_get, job_list, callbacks, session_get;

static read_verb *const verbs[STORE_VERB_COUNT] = {
    [STORE_JOB_GET] = job_get,        [STORE_JOB_LIST] = job_list,
    [STORE_CALLBACKS] = callbacks,    [STORE_SESSION_GET] = session_get,
    [STORE_NODES] = redis_read_nodes, [STORE_COUNTS] = redis_read_nodes,
    [STORE_PEERS] = redis_read_peers,
};

bool redis_read_answers(enum store_verb verb)
{
    assert(verb < STORE_VERB_COUNT);
    return verbs[verb] != NULL;
}

bool redis_read_run(struct redis_link *link, struct store_op *op, int64_t deadline_ms)
{
    struct redis_read read = {.link = link, .op = op, .deadline_ms = deadline_ms};
    bool ok;

    assert(op->arena);
    op->err = ERR_OK;
    op->head.id = 0;
    ok = verbs[op->verb](&read);
    arena_free(&read.arena);
    return ok;
}

/* An error, or not the shape that was asked for, is a failure of the store. */
redisReply *redis_read_checked(struct redis_read *read, redisReply *reply, int type,
                               const char *what)
{
    if (!reply || reply->type == type ||
        (type == REDIS_REPLY_STRING && reply->type == REDIS_REPLY_NIL))
        return reply;
    redis_link_fail(read->link, what, reply->type == REDIS_REPLY_ERROR ? reply->str : NULL);
    freeReplyObject(reply);
    return NULL;
}

redisReply *redis_read_list(struct redis_read *read, struct redis_args args, const char *what)
{
    return redis_read_checked(read, redis_link_call(read->link, &args, read->deadline_ms),
                              REDIS_REPLY_ARRAY, what);
}

static const char *bucket_key(struct redis_read *read, const char *kind, const char *id)
{
    return arena_fmt(&read->arena, REDIS_KEY "%s:%.*s", kind, BUCKET_LEN, id).at;
}

/* The fields of some jobs of one bucket, FIELDS each. */
static redisReply *get_jobs(struct redis_read *read, const char *const *ids, size_t count)
{
    static const char *const tails[FIELDS] = {"", ":s", ":h", ":r"};
    const char *words[2 + FIELDS * PAGE];
    struct redis_args args = {.count = 2, .texts = words};

    assert(count > 0 && count <= PAGE);
    words[0] = "HMGET";
    words[1] = bucket_key(read, "j", ids[0]);
    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < FIELDS; k++)
            words[args.count++] = arena_fmt(&read->arena, "%s%s", ids[i], tails[k]).at;
    return redis_read_list(read, args, "read a job");
}

static struct str kept(struct arena *arena, struct str text)
{
    return text.at ? arena_str(arena, text) : STR_NONE;
}

/* False: there is no such job. */
static bool read_job(struct redis_read *read, const char *id, redisReply *const *fields,
                     struct store_record *ret_record)
{
    struct arena *arena = read->op->arena;
    struct store_record record = {0};
    struct wire_job job;

    if (!job_id_parse(str_of(id), &record.head.id) ||
        !wire_job_read(redis_text(fields[0]), &record.head, &job))
        return false;
    record.spec = kept(arena, redis_text(fields[1]));
    record.history = kept(arena, redis_text(fields[2]));
    if (job.done_once)
        record.history = wire_history(&record.head, arena);
    else if (!record.history.at)
        record.history = STR("[]");
    record.result = kept(arena, job.result.at ? job.result : redis_text(fields[3]));
    *ret_record = record;
    return true;
}

static bool job_get(struct redis_read *read)
{
    struct store_op *op = read->op;
    char id[JOB_ID_TEXT + 1];
    const char *ids[] = {id};
    redisReply *reply;

    op->err = ERR_NOT_FOUND;
    if (op->job == 0)
        return true;
    job_id_text(op->job, id);
    reply = get_jobs(read, ids, 1);
    if (!reply)
        return false;
    if (reply->elements == FIELDS && read_job(read, id, reply->element, &op->record)) {
        op->head = op->record.head;
        op->err = ERR_OK;
    }
    freeReplyObject(reply);
    return true;
}

static bool text_fits(const struct json *spec, const char *name, struct str want,
                      struct arena *arena)
{
    return !want.at || str_eq(json_str(json_get(spec, name), arena), want);
}

static bool spec_fits(struct str text, const struct store_op *op)
{
    struct arena arena = {0};
    const struct json *spec;
    bool fits = !op->u.list.type.at && !op->u.list.session.at;

    if (!fits && !json_parse(text, &arena, &spec, NULL))
        fits = text_fits(spec, "type", op->u.list.type, &arena) &&
               text_fits(spec, "session_id", op->u.list.session, &arena);
    arena_free(&arena);
    return fits;
}

static bool fits(const struct store_op *op, redisReply *const *fields)
{
    struct store_head head = {0};
    struct wire_job job;

    if (!wire_job_read(redis_text(fields[0]), &head, &job))
        return false; /* in the index already, or still: its record is not */
    if (op->verb == STORE_CALLBACKS)
        return head.callback == CALLBACK_PENDING;
    if (op->u.list.states && !(op->u.list.states >> head.state & 1))
        return false;
    if (op->u.list.node_id.at && !str_is(op->u.list.node_id, head.node))
        return false;
    if (op->u.list.type.at && *head.type && !str_is(op->u.list.type, head.type))
        return false;
    return spec_fits(redis_text(fields[1]), op);
}

/* Job ids one after the other, each with a NUL behind it. */
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

/* A part of a list: ids in order, all looked at unless the page is full before. */
static bool take_ids(struct redis_read *read, const struct ids *list, size_t *ret_looked_at)
{
    struct store_op *op = read->op;
    size_t at = 0;

    while (at < list->count && op->u.list.count < op->u.list.max) {
        const char *ids[PAGE];
        size_t count = 0;
        redisReply *reply;

        /* As many as share a bucket. */
        for (size_t i = at; i < list->count && count < PAGE; i++) {
            if (count && strncmp(ids[0], list->at[i], BUCKET_LEN) != 0)
                break;
            ids[count++] = list->at[i];
        }
        reply = get_jobs(read, ids, count);
        if (!reply)
            return false;
        for (size_t i = 0; i < count && op->u.list.count < op->u.list.max; i++, at++)
            if (reply->elements == count * FIELDS && fits(op, reply->element + i * FIELDS) &&
                read_job(read, ids[i], reply->element + i * FIELDS,
                         &op->u.list.items[op->u.list.count]))
                op->u.list.count++;
        freeReplyObject(reply);
    }
    *ret_looked_at = at;
    return true;
}

/* Where a list stands: below an id of a bucket, or at its newest. */
struct walk {
    char bucket[BUCKET_LEN + 1]; /* "": behind the last one */
    char below[JOB_ID_TEXT + 1]; /* "": from the newest */
    char last[JOB_ID_TEXT + 1];  /* looked at last */
    size_t scanned;
};

/* The newest bucket up to `from`, which is a border as ZREVRANGEBYLEX knows them. */
static bool find_bucket(struct redis_read *read, struct walk *walk, const char *from)
{
    const char *words[] = {"ZREVRANGEBYLEX", REDIS_KEY "buckets", from, "-", "LIMIT", "0", "1"};
    redisReply *reply =
        redis_read_list(read, (struct redis_args){.count = 7, .texts = words}, "list jobs");

    if (!reply)
        return false;
    walk->bucket[0] = '\0';
    if (reply->elements && redis_text(reply->element[0]).len == BUCKET_LEN)
        str_copy(redis_text(reply->element[0]), walk->bucket, sizeof walk->bucket);
    freeReplyObject(reply);
    return true;
}

static bool walk_begin(struct redis_read *read, struct walk *walk, uint64_t before)
{
    *walk = (struct walk){0};
    if (!before)
        return find_bucket(read, walk, "+");
    job_id_text(before, walk->below);
    return find_bucket(read, walk, arena_fmt(&read->arena, "[%.*s", BUCKET_LEN, walk->below).at);
}

/* Members of a bucket's list from the newest: each has ids of one window of time, in order. */
static redisReply *get_members(struct redis_read *read, const struct walk *walk, const char *from,
                               const char *limit)
{
    const char *words[] = {"ZREVRANGEBYLEX", NULL, "+", from, "LIMIT", "0", limit};

    words[1] = bucket_key(read, "l", walk->bucket);
    if (*walk->below)
        words[2] = arena_fmt(&read->arena, "(%s", walk->below).at;
    return redis_read_list(read, (struct redis_args){.count = limit ? 7 : 4, .texts = words},
                           "list jobs");
}

static bool same_window(const redisReply *left, const redisReply *right)
{
    return strncmp(left->str, right->str, WINDOW_LEN) == 0;
}

static bool are_ids(const redisReply *reply)
{
    for (size_t i = 0; i < reply->elements; i++)
        if (redis_text(reply->element[i]).len < JOB_ID_TEXT ||
            redis_text(reply->element[i]).len % JOB_ID_TEXT != 0)
            return false;
    return true;
}

/* Members up to the last whole window: of one that goes on behind them not all is known. */
static redisReply *get_windows(struct redis_read *read, const struct walk *walk, size_t *ret_count,
                               bool *ret_all)
{
    redisReply *reply = get_members(read, walk, "-", MEMBERS);
    size_t count;

    *ret_all = true;
    if (!reply)
        return NULL;
    if (!are_ids(reply)) {
        freeReplyObject(reply);
        redis_link_fail(read->link, "read a list", "not job ids");
        return NULL;
    }
    count = reply->elements;
    if (count == (size_t)atoi(MEMBERS)) {
        const redisReply *last = reply->element[count - 1];

        *ret_all = false;
        while (count > 0 && same_window(reply->element[count - 1], last))
            count--;
        if (count == 0) {
            const char *from =
                arena_fmt(&read->arena, "[%.*s", WINDOW_LEN, reply->element[0]->str).at;

            freeReplyObject(reply);
            reply = get_members(read, walk, from, NULL);
            count = reply && are_ids(reply) ? reply->elements : 0;
        }
    }
    *ret_count = count;
    return reply;
}

static int newest_first(const void *a, const void *b)
{
    return strcmp(b, a);
}

static struct ids ids_of(struct redis_read *read, const struct walk *walk, const redisReply *reply,
                         size_t count)
{
    struct ids ids = {0};

    for (size_t i = 0; i < count; i++)
        for (size_t at = 0; at < reply->element[i]->len; at += JOB_ID_TEXT)
            if (!*walk->below || strncmp(reply->element[i]->str + at, walk->below, JOB_ID_TEXT) < 0)
                ids_add(read, &ids, reply->element[i]->str + at);
    if (ids.count)
        qsort(ids.at, ids.count, sizeof *ids.at, newest_first);
    return ids;
}

static bool walk_step(struct redis_read *read, struct walk *walk)
{
    size_t looked_at = 0;
    size_t count = 0;
    bool all;
    redisReply *reply = get_windows(read, walk, &count, &all);
    struct ids ids;
    bool ok;

    if (!reply)
        return false;
    ids = ids_of(read, walk, reply, count);
    freeReplyObject(reply);
    ok = take_ids(read, &ids, &looked_at);
    walk->scanned += looked_at;
    if (looked_at) {
        str_copy(str_of(ids.at[looked_at - 1]), walk->last, sizeof walk->last);
        str_copy(str_of(walk->last), walk->below, sizeof walk->below);
    }
    if (!ok || looked_at < ids.count || !all)
        return ok;
    /* All of this bucket; the next may be far away, and is empty only if its jobs are gone. */
    snprintf(walk->last, sizeof walk->last, "%s00000000", walk->bucket);
    walk->below[0] = '\0';
    return find_bucket(read, walk, arena_fmt(&read->arena, "(%s", walk->bucket).at);
}

static bool job_list(struct redis_read *read)
{
    struct store_op *op = read->op;
    struct walk walk;

    op->u.list.items = arena_array(op->arena, struct store_record, op->u.list.max);
    op->u.list.count = 0;
    op->u.list.next = 0;
    if (!walk_begin(read, &walk, op->u.list.before))
        return false;
    for (int i = 0; *walk.bucket && i < STEPS_MAX && walk.scanned < SCAN_MAX &&
                    op->u.list.count < op->u.list.max;
         i++)
        if (!walk_step(read, &walk))
            return false;
    if (*walk.bucket && !job_id_parse(str_of(walk.last), &op->u.list.next))
        op->u.list.next = 0;
    return true;
}

static bool callbacks(struct redis_read *read)
{
    struct store_op *op = read->op;
    char after[JOB_ID_TEXT + 2] = "-";
    char max[24];
    const char *words[] = {"ZRANGEBYLEX", REDIS_KEY "callbacks", after, "+", "LIMIT", "0", max};
    redisReply *reply;
    struct ids ids = {0};
    size_t looked_at = 0;
    bool ok;

    if (op->u.list.after) {
        after[0] = '(';
        job_id_text(op->u.list.after, after + 1);
    }
    snprintf(max, sizeof max, "%zu", op->u.list.max);
    op->u.list.items = arena_array(op->arena, struct store_record, op->u.list.max);
    op->u.list.count = 0;
    op->u.list.next = 0;
    reply =
        redis_read_list(read, (struct redis_args){.count = 7, .texts = words}, "list callbacks");
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
                        read->deadline_ms),
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
