/* Collects changes, writes them as batches, and looks up rows: in the memtable first, then in
 * store.db. */
#include "store/journal.h"

#include "base/clock.h"
#include "base/metrics.h"
#include "store/change.h"
#include "store/reader.h"

#include <assert.h>
#include <string.h>

enum {
    RELEASE_ROWS = 512, /* freed at a time */
    /* The size of a few jobs: on a disk with room for only a byte they would fail again at once. */
    PROBE_BYTES = 256 << 10,
};

static const char *const lookup_texts[LOOKUP_COUNT] = {
    [LOOKUP_JOB] =
        "SELECT " JOBROW_SHIFTED ", attempts, first_node, answered FROM job WHERE id = ?1",
    [LOOKUP_RECORD] = "SELECT " JOBROW_RECORD ", idem, fingerprint FROM job WHERE id = ?1",
    [LOOKUP_KEY] = "SELECT id, fingerprint, first_node FROM job WHERE idem = ?1",
    [LOOKUP_ACTIVE] = "SELECT " JOBROW_SHIFTED ", attempts, first_node, answered, " JOBROW_SPEC_TEXT
                      ", demand FROM job WHERE id >= ?1 AND (state < ?2 OR lease > 0)",
    [LOOKUP_NODES] = "SELECT id, own, health, max, epoch, admin, admin_reason, registered_ms,"
                     " version, facts, resources FROM node",
    [LOOKUP_BREAKERS] = "SELECT node, type, state, failures, opened_ms, probe_job FROM breaker",
    [LOOKUP_SESSION] = "SELECT preferred_pool, lang_pair, version, updated_ms FROM session"
                       " WHERE id = ?1",
    [LOOKUP_LIMITS] = "SELECT pattern, rule FROM limit_rule",
    [LOOKUP_LIMIT_KEYS] = "SELECT key, hold_until_ms, reason, starts FROM limit_key",
    [LOOKUP_META] = "SELECT floor, max(max_id, (SELECT coalesce(max(id), 0) FROM job)),"
                    " wait_shift_ms, journal_seq FROM meta",
};

bool journal_failed(const struct journal *journal)
{
    return journal->fault.what != NULL;
}

/* A row was found; the caller reads it and resets the statement. */
static bool row(struct journal *journal, sqlite3_stmt *stmt, const char *what)
{
    int code = sqlite3_step(stmt);

    if (code == SQLITE_ROW)
        return true;
    if (code != SQLITE_DONE && !journal_failed(journal)) /* the first one tells most */
        journal->fault = (struct fault){.what = what,
                                        .code = sqlite3_extended_errcode(sqlite3_db_handle(stmt)),
                                        .sys = sqlite3_system_errno(sqlite3_db_handle(stmt))};
    sqlite3_reset(stmt);
    return false;
}

/* The statement on store.db, or NULL after a failure. */
static sqlite3_stmt *lookup(struct journal *journal, enum journal_lookup which)
{
    return journal_failed(journal) ? NULL : journal->lookups[which];
}

static bool log_ok(struct journal *journal, bool ok)
{
    if (!ok && !journal_failed(journal))
        journal->fault = journal->log.fault;
    return ok;
}

/* Opening. */

static bool replay_batch(struct journal *journal, struct batch *batch, int64_t size)
{
    uint64_t seq = batch->seq;

    for (struct change change; batch->changes.len;) {
        if (!change_read(&batch->changes, &change)) {
            batch_damaged(batch, &journal->fault);
            return false;
        }
        if (change.kind == CHANGE_META) {
            journal->floor = change.u.meta.floor;
            journal->wait_shift_ms = change.u.meta.wait_shift_ms;
            continue;
        }
        memtable_put(&journal->rows, &change);
        if (change.kind == CHANGE_JOB && change.u.job.head.id > journal->max_id)
            journal->max_id = change.u.job.head.id;
    }
    memtable_seal(&journal->rows, seq, NULL);
    journal->bytes += size;
    journal->seq = seq;
    return true;
}

