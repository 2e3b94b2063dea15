/* PostgreSQL over libpq. Every wait has our own deadline: a stopped server answers nothing, not
 * even that it is down. Only a server that accepts writes is used. */
#include "store/sql.h"

#include <assert.h>
#include <errno.h>
#include <libpq-fe.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

enum { NUMBER_BYTES = 24 };

struct pg {
    struct sql sql;
    PGconn *conn;
    char *url;
    int64_t timeout_ms;
    size_t
        host; /* index of the URL's host to try first; may exceed their number and wraps around */
    const char *prepared[SQL_PREPARED_MAX]; /* the index is the statement's name */
    size_t prepared_count;
};

static struct pg *of(struct sql *sql)
{
    return container_of(sql, struct pg, sql);
}

static struct sql *pg_make(const struct sql_config *config)
{
    struct pg *pg = mem_new(struct pg);

    pg->url = mem_cstr(str_of(config->url));
    pg->timeout_ms = config->timeout_ms;
    return &pg->sql;
}

/* Errors by SQLSTATE class; others are bugs of ours that fail only the one call. A call's values
 * must not be able to break the connection, which carries the leases of all nodes. */
static const struct {
    const char *state;
    enum err err;
} faults[] = {
    {"08", ERR_STORE_DOWN}, /* the connection */
    {"57", ERR_STORE_DOWN}, /* shutdown, or the statement timed out */
    {"58", ERR_STORE_DOWN}, /* system error on the server */
    /* Tables, permissions, the server's role or prepared statements have changed since we
     * connected: a new connection checks them again. */
    {"0A", ERR_STORE_DOWN},
    {"25", ERR_STORE_DOWN},
    {"26", ERR_STORE_DOWN},
    {"28", ERR_STORE_DOWN},
    {"3D", ERR_STORE_DOWN},
    {"3F", ERR_STORE_DOWN},
    {"42", ERR_STORE_DOWN},
    {"40", ERR_BUSY},        /* conflict with another transaction */
    {"53", ERR_BUSY},        /* out of disk or memory */
    {"55", ERR_BUSY},        /* a lock is held by another for too long */
    {"22", ERR_BAD_REQUEST}, /* a bad value */
    {"54", ERR_BAD_REQUEST}, /* too large, e.g. for an index */
};

static enum err fault_of(const PGresult *result)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

    if (!state)
        return ERR_STORE_DOWN; /* an error in libpq, without an answer of the server */
    for (size_t i = 0; i < COUNT_OF(faults); i++)
        if (strncmp(state, faults[i].state, strlen(faults[i].state)) == 0)
            return faults[i].err;
    return ERR_INTERNAL;
}

static bool failed(struct pg *pg, const char *what)
{
    sql_failed(&pg->sql, what, pg->conn ? PQerrorMessage(pg->conn) : "no memory");
    return false;
}

/* False: the deadline passed. */
static bool wait_for(struct pg *pg, short events, int64_t until_ms)
{
    struct pollfd fd = {.fd = PQsocket(pg->conn), .events = events};

    for (;;) {
        int64_t left_ms = until_ms - clock_mono_ms();
        int got;

        if (left_ms <= 0)
            break;
        got = poll(&fd, 1, (int)left_ms);
        if (got > 0)
            return true;
        if (got < 0 && errno != EINTR)
            break;
    }
    sql_failed(&pg->sql, "wait for the database", "it did not answer in time");
    return false;
}

static bool wait_connected(struct pg *pg, int64_t until_ms)
{
    for (;;) {
        PostgresPollingStatusType status = PQconnectPoll(pg->conn);

        if (status == PGRES_POLLING_OK)
            return true;
        if (status != PGRES_POLLING_READING && status != PGRES_POLLING_WRITING)
            return failed(pg, "connect to the database");
        if (!wait_for(pg, status == PGRES_POLLING_READING ? POLLIN : POLLOUT, until_ms))
            return false;
    }
}

/* Drops notices such as "relation already exists, skipping". */
static void no_notice(void *arg, const char *text)
{
    (void)arg, (void)text;
}

static void pg_disconnect(struct sql *sql)
{
    struct pg *pg = of(sql);

    if (pg->conn)
        PQfinish(pg->conn);
    pg->conn = NULL;
    pg->prepared_count = 0;
}

