/* The statements that write store.db. */
#include "store/tables.h"

#include "store/reader.h"

#include <assert.h>

enum { SPEC_INLINE_MAX = 2048 }; /* longer ones have a row of their own, written once */

#define JOB_STEPPED                                                                                \
    "UPDATE job SET state = ?2, lease = ?3, callback = ?4, attempt = ?5, epoch = ?6, owner = ?7,"  \
    " node = ?8, reason = ?9, updated_ms = ?10, dispatched_ms = ?11, acked_ms = ?12,"              \
    " ended_ms = ?13, due_ms = ?14, run_until_ms = ?15, lane = ?16, priority = ?17,"               \
    " attempts = ?18, answered = ?19, max_attempts = ?20, gpus = ?21"

static const char *const texts[TABLES_SQL_COUNT] = {
    [TABLES_BEGIN] = "BEGIN IMMEDIATE",
    [TABLES_COMMIT] = "COMMIT",
    [TABLES_JOB_ADD] = "INSERT INTO job(" JOBROW_WRITTEN ", attempts, answered, result,"
                       " fingerprint, idem, first_node, spec, demand)"
                       " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [TABLES_JOB_STEP] = JOB_STEPPED " WHERE id = ?1",
    [TABLES_JOB_RESULT] = JOB_STEPPED ", result = ?22 WHERE id = ?1",
    [TABLES_JOB_FIRST_NODE] = "UPDATE job SET first_node = ?2 WHERE id = ?1",
    [TABLES_JOB_DROP_KEY] = "UPDATE job SET idem = NULL, first_node = NULL WHERE id = ?1",
    [TABLES_JOB_DEL] = "DELETE FROM job WHERE id = ?1",
    [TABLES_JOB_OLDEST] = "SELECT id, state, lease, callback, created_ms, updated_ms, spec IS NULL"
                          " FROM job WHERE id > ?1 ORDER BY id LIMIT 1",
    [TABLES_JOB_NEWEST] = "SELECT coalesce(max(id), 0) FROM job",
    [TABLES_BULK_ADD] = "INSERT INTO bulk(id, spec) VALUES(?1, ?2)",
    [TABLES_BULK_DEL] = "DELETE FROM bulk WHERE id = ?1",
    [TABLES_NODE_PUT] = "INSERT OR REPLACE INTO node(id, own, health, max, epoch, admin,"
                        " admin_reason, registered_ms, version, facts, resources)"
                        " VALUES(?,?,?,?,?,?,?,?,?,?,?)",
    [TABLES_NODE_DEL] = "DELETE FROM node WHERE id = ?1",
    [TABLES_BREAKER_PUT] = "INSERT OR REPLACE INTO breaker(node, type, state, failures, opened_ms,"
                           " probe_job) VALUES(?,?,?,?,?,?)",
    [TABLES_BREAKER_DEL] = "DELETE FROM breaker WHERE node = ?1 AND type = ?2",
    [TABLES_SESSION_PUT] = "INSERT OR REPLACE INTO session(id, preferred_pool, lang_pair, version,"
                           " updated_ms) VALUES(?,?,?,?,?)",
    [TABLES_SESSION_OLDEST] = "SELECT seq, updated_ms FROM session ORDER BY seq LIMIT 1",
    [TABLES_SESSION_DEL] = "DELETE FROM session WHERE seq = ?1",
    [TABLES_LIMIT_PUT] = "INSERT OR REPLACE INTO limit_rule(pattern, rule) VALUES(?,?)",
    [TABLES_LIMIT_DEL] = "DELETE FROM limit_rule WHERE pattern = ?1",
    [TABLES_LIMIT_KEY_PUT] = "INSERT OR REPLACE INTO limit_key(key, hold_until_ms, reason, starts)"
                             " VALUES(?,?,?,?)",
    [TABLES_LIMIT_KEY_DEL] = "DELETE FROM limit_key WHERE key = ?1",
    [TABLES_META_GET] = "SELECT floor, row_count, max_id, wait_shift_ms, journal_seq,"
                        " (SELECT coalesce(max(seq), 0) FROM session) FROM meta",
    [TABLES_META_PUT] = "UPDATE meta SET floor = ?1, row_count = ?2, max_id = ?3,"
                        " wait_shift_ms = ?4, journal_seq = ?5",
    [TABLES_COUNT_SINCE] = "SELECT count(*) FROM job WHERE id > ?1",
};

bool tables_failed(const struct tables *tables)
{
    return tables->fault.what != NULL;
}