/* Replays everything store.db lacks. */
static void replay(struct journal *journal, uint64_t upto)
{
    struct arena arena = {0};
    uint64_t last;
    bool ok = logfile_end(&journal->log, journal->flushed_seq, upto, &last);

    while (ok && journal->seq < last) {
        struct batch batch = {.seq = journal->seq + 1};
        int64_t size;

        arena_reset(&arena);
        ok = logfile_read(&journal->log, batch.seq, &arena, &batch.changes, &size) &&
             replay_batch(journal, &batch, size);
    }
    arena_free(&arena);
    log_ok(journal, ok);
}

/* What a release left that had its journal in a database: the batches go where ours are. */
static void take_over(struct journal *journal, const struct storefile *file)
{
    sqlite3 *db;
    sqlite3_stmt *stmt;
    bool ok;

    if (!storefile_has_old_journal(file) ||
        !storefile_connect_old_journal(file, &db, &journal->fault))
        return;
    ok = storefile_prepare(db, (const char *const[]){BATCH_AFTER}, 1, &stmt, &journal->fault);
    if (ok)
        sqlite3_bind_int64(stmt, 1, (int64_t)journal->seq);
    while (ok && row(journal, stmt, "read the journal")) {
        struct batch batch;
        bool written;
        int64_t size;

        ok = batch_read(stmt, journal->seq, &batch, &journal->fault) &&
             log_ok(journal, logfile_append(&journal->log, batch.seq, journal->flushed_seq,
                                            batch.changes, &size, &written)) &&
             replay_batch(journal, &batch, size);
    }
    sqlite3_finalize(stmt);
    storefile_disconnect(db, true);
    if (!journal_failed(journal))
        storefile_drop_old_journal(file, &journal->fault);
}

bool journal_open(struct journal *journal, const struct storefile *file, uint64_t upto)
{
    sqlite3_stmt *stmt;

    *journal = (struct journal){0};
    memtable_init(&journal->rows);
    if (storefile_connect_writer(file, &journal->tables, &journal->fault) &&
        storefile_prepare(journal->tables, lookup_texts, LOOKUP_COUNT, journal->lookups,
                          &journal->fault)) {
        stmt = journal->lookups[LOOKUP_META];
        if (row(journal, stmt, "read the meta row")) {
            journal->floor = (uint64_t)sqlite3_column_int64(stmt, 0);
            journal->max_id = (uint64_t)sqlite3_column_int64(stmt, 1);
            journal->wait_shift_ms = sqlite3_column_int64(stmt, 2);
            journal->seq = journal->flushed_seq = (uint64_t)sqlite3_column_int64(stmt, 3);
            sqlite3_reset(stmt);
        }
        if (!journal_failed(journal) &&
            log_ok(journal, logfile_open(&journal->log, file->journal, true)))
            replay(journal, upto);
        if (!journal_failed(journal))
            take_over(journal, file);
    }
    if (!journal_failed(journal))
        return true;
    journal_close(journal);
    return false;
}

void journal_close(struct journal *journal)
{
    for (int i = 0; i < LOOKUP_COUNT; i++)
        sqlite3_finalize(journal->lookups[i]);
    memset(journal->lookups, 0, sizeof journal->lookups);
    logfile_close(&journal->log);
    storefile_disconnect(journal->tables, journal_failed(journal));
    journal->tables = NULL;
    memtable_free(&journal->rows);
    buf_free(&journal->batch);
}

bool journal_settle(struct journal *journal)
{
    return storefile_empty_wal(journal->tables, &journal->fault) &&
           log_ok(journal, logfile_settle(&journal->log));
}

bool journal_probe(struct journal *journal)
{
    assert(!journal->writing);
    return log_ok(journal, logfile_probe(&journal->log, journal->flushed_seq, PROBE_BYTES));
}

/* Batches. */

enum err journal_commit(struct journal *journal)
{
    struct change meta = {.kind = CHANGE_META, .u.meta = {journal->floor, journal->wait_shift_ms}};
    int64_t size, begun_us;
    bool written = false; /* it may be found after a crash although it was reported as failed */

