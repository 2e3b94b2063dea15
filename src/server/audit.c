/* A ring of entries on the main thread, and the file behind it. */
#include "server/audit.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

struct audit {
    char path[4096]; /* "" : there is no file */
    int fd;
    int64_t size;
    struct audit_entry *ring; /* AUDIT_KEPT; entry n stands at n % AUDIT_KEPT */
    int64_t last;             /* id of the newest; 0: none yet */
    int64_t first;            /* id of the oldest that is kept */
};

/* The texts of an entry, by the name they have in JSON. */
static const struct {
    const char *name;
    size_t offset;
    size_t size;
} texts[] = {
#define TEXT(member)                                                                               \
    {                                                                                              \
#member, offsetof(struct audit_entry, member), sizeof(((struct audit_entry *)0)->member)   \
    }
    TEXT(who), TEXT(peer), TEXT(action), TEXT(target), TEXT(request_id), TEXT(result),
#undef TEXT
};

static void write_entry(struct buf *buf, const struct audit_entry *entry)
{
    struct jsonw w = jsonw_to(buf);

    jsonw_obj(&w);
    jsonw_kint(&w, "id", entry->id);
    jsonw_kint(&w, "at_ms", entry->at_ms);
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        const char *text = (const char *)entry + texts[i].offset;

        jsonw_kstr(&w, texts[i].name, *text ? str_of(text) : STR_NONE);
    }
    jsonw_kint(&w, "status", entry->status);
    jsonw_end_obj(&w);
}

static bool read_entry(struct str line, struct audit_entry *ret_entry)
{
    struct audit_entry entry = {0};
    struct arena arena = {0};
    const struct json *json;
    int64_t status = 0;
    bool good = json_parse(line, &arena, &json, NULL) == ERR_OK &&
                json_int(json_get(json, "id"), &entry.id) && entry.id > 0 &&
                json_int(json_get(json, "at_ms"), &entry.at_ms);

    for (size_t i = 0; good && i < COUNT_OF(texts); i++)
        str_copy(json_str(json_get(json, texts[i].name), &arena), (char *)&entry + texts[i].offset,
                 texts[i].size);
    if (good && json_int(json_get(json, "status"), &status))
        entry.status = (int)status;
    arena_free(&arena);
    *ret_entry = entry;
    return good;
}

static void keep(struct audit *audit, const struct audit_entry *entry)
{
    assert(entry->id > audit->last);
    if (audit->first == 0 || entry->id != audit->last + 1)
        audit->first = entry->id; /* a gap in the file: what stood before is not found by its id */
    audit->last = entry->id;
    audit->ring[entry->id % AUDIT_KEPT] = *entry;
    if (audit->last - audit->first >= AUDIT_KEPT)
        audit->first = audit->last - AUDIT_KEPT + 1;
}

/* Lines that cannot be read, as a last one that was cut by a crash, are left out. */
static void load(struct audit *audit, const char *path)
{
    FILE *file = fopen(path, "re");
    struct audit_entry entry;
    char *line = NULL;
    size_t size = 0;
    ssize_t len;

    if (!file)
        return;
    while ((len = getline(&line, &size, file)) > 0) {
        struct str text = {.at = line, .len = (size_t)len};

        if (text.at[text.len - 1] == '\n')
            text.len--;
        if (read_entry(text, &entry) && entry.id > audit->last)
            keep(audit, &entry);
    }
    free(line);
    fclose(file);
}