static void fail(struct tables *tables, const char *what)
{
    if (tables_failed(tables))
        return; /* the first one tells most */
    tables->fault = (struct fault){.what = what,
                                   .code = sqlite3_extended_errcode(tables->db),
                                   .sys = sqlite3_system_errno(tables->db)};
}

static sqlite3_stmt *to_read(struct tables *tables, enum tables_sql which)
{
    return tables_failed(tables) ? NULL : tables->sql[which];
}

/* A row was found; the caller reads it and resets the statement. */
static bool row(struct tables *tables, sqlite3_stmt *stmt, const char *what)
{
    int code = sqlite3_step(stmt);

    if (code == SQLITE_ROW)
        return true;
    if (code != SQLITE_DONE)
        fail(tables, what);
    sqlite3_reset(stmt);
    return false;
}

static void run(struct tables *tables, sqlite3_stmt *stmt, const char *what)
{
    if (sqlite3_step(stmt) != SQLITE_DONE)
        fail(tables, what);
    sqlite3_reset(stmt);
}

static sqlite3_stmt *to_write(struct tables *tables, enum tables_sql which)
{
    if (!tables->writing && !tables_failed(tables)) {
        run(tables, tables->sql[TABLES_BEGIN], "begin in store.db");
        tables->writing = true;
    }
    return to_read(tables, which);
}

/* The meta row. An older release wrote it now and then: rows behind max_id are counted. */
static void load_meta(struct tables *tables)
{
    sqlite3_stmt *stmt = tables->sql[TABLES_META_GET];

    if (!row(tables, stmt, "read the meta row"))
        return;
    tables->meta.floor = (uint64_t)sqlite3_column_int64(stmt, 0);
    tables->row_count = sqlite3_column_int64(stmt, 1);
    tables->max_id = (uint64_t)sqlite3_column_int64(stmt, 2);
    tables->meta.wait_shift_ms = sqlite3_column_int64(stmt, 3);
    tables->seq = (uint64_t)sqlite3_column_int64(stmt, 4);
    tables->session_max = sqlite3_column_int64(stmt, 5);
    sqlite3_reset(stmt);

    stmt = tables->sql[TABLES_COUNT_SINCE];
    sqlite3_bind_int64(stmt, 1, (int64_t)tables->max_id);
    if (!row(tables, stmt, "count the jobs"))
        return;
    tables->row_count += sqlite3_column_int64(stmt, 0);
    sqlite3_reset(stmt);

    stmt = tables->sql[TABLES_JOB_NEWEST];
    if (!row(tables, stmt, "look for the newest job"))
        return;
    if ((uint64_t)sqlite3_column_int64(stmt, 0) > tables->max_id)
        tables->max_id = (uint64_t)sqlite3_column_int64(stmt, 0);
    sqlite3_reset(stmt);
}

/* Remembers how long the WAL is; SQLite calls it inside COMMIT. */
static int note_wal(void *arg, sqlite3 *db, const char *name, int pages)
{
    ((struct tables *)arg)->wal_pages = pages;
    return SQLITE_OK;
}

bool tables_open(struct tables *tables, const struct storefile *file)
{
    *tables = (struct tables){0};
    if (!storefile_connect_writer(file, &tables->db, &tables->fault))
        return false;
    if (storefile_empty_wal(tables->db, &tables->fault) &&
        storefile_prepare(tables->db, texts, TABLES_SQL_COUNT, tables->sql, &tables->fault)) {
        sqlite3_wal_hook(tables->db, note_wal, tables);
        load_meta(tables);
    }
    if (!tables_failed(tables))
        return true;
    tables_close(tables);
    return false;
}

void tables_close(struct tables *tables)
{
    for (int i = 0; i < TABLES_SQL_COUNT; i++) {
        sqlite3_finalize(tables->sql[i]);
        tables->sql[i] = NULL;
    }
    storefile_disconnect(tables->db, tables_failed(tables));
    tables->db = NULL;
}

bool tables_commit(struct tables *tables, uint64_t seq)
{
    sqlite3_stmt *stmt;

    if (seq != tables->seq || tables->writing) {
        stmt = to_write(tables, TABLES_META_PUT);
        if (stmt) {
            sqlite3_bind_int64(stmt, 1, (int64_t)tables->meta.floor);
            sqlite3_bind_int64(stmt, 2, tables->row_count);
            sqlite3_bind_int64(stmt, 3, (int64_t)tables->max_id);
            sqlite3_bind_int64(stmt, 4, tables->meta.wait_shift_ms);
            sqlite3_bind_int64(stmt, 5, (int64_t)seq);
            run(tables, stmt, "write the meta row");
        }
        if (!tables_failed(tables))
            run(tables, tables->sql[TABLES_COMMIT], "commit to store.db");
    }
    tables->writing = false;
    tables->added = 0;
    if (!tables_failed(tables))
        tables->seq = seq;
    return !tables_failed(tables);
}

