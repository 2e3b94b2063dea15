/* Spec, exit record and deadline as files: see runfile.h. */
#include "agent/runfile.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/fd.h"
#include "agent/secret.h"
#include "base/json.h"
#include "model/argv.h"

#define RUNFILE_DEADLINE "deadline"

#define DEADLINE_NEW RUNFILE_DEADLINE ".new"

enum {
    FILE_BYTES_MAX = 16 << 20,
    READ_STEP = 16384,
    NEW_FILE = O_WRONLY | O_CREAT | O_TRUNC,
    FORMAT_KNOWN = 1,
};

const char *const runfile_dirs[RUNFILE_DIRS] = {RUNFILE_WORK, RUNFILE_TMP, RUNFILE_VAR_TMP,
                                                RUNFILE_SECRETS};

/* Integers of the spec and of the exit record: offset and name. */
struct int_field {
    const char *name;
    size_t at;
};

#define SPEC_INT(name)                                                                             \
    {                                                                                              \
#name, offsetof(struct run_spec, name)                                                     \
    }
static const struct int_field spec_ints[] = {
    SPEC_INT(timeout_ms),
    SPEC_INT(timeout_grace_ms),
    SPEC_INT(stop_grace_ms),
    SPEC_INT(deadline_boot_ms),
    SPEC_INT(deadline_sleeps),
    SPEC_INT(deadline_grace_ms),
    SPEC_INT(memory_bytes_max),
    SPEC_INT(pids_max),
    SPEC_INT(cpu_permille_max),
    SPEC_INT(log_bytes_max),
    SPEC_INT(cwd_given),
    SPEC_INT(unfiltered),
    SPEC_INT(private_tmp),
    SPEC_INT(disk_bytes_max),
    SPEC_INT(cpu_weight),
    /* What shims and agents of other releases know it as. */
    {"memory_bytes_spare", offsetof(struct run_spec, memory_bytes_default)},
};

#define EXIT_INT(name)                                                                             \
    {                                                                                              \
#name, offsetof(struct run_exit, name)                                                     \
    }
static const struct int_field exit_ints[] = {
    EXIT_INT(started_ms), EXIT_INT(ended_ms),     EXIT_INT(user_ms),        EXIT_INT(system_ms),
    EXIT_INT(rss_kb_max), EXIT_INT(output_bytes), EXIT_INT(output_dropped),
};

static void put_ints(struct jsonw *w, const void *from, const struct int_field *fields,
                     size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int64_t value;

        memcpy(&value, (const char *)from + fields[i].at, sizeof value);
        jsonw_kint(w, fields[i].name, value);
    }
}

static bool get_ints(const struct json *obj, void *to, const struct int_field *fields, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct json *value = json_get(obj, fields[i].name);
        int64_t number = 0;

        if (value && !json_int(value, &number))
            return false;
        memcpy((char *)to + fields[i].at, &number, sizeof number);
    }
    return true;
}

/* --- bytes --- */

static enum err put_file(int dir_fd, const char *name, struct str text, struct problem *why)
{
    int fd = openat(dir_fd, name, NEW_FILE | O_NOFOLLOW | O_CLOEXEC, 0600);
    int error = fd < 0 ? errno : fd_write_all(fd, text);

    fd_close(fd);
    if (error == 0)
        return ERR_OK;
    return problem_set(why, ERR_IO, "", "The file %s of the run cannot be written: %s.", name,
                       strerror(error));
}

static enum err get_file(int dir_fd, const char *name, struct arena *arena, struct str *ret_text)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    struct stat info;
    char *text;
    size_t len = 0;
    ssize_t got = -1;

    if (fd < 0)
        return errno == ENOENT ? ERR_NOT_FOUND : ERR_IO;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > FILE_BYTES_MAX) {
        close(fd);
        return ERR_IO;
    }
    text = arena_raw(arena, (size_t)info.st_size + 1);
    while (len < (size_t)info.st_size &&
           (got = read(fd, text + len, (size_t)info.st_size - len)) > 0)
        len += (size_t)got;
    close(fd);
    *ret_text = (struct str){.at = text, .len = len};
    return ERR_OK;
}