static void open_file(struct audit *audit)
{
    struct stat st;

    audit->fd = open(audit->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    audit->size = audit->fd >= 0 && fstat(audit->fd, &st) == 0 ? st.st_size : 0;
    if (audit->fd < 0)
        log_event(LOG_WARN, "audit.no_file", KC("path", audit->path),
                  KC("reason", strerror(errno)));
}

struct audit *audit_open(struct str data_dir)
{
    struct audit *audit = mem_new(struct audit);
    char old[sizeof audit->path + 2];

    audit->ring = mem_array(struct audit_entry, AUDIT_KEPT);
    audit->fd = -1;
    if (snprintf(audit->path, sizeof audit->path, STR_FMT "/audit.jsonl", STR_ARG(data_dir)) >=
        (int)sizeof audit->path)
        return audit;
    snprintf(old, sizeof old, "%s.1", audit->path);
    load(audit, old);
    load(audit, audit->path);
    open_file(audit);
    return audit;
}

void audit_free(struct audit *audit)
{
    if (!audit)
        return;
    if (audit->fd >= 0)
        close(audit->fd);
    free(audit->ring);
    free(audit);
}

static void rotate(struct audit *audit)
{
    char old[sizeof audit->path + 2];

    snprintf(old, sizeof old, "%s.1", audit->path);
    close(audit->fd);
    if (rename(audit->path, old) != 0)
        log_event(LOG_WARN, "audit.not_rotated", KC("reason", strerror(errno)));
    open_file(audit);
}

/* One write a line: a crash leaves whole lines and at most one that is cut. */
static void append(struct audit *audit, const struct audit_entry *entry)
{
    struct buf line = {0};

    if (audit->fd >= 0 && audit->size >= AUDIT_FILE_BYTES_MAX)
        rotate(audit);
    if (audit->fd < 0)
        return;
    write_entry(&line, entry);
    buf_char(&line, '\n');
    if (write(audit->fd, line.at, line.len) != (ssize_t)line.len || fdatasync(audit->fd) != 0)
        log_event(LOG_ERROR, "audit.not_written", KC("reason", strerror(errno)));
    audit->size += (int64_t)line.len;
    buf_free(&line);
}

/* --- messages --- */

struct note {
    struct msg msg;
    struct server *server;
    struct audit_entry entry;
};

static void note_here(struct msg *msg)
{
    struct note *note = container_of(msg, struct note, msg);
    struct audit *audit = note->server->audit;

    note->entry.id = audit->last + 1;
    keep(audit, &note->entry);
    append(audit, &note->entry);
    free(note);
}

void audit_note(struct worker *from, const struct audit_entry *entry)
{
    struct note *note = mem_new(struct note);

    assert(entry->action[0] && entry->at_ms > 0);
    log_event(LOG_INFO, "audit", KC("who", entry->who), KC("action", entry->action),
              KC("target", entry->target), KC("result", entry->result), KI("status", entry->status),
              KC("request_id", entry->request_id), KC("peer", entry->peer));
    *note = (struct note){.msg = {.run = note_here}, .server = from->server, .entry = *entry};
    inbox_post(&from->server->errands, &note->msg);
}

static bool wanted(const struct audit_query *query, const struct audit_entry *entry)
{
    return (!query->who.at || str_is(query->who, entry->who)) &&
           (!query->action.at || str_is(query->action, entry->action)) &&
           (!query->target.at || str_is(query->target, entry->target));
}

static void query_over(struct msg *msg)
{
    struct audit_query *query = container_of(msg, struct audit_query, msg);

    query->done(query);
}

static void query_here(struct msg *msg)
{
    struct audit_query *query = container_of(msg, struct audit_query, msg);
    const struct audit *audit = query->from->server->audit;
    int64_t id = query->before && query->before <= audit->last ? query->before - 1 : audit->last;
    int64_t next = 0;
    size_t count = 0;

    buf_str(&query->answer, STR("{\"audit\":["));
    for (; audit->first && id >= audit->first && !next; id--) {
        const struct audit_entry *entry = &audit->ring[id % AUDIT_KEPT];

        if (!wanted(query, entry))
            continue;
        if (count == query->max) {
            next = id + 1;
            break;
        }
        if (count++ > 0)
            buf_char(&query->answer, ',');
        write_entry(&query->answer, entry);
    }
    if (next)
        buf_fmt(&query->answer, "],\"next_cursor\":\"%" PRId64 "\"}", next);
    else
        buf_str(&query->answer, STR("],\"next_cursor\":null}"));
    query->msg.run = query_over;
    inbox_post(&query->from->loop.inbox, &query->msg);
}

void audit_ask(struct audit_query *query)
{
    assert(query->from && query->done && query->max > 0);
    query->msg.run = query_here;
    inbox_post(&query->from->server->errands, &query->msg);
}