bool tables_checkpoint(struct tables *tables)
{
    int code = sqlite3_wal_checkpoint_v2(tables->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);

    assert(!tables->writing);
    if (code != SQLITE_OK && code != SQLITE_BUSY)
        fail(tables, "checkpoint store.db");
    tables->wal_pages = 0; /* known again with the next commit */
    return !tables_failed(tables);
}

/* Jobs. Borrowed texts live at least until the statement was run. */

static void bind(sqlite3_stmt *stmt, int at, struct str text)
{
    if (text.at)
        sqlite3_bind_text(stmt, at, text.at, (int)text.len, SQLITE_STATIC);
    else
        sqlite3_bind_null(stmt, at);
}

static void bind_cstr(sqlite3_stmt *stmt, int at, const char *text)
{
    bind(stmt, at, *text ? str_of(text) : STR_NONE);
}

static void bind_flag(sqlite3_stmt *stmt, int at, bool flag)
{
    if (flag)
        sqlite3_bind_int(stmt, at, 1);
    else
        sqlite3_bind_null(stmt, at);
}

static void add_job(struct tables *tables, const struct change_job *job)
{
    const struct store_head *head = &job->head;
    sqlite3_stmt *stmt = to_write(tables, TABLES_JOB_ADD);
    bool keyed = job->idem.at && !(job->parts & CHANGE_KEY_DROPPED);
    bool bulky = job->spec.len > SPEC_INLINE_MAX;
    int at = 1;

    if (!stmt)
        return;
    sqlite3_bind_int64(stmt, at++, (int64_t)head->id);
    sqlite3_bind_int(stmt, at++, head->state);
    sqlite3_bind_int(stmt, at++, head->lease);
    sqlite3_bind_int(stmt, at++, head->callback);
    sqlite3_bind_int(stmt, at++, head->attempt);
    sqlite3_bind_int(stmt, at++, head->max_attempts);
    sqlite3_bind_int64(stmt, at++, head->epoch);
    sqlite3_bind_int64(stmt, at++, head->owner);
    bind_cstr(stmt, at++, head->node);
    bind_cstr(stmt, at++, head->reason);
    sqlite3_bind_int64(stmt, at++, head->created_ms);
    sqlite3_bind_int64(stmt, at++, head->updated_ms);
    sqlite3_bind_int64(stmt, at++, head->dispatched_ms);
    sqlite3_bind_int64(stmt, at++, head->acked_ms);
    sqlite3_bind_int64(stmt, at++, head->ended_ms);
    sqlite3_bind_int64(stmt, at++, head->due_ms);
    sqlite3_bind_int64(stmt, at++, head->timeout_ms);
    sqlite3_bind_int64(stmt, at++, job->run_until_ms);
    bind_cstr(stmt, at++, head->type);
    sqlite3_bind_int64(stmt, at++, (int64_t)head->lane);
    sqlite3_bind_int(stmt, at++, head->priority);
    sqlite3_bind_int64(stmt, at++, (int64_t)head->gpus);
    assert(at == JOBROW_AFTER_HEAD + 1);
    bind(stmt, at++, job->attempts);
    bind_flag(stmt, at++, job->answered);
    bind(stmt, at++, job->result);
    if (job->idem.at)
        sqlite3_bind_int64(stmt, at++, (int64_t)job->fingerprint);
    else
        sqlite3_bind_null(stmt, at++);
    bind(stmt, at++, keyed ? job->idem : STR_NONE);
    bind(stmt, at++, keyed ? job->first_node : STR_NONE);
    bind(stmt, at++, bulky ? STR_NONE : job->spec);
    bind(stmt, at++, job->demand.len ? job->demand : STR_NONE);
    run(tables, stmt, "write a job");
    if (bulky && (stmt = to_write(tables, TABLES_BULK_ADD))) {
        sqlite3_bind_int64(stmt, 1, (int64_t)job->head.id);
        bind(stmt, 2, job->spec);
        run(tables, stmt, "write a job");
    }
    tables->added++;
    tables->row_count++;
    if (job->head.id > tables->max_id)
        tables->max_id = job->head.id;
}