/* --- the spec --- */

static void put_list(struct jsonw *w, const char *name, const struct str *list, size_t count)
{
    jsonw_karr(w, name);
    for (size_t i = 0; i < count; i++)
        jsonw_str(w, list[i]);
    jsonw_end_arr(w);
}

/* One row per cgroup feature; the position in the list is fixed: shims and agents of other releases
 * look for it there. */
static const struct {
    const char *name;
    int limit; /* enum cgroup_limit; -1: every group has it */
} place_rows[] = {
    {"kill", -1},
    {"cpu", -1}, /* CPU usage */
    {"memory", CGROUP_MEMORY},
    {"pids", CGROUP_PIDS},
    {"quota", CGROUP_CPU},
};

enum err runfile_put(int dir_fd, const struct runfile *file, struct problem *why)
{
    const struct run_spec *spec = &file->spec;
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);
    enum err err;

    assert(spec->key.len > 0 && spec->argc > 0 && file->mark.len > 0);
    jsonw_obj(&w);
    jsonw_kint(&w, "format", FORMAT_KNOWN);
    jsonw_kstr(&w, "key", spec->key);
    jsonw_kstr(&w, "meta", spec->meta);
    put_list(&w, "argv", spec->argv, spec->argc);
    put_list(&w, "env", spec->env, spec->env_count);
    put_list(&w, "secrets", spec->secrets, spec->secret_count);
    jsonw_kstr(&w, "secrets_dir", spec->secrets_dir);
    jsonw_kstr(&w, "cwd", spec->cwd);
    jsonw_kstr(&w, "tmp_of", spec->tmp_of);
    jsonw_kbool(&w, "input", spec->input.at != NULL);
    put_ints(&w, spec, spec_ints, COUNT_OF(spec_ints));
    jsonw_kstr(&w, "dir", file->dir);
    jsonw_kstr(&w, "boot_id", file->boot_id);
    jsonw_kstr(&w, "mark", file->mark);
    jsonw_kint(&w, "created_ms", file->created_ms);
    jsonw_kstr(&w, "run_as", file->run_as);
    jsonw_kobj(&w, "cgroups");
    for (size_t i = 0; i < COUNT_OF(place_rows) && file->place.parent[0]; i++) {
        if (place_rows[i].limit >= 0 && !file->place.limits[place_rows[i].limit])
            continue;
        jsonw_kobj(&w, place_rows[i].name);
        jsonw_kint(&w, "version", 2);
        jsonw_kstr(&w, "parent", str_of(file->place.parent));
        jsonw_end_obj(&w);
    }
    jsonw_end_obj(&w);
    jsonw_end_obj(&w);
    err = put_file(dir_fd, RUNFILE_SPEC, buf_view(&text), why);
    buf_free(&text);
    return err;
}

enum err runfile_put_input(int dir_fd, struct str input, struct problem *why)
{
    return put_file(dir_fd, RUNFILE_INPUT, input, why);
}

static struct str get_str(const struct json *obj, const char *name, struct arena *arena)
{
    const struct json *value = json_get(obj, name);

    return json_type(value) == JSON_STR ? json_str(value, arena) : STR_NONE;
}

static bool get_list(const struct json *list, struct arena *arena, const struct str **ret_list,
                     size_t *ret_count)
{
    const struct json *item = json_first(list);
    struct str *strs;

    if (json_type(list) != JSON_ARR)
        return false;
    strs = list->count ? arena_array(arena, struct str, list->count) : NULL;
    for (uint32_t i = 0; i < list->count; i++, item = json_next(item)) {
        if (json_type(item) != JSON_STR)
            return false;
        strs[i] = json_str(item, arena);
    }
    *ret_list = strs;
    *ret_count = list->count;
    return true;
}

