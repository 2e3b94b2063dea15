/* Notes to the server and their answers. */
#include "agent/outbox.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/link.h"
#include "base/log.h"
#include "base/mem.h"

static const char *const msgs[OUTBOX_KINDS] = {
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
        json_one_line(at, result.len); /* a reader may put it into a line */
    }
    return note;
}

static void link_note(struct outbox *outbox, struct outbox_note *note, uint64_t seq)
{
    assert(seq > outbox->last_seq);
    note->seq = outbox->last_seq = seq;
    TAILQ_INSERT_TAIL(&outbox->notes, note, entry);
    outbox->count++;
    idmap_put(&outbox->by_seq, seq, note);
}

static void unlink_note(struct outbox_note *note)
{
    struct outbox *outbox = note->outbox;

    assert(outbox->count > 0 && idmap_get(&outbox->by_seq, note->seq) == note);
    TAILQ_REMOVE(&outbox->notes, note, entry);
    outbox->count--;
    if (note->sent)
        outbox->in_flight--;
    assert(outbox->in_flight <= outbox->count);
    idmap_del(&outbox->by_seq, note->seq);
}

static void timer_closed(uv_handle_t *timer)
{
    struct outbox *outbox = timer->data;
    struct outbox_note *note;

    assert(outbox->freeing);
    while ((note = TAILQ_FIRST(&outbox->notes))) {
        unlink_note(note);
        free(note);
    }
    idmap_free(&outbox->by_seq);
    buf_free(&outbox->text);
    free(outbox->old_path);
    free(outbox);
}

/* --- files of earlier versions --- */

/* Earlier versions kept outcomes in a separate file: a line of JSON for each, and a second one when
 * it was settled. */
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
        struct str msg = json_str(json_get(root, "msg"), &arena);
        struct str id = json_str(json_get(root, "job_id"), &arena);
        const struct json *reason = json_get(root, "reason"), *result = json_get(root, "result");
        enum outbox_kind kind = str_is(msg, "done") ? OUTBOX_DONE : OUTBOX_FAIL;

        if (!json_int(json_get(root, "seq"), &seq) || seq <= (int64_t)outbox->last_seq ||
            !json_int(json_get(root, "attempt_id"), &attempt) || !str_is_id(id, OUTBOX_JOB_MAX) ||
            !str_is(msg, msgs[kind])) {
            ++*bad;
        } else {
            note = note_new(outbox, kind, id, (int)attempt,
                            reason ? json_str(reason, &arena) : STR_NONE,
                            result ? json_raw(result) : STR_NONE);
            note->old = true;
            json_bool(json_get(root, "command"), &note->command);
            link_note(outbox, note, (uint64_t)seq);
        }
    }
    arena_free(&arena);
}

static void old_settled(struct outbox *outbox)
{
    assert(outbox->old_count > 0);
    if (--outbox->old_count == 0)
        unlink(outbox->old_path);
}

void outbox_take_old(struct outbox *outbox, const char *path)
{
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t size = 0, bad = 0;
    ssize_t len;

    assert(outbox->count == 0 && !outbox->old_path);
    /* A truncated line was not on disk when the process died: it never counted. */
    while (file && (len = getline(&line, &size, file)) > 0 && line[len - 1] == '\n')
        read_line(outbox, (struct str){.at = line, .len = (size_t)len - 1}, &bad);
    if (file) {
        fclose(file);
        outbox->old_count = outbox->count;
        outbox->old_path = mem_cstr(str_of(path));
        log_event(bad ? LOG_WARN : LOG_INFO, "outbox.found", KC("path", path),
                  KI("notes", (int64_t)outbox->count), KI("bad_lines", (int64_t)bad));
        if (outbox->count == 0)
            unlink(path);
    }
    free(line);
}

/* --- sending --- */

static void pump(struct outbox *outbox)
{
    struct outbox_note *note = TAILQ_FIRST(&outbox->notes);

    if (!outbox->up || outbox->paused)
        return;
    for (; note && outbox->in_flight < OUTBOX_WINDOW; note = TAILQ_NEXT(note, entry)) {
        struct jsonw w = jsonw_to(&outbox->text);

        if (note->sent)
            continue;
        buf_clear(&outbox->text);
        jsonw_obj(&w);
        jsonw_kint(&w, "id", (int64_t)note->seq);
        jsonw_kstr(&w, "msg", str_of(msgs[note->kind]));
        jsonw_kstr(&w, "job_id", str_of(note->job_id));
        jsonw_kint(&w, "attempt_id", note->attempt);
        if (note->kind == OUTBOX_DONE)
            jsonw_kstr(&w, "status", STR("ok"));
        if (note->reason.at)
            jsonw_kstr(&w, "reason", note->reason);
        if (note->command)
            jsonw_kbool(&w, "command", true);
        if (note->result.at && !note->bare)
            jsonw_kraw(&w, "result", note->result);
        jsonw_end_obj(&w);
        if (!outbox->handler->send(outbox, buf_view(&outbox->text)))
            return;
        note->sent = true;
        outbox->in_flight++;
    }
}

