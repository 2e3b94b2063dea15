/* Copies journal.log into store.db, with the statements that write it; and retention, which walks
 * the oldest rows. Ids are in order of time, so it stops at the first row created too late to be
 * expired. */
#include "store/flush.h"

#include <assert.h>
#include <stdlib.h>

#include "base/map.h"
#include "base/mem.h"
#include "store/change.h"
#include "store/reader.h"
#include "store/sessions.h"

/* --- store.db --- */

enum {
    SPEC_INLINE_MAX = 2048, /* longer ones have a separate row, written once */
    FLUSH_WAL_PAGES = 4096, /* of 4 KiB: checkpoint the WAL of store.db then */
};

/* Parameters are numbered like the columns; then attempts, answered and the result. */
#define JOB_STEPPED                                                                                \
    "UPDATE job SET state = ?2, lease = ?3, callback = ?4, attempt = ?5, max_attempts = ?6,"       \
    " epoch = ?7, owner = ?8, node = ?9, reason = ?10, updated_ms = ?12, dispatched_ms = ?13,"     \
    " acked_ms = ?14, ended_ms = ?15, due_ms = ?16, run_until_ms = ?18, lane = ?20,"               \
    " priority = ?21, gpus = ?22, attempts = ?23, answered = ?24"

static const char *const texts[FLUSH_SQL_COUNT] = {
    [FLUSH_BEGIN] = "BEGIN IMMEDIATE",
    [FLUSH_COMMIT] = "COMMIT",
    [FLUSH_JOB_ADD] = "INSERT INTO job(" JOBROW_WRITTEN ", attempts, answered, result,"
                      " fingerprint, idem, first_node, spec, demand)"
                      " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [FLUSH_JOB_STEP] = JOB_STEPPED " WHERE id = ?1",
    [FLUSH_JOB_RESULT] = JOB_STEPPED ", result = ?25 WHERE id = ?1",
    [FLUSH_JOB_FIRST_NODE] = "UPDATE job SET first_node = ?2 WHERE id = ?1",
    [FLUSH_JOB_DROP_KEY] = "UPDATE job SET idem = NULL, first_node = NULL WHERE id = ?1",
    [FLUSH_JOB_DEL] = "DELETE FROM job WHERE id = ?1",
    [FLUSH_JOB_OLDEST] = "SELECT id, state, lease, callback, created_ms, updated_ms, spec IS NULL"
                         " FROM job WHERE id > ?1 ORDER BY id LIMIT 1",
    [FLUSH_JOB_NEWEST] = "SELECT coalesce(max(id), 0) FROM job",
    [FLUSH_BULK_ADD] = "INSERT INTO bulk(id, spec) VALUES(?1, ?2)",
    [FLUSH_BULK_DEL] = "DELETE FROM bulk WHERE id = ?1",
    [FLUSH_NODE_PUT] = "INSERT OR REPLACE INTO node(id, own, health, max, epoch, admin,"
                       " admin_reason, registered_ms, version, facts, resources)"
                       " VALUES(?,?,?,?,?,?,?,?,?,?,?)",
    [FLUSH_NODE_DEL] = "DELETE FROM node WHERE id = ?1",
    [FLUSH_BREAKER_PUT] = "INSERT OR REPLACE INTO breaker(node, type, state, failures, opened_ms,"
                          " probe_job) VALUES(?,?,?,?,?,?)",
    [FLUSH_BREAKER_DEL] = "DELETE FROM breaker WHERE node = ?1 AND type = ?2",
    [FLUSH_SESSION_PUT] = "INSERT OR REPLACE INTO session(id, preferred_pool, lang_pair, version,"
                          " updated_ms) VALUES(?,?,?,?,?)",
    [FLUSH_SESSION_OLDEST] = "SELECT seq, updated_ms FROM session ORDER BY seq LIMIT 1",
    [FLUSH_SESSION_DEL] = "DELETE FROM session WHERE seq = ?1",
    [FLUSH_LIMIT_PUT] = "INSERT OR REPLACE INTO limit_rule(pattern, rule) VALUES(?,?)",
    [FLUSH_LIMIT_DEL] = "DELETE FROM limit_rule WHERE pattern = ?1",
    [FLUSH_LIMIT_KEY_PUT] = "INSERT OR REPLACE INTO limit_key(key, hold_until_ms, reason, starts)"
                            " VALUES(?,?,?,?)",
    [FLUSH_LIMIT_KEY_DEL] = "DELETE FROM limit_key WHERE key = ?1",
    [FLUSH_META_GET] = "SELECT floor, row_count, max_id, wait_shift_ms, journal_seq,"
                       " (SELECT coalesce(max(seq), 0) FROM session) FROM meta",
    [FLUSH_META_PUT] = "UPDATE meta SET floor = ?1, row_count = ?2, max_id = ?3,"
                       " wait_shift_ms = ?4, journal_seq = ?5",
    [FLUSH_COUNT_SINCE] = "SELECT count(*) FROM job WHERE id > ?1",
};