static bool are_env(const struct str *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (list[i].len == 0 || list[i].at[0] == '=' || !memchr(list[i].at, '=', list[i].len))
            return false;
    return true;
}

/* They are file names, so they must not be paths; a spec of an earlier release has none. */
static bool get_secrets(const struct json *list, struct arena *arena, struct run_spec *spec)
{
    if (json_is_null(list))
        return true;
    if (!get_list(list, arena, &spec->secrets, &spec->secret_count))
        return false;
    for (size_t i = 0; i < spec->secret_count; i++)
        if (!str_is_id(secret_name(spec->secrets[i]), ARGV_SECRET_NAME_MAX))
            return false;
    return true;
}

enum err runfile_get(int dir_fd, struct arena *arena, struct runfile *ret_file, struct problem *why)
{
    struct runfile file = {0};
    struct run_spec *spec = &file.spec;
    const struct json *root;
    struct str text;
    bool input = false;
    int64_t format = FORMAT_KNOWN; /* no number: from before formats were numbered */
    enum err err = get_file(dir_fd, RUNFILE_SPEC, arena, &text);

    if (err)
        return problem_set(why, err, "", "The run has no readable spec.");
    err = json_parse(text, arena, &root, why);
    if (err)
        return err;
    if (json_get(root, "format") &&
        (!json_int(json_get(root, "format"), &format) || format < 1 || format > FORMAT_KNOWN))
        return problem_set(why, ERR_BAD_REQUEST, "",
                           "The spec of the run was written by a newer berth: it has format %d, "
                           "this one knows up to %d. Restart berth-spawner.",
                           (int)format, FORMAT_KNOWN);
    spec->key = get_str(root, "key", arena);
    spec->meta = get_str(root, "meta", arena);
    spec->cwd = get_str(root, "cwd", arena);
    spec->tmp_of = get_str(root, "tmp_of", arena);
    spec->secrets_dir = get_str(root, "secrets_dir", arena);
    file.dir = get_str(root, "dir", arena);
    file.boot_id = get_str(root, "boot_id", arena);
    file.mark = get_str(root, "mark", arena);
    file.run_as = get_str(root, "run_as", arena);
    if (!str_is_id(spec->key, RUN_KEY_MAX) ||
        (spec->tmp_of.at && !str_is_id(spec->tmp_of, RUN_KEY_MAX)) || file.mark.len == 0 ||
        file.dir.len == 0 || !get_list(json_get(root, "argv"), arena, &spec->argv, &spec->argc) ||
        spec->argc == 0 || !get_list(json_get(root, "env"), arena, &spec->env, &spec->env_count) ||
        !are_env(spec->env, spec->env_count) ||
        !get_secrets(json_get(root, "secrets"), arena, spec) ||
        !json_bool(json_get(root, "input"), &input) ||
        !get_ints(root, spec, spec_ints, COUNT_OF(spec_ints)) ||
        !json_int(json_get(root, "created_ms"), &file.created_ms))
        return problem_set(why, ERR_BAD_REQUEST, "", "The spec of the run is not complete.");
    spec->input = input ? STR("") : STR_NONE;
    for (size_t i = 0; i < COUNT_OF(place_rows); i++) {
        const struct json *row = json_get(json_get(root, "cgroups"), place_rows[i].name);
        int64_t version = 0;

        if (!json_int(json_get(row, "version"), &version) || version != 2)
            continue; /* an earlier release also made groups of v1 */
        if (place_rows[i].limit >= 0)
            file.place.limits[place_rows[i].limit] = file.place.parent[0] != '\0';
        else if (!str_copy(get_str(row, "parent", arena), file.place.parent, CGROUP_PATH_MAX))
            file.place.parent[0] = '\0';
    }
    *ret_file = file;
    return ERR_OK;
}

