/* JOB_GET, JOB_LIST, SESSION_GET and CALLBACKS: from store.db plus the newer rows it lacks. Rows of
 * the job table are not trusted: a damaged file must not lead to an index out of range. */
#include "store/reader.h"

#include <assert.h>
#include <sqlite3.h>

#include "model/namespace.h"
#include "store/fault.h"
#include "store/memtable.h"
#include "store/store.h"
#include "store/storefile.h"

enum {
    READER_SCAN_MAX = 20000, /* rows checked by one JOB_LIST; the next page continues there */
};

/* --- rows of the job table --- */

struct str jobrow_text(sqlite3_stmt *stmt, int column)
{
    const char *at = (const char *)sqlite3_column_text(stmt, column);

    return at ? (struct str){.at = at, .len = (size_t)sqlite3_column_bytes(stmt, column)}
              : STR_NONE;
}

bool row_read(sqlite3_stmt *stmt, int count, struct change *change)
{
    const struct change_field *field = change_rows[change->kind].fields;
    bool ok = true;

    for (int i = 0; i < count; i++, field++)
        if (field->kind == CHANGE_NUMBER || field->kind == CHANGE_SIGNED)
            ok &= change_set_number(change, field, sqlite3_column_int64(stmt, i));
        else
            ok &= change_set_text(change, field, jobrow_text(stmt, i));
    return ok;
}

bool jobrow_head(sqlite3_stmt *stmt, struct store_head *ret_head, int64_t *ret_run_until_ms)
{
    struct change change = {.kind = CHANGE_JOB};
    bool ok = row_read(stmt, change_rows[CHANGE_JOB].count, &change);

    assert(change_rows[CHANGE_JOB].count == JOBROW_AFTER_HEAD);
    *ret_head = change.u.job.head;
    if (ret_run_until_ms)
        *ret_run_until_ms = change.u.job.run_until_ms;
    return ok && ret_head->id != 0;
}

bool jobrow_record(sqlite3_stmt *stmt, struct arena *arena, struct store_record *ret_record)
{
    *ret_record = (struct store_record){0};
    if (!jobrow_head(stmt, &ret_record->head, NULL))
        return false;
    ret_record->history = store_kept(arena, jobrow_text(stmt, JOBROW_AFTER_HEAD));
    if (!ret_record->history.at)
        ret_record->history = STR("[]");
    ret_record->result = store_kept(arena, jobrow_text(stmt, JOBROW_AFTER_HEAD + 1));
    ret_record->spec = store_kept(arena, jobrow_text(stmt, JOBROW_SPEC));
    return true;
}

/* --- verbs --- */

static const char *const texts[READER_SQL_COUNT] = {
    [READ_JOB] = "SELECT " JOBROW_RECORD " FROM job WHERE id = ?1",
    [READ_JOBS] = "SELECT " JOBROW_RECORD " FROM job WHERE id < ?1 AND id >= ?2 ORDER BY id DESC",
    [READ_FLOOR] = "SELECT floor FROM meta",
    [READ_CALLBACKS] = "SELECT " JOBROW_RECORD " FROM job WHERE callback = 2 AND id > ?1"
                       " AND id <= ?2 ORDER BY id",
    /* In parentheses: clang suspects a missing comma between two literals at the end of a table. */
    [READ_SESSION] = ("SELECT preferred_pool, lang_pair, version, updated_ms FROM session"
                      " WHERE id = ?1"),
};
static_assert(CALLBACK_PENDING == 2, "the index and the query name it");

void reader_init(struct reader *reader, const struct storefile *file)
{
    *reader = (struct reader){.file = file};
}

void reader_close(struct reader *reader, bool after_fault)
{
    storefile_finalize(reader->sql, READER_SQL_COUNT);
    storefile_disconnect(reader->db, after_fault);
    reader->db = NULL;
}

/* Builds a record from the current row of `stmt` and anything newer. */
static bool complete(sqlite3_stmt *stmt, const struct memread_row *row, struct arena *arena,
                     struct store_record *ret_record)
{
    if (!jobrow_record(stmt, arena, ret_record))
        return false;
    if (!row)
        return true;
    ret_record->head = row->record->head;
    ret_record->history = row->record->history;
    if (row->has_result)
        ret_record->result = row->record->result;
    return true;
}

