/* The data directory and the node id kept in it, and the token and certificate files. */
#include "agent/identity.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/fd.h"
#include "agent/runfile.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

enum { IDENTITY_MAX = 128 };

/* --- the data directory --- */

#define ID_FILE       "node_id"
#define FORMAT_FILE   "format"
#define INSTANCE_FILE "instance"

enum { FORMAT_KNOWN = 1, INSTANCE_DIGITS = 32, LINE_BYTES_MAX = 256 };

enum err identity_dir(struct str data_dir, struct arena *arena, const char **ret_dir,
                      struct problem *why)
{
    char *path = arena_cstr(arena, data_dir);
    mode_t mask = umask(022);
    char *real = NULL;
    int error = 0;

    /* Every directory on the path; one that already exists is fine. */
    for (char *slash = strchr(path + 1, '/'); slash && !error; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0755) != 0 && errno != EEXIST)
            error = errno;
        else
            *slash = '/';
    }
    if (!error && ((mkdir(path, 0711) != 0 && errno != EEXIST) || !(real = realpath(path, NULL))))
        error = errno;
    umask(mask);
    if (error)
        return problem_set(why, ERR_BAD_CONFIG, "data_dir", "Cannot make the directory %s: %s.",
                           path, strerror(error));
    *ret_dir = arena_cstr(arena, str_of(real));
    free(real);
    return ERR_OK;
}

struct str identity_from_host(struct str host, struct arena *arena)
{
    char *id = arena_cstr(arena, host);
    size_t len = host.len < IDENTITY_MAX ? host.len : IDENTITY_MAX;

    for (size_t i = 0; i < len; i++)
        if (!str_is_id((struct str){.at = &id[i], .len = 1}, 1) && (id[i] != '.' || i == 0))
            id[i] = '-';
    id[len] = 0;
    return str_is_id(str_of(id), IDENTITY_MAX) ? str_of(id) : STR("node");
}

/* The first line of a file. */
static struct str read_line(int dir_fd, const char *name, struct arena *arena)
{
    char text[LINE_BYTES_MAX];
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text);

    fd_close(fd);
    if (got <= 0)
        return STR_NONE;
    struct str rest = {.at = text, .len = (size_t)got};
    return arena_str(arena, str_trim(str_cut(&rest, '\n')));
}