/* --- the exit record --- */

enum err runfile_reserve_exit(int dir_fd, struct str key, struct str meta, struct problem *why)
{
    /* One character takes at most six in JSON; names and numbers take far less than the rest. */
    size_t text_max = RUN_TAIL_BYTES + sizeof((struct run_exit *)NULL)->detail + meta.len;
    size_t bytes_max = 6 * text_max + key.len + 1024;
    int fd = openat(dir_fd, RUNFILE_EXIT, NEW_FILE | O_NOFOLLOW | O_CLOEXEC, 0600);
    int error = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)bytes_max);

    fd_close(fd);
    if (error == 0)
        return ERR_OK;
    return problem_set(why, ERR_IO, "", "There is no room for the run's exit record: %s.",
                       strerror(error));
}

static void compose_exit(const struct run_exit *exit, struct str key, struct str meta,
                         struct buf *text)
{
    struct jsonw w = jsonw_to(text);

    assert(exit->reason[0] && exit->tail.len <= RUN_TAIL_BYTES);
    assert(exit->output_dropped <= exit->output_bytes);
    jsonw_obj(&w);
    jsonw_kstr(&w, "key", key);
    jsonw_kstr(&w, "meta", meta);
    jsonw_kstr(&w, "reason", str_of(exit->reason));
    jsonw_kstr(&w, "detail", str_of(exit->detail));
    jsonw_kint(&w, "exit_code", exit->exit_code);
    jsonw_kint(&w, "signal", exit->signal);
    put_ints(&w, exit, exit_ints, COUNT_OF(exit_ints));
    jsonw_kstr(&w, "tail", exit->tail.at ? exit->tail : STR(""));
    jsonw_end_obj(&w);
}

enum err runfile_put_exit(int dir_fd, const struct run_exit *exit, struct str key, struct str meta)
{
    struct buf text = {0};
    int fd, error;

    compose_exit(exit, key, meta, &text);
    /* Written in place, where the room is reserved. A record that a power failure left torn does
     * not parse, which counts as no record; and it is only read after the shim has reported it or
     * is gone. */
    fd = openat(dir_fd, RUNFILE_EXIT, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    error = fd < 0 ? errno : fd_write_all(fd, buf_view(&text));
    if (error == 0 &&
        (ftruncate(fd, (off_t)text.len) != 0 || fdatasync(fd) != 0 || fsync(dir_fd) != 0))
        error = errno;
    if (error != 0 && fd >= 0) {
        ssize_t ignored = pwrite(fd, "", 1, 0); /* makes the record invalid */

        (void)ignored;
    }
    fd_close(fd);
    buf_free(&text);
    return error == 0 ? ERR_OK : ERR_IO;
}

void runfile_leave_exit(int dir_fd, const struct run_exit *exit, struct str key, struct str meta)
{
    struct buf text = {0};

    compose_exit(exit, key, meta, &text);
    put_file(dir_fd, RUNFILE_EXIT, buf_view(&text), NULL);
    buf_free(&text);
}

enum err runfile_get_exit(int dir_fd, struct arena *arena, struct run_exit *ret_exit,
                          struct str *ret_key, struct str *ret_meta)
{
    struct run_exit exit = {0};
    const struct json *root;
    struct str text;
    int64_t code, signal;