static void update_job(struct tables *tables, const struct change_job *job)
{
    const struct store_head *head = &job->head;
    bool with_result = job->parts & CHANGE_RESULT;
    bool drops_key = job->parts & CHANGE_KEY_DROPPED;
    sqlite3_stmt *stmt = to_write(tables, with_result ? TABLES_JOB_RESULT : TABLES_JOB_STEP);

    if (!stmt)
        return;
    sqlite3_bind_int64(stmt, 1, (int64_t)head->id);
    sqlite3_bind_int(stmt, 2, head->state);
    sqlite3_bind_int(stmt, 3, head->lease);
    sqlite3_bind_int(stmt, 4, head->callback);
    sqlite3_bind_int(stmt, 5, head->attempt);
    sqlite3_bind_int64(stmt, 6, head->epoch);
    sqlite3_bind_int64(stmt, 7, head->owner);
    bind_cstr(stmt, 8, head->node);
    bind_cstr(stmt, 9, head->reason);
    sqlite3_bind_int64(stmt, 10, head->updated_ms);
    sqlite3_bind_int64(stmt, 11, head->dispatched_ms);
    sqlite3_bind_int64(stmt, 12, head->acked_ms);
    sqlite3_bind_int64(stmt, 13, head->ended_ms);
    sqlite3_bind_int64(stmt, 14, head->due_ms);
    sqlite3_bind_int64(stmt, 15, job->run_until_ms);
    sqlite3_bind_int64(stmt, 16, (int64_t)head->lane);
    sqlite3_bind_int(stmt, 17, head->priority);
    bind(stmt, 18, job->attempts);
    bind_flag(stmt, 19, job->answered);
    sqlite3_bind_int(stmt, 20, head->max_attempts);
    sqlite3_bind_int64(stmt, 21, (int64_t)head->gpus);
    if (with_result)
        bind(stmt, 22, job->result);
    run(tables, stmt, "write a job");
    if (!(job->parts & (CHANGE_KEY_DROPPED | CHANGE_FIRST_NODE)))
        return;
    stmt = to_write(tables, drops_key ? TABLES_JOB_DROP_KEY : TABLES_JOB_FIRST_NODE);
    if (!stmt)
        return;
    sqlite3_bind_int64(stmt, 1, (int64_t)head->id);
    if (!drops_key)
        bind(stmt, 2, job->first_node);
    run(tables, stmt, "write a job");
}

/* The others. */

static const struct {
    enum tables_sql sql;
    const char *what;
} row_writes[] = {
    [CHANGE_NODE] = {TABLES_NODE_PUT, "write a node"},
    [CHANGE_NODE_RESOURCES] = {TABLES_NODE_PUT, "write a node"},
    [CHANGE_NODE_DEL] = {TABLES_NODE_DEL, "delete a row"},
    [CHANGE_BREAKER] = {TABLES_BREAKER_PUT, "write a breaker"},
    [CHANGE_BREAKER_DEL] = {TABLES_BREAKER_DEL, "delete a row"},
    [CHANGE_SESSION] = {TABLES_SESSION_PUT, "write a session"},
    [CHANGE_LIMIT] = {TABLES_LIMIT_PUT, "write a limit"},
    [CHANGE_LIMIT_DEL] = {TABLES_LIMIT_DEL, "delete a row"},
    [CHANGE_LIMIT_KEY] = {TABLES_LIMIT_KEY_PUT, "write a key"},
    [CHANGE_LIMIT_KEY_DEL] = {TABLES_LIMIT_KEY_DEL, "delete a row"},
};