static bool failed(const struct flush *flush)
{
    return flush->fault.what != NULL;
}

static sqlite3_stmt *to_read(struct flush *flush, enum flush_sql which)
{
    return failed(flush) ? NULL : flush->sql[which];
}

/* The first write opens the transaction, so a step without writes costs no fsync. */
static sqlite3_stmt *to_write(struct flush *flush, enum flush_sql which)
{
    if (!flush->writing && !failed(flush)) {
        storefile_run(flush->sql[FLUSH_BEGIN], "begin in store.db", &flush->fault);
        flush->writing = true;
    }
    return to_read(flush, which);
}

/* The meta row. An older release wrote it only now and then: rows above max_id are counted. */
static void load_meta(struct flush *flush)
{
    sqlite3_stmt *stmt = flush->sql[FLUSH_META_GET];

    if (!storefile_row(stmt, "read the meta row", &flush->fault))
        return;
    flush->meta.floor = (uint64_t)sqlite3_column_int64(stmt, 0);
    flush->row_count = sqlite3_column_int64(stmt, 1);
    flush->max_id = (uint64_t)sqlite3_column_int64(stmt, 2);
    flush->meta.wait_shift_ms = sqlite3_column_int64(stmt, 3);
    flush->flushed_seq = (uint64_t)sqlite3_column_int64(stmt, 4);
    flush->session_max = sqlite3_column_int64(stmt, 5);
    sqlite3_reset(stmt);

    stmt = flush->sql[FLUSH_COUNT_SINCE];
    sqlite3_bind_int64(stmt, 1, (int64_t)flush->max_id);
    if (!storefile_row(stmt, "count the jobs", &flush->fault))
        return;
    flush->row_count += sqlite3_column_int64(stmt, 0);
    sqlite3_reset(stmt);

    stmt = flush->sql[FLUSH_JOB_NEWEST];
    if (!storefile_row(stmt, "look for the newest job", &flush->fault))
        return;
    if ((uint64_t)sqlite3_column_int64(stmt, 0) > flush->max_id)
        flush->max_id = (uint64_t)sqlite3_column_int64(stmt, 0);
    sqlite3_reset(stmt);
}

/* Records the length of the WAL; SQLite calls it inside COMMIT. */
static int note_wal(void *arg, sqlite3 *db, const char *name, int pages)
{
    ((struct flush *)arg)->wal_pages = pages;
    return SQLITE_OK;
}

static bool open_file(struct flush *flush)
{
    flush->fault = (struct fault){0};
    flush->writing = false;
    flush->wal_pages = 0;
    flush->added = 0;
    if (!storefile_connect_writer(flush->file, &flush->db, &flush->fault))
        return false;
    if (storefile_empty_wal(flush->db, &flush->fault) &&
        storefile_prepare(flush->db, texts, FLUSH_SQL_COUNT, flush->sql, &flush->fault)) {
        sqlite3_wal_hook(flush->db, note_wal, flush);
        load_meta(flush);
    }
    return !failed(flush);
}

