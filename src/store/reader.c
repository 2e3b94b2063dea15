/* JOB_GET, JOB_LIST, SESSION_GET and CALLBACKS, straight from the file. */
#include "store/reader.h"

#include "base/json.h"
#include "store/jobrow.h"

#include <assert.h>

static const char *const texts[READER_SQL_COUNT] = {
    [READ_JOB] = "SELECT " JOBROW_RECORD " FROM job WHERE id = ?1",
    [READ_JOBS] = "SELECT " JOBROW_RECORD " FROM job WHERE id < ?1 AND id >= ?2 ORDER BY id DESC",
    [READ_FLOOR] = "SELECT floor FROM meta",
    [READ_CALLBACKS] = "SELECT " JOBROW_RECORD " FROM job WHERE callback = 2 AND id > ?1"
                       " ORDER BY id LIMIT ?2",
    /* Bracketed: clang takes two literals at the end of a table for a forgotten comma. */
    [READ_SESSION] = ("SELECT preferred_pool, lang_pair, version, updated_ms FROM session"
                      " WHERE id = ?1"),
};
static_assert(CALLBACK_PENDING == 2, "the index and the query name it");

typedef bool read_verb(struct reader *reader, struct store_op *op); /* false: the file failed */
static read_verb job_get, job_list, session_get, callbacks;

static read_verb *const verbs[STORE_VERB_COUNT] = {
    [STORE_JOB_GET] = job_get,
    [STORE_JOB_LIST] = job_list,
    [STORE_SESSION_GET] = session_get,
    [STORE_CALLBACKS] = callbacks,
};

bool reader_answers(enum store_verb verb)
{
    assert(verb < STORE_VERB_COUNT);
    return verbs[verb] != NULL;
}

void reader_init(struct reader *reader, const struct storefile *file)
{
    *reader = (struct reader){.file = file};
}

void reader_close(struct reader *reader, bool after_fault)
{
    for (int i = 0; i < READER_SQL_COUNT; i++) {
        sqlite3_finalize(reader->sql[i]);
        reader->sql[i] = NULL;
    }
    storefile_disconnect(reader->db, after_fault);
    reader->db = NULL;
}

static bool fail(struct reader *reader, const char *what)
{
    reader->fault = (struct fault){.what = what,
                                   .code = sqlite3_extended_errcode(reader->db),
                                   .sys = sqlite3_system_errno(reader->db)};
    return false;
}

static bool ready(struct reader *reader)
{
    if (reader->db)
        return true;
    if (!storefile_connect_reader(reader->file, &reader->db, &reader->fault))
        return false;
    for (int i = 0; i < READER_SQL_COUNT; i++)
        if (sqlite3_prepare_v3(reader->db, texts[i], -1, SQLITE_PREPARE_PERSISTENT, &reader->sql[i],
                               NULL) != SQLITE_OK) {
            fail(reader, "prepare a statement");
            reader_close(reader, true);
            return false;
        }
    return true;
}

void reader_run(struct reader *reader, struct store_op *op)
{
    op->err = ERR_OK;
    op->head.id = 0;
    assert(op->arena);
    if (ready(reader) && verbs[op->verb](reader, op))
        return;
    op->err = ERR_STORE_DOWN;
    reader_close(reader, true);
}

static bool job_get(struct reader *reader, struct store_op *op)
{
    sqlite3_stmt *stmt = reader->sql[READ_JOB];
    int code;
    bool ok = true;

    sqlite3_bind_int64(stmt, 1, (int64_t)op->job);
    code = sqlite3_step(stmt);
    if (code == SQLITE_ROW && jobrow_record(stmt, op->arena, &op->record))
        op->head = op->record.head;
    else if (code == SQLITE_DONE)
        op->err = ERR_NOT_FOUND;
    else
        ok = fail(reader, "read a job");
    sqlite3_reset(stmt);
    return ok;
}

static bool text_fits(const struct json *spec, const char *name, struct str want,
                      struct arena *arena)
{
    return !want.at || str_eq(json_str(json_get(spec, name), arena), want);
}

/* Type and session are said in the spec; it is looked at only when one of them is asked for. */
static bool spec_fits(sqlite3_stmt *stmt, const struct store_op *op)
{
    struct arena arena = {0};
    const struct json *spec;
    bool fits = !op->u.list.type.at && !op->u.list.session.at;

    if (!fits && !json_parse(jobrow_text(stmt, JOBROW_SPEC), &arena, &spec, NULL))
        fits = text_fits(spec, "type", op->u.list.type, &arena) &&
               text_fits(spec, "session_id", op->u.list.session, &arena);
    arena_free(&arena);
    return fits;
}