static void pause_over(uv_timer_t *timer)
{
    struct outbox *outbox = timer->data;

    loop_enter(outbox->loop);
    outbox->paused = false;
    pump(outbox);
}

int64_t outbox_pause_ms(const struct outbox *outbox)
{
    return backoff_bound_ms(outbox->pauses, OUTBOX_PAUSE_MIN_MS, OUTBOX_PAUSE_MAX_MS);
}

struct outbox_note *outbox_put(struct outbox *outbox, enum outbox_kind kind, struct str job_id,
                               int attempt, struct str reason, struct str result, bool command,
                               void *user)
{
    struct outbox_note *note = note_new(outbox, kind, job_id, attempt, reason, result);

    assert(str_is_id(job_id, OUTBOX_JOB_MAX) && kind < OUTBOX_KINDS && !outbox->freeing);
    note->user = user;
    note->command = command;
    link_note(outbox, note, outbox->last_seq + 1);
    pump(outbox);
    return note;
}

void outbox_drop(struct outbox_note *note)
{
    unlink_note(note);
    if (note->old)
        old_settled(note->outbox);
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
    for (struct outbox_note *note = TAILQ_FIRST(&outbox->notes); note;
         note = TAILQ_NEXT(note, entry))
        note->sent = false;
}

/* --- answers --- */

static void settle(struct outbox_note *note, enum outbox_verdict verdict)
{
    struct outbox *outbox = note->outbox;

    assert(note->sent && outbox->up);
    unlink_note(note);
    if (note->old)
        old_settled(outbox);
    outbox->pauses = 0;
    outbox->handler->settled(note, verdict);
    free(note);
    pump(outbox);
}

bool outbox_reply(struct outbox *outbox, const struct json *reply)
{
    struct outbox_note *note;
    struct arena arena = {0};
    bool ok = false, duplicate = false;
    int64_t re, status = 0;

    if (!json_int(json_get(reply, "re"), &re))
        return false;
    note = idmap_get(&outbox->by_seq, (uint64_t)re);
    if (!note || !note->sent)
        return false;
    json_bool(json_get(reply, "ok"), &ok);
    json_int(json_get(reply, "status"), &status);
    if (ok) {
        json_bool(json_get(reply, "duplicate"), &duplicate);
        json_int(json_get(reply, "lease_ms"), &note->lease_ms);
        json_int(json_get(reply, "stop_grace_ms"), &note->stop_grace_ms);
        settle(note, duplicate ? OUTBOX_DUPLICATE : OUTBOX_ACCEPTED);
        return true;
    }
    if (status == 404 || status == 409) {
        settle(note, OUTBOX_REFUSED);
        return true;
    }
    if (status == 400 || status == 413) {
        log_event(LOG_ERROR, "outbox.refused", KC("job_id", note->job_id),
                  KI("attempt_id", note->attempt), KC("msg", msgs[note->kind]),
                  KS("reason", json_str(json_get(reply, "detail"), &arena)));
        arena_free(&arena);
        /* If the server cannot read it now, it never will. A result that is too large or malformed
         * is left out, so that the outcome itself gets through. */
        if (!note->result.at || note->bare) {
            settle(note, OUTBOX_REFUSED);
            return true;
        }
        note->bare = true;
        note->sent = false;
        outbox->in_flight--;
        pump(outbox);
        return true;
    }
    note->sent = false;
    outbox->in_flight--;
    /* "Not now" concerns the server, not one note: all notes wait, longer each time. */
    if (!outbox->paused) {
        uint32_t most_ms = (uint32_t)outbox_pause_ms(outbox);

        outbox->pauses++;
        outbox->paused = true;
        uv_timer_start(&outbox->pause, pause_over, 1 + rnd_below(&outbox->rnd, most_ms), 0);
    }
    return true;
}

/* --- lifetime --- */

struct outbox *outbox_new(struct loop *loop, const struct outbox_handler *handler, void *user)
{
    struct outbox *outbox = mem_new(struct outbox);

    assert(handler->send && handler->settled);
    outbox->loop = loop;
    outbox->handler = handler;
    outbox->user = user;
    TAILQ_INIT(&outbox->notes);
    rnd_seed_os(&outbox->rnd);
    uv_timer_init(&loop->uv, &outbox->pause);
    outbox->pause.data = outbox;
    return outbox;
}

void outbox_free(struct outbox *outbox)
{
    if (!outbox)
        return;
    outbox->freeing = true;
    outbox->up = false;
    uv_close((uv_handle_t *)&outbox->pause, timer_closed);
}