/* Commits everything up to batch `seq`. True: it is on disk. */
static bool commit(struct flush *flush, uint64_t seq)
{
    sqlite3_stmt *stmt;

    if (seq != flush->flushed_seq || flush->writing) {
        stmt = to_write(flush, FLUSH_META_PUT);
        if (stmt) {
            sqlite3_bind_int64(stmt, 1, (int64_t)flush->meta.floor);
            sqlite3_bind_int64(stmt, 2, flush->row_count);
            sqlite3_bind_int64(stmt, 3, (int64_t)flush->max_id);
            sqlite3_bind_int64(stmt, 4, flush->meta.wait_shift_ms);
            sqlite3_bind_int64(stmt, 5, (int64_t)seq);
            storefile_run(stmt, "write the meta row", &flush->fault);
        }
        if (!failed(flush))
            storefile_run(flush->sql[FLUSH_COMMIT], "commit to store.db", &flush->fault);
    }
    flush->writing = false;
    flush->added = 0;
    if (!failed(flush))
        flush->flushed_seq = seq;
    return !failed(flush);
}

/* Copies the WAL into the main file, except what readers still need. */
static bool checkpoint(struct flush *flush)
{
    int code = sqlite3_wal_checkpoint_v2(flush->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);

    assert(!flush->writing);
    if (code != SQLITE_OK && code != SQLITE_BUSY && !failed(flush))
        storefile_fault(&flush->fault, "checkpoint store.db", flush->db, code);
    flush->wal_pages = 0; /* set again by the next commit */
    return !failed(flush);
}

/* Jobs. Borrowed texts live at least until the statement was run. */

static void bind(sqlite3_stmt *stmt, int at, struct str text)
{
    if (text.at)
        sqlite3_bind_text(stmt, at, text.at, (int)text.len, SQLITE_STATIC);
    else
        sqlite3_bind_null(stmt, at);
}

/* The first fields of a change, as the first parameters. */
static void bind_fields(sqlite3_stmt *stmt, const struct change *change, int count)
{
    for (int i = 0; i < count; i++) {
        const struct change_field *field = &change_rows[change->kind].fields[i];
        struct str text;

        if (field->kind == CHANGE_NUMBER || field->kind == CHANGE_SIGNED) {
            sqlite3_bind_int64(stmt, i + 1, change_number(change, field));
        } else {
            text = change_text(change, field);
            bind(stmt, i + 1, field->empty_is_null && !text.len ? STR_NONE : text);
        }
    }
}

static void bind_flag(sqlite3_stmt *stmt, int at, bool flag)
{
    if (flag)
        sqlite3_bind_int(stmt, at, 1);
    else
        sqlite3_bind_null(stmt, at);
}

static void add_job(struct flush *flush, const struct change *change)
{
    const struct change_job *job = &change->u.job;
    sqlite3_stmt *stmt = to_write(flush, FLUSH_JOB_ADD);
    bool keyed = job->idem.at && !(job->parts & CHANGE_KEY_DROPPED);
    bool bulky = job->spec.len > SPEC_INLINE_MAX;
    int at = JOBROW_AFTER_HEAD + 1;

    assert(change_rows[CHANGE_JOB].count == JOBROW_AFTER_HEAD);
    if (!stmt)
        return;
    bind_fields(stmt, change, JOBROW_AFTER_HEAD);
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
    storefile_run(stmt, "write a job", &flush->fault);
    if (bulky && (stmt = to_write(flush, FLUSH_BULK_ADD))) {
        sqlite3_bind_int64(stmt, 1, (int64_t)job->head.id);
        bind(stmt, 2, job->spec);
        storefile_run(stmt, "write a job", &flush->fault);
    }
    flush->added++;
    flush->row_count++;
    if (job->head.id > flush->max_id)
        flush->max_id = job->head.id;
}

