/* One directory, one mark and at most one run per package version. */
#include "agent/packages.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/link.h"
#include "agent/runlog.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "model/argv.h"

#define MARK "/.installed"

enum {
    PACKAGE_KEY_MAX = 80,
    RETRY_MIN_MS = 1000,
    RETRY_MAX_MS = 5 * 60 * 1000,
    STOP_GRACE_MS = 5000,
    OWN_ENV = 3,
    PACKAGE_NAME_MAX = 128,
    TRIM_MS = 60 * 1000,
};

struct packages {
    struct loop *loop;
    const struct config *config;
    const char *dir; /* has one directory for each */
    struct runs *runs;
    struct map by_key;
    struct rnd rnd;
    struct arena arena;
    int64_t sure_ms; /* CLOCK_MONOTONIC: since when what should run is known; 0: it is not */
    int64_t trim_ms; /* when to look for unused packages next */
};

struct packages *packages_new(struct loop *loop, const struct config *config, const char *data_dir,
                              struct runs *runs)
{
    struct packages *packages = mem_new(struct packages);

    packages->loop = loop;
    packages->config = config;
    packages->runs = runs;
    packages->dir = arena_fmt(&packages->arena, "%s/packages", data_dir).at;
    rnd_seed_os(&packages->rnd);
    return packages;
}

void packages_free(struct packages *packages)
{
    struct package *package;

    if (!packages)
        return;
    for (size_t i = 0; (package = map_next(&packages->by_key, &i));) {
        arena_free(&package->arena);
        free(package);
    }
    map_free(&packages->by_key);
    arena_free(&packages->arena);
    free(packages);
}

static struct str key_of(const struct packages *packages, struct str name, struct str version,
                         struct arena *arena)
{
    /* A package installed by one user must not be changed or trusted by another. */
    struct str job_user = packages->config->job_user;
    struct str installer = runs_not_apart(packages->runs) ? STR("")
                           : job_user.len                 ? job_user
                                                          : STR("berth-job");
    uint32_t hash =
        runs_hash(installer, runs_hash(version, runs_hash(STR("@"), runs_hash(name, RUNS_HASH))));
    struct str words = arena_fmt(arena, STR_FMT "@" STR_FMT, STR_ARG(name), STR_ARG(version));
    char *text = (char *)words.at;
    size_t len = words.len < PACKAGE_KEY_MAX ? words.len : PACKAGE_KEY_MAX;

    for (size_t i = 0; i < len; i++)
        if (!str_is_id((struct str){.at = &text[i], .len = 1}, 1) && text[i] != '.')
            text[i] = '_';
    return arena_fmt(arena, "p.%.*s-%08" PRIx32, (int)len, text, hash);
}

static struct package *get(struct packages *packages, struct str name, struct str version)
{
    struct arena arena = {0};
    struct str key = key_of(packages, name, version, &arena);
    struct package *package = map_get(&packages->by_key, key);

    if (!package) {
        package = mem_new(struct package);
        package->packages = packages;
        package->key = arena_str(&package->arena, key);
        package->name = arena_str(&package->arena, name);
        package->version = arena_str(&package->arena, version);
        package->dir = arena_fmt(&package->arena, "%s/" STR_FMT, packages->dir, STR_ARG(key)).at;
        package->mark = arena_fmt(&package->arena, "%s" MARK, package->dir).at;
        package->ready = access(package->mark, F_OK) == 0;
        map_put(&packages->by_key, package->key, package);
    }
    arena_free(&arena);
    return package;
}

static void package_log(const struct package *package, enum log_level level, const char *event,
                        const char *reason)
{
    log_event(level, event, KS("package_name", package->name),
              KS("package_version", package->version), KC("dir", package->dir),
              KC("reason", reason));
}

/* --- installing --- */