/* One job by its id. False: the file failed; ERR_NOT_FOUND: it has no such row. */
static bool look_up(struct reader *reader, uint64_t id, const struct memread *recent,
                    const struct memread_row *row, struct arena *arena,
                    struct store_record *ret_record, enum err *ret_err)
{
    sqlite3_stmt *stmt = reader->sql[READ_JOB];
    int code;
    bool ok;

    sqlite3_bind_int64(stmt, 1, (int64_t)id);
    sqlite3_bind_int64(stmt, JOBROW_SHIFT, recent->wait_shift_ms);
    code = sqlite3_step(stmt);
    *ret_err = code == SQLITE_DONE ? ERR_NOT_FOUND : ERR_OK;
    ok = code == SQLITE_DONE || (code == SQLITE_ROW && complete(stmt, row, arena, ret_record)) ||
         storefile_fault(&reader->fault, "read a job", reader->db, 0);
    sqlite3_reset(stmt);
    return ok;
}

static bool job_get(struct reader *reader, struct store_op *op)
{
    const struct memread_row *row = op->recent->count ? op->recent->rows : NULL;

    if (!look_up(reader, op->job, op->recent, row, op->arena, &op->record, &op->err))
        return false;
    if (!op->err)
        op->head = op->record.head;
    return true;
}

static bool fits(sqlite3_stmt *stmt, const struct store_op *op)
{
    struct str type = jobrow_text(stmt, JOBROW_TYPE);
    int state = sqlite3_column_int(stmt, 1);

    if (op->u.list.states && (state < 0 || !(op->u.list.states >> state & 1)))
        return false;
    if (op->u.list.node_id.at && !str_eq(jobrow_text(stmt, JOBROW_NODE), op->u.list.node_id))
        return false;
    if (!namespace_lists(op->u.list.namespace, type) ||
        (op->u.list.type.at && type.at && !str_eq(type, op->u.list.type)))
        return false; /* without parsing the spec */
    return store_spec_fits(jobrow_text(stmt, JOBROW_SPEC), op);
}

/* Merges two lists in the same order: the rows of store.db and the newer ones. */
struct merge {
    sqlite3_stmt *stmt;
    int code;         /* of its last step */
    uint64_t file_id; /* id of its current row */
    const struct memread *recent;
    size_t at; /* of the next newer row */
    bool ascending;
};

static void step_file(struct merge *merge)
{
    merge->code = sqlite3_step(merge->stmt);
    if (merge->code == SQLITE_ROW)
        merge->file_id = (uint64_t)sqlite3_column_int64(merge->stmt, 0);
}

/* The newer row if it comes before store.db's next row or is for the same job; else NULL. */
static const struct memread_row *newer_row(const struct merge *merge)
{
    const struct memread_row *row = &merge->recent->rows[merge->at];

    if (merge->at == merge->recent->count)
        return NULL;
    if (merge->code != SQLITE_ROW || row->id == merge->file_id)
        return row;
    return (row->id < merge->file_id) == merge->ascending ? row : NULL;
}

/* Reads the next job into *ret_record if it matches. False: the file failed. */
static bool take_next(struct reader *reader, struct merge *merge, struct store_op *op,
                      struct store_record *ret_record, uint64_t *ret_id, bool *ret_fits)
{
    const struct memread_row *row = newer_row(merge);
    bool of_file = !row || (merge->code == SQLITE_ROW && merge->file_id == row->id);
    enum err err = ERR_OK;
    bool ok = true;

    *ret_id = row ? row->id : merge->file_id;
    *ret_fits = false;
    if (!row) {
        *ret_fits = fits(merge->stmt, op);
        ok = !*ret_fits || complete(merge->stmt, NULL, op->arena, ret_record);
    } else if (row->record) { /* else its state no longer matches */
        if (row->whole)
            *ret_record = *row->record;
        else if (of_file)
            ok = complete(merge->stmt, row, op->arena, ret_record);
        else /* its state in store.db does not match, or it was purged */
            ok = look_up(reader, row->id, merge->recent, row, op->arena, ret_record, &err);
        *ret_fits = ok && !err && store_spec_fits(ret_record->spec, op);
    }
    merge->at += row != NULL;
    if (of_file)
        step_file(merge);
    return ok;
}

