/* SQLite has no clock of its own: it has this machine's. When somebody sets that one, or the
 * machine slept, nobody's lease became shorter or longer: all terms move along, in one transaction
 * with a note of how far the clock now is from the monotonic one. The note makes it happen once,
 * whichever process notices, and also when the clock was set while nobody ran. PostgreSQL has a
 * clock of its own, which nothing of ours can be compared with: see renew_anew() and cut_leases().
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/file.h"
#include "store/deploys_private.h"

enum { SET_MS = 1000 }; /* less is how exactly two clocks can be read */

/* The monotonic clock begins anew with every boot. Some digits of the kernel's id of it. */
static int64_t boot_of_machine(void)
{
    char text[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (file && !fgets(text, sizeof text, file))
        text[0] = '\0';
    if (file)
        fclose(file);
    return strtoll(text, NULL, 16); /* up to the first dash */
}

static bool is_step(int64_t ms)
{
    return ms > SET_MS || ms < -SET_MS;
}

static bool run(struct sql *sql, const char *text, int64_t value, struct arena *arena)
{
    struct sql_text statement = {.of = {[SQL_LITE] = text}};
    struct sql_param param = SQL_INT(value);

    return sql_run(sql, &statement, &param, 1, arena, NULL);
}

static bool read_note(struct sql *sql, struct arena *arena, int64_t *ret_boot, int64_t *ret_ahead)
{
    static const struct sql_text read = {
        {"SELECT (SELECT value FROM berth_meta WHERE name = 'clock_boot'),"
         " (SELECT value FROM berth_meta WHERE name = 'clock_ahead_ms')",
         NULL}};
    struct sql_rows rows;

    if (!sql_run(sql, &read, NULL, 0, arena, &rows))
        return false;
    *ret_boot = sql_cell_int(&rows, 0, 0);
    *ret_ahead = sql_cell_int(&rows, 0, 1);
    return true;
}

static bool write_note(struct sql *sql, struct arena *arena, int64_t boot, int64_t ahead_ms)
{
    static const char keep_boot[] = "INSERT INTO berth_meta (name, value) VALUES ('clock_boot', $1)"
                                    " ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    static const char keep_ahead[] =
        "INSERT INTO berth_meta (name, value) VALUES ('clock_ahead_ms', $1)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value";

    return run(sql, keep_boot, boot, arena) && run(sql, keep_ahead, ahead_ms, arena);
}

static bool shift_terms(struct sql *sql, struct arena *arena, int64_t step_ms)
{
    static const char *const terms[] = {
        "UPDATE berth_node_lease SET until_ms = until_ms + $1, renewed_ms = renewed_ms + $1",
        ("UPDATE berth_node_lease SET drain_deadline_ms = drain_deadline_ms + $1"
         " WHERE drain_deadline_ms <> 0"),
        "UPDATE deployment SET free_from_ms = free_from_ms + $1 WHERE free_from_ms <> 0",
        "UPDATE berth_deployment_failure SET at_ms = at_ms + $1, until_ms = until_ms + $1",
        "UPDATE berth_meta SET value = value + $1 WHERE name = 'approved_until_ms' AND value <> 0",
    };

    for (size_t i = 0; i < COUNT_OF(terms); i++)
        if (!run(sql, terms[i], step_ms, arena))
            return false;
    return true;
}

/* After a reboot nobody can tell by how much it was set. But no lease lasts longer than it did when
 * it was made, nor does what waits for the end of one. */
static bool cut_terms(struct sql *sql, struct arena *arena, int64_t now_ms)
{
    static const char waits[] =
        "UPDATE deployment SET free_from_ms = MIN(free_from_ms, $1 + COALESCE((SELECT"
        " MAX(until_ms - renewed_ms) FROM berth_node_lease), 0)) WHERE free_from_ms > $1";
    static const char leases[] =
        "UPDATE berth_node_lease SET until_ms = until_ms - renewed_ms + $1,"
        " renewed_ms = $1 WHERE renewed_ms > $1";

    return run(sql, waits, now_ms, arena) && run(sql, leases, now_ms, arena);
}

static bool follow(struct sql *sql, struct arena *arena)
{
    int64_t boot = boot_of_machine(), known_boot, known_ms;
    int64_t ahead_ms = clock_wall_ahead_ms();
    bool ok;

    if (!read_note(sql, arena, &known_boot, &known_ms))
        return false;
    if (known_boot != boot || !known_ms || (!boot && !sql->ahead_ms))
        ok = cut_terms(sql, arena, clock_mono_ms() + ahead_ms) &&
             write_note(sql, arena, boot, ahead_ms);
    else if (is_step(ahead_ms - known_ms))
        ok = shift_terms(sql, arena, ahead_ms - known_ms) && write_note(sql, arena, boot, ahead_ms);
    else
        ok = true, ahead_ms = known_ms; /* another process was first, or nothing happened */
    if (ok)
        sql->ahead_ms = ahead_ms;
    return ok;
}

bool deploys_follow_clock(struct sql *sql)
{
    struct arena arena = {0};
    bool ok;

    if (!sql->on_wall_clock || (sql->ahead_ms && !is_step(clock_wall_ahead_ms() - sql->ahead_ms)))
        return true;
    ok = sql_begin(sql) && follow(sql, &arena) && sql_commit(sql);
    if (!ok)
        sql_rollback(sql);
    arena_free(&arena);
    return ok;
}
