/* Notes to the server and their answers. On disk each kept note is a line of JSON, and a second one
 * says that it is settled; see outbox_file.h for how they get there. */
#include "agent/outbox.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agent/outbox_file.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"

enum {
    TIDY_MS = 1000,          /* settled notes leave the disk with the next batch, or after this */
    COMPACT_BYTES = 1 << 20, /* a file smaller than this is left alone */
    COMPACT_TIMES = 4,       /* and one that is not this many times larger than it must be */
};

struct outbox {
    struct loop *loop;
    const struct outbox_handler *handler;
    void *user;
    struct outbox_note *first, *last;
    struct idmap by_seq;
    uint64_t last_seq;
    size_t count, in_flight;
    bool up;
    bool freeing;
    int parts;    /* while freeing: handles and batches that are not over yet */
    bool failing; /* the disk; said once */
    int pauses;   /* in a row */
    bool paused;
    struct rnd rnd;
    uv_timer_t pause, tidy;
    struct outbox_file file;
    struct buf text; /* of the message or line being made */
};

static const char *const words[OUTBOX_KINDS] = {
    [OUTBOX_ACK] = "ack", [OUTBOX_DONE] = "done", [OUTBOX_FAIL] = "fail"};

/* --- notes --- */

static struct outbox_note *note_new(struct outbox *outbox, enum outbox_kind kind, struct str job_id,
                                    int attempt, struct str reason, struct str result)
{
    struct outbox_note *note = mem_zeroed(1, sizeof *note + reason.len + result.len + 2);
    char *at = (char *)(note + 1);

    assert(kind < OUTBOX_KINDS && job_id.len <= OUTBOX_JOB_MAX);
    note->outbox = outbox;
    note->kind = kind;
    note->attempt = attempt;
    note->stop_grace_ms = -1;
    str_copy(job_id, note->job_id, sizeof note->job_id);
    if (reason.at)
        note->reason = (struct str){.at = memcpy(at, reason.at, reason.len), .len = reason.len};
    at += reason.len + 1;
    if (result.at) {
        note->result = (struct str){.at = memcpy(at, result.at, result.len), .len = result.len};
        /* It becomes part of a line. Such a byte can only stand between two tokens. */
        for (size_t i = 0; i < result.len; i++)
            if (at[i] == '\n' || at[i] == '\r')
                at[i] = ' ';
    }
    return note;
}

static void link_note(struct outbox *outbox, struct outbox_note *note, uint64_t seq)
{
    assert(seq > outbox->last_seq && !note->next && !note->before);
    note->seq = outbox->last_seq = seq;
    note->before = outbox->last;
    if (outbox->last)
        outbox->last->next = note;
    else
        outbox->first = note;
    outbox->last = note;
    outbox->count++;
    idmap_put(&outbox->by_seq, seq, note);
}

static void unlink_note(struct outbox_note *note)
{
    struct outbox *outbox = note->outbox;

    assert(outbox->count > 0 && idmap_get(&outbox->by_seq, note->seq) == note);
    if (note->before)
        note->before->next = note->next;
    else
        outbox->first = note->next;
    if (note->next)
        note->next->before = note->before;
    else
        outbox->last = note->before;
    outbox->count--;
    if (note->sent)
        outbox->in_flight--;
    assert(outbox->in_flight <= outbox->count);
    idmap_del(&outbox->by_seq, note->seq);
}

/* The fields of a message, the same on the wire and on disk. */
static void write_note(struct jsonw *w, const struct outbox_note *note)
{
    jsonw_kstr(w, "msg", str_of(words[note->kind]));
    jsonw_kstr(w, "job_id", str_of(note->job_id));
    jsonw_kint(w, "attempt_id", note->attempt);
    if (note->kind == OUTBOX_DONE)
        jsonw_kstr(w, "status", STR("ok"));
    if (note->reason.at)
        jsonw_kstr(w, "reason", note->reason);
    if (note->command)
        jsonw_kbool(w, "command", true);
    if (note->result.at && !note->bare)
        jsonw_kraw(w, "result", note->result);
}

static void add_line(struct buf *to, const struct outbox_note *note)
{
    struct jsonw w = jsonw_to(to);

    jsonw_obj(&w);
    jsonw_kint(&w, "seq", (int64_t)note->seq);
    write_note(&w, note);
    jsonw_end_obj(&w);
    buf_char(to, '\n');
}