static void update_job(struct flush *flush, const struct change *change)
{
    const struct change_job *job = &change->u.job;
    bool with_result = job->parts & CHANGE_RESULT;
    bool drops_key = job->parts & CHANGE_KEY_DROPPED;
    sqlite3_stmt *stmt = to_write(flush, with_result ? FLUSH_JOB_RESULT : FLUSH_JOB_STEP);

    if (!stmt)
        return;
    bind_fields(stmt, change, JOBROW_AFTER_HEAD);
    bind(stmt, JOBROW_AFTER_HEAD + 1, job->attempts);
    bind_flag(stmt, JOBROW_AFTER_HEAD + 2, job->answered);
    if (with_result)
        bind(stmt, JOBROW_AFTER_HEAD + 3, job->result);
    storefile_run(stmt, "write a job", &flush->fault);
    if (!(job->parts & (CHANGE_KEY_DROPPED | CHANGE_FIRST_NODE)))
        return;
    stmt = to_write(flush, drops_key ? FLUSH_JOB_DROP_KEY : FLUSH_JOB_FIRST_NODE);
    if (!stmt)
        return;
    sqlite3_bind_int64(stmt, 1, (int64_t)job->head.id);
    if (!drops_key)
        bind(stmt, 2, job->first_node);
    storefile_run(stmt, "write a job", &flush->fault);
}

/* The others. */

static const struct {
    enum flush_sql sql;
    const char *what;
} row_writes[] = {
    [CHANGE_NODE] = {FLUSH_NODE_PUT, "write a node"},
    [CHANGE_NODE_DEL] = {FLUSH_NODE_DEL, "delete a row"},
    [CHANGE_BREAKER] = {FLUSH_BREAKER_PUT, "write a breaker"},
    [CHANGE_BREAKER_DEL] = {FLUSH_BREAKER_DEL, "delete a row"},
    [CHANGE_SESSION] = {FLUSH_SESSION_PUT, "write a session"},
    [CHANGE_LIMIT] = {FLUSH_LIMIT_PUT, "write a limit"},
    [CHANGE_LIMIT_DEL] = {FLUSH_LIMIT_DEL, "delete a row"},
    [CHANGE_LIMIT_KEY] = {FLUSH_LIMIT_KEY_PUT, "write a key"},
    [CHANGE_LIMIT_KEY_DEL] = {FLUSH_LIMIT_KEY_DEL, "delete a row"},
};

static void write_row(struct flush *flush, const struct change *change)
{
    sqlite3_stmt *stmt = to_write(flush, row_writes[change->kind].sql);
    struct buf rule = {0};

    assert(row_writes[change->kind].what);
    if (!stmt)
        return;
    bind_fields(stmt, change,
                change->kind == CHANGE_LIMIT ? 1 : sqlite3_bind_parameter_count(stmt));
    if (change->kind == CHANGE_LIMIT) {
        limit_write(&change->u.limit.limit, &rule);
        bind(stmt, 2, buf_view(&rule));
    }
    storefile_run(stmt, row_writes[change->kind].what, &flush->fault);
    if (change->kind == CHANGE_SESSION)
        flush->session_max = sqlite3_last_insert_rowid(flush->db);
    buf_free(&rule);
}

static void put(struct flush *flush, const struct change *change)
{
    if (change->kind == CHANGE_META)
        flush->meta = change->u.meta;
    else if (change->kind != CHANGE_JOB)
        write_row(flush, change);
    else if (change->u.job.parts & CHANGE_NEW)
        add_job(flush, change);
    else
        update_job(flush, change);
}

/* --- retention --- */

struct old_job { /* a job as retention sees it */
    uint64_t id;
    bool finished; /* final, without a lease and without a pending callback */
    bool bulky;
    int64_t created_ms;
    int64_t updated_ms;
};