/* The part of "A,B,C" at this index; a single one applies to every index. */
static size_t list_item(const char *list, size_t which, char *item, size_t size)
{
    size_t count = 1;

    for (const char *at = list; (at = strchr(at, ',')); at++)
        count++;
    for (which %= count; which > 0; which--)
        list = strchr(list, ',') + 1;
    snprintf(item, size, "%.*s", (int)strcspn(list, ","), list);
    return count;
}

/* The URL's host at this index. */
struct pg_host {
    char host[256], address[64], port[16]; /* "" = as the URL says */
    size_t count;                          /* of all hosts */
};

static struct pg_host find_host(const char *url, size_t which)
{
    struct pg_host found = {.count = 1};
    PQconninfoOption *parts = PQconninfoParse(url, NULL);

    for (const PQconninfoOption *part = parts; part && part->keyword; part++) {
        if (!part->val)
            continue;
        if (strcmp(part->keyword, "host") == 0)
            found.count = list_item(part->val, which, found.host, sizeof found.host);
        if (strcmp(part->keyword, "hostaddr") == 0)
            found.count = list_item(part->val, which, found.address, sizeof found.address);
        if (strcmp(part->keyword, "port") == 0)
            list_item(part->val, which, found.port, sizeof found.port);
    }
    PQconninfoFree(parts);
    return found;
}

/* Adds what the URL does not specify: refuse standbys, times in UTC, abort statements we gave up
 * on, and make commits survive a crash whatever the server's default is: a lost claim would let its
 * generation be given to another node. */
static bool connect_to(struct pg *pg, const struct pg_host *host)
{
    int64_t until_ms = clock_mono_ms() + pg->timeout_ms / (int64_t)host->count;
    const char *names[9] = {"application_name", "target_session_attrs", "options",
                            "client_encoding", "dbname"};
    char options[200];
    const char *values[9] = {"berth", "read-write", options, "UTF8", pg->url};
    const char *const parts[][2] = {
        {"host", host->host}, {"hostaddr", host->address}, {"port", host->port}};
    size_t count = 5;

    snprintf(
        options, sizeof options,
        "-c TimeZone=UTC -c synchronous_commit=on -c statement_timeout=%lld -c lock_timeout=%lld "
        "-c idle_in_transaction_session_timeout=%lld",
        (long long)pg->timeout_ms, (long long)pg->timeout_ms, (long long)(2 * pg->timeout_ms));
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (host->count > 1 && parts[i][1][0]) {
            names[count] = parts[i][0];
            values[count++] = parts[i][1];
        }
    assert(!pg->conn && count < COUNT_OF(names));
    pg->conn = PQconnectStartParams(names, values, 1);
    if (!pg->conn || PQstatus(pg->conn) == CONNECTION_BAD)
        return failed(pg, "connect to the database");
    PQsetNoticeProcessor(pg->conn, no_notice, NULL);
    if (!wait_connected(pg, until_ms))
        return false;
    return PQsetnonblocking(pg->conn, 1) == 0 || failed(pg, "connect to the database");
}

/* libpq tries the next host of a URL only when one refuses; a machine that is off or frozen does
 * not answer. So each host gets a share of the time, starting with the one that worked last. */
static bool pg_connect(struct sql *sql)
{
    struct pg *pg = of(sql);
    struct pg_host host = find_host(pg->url, pg->host);

    for (size_t i = 0; i < host.count; i++) {
        if (connect_to(pg, &host))
            return true;
        if (i + 1 < host.count) {
            pg_disconnect(sql);
            host = find_host(pg->url, ++pg->host);
        }
    }
    return false;
}

static void copy_result(const PGresult *result, struct arena *arena, struct sql_rows *rows)
{
    size_t at = 0;

    rows->count = (size_t)PQntuples(result);
    rows->columns = (size_t)PQnfields(result);
    rows->cells = arena_array(arena, struct str, rows->count * rows->columns + 1);
    for (int row = 0; row < PQntuples(result); row++)
        for (int column = 0; column < PQnfields(result); column++, at++)
            if (!PQgetisnull(result, row, column))
                rows->cells[at] =
                    arena_str(arena, (struct str){.at = PQgetvalue(result, row, column),
                                                  .len = (size_t)PQgetlength(result, row, column)});
    assert(at == rows->count * rows->columns);
    str_int(str_of(PQcmdTuples((PGresult *)result)), &rows->changed);
}

