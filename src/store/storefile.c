/* Opens, locks and migrates store.db. The contents of its tables belong to journal.c, flush.c and
 * reader.c. */
#include "store/storefile.h"

#include "base/mem.h"
#include "base/str.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUSY_TIMEOUT_MS = 50 }; /* if another process locks the file longer, that is a failure */

/* Forward only: row n migrates from version n to n + 1. Released rows must not change. `oldest` is
 * the first version whose program can still use the file afterwards: added tables and columns do
 * not disturb a program that names its columns, so a release can be rolled back. */
static const struct {
    const char *sql;
    int oldest;
} migrations[] = {
    {"CREATE TABLE job("
     " id INTEGER PRIMARY KEY, state INT, lease INT, callback INT, attempt INT, max_attempts INT,"
     " epoch INT, owner INT, node TEXT, reason TEXT, created_ms INT, updated_ms INT,"
     " dispatched_ms INT, acked_ms INT, ended_ms INT, due_ms INT, timeout_ms INT, run_until_ms INT,"
     " type TEXT, attempts TEXT, result TEXT, fingerprint INT, idem TEXT, first_node TEXT,"
     " spec TEXT);"
     /* Both are usually empty, so that an insert touches only one tree. */
     "CREATE UNIQUE INDEX job_idem ON job(idem) WHERE idem IS NOT NULL;"
     "CREATE INDEX job_callback ON job(callback) WHERE callback = 2;"
     /* Specs too long to rewrite with every change of their row. */
     "CREATE TABLE bulk(id INTEGER PRIMARY KEY, spec TEXT);"
     "CREATE TABLE node("
     " id TEXT PRIMARY KEY, own INT, health INT, max INT, epoch INT, admin INT, admin_reason TEXT,"
     " registered_ms INT, version INT, facts TEXT) WITHOUT ROWID;"
     "CREATE TABLE breaker("
     " node TEXT, type TEXT, state INT, failures INT, opened_ms INT, probe_job INT,"
     " PRIMARY KEY(node, type)) WITHOUT ROWID;"
     /* A changed session gets a new seq, so the smallest is always the oldest. */
     "CREATE TABLE session("
     " seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, preferred_pool TEXT, lang_pair TEXT,"
     " version INT, updated_ms INT);"
     "CREATE TABLE meta(id INTEGER PRIMARY KEY CHECK(id = 1), floor INT, row_count INT, max_id "
     "INT);"
     "INSERT INTO meta VALUES(1, 0, 0, 0);",
     1},
    {"ALTER TABLE job ADD COLUMN answered INT;"
     "ALTER TABLE job ADD COLUMN lane INT NOT NULL DEFAULT 0;"
     "ALTER TABLE job ADD COLUMN priority INT NOT NULL DEFAULT 0;"
     "ALTER TABLE meta ADD COLUMN wait_shift_ms INT NOT NULL DEFAULT 0;",
     2},
    {"ALTER TABLE meta ADD COLUMN journal_seq INT NOT NULL DEFAULT 0;", 2},
    {"", 2}, /* the journal became another file */
    {"ALTER TABLE job ADD COLUMN gpus INT NOT NULL DEFAULT 0;"
     "ALTER TABLE job ADD COLUMN demand TEXT;"
     "ALTER TABLE node ADD COLUMN resources TEXT;"
     "CREATE TABLE limit_rule(pattern TEXT PRIMARY KEY, rule TEXT) WITHOUT ROWID;"
     "CREATE TABLE limit_key("
     " key TEXT PRIMARY KEY, hold_until_ms INT, reason TEXT, starts TEXT) WITHOUT ROWID;",
     2}, /* demands of jobs, resources of nodes, and limits */
};

/* A file of version 2 without an `oldest` predates that field: that version had one column more
 * than version 1. These are the columns it lacks. */
static const char EARLY_LACKS[] =
    "ALTER TABLE job ADD COLUMN lane INT NOT NULL DEFAULT 0;"
    "ALTER TABLE job ADD COLUMN priority INT NOT NULL DEFAULT 0;"
    "ALTER TABLE meta ADD COLUMN wait_shift_ms INT NOT NULL DEFAULT 0;";

/* SQLite stores one number for us: OLDEST_UNIT * oldest + version. */
enum {
    VERSION_KNOWN = COUNT_OF(migrations),
    OLDEST_UNIT = 65536,
    JOURNAL_SINCE = 5, /* the first version whose program can read all of journal.log */
    JOURNAL_KNOWN = 1, /* the version of journal.db's table */
    EARLY_VERSION = 2,
};