/* Adds jobs to op->u.list until the page is full, the end is reached, or enough were checked. */
static bool collect(struct reader *reader, struct store_op *op, struct merge *merge)
{
    size_t scanned = 0;
    size_t count = 0;
    uint64_t last = 0;
    bool ok = true;

    op->u.list.items = arena_array(op->arena, struct store_record, op->u.list.max);
    op->u.list.bytes = 0;
    step_file(merge);
    while (ok && !store_list_full(op, count) && scanned < READER_SCAN_MAX &&
           (merge->code == SQLITE_ROW || newer_row(merge))) {
        bool fits;

        scanned++;
        ok = take_next(reader, merge, op, &op->u.list.items[count], &last, &fits);
        if (ok && fits)
            op->u.list.bytes += store_record_bytes(&op->u.list.items[count++]);
    }
    if (merge->code != SQLITE_ROW && merge->code != SQLITE_DONE)
        ok = false;
    op->u.list.count = count;
    op->u.list.next = merge->code == SQLITE_ROW || newer_row(merge) ? last : op->recent->end;
    if (!ok)
        storefile_fault(&reader->fault, "list jobs", reader->db, 0);
    sqlite3_reset(merge->stmt);
    return ok;
}

static bool job_list(struct reader *reader, struct store_op *op)
{
    struct merge merge = {.stmt = reader->sql[READ_JOBS], .recent = op->recent};
    const unsigned final = 1u << JOB_DONE | 1u << JOB_FAILED;
    sqlite3_stmt *meta = reader->sql[READ_FLOOR];
    uint64_t floor = 0;
    bool ok = true;

    /* Jobs that still run are never below the floor. */
    if (op->u.list.states != 0 && !(op->u.list.states & final)) {
        ok = sqlite3_step(meta) == SQLITE_ROW ||
             storefile_fault(&reader->fault, "read the meta row", reader->db, 0);
        if (ok)
            floor = (uint64_t)sqlite3_column_int64(meta, 0);
        sqlite3_reset(meta);
    }
    if (!ok)
        return false;
    if (op->recent->end > floor)
        floor = op->recent->end;
    sqlite3_bind_int64(merge.stmt, 1, op->u.list.before ? (int64_t)op->u.list.before : INT64_MAX);
    sqlite3_bind_int64(merge.stmt, 2, (int64_t)floor);
    sqlite3_bind_int64(merge.stmt, JOBROW_SHIFT, op->recent->wait_shift_ms);
    return collect(reader, op, &merge);
}

static bool callbacks(struct reader *reader, struct store_op *op)
{
    struct merge merge = {
        .stmt = reader->sql[READ_CALLBACKS], .recent = op->recent, .ascending = true};

    sqlite3_bind_int64(merge.stmt, 1, (int64_t)op->u.list.after);
    sqlite3_bind_int64(merge.stmt, 2, op->recent->end ? (int64_t)op->recent->end : INT64_MAX);
    sqlite3_bind_int64(merge.stmt, JOBROW_SHIFT, op->recent->wait_shift_ms);
    return collect(reader, op, &merge);
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
        ok = storefile_fault(&reader->fault, "read a session", reader->db, 0);
    }
    sqlite3_reset(stmt);
    return ok;
}

typedef bool read_verb(struct reader *reader, struct store_op *op); /* false: the file failed */

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

void reader_run(struct reader *reader, struct store_op *op)
{
    op->err = ERR_OK;
    op->head.id = 0;
    assert(op->arena);
    if ((reader->db ||
         (storefile_connect_reader(reader->file->path, &reader->db, &reader->fault) &&
          storefile_prepare(reader->db, texts, READER_SQL_COUNT, reader->sql, &reader->fault))) &&
        verbs[op->verb](reader, op))
        return;
    op->err = ERR_STORE_DOWN;
    reader_close(reader, true);
}
