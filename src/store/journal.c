/* Collects changes, writes them as batches, and looks up rows: in the memtable first, then in
 * store.db. */
#include "store/journal.h"

#include "base/clock.h"
#include "base/digest.h"
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

static bool replay_batch(struct journal *journal, uint64_t seq, struct str changes, int64_t size)
{
    for (struct change change; changes.len;) {
        if (!change_read(&changes, &change)) {
            change_damaged(seq, &journal->fault);
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
        struct str changes;
        int64_t size;

        arena_reset(&arena);
        ok = logfile_read(&journal->log, journal->seq + 1, &arena, &changes, &size) &&
             replay_batch(journal, journal->seq + 1, changes, size);
    }
    arena_free(&arena);
    log_ok(journal, ok);
}

/* Copies the batch in the current row of `stmt`, which must be the next one and intact. */
static bool take_over_batch(struct journal *journal, sqlite3_stmt *stmt)
{
    uint64_t seq = (uint64_t)sqlite3_column_int64(stmt, 0);
    struct str changes = {.at = sqlite3_column_blob(stmt, 2),
                          .len = (size_t)sqlite3_column_bytes(stmt, 2)};
    bool written;
    int64_t size;

    if (seq != journal->seq + 1) {
        journal->fault =
            (struct fault){.what = "read the journal", .code = FAULT_GAP, .sys = (int)seq};
        return false;
    }
    if (!changes.at || crc32c(changes) != sqlite3_column_int64(stmt, 1)) {
        change_damaged(seq, &journal->fault);
        return false;
    }
    return log_ok(journal, logfile_append(&journal->log, seq, journal->flushed_seq, changes, &size,
                                          &written)) &&
           replay_batch(journal, seq, changes, size);
}

/* Copies the batches of an earlier release's journal database into our journal. */
static void take_over(struct journal *journal, const struct storefile *file)
{
    static const char *const after =
        "SELECT seq, sum, changes FROM batch WHERE seq > ?1 ORDER BY seq";
    sqlite3 *db;
    sqlite3_stmt *stmt;

    if (!storefile_has_old_journal(file) ||
        !storefile_connect_old_journal(file, &db, &journal->fault))
        return;
    if (storefile_prepare(db, &after, 1, &stmt, &journal->fault)) {
        sqlite3_bind_int64(stmt, 1, (int64_t)journal->seq);
        while (storefile_row(stmt, "read the journal", &journal->fault) &&
               take_over_batch(journal, stmt))
            ;
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
        if (storefile_row(stmt, "read the meta row", &journal->fault)) {
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
    storefile_finalize(journal->lookups, LOOKUP_COUNT);
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

void journal_put(struct journal *journal, const struct change *change)
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
    if (parts & CHANGE_FIRST_NODE)
        change.u.job.first_node = str_of(entry->run->node);
    return change;
}

void journal_job_add(struct journal *journal, const struct ledger_job *entry,
                     const struct store_op *op)
{
    struct change change =
        change_of(journal, entry, CHANGE_NEW | (entry->keyed ? CHANGE_FIRST_NODE : 0));

    change.u.job.spec = op->u.put.spec;
    change.u.job.demand = op->u.put.demand;
    change.u.job.idem = op->u.put.idem;
    change.u.job.fingerprint = op->u.put.idem.at ? op->u.put.fingerprint : 0;
    journal_put(journal, &change);
    if (entry->head.id > journal->max_id)
        journal->max_id = entry->head.id;
    if (entry->head.id < journal->floor) /* created before the floor was found, written after it */
        journal_floor(journal, entry->head.id);
}

void journal_job_step(struct journal *journal, const struct ledger_job *entry, unsigned parts)
{
    struct change change = change_of(journal, entry, parts);

    journal_put(journal, &change);
}

void journal_job_end(struct journal *journal, const struct ledger_job *entry, struct str result)
{
    struct change change = change_of(journal, entry, CHANGE_RESULT);

    change.u.job.result = result;
    journal_put(journal, &change);
}

/* Reads the current row of LOOKUP_JOB or LOOKUP_ACTIVE. */
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
        if (!storefile_row(stmt, "read a job", &journal->fault))
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
        while (storefile_row(stmt, "read the active jobs", &journal->fault)) {
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
    if (!storefile_row(stmt, "read a job", &journal->fault))
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
    const struct memjob *job = map_get(&journal->rows.keys, key);

    if (!stmt)
        return false;
    *ret_key = (struct journal_key){0};
    if (job) {
        ret_key->job = job->row.head.id;
        ret_key->fingerprint = job->row.fingerprint;
    } else {
        sqlite3_bind_text(stmt, 1, key.at, (int)key.len, SQLITE_STATIC);
        if (!storefile_row(stmt, "look for a key", &journal->fault))
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

/* The others. */

/* False: an invalid row, which is skipped. For a node only invalid values are: they read as
 * "unknown", and such a node never gets work. */
static bool read_row(sqlite3_stmt *stmt, struct change *change)
{
    bool ok;

    if (change->kind == CHANGE_LIMIT) {
        change->u.limit.pattern = jobrow_text(stmt, 0);
        return limit_is_pattern(change->u.limit.pattern) &&
               limit_parse(jobrow_text(stmt, 1), &change->u.limit.limit);
    }
    ok = row_read(stmt, sqlite3_column_count(stmt), change);
    if (change->kind == CHANGE_BREAKER)
        return ok && change->u.breaker.breaker.failures > 0;
    return change->kind == CHANGE_NODE || demand_is_key(change->u.limit_key.key);
}

/* First the rows of store.db, then those that are only in the memtable. */
bool journal_next(struct journal *journal, enum change_kind kind, struct change *ret_change)
{
    static const struct {
        enum journal_lookup lookup;
        const char *what;
    } sources[] = {
        [CHANGE_NODE] = {LOOKUP_NODES, "read the nodes"},
        [CHANGE_BREAKER] = {LOOKUP_BREAKERS, "read the breakers"},
        [CHANGE_LIMIT] = {LOOKUP_LIMITS, "read the limits"},
        [CHANGE_LIMIT_KEY] = {LOOKUP_LIMIT_KEYS, "read the keys"},
    };
    sqlite3_stmt *stmt = lookup(journal, sources[kind].lookup);
    struct change newer;

    if (!stmt)
        return false;
    while (journal->rows_at == 0 && storefile_row(stmt, sources[kind].what, &journal->fault)) {
        *ret_change = (struct change){.kind = kind};
        if (read_row(stmt, ret_change) && !memtable_side(&journal->rows, ret_change, &newer))
            return true; /* otherwise it is listed below, or deleted */
    }
    while (!journal_failed(journal) &&
           memtable_side_next(&journal->rows, kind, &journal->rows_at, ret_change))
        if (ret_change->kind == kind)
            return true;
    journal->rows_at = 0;
    return false;
}

bool journal_session_find(struct journal *journal, struct change_session *session, bool *ret_same)
{
    sqlite3_stmt *stmt = lookup(journal, LOOKUP_SESSION);
    struct change known = {.kind = CHANGE_SESSION, .u.session.id = session->id};
    bool in_file = false;

    if (!stmt)
        return false;
    if (!memtable_side(&journal->rows, &known, &known)) {
        sqlite3_bind_text(stmt, 1, session->id.at, (int)session->id.len, SQLITE_STATIC);
        if (!storefile_row(stmt, "read a session", &journal->fault))
            return false;
        in_file = true;
        known.u.session.pool = jobrow_text(stmt, 0);
        known.u.session.lang_pair = jobrow_text(stmt, 1);
        known.u.session.version = sqlite3_column_int64(stmt, 2);
        known.u.session.updated_ms = sqlite3_column_int64(stmt, 3);
    }
    *ret_same = str_eq(known.u.session.pool, session->pool) &&
                str_eq(known.u.session.lang_pair, session->lang_pair);
    session->version = known.u.session.version;
    session->updated_ms = known.u.session.updated_ms;
    if (in_file)
        sqlite3_reset(stmt);
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