    if (journal->writing && !journal_failed(journal)) {
        buf_clear(&journal->batch);
        if (journal->meta_changed)
            change_write(&journal->batch, &meta);
        memtable_seal(&journal->rows, journal->seq + 1, &journal->batch);
        begun_us = clock_mono_us();
        if (log_ok(journal, logfile_append(&journal->log, journal->seq + 1, journal->flushed_seq,
                                           buf_view(&journal->batch), &size, &written))) {
            metric_observe_us(METRIC_COMMIT_SECONDS, clock_mono_us() - begun_us);
            journal->seq++;
            journal->bytes += size;
            journal->meta_changed = false;
        }
    }
    journal->writing = false;
    return !journal_failed(journal) ? ERR_OK : written ? ERR_UNKNOWN : ERR_STORE_DOWN;
}

void journal_flushed(struct journal *journal, uint64_t seq, int64_t bytes)
{
    assert(seq >= journal->flushed_seq && seq <= journal->seq);
    journal->flushed_seq = seq;
    journal->bytes -= bytes;
    assert(journal->bytes >= 0);
}

bool journal_release(struct journal *journal)
{
    return memtable_release(&journal->rows, journal->flushed_seq, RELEASE_ROWS);
}

bool journal_retire(struct journal *journal)
{
    if (journal->flushed_seq != journal->seq || journal_failed(journal))
        return false;
    return log_ok(journal, logfile_empty(&journal->log)) &&
           storefile_mark_whole(journal->tables, &journal->fault);
}

/* Jobs. */

static void note(struct journal *journal, const struct change *change)
{
    if (journal_failed(journal))
        return;
    memtable_put(&journal->rows, change);
    journal->writing = true;
}

/* The job's current state as a change; the caller adds what `parts` names. */
static struct change change_of(const struct journal *journal, const struct ledger_job *entry,
                               unsigned parts)
{
    struct change change = {.kind = CHANGE_JOB,
                            .u.job = {.head = ledger_head(entry),
                                      .run_until_ms = entry->run->run_until_ms,
                                      .answered = entry->answered,
                                      .parts = parts,
                                      .attempts = entry->run->attempts.len
                                                      ? buf_view(&entry->run->attempts)
                                                      : STR_NONE}};

    if (entry->head.lane)
        change.u.job.head.due_ms -= journal->wait_shift_ms;
    return change;
}

void journal_job_add(struct journal *journal, const struct ledger_job *entry,
                     const struct store_op *op)
{
    struct change change = change_of(journal, entry, CHANGE_NEW);

    change.u.job.spec = op->u.put.spec;
    change.u.job.demand = op->u.put.demand;
    change.u.job.idem = op->u.put.idem;
    change.u.job.fingerprint = op->u.put.idem.at ? op->u.put.fingerprint : 0;
    if (entry->keyed) {
        change.u.job.parts |= CHANGE_FIRST_NODE;
        change.u.job.first_node = str_of(entry->run->node);
    }
    note(journal, &change);
    if (entry->head.id > journal->max_id)
        journal->max_id = entry->head.id;
    if (entry->head.id < journal->floor) /* made before the floor was found, came after it */
        journal_floor(journal, entry->head.id);
}

void journal_job_step(struct journal *journal, const struct ledger_job *entry)
{
    struct change change = change_of(journal, entry, 0);

    note(journal, &change);
}

void journal_job_end(struct journal *journal, const struct ledger_job *entry, struct str result)
{
    struct change change = change_of(journal, entry, CHANGE_RESULT);

    change.u.job.result = result;
    note(journal, &change);
}

void journal_job_first_node(struct journal *journal, const struct ledger_job *entry)
{
    struct change change = change_of(journal, entry, CHANGE_FIRST_NODE);

    change.u.job.first_node = str_of(entry->run->node);
    note(journal, &change);
}

void journal_job_drop_key(struct journal *journal, const struct ledger_job *entry)
{
    struct change change = change_of(journal, entry, CHANGE_KEY_DROPPED);

    note(journal, &change);
}