/* --- the disk --- */

static void tidy(uv_timer_t *timer);

static void tidy_later(struct outbox *outbox)
{
    if (!outbox->freeing && !uv_is_active((uv_handle_t *)&outbox->tidy))
        uv_timer_start(&outbox->tidy, tidy, TIDY_MS, 0);
}

static void rewrite(struct outbox *outbox)
{
    assert(!outbox->file.busy && !outbox->freeing);
    buf_clear(&outbox->text);
    for (struct outbox_note *note = outbox->first; note; note = note->next)
        if (note->kept)
            add_line(&outbox->text, note);
    outbox_file_rewrite(&outbox->file, outbox->loop, buf_view(&outbox->text));
}

static int64_t live_bytes(const struct outbox *outbox)
{
    int64_t bytes = 0;

    for (const struct outbox_note *note = outbox->first; note; note = note->next)
        if (note->kept)
            bytes += (int64_t)(note->reason.len + note->result.len) + OUTBOX_JOB_MAX;
    return bytes;
}

static void flush(struct outbox *outbox)
{
    struct outbox_file *file = &outbox->file;

    if (file->busy)
        return;
    if (file->dirty ||
        (file->size > COMPACT_BYTES && file->size > COMPACT_TIMES * live_bytes(outbox)))
        rewrite(outbox);
    else
        outbox_file_flush(file, outbox->loop);
}

static void tidy(uv_timer_t *timer)
{
    struct outbox *outbox = timer->data;

    loop_enter(outbox->loop);
    flush(outbox);
}

static void outbox_delete(struct outbox *outbox)
{
    struct outbox_note *note;

    assert(outbox->freeing && !outbox->file.busy);
    outbox_file_close(&outbox->file);
    while ((note = outbox->first)) {
        unlink_note(note);
        free(note);
    }
    idmap_free(&outbox->by_seq);
    buf_free(&outbox->text);
    free(outbox);
}

static void part_over(struct outbox *outbox)
{
    assert(outbox->freeing && outbox->parts > 0);
    if (--outbox->parts == 0)
        outbox_delete(outbox);
}

static void timer_closed(uv_handle_t *timer)
{
    part_over(timer->data);
}

static void written(struct outbox_file *file)
{
    struct outbox *outbox = container_of(file, struct outbox, file);

    if (file->error && !outbox->failing)
        log_event(LOG_ERROR, "outbox.failed", KC("path", file->path),
                  KC("reason", strerror(file->error)));
    else if (!file->error && outbox->failing)
        log_event(LOG_INFO, "outbox.recovered", KC("path", file->path));
    outbox->failing = file->error != 0;
    if (outbox->freeing)
        part_over(outbox);
    else if (file->error)
        tidy_later(outbox);
    else if (file->pending.len > 0)
        flush(outbox);
}

static void record(struct outbox_note *note)
{
    struct outbox *outbox = note->outbox;

    assert(note->kept && note->kind != OUTBOX_ACK); /* an ACK of another life means nothing */
    add_line(&outbox->file.pending, note);
    flush(outbox);
}

static void record_end(struct outbox_note *note)
{
    struct buf *pending = &note->outbox->file.pending;

    buf_fmt(pending, "{\"end\":%llu}\n", (unsigned long long)note->seq);
    tidy_later(note->outbox);
}

/* --- reading it back --- */

static void read_line(struct outbox *outbox, struct str line, size_t *bad)
{
    struct arena arena = {0};
    const struct json *root;
    struct outbox_note *note;
    int64_t seq, attempt, end;

    if (json_parse(line, &arena, &root, NULL) != ERR_OK) {
        ++*bad;
    } else if (json_int(json_get(root, "end"), &end)) {
        note = idmap_get(&outbox->by_seq, (uint64_t)end);
        if (note) {
            unlink_note(note);
            free(note);
        }
    } else {
        struct str word = json_str(json_get(root, "msg"), &arena);
        struct str id = json_str(json_get(root, "job_id"), &arena);
        const struct json *reason = json_get(root, "reason"), *result = json_get(root, "result");
        enum outbox_kind kind = str_is(word, "done") ? OUTBOX_DONE : OUTBOX_FAIL;

        if (!json_int(json_get(root, "seq"), &seq) || seq <= (int64_t)outbox->last_seq ||
            !json_int(json_get(root, "attempt_id"), &attempt) || !str_is_id(id, OUTBOX_JOB_MAX) ||
            !str_is(word, words[kind])) {
            ++*bad;
        } else {
            note = note_new(outbox, kind, id, (int)attempt,
                            reason ? json_str(reason, &arena) : STR_NONE,
                            result ? json_raw(result) : STR_NONE);
            note->kept = true;
            json_bool(json_get(root, "command"), &note->command);
            link_note(outbox, note, (uint64_t)seq);
        }
    }
    arena_free(&arena);
}