    if (get_file(dir_fd, RUNFILE_EXIT, arena, &text) || json_parse(text, arena, &root, NULL))
        return ERR_NOT_FOUND;
    if (!json_int(json_get(root, "exit_code"), &code) ||
        !json_int(json_get(root, "signal"), &signal) ||
        !get_ints(root, &exit, exit_ints, COUNT_OF(exit_ints)) ||
        !str_copy(get_str(root, "reason", arena), exit.reason, sizeof exit.reason) ||
        exit.reason[0] == '\0')
        return ERR_NOT_FOUND;
    str_copy(get_str(root, "detail", arena), exit.detail, sizeof exit.detail);
    exit.exit_code = (int)code;
    exit.signal = (int)signal;
    exit.tail = get_str(root, "tail", arena);
    if (exit.tail.len > RUN_TAIL_BYTES)
        exit.tail.len = 0;
    *ret_exit = exit;
    *ret_key = get_str(root, "key", arena);
    *ret_meta = get_str(root, "meta", arena);
    return ERR_OK;
}

/* --- the result --- */

enum { NOT_THERE = -1, NO_FILE = -2 };

int runfile_open_result(int dir_fd)
{
    int fd = openat(dir_fd, RUNFILE_WORK "/" RUNFILE_RESULT_LEFT,
                    O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat info;

    if (fd < 0) /* a link or a socket; or the job took away its own permission */
        return errno == ELOOP || errno == ENXIO ? NO_FILE : NOT_THERE;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
        return fd;
    close(fd);
    return NO_FILE;
}

/* A file that is too large is replaced by one of the same size without its bytes, anything that is
 * not a file by an empty directory: from these the reader sees what was wrong. */
void runfile_keep_result(int dir_fd, int left_fd)
{
    char text[RUNFILE_RESULT_MAX + 1];
    size_t len = 0;
    ssize_t got = 0;
    int fd, error;

    if (left_fd == NO_FILE)
        mkdirat(dir_fd, RUNFILE_RESULT, 0700);
    if (left_fd < 0)
        return;
    while (len < sizeof text && (got = read(left_fd, text + len, sizeof text - len)) > 0)
        len += (size_t)got;
    close(left_fd);
    if (got < 0)
        return;
    fd = openat(dir_fd, RUNFILE_RESULT, NEW_FILE | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    if (len > RUNFILE_RESULT_MAX)
        error = ftruncate(fd, RUNFILE_RESULT_MAX + 1) == 0 ? 0 : errno;
    else
        error = fd_write_all(fd, (struct str){.at = text, .len = len});
    if (error != 0 || fdatasync(fd) != 0)
        unlinkat(dir_fd, RUNFILE_RESULT, 0);
    close(fd);
}

/* --- secrets --- */

void runfile_remove_secrets(int dir_fd, const struct run_spec *spec)
{
    char path[sizeof RUNFILE_SECRETS + ARGV_SECRET_NAME_MAX + 1];

    for (size_t i = 0; i < spec->secret_count; i++) {
        snprintf(path, sizeof path, RUNFILE_SECRETS "/" STR_FMT,
                 STR_ARG(secret_name(spec->secrets[i])));
        unlinkat(dir_fd, path, 0);
    }
    unlinkat(dir_fd, RUNFILE_SECRETS, AT_REMOVEDIR);
}

/* --- the deadline --- */

enum err runfile_put_deadline(int dir_fd, int64_t boot_ms)
{
    char text[24];
    enum err err;

    assert(boot_ms >= 0);
    snprintf(text, sizeof text, "%" PRId64, boot_ms);
    err = put_file(dir_fd, DEADLINE_NEW, str_of(text), NULL);
    if (err)
        return err;
    return renameat(dir_fd, DEADLINE_NEW, dir_fd, RUNFILE_DEADLINE) == 0 ? ERR_OK : ERR_IO;
}

bool runfile_get_deadline(int dir_fd, int64_t *ret_boot_ms)
{
    return cgroup_file_int(dir_fd, RUNFILE_DEADLINE, NULL, ret_boot_ms);
}

struct str runfile_boot_id(struct arena *arena)
{
    struct buf text = {0};
    struct str id = STR("");

    if (cgroup_file_get(AT_FDCWD, "/proc/sys/kernel/random/boot_id", &text) == 0)
        id = arena_str(arena, str_trim(str_cut(&(struct str){text.at, text.len}, '\n')));
    buf_free(&text);
    return id;
}
