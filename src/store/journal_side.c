/* The journal's statements on nodes, breakers, sessions, old rows and the meta row. */
#include "store/journal_private.h"

#include "store/jobrow.h"

#include <assert.h>

enum { META_EVERY = 4096 }; /* new rows: what a restart may have to look at again */

/* Nodes. */

void journal_node_put(struct journal *journal, const struct holder *holder)
{
    sqlite3_stmt *stmt = journal_write(journal, SQL_NODE_PUT);

    if (!stmt)
        return;
    journal_bind(stmt, 1, holder->id);
    sqlite3_bind_int(stmt, 2, holder->own);
    sqlite3_bind_int(stmt, 3, holder->counts.health);
    sqlite3_bind_int(stmt, 4, holder->counts.max);
    sqlite3_bind_int64(stmt, 5, holder->counts.epoch);
    sqlite3_bind_int(stmt, 6, holder->admin);
    journal_bind(stmt, 7, buf_view(&holder->admin_reason));
    sqlite3_bind_int64(stmt, 8, holder->registered_ms);
    sqlite3_bind_int64(stmt, 9, holder->version);
    journal_bind(stmt, 10, buf_view(&holder->facts));
    journal_run(journal, stmt, "write a node");
}

void journal_node_del(struct journal *journal, struct str id)
{
    sqlite3_stmt *stmt = journal_write(journal, SQL_NODE_DEL);

    if (!stmt)
        return;
    journal_bind(stmt, 1, id);
    journal_run(journal, stmt, "delete a node");
}

bool journal_node_next(struct journal *journal, struct store_node *ret_node)
{
    sqlite3_stmt *stmt = journal_read(journal, SQL_NODE_ALL);
    int own;
    int health;
    int admin;

    if (!stmt || !journal_row(journal, stmt, "read the nodes"))
        return false;
    own = sqlite3_column_int(stmt, 1);
    health = sqlite3_column_int(stmt, 2);
    admin = sqlite3_column_int(stmt, 5);
    *ret_node = (struct store_node){
        .id = jobrow_text(stmt, 0),
        .counts = {.max = sqlite3_column_int(stmt, 3),
                   .epoch = (uint32_t)sqlite3_column_int64(stmt, 4)},
        .admin_reason = jobrow_text(stmt, 6),
        .registered_ms = sqlite3_column_int64(stmt, 7),
        .version = sqlite3_column_int64(stmt, 8),
        .facts = jobrow_text(stmt, 9),
    };
    /* Values no berth writes read as "unknown", which never gets work. */
    if (own > 0 && own < NODE_HEALTH_COUNT)
        ret_node->own = (enum node_health)own;
    if (health > 0 && health < NODE_HEALTH_COUNT)
        ret_node->counts.health = (enum node_health)health;
    if (admin > 0 && admin <= NODE_ADMIN_DRAINING)
        ret_node->admin = (enum node_admin)admin;
    return true;
}

/* Breakers. */

void journal_breaker_put(struct journal *journal, const struct gate *gate)
{
    sqlite3_stmt *stmt = journal_write(journal, SQL_BREAKER_PUT);

    if (!stmt)
        return;
    journal_bind(stmt, 1, gate->node);
    journal_bind(stmt, 2, gate->type);
    sqlite3_bind_int(stmt, 3, gate->breaker.state);
    sqlite3_bind_int(stmt, 4, gate->breaker.failures);
    sqlite3_bind_int64(stmt, 5, gate->breaker.opened_ms);
    sqlite3_bind_int64(stmt, 6, gate->probe ? (int64_t)gate->probe->head.id : 0);
    journal_run(journal, stmt, "write a breaker");
}

void journal_breaker_del(struct journal *journal, const struct gate *gate)
{
    sqlite3_stmt *stmt = journal_write(journal, SQL_BREAKER_DEL);

    if (!stmt)
        return;
    journal_bind(stmt, 1, gate->node);
    journal_bind(stmt, 2, gate->type);
    journal_run(journal, stmt, "delete a breaker");
}

