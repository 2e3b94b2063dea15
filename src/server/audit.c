/* A ring of entries on the main thread, and the files they are written to. /v1/audit: who did what,
 * newest first. */
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

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/api.h"
#include "server/audit_chain.h"

/* The entries of one kind. */
struct trail {
    char path[AUDIT_PATH_MAX]; /* "": there is no file */
    int fd;
    bool cut; /* the file ends within a line: a write failed, or the server crashed */
    int64_t size;
    struct audit_chain *chain; /* NULL: its entries are not signed */
    struct buf lines;          /* of this batch, not in the file yet */
    int64_t line_count;
    struct audit_entry *ring; /* AUDIT_KEPT of them; entry number n is at n % AUDIT_KEPT */
    int64_t put;              /* number of entries so far */
};

struct audit {
    struct trail trails[AUDIT_KINDS];
    struct audit_chain chain; /* of the changes */
    struct audit_check check; /* the last check, */
    int64_t checked_ms;       /* and when */
    int error;                /* errno of the file of changes in this batch; 0: none */
    int64_t last;             /* id of the newest entry; 0: none yet */
    struct msg *left;         /* from server->notes: taken but not run yet */
    struct mail back; /* requests of this batch: returned to their loops once it is written */
    /* shared with the loops */
    _Atomic int64_t queued[AUDIT_KINDS];
    _Atomic int64_t left_out[AUDIT_KINDS]; /* calls dropped and not reported yet */
};

/* --- the log --- */

static const struct {
    const char *name, *file;
} kinds[AUDIT_KINDS] = {
    [AUDIT_CHANGE] = {.name = "change", .file = "audit.jsonl"},
    [AUDIT_REFUSED] = {.name = "refused", .file = "audit-refused.jsonl"},
};

enum audit_kind audit_kind_of(int status)
{
    return status >= 400 && status < 500 ? AUDIT_REFUSED : AUDIT_CHANGE;
}

static bool audit_kind_parse(struct str name, enum audit_kind *ret_kind)
{
    for (int i = 0; i < AUDIT_KINDS; i++)
        if (str_is(name, kinds[i].name)) {
            *ret_kind = (enum audit_kind)i;
            return true;
        }
    return false;
}

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
    TEXT(who),        TEXT(peer),   TEXT(action),      TEXT(target),
    TEXT(request_id), TEXT(result), TEXT(body_sha256),
#undef TEXT
};

/* Everything but the MAC. */
static void write_bare(struct buf *buf, const struct audit_entry *entry)
{
    struct jsonw w = jsonw_to(buf);

    jsonw_obj(&w);
    jsonw_kint(&w, "id", entry->id);
    jsonw_kint(&w, "at_ms", entry->at_ms);
    jsonw_kstr(&w, "kind", str_of(kinds[entry->kind].name));
    jsonw_kint(&w, "count", entry->count);
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        const char *text = (const char *)entry + texts[i].offset;

        jsonw_kstr(&w, texts[i].name, *text ? str_of(text) : STR_NONE);
    }
    jsonw_kint(&w, "status", entry->status);
    jsonw_end_obj(&w);
}

static bool read_entry(struct str line, struct audit_entry *ret_entry)
{
    struct audit_entry entry = {.count = 1};
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
    if (good) {
        json_int(json_get(json, "count"), &entry.count);
        str_copy(json_str(json_get(json, "mac"), &arena), entry.mac, sizeof entry.mac);
        /* A line from before there were kinds does not name one. */
        if (!audit_kind_parse(json_str(json_get(json, "kind"), &arena), &entry.kind))
            entry.kind = audit_kind_of(entry.status);
    }
    arena_free(&arena);
    *ret_entry = entry;
    return good;
}

static struct audit_entry *entry_at(const struct trail *trail, int64_t number)
{
    assert(number >= 0 && number < trail->put && number >= trail->put - AUDIT_KEPT);
    return &trail->ring[number % AUDIT_KEPT];
}

static void keep(struct audit *audit, const struct audit_entry *entry)
{
    struct trail *trail = &audit->trails[entry->kind];

    trail->ring[trail->put % AUDIT_KEPT] = *entry;
    trail->put++;
    if (entry->id > audit->last)
        audit->last = entry->id;
}