static bool flush_all(struct pg *pg, int64_t until_ms)
{
    int left;

    while ((left = PQflush(pg->conn)) > 0)
        if (!wait_for(pg, POLLIN | POLLOUT, until_ms) || !PQconsumeInput(pg->conn))
            return false;
    return left == 0 || failed(pg, "send to the database");
}

/* Reads all results of one statement, up to the terminating NULL. */
static enum err read_results(struct pg *pg, int64_t until_ms, struct arena *arena,
                             struct sql_rows *rows)
{
    enum err err = ERR_OK;
    PGresult *result;

    for (;;) {
        while (PQisBusy(pg->conn)) {
            if (!wait_for(pg, POLLIN, until_ms))
                return ERR_STORE_DOWN;
            if (!PQconsumeInput(pg->conn)) {
                failed(pg, "read from the database");
                return ERR_STORE_DOWN;
            }
        }
        result = PQgetResult(pg->conn);
        if (!result)
            return PQstatus(pg->conn) == CONNECTION_OK ? err : ERR_STORE_DOWN;
        ExecStatusType status = PQresultStatus(result);
        if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK)
            copy_result(result, arena, rows);
        else if (!err) {
            failed(pg, "run a statement");
            err = fault_of(result);
        }
        PQclear(result);
    }
}

/* The server parses it once, and keeps a plan after it has run a few times. */
static enum err prepare(struct pg *pg, const char *text, int64_t until_ms, struct arena *arena,
                        char name[NUMBER_BYTES])
{
    struct sql_rows none;
    size_t at = 0;
    enum err err;

    while (at < pg->prepared_count && pg->prepared[at] != text)
        at++;
    snprintf(name, NUMBER_BYTES, "berth%zu", at);
    if (at < pg->prepared_count)
        return ERR_OK;
    assert(at < SQL_PREPARED_MAX);
    if (!PQsendPrepare(pg->conn, name, text, 0, NULL)) {
        failed(pg, "send to the database");
        return ERR_STORE_DOWN;
    }
    if (!flush_all(pg, until_ms))
        return ERR_STORE_DOWN;
    err = read_results(pg, until_ms, arena, &none);
    if (!err)
        pg->prepared[pg->prepared_count++] = text;
    return err;
}

static enum err pg_run(struct sql *sql, const char *text, const struct sql_param *params,
                       size_t count, struct arena *arena, struct sql_rows *ret_rows)
{
    struct pg *pg = of(sql);
    int64_t until_ms = clock_mono_ms() + pg->timeout_ms;
    const char *values[SQL_PARAMS_MAX] = {0};
    char numbers[SQL_PARAMS_MAX][NUMBER_BYTES], name[NUMBER_BYTES];
    enum err err;

    assert(pg->conn);
    for (size_t i = 0; i < count; i++) {
        if (params[i].is_number) {
            snprintf(numbers[i], NUMBER_BYTES, "%lld", (long long)params[i].number);
            values[i] = numbers[i];
        } else if (params[i].text.at) {
            values[i] = arena_cstr(arena, params[i].text);
        }
    }
    err = prepare(pg, text, until_ms, arena, name);
    if (err)
        return err;
    if (!PQsendQueryPrepared(pg->conn, name, (int)count, values, NULL, NULL, 0)) {
        failed(pg, "send to the database");
        return ERR_STORE_DOWN;
    }
    return flush_all(pg, until_ms) ? read_results(pg, until_ms, arena, ret_rows) : ERR_STORE_DOWN;
}

static void pg_free(struct sql *sql)
{
    struct pg *pg = of(sql);

    free(pg->url);
    free(pg);
}

const struct sql_driver sql_pg = {
    .dialect = SQL_PG,
    .make = pg_make,
    .connect = pg_connect,
    .disconnect = pg_disconnect,
    .run = pg_run,
    .free = pg_free,
};
