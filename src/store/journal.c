/* The statements on jobs, and the transaction around them. Nodes, sessions and the meta row are in
 * journal_side.c. */
#include "store/journal_private.h"

#include "base/mem.h"
#include "store/jobrow.h"

#include <assert.h>
#include <string.h>

enum { SPEC_INLINE_MAX = 2048 }; /* longer ones have a row of their own, written once */

static const char *const texts[JOURNAL_SQL_COUNT] = {
    [SQL_BEGIN] = "BEGIN IMMEDIATE",
    [SQL_COMMIT] = "COMMIT",
    [SQL_JOB_ADD] = "INSERT INTO job(" JOBROW_WRITTEN ", fingerprint, idem, first_node, spec) "
                    "VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [SQL_JOB_STEP] = "UPDATE job SET state = ?2, lease = ?3, attempt = ?4, epoch = ?5, node = ?6,"
                     " reason = ?7, updated_ms = ?8, dispatched_ms = ?9, acked_ms = ?10,"
                     " due_ms = ?11, run_until_ms = ?12, owner = ?13, lane = ?14, priority = ?15"
                     " WHERE id = ?1",
    [SQL_JOB_END] = "UPDATE job SET state = ?2, lease = ?3, attempt = ?4, epoch = ?5, node = ?6,"
                    " reason = ?7, updated_ms = ?8, dispatched_ms = ?9, acked_ms = ?10,"
                    " due_ms = ?11, run_until_ms = ?12, owner = ?13, lane = ?14, priority = ?15,"
                    " ended_ms = ?16, attempts = ?17, result = ?18 WHERE id = ?1",
    [SQL_JOB_CALLBACK] = "UPDATE job SET callback = ?2, updated_ms = ?3 WHERE id = ?1",
    [SQL_JOB_FIRST_NODE] = "UPDATE job SET first_node = ?2 WHERE id = ?1",
    [SQL_JOB_ANSWERED] = "UPDATE job SET answered = 1 WHERE id = ?1",
    [SQL_JOB_DROP_KEY] = "UPDATE job SET idem = NULL, first_node = NULL WHERE id = ?1",
    [SQL_JOB_DEL] = "DELETE FROM job WHERE id = ?1",
    [SQL_JOB_FIND] = "SELECT " JOBROW_HEAD ", attempts, first_node, answered FROM job"
                     " WHERE id = ?1",
    [SQL_JOB_RECORD] = "SELECT " JOBROW_RECORD ", idem, fingerprint FROM job WHERE id = ?1",
    [SQL_JOB_KEY] = "SELECT id, fingerprint, first_node FROM job WHERE idem = ?1",
    [SQL_JOB_ACTIVE] = "SELECT " JOBROW_HEAD ", attempts, first_node, answered FROM job"
                       " WHERE id >= ?1 AND (state < ?2 OR lease > 0)",
    [SQL_JOB_OLDEST] = "SELECT id, state, lease, callback, created_ms, updated_ms, spec IS NULL"
                       " FROM job WHERE id > ?1 ORDER BY id LIMIT 1",
    [SQL_JOB_NEWEST] = "SELECT coalesce(max(id), 0) FROM job",
    [SQL_BULK_ADD] = "INSERT INTO bulk(id, spec) VALUES(?1, ?2)",
    [SQL_BULK_DEL] = "DELETE FROM bulk WHERE id = ?1",
    [SQL_NODE_PUT] = "INSERT OR REPLACE INTO node(id, own, health, max, epoch, admin, admin_reason,"
                     " registered_ms, version, facts) VALUES(?,?,?,?,?,?,?,?,?,?)",
    [SQL_NODE_DEL] = "DELETE FROM node WHERE id = ?1",
    [SQL_NODE_ALL] = "SELECT id, own, health, max, epoch, admin, admin_reason, registered_ms,"
                     " version, facts FROM node",
    [SQL_BREAKER_PUT] = "INSERT OR REPLACE INTO breaker(node, type, state, failures, opened_ms,"
                        " probe_job) VALUES(?,?,?,?,?,?)",
    [SQL_BREAKER_DEL] = "DELETE FROM breaker WHERE node = ?1 AND type = ?2",
    [SQL_BREAKER_ALL] = "SELECT node, type, state, failures, opened_ms, probe_job FROM breaker",
    [SQL_SESSION_PUT] = "INSERT OR REPLACE INTO session(id, preferred_pool, lang_pair, version,"
                        " updated_ms) VALUES(?,?,?,?,?)",
    [SQL_SESSION_FIND] = "SELECT preferred_pool, lang_pair, version, updated_ms FROM session"
                         " WHERE id = ?1",
    [SQL_SESSION_OLDEST] = "SELECT seq, updated_ms FROM session ORDER BY seq LIMIT 1",
    [SQL_SESSION_DEL] = "DELETE FROM session WHERE seq = ?1",
    [SQL_META_GET] = "SELECT floor, row_count, max_id,"
                     " (SELECT coalesce(max(seq), 0) FROM session), wait_shift_ms FROM meta",
    [SQL_META_PUT] = "UPDATE meta SET floor = ?1, row_count = ?2, max_id = ?3, wait_shift_ms = ?4",
    [SQL_COUNT_SINCE] = "SELECT count(*) FROM job WHERE id > ?1",
};