/* Written atomically, and durable across a power failure. */
static int write_line(int dir_fd, const char *name, struct str text)
{
    static const char new[] = "line.new";
    int fd = openat(dir_fd, new, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int error = 0;

    if (fd < 0)
        return errno;
    if (dprintf(fd, STR_FMT "\n", STR_ARG(text)) < 0 || fsync(fd) != 0)
        error = errno;
    close(fd);
    if (!error && renameat(dir_fd, new, dir_fd, name) != 0)
        error = errno;
    if (!error && fsync(dir_fd) != 0)
        error = errno;
    return error;
}

enum err identity_format(const char *dir, struct arena *arena, struct problem *why)
{
    int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct str kept = dir_fd < 0 ? STR_NONE : read_line(dir_fd, FORMAT_FILE, arena);
    int error = dir_fd < 0 ? errno : 0;
    int64_t format = FORMAT_KNOWN;

    if (!error && !kept.at)
        error = write_line(dir_fd, FORMAT_FILE, arena_fmt(arena, "%d", FORMAT_KNOWN));
    fd_close(dir_fd);
    if (error)
        return problem_set(why, ERR_IO, "data_dir", "Cannot write %s/" FORMAT_FILE ": %s.", dir,
                           strerror(error));
    if (kept.at && (!str_int(kept, &format) || format < 1))
        return problem_set(why, ERR_BAD_CONFIG, "data_dir",
                           "%s/" FORMAT_FILE " does not hold a number.", dir);
    if (format > FORMAT_KNOWN)
        return problem_set(why, ERR_BAD_CONFIG, "data_dir",
                           "%s was written by a newer berth: its files have format %d, this one "
                           "knows up to %d. Use that release, or another data_dir.",
                           dir, (int)format, FORMAT_KNOWN);
    return ERR_OK;
}

enum err identity_id(const char *dir, struct str given, struct arena *arena, struct str *ret_id,
                     struct problem *why)
{
    int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct str kept = dir_fd < 0 ? STR_NONE : read_line(dir_fd, ID_FILE, arena);
    struct str id = given.at ? given : kept;
    char host[HOST_NAME_MAX + 1] = "";
    int error = dir_fd < 0 ? errno : 0;

    if (kept.at && !str_is_id(kept, IDENTITY_MAX)) {
        close(dir_fd);
        return problem_set(why, ERR_BAD_CONFIG, "node_id",
                           "%s/" ID_FILE " does not hold a node id.", dir);
    }
    if (kept.at && !str_eq(id, kept)) {
        close(dir_fd);
        return problem_set(why, ERR_BAD_CONFIG, "node_id",
                           "%s belongs to node " STR_FMT ", not " STR_FMT
                           ". Another node needs another data_dir.",
                           dir, STR_ARG(kept), STR_ARG(id));
    }
    if (!id.at) {
        gethostname(host, sizeof host - 1);
        id = identity_from_host(str_of(host), arena);
    }
    if (!error && !kept.at)
        error = write_line(dir_fd, ID_FILE, id);
    fd_close(dir_fd);
    if (error)
        return problem_set(why, ERR_IO, "node_id", "Cannot write %s/" ID_FILE ": %s.", dir,
                           strerror(error));
    *ret_id = id;
    return ERR_OK;
}

enum err identity_instance(const char *dir, struct arena *arena, struct str *ret_instance,
                           struct problem *why)
{
    int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct str kept = STR_NONE, place = STR_NONE;
    int error = 0;
    struct stat stat;
    struct rnd rnd;

    if (dir_fd < 0 || fstat(dir_fd, &stat) != 0) {
        error = errno;
    } else {
        /* Where a stored instance is valid: a copy of the directory is another place. */
        place = arena_fmt(arena, STR_FMT " %llu:%llu ", STR_ARG(runfile_boot_id(arena)),
                          (unsigned long long)stat.st_dev, (unsigned long long)stat.st_ino);
        kept = read_line(dir_fd, INSTANCE_FILE, arena);
    }
    if (place.at && kept.at && str_starts(kept, place) && kept.len == place.len + INSTANCE_DIGITS) {
        *ret_instance = (struct str){.at = kept.at + place.len, .len = INSTANCE_DIGITS};
    } else if (place.at) {
        rnd_seed_os(&rnd);
        *ret_instance = arena_fmt(arena, "%016llx%016llx", (unsigned long long)rnd_next(&rnd),
                                  (unsigned long long)rnd_next(&rnd));
        error =
            write_line(dir_fd, INSTANCE_FILE,
                       arena_fmt(arena, STR_FMT STR_FMT, STR_ARG(place), STR_ARG(*ret_instance)));
    }
    fd_close(dir_fd);
    if (error == ENOSPC || error == EDQUOT || error == EROFS) {
        /* The instance then changes at the next start, which has to wait for the end of a lease. */
        log_event(LOG_WARN, "agent.instance_not_kept", KC("reason", strerror(error)));
        error = 0;
    }
    if (error)
        return problem_set(why, ERR_IO, "data_dir", "Cannot write %s/" INSTANCE_FILE ": %s.", dir,
                           strerror(error));
    return ERR_OK;
}

/* --- token and certificate --- */

enum err access_read_token(const char *path, struct arena *arena, struct str *ret_token,
                           struct problem *why)
{
    struct str text, token;
    enum err err = file_read(path, ACCESS_TOKEN_MAX, arena, &text, why);

    if (err) {
        why->err = ERR_BAD_CONFIG;
        return ERR_BAD_CONFIG;
    }
    token = str_cut(&text, '\n');
    if (token.len && token.at[token.len - 1] == '\r')
        token.len--;
    if (!token.len)
        return problem_set(why, ERR_BAD_CONFIG, "token_file", "%s is empty.", path);
    if (!str_is_text(token))
        return problem_set(why, ERR_BAD_CONFIG, "token_file",
                           "%s: the token must be one line of text.", path);
    *ret_token = token;
    return ERR_OK;
}

void access_refresh(struct access *access)
{
    struct arena arena = {0};
    struct problem why;
    struct str token;

    if (access->token_file &&
        access_read_token(access->token_file, &arena, &token, &why) == ERR_OK) {
        memcpy(access->read, token.at, token.len);
        access->token = (struct str){.at = access->read, .len = token.len};
        explicit_bzero((char *)token.at, token.len);
    }
    arena_free(&arena);
}

enum err access_tls(const struct access *access, struct net_tls **ret_tls, struct problem *why)
{
    struct net_tls *tls;
    enum err err = net_tls_client(access->ca_file, &tls, why);

    assert(access->tls && !access->cert_file == !access->key_file);
    if (err)
        return err;
    if (access->cert_file)
        err = net_tls_identity(tls, access->cert_file, access->key_file, why);
    if (err) {
        net_tls_free(tls);
        return err;
    }
    *ret_tls = tls;
    return ERR_OK;
}