static void read_back(struct outbox *outbox, struct str text)
{
    size_t bad = 0;

    while (text.len > 0)
        read_line(outbox, str_cut(&text, '\n'), &bad);
    if (bad > 0)
        log_event(LOG_WARN, "outbox.damaged", KC("path", outbox->file.path),
                  KI("lines", (int64_t)bad));
    if (outbox->count > 0)
        log_event(LOG_INFO, "outbox.found", KI("notes", (int64_t)outbox->count));
}

/* --- sending --- */

static bool send_note(struct outbox_note *note)
{
    struct outbox *outbox = note->outbox;
    struct jsonw w = jsonw_to(&outbox->text);

    assert(outbox->up && !note->sent);
    buf_clear(&outbox->text);
    jsonw_obj(&w);
    jsonw_kint(&w, "id", (int64_t)note->seq);
    write_note(&w, note);
    jsonw_end_obj(&w);
    if (!outbox->handler->send(outbox, buf_view(&outbox->text)))
        return false;
    note->sent = true;
    outbox->in_flight++;
    return true;
}

static void pump(struct outbox *outbox)
{
    struct outbox_note *note = outbox->first;

    if (!outbox->up || outbox->paused)
        return;
    for (; note && outbox->in_flight < OUTBOX_WINDOW; note = note->next)
        if (!note->sent && !send_note(note))
            return;
}

static void pause_over(uv_timer_t *timer)
{
    struct outbox *outbox = timer->data;

    loop_enter(outbox->loop);
    outbox->paused = false;
    pump(outbox);
}

/* "Not now" is about the server, not about one note: all wait a little, longer each time. */
static void pause_all(struct outbox *outbox)
{
    int64_t most = OUTBOX_PAUSE_MIN_MS;

    for (int i = 0; i < outbox->pauses && most < OUTBOX_PAUSE_MAX_MS; i++)
        most *= 2;
    most = most < OUTBOX_PAUSE_MAX_MS ? most : OUTBOX_PAUSE_MAX_MS;
    if (outbox->paused)
        return;
    outbox->pauses++;
    outbox->paused = true;
    uv_timer_start(&outbox->pause, pause_over, 1 + rnd_below(&outbox->rnd, (uint32_t)most), 0);
}

struct outbox_note *outbox_put(struct outbox *outbox, enum outbox_kind kind, struct str job_id,
                               int attempt, struct str reason, struct str result, bool command,
                               bool keep, void *user)
{
    struct outbox_note *note = note_new(outbox, kind, job_id, attempt, reason, result);

    assert(str_is_id(job_id, OUTBOX_JOB_MAX) && kind < OUTBOX_KINDS && !outbox->freeing);
    note->user = user;
    note->command = command;
    note->kept = keep;
    link_note(outbox, note, outbox->last_seq + 1);
    if (keep)
        record(note);
    pump(outbox);
    return note;
}

void outbox_drop(struct outbox_note *note)
{
    unlink_note(note);
    if (note->kept)
        record_end(note);
    free(note);
}

void outbox_up(struct outbox *outbox)
{
    assert(!outbox->up && outbox->in_flight == 0);
    outbox->up = true;
    outbox->paused = false;
    outbox->pauses = 0;
    uv_timer_stop(&outbox->pause);
    pump(outbox);
}

void outbox_down(struct outbox *outbox)
{
    outbox->up = false;
    outbox->in_flight = 0;
    for (struct outbox_note *note = outbox->first; note; note = note->next)
        note->sent = false;
}

/* --- answers --- */

enum answer { ANSWER_OK, ANSWER_OVER, ANSWER_BAD, ANSWER_LATER };