/* Calls `use` for every line of a file, without its line end. */
static void each_line(const char *path, void (*use)(struct audit *audit, struct str line),
                      struct audit *audit)
{
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t size = 0;
    ssize_t len;

    if (!file)
        return;
    while ((len = getline(&line, &size, file)) > 0) {
        struct str text = {.at = line, .len = (size_t)len};

        if (text.at[text.len - 1] == '\n')
            text.len--;
        use(audit, text);
    }
    free(line);
    fclose(file);
}

/* Skips lines that cannot be parsed, such as one that was cut by a crash. */
static void load_line(struct audit *audit, struct str line)
{
    struct audit_entry entry;
    const struct trail *trail;

    if (!read_entry(line, &entry))
        return;
    trail = &audit->trails[entry.kind];
    if (trail->put == 0 || entry.id > entry_at(trail, trail->put - 1)->id)
        keep(audit, &entry);
}

static void check_line(struct audit *audit, struct str line)
{
    struct audit_entry entry;
    /* A signed line need not be parsed: either its MAC matches or the check fails. */
    bool change =
        !audit_line_signed(line) && read_entry(line, &entry) && entry.kind == AUDIT_CHANGE;

    audit_check_line(&audit->check, line, change ? entry.id : 0);
}

/* 0 or an errno. */
static int open_file(struct trail *trail)
{
    struct stat st = {0};
    char last = '\n';

    if (!trail->path[0])
        return EBUSY; /* it belongs to another server */
    trail->fd = open(trail->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (trail->fd < 0) {
        int error = errno;

        log_event(LOG_WARN, "audit.no_file", KC("path", trail->path),
                  KC("reason", strerror(error)));
        return error;
    }
    if (fstat(trail->fd, &st) == 0 && st.st_size > 0 &&
        pread(trail->fd, &last, 1, st.st_size - 1) != 1)
        last = 0;
    trail->size = st.st_size;
    trail->cut = last != '\n';
    return 0;
}

static void old_path(const struct trail *trail, char to[sizeof trail->path + 2])
{
    snprintf(to, sizeof trail->path + 2, "%s.1", trail->path);
}

/* The lines of the rotated file, then of the current one. */
static void each_line_of(struct trail *trail, void (*use)(struct audit *audit, struct str line),
                         struct audit *audit)
{
    char old[sizeof trail->path + 2];

    if (!trail->path[0])
        return;
    old_path(trail, old);
    each_line(old, use, audit);
    each_line(trail->path, use, audit);
}

static void check(struct audit *audit)
{
    audit->check = audit_check_begin(&audit->chain);
    audit->checked_ms = clock_wall_ms();
    if (!audit->chain.key[0])
        return;
    each_line_of(&audit->trails[AUDIT_CHANGE], check_line, audit);
    audit_check_end(&audit->check);
    if (audit->check.reason)
        log_event(LOG_ERROR, "audit.broken", KI("id", audit->check.broken_id),
                  KC("reason", audit->check.reason));
}

/* The file of changes comes first: earlier versions wrote both kinds to it, and those entries are
 * older than everything in the other file. */
struct audit *audit_open(struct str data_dir)
{
    struct audit *audit = mem_new(struct audit);
    bool ours = audit_chain_claim(&audit->chain, data_dir);

    if (!ours)
        log_event(LOG_WARN, "audit.memory_only", KS("dir", data_dir),
                  KC("reason", "another server on this data_dir writes its audit there"));
    for (int i = 0; i < AUDIT_KINDS; i++) {
        struct trail *trail = &audit->trails[i];

        trail->ring = mem_array(struct audit_entry, AUDIT_KEPT);
        trail->fd = -1;
        if (snprintf(trail->path, sizeof trail->path, STR_FMT "/%s", STR_ARG(data_dir),
                     kinds[i].file) >= (int)sizeof trail->path ||
            !ours)
            trail->path[0] = 0;
    }
    audit->trails[AUDIT_CHANGE].chain = &audit->chain;
    for (int i = 0; i < AUDIT_KINDS; i++) {
        each_line_of(&audit->trails[i], load_line, audit);
        open_file(&audit->trails[i]);
    }
    const struct trail *changes = &audit->trails[AUDIT_CHANGE];
    bool some_signed = false;
    for (int64_t i = changes->put - 1; i >= 0 && i >= changes->put - AUDIT_KEPT; i--)
        some_signed |= entry_at(changes, i)->mac[0] != 0;
    if (ours)
        audit_chain_open(&audit->chain, data_dir, audit->last, some_signed);
    if (audit->chain.written.id > audit->last)
        audit->last = audit->chain.written.id; /* an id is never used twice */
    check(audit);
    audit_chain_resume(&audit->chain, &audit->check);
    return audit;
}

void audit_free(struct audit *audit)
{
    if (!audit)
        return;
    for (int i = 0; i < AUDIT_KINDS; i++) {
        struct trail *trail = &audit->trails[i];

        if (trail->fd >= 0)
            close(trail->fd);
        buf_free(&trail->lines);
        free(trail->ring);
    }
    audit_chain_close(&audit->chain);
    free(audit);
}

static int write_lines(struct trail *trail, size_t *wrote_bytes)
{
    const char *at = trail->lines.at;
    size_t left = trail->lines.len;

    while (left > 0) {
        ssize_t wrote = write(trail->fd, at, left);

        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return wrote < 0 ? errno : ENOSPC;
        trail->size += wrote;
        trail->cut = at[wrote - 1] != '\n';
        at += wrote;
        left -= (size_t)wrote;
        *wrote_bytes += (size_t)wrote;
    }
    return fdatasync(trail->fd) == 0 ? 0 : errno;
}

/* Writes the lines of a batch with one sync; returns 0 or an errno. A crash leaves whole lines and
 * at most one that is cut. */
static int flush(struct trail *trail)
{
    char old[sizeof trail->path + 2];
    struct audit_link oldest = {0};
    size_t wrote = 0;
    int error = 0;

    if (!trail->lines.len)
        return 0;
    if (trail->fd >= 0 && trail->size >= AUDIT_FILE_BYTES_MAX) {
        old_path(trail, old);
        close(trail->fd);
        if (trail->chain)
            oldest = audit_chain_rotate(trail->chain);
        if (rename(trail->path, old) != 0) {
            log_event(LOG_WARN, "audit.not_rotated", KC("reason", strerror(errno)));
            if (trail->chain)
                audit_chain_not_rotated(trail->chain, &oldest);
        }
        error = open_file(trail);
    } else if (trail->fd < 0) {
        error = open_file(trail); /* the disk may have recovered */
    }
    if (!error)
        error = write_lines(trail, &wrote);
    if (trail->chain)
        audit_chain_wrote(trail->chain, buf_view(&trail->lines), wrote);
    if (error)
        log_event(LOG_ERROR, "audit.not_written", KI("lines", trail->line_count),
                  KC("reason", strerror(error)));
    buf_clear(&trail->lines);
    trail->line_count = 0;
    return error;
}

static void put(struct audit *audit, struct audit_entry *entry)
{
    struct trail *trail = &audit->trails[entry->kind];

    assert(entry->count > 0);
    entry->id = audit->last + 1;
    if (trail->cut && !trail->lines.len)
        buf_char(&trail->lines, '\n'); /* a line that was cut must not run into this one */
    size_t from = trail->lines.len;
    write_bare(&trail->lines, entry);
    if (trail->chain)
        audit_chain_sign(trail->chain, entry->id, &trail->lines, from, entry->mac);
    keep(audit, entry);
    buf_char(&trail->lines, '\n');
    trail->line_count++;
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

    atomic_fetch_sub(&audit->queued[note->entry.kind], 1);
    put(audit, &note->entry);
    free(note);
}

static void log_entry(const struct audit_entry *entry)
{
    assert(entry->action[0] && entry->at_ms > 0 && entry->count > 0);
    log_event(LOG_INFO, "audit", KC("who", entry->who), KC("action", entry->action),
              KC("target", entry->target), KC("result", entry->result), KI("status", entry->status),
              KC("request_id", entry->request_id), KC("peer", entry->peer),
              KI("count", entry->count));
}

void audit_note(struct worker *from, const struct audit_entry *entry)
{
    struct audit *audit = from->server->audit;
    struct note *note;

    log_entry(entry);
    if (atomic_fetch_add(&audit->queued[entry->kind], 1) >= AUDIT_QUEUED_MAX) {
        atomic_fetch_sub(&audit->queued[entry->kind], 1);
        atomic_fetch_add(&audit->left_out[entry->kind], entry->count);
        return; /* the main thread is running, and reports this after its next batch */
    }
    note = mem_new(struct note);
    *note = (struct note){.msg = {.run = note_here}, .server = from->server, .entry = *entry};
    inbox_post(&from->server->notes, &note->msg);
}

static bool wanted(const struct audit_query *query, const struct audit_entry *entry)
{
    return (!query->who.at || str_is(query->who, entry->who)) &&
           (!query->action.at || str_is(query->action, entry->action)) &&
           (!query->target.at || str_is(query->target, entry->target)) &&
           (!query->kind.at || str_is(query->kind, kinds[entry->kind].name));
}

/* The newest entry of either kind that was not visited yet; NULL: none is left. */
static const struct audit_entry *step_back(const struct audit *audit, int64_t next[AUDIT_KINDS])
{
    const struct audit_entry *newest = NULL;

    for (int i = 0; i < AUDIT_KINDS; i++) {
        const struct trail *trail = &audit->trails[i];
        const struct audit_entry *entry;

        if (next[i] < 0 || next[i] < trail->put - AUDIT_KEPT)
            continue;
        entry = entry_at(trail, next[i]);
        if (!newest || entry->id > newest->id)
            newest = entry;
    }
    if (newest)
        next[newest->kind]--;
    return newest;
}

/* The entries of a batch reach the file together or not at all: requests that wait for that are
 * answered at its end. */
static void flush_changes(struct audit *audit)
{
    int error = flush(&audit->trails[AUDIT_CHANGE]);

    if (error)
        audit->error = error;
}

static void write_chain(struct buf *buf, const struct audit *audit)
{
    const struct audit_chain *chain = &audit->chain;
    const struct audit_check *check = &audit->check;
    struct jsonw w = jsonw_to(buf);

    if (!chain->key[0]) {
        jsonw_null(&w);
        return;
    }
    jsonw_obj(&w);
    jsonw_kint(&w, "checked_ms", audit->checked_ms);
    jsonw_kint(&w, "entries", check->entries);
    write_int_or_null(&w, "broken_id", check->reason, check->broken_id);
    jsonw_kstr(&w, "broken_reason", str_of(check->reason));
    jsonw_kint(&w, "newest_id", chain->written.id);
    jsonw_kstr(&w, "newest_mac", str_of(chain->written.mac));
    jsonw_end_obj(&w);
}

static void query_here(struct msg *msg)
{
    struct audit_request *request = container_of(msg, struct audit_request, msg);
    struct audit_query *query = container_of(request, struct audit_query, request);
    struct audit *audit = request->from->server->audit;
    const struct audit_entry *entry;
    int64_t next[AUDIT_KINDS], before = 0;
    size_t count = 0;

    for (int i = 0; i < AUDIT_KINDS; i++)
        next[i] = audit->trails[i].put - 1;
    buf_str(&query->answer, STR("{\"audit\":["));
    while ((entry = step_back(audit, next))) {
        if ((query->before && entry->id >= query->before) || !wanted(query, entry))
            continue;
        if (count == query->max) {
            before = entry->id + 1;
            break;
        }
        if (count++ > 0)
            buf_char(&query->answer, ',');
        write_bare(&query->answer, entry);
        query->answer.len--; /* the brace */
        if (entry->mac[0])
            buf_fmt(&query->answer, ",\"mac\":\"%s\"}", entry->mac);
        else
            buf_str(&query->answer, STR(",\"mac\":null}"));
    }
    if (before)
        buf_fmt(&query->answer, "],\"next_cursor\":\"%" PRId64 "\"", before);
    else
        buf_str(&query->answer, STR("],\"next_cursor\":null"));
    if (query->verify) {
        flush_changes(audit);
        check(audit);
    }
    buf_str(&query->answer, STR(",\"chain\":"));
    write_chain(&query->answer, audit);
    buf_char(&query->answer, '}');
    mail_add(&audit->back, &request->msg);
}

static void request_post(struct audit_request *request, void (*run)(struct msg *msg))
{
    assert(request->from && request->done);
    request->msg.run = run;
    inbox_post(&request->from->server->notes, &request->msg);
}

void audit_ask(struct audit_query *query)
{
    assert(query->max > 0);
    request_post(&query->request, query_here);
}

static void record_here(struct msg *msg)
{
    struct audit_request *request = container_of(msg, struct audit_request, msg);
    struct audit *audit = request->from->server->audit;

    put(audit, &container_of(request, struct audit_record, request)->entry);
    mail_add(&audit->back, &request->msg);
}

void audit_write(struct audit_record *record)
{
    assert(record->entry.kind == AUDIT_CHANGE);
    log_entry(&record->entry);
    request_post(&record->request, record_here);
}

static void request_over(struct msg *msg)
{
    struct audit_request *request = container_of(msg, struct audit_request, msg);

    request->done(request);
}

bool audit_run(struct server *server)
{
    struct audit *audit = server->audit;
    struct msg *msg = NULL, *back;
    int ran = 0;

    audit->error = 0;
    while (ran < AUDIT_BATCH_MAX && (msg = inbox_next(&server->notes, &audit->left))) {
        msg->run(msg);
        ran++;
    }
    for (int i = 0; i < AUDIT_KINDS; i++) {
        struct audit_entry entry = {.at_ms = clock_wall_ms(),
                                    .kind = (enum audit_kind)i,
                                    .count = atomic_exchange(&audit->left_out[i], 0),
                                    .action = "audit.left_out",
                                    .status = err_http(ERR_BUSY)};

        if (!entry.count)
            continue;
        str_copy(str_of(err_name(ERR_BUSY)), entry.result, sizeof entry.result);
        log_event(LOG_WARN, "audit.left_out", KC("kind", kinds[i].name), KI("count", entry.count));
        put(audit, &entry);
    }
    flush(&audit->trails[AUDIT_REFUSED]);
    flush_changes(audit);
    back = audit->back.newest;
    audit->back = (struct mail){0};
    while (back) {
        struct audit_request *request = container_of(back, struct audit_request, msg);

        back = back->next; /* the loop owns the request once it is posted */
        request->error = audit->error;
        request->msg.run = request_over;
        inbox_post(&request->from->loop.inbox, &request->msg);
    }
    return msg != NULL;
}

/* --- /v1/audit --- */

struct audit_call {
    struct audit_query query;
    struct call *call;
};

static void answered(struct audit_request *request)
{
    struct audit_call *own = container_of(request, struct audit_call, query.request);
    struct buf answer = own->query.answer; /* the reply frees the request, and us with it */

    call_json(own->call, 200, &answer);
}

void api_audit(struct call *call)
{
    struct audit_call *own = arena_new(call->arena, struct audit_call);
    struct str kind = http_query(call->req, "kind");
    int64_t limit = CALL_LIST_DEFAULT, before = 0;
    enum audit_kind known;
    bool verify = false;

    if (!call_query_int(call, "limit", 1, CALL_LIST_MAX, &limit) ||
        !call_query_int(call, "cursor", 1, INT64_MAX, &before) ||
        !call_query_bool(call, "verify", &verify))
        return;
    if (kind.at && !audit_kind_parse(kind, &known)) {
        call_error(call, ERR_BAD_FIELD, "kind", "kind must be %s or %s.", kinds[AUDIT_CHANGE].name,
                   kinds[AUDIT_REFUSED].name);
        return;
    }
    own->call = call;
    own->query = (struct audit_query){.request = {.from = call->worker, .done = answered},
                                      .before = before,
                                      .max = (size_t)limit,
                                      .verify = verify,
                                      .who = http_query(call->req, "who"),
                                      .action = http_query(call->req, "action"),
                                      .target = http_query(call->req, "target"),
                                      .kind = kind};
    audit_ask(&own->query);
}
