/* One directory, one mark and at most one run for each version of a package. */
#include "agent/packages.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/backoff.h"
#include "agent/words.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"

#define MARK "/.installed"

enum {
    PACKAGE_KEY_MAX = 80,
    RETRY_MIN_MS = 1000,
    RETRY_MAX_MS = 5 * 60 * 1000,
    STOP_GRACE_MS = 5000,
    OWN_ENV = 3,
};

struct package {
    struct packages *packages;
    struct arena arena;
    struct str key; /* a name for files: what it is called, as far as that can be one, and a hash */
    struct str name, version;
    const char *dir;
    bool ready;
    int64_t failures;
    int64_t next_ms; /* CLOCK_MONOTONIC: no try before */
    struct run *run; /* the last try; NULL: none */
};

struct packages {
    struct loop *loop;
    const struct config *config;
    const char *dir; /* below it one for each */
    struct runs *runs;
    struct map by_key;
    struct rnd rnd;
    struct arena arena;
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

/* FNV-1a: the next agent must find what this one installed. */
static uint32_t hash_of(struct str text, uint32_t hash)
{
    for (size_t i = 0; i < text.len; i++)
        hash = (hash ^ (unsigned char)text.at[i]) * 16777619u;
    return hash;
}

static struct str key_of(struct str name, struct str version, struct arena *arena)
{
    uint32_t hash = hash_of(version, hash_of(STR("@"), hash_of(name, 2166136261u)));
    struct str words = arena_fmt(arena, STR_FMT "@" STR_FMT, STR_ARG(name), STR_ARG(version));
    char *text = (char *)words.at;
    size_t len = words.len < PACKAGE_KEY_MAX ? words.len : PACKAGE_KEY_MAX;

    for (size_t i = 0; i < len; i++)
        if (!str_is_id((struct str){.at = &text[i], .len = 1}, 1) && text[i] != '.')
            text[i] = '_';
    return arena_fmt(arena, "p.%.*s-%08" PRIx32, (int)len, text, hash);
}

static bool is_marked(const struct package *package)
{
    struct buf path = {0};
    bool there;

    buf_fmt(&path, "%s" MARK, package->dir);
    buf_char(&path, 0);
    there = access(path.at, F_OK) == 0;
    buf_free(&path);
    return there;
}

static bool mark(const struct package *package)
{
    struct buf path = {0};
    int fd;

    buf_fmt(&path, "%s" MARK, package->dir);
    buf_char(&path, 0);
    fd = open(path.at, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0)
        close(fd);
    buf_free(&path);
    return fd >= 0;
}

static struct package *get(struct packages *packages, struct str name, struct str version)
{
    struct arena arena = {0};
    struct str key = key_of(name, version, &arena);
    struct package *package = map_get(&packages->by_key, key);

    if (!package) {
        package = mem_new(struct package);
        package->packages = packages;
        package->key = arena_str(&package->arena, key);
        package->name = arena_str(&package->arena, name);
        package->version = arena_str(&package->arena, version);
        package->dir = arena_fmt(&package->arena, "%s/" STR_FMT, packages->dir, STR_ARG(key)).at;
        package->ready = is_marked(package);
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

/* --- trying --- */

static void failed(struct package *package, const char *reason)
{
    int64_t pause_ms;

    assert(!package->ready && (!package->run || package->run->state == RUN_ENDED));
    package->failures++;
    pause_ms = backoff_ms(package->failures, RETRY_MIN_MS, RETRY_MAX_MS, &package->packages->rnd);
    package->next_ms = package->packages->loop->mono_ms + pause_ms;
    log_event(LOG_ERROR, "package.install_failed", KS("package_name", package->name),
              KS("package_version", package->version), KC("reason", reason),
              KS("tail", package->run ? package->run->exit.tail : STR("")),
              KI("failures", package->failures), KI("retry_ms", pause_ms));
}

static void on_ended(struct run *run)
{
    struct package *package = run->user;
    const struct run_exit *exit = &run->exit;

    assert(package->run == run);
    if (strcmp(exit->reason, "EXITED") != 0 || exit->exit_code != 0) {
        failed(package, exit->detail);
    } else if (!mark(package)) {
        failed(package, "its directory cannot be written");
    } else {
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
        word.at += len;
        word.len -= len;
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

    if (!words_command(command, arena, &words))
        return false;
    for (size_t i = 0; json_type(command) == JSON_ARR && i < words.count; i++)
        words.at[i] = fill_in(words.at[i], rows, COUNT_OF(rows), arena);
    *ret_words = words;
    return true;
}

static void write_meta(const struct package *package, struct buf *meta)
{
    struct jsonw w = jsonw_to(meta);

    jsonw_obj(&w);
    jsonw_kstr(&w, "package_name", package->name);
    jsonw_kstr(&w, "package_version", package->version);
    jsonw_end_obj(&w);
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
                            .timeout_ms = packages->config->install_timeout_ms,
                            .stop_grace_ms = STOP_GRACE_MS,
                            .log_bytes_max = packages->config->log_bytes_max};
    enum err err;

    if ((mkdir(packages->dir, 0711) != 0 && errno != EEXIST) ||
        (mkdir(package->dir, 0755) != 0 && errno != EEXIST))
        return problem_set(why, ERR_IO, "", "Cannot make the directory %s: %s.", package->dir,
                           strerror(errno));
    if (!packages_words(packages->config->install_command, package->name, package->version,
                        package->dir, arena, &words))
        return problem_set(why, ERR_BAD_CONFIG, "", "install_command is not a command.");
    spec.argv = words.at;
    spec.argc = words.count;
    write_meta(package, &meta);
    spec.meta = buf_view(&meta);
    err = runs_start(packages->runs, &spec, package, &package->run, why);
    buf_free(&meta);
    return err;
}

static void try(struct package *package)
{
    struct arena arena = {0};
    struct problem why = {0};

    assert(!package->run || package->run->state == RUN_ENDED);
    if (package->run)
        run_forget(package->run);
    package->run = NULL;
    package_log(package, LOG_INFO, "package.install", "a deployment needs it");
    if (start(package, &arena, &why))
        failed(package, why.detail);
    arena_free(&arena);
}

static bool is_busy(const struct package *package)
{
    return package->run && package->run->state != RUN_ENDED;
}

enum package_state packages_need(struct packages *packages, struct str name, struct str version,
                                 const char **ret_dir)
{
    struct package *package;

    *ret_dir = NULL;
    if (!name.len || json_is_null(packages->config->install_command))
        return PACKAGE_READY;
    package = get(packages, name, version.at ? version : STR(""));
    if (!package->ready && !is_busy(package) && packages->loop->mono_ms >= package->next_ms)
        try(package);
    *ret_dir = package->dir;
    return package->ready ? PACKAGE_READY : is_busy(package) ? PACKAGE_BUSY : PACKAGE_FAILED;
}

struct run *packages_run(const struct packages *packages, struct str name, struct str version)
{
    struct arena arena = {0};
    struct package *package =
        map_get(&packages->by_key, key_of(name, version.at ? version : STR(""), &arena));

    arena_free(&arena);
    return package ? package->run : NULL;
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
    if (is_busy(package)) { /* an older try */
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