void fault_text(const struct fault *fault, char *to, size_t size)
{
    if (!fault->what)
        snprintf(to, size, "%s", "");
    else if (fault->code == FAULT_NEWER)
        snprintf(to, size,
                 "%s: written by a newer berth (its tables have format %d, this one knows up to "
                 "%d): use "
                 "that release, or a back-up from before it",
                 fault->what, fault->sys, VERSION_KNOWN);
    else if (fault->code == FAULT_DAMAGED)
        snprintf(to, size, "%s: batch %d of the journal is not what was written: restore a back-up",
                 fault->what, fault->sys);
    else if (fault->code == FAULT_GAP)
        snprintf(to, size,
                 "%s: the journal begins at batch %d, behind what store.db has: they do not belong "
                 "together",
                 fault->what, fault->sys);
    else if (fault->sys)
        snprintf(to, size, "%s: %s (%d, %s)", fault->what, sqlite3_errstr(fault->code), fault->code,
                 strerrorname_np(fault->sys) ? strerrorname_np(fault->sys) : "?");
    else
        snprintf(to, size, "%s: %s (%d)", fault->what, sqlite3_errstr(fault->code), fault->code);
}

bool storefile_fault(struct fault *fault, const char *what, sqlite3 *db, int code)
{
    *fault = (struct fault){.what = what, .code = code};
    if (db) {
        fault->code = sqlite3_extended_errcode(db);
        fault->sys = sqlite3_system_errno(db);
    }
    return false;
}

/* mkdir -p; new directories are private (0700). */
static bool make_dirs(const char *dir)
{
    char path[4096];

    if (!str_copy(str_of(dir), path, sizeof path)) {
        errno = ENAMETOOLONG;
        return false;
    }
    for (char *at = path + 1; *at; at++) {
        if (*at != '/')
            continue;
        *at = '\0';
        if (mkdir(path, 0700) && errno != EEXIST)
            return false;
        *at = '/';
    }
    return mkdir(path, 0700) == 0 || errno == EEXIST;
}

/* Turns off SQLite's memory statistics, which take a lock shared by all its threads and are not
 * used. SQLite refuses this once it is initialised and then keeps counting. */
static void stop_counting(void)
{
    sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
}

enum err storefile_claim(struct storefile *file, const char *data_dir, struct problem *why)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char path[4096 + 16];
    ssize_t len;
    int lock;

    pthread_once(&once, stop_counting);

    if (!make_dirs(data_dir))
        return problem_set(why, ERR_IO, "data_dir", "The data directory %s cannot be made: %s.",
                           data_dir, strerror(errno));
    snprintf(path, sizeof path, "%s/lock", data_dir);
    lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0)
        return problem_set(why, ERR_IO, "data_dir", "%s cannot be opened: %s.", path,
                           strerror(errno));
    if (flock(lock, LOCK_EX | LOCK_NB)) {
        len = pread(lock, path, sizeof path - 1, 0);
        path[len > 0 ? len : 0] = '\0';
        close(lock);
        return problem_set(why, ERR_IO, "data_dir",
                           "The data directory %s is in use by process %ld.", data_dir,
                           strtol(path, NULL, 10));
    }
    snprintf(path, sizeof path, "%ld\n", (long)getpid());
    /* The pid is only information for people: the lock itself is what counts, even on a full
     * disk. */
    if (ftruncate(lock, 0) == 0 && pwrite(lock, path, strlen(path), 0) < 0)
        errno = 0;
    snprintf(path, sizeof path, "%s/store.db", data_dir);
    file->path = mem_cstr(str_of(path));
    snprintf(path, sizeof path, "%s/journal.log", data_dir);
    file->journal = mem_cstr(str_of(path));
    snprintf(path, sizeof path, "%s/journal.db", data_dir);
    file->old_journal = mem_cstr(str_of(path));
    file->lock = lock;
    assert(file->path && file->journal && file->old_journal);
    return ERR_OK;
}

void storefile_release(struct storefile *file)
{
    free(file->path);
    free(file->journal);
    free(file->old_journal);
    close(file->lock); /* releases the lock; the file stays, or two processes could lock two
                          different files */
}

