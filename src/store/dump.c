/* Writes a dump in the same form for every store: from the embedded store's file, which a server
 * may be writing at the same time, or from Redis, page by page. Read-only. */
#include "store/dump.h"

#include <assert.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "model/demand.h"
#include "store/reader.h"
#include "store/redis_read.h"
#include "store/redis_wire.h"
#include "store/store.h"

/* --- output --- */

/* Declared, usable and free resources. */
static void dump_resources(struct jsonw *w, const struct store_node *node)
{
    struct buf amount = {0};
    struct resources declared;

    if (!node->resources.len || !resources_parse(node->resources, &declared) ||
        node->left.count != declared.count || node->left.gpu_count != declared.gpu_count)
        return;
    jsonw_kobj(w, "resources");
    for (size_t i = 0; i < declared.count; i++) {
        const struct resource *item = &declared.items[i];
        const struct {
            const char *name;
            int32_t amount;
        } rows[] = {{"of", item->capacity}, {"usable", item->usable}, {"left", node->left.left[i]}};

        jsonw_kobj(w, item->name);
        for (size_t k = 0; k < COUNT_OF(rows); k++) {
            buf_clear(&amount);
            demand_write_amount(str_of(item->name), rows[k].amount, &amount);
            jsonw_key(w, rows[k].name);
            jsonw_raw(w, buf_view(&amount));
        }
        jsonw_end_obj(w);
    }
    jsonw_karr(w, "gpus");
    for (size_t i = 0; i < declared.gpu_count; i++) {
        bool whole = node->left.gpu_left[i] == RESOURCES_LEFT_WHOLE;

        jsonw_obj(w);
        jsonw_kint(w, "id", declared.gpus[i].id);
        jsonw_kint(w, "vram_mb", declared.gpus[i].vram_mb);
        jsonw_kint(w, "usable_mb", declared.gpus[i].usable_mb);
        jsonw_kint(w, "left_mb", whole ? 0 : node->left.gpu_left[i]);
        jsonw_kbool(w, "whole", whole);
        jsonw_end_obj(w);
    }
    jsonw_end_arr(w);
    jsonw_end_obj(w);
    buf_free(&amount);
}

static void dump_node(struct jsonw *w, const struct store_node *node)
{
    jsonw_obj(w);
    jsonw_kstr(w, "node_id", node->id);
    jsonw_kstr(w, "health", str_of(node_health_name(node->counts.health)));
    jsonw_kint(w, "max", node->counts.max);
    jsonw_kint(w, "reserved", node->counts.reserved);
    jsonw_kint(w, "running", node->counts.running);
    jsonw_kint(w, "epoch", node->counts.epoch);
    jsonw_kint(w, "version", node->version);
    jsonw_kint(w, "registered_ms", node->registered_ms);
    jsonw_kstr(w, "admin_reason", node->admin_reason.len ? node->admin_reason : STR_NONE);
    dump_resources(w, node);
    jsonw_kstr(w, "facts", node->facts);
    jsonw_end_obj(w);
}

static void write_id(struct jsonw *w, uint64_t id)
{
    char text[JOB_ID_TEXT + 1];

    job_id_text(id, text);
    jsonw_kstr(w, "job_id", str_of(text));
}

static void dump_job(struct jsonw *w, const struct store_head *head)
{
    jsonw_obj(w);
    write_id(w, head->id);
    jsonw_kstr(w, "state", str_of(job_state_name(head->state)));
    jsonw_kint(w, "attempt_id", head->attempt);
    jsonw_kstr(w, "node_id", head->node[0] ? str_of(head->node) : STR_NONE);
    jsonw_kstr(w, "type", head->type[0] ? str_of(head->type) : STR_NONE);
    jsonw_kstr(w, "reason", head->reason[0] ? str_of(head->reason) : STR_NONE);
    jsonw_kint(w, "owner", head->owner);
    if (head->lane) {
        char lane[17];

        snprintf(lane, sizeof lane, "%016" PRIx64, head->lane);
        jsonw_kstr(w, "lane", str_of(lane));
        jsonw_kint(w, "priority", head->priority);
    }
    jsonw_kint(w, "created_ms", head->created_ms);
    jsonw_kint(w, "updated_ms", head->updated_ms);
    jsonw_kint(w, "due_ms", head->due_ms);
    jsonw_end_obj(w);
}