/* LOOKUP_JOB or LOOKUP_ACTIVE rests on a row. */
static bool read_job(struct journal *journal, sqlite3_stmt *stmt, struct journal_job *ret_job)
{
    if (!jobrow_head(stmt, &ret_job->head, &ret_job->run_until_ms)) {
        journal->fault = (struct fault){.what = "read a job", .code = SQLITE_CORRUPT};
        return false;
    }
    buf_clear(&ret_job->attempts);
    buf_str(&ret_job->attempts, jobrow_text(stmt, JOBROW_AFTER_HEAD));
    ret_job->keyed = sqlite3_column_type(stmt, JOBROW_AFTER_HEAD + 1) != SQLITE_NULL;
    ret_job->answered = sqlite3_column_int(stmt, JOBROW_AFTER_HEAD + 2) != 0;
    ret_job->spec = ret_job->demand = STR_NONE;
    return true;
}

/* The memtable's row is newer than the one read from store.db, if any. */
static void take_row(const struct journal *journal, const struct memjob *job,
                     struct journal_job *ret_job)
{
    const struct change_job *row = &job->row;

    ret_job->head = memtable_head(job, journal->wait_shift_ms);
    ret_job->run_until_ms = row->run_until_ms;
    ret_job->answered = row->answered;
    buf_clear(&ret_job->attempts);
    buf_str(&ret_job->attempts, row->attempts);
    if (row->parts & CHANGE_NEW) {
        ret_job->keyed = false;
        ret_job->spec = row->spec;
        ret_job->demand = row->demand;
    }
    if (row->parts & CHANGE_FIRST_NODE)
        ret_job->keyed = true;
    if (row->parts & CHANGE_KEY_DROPPED)
        ret_job->keyed = false;
}

bool journal_job_find(struct journal *journal, uint64_t id, struct journal_job *ret_job)
{
    sqlite3_stmt *stmt = lookup(journal, LOOKUP_JOB);
    const struct memjob *job = memtable_job(&journal->rows, id);
    bool found = false;

    if (!stmt)
        return false;
    if (!job || !(job->row.parts & CHANGE_NEW)) {
        sqlite3_bind_int64(stmt, 1, (int64_t)id);
        sqlite3_bind_int64(stmt, JOBROW_SHIFT, journal->wait_shift_ms);
        if (!row(journal, stmt, "read a job"))
            return false;
        found = read_job(journal, stmt, ret_job);
        sqlite3_reset(stmt);
        if (!found)
            return false;
    }
    if (job)
        take_row(journal, job, ret_job);
    return true;
}

static bool is_active(const struct store_head *head)
{
    return head->state < JOB_DONE || head->lease > 0;
}

/* First the rows of store.db, then those that are only in the memtable. */
bool journal_job_active(struct journal *journal, struct journal_job *ret_job)
{
    sqlite3_stmt *stmt = lookup(journal, LOOKUP_ACTIVE);
    const struct memjob *job;

    if (!stmt)
        return false;
    if (journal->rows_at == 0) {
        if (!sqlite3_stmt_busy(stmt)) {
            sqlite3_bind_int64(stmt, 1, (int64_t)journal->floor);
            sqlite3_bind_int(stmt, 2, JOB_DONE); /* DONE and FAILED are the last ones */
            sqlite3_bind_int64(stmt, JOBROW_SHIFT, journal->wait_shift_ms);
        }
        while (row(journal, stmt, "read the active jobs")) {
            if (!read_job(journal, stmt, ret_job)) {
                sqlite3_reset(stmt);
                return false;
            }
            ret_job->spec = jobrow_text(stmt, JOBROW_AFTER_HEAD + 3);
            ret_job->demand = jobrow_text(stmt, JOBROW_AFTER_HEAD + 4);
            job = memtable_job(&journal->rows, ret_job->head.id);
            if (job)
                take_row(journal, job, ret_job);
            if (is_active(&ret_job->head))
                return true;
        }
        if (journal_failed(journal))
            return false;
    }
    while ((job = idmap_next(&journal->rows.jobs, &journal->rows_at)))
        if (job->row.parts & CHANGE_NEW && is_active(&job->row.head)) {
            take_row(journal, job, ret_job);
            return true;
        }
    journal->rows_at = 0;
    return false;
}