bool journal_failed(const struct journal *journal)
{
    return journal->fault.what != NULL;
}

void journal_fail(struct journal *journal, const char *what)
{
    if (journal_failed(journal))
        return; /* the first one tells most */
    journal->fault = (struct fault){.what = what,
                                    .code = sqlite3_extended_errcode(journal->db),
                                    .sys = sqlite3_system_errno(journal->db)};
}

/* Remembers how long the WAL is; SQLite calls it inside COMMIT. */
static int note_wal(void *arg, sqlite3 *db, const char *name, int pages)
{
    struct journal *journal = arg;

    journal->wal_pages = pages;
    return SQLITE_OK;
}

bool journal_open(struct journal *journal, const struct storefile *file)
{
    *journal = (struct journal){0};
    if (!storefile_connect_writer(file, &journal->db, &journal->fault))
        return false;
    for (int i = 0; i < JOURNAL_SQL_COUNT; i++)
        if (sqlite3_prepare_v3(journal->db, texts[i], -1, SQLITE_PREPARE_PERSISTENT,
                               &journal->sql[i], NULL) != SQLITE_OK)
            journal_fail(journal, "prepare a statement");
    sqlite3_wal_hook(journal->db, note_wal, journal);
    if (!journal_failed(journal))
        journal_meta_load(journal);
    if (!journal_failed(journal))
        return true;
    journal_close(journal);
    return false;
}

void journal_close(struct journal *journal)
{
    for (int i = 0; i < JOURNAL_SQL_COUNT; i++) {
        sqlite3_finalize(journal->sql[i]);
        journal->sql[i] = NULL;
    }
    storefile_disconnect(journal->db, journal_failed(journal));
    journal->db = NULL;
}

sqlite3_stmt *journal_read(struct journal *journal, enum journal_sql which)
{
    return journal_failed(journal) ? NULL : journal->sql[which];
}

/* A row was found; the caller reads it and resets the statement. */
bool journal_row(struct journal *journal, sqlite3_stmt *stmt, const char *what)
{
    int code = sqlite3_step(stmt);

    if (code == SQLITE_ROW)
        return true;
    if (code != SQLITE_DONE)
        journal_fail(journal, what);
    sqlite3_reset(stmt);
    return false;
}

void journal_run(struct journal *journal, sqlite3_stmt *stmt, const char *what)
{
    if (sqlite3_step(stmt) != SQLITE_DONE)
        journal_fail(journal, what);
    sqlite3_reset(stmt);
}

/* The statement to write with, or NULL after a failure. The first write of a batch opens the
 * transaction, so that a batch without one costs no fsync. */
sqlite3_stmt *journal_write(struct journal *journal, enum journal_sql which)
{
    if (!journal->writing && !journal_failed(journal)) {
        journal_run(journal, journal->sql[SQL_BEGIN], "begin");
        journal->writing = true;
    }
    return journal_failed(journal) ? NULL : journal->sql[which];
}

bool journal_probe(struct journal *journal)
{
    assert(!journal->writing);
    /* As much as a few jobs take: a file with room for a byte only would fail them again at once.
     */
    return storefile_exec(journal->db,
                          "DROP TABLE IF EXISTS probe; CREATE TABLE probe(x);"
                          "INSERT INTO probe VALUES(zeroblob(262144)); DROP TABLE probe",
                          &journal->fault);
}

/* Its last frame makes a transaction true. One that could not be written is not there, after a
 * crash either; but one that was written and not synced may be found there. */
static enum err fate_of(const struct fault *fault, bool committing)
{
    bool unwritten = fault->code == SQLITE_IOERR_WRITE || (fault->code & 0xff) == SQLITE_FULL;

    return committing && !unwritten ? ERR_UNKNOWN : ERR_STORE_DOWN;
}

enum err journal_commit(struct journal *journal)
{
    bool committing;

    if (journal->writing && !journal_failed(journal))
        journal_meta_due(journal);
    committing = journal->writing && !journal_failed(journal);
    if (committing)
        journal_run(journal, journal->sql[SQL_COMMIT], "commit");
    journal->writing = false;
    journal->added = 0;
    return journal_failed(journal) ? fate_of(&journal->fault, committing) : ERR_OK;
}