static void dump_lease(struct jsonw *w, const struct store_head *head)
{
    static const char *const kinds[] = {
        [LEASE_NONE] = "none", [LEASE_RESERVED] = "reserved", [LEASE_RUNNING] = "running"};

    jsonw_obj(w);
    write_id(w, head->id);
    jsonw_kint(w, "attempt_id", head->attempt);
    jsonw_kstr(w, "node_id", str_of(head->node));
    jsonw_kstr(w, "kind", str_of(kinds[head->lease]));
    jsonw_kint(w, "epoch", head->epoch);
    jsonw_kint(w, "due_ms", head->due_ms);
    if (head->gpus) {
        jsonw_karr(w, "gpus");
        for (int id = 0; id < RESOURCES_GPU_IDS; id++)
            if (head->gpus >> id & 1)
                jsonw_int(w, id);
        jsonw_end_arr(w);
    }
    jsonw_end_obj(w);
}

static void dump_rule(struct jsonw *w, struct str pattern, struct str text)
{
    struct limit limit;

    if (!limit_parse(text, &limit))
        return;
    jsonw_obj(w);
    jsonw_kstr(w, "pattern", pattern);
    limit_write_members(&limit, w);
    jsonw_end_obj(w);
}

/* A key as stored. May include starts that have left their window: those are removed only when the
 * key is checked. */
struct dump_key {
    struct str key;
    int64_t in_flight, waiting;
    int64_t starts, last_start_ms;
    int64_t hold_until_ms; /* 0: not held */
    struct str reason;
};

static int by_key(const void *a, const void *b)
{
    return str_cmp(((const struct dump_key *)a)->key, ((const struct dump_key *)b)->key);
}

/* The first `max` by name; false: there are more. */
static bool dump_keys(struct jsonw *w, struct dump_key *keys, size_t count, size_t max)
{
    qsort(keys, count, sizeof *keys, by_key);
    jsonw_karr(w, "keys");
    for (size_t i = 0; i < count && i < max; i++) {
        const struct dump_key *key = &keys[i];

        jsonw_obj(w);
        jsonw_kstr(w, "key", key->key);
        jsonw_kint(w, "in_flight", key->in_flight);
        jsonw_kint(w, "waiting", key->waiting);
        jsonw_kint(w, "starts", key->starts);
        if (key->starts)
            jsonw_kint(w, "last_start_ms", key->last_start_ms);
        if (key->hold_until_ms) {
            jsonw_kint(w, "hold_until_ms", key->hold_until_ms);
            jsonw_kstr(w, "hold_reason", key->reason);
        }
        jsonw_end_obj(w);
    }
    jsonw_end_arr(w);
    return count <= max;
}

static void dump_session(struct jsonw *w, struct str id, struct str pool, struct str lang_pair,
                         int64_t version, int64_t updated_ms)
{
    jsonw_obj(w);
    jsonw_kstr(w, "session_id", id);
    jsonw_kstr(w, "preferred_pool", pool);
    jsonw_kstr(w, "lang_pair", lang_pair);
    jsonw_kint(w, "version", version);
    jsonw_kint(w, "updated_ms", updated_ms);
    jsonw_end_obj(w);
}

static void dump_breaker(struct jsonw *w, const struct store_breaker *breaker)
{
    jsonw_obj(w);
    jsonw_kstr(w, "node_id", breaker->node);
    jsonw_kstr(w, "type", breaker->type);
    jsonw_kstr(w, "state", str_of(breaker_state_name(breaker->breaker.state)));
    jsonw_kint(w, "failures", breaker->breaker.failures);
    jsonw_kint(w, "opened_ms", breaker->breaker.opened_ms);
    jsonw_end_obj(w);
}

/* --- embedded store --- */

struct embedded_dump {
    sqlite3 *db;
    struct jsonw *w;
    int64_t max;
    struct arena arena;
    struct map keys;  /* of struct dump_key, in the arena */
    int64_t shift_ms; /* of the store's time ahead of the steady clock */
    bool has_more;
};

typedef void write_row(struct embedded_dump *dump, sqlite3_stmt *row);