bool journal_job_record(struct journal *journal, uint64_t id, struct arena *arena,
                        struct store_record *ret_record)
{
    sqlite3_stmt *stmt = lookup(journal, LOOKUP_RECORD);
    const struct memjob *job = memtable_job(&journal->rows, id);
    struct store_record newer;
    bool found;

    if (!stmt)
        return false;
    if (job && job->row.parts & CHANGE_NEW) {
        memtable_record(job, journal->wait_shift_ms, arena, ret_record);
        return true;
    }
    sqlite3_bind_int64(stmt, 1, (int64_t)id);
    sqlite3_bind_int64(stmt, JOBROW_SHIFT, journal->wait_shift_ms);
    if (!row(journal, stmt, "read a job"))
        return false;
    found = jobrow_record(stmt, arena, ret_record);
    if (found && sqlite3_column_type(stmt, JOBROW_SPEC + 1) != SQLITE_NULL &&
        !(job && job->row.parts & CHANGE_KEY_DROPPED)) {
        ret_record->idem = arena_str(arena, jobrow_text(stmt, JOBROW_SPEC + 1));
        ret_record->fingerprint = (uint64_t)sqlite3_column_int64(stmt, JOBROW_SPEC + 2);
    }
    sqlite3_reset(stmt);
    if (!found || !job)
        return found;
    memtable_record(job, journal->wait_shift_ms, arena, &newer);
    ret_record->head = newer.head;
    ret_record->history = newer.history;
    if (job->row.parts & CHANGE_RESULT)
        ret_record->result = newer.result;
    return true;
}

bool journal_key_find(struct journal *journal, struct str key, struct journal_key *ret_key)
{
    sqlite3_stmt *stmt = lookup(journal, LOOKUP_KEY);
    const struct memjob *job = memtable_key(&journal->rows, key);

    if (!stmt)
        return false;
    *ret_key = (struct journal_key){0};
    if (job) {
        ret_key->job = job->row.head.id;
        ret_key->fingerprint = job->row.fingerprint;
    } else {
        sqlite3_bind_text(stmt, 1, key.at, (int)key.len, SQLITE_STATIC);
        if (!row(journal, stmt, "look for a key"))
            return false;
        ret_key->job = (uint64_t)sqlite3_column_int64(stmt, 0);
        ret_key->fingerprint = (uint64_t)sqlite3_column_int64(stmt, 1);
        str_copy(jobrow_text(stmt, 2), ret_key->first_node, sizeof ret_key->first_node);
        sqlite3_reset(stmt);
        job = memtable_job(&journal->rows, ret_key->job);
    }
    if (job && job->row.parts & CHANGE_FIRST_NODE)
        str_copy(job->row.first_node, ret_key->first_node, sizeof ret_key->first_node);
    return !job || !(job->row.parts & CHANGE_KEY_DROPPED);
}

/* Nodes. */

void journal_node_put(struct journal *journal, const struct ledger_node *holder)
{
    note(journal, &(struct change){.kind = CHANGE_NODE,
                                   .u.node = {.id = holder->id,
                                              .counts = holder->counts,
                                              .own = holder->own,
                                              .admin = holder->admin,
                                              .admin_reason = buf_view(&holder->admin_reason),
                                              .registered_ms = holder->registered_ms,
                                              .version = holder->version,
                                              .facts = buf_view(&holder->facts),
                                              .resources = buf_view(&holder->resources_text)}});
}

void journal_node_del(struct journal *journal, struct str id)
{
    note(journal, &(struct change){.kind = CHANGE_NODE_DEL, .u.node = {.id = id}});
}

/* The next row of a kind that only the memtable has, after those of store.db. */
static bool next_recent(struct journal *journal, enum change_kind kind, struct change *ret_change)
{
    while (!journal_failed(journal) &&
           memtable_side_next(&journal->rows, kind, &journal->rows_at, ret_change))
        if (ret_change->kind == kind)
            return true;
    journal->rows_at = 0;
    return false;
}