/* Values no berth writes are passed over: work is not kept from a node for them. */
static bool read_breaker(sqlite3_stmt *stmt, struct journal_breaker *ret_breaker)
{
    int state = sqlite3_column_int(stmt, 2);
    int64_t failures = sqlite3_column_int64(stmt, 3);

    *ret_breaker = (struct journal_breaker){
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

bool journal_breaker_next(struct journal *journal, struct journal_breaker *ret_breaker)
{
    sqlite3_stmt *stmt = journal_read(journal, SQL_BREAKER_ALL);

    while (stmt && journal_row(journal, stmt, "read the breakers"))
        if (read_breaker(stmt, ret_breaker))
            return true;
    return false;
}

/* Sessions. */

void journal_session_put(struct journal *journal, const struct journal_session *session)
{
    sqlite3_stmt *stmt = journal_write(journal, SQL_SESSION_PUT);

    if (!stmt)
        return;
    journal_bind(stmt, 1, session->id);
    journal_bind(stmt, 2, session->pool);
    journal_bind(stmt, 3, session->lang_pair);
    sqlite3_bind_int64(stmt, 4, session->version);
    sqlite3_bind_int64(stmt, 5, session->updated_ms);
    journal_run(journal, stmt, "write a session");
    journal->session_max = sqlite3_last_insert_rowid(journal->db);
}

bool journal_session_find(struct journal *journal, struct journal_session *session, bool *ret_same)
{
    sqlite3_stmt *stmt = journal_read(journal, SQL_SESSION_FIND);

    if (!stmt)
        return false;
    journal_bind(stmt, 1, session->id);
    if (!journal_row(journal, stmt, "read a session"))
        return false;
    *ret_same = str_eq(jobrow_text(stmt, 0), session->pool) &&
                str_eq(jobrow_text(stmt, 1), session->lang_pair);
    session->version = sqlite3_column_int64(stmt, 2);
    session->updated_ms = sqlite3_column_int64(stmt, 3);
    sqlite3_reset(stmt);
    return true;
}

bool journal_session_oldest(struct journal *journal, int64_t *ret_seq, int64_t *ret_updated_ms)
{
    sqlite3_stmt *stmt = journal_read(journal, SQL_SESSION_OLDEST);

    if (!stmt || !journal_row(journal, stmt, "read a session"))
        return false;
    *ret_seq = sqlite3_column_int64(stmt, 0);
    *ret_updated_ms = sqlite3_column_int64(stmt, 1);
    sqlite3_reset(stmt);
    return true;
}

void journal_session_del(struct journal *journal, int64_t seq)
{
    sqlite3_stmt *stmt = journal_write(journal, SQL_SESSION_DEL);

    if (!stmt)
        return;
    sqlite3_bind_int64(stmt, 1, seq);
    journal_run(journal, stmt, "delete a session");
}

/* Old rows. */

bool journal_job_oldest(struct journal *journal, uint64_t after, struct journal_old *ret_old)
{
    sqlite3_stmt *stmt = journal_read(journal, SQL_JOB_OLDEST);

    if (!stmt)
        return false;
    sqlite3_bind_int64(stmt, 1, (int64_t)after);
    if (!journal_row(journal, stmt, "look for old jobs"))
        return false;
    *ret_old = (struct journal_old){
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

static void del_by_id(struct journal *journal, enum journal_sql which, uint64_t id)
{
    sqlite3_stmt *stmt = journal_write(journal, which);

    if (!stmt)
        return;
    sqlite3_bind_int64(stmt, 1, (int64_t)id);
    journal_run(journal, stmt, "delete a job");
}

void journal_job_del(struct journal *journal, const struct journal_old *old)
{
    assert(old->finished);
    del_by_id(journal, SQL_JOB_DEL, old->id);
    if (old->bulky)
        del_by_id(journal, SQL_BULK_DEL, old->id);
    journal->row_count--;
    journal->added_unsaved = META_EVERY; /* deletions are counted in the same transaction */
}

/* The meta row. */

void journal_meta_load(struct journal *journal)
{
    sqlite3_stmt *stmt = journal->sql[SQL_META_GET];

    if (!journal_row(journal, stmt, "read the meta row"))
        return;
    journal->floor = (uint64_t)sqlite3_column_int64(stmt, 0);
    journal->row_count = sqlite3_column_int64(stmt, 1);
    journal->max_id = (uint64_t)sqlite3_column_int64(stmt, 2);
    journal->session_max = sqlite3_column_int64(stmt, 3);
    journal->wait_shift_ms = sqlite3_column_int64(stmt, 4);
    sqlite3_reset(stmt);

    stmt = journal->sql[SQL_COUNT_SINCE];
    sqlite3_bind_int64(stmt, 1, (int64_t)journal->max_id);
    if (!journal_row(journal, stmt, "count the jobs"))
        return;
    journal->row_count += sqlite3_column_int64(stmt, 0);
    sqlite3_reset(stmt);

    stmt = journal->sql[SQL_JOB_NEWEST];
    if (!journal_row(journal, stmt, "look for the newest job"))
        return;
    if ((uint64_t)sqlite3_column_int64(stmt, 0) > journal->max_id)
        journal->max_id = (uint64_t)sqlite3_column_int64(stmt, 0);
    sqlite3_reset(stmt);
}

static void save(struct journal *journal)
{
    sqlite3_stmt *stmt = journal_write(journal, SQL_META_PUT);

    if (!stmt)
        return;
    sqlite3_bind_int64(stmt, 1, (int64_t)journal->floor);
    sqlite3_bind_int64(stmt, 2, journal->row_count);
    sqlite3_bind_int64(stmt, 3, (int64_t)journal->max_id);
    sqlite3_bind_int64(stmt, 4, journal->wait_shift_ms);
    journal_run(journal, stmt, "write the meta row");
    journal->added_unsaved = 0;
}

void journal_meta_added(struct journal *journal, uint64_t id)
{
    journal->row_count++;
    journal->added_unsaved++;
    if (id > journal->max_id)
        journal->max_id = id;
    if (id >= journal->floor)
        return;
    journal->floor = id; /* made before the floor was found, came after it */
    save(journal);
}

void journal_meta_due(struct journal *journal)
{
    if (journal->added_unsaved >= META_EVERY)
        save(journal);
}

void journal_shift_waits(struct journal *journal, int64_t ms)
{
    journal->wait_shift_ms += ms;
    save(journal);
}

void journal_floor(struct journal *journal, uint64_t floor)
{
    journal->floor = floor;
}

bool journal_checkpoint(struct journal *journal)
{
    int pages;
    int copied;
    int code =
        sqlite3_wal_checkpoint_v2(journal->db, NULL, SQLITE_CHECKPOINT_PASSIVE, &pages, &copied);

    assert(!journal->writing);
    return code == SQLITE_OK && pages == copied;
}