/* Borrowed text: it lives at least until the statement was run. */
void journal_bind(sqlite3_stmt *stmt, int at, struct str text)
{
    if (text.at)
        sqlite3_bind_text(stmt, at, text.at, (int)text.len, SQLITE_STATIC);
    else
        sqlite3_bind_null(stmt, at);
}

static void bind_cstr(sqlite3_stmt *stmt, int at, const char *text)
{
    journal_bind(stmt, at, *text ? str_of(text) : STR_NONE);
}

/* As the row tells it, see journal.wait_shift_ms. */
static int64_t written_due_ms(const struct journal *journal, const struct store_head *head)
{
    return head->lane ? head->due_ms - journal->wait_shift_ms : head->due_ms;
}

static void bind_head(const struct journal *journal, sqlite3_stmt *stmt, const struct entry *entry)
{
    const struct store_head *head = &entry->head;
    int at = 1;

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
    sqlite3_bind_int64(stmt, at++, written_due_ms(journal, head));
    sqlite3_bind_int64(stmt, at++, head->timeout_ms);
    sqlite3_bind_int64(stmt, at++, entry->run_until_ms);
    bind_cstr(stmt, at++, head->type);
    sqlite3_bind_int64(stmt, at++, (int64_t)head->lane);
    sqlite3_bind_int(stmt, at++, head->priority);
    assert(at == JOBROW_AFTER_HEAD + 1);
}

void journal_job_add(struct journal *journal, const struct entry *entry, const struct store_op *op)
{
    sqlite3_stmt *stmt = journal_write(journal, SQL_JOB_ADD);
    struct str spec = op->u.put.spec;
    bool bulky = spec.len > SPEC_INLINE_MAX;
    int at = JOBROW_AFTER_HEAD + 1;

    if (!stmt)
        return;
    bind_head(journal, stmt, entry);
    if (op->u.put.idem.at)
        sqlite3_bind_int64(stmt, at++, (int64_t)op->u.put.fingerprint);
    else
        sqlite3_bind_null(stmt, at++);
    journal_bind(stmt, at++, op->u.put.idem);
    journal_bind(stmt, at++, entry->keyed ? str_of(entry->head.node) : STR_NONE);
    journal_bind(stmt, at++, bulky ? STR_NONE : spec);
    journal_run(journal, stmt, "write a job");
    if (bulky && (stmt = journal_write(journal, SQL_BULK_ADD))) {
        sqlite3_bind_int64(stmt, 1, (int64_t)entry->head.id);
        journal_bind(stmt, 2, spec);
        journal_run(journal, stmt, "write a job");
    }
    journal->added++;
    journal_meta_added(journal, entry->head.id);
}

static void bind_step(const struct journal *journal, sqlite3_stmt *stmt, const struct entry *entry)
{
    const struct store_head *head = &entry->head;

    sqlite3_bind_int64(stmt, 1, (int64_t)head->id);
    sqlite3_bind_int(stmt, 2, head->state);
    sqlite3_bind_int(stmt, 3, head->lease);
    sqlite3_bind_int(stmt, 4, head->attempt);
    sqlite3_bind_int64(stmt, 5, head->epoch);
    bind_cstr(stmt, 6, head->node);
    bind_cstr(stmt, 7, head->reason);
    sqlite3_bind_int64(stmt, 8, head->updated_ms);
    sqlite3_bind_int64(stmt, 9, head->dispatched_ms);
    sqlite3_bind_int64(stmt, 10, head->acked_ms);
    sqlite3_bind_int64(stmt, 11, written_due_ms(journal, head));
    sqlite3_bind_int64(stmt, 12, entry->run_until_ms);
    sqlite3_bind_int64(stmt, 13, head->owner);
    sqlite3_bind_int64(stmt, 14, (int64_t)head->lane);
    sqlite3_bind_int(stmt, 15, head->priority);
}

void journal_job_step(struct journal *journal, const struct entry *entry)
{
    sqlite3_stmt *stmt = journal_write(journal, SQL_JOB_STEP);

    if (!stmt)
        return;
    bind_step(journal, stmt, entry);
    journal_run(journal, stmt, "write a job");
}

void journal_job_end(struct journal *journal, const struct entry *entry, struct str result)
{
    sqlite3_stmt *stmt = journal_write(journal, SQL_JOB_END);

    if (!stmt)
        return;
    bind_step(journal, stmt, entry);
    sqlite3_bind_int64(stmt, 16, entry->head.ended_ms);
    journal_bind(stmt, 17, entry->attempts.len ? buf_view(&entry->attempts) : STR_NONE);
    journal_bind(stmt, 18, result);
    journal_run(journal, stmt, "write a job");
}

static void write_text(struct journal *journal, enum journal_sql which, uint64_t id,
                       struct str text)
{
    sqlite3_stmt *stmt = journal_write(journal, which);

