/* The file that lists what is loaded. Jobs may write it, so it is not trusted: links are not
 * followed, pipes are not waited for, and a list is reported only if all of it is valid. */
#include "agent/loaded.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "model/warm.h"

/* --- on a pool thread --- */

static int64_t read_all(int fd, char *to, size_t max)
{
    size_t len = 0;

    while (len < max) {
        ssize_t got = read(fd, to + len, max - len);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        len += (size_t)got;
    }
    return (int64_t)len;
}

static void look(struct loop_job *job)
{
    struct loaded *loaded = container_of(job, struct loaded, job);
    struct stat stat;
    int fd;

    loaded->result = 0;
    if (!loaded->path[0])
        return;
    fd = open(loaded->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        loaded->result = errno == ENOENT ? 0 : -errno;
        return;
    }
    if (fstat(fd, &stat) != 0)
        loaded->result = -errno;
    else if (!S_ISREG(stat.st_mode))
        loaded->result = -EINVAL;
    else
        loaded->result = read_all(fd, loaded->read, sizeof loaded->read);
    if (loaded->result > LOADED_FILE_BYTES_MAX)
        loaded->result = -EFBIG;
    close(fd);
}

/* --- on the loop --- */

static void refuse(const struct loaded *loaded, const char *reason)
{
    log_event(LOG_WARN, "agent.loaded_refused", KC("path", loaded->path), KC("reason", reason));
}

/* Converts lines to a JSON list; NULL, or what is wrong with them. */
static const char *write_list(struct str text, struct buf *to)
{
    struct jsonw w = jsonw_to(to);
    size_t count = 0;

    jsonw_arr(&w);
    while (text.len) {
        struct str name = str_trim(str_cut(&text, '\n'));

        if (!name.len)
            continue;
        if (!warm_is_name(name))
            return "a line is not one of " WARM_NAME_RULE;
        if (++count > WARM_LOADED_MAX)
            return "more than 64 names";
        jsonw_str(&w, name);
    }
    jsonw_end_arr(&w);
    return to->len > WARM_LIST_BYTES_MAX ? "more than 4096 bytes as a list" : NULL;
}

static void looked(struct loop_job *job)
{
    struct loaded *loaded = container_of(job, struct loaded, job);
    bool news = loaded->result != loaded->last_result;
    int error = (int)-loaded->result;
    struct buf list = {0};

    assert(loaded->busy);
    loaded->busy = false;
    loaded->last_result = loaded->result;
    if (loaded->result < 0) { /* the list sent before stays: it is not known to be wrong */
        if (news)
            refuse(loaded, error == ELOOP    ? "it is a link"
                           : error == EINVAL ? "it is no file"
                           : error == EFBIG  ? "more than 8192 bytes"
                                             : strerror(error));
        return;
    }
    struct str text = {.at = loaded->read, .len = (size_t)loaded->result};
    if (loaded->known && str_eq(text, buf_view(&loaded->text)))
        return;
    loaded->known = true;
    buf_clear(&loaded->text);
    buf_str(&loaded->text, text);
    const char *wrong = write_list(text, &list);
    if (wrong)
        refuse(loaded, wrong);
    if (!wrong && !str_eq(buf_view(&list), buf_view(&loaded->list))) {
        buf_clear(&loaded->list);
        buf_str(&loaded->list, buf_view(&list));
        loaded->changed(loaded);
    }
    buf_free(&list);
}

void loaded_init(struct loaded *loaded, struct loop *loop, void (*changed)(struct loaded *loaded))
{
    *loaded =
        (struct loaded){.loop = loop, .changed = changed, .job = {.run = look, .done = looked}};
}

void loaded_done(struct loaded *loaded)
{
    assert(!loaded->busy);
    buf_free(&loaded->text);
    buf_free(&loaded->list);
}

void loaded_look(struct loaded *loaded, struct str path)
{
    if (loaded->busy || (!path.at && loaded->known && !loaded->text.len))
        return;
    assert(path.len <= LOADED_PATH_MAX);
    loaded->path[0] = 0;
    if (path.at)
        memcpy(loaded->path, path.at, path.len);
    loaded->path[path.len] = 0;
    loaded->busy = true;
    loop_work(loaded->loop, &loaded->job);
}

void loaded_write(const struct loaded *loaded, struct jsonw *w)
{
    if (loaded->list.len)
        jsonw_kraw(w, "loaded", buf_view(&loaded->list));
}