bool storefile_exec(sqlite3 *db, const char *sql, struct fault *fault)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        return storefile_fault(fault, "prepare the file", db, 0);
    return true;
}

/* Reads a pragma's single value as text. */
static bool ask(sqlite3 *db, const char *sql, char *to, size_t size, struct fault *fault)
{
    sqlite3_stmt *stmt = NULL;
    bool ok = sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) == SQLITE_OK &&
              sqlite3_step(stmt) == SQLITE_ROW;

    if (ok)
        snprintf(to, size, "%s", (const char *)sqlite3_column_text(stmt, 0));
    else
        storefile_fault(fault, "prepare the file", db, 0);
    sqlite3_finalize(stmt);
    return ok;
}

/* On a file system without shared memory, SQLite silently stays in another mode. */
static bool use_wal(sqlite3 *db, struct fault *fault)
{
    char mode[16];

    if (!ask(db, "PRAGMA journal_mode = WAL", mode, sizeof mode, fault))
        return false;
    return strcmp(mode, "wal") == 0 || storefile_fault(fault, "turn on WAL", NULL, SQLITE_CANTOPEN);
}

static bool get_version(sqlite3 *db, int *ret_version, int *ret_oldest, struct fault *fault)
{
    char text[16];

    if (!ask(db, "PRAGMA user_version", text, sizeof text, fault))
        return false;
    *ret_version = atoi(text) % OLDEST_UNIT;
    *ret_oldest = atoi(text) / OLDEST_UNIT;
    return true;
}

static bool set_version(sqlite3 *db, int version, int oldest, struct fault *fault)
{
    char sql[64];

    snprintf(sql, sizeof sql, "PRAGMA user_version = %d", OLDEST_UNIT * oldest + version);
    return storefile_exec(db, sql, fault);
}

/* Migrates the file to `version`. */
static bool migrate_by(sqlite3 *db, const char *sql, int version, struct fault *fault)
{
    return storefile_exec(db, "BEGIN IMMEDIATE", fault) && storefile_exec(db, sql, fault) &&
           set_version(db, version, migrations[version - 1].oldest, fault) &&
           storefile_exec(db, "COMMIT", fault);
}

static bool migrate(sqlite3 *db, struct fault *fault)
{
    int version, oldest;

    if (!get_version(db, &version, &oldest, fault))
        return false;
    if (version > VERSION_KNOWN && (oldest == 0 || oldest > VERSION_KNOWN)) {
        *fault = (struct fault){.what = "open", .code = FAULT_NEWER, .sys = version};
        return false;
    }
    if (version == EARLY_VERSION && oldest == 0 && !migrate_by(db, EARLY_LACKS, version, fault))
        return false;
    for (; version < VERSION_KNOWN; version++)
        if (!migrate_by(db, migrations[version].sql, version + 1, fault))
            return false;
    return true;
}

/* A program that does not read the journal would miss what store.db lacks. */
static bool mark_journaled(sqlite3 *db, struct fault *fault)
{
    int version, oldest;

    return get_version(db, &version, &oldest, fault) &&
           (oldest >= JOURNAL_SINCE || set_version(db, version, JOURNAL_SINCE, fault));
}

bool storefile_mark_whole(sqlite3 *db, struct fault *fault)
{
    int version, oldest;

    if (!get_version(db, &version, &oldest, fault))
        return false;
    /* For a later version, only its own release knows which programs may read it. */
    return version != VERSION_KNOWN ||
           set_version(db, version, migrations[VERSION_KNOWN - 1].oldest, fault);
}

static bool connect(const char *path, int flags, sqlite3 **ret_db, struct fault *fault)
{
    int code = sqlite3_open_v2(path, ret_db, flags | SQLITE_OPEN_NOMUTEX, NULL);

    if (code != SQLITE_OK) {
        storefile_fault(fault, "open", *ret_db, code);
        sqlite3_close(*ret_db);
        *ret_db = NULL;
        return false;
    }
    sqlite3_extended_result_codes(*ret_db, 1);
    sqlite3_busy_timeout(*ret_db, BUSY_TIMEOUT_MS);
    return true;
}

/* A blocking reader is an error here: there are none yet, or only brief ones. */
bool storefile_empty_wal(sqlite3 *db, struct fault *fault)
{
    if (sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL) != SQLITE_OK)
        return storefile_fault(fault, "checkpoint", db, 0);
    return true;
}