/* ?1 is the limit. */
static bool each_row(struct embedded_dump *dump, const char *sql, write_row *visit)
{
    sqlite3_stmt *stmt = NULL;
    int code = sqlite3_prepare_v2(dump->db, sql, -1, &stmt, NULL);

    if (code == SQLITE_OK && sqlite3_bind_parameter_count(stmt) > 0)
        code = sqlite3_bind_int64(stmt, 1, dump->max);
    while (code == SQLITE_OK || code == SQLITE_ROW) {
        code = sqlite3_step(stmt);
        if (code == SQLITE_ROW)
            visit(dump, stmt);
    }
    sqlite3_finalize(stmt);
    return code == SQLITE_DONE;
}

/* One section: a row of the answer is one object. */
static bool section(struct embedded_dump *dump, const char *name, const char *sql, write_row *write)
{
    bool ok;

    jsonw_karr(dump->w, name);
    ok = each_row(dump, sql, write);
    jsonw_end_arr(dump->w);
    return ok;
}

/* A node's free resources, computed from its leases. */
static void count_left(struct embedded_dump *dump, struct store_node *node)
{
    sqlite3_stmt *stmt = NULL;
    struct resources resources;
    struct demand demand;

    if (!node->resources.len || !resources_parse(node->resources, &resources))
        return;
    if (sqlite3_prepare_v2(dump->db,
                           "SELECT demand, gpus FROM job WHERE node = ?1 AND lease > 0"
                           " AND epoch = ?2 AND demand IS NOT NULL",
                           -1, &stmt, NULL) == SQLITE_OK) {
        sqlite3_bind_text(stmt, 1, node->id.at, (int)node->id.len, SQLITE_STATIC);
        sqlite3_bind_int64(stmt, 2, node->counts.epoch);
        while (sqlite3_step(stmt) == SQLITE_ROW)
            if (demand_parse(jobrow_text(stmt, 0), &demand))
                resources_take(&resources, &demand, (uint64_t)sqlite3_column_int64(stmt, 1));
    }
    sqlite3_finalize(stmt);
    resources_left(&resources, &node->left);
}

static void node_row(struct embedded_dump *dump, sqlite3_stmt *row)
{
    struct store_node node = {
        .id = jobrow_text(row, 0),
        .counts = {.health = (enum node_health)sqlite3_column_int(row, 1),
                   .max = sqlite3_column_int(row, 2),
                   .epoch = (uint32_t)sqlite3_column_int64(row, 3),
                   .reserved = sqlite3_column_int(row, 4),
                   .running = sqlite3_column_int(row, 5)},
        .version = sqlite3_column_int64(row, 6),
        .registered_ms = sqlite3_column_int64(row, 7),
        .admin_reason = jobrow_text(row, 8),
        .facts = jobrow_text(row, 9),
        .resources = jobrow_text(row, 10),
    };

    count_left(dump, &node);
    dump_node(dump->w, &node);
}

static void lease_row(struct embedded_dump *dump, sqlite3_stmt *row)
{
    struct store_head head;

    if (jobrow_head(row, &head, NULL))
        dump_lease(dump->w, &head);
}

static void job_row(struct embedded_dump *dump, sqlite3_stmt *row)
{
    struct store_head head;

    if (jobrow_head(row, &head, NULL))
        dump_job(dump->w, &head);
}

static void session_row(struct embedded_dump *dump, sqlite3_stmt *row)
{
    dump_session(dump->w, jobrow_text(row, 0), jobrow_text(row, 1), jobrow_text(row, 2),
                 sqlite3_column_int64(row, 3), sqlite3_column_int64(row, 4));
}

static void breaker_row(struct embedded_dump *dump, sqlite3_stmt *row)
{
    int state = sqlite3_column_int(row, 2);
    struct store_breaker breaker = {
        .node = jobrow_text(row, 0),
        .type = jobrow_text(row, 1),
        .breaker = {.failures = sqlite3_column_int(row, 3),
                    .opened_ms = sqlite3_column_int64(row, 4)},
    };

    if (state < 0 || state >= BREAKER_STATE_COUNT)
        return;
    breaker.breaker.state = (enum breaker_state)state;
    dump_breaker(dump->w, &breaker);
}

static void rule_row(struct embedded_dump *dump, sqlite3_stmt *row)
{
    dump_rule(dump->w, jobrow_text(row, 0), jobrow_text(row, 1));
}