static void write_row(struct tables *tables, const struct change *change)
{
    sqlite3_stmt *stmt = to_write(tables, row_writes[change->kind].sql);
    const struct store_node *node = &change->u.node;
    const struct change_breaker *breaker = &change->u.breaker;
    const struct change_session *session = &change->u.session;
    const struct change_limit_key *key = &change->u.limit_key;
    struct buf rule = {0};

    if (!stmt)
        return;
    switch (change->kind) {
    case CHANGE_NODE:
    case CHANGE_NODE_RESOURCES:
        bind(stmt, 1, node->id);
        sqlite3_bind_int(stmt, 2, node->own);
        sqlite3_bind_int(stmt, 3, node->counts.health);
        sqlite3_bind_int(stmt, 4, node->counts.max);
        sqlite3_bind_int64(stmt, 5, node->counts.epoch);
        sqlite3_bind_int(stmt, 6, node->admin);
        bind(stmt, 7, node->admin_reason);
        sqlite3_bind_int64(stmt, 8, node->registered_ms);
        sqlite3_bind_int64(stmt, 9, node->version);
        bind(stmt, 10, node->facts);
        bind(stmt, 11, node->resources.len ? node->resources : STR_NONE);
        break;
    case CHANGE_NODE_DEL:
        bind(stmt, 1, node->id);
        break;
    case CHANGE_BREAKER:
        sqlite3_bind_int(stmt, 3, breaker->breaker.state);
        sqlite3_bind_int(stmt, 4, breaker->breaker.failures);
        sqlite3_bind_int64(stmt, 5, breaker->breaker.opened_ms);
        sqlite3_bind_int64(stmt, 6, (int64_t)breaker->probe_job);
        __attribute__((fallthrough));
    case CHANGE_BREAKER_DEL:
        bind(stmt, 1, breaker->node);
        bind(stmt, 2, breaker->type);
        break;
    case CHANGE_SESSION:
        bind(stmt, 1, session->id);
        bind(stmt, 2, session->pool);
        bind(stmt, 3, session->lang_pair);
        sqlite3_bind_int64(stmt, 4, session->version);
        sqlite3_bind_int64(stmt, 5, session->updated_ms);
        break;
    case CHANGE_LIMIT:
        limit_write(&change->u.limit.limit, &rule);
        bind(stmt, 2, buf_view(&rule));
        __attribute__((fallthrough));
    case CHANGE_LIMIT_DEL:
        bind(stmt, 1, change->u.limit.pattern);
        break;
    case CHANGE_LIMIT_KEY:
        sqlite3_bind_int64(stmt, 2, key->hold_until_ms);
        bind(stmt, 3, key->reason.len ? key->reason : STR_NONE);
        bind(stmt, 4, key->starts.len ? key->starts : STR_NONE);
        __attribute__((fallthrough));
    case CHANGE_LIMIT_KEY_DEL:
        bind(stmt, 1, key->key);
        break;
    case CHANGE_JOB:
    case CHANGE_META:
        assert(!"a row of its own kind");
    }
    run(tables, stmt, row_writes[change->kind].what);
    if (change->kind == CHANGE_SESSION)
        tables->session_max = sqlite3_last_insert_rowid(tables->db);
    buf_free(&rule);
}

void tables_put(struct tables *tables, const struct change *change)
{
    if (change->kind == CHANGE_META)
        tables->meta = change->u.meta;
    else if (change->kind != CHANGE_JOB)
        write_row(tables, change);
    else if (change->u.job.parts & CHANGE_NEW)
        add_job(tables, &change->u.job);
    else
        update_job(tables, &change->u.job);
}

/* Retention. */

bool tables_job_oldest(struct tables *tables, uint64_t after, struct tables_old *ret_old)
{
    sqlite3_stmt *stmt = to_read(tables, TABLES_JOB_OLDEST);

    if (!stmt)
        return false;
    sqlite3_bind_int64(stmt, 1, (int64_t)after);
    if (!row(tables, stmt, "look for old jobs"))
        return false;
    *ret_old = (struct tables_old){
        .id = (uint64_t)sqlite3_column_int64(stmt, 0),
        .finished = sqlite3_column_int(stmt, 1) >= JOB_DONE && sqlite3_column_int(stmt, 2) == 0 &&
                    sqlite3_column_int(stmt, 3) != CALLBACK_PENDING,
        .created_ms = sqlite3_column_int64(stmt, 4),
        .updated_ms = sqlite3_column_int64(stmt, 5),
        .bulky = sqlite3_column_int(stmt, 6),
    };
    sqlite3_reset(stmt);
    return true;
}

static void del_by_id(struct tables *tables, enum tables_sql which, int64_t id, const char *what)
{
    sqlite3_stmt *stmt = to_write(tables, which);

    if (!stmt)
        return;
    sqlite3_bind_int64(stmt, 1, id);
    run(tables, stmt, what);
}

void tables_job_del(struct tables *tables, const struct tables_old *old)
{
    assert(old->finished);
    del_by_id(tables, TABLES_JOB_DEL, (int64_t)old->id, "delete a job");
    if (old->bulky)
        del_by_id(tables, TABLES_BULK_DEL, (int64_t)old->id, "delete a job");
    tables->row_count--;
}

bool tables_session_oldest(struct tables *tables, int64_t *ret_seq, int64_t *ret_updated_ms)
{
    sqlite3_stmt *stmt = to_read(tables, TABLES_SESSION_OLDEST);

    if (!stmt || !row(tables, stmt, "read a session"))
        return false;
    *ret_seq = sqlite3_column_int64(stmt, 0);
    *ret_updated_ms = sqlite3_column_int64(stmt, 1);
    sqlite3_reset(stmt);
    return true;
}

void tables_session_del(struct tables *tables, int64_t seq)
{
    del_by_id(tables, TABLES_SESSION_DEL, seq, "delete a session");
}