static bool fits(sqlite3_stmt *stmt, const struct store_op *op)
{
    struct str type = jobrow_text(stmt, JOBROW_TYPE);
    int state = sqlite3_column_int(stmt, 1);

    if (op->u.list.states && (state < 0 || !(op->u.list.states >> state & 1)))
        return false;
    if (op->u.list.node_id.at && !str_eq(jobrow_text(stmt, JOBROW_NODE), op->u.list.node_id))
        return false;
    if (op->u.list.type.at && type.at && !str_eq(type, op->u.list.type))
        return false; /* without a look into the spec */
    return spec_fits(stmt, op);
}

/* Where a list may stop looking: jobs that still run are never below the floor. */
static bool get_floor(struct reader *reader, unsigned states, int64_t *ret_floor)
{
    const unsigned final = 1u << JOB_DONE | 1u << JOB_FAILED;
    sqlite3_stmt *stmt = reader->sql[READ_FLOOR];
    bool ok = true;

    *ret_floor = 0;
    if (states == 0 || states & final)
        return true;
    ok = sqlite3_step(stmt) == SQLITE_ROW || fail(reader, "read the meta row");
    if (ok)
        *ret_floor = sqlite3_column_int64(stmt, 0);
    sqlite3_reset(stmt);
    return ok;
}

/* Rows into op->u.list until the page is full, the end is reached, or enough were looked at. */
static bool collect(struct reader *reader, struct store_op *op, sqlite3_stmt *stmt)
{
    size_t scanned = 0;
    size_t count = 0;
    uint64_t last = 0;
    int code = SQLITE_ROW;

    op->u.list.items = arena_array(op->arena, struct store_record, op->u.list.max);
    while (count < op->u.list.max && scanned < READER_SCAN_MAX &&
           (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        scanned++;
        last = (uint64_t)sqlite3_column_int64(stmt, 0);
        if (!fits(stmt, op))
            continue;
        if (!jobrow_record(stmt, op->arena, &op->u.list.items[count++])) {
            code = SQLITE_CORRUPT;
            break;
        }
    }
    sqlite3_reset(stmt);
    if (code != SQLITE_ROW && code != SQLITE_DONE)
        return fail(reader, "list jobs");
    op->u.list.count = count;
    op->u.list.next = code == SQLITE_DONE ? 0 : last;
    return true;
}

static bool job_list(struct reader *reader, struct store_op *op)
{
    sqlite3_stmt *stmt = reader->sql[READ_JOBS];
    int64_t floor;

    if (!get_floor(reader, op->u.list.states, &floor))
        return false;
    sqlite3_bind_int64(stmt, 1, op->u.list.before ? (int64_t)op->u.list.before : INT64_MAX);
    sqlite3_bind_int64(stmt, 2, floor);
    return collect(reader, op, stmt);
}

static bool callbacks(struct reader *reader, struct store_op *op)
{
    sqlite3_stmt *stmt = reader->sql[READ_CALLBACKS];

    sqlite3_bind_int64(stmt, 1, (int64_t)op->u.list.after);
    sqlite3_bind_int64(stmt, 2, (int64_t)op->u.list.max);
    return collect(reader, op, stmt);
}

static bool session_get(struct reader *reader, struct store_op *op)
{
    sqlite3_stmt *stmt = reader->sql[READ_SESSION];
    struct str key = op->u.session.key;
    bool ok = true;
    int code;

    sqlite3_bind_text(stmt, 1, key.at, (int)key.len, SQLITE_STATIC);
    code = sqlite3_step(stmt);
    if (code == SQLITE_ROW) {
        op->u.session.preferred_pool = arena_str(op->arena, jobrow_text(stmt, 0));
        op->u.session.lang_pair = arena_str(op->arena, jobrow_text(stmt, 1));
        op->u.session.version = sqlite3_column_int64(stmt, 2);
        op->u.session.updated_ms = sqlite3_column_int64(stmt, 3);
    } else if (code == SQLITE_DONE) {
        op->err = ERR_NOT_FOUND;
    } else {
        ok = fail(reader, "read a session");
    }
    sqlite3_reset(stmt);
    return ok;
}

bool reader_checkpoint(struct reader *reader, int *ret_pages, int *ret_copied)
{
    if (!ready(reader))
        return false;
    if (sqlite3_wal_checkpoint_v2(reader->db, NULL, SQLITE_CHECKPOINT_PASSIVE, ret_pages,
                                  ret_copied) == SQLITE_OK)
        return true;
    return fail(reader, "checkpoint");
}