static struct dump_key *key_of(struct embedded_dump *dump, struct str name)
{
    struct dump_key *key = map_get(&dump->keys, name);

    if (!key) {
        key = arena_new(&dump->arena, struct dump_key);
        key->key = arena_str(&dump->arena, name);
        map_put(&dump->keys, key->key, key);
    }
    return key;
}

/* Counts a job with a lease, or a waiting one, for its keys. */
static void count_keys(struct embedded_dump *dump, sqlite3_stmt *row)
{
    struct demand demand;

    if (!demand_parse(jobrow_text(row, 0), &demand))
        return;
    for (size_t i = 0; i < demand.key_count; i++) {
        struct dump_key *key = key_of(dump, demand.keys[i]);

        key->in_flight += sqlite3_column_int(row, 1) > 0;
        key->waiting += sqlite3_column_int64(row, 2) != 0;
    }
}

static void key_row(struct embedded_dump *dump, sqlite3_stmt *row)
{
    struct dump_key *key = key_of(dump, jobrow_text(row, 0));
    int64_t hold_until_ms = sqlite3_column_int64(row, 1);
    struct limit_window window = {0};

    if (hold_until_ms)
        key->hold_until_ms = hold_until_ms + dump->shift_ms;
    key->reason = arena_str(&dump->arena, jobrow_text(row, 2));
    if (limit_window_parse(jobrow_text(row, 3), &window) && window.count) {
        uint32_t last = (window.first + window.count - 1) % window.cap;

        key->starts = window.total;
        key->last_start_ms = window.starts[last].at_ms + dump->shift_ms;
    }
    limit_window_free(&window);
}

static void shift_row(struct embedded_dump *dump, sqlite3_stmt *row)
{
    dump->shift_ms = sqlite3_column_int64(row, 0);
}

static void more_row(struct embedded_dump *dump, sqlite3_stmt *row)
{
    dump->has_more |= sqlite3_column_int(row, 0) != 0;
}

static bool key_section(struct embedded_dump *dump)
{
    struct dump_key *keys;
    const struct dump_key *key;
    size_t count = 0;

    if (!each_row(dump, "SELECT wait_shift_ms FROM meta", shift_row) ||
        !each_row(dump,
                  "SELECT demand, lease, lane FROM job WHERE demand IS NOT NULL"
                  " AND (lease > 0 OR lane <> 0)",
                  count_keys) ||
        !each_row(dump, "SELECT key, hold_until_ms, reason, starts FROM limit_key", key_row))
        return false;
    keys = arena_array(&dump->arena, struct dump_key, dump->keys.count + 1);
    for (size_t at = 0; (key = map_next(&dump->keys, &at));)
        keys[count++] = *key;
    dump->has_more |= !dump_keys(dump->w, keys, count, (size_t)dump->max);
    return true;
}

/* A demand begins with its slots. */
#define SLOTS "coalesce(sum(CASE WHEN demand IS NULL THEN 1 ELSE CAST(demand AS INT) END), 0)"

static bool sections(struct embedded_dump *dump)
{
    return section(
               dump, "nodes",
               "SELECT id, health, max, epoch,"
               " (SELECT " SLOTS " FROM job WHERE node = n.id AND lease = 1 AND epoch = n.epoch),"
               " (SELECT " SLOTS " FROM job WHERE node = n.id AND lease = 2 AND epoch = n.epoch),"
               " version, registered_ms, admin_reason, facts, resources FROM node n ORDER BY id",
               node_row) &&
           section(dump, "leases",
                   "SELECT " JOBROW_HEAD " FROM job WHERE lease > 0 ORDER BY id DESC LIMIT ?1",
                   lease_row) &&
           section(dump, "jobs", "SELECT " JOBROW_HEAD " FROM job ORDER BY id DESC LIMIT ?1",
                   job_row) &&
           section(dump, "sessions",
                   "SELECT id, preferred_pool, lang_pair, version, updated_ms FROM session"
                   " ORDER BY seq DESC LIMIT ?1",
                   session_row) &&
           section(dump, "breakers", "SELECT node, type, state, failures, opened_ms FROM breaker",
                   breaker_row) &&
           section(dump, "limits", "SELECT pattern, rule FROM limit_rule ORDER BY pattern",
                   rule_row) &&
           key_section(dump);
}