static enum answer answer_of(const struct json *reply)
{
    bool ok = false;
    int64_t status = 0;

    if (json_bool(json_get(reply, "ok"), &ok) && ok)
        return ANSWER_OK;
    if (!json_int(json_get(reply, "status"), &status))
        return ANSWER_LATER;
    if (status == 404 || status == 409)
        return ANSWER_OVER;
    return status == 400 || status == 413 ? ANSWER_BAD : ANSWER_LATER;
}

static void settle(struct outbox_note *note, enum outbox_verdict verdict)
{
    struct outbox *outbox = note->outbox;

    assert(note->sent && outbox->up);
    unlink_note(note);
    if (note->kept)
        record_end(note);
    outbox->pauses = 0;
    outbox->handler->settled(note, verdict);
    free(note);
    pump(outbox);
}

/* What the server cannot read now it cannot read ever. A result too large or too odd is left out,
 * so that the outcome itself gets through. */
static void answer_bad(struct outbox_note *note, const struct json *reply)
{
    struct arena arena = {0};

    log_event(LOG_ERROR, "outbox.refused", KC("job_id", note->job_id),
              KI("attempt_id", note->attempt), KC("msg", words[note->kind]),
              KS("reason", json_str(json_get(reply, "detail"), &arena)));
    arena_free(&arena);
    if (!note->result.at || note->bare) {
        settle(note, OUTBOX_REFUSED);
        return;
    }
    note->bare = true;
    note->sent = false;
    note->outbox->in_flight--;
    pump(note->outbox);
}

bool outbox_reply(struct outbox *outbox, const struct json *reply)
{
    struct outbox_note *note;
    bool duplicate = false;
    int64_t re;

    if (!json_int(json_get(reply, "re"), &re))
        return false;
    note = idmap_get(&outbox->by_seq, (uint64_t)re);
    if (!note || !note->sent)
        return false;
    switch (answer_of(reply)) {
    case ANSWER_OK:
        json_bool(json_get(reply, "duplicate"), &duplicate);
        json_int(json_get(reply, "lease_ms"), &note->lease_ms);
        json_int(json_get(reply, "stop_grace_ms"), &note->stop_grace_ms);
        settle(note, duplicate ? OUTBOX_DUPLICATE : OUTBOX_ACCEPTED);
        break;
    case ANSWER_OVER:
        settle(note, OUTBOX_REFUSED);
        break;
    case ANSWER_BAD:
        answer_bad(note, reply);
        break;
    case ANSWER_LATER:
        note->sent = false;
        outbox->in_flight--;
        pause_all(outbox);
        break;
    }
    return true;
}

/* --- life --- */

enum err outbox_new(struct loop *loop, const char *path, const struct outbox_handler *handler,
                    void *user, struct outbox **ret_outbox, struct problem *why)
{
    struct outbox *outbox = mem_new(struct outbox);
    struct buf text = {0};
    enum err err = outbox_file_open(&outbox->file, path, OUTBOX_FILE_MAX, &text, why);

    assert(handler->send && handler->settled);
    if (err) {
        buf_free(&text);
        free(outbox);
        return err;
    }
    outbox->loop = loop;
    outbox->handler = handler;
    outbox->user = user;
    outbox->file.written = written;
    rnd_seed_os(&outbox->rnd);
    uv_timer_init(&loop->uv, &outbox->pause);
    uv_timer_init(&loop->uv, &outbox->tidy);
    outbox->pause.data = outbox->tidy.data = outbox;
    read_back(outbox, buf_view(&text));
    buf_free(&text);
    *ret_outbox = outbox;
    return ERR_OK;
}

void *outbox_user(const struct outbox *outbox)
{
    return outbox->user;
}

struct outbox_note *outbox_next(struct outbox *outbox, struct outbox_note *note)
{
    return note ? note->next : outbox->first;
}

size_t outbox_count(const struct outbox *outbox)
{
    return outbox->count;
}

void outbox_free(struct outbox *outbox)
{
    if (!outbox)
        return;
    outbox->freeing = true;
    outbox->up = false;
    outbox->parts = 2 + outbox->file.busy;
    uv_close((uv_handle_t *)&outbox->pause, timer_closed);
    uv_close((uv_handle_t *)&outbox->tidy, timer_closed);
}