    if (!stmt)
        return;
    sqlite3_bind_int64(stmt, 1, (int64_t)id);
    if (sqlite3_bind_parameter_count(stmt) > 1)
        journal_bind(stmt, 2, text);
    journal_run(journal, stmt, "write a job");
}

void journal_job_first_node(struct journal *journal, const struct entry *entry)
{
    write_text(journal, SQL_JOB_FIRST_NODE, entry->head.id, str_of(entry->head.node));
}

void journal_job_answered(struct journal *journal, uint64_t id)
{
    write_text(journal, SQL_JOB_ANSWERED, id, STR_NONE);
}

void journal_job_drop_key(struct journal *journal, uint64_t id)
{
    write_text(journal, SQL_JOB_DROP_KEY, id, STR_NONE);
}

void journal_job_callback(struct journal *journal, const struct entry *entry)
{
    sqlite3_stmt *stmt = journal_write(journal, SQL_JOB_CALLBACK);

    if (!stmt)
        return;
    sqlite3_bind_int64(stmt, 1, (int64_t)entry->head.id);
    sqlite3_bind_int(stmt, 2, entry->head.callback);
    sqlite3_bind_int64(stmt, 3, entry->head.updated_ms);
    journal_run(journal, stmt, "write a job");
}

/* SQL_JOB_FIND or SQL_JOB_ACTIVE stands on a row. */
static bool read_entry(struct journal *journal, sqlite3_stmt *stmt, struct entry *entry)
{
    struct str attempts = jobrow_text(stmt, JOBROW_AFTER_HEAD);

    if (!jobrow_head(stmt, &entry->head, &entry->run_until_ms)) {
        journal->fault = (struct fault){.what = "read a job", .code = SQLITE_CORRUPT};
        return false;
    }
    buf_clear(&entry->attempts);
    buf_str(&entry->attempts, attempts);
    entry->keyed = sqlite3_column_type(stmt, JOBROW_AFTER_HEAD + 1) != SQLITE_NULL;
    entry->answered = sqlite3_column_int(stmt, JOBROW_AFTER_HEAD + 2) != 0;
    return true;
}

bool journal_job_find(struct journal *journal, uint64_t id, struct entry *entry)
{
    sqlite3_stmt *stmt = journal_read(journal, SQL_JOB_FIND);
    bool found;

    if (!stmt)
        return false;
    sqlite3_bind_int64(stmt, 1, (int64_t)id);
    if (!journal_row(journal, stmt, "read a job"))
        return false;
    found = read_entry(journal, stmt, entry);
    sqlite3_reset(stmt);
    return found;
}

bool journal_job_active(struct journal *journal, struct entry *entry)
{
    sqlite3_stmt *stmt = journal_read(journal, SQL_JOB_ACTIVE);

    if (!stmt)
        return false;
    if (!sqlite3_stmt_busy(stmt)) {
        sqlite3_bind_int64(stmt, 1, (int64_t)journal->floor);
        sqlite3_bind_int(stmt, 2, JOB_DONE); /* DONE and FAILED are the last ones */
    }
    if (journal_row(journal, stmt, "read the active jobs") && read_entry(journal, stmt, entry))
        return true;
    sqlite3_reset(stmt);
    return false;
}

bool journal_job_record(struct journal *journal, uint64_t id, struct arena *arena,
                        struct store_record *ret_record)
{
    sqlite3_stmt *stmt = journal_read(journal, SQL_JOB_RECORD);
    bool found;

    if (!stmt)
        return false;
    sqlite3_bind_int64(stmt, 1, (int64_t)id);
    if (!journal_row(journal, stmt, "read a job"))
        return false;
    found = jobrow_record(stmt, arena, ret_record);
    if (found && sqlite3_column_type(stmt, JOBROW_SPEC + 1) != SQLITE_NULL) {
        ret_record->idem = arena_str(arena, jobrow_text(stmt, JOBROW_SPEC + 1));
        ret_record->fingerprint = (uint64_t)sqlite3_column_int64(stmt, JOBROW_SPEC + 2);
    }
    sqlite3_reset(stmt);
    return found;
}

bool journal_key_find(struct journal *journal, struct str key, struct journal_key *ret_key)
{
    sqlite3_stmt *stmt = journal_read(journal, SQL_JOB_KEY);

    if (!stmt)
        return false;
    journal_bind(stmt, 1, key);
    if (!journal_row(journal, stmt, "look for a key"))
        return false;
    ret_key->job = (uint64_t)sqlite3_column_int64(stmt, 0);
    ret_key->fingerprint = (uint64_t)sqlite3_column_int64(stmt, 1);
    str_copy(jobrow_text(stmt, 2), ret_key->first_node, sizeof ret_key->first_node);
    sqlite3_reset(stmt);
    return true;
}