bool journal_node_next(struct journal *journal, struct store_node *ret_node)
{
    sqlite3_stmt *stmt = lookup(journal, LOOKUP_NODES);
    struct change change;

    if (!stmt)
        return false;
    while (journal->rows_at == 0 && row(journal, stmt, "read the nodes")) {
        int own = sqlite3_column_int(stmt, 1);
        int health = sqlite3_column_int(stmt, 2);
        int admin = sqlite3_column_int(stmt, 5);

        *ret_node = (struct store_node){
            .id = jobrow_text(stmt, 0),
            .counts = {.max = sqlite3_column_int(stmt, 3),
                       .epoch = (uint32_t)sqlite3_column_int64(stmt, 4)},
            .admin_reason = jobrow_text(stmt, 6),
            .registered_ms = sqlite3_column_int64(stmt, 7),
            .version = sqlite3_column_int64(stmt, 8),
            .facts = jobrow_text(stmt, 9),
            .resources = jobrow_text(stmt, 10),
        };
        /* Values no berth writes read as "unknown", which never gets work. */
        if (own > 0 && own < NODE_HEALTH_COUNT)
            ret_node->own = (enum node_health)own;
        if (health > 0 && health < NODE_HEALTH_COUNT)
            ret_node->counts.health = (enum node_health)health;
        if (admin > 0 && admin <= NODE_ADMIN_DRAINING)
            ret_node->admin = (enum node_admin)admin;
        if (!memtable_side(&journal->rows, CHANGE_NODE, ret_node->id, &change))
            return true; /* else it is listed below, or deleted */
    }
    if (!next_recent(journal, CHANGE_NODE, &change))
        return false;
    *ret_node = change.u.node;
    ret_node->counts.reserved = ret_node->counts.running = 0;
    return true;
}

/* Breakers. */

void journal_breaker_put(struct journal *journal, const struct breaker_entry *gate)
{
    note(journal,
         &(struct change){.kind = CHANGE_BREAKER,
                          .u.breaker = {.node = gate->node,
                                        .type = gate->type,
                                        .breaker = gate->breaker,
                                        .probe_job = gate->probe ? gate->probe->head.id : 0}});
}

void journal_breaker_del(struct journal *journal, const struct breaker_entry *gate)
{
    note(journal, &(struct change){.kind = CHANGE_BREAKER_DEL,
                                   .u.breaker = {.node = gate->node, .type = gate->type}});
}

/* Values no berth writes are passed over: work is not kept from a node for them. */
static bool read_breaker(sqlite3_stmt *stmt, struct change_breaker *ret_breaker)
{
    int state = sqlite3_column_int(stmt, 2);
    int64_t failures = sqlite3_column_int64(stmt, 3);

    *ret_breaker = (struct change_breaker){
        .node = jobrow_text(stmt, 0),
        .type = jobrow_text(stmt, 1),
        .breaker = {.opened_ms = sqlite3_column_int64(stmt, 4)},
        .probe_job = (uint64_t)sqlite3_column_int64(stmt, 5),
    };
    if (state < 0 || state >= BREAKER_STATE_COUNT || failures < 1 || failures > INT32_MAX)
        return false;
    ret_breaker->breaker.state = (enum breaker_state)state;
    ret_breaker->breaker.failures = (int32_t)failures;
    return ret_breaker->node.len > 0 && ret_breaker->node.len <= NODE_ID_MAX &&
           ret_breaker->type.len > 0 && ret_breaker->type.len <= POOL_LANG_MAX;
}

bool journal_breaker_next(struct journal *journal, struct change_breaker *ret_breaker)
{
    sqlite3_stmt *stmt = lookup(journal, LOOKUP_BREAKERS);
    struct change change;

    if (!stmt)
        return false;
    while (journal->rows_at == 0 && row(journal, stmt, "read the breakers"))
        if (read_breaker(stmt, ret_breaker) &&
            !memtable_breaker(&journal->rows, ret_breaker->node, ret_breaker->type))
            return true;
    if (!next_recent(journal, CHANGE_BREAKER, &change))
        return false;
    *ret_breaker = change.u.breaker;
    return true;
}

/* Sessions. */

void journal_session_put(struct journal *journal, const struct change_session *session)
{
    note(journal, &(struct change){.kind = CHANGE_SESSION, .u.session = *session});
}