enum err dump_embedded(const char *data_dir, size_t max, struct jsonw *w, struct problem *why)
{
    struct embedded_dump dump = {.w = w, .max = (int64_t)max};
    struct buf path = {0};
    enum err err = ERR_OK;

    buf_fmt(&path, "%s/store.db", data_dir);
    jsonw_obj(w);
    if (sqlite3_open_v2(path.at, &dump.db, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK ||
        !sections(&dump))
        err = problem_set(why, ERR_IO, "data_dir", "%s cannot be read: %s.", path.at,
                          dump.db ? sqlite3_errmsg(dump.db) : "no memory");
    if (!err) {
        jsonw_karr(w, "instances");
        jsonw_end_arr(w);
        each_row(&dump,
                 "SELECT (SELECT count(*) FROM job) > ?1 OR (SELECT count(*) FROM session) > ?1",
                 more_row);
        jsonw_kbool(w, "more", dump.has_more);
        jsonw_end_obj(w);
    }
    sqlite3_close(dump.db);
    map_free(&dump.keys);
    arena_free(&dump.arena);
    buf_free(&path);
    return err;
}

/* --- Redis --- */

enum { DUMP_MS = 30000 /* for each answer */, PAGE = 500 };

struct redis_dump {
    struct redis_link link;
    struct arena arena;
    struct jsonw *w;
    size_t max;
    size_t left_out;   /* jobs and sessions left out, at least */
    int64_t offset_ms; /* of the store's time ahead of its steady clock */
};

static bool dump_nodes(struct redis_dump *dump)
{
    struct store_op op = {.verb = STORE_NODES, .arena = &dump->arena};

    if (!redis_read_run(&dump->link, &op, DUMP_MS, dump->offset_ms))
        return false;
    jsonw_karr(dump->w, "nodes");
    for (size_t i = 0; i < op.u.nodes.count; i++)
        dump_node(dump->w, &op.u.nodes.items[i]);
    jsonw_end_arr(dump->w);
    return true;
}

static bool read_offset(struct redis_dump *dump)
{
    struct redis_read read = {.link = &dump->link, .timeout_ms = DUMP_MS};
    redisReply *reply = redis_link_ask(&dump->link, redis_read_due_ms(&read), "HMGET",
                                       REDIS_KEY "meta", "state", "format", NULL);
    struct wire_state state;
    bool ok = reply && redis_read_state(&read, reply, &state);

    if (ok)
        dump->offset_ms = state.offset_ms;
    freeReplyObject(reply);
    return ok;
}

/* Newest first. The leases among them are what dump_job leaves out. */
static bool dump_jobs(struct redis_dump *dump)
{
    struct store_op op = {.verb = STORE_JOB_LIST, .arena = &dump->arena};
    struct store_head *heads = arena_array(&dump->arena, struct store_head, dump->max);
    size_t count = 0;
    uint64_t before = 0;

    do {
        op.u.list.max = dump->max - count < PAGE ? dump->max - count : PAGE;
        op.u.list.before = before;
        if (!redis_read_run(&dump->link, &op, DUMP_MS, dump->offset_ms))
            return false;
        for (size_t i = 0; i < op.u.list.count; i++)
            heads[count++] = op.u.list.items[i].head;
        before = op.u.list.next;
    } while (before && count < dump->max);
    dump->left_out += before != 0;
    jsonw_karr(dump->w, "leases");
    for (size_t i = 0; i < count; i++)
        if (heads[i].lease != LEASE_NONE)
            dump_lease(dump->w, &heads[i]);
    jsonw_end_arr(dump->w);
    jsonw_karr(dump->w, "jobs");
    for (size_t i = 0; i < count; i++)
        dump_job(dump->w, &heads[i]);
    jsonw_end_arr(dump->w);
    return true;
}

static bool dump_sessions(struct redis_dump *dump)
{
    static const char prefix[] = REDIS_KEY "s:";
    char cursor[32] = "0";
    size_t count = 0;

    jsonw_karr(dump->w, "sessions");
    do {
        redisReply *reply = redis_link_ask(&dump->link, clock_mono_ms() + DUMP_MS, "SCAN", cursor,
                                           "MATCH", REDIS_KEY "s:*", "COUNT", "1000", NULL);
        bool page = reply && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
                    reply->element[1]->type == REDIS_REPLY_ARRAY &&
                    str_copy(redis_text(reply->element[0]), cursor, sizeof cursor);

        for (size_t i = 0; page && i < reply->element[1]->elements; i++) {
            struct store_op op = {.verb = STORE_SESSION_GET, .arena = &dump->arena};
            struct str key = redis_text(reply->element[1]->element[i]);

            if (count == dump->max || key.len <= sizeof prefix - 1) {
                dump->left_out++;
                continue;
            }
            key.at += sizeof prefix - 1;
            key.len -= sizeof prefix - 1;
            op.u.session.key = arena_str(&dump->arena, key);
            if (redis_read_run(&dump->link, &op, DUMP_MS, dump->offset_ms) && !op.err)
                dump_session(dump->w, op.u.session.key, op.u.session.preferred_pool,
                             op.u.session.lang_pair, op.u.session.version, op.u.session.updated_ms);
            count++;
        }
        freeReplyObject(reply);
        if (!page)
            return redis_link_fail(&dump->link, "list sessions", NULL);
    } while (strcmp(cursor, "0") != 0);
    jsonw_end_arr(dump->w);
    return true;
}

/* Reads a hash known to be small, names and values alternating; NULL: it cannot be read. */
static redisReply *read_hash(struct redis_dump *dump, const char *key, const char *what)
{
    redisReply *reply =
        redis_link_ask(&dump->link, clock_mono_ms() + DUMP_MS, "HGETALL", key, NULL);

    if (reply && reply->type == REDIS_REPLY_ARRAY)
        return reply;
    freeReplyObject(reply);
    redis_link_fail(&dump->link, what, NULL);
    return NULL;
}

/* At most BREAKERS_MAX of lua/breaker.lua. */
static bool dump_breakers(struct redis_dump *dump)
{
    redisReply *reply = read_hash(dump, REDIS_KEY "breakers", "read the breakers");

    if (!reply)
        return false;
    jsonw_karr(dump->w, "breakers");
    for (size_t i = 0; i + 1 < reply->elements; i += 2) {
        /* "state,failures,opened,changed,probe", under "node|type": as lua/breaker.lua has it. */
        struct str type = redis_text(reply->element[i]), node = str_cut(&type, '|');
        struct str text = redis_text(reply->element[i + 1]);
        int64_t state, failures, opened_ms;

        if (str_int(str_cut(&text, ','), &state) && str_int(str_cut(&text, ','), &failures) &&
            str_int(str_cut(&text, ','), &opened_ms) && state >= 0 && state < BREAKER_STATE_COUNT)
            dump_breaker(dump->w,
                         &(struct store_breaker){.node = node,
                                                 .type = type,
                                                 .breaker = {.state = (enum breaker_state)state,
                                                             .failures = (int32_t)failures,
                                                             .opened_ms = opened_ms}});
    }
    jsonw_end_arr(dump->w);
    freeReplyObject(reply);
    return true;
}

static int rule_order(const void *a, const void *b)
{
    redisReply *const *left = a, *const *right = b;

    return str_cmp(redis_text(left[0]), redis_text(right[0]));
}

/* At most LIMIT_RULES_MAX. */
static bool dump_rules(struct redis_dump *dump)
{
    redisReply *reply = read_hash(dump, REDIS_KEY "limits", "read the rules for keys");

    if (!reply)
        return false;
    if (reply->elements > 0)
        qsort(reply->element, reply->elements / 2, 2 * sizeof *reply->element, rule_order);
    jsonw_karr(dump->w, "limits");
    for (size_t i = 0; i + 1 < reply->elements; i += 2)
        dump_rule(dump->w, redis_text(reply->element[i]), redis_text(reply->element[i + 1]));
    jsonw_end_arr(dump->w);
    freeReplyObject(reply);
    return true;
}

/* One page: key names and the record of each. */
static redisReply *ask_keys(struct redis_dump *dump, size_t from, redisReply **ret_names)
{
    char first[24], last[24];
    const char *words[2 + PAGE] = {"HMGET", REDIS_KEY "keys"};
    struct redis_args args = {.count = 2, .texts = words};
    redisReply *names;

    snprintf(first, sizeof first, "%zu", from);
    snprintf(last, sizeof last, "%zu", from + PAGE - 1);
    names = redis_link_ask(&dump->link, clock_mono_ms() + DUMP_MS, "ZRANGE", REDIS_KEY "keyed",
                           first, last, NULL);
    if (!names || names->type != REDIS_REPLY_ARRAY || names->elements > PAGE) {
        freeReplyObject(names);
        return NULL;
    }
    for (size_t i = 0; i < names->elements; i++)
        words[args.count++] = names->element[i]->str;
    if (names->elements == 0)
        words[args.count++] = ""; /* a key without a record */
    *ret_names = names;
    return redis_link_call(&dump->link, &args, clock_mono_ms() + DUMP_MS);
}

static bool dump_redis_keys(struct redis_dump *dump)
{
    struct dump_key *keys = arena_array(&dump->arena, struct dump_key, dump->max + PAGE);
    size_t count = 0, asked = 0;

    for (bool more = true; more && count <= dump->max; asked += PAGE) {
        redisReply *names = NULL, *values = ask_keys(dump, asked, &names);
        struct wire_key kept;

        bool ok = values && values->type == REDIS_REPLY_ARRAY &&
                  (values->elements == names->elements || names->elements == 0);

        more = ok && names->elements == PAGE;
        for (size_t i = 0; ok && i < names->elements; i++)
            if (wire_key_read(redis_text(values->element[i]), &kept))
                keys[count++] = (struct dump_key){
                    .key = arena_str(&dump->arena, redis_text(names->element[i])),
                    .in_flight = kept.in_flight,
                    .waiting = kept.waiting,
                    .starts = kept.starts,
                    .last_start_ms = kept.last_start_ms + dump->offset_ms,
                    .hold_until_ms = kept.hold_until_ms ? kept.hold_until_ms + dump->offset_ms : 0,
                    .reason = arena_str(&dump->arena, kept.reason),
                };
        freeReplyObject(names);
        freeReplyObject(values);
        if (!ok)
            return redis_link_fail(&dump->link, "list keys", NULL);
    }
    dump->left_out += !dump_keys(dump->w, keys, count, dump->max);
    return true;
}

static bool dump_instances(struct redis_dump *dump)
{
    struct store_op op = {.verb = STORE_PEERS, .arena = &dump->arena};

    if (!redis_read_run(&dump->link, &op, DUMP_MS, dump->offset_ms))
        return false;
    jsonw_karr(dump->w, "instances");
    for (size_t i = 0; i < op.u.peers.count; i++) {
        const struct store_peer *peer = &op.u.peers.items[i];

        jsonw_obj(dump->w);
        jsonw_kint(dump->w, "number", peer->number);
        jsonw_kstr(dump->w, "version", str_of(peer->version));
        jsonw_kint(dump->w, "silent_ms", peer->silent_ms);
        jsonw_end_obj(dump->w);
    }
    jsonw_end_arr(dump->w);
    return true;
}

/* Writes the sections in their order. */
static enum err dump_redis(const char *url, size_t max, struct jsonw *w, struct problem *why)
{
    struct redis_target target;
    struct redis_dump dump = {.w = w, .max = max};
    enum err err = redis_url_parse(url, &target, why);
    bool ok;

    if (err)
        return err;
    redis_link_init(&dump.link, &target);
    jsonw_obj(w);
    ok = redis_link_open(&dump.link, clock_mono_ms() + DUMP_MS) && read_offset(&dump) &&
         dump_nodes(&dump) && dump_jobs(&dump) && dump_sessions(&dump) && dump_breakers(&dump) &&
         dump_rules(&dump) && dump_redis_keys(&dump) && dump_instances(&dump);
    if (ok) {
        jsonw_kbool(w, "more", dump.left_out > 0);
        jsonw_end_obj(w);
    } else {
        err = problem_set(why, ERR_IO, "store", "The store in Redis cannot be read: %s.",
                          dump.link.why);
    }
    redis_link_close(&dump.link);
    arena_free(&dump.arena);
    explicit_bzero(&target, sizeof target);
    return err;
}

enum err store_dump(const char *url, const char *data_dir, size_t max, struct jsonw *w,
                    struct problem *why)
{
    assert(max > 0 && max <= DUMP_MAX);
    if (strncmp(url, "embedded:", 9) == 0)
        return dump_embedded(data_dir, max, w, why);
    return dump_redis(url, max, w, why);
}