#define WRITER_PRAGMAS                                                                             \
    "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0; PRAGMA temp_store = MEMORY;"        \
    "PRAGMA cache_size = -65536; PRAGMA trusted_schema = OFF"

bool storefile_connect_writer(const struct storefile *file, sqlite3 **ret_db, struct fault *fault)
{
    sqlite3 *db;

    if (!connect(file->path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, &db, fault))
        return false;
    if (!use_wal(db, fault) || !storefile_exec(db, WRITER_PRAGMAS, fault) || !migrate(db, fault) ||
        !mark_journaled(db, fault)) {
        storefile_disconnect(db, true);
        return false;
    }
    *ret_db = db;
    return true;
}

bool storefile_connect_reader(const char *path, sqlite3 **ret_db, struct fault *fault)
{
    sqlite3 *db;

    /* Not read-only: this connection also runs checkpoints, which write the main file. */
    if (!connect(path, SQLITE_OPEN_READWRITE, &db, fault))
        return false;
    if (!storefile_exec(db,
                        "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0;"
                        "PRAGMA temp_store = MEMORY; PRAGMA cache_size = -8192",
                        fault)) {
        storefile_disconnect(db, true);
        return false;
    }
    *ret_db = db;
    return true;
}

bool storefile_has_old_journal(const struct storefile *file)
{
    sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
    int there = 0;

    /* If the check fails, assume it exists: opening it will report why. */
    return vfs->xAccess(vfs, file->old_journal, SQLITE_ACCESS_EXISTS, &there) || there;
}

bool storefile_connect_old_journal(const struct storefile *file, sqlite3 **ret_db,
                                   struct fault *fault)
{
    int version, oldest;
    sqlite3 *db;

    if (!storefile_connect_reader(file->old_journal, &db, fault))
        return false;
    if (get_version(db, &version, &oldest, fault)) {
        if (version > JOURNAL_KNOWN)
            *fault =
                (struct fault){.what = "open the journal", .code = FAULT_NEWER, .sys = version};
        else if (storefile_exec(db, "CREATE TABLE IF NOT EXISTS batch(seq, sum, changes)", fault)) {
            *ret_db = db;
            return true;
        }
    }
    storefile_disconnect(db, true);
    return false;
}

/* The database last: the files beside it are useless without it. */
bool storefile_drop_old_journal(const struct storefile *file, struct fault *fault)
{
    static const char *const ends[] = {"-wal", "-shm", ""};
    sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
    char path[4096 + 32];

    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        int code;

        snprintf(path, sizeof path, "%s%s", file->old_journal, ends[i]);
        code = vfs->xDelete(vfs, path, 1);
        if (code != SQLITE_OK && code != SQLITE_IOERR_DELETE_NOENT)
            return storefile_fault(fault, "remove the old journal", NULL, code);
    }
    return true;
}

bool storefile_prepare(sqlite3 *db, const char *const *texts, int count, sqlite3_stmt **ret_sql,
                       struct fault *fault)
{
    for (int i = 0; i < count; i++)
        if (sqlite3_prepare_v3(db, texts[i], -1, SQLITE_PREPARE_PERSISTENT, &ret_sql[i], NULL) !=
            SQLITE_OK)
            return storefile_fault(fault, "prepare a statement", db, 0);
    return true;
}

bool storefile_row(sqlite3_stmt *stmt, const char *what, struct fault *fault)
{
    int code = sqlite3_step(stmt);

    if (code == SQLITE_ROW)
        return true;
    if (code != SQLITE_DONE && !fault->what)
        storefile_fault(fault, what, sqlite3_db_handle(stmt), 0);
    sqlite3_reset(stmt);
    return false;
}

void storefile_run(sqlite3_stmt *stmt, const char *what, struct fault *fault)
{
    if (sqlite3_step(stmt) != SQLITE_DONE && !fault->what)
        storefile_fault(fault, what, sqlite3_db_handle(stmt), 0);
    sqlite3_reset(stmt);
}

void storefile_finalize(sqlite3_stmt **sql, int count)
{
    for (int i = 0; i < count; i++) {
        sqlite3_finalize(sql[i]);
        sql[i] = NULL;
    }
}

void storefile_disconnect(sqlite3 *db, bool after_fault)
{
    int code;

    if (!db)
        return;
    if (after_fault)
        sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    code = sqlite3_close(db);
    assert(code == SQLITE_OK); /* a statement was not finalised */
    (void)code;
}