/* The job with the smallest id larger than `after`. */
static bool oldest_job(struct flush *flush, uint64_t after, struct old_job *ret_old)
{
    sqlite3_stmt *stmt = to_read(flush, FLUSH_JOB_OLDEST);

    if (!stmt)
        return false;
    sqlite3_bind_int64(stmt, 1, (int64_t)after);
    if (!storefile_row(stmt, "look for old jobs", &flush->fault))
        return false;
    *ret_old = (struct old_job){
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

static void del_by_id(struct flush *flush, enum flush_sql which, int64_t id, const char *what)
{
    sqlite3_stmt *stmt = to_write(flush, which);

    if (!stmt)
        return;
    sqlite3_bind_int64(stmt, 1, id);
    storefile_run(stmt, what, &flush->fault);
}

static void delete_job(struct flush *flush, const struct old_job *old)
{
    assert(old->finished);
    del_by_id(flush, FLUSH_JOB_DEL, (int64_t)old->id, "delete a job");
    if (old->bulky)
        del_by_id(flush, FLUSH_BULK_DEL, (int64_t)old->id, "delete a job");
    flush->row_count--;
}

static bool oldest_session(struct flush *flush, int64_t *ret_seq, int64_t *ret_updated_ms)
{
    sqlite3_stmt *stmt = to_read(flush, FLUSH_SESSION_OLDEST);

    if (!stmt || !storefile_row(stmt, "read a session", &flush->fault))
        return false;
    *ret_seq = sqlite3_column_int64(stmt, 0);
    *ret_updated_ms = sqlite3_column_int64(stmt, 1);
    sqlite3_reset(stmt);
    return true;
}

static bool too_old(const struct purge *purge, int64_t at_ms, int64_t now_ms)
{
    return purge->retention_ms && now_ms - at_ms > purge->retention_ms;
}

static void end_round(struct purge *purge, int64_t look_ms)
{
    purge->at = 0;
    purge->look_ms = look_ms;
}

/* Both look at up to `budget` rows, inside the transaction of the tables, and return true when
 * there is more to do. `active` of the jobs' rows do not count. */
static bool purge_jobs(struct flush *flush, size_t active, int64_t now_ms, int64_t budget)
{
    struct purge *purge = &flush->purge;
    struct old_job old;

    while (budget-- > 0) {
        bool crowded = purge->jobs_max && flush->row_count - (int64_t)active > purge->jobs_max;

        if (!crowded && (!purge->retention_ms || now_ms < purge->look_ms))
            return false;
        if (!oldest_job(flush, purge->at, &old)) {
            /* All others are active or wait for a callback: look again later. */
            end_round(purge, now_ms + 1000);
            return false;
        }
        if (!crowded && !too_old(purge, old.created_ms, now_ms)) {
            end_round(purge, old.created_ms + purge->retention_ms + 1);
            return false;
        }
        if (old.finished && (crowded || too_old(purge, old.updated_ms, now_ms)))
            delete_job(flush, &old);
        purge->at = old.id;
    }
    return true;
}

static bool purge_sessions(struct flush *flush, int64_t now_ms, int64_t budget)
{
    struct purge *purge = &flush->purge;
    int64_t seq;
    int64_t updated_ms;

    while (budget-- > 0) {
        if (now_ms < purge->session_look_ms || !oldest_session(flush, &seq, &updated_ms)) {
            purge->session_look_ms =
                now_ms < purge->session_look_ms ? purge->session_look_ms : now_ms + 1000;
            return false;
        }
        bool crowded = purge->jobs_max && flush->session_max - seq >= purge->sessions_max;
        if (!crowded && !too_old(purge, updated_ms, now_ms)) {
            purge->session_look_ms = now_ms + 1000;
            return false;
        }
        del_by_id(flush, FLUSH_SESSION_DEL, seq, "delete a session");
    }
    return true;
}

/* --- flushing --- */

void flush_init(struct flush *flush, const struct storefile *file, int64_t retention_ms,
                int64_t jobs_max)
{
    *flush = (struct flush){
        .file = file,
        .purge = {.retention_ms = retention_ms > 0 ? retention_ms : 0,
                  .jobs_max = jobs_max > 0 ? jobs_max : 0,
                  /* Never so few that the ledger's sessions known as written are deleted. */
                  .sessions_max =
                      jobs_max > 2 * SESSIONS_KEPT_MAX ? jobs_max : 2 * SESSIONS_KEPT_MAX}};
}

/* The memory of a step is kept for the next one, and freed after one that had nothing to do. */
static void forget(struct flush *flush)
{
    if (flush->bytes) {
        idmap_clear(&flush->jobs);
        arena_rewind(&flush->arena);
    } else {
        idmap_free(&flush->jobs);
        arena_reset(&flush->arena);
    }
    flush->job_count = 0;
    flush->bytes = 0;
}

void flush_close(struct flush *flush, bool after_fault)
{
    logfile_close(&flush->log);
    storefile_finalize(flush->sql, FLUSH_SQL_COUNT);
    storefile_disconnect(flush->db, after_fault);
    flush->db = NULL;
    forget(flush);
    idmap_free(&flush->jobs);
    arena_free(&flush->arena);
    free(flush->job_order);
    flush->job_order = NULL;
}

/* False: it was merged into an earlier change of the job, and its memory may be used again. */
static bool keep_job(struct flush *flush, struct change *change)
{
    struct change *known = idmap_get(&flush->jobs, change->u.job.head.id);

    if (known) {
        change_job_merge(&known->u.job, &change->u.job);
        return false;
    }
    idmap_put(&flush->jobs, change->u.job.head.id, change);
    if (flush->job_count >= FLUSH_JOBS && !(flush->job_count & (flush->job_count - 1)))
        flush->job_order =
            mem_resize(flush->job_order, 2 * flush->job_count * sizeof *flush->job_order);
    flush->job_order[flush->job_count++] = change;
    return true;
}

static bool read_batches(struct flush *flush, uint64_t upto)
{
    struct change *change = NULL; /* to read the next one into */

    flush->seq = flush->flushed_seq;
    while (flush->seq < upto && flush->bytes < FLUSH_BYTES && flush->job_count < FLUSH_JOBS) {
        uint64_t seq = flush->seq + 1;
        struct str changes;
        int64_t size;

        if (!logfile_read(&flush->log, seq, &flush->arena, &changes, &size)) {
            flush->fault = flush->log.fault;
            return false;
        }
        while (changes.len) {
            if (!change)
                change = arena_raw(&flush->arena, sizeof *change);
            if (!change_read(&changes, change)) {
                change_damaged(seq, &flush->fault);
                return false;
            }
            if (change->kind != CHANGE_JOB)
                put(flush, change);
            else if (keep_job(flush, change))
                change = NULL;
        }
        flush->seq = seq;
        flush->bytes += size;
    }
    return true;
}

bool flush_step(struct flush *flush, uint64_t upto, size_t active, int64_t now_ms,
                int64_t purge_rows, bool *ret_purge_more)
{
    int64_t budget;

    *ret_purge_more = false;
    forget(flush);
    if (!flush->db && !open_file(flush))
        goto fail;
    if (!flush->log.file && !logfile_open(&flush->log, flush->file->journal, false)) {
        flush->fault = flush->log.fault;
        goto fail;
    }
    if (!flush->job_order)
        flush->job_order = mem_array(struct change *, FLUSH_JOBS);
    /* Before the transaction, not after it: a failed checkpoint says nothing about what was
     * committed. */
    if (flush->wal_pages >= FLUSH_WAL_PAGES && !checkpoint(flush))
        goto fail;
    if (!read_batches(flush, upto))
        goto fail;
    for (size_t i = 0; i < flush->job_count; i++)
        put(flush, flush->job_order[i]);
    budget = purge_rows + 2 * flush->added;
    assert(budget > 0);
    *ret_purge_more = purge_jobs(flush, active, now_ms, budget);
    *ret_purge_more |= purge_sessions(flush, now_ms, budget);
    if (commit(flush, flush->seq))
        return true;
fail:
    flush_close(flush, true);
    return false;
}
