/* Reads rows of the job table, and trusts none of them: a damaged file must not become an index out
 * of range. */
#include "store/jobrow.h"

struct str jobrow_text(sqlite3_stmt *stmt, int column)
{
    const char *at = (const char *)sqlite3_column_text(stmt, column);

    return at ? (struct str){.at = at, .len = (size_t)sqlite3_column_bytes(stmt, column)}
              : STR_NONE;
}

static bool small(sqlite3_stmt *stmt, int column, int limit, int *ret_value)
{
    *ret_value = sqlite3_column_int(stmt, column);
    return *ret_value >= 0 && *ret_value < limit;
}

bool jobrow_head(sqlite3_stmt *stmt, struct store_head *ret_head, int64_t *ret_run_until_ms)
{
    struct store_head *head = ret_head;
    int state;
    int lease;
    int at = 0;

    *head = (struct store_head){.id = (uint64_t)sqlite3_column_int64(stmt, at++)};
    if (!small(stmt, at++, JOB_STATE_COUNT, &state) ||
        !small(stmt, at++, LEASE_RUNNING + 1, &lease) ||
        !small(stmt, at++, CALLBACK_GIVEN_UP + 1, &head->callback) ||
        !small(stmt, at++, JOB_ATTEMPTS_MAX + 1, &head->attempt) ||
        !small(stmt, at++, JOB_ATTEMPTS_MAX + 1, &head->max_attempts))
        return false;
    head->state = (enum job_state)state;
    head->lease = (enum lease_kind)lease;
    head->epoch = (uint32_t)sqlite3_column_int64(stmt, at++);
    head->owner = (unsigned)sqlite3_column_int64(stmt, at++);
    str_copy(jobrow_text(stmt, at++), head->node, sizeof head->node);
    str_copy(jobrow_text(stmt, at++), head->reason, sizeof head->reason);
    head->created_ms = sqlite3_column_int64(stmt, at++);
    head->updated_ms = sqlite3_column_int64(stmt, at++);
    head->dispatched_ms = sqlite3_column_int64(stmt, at++);
    head->acked_ms = sqlite3_column_int64(stmt, at++);
    head->ended_ms = sqlite3_column_int64(stmt, at++);
    head->due_ms = sqlite3_column_int64(stmt, at++);
    head->timeout_ms = sqlite3_column_int64(stmt, at++);
    *ret_run_until_ms = sqlite3_column_int64(stmt, at++);
    str_copy(jobrow_text(stmt, at++), head->type, sizeof head->type);
    head->lane = (uint64_t)sqlite3_column_int64(stmt, at++);
    head->priority = sqlite3_column_int(stmt, at++);
    return head->id != 0 && at == JOBROW_AFTER_HEAD;
}

static struct str kept(struct arena *arena, struct str text)
{
    return text.at ? arena_str(arena, text) : STR_NONE;
}

bool jobrow_record(sqlite3_stmt *stmt, struct arena *arena, struct store_record *ret_record)
{
    int64_t run_until_ms;

    *ret_record = (struct store_record){0};
    if (!jobrow_head(stmt, &ret_record->head, &run_until_ms))
        return false;
    ret_record->history = kept(arena, jobrow_text(stmt, JOBROW_AFTER_HEAD));
    if (!ret_record->history.at)
        ret_record->history = STR("[]");
    ret_record->result = kept(arena, jobrow_text(stmt, JOBROW_AFTER_HEAD + 1));
    ret_record->spec = kept(arena, jobrow_text(stmt, JOBROW_SPEC));
    return true;
}