bool journal_session_find(struct journal *journal, struct change_session *session, bool *ret_same)
{
    sqlite3_stmt *stmt = lookup(journal, LOOKUP_SESSION);
    struct change change;

    if (!stmt)
        return false;
    if (memtable_side(&journal->rows, CHANGE_SESSION, session->id, &change)) {
        *ret_same = str_eq(change.u.session.pool, session->pool) &&
                    str_eq(change.u.session.lang_pair, session->lang_pair);
        session->version = change.u.session.version;
        session->updated_ms = change.u.session.updated_ms;
        return true;
    }
    sqlite3_bind_text(stmt, 1, session->id.at, (int)session->id.len, SQLITE_STATIC);
    if (!row(journal, stmt, "read a session"))
        return false;
    *ret_same = str_eq(jobrow_text(stmt, 0), session->pool) &&
                str_eq(jobrow_text(stmt, 1), session->lang_pair);
    session->version = sqlite3_column_int64(stmt, 2);
    session->updated_ms = sqlite3_column_int64(stmt, 3);
    sqlite3_reset(stmt);
    return true;
}

/* Limits. */

void journal_limit_put(struct journal *journal, struct str pattern, const struct limit *limit)
{
    note(journal,
         &(struct change){.kind = CHANGE_LIMIT, .u.limit = {.pattern = pattern, .limit = *limit}});
}

void journal_limit_del(struct journal *journal, struct str pattern)
{
    note(journal, &(struct change){.kind = CHANGE_LIMIT_DEL, .u.limit = {.pattern = pattern}});
}

void journal_limit_key_put(struct journal *journal, const struct change_limit_key *key)
{
    note(journal, &(struct change){.kind = CHANGE_LIMIT_KEY, .u.limit_key = *key});
}

void journal_limit_key_del(struct journal *journal, struct str key)
{
    note(journal, &(struct change){.kind = CHANGE_LIMIT_KEY_DEL, .u.limit_key = {.key = key}});
}

bool journal_limit_next(struct journal *journal, struct change_limit *ret_limit)
{
    sqlite3_stmt *stmt = lookup(journal, LOOKUP_LIMITS);
    struct change change;

    if (!stmt)
        return false;
    while (journal->rows_at == 0 && row(journal, stmt, "read the limits")) {
        ret_limit->pattern = jobrow_text(stmt, 0);
        /* Rows no berth writes are skipped, here and below. */
        if (limit_is_pattern(ret_limit->pattern) &&
            limit_parse(jobrow_text(stmt, 1), &ret_limit->limit) &&
            !memtable_side(&journal->rows, CHANGE_LIMIT, ret_limit->pattern, &change))
            return true;
    }
    if (!next_recent(journal, CHANGE_LIMIT, &change))
        return false;
    *ret_limit = change.u.limit;
    return true;
}

bool journal_limit_key_next(struct journal *journal, struct change_limit_key *ret_key)
{
    sqlite3_stmt *stmt = lookup(journal, LOOKUP_LIMIT_KEYS);
    struct change change;

    if (!stmt)
        return false;
    while (journal->rows_at == 0 && row(journal, stmt, "read the keys")) {
        *ret_key = (struct change_limit_key){.key = jobrow_text(stmt, 0),
                                             .hold_until_ms = sqlite3_column_int64(stmt, 1),
                                             .reason = jobrow_text(stmt, 2),
                                             .starts = jobrow_text(stmt, 3)};
        if (demand_is_key(ret_key->key) &&
            !memtable_side(&journal->rows, CHANGE_LIMIT_KEY, ret_key->key, &change))
            return true;
    }
    if (!next_recent(journal, CHANGE_LIMIT_KEY, &change))
        return false;
    *ret_key = change.u.limit_key;
    return true;
}

/* The meta row. */

void journal_shift_waits(struct journal *journal, int64_t ms)
{
    journal->wait_shift_ms += ms;
    journal->meta_changed = true;
    journal->writing = true;
}

void journal_floor(struct journal *journal, uint64_t floor)
{
    journal->meta_changed |= floor != journal->floor;
    journal->floor = floor;
}