static void note_failure(struct package *package, const char *reason)
{
    char line[200] = "";
    int64_t pause_ms;

    assert(!package->ready && (!package->run || package->run->state == RUN_ENDED));
    package->failures++;
    pause_ms = backoff_ms(package->failures, RETRY_MIN_MS, RETRY_MAX_MS, &package->packages->rnd);
    package->next_ms = package->packages->loop->mono_ms + pause_ms;
    if (package->run)
        runlog_last_line(package->run->exit.tail, line, sizeof line);
    snprintf(package->reason, sizeof package->reason,
             "The package " STR_FMT " " STR_FMT " cannot be installed: %s%s%s",
             STR_ARG(package->name), STR_ARG(package->version), reason, *line ? " " : "", line);
    log_event(LOG_ERROR, "package.install_failed", KS("package_name", package->name),
              KS("package_version", package->version), KC("reason", reason),
              KS("tail", package->run ? package->run->exit.tail : STR("")),
              KI("failures", package->failures), KI("retry_ms", pause_ms));
}

static void on_ended(struct run *run)
{
    struct package *package = run->user;
    const struct run_exit *exit = &run->exit;
    int fd;

    assert(package->run == run);
    if (strcmp(exit->reason, "EXITED") != 0 || exit->exit_code != 0) {
        note_failure(package, exit->detail);
    } else if ((fd = open(package->mark, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) < 0) {
        note_failure(package, "its directory cannot be written");
    } else {
        close(fd);
        package->ready = true;
        package->failures = 0;
        package_log(package, LOG_INFO, "package.installed", "its command exited 0");
        package->run = NULL;
        run_forget(run);
    }
}

static const struct run_handler run_handler = {.ended = on_ended};

struct fill {
    struct str name, value;
};

static struct str fill_in(struct str word, const struct fill *rows, size_t count,
                          struct arena *arena)
{
    struct buf out = {0};
    struct str filled;

    while (word.len > 0) {
        size_t i = 0, len;

        while (i < count && !str_starts(word, rows[i].name))
            i++;
        len = i < count ? rows[i].name.len : 1;
        buf_str(&out, i < count ? rows[i].value : (struct str){.at = word.at, .len = 1});
        word = str_from(word, len);
    }
    filled = arena_str(arena, buf_view(&out));
    buf_free(&out);
    return filled;
}

bool packages_words(const struct json *command, struct str name, struct str version,
                    const char *dir, struct arena *arena, struct strs *ret_words)
{
    const struct fill rows[] = {
        {STR("{name}"), name}, {STR("{version}"), version}, {STR("{dir}"), str_of(dir ? dir : "")}};
    struct strs words;

    if (!argv_command(command, arena, &words))
        return false;
    for (size_t i = 0; json_type(command) == JSON_ARR && i < words.count; i++)
        words.at[i] = fill_in(words.at[i], rows, COUNT_OF(rows), arena);
    *ret_words = words;
    return true;
}

static enum err start(struct package *package, struct arena *arena, struct problem *why)
{
    struct packages *packages = package->packages;
    struct strs words;
    struct buf meta = {0};
    struct str env[OWN_ENV] = {
        arena_fmt(arena, "BERTH_PACKAGE_NAME=" STR_FMT, STR_ARG(package->name)),
        arena_fmt(arena, "BERTH_PACKAGE_VERSION=" STR_FMT, STR_ARG(package->version)),
        arena_fmt(arena, "BERTH_PACKAGE_DIR=%s", package->dir)};
    struct run_spec spec = {.handler = &run_handler,
                            .key = arena_fmt(arena, STR_FMT ".%" PRIx64 "-%" PRId64,
                                             STR_ARG(package->key), packages->loop->wall_ms,
                                             package->failures),
                            .env = env,
                            .env_count = OWN_ENV,
                            .cwd = str_of(package->dir),
                            .cwd_given = 1,
                            .timeout_ms = packages->config->install_timeout_ms,
                            .stop_grace_ms = STOP_GRACE_MS,
                            .log_bytes_max = packages->config->log_bytes_max};
    struct jsonw w = jsonw_to(&meta);
    enum err err;

    if ((mkdir(packages->dir, 0711) != 0 && errno != EEXIST) ||
        chmod(packages->dir, 0711) != 0 || /* others must pass through it, whatever our umask */
        (mkdir(package->dir, 0755) != 0 && errno != EEXIST))
        return problem_set(why, ERR_IO, "", "Cannot make the directory %s: %s.", package->dir,
                           strerror(errno));
    if (!packages_words(packages->config->install_command, package->name, package->version,
                        package->dir, arena, &words))
        return problem_set(why, ERR_BAD_CONFIG, "", "install_command is not a command.");
    spec.argv = words.at;
    spec.argc = words.count;
    jsonw_obj(&w);
    jsonw_kstr(&w, "package_name", package->name);
    jsonw_kstr(&w, "package_version", package->version);
    jsonw_end_obj(&w);
    spec.meta = buf_view(&meta);
    err = runs_start(packages->runs, &spec, package, &package->run, why);
    buf_free(&meta);
    return err;
}

static bool is_busy(const struct package *package)
{
    return package->run && package->run->state != RUN_ENDED;
}

enum package_state packages_need(struct packages *packages, struct str name, struct str version,
                                 const char **ret_dir)
{
    struct arena arena = {0};
    struct problem why = {0};
    struct package *package;

    *ret_dir = NULL;
    if (!name.len || json_is_null(packages->config->install_command))
        return PACKAGE_READY;
    package = get(packages, name, version.at ? version : STR(""));
    package->needed_ms = packages->loop->mono_ms;
    if (package->ready) {
        utimensat(AT_FDCWD, package->mark, NULL, AT_SYMLINK_NOFOLLOW);
    } else if (!is_busy(package) && packages->loop->mono_ms >= package->next_ms) {
        if (package->run)
            run_forget(package->run);
        package->run = NULL;
        package_log(package, LOG_INFO, "package.install", "a deployment needs it");
        if (start(package, &arena, &why))
            note_failure(package, why.detail);
        arena_free(&arena);
    }
    *ret_dir = package->dir;
    return package->ready ? PACKAGE_READY : is_busy(package) ? PACKAGE_BUSY : PACKAGE_FAILED;
}

const struct package *packages_find(const struct packages *packages, struct str name,
                                    struct str version)
{
    struct arena arena = {0};
    struct package *package =
        map_get(&packages->by_key,
                key_of(packages, name.at ? name : STR(""), version.at ? version : STR(""), &arena));

    arena_free(&arena);
    return package;
}

bool packages_adopt(struct packages *packages, struct run *run)
{
    struct arena arena = {0};
    const struct json *meta;
    struct str name = STR_NONE, version = STR_NONE;
    struct package *package = NULL;

    if (run->meta.at && json_parse(run->meta, &arena, &meta, NULL) == ERR_OK) {
        name = json_str(json_get(meta, "package_name"), &arena);
        version = json_str(json_get(meta, "package_version"), &arena);
    }
    if (name.at && version.at && str_starts(run->key, STR("p.")))
        package = get(packages, name, version);
    arena_free(&arena);
    if (!package || (is_busy(package) && run->state != RUN_ENDED))
        return false;
    if (is_busy(package)) { /* an older attempt */
        run_forget(run);
        return true;
    }
    if (package->run)
        run_forget(package->run);
    run->handler = &run_handler;
    run->user = package;
    package->run = run;
    if (run->state == RUN_ENDED)
        on_ended(run);
    return true;
}

/* --- removing unused packages --- */

struct leftover {
    char name[PACKAGE_NAME_MAX + 1];
    struct timespec used; /* wall */
};

/* A copy, its health check or the install command runs in it. */
static bool is_used(const struct packages *packages, const char *dir)
{
    for (struct run *run = NULL; (run = runs_next(packages->runs, run));)
        if (run->state != RUN_ENDED && run->cwd.at && str_starts(run->cwd, str_of(dir)) &&
            (run->cwd.len == strlen(dir) || run->cwd.at[strlen(dir)] == '/'))
            return true;
    return false;
}

/* Not used or requested recently, neither by this agent nor, according to the marks, by earlier
 * ones. */
static bool is_left_over(const struct packages *packages, const char *name,
                         struct leftover *ret_left)
{
    const struct package *package = map_get(&packages->by_key, str_of(name));
    int64_t unused_ms = packages->config->packages_unused_ms;
    struct arena arena = {0};
    const char *dir = arena_fmt(&arena, "%s/%s", packages->dir, name).at;
    const char *mark = arena_fmt(&arena, "%s" MARK, dir).at;
    struct stat info;
    bool left = false;

    if (!str_starts(str_of(name), STR("p.")) ||
        !str_copy(str_of(name), ret_left->name, sizeof ret_left->name))
        ; /* not a package directory */
    else if (is_used(packages, dir))
        utimensat(AT_FDCWD, mark, NULL, AT_SYMLINK_NOFOLLOW);
    else if (lstat(mark, &info) == 0 || lstat(dir, &info) == 0) {
        int64_t used_ms = (int64_t)info.st_mtim.tv_sec * 1000 + info.st_mtim.tv_nsec / 1000000;

        left = packages->loop->wall_ms - used_ms >= unused_ms &&
               (!package || packages->loop->mono_ms - package->needed_ms >= unused_ms);
        ret_left->used = info.st_mtim;
    }
    arena_free(&arena);
    return left;
}

static int newest_first(const void *a, const void *b)
{
    const struct timespec *x = &((const struct leftover *)a)->used;
    const struct timespec *y = &((const struct leftover *)b)->used;

    if (x->tv_sec != y->tv_sec)
        return x->tv_sec < y->tv_sec ? 1 : -1;
    return (x->tv_nsec < y->tv_nsec) - (x->tv_nsec > y->tv_nsec);
}

void packages_trim(struct packages *packages, bool sure)
{
    int64_t now_ms = packages->loop->mono_ms, unused_ms = packages->config->packages_unused_ms;
    struct leftover *left = NULL;
    size_t count = 0, room = 0;
    DIR *list;

    if (!sure) {
        packages->sure_ms = 0;
        return;
    }
    if (!packages->sure_ms)
        packages->sure_ms = now_ms;
    /* By then all that should run has been requested, unless it waits longer than that. */
    if (now_ms - packages->sure_ms < unused_ms || now_ms < packages->trim_ms)
        return;
    packages->trim_ms = now_ms + (unused_ms < TRIM_MS ? unused_ms : TRIM_MS);
    list = opendir(packages->dir);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        if (count == room) {
            room = room ? room * 2 : 16;
            left = mem_resize(left, room * sizeof *left);
        }
        count += is_left_over(packages, entry->d_name, &left[count]);
    }
    if (list)
        closedir(list);
    if (count > 0)
        qsort(left, count, sizeof *left, newest_first);
    for (size_t i = (size_t)packages->config->packages_kept; i < count; i++) {
        struct package *package = map_get(&packages->by_key, str_of(left[i].name));
        struct arena arena = {0};
        const char *dir = arena_fmt(&arena, "%s/%s", packages->dir, left[i].name).at;

        if (runs_discard(packages->runs, AT_FDCWD, dir))
            log_event(LOG_INFO, "package.removed", KC("dir", dir),
                      KC("reason", "nothing here uses it any more"));
        else
            log_event(LOG_WARN, "package.remove_failed", KC("dir", dir),
                      KC("reason", strerror(errno)));
        if (package) {
            if (package->run)
                run_forget(package->run);
            map_del(&packages->by_key, package->key);
            arena_free(&package->arena);
            free(package);
        }
        arena_free(&arena);
    }
    free(left);
}
