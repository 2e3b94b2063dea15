#include "agent/queries.h"

#include <assert.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"

struct queries {
    struct loop *loop;
    bool (*send)(struct queries *queries, struct str text);
    void *user;
    struct query *first, *last; /* under way, in the order they were sent */
    int64_t id;
    struct buf text;
    struct loop_part part;
};

static void take_out(struct queries *queries, struct query *query)
{
    if (query->prev)
        query->prev->next = query->next;
    else
        queries->first = query->next;
    if (query->next)
        query->next->prev = query->prev;
    else
        queries->last = query->prev;
    query->prev = query->next = NULL;
    query->id = 0;
}

static void finish(struct queries *queries, struct query *query, enum err err,
                   const struct json *reply)
{
    take_out(queries, query);
    query->err = err;
    query->reply = reply;
    query->done(query);
}

/* Those whose time is over. `done` may send others, which are not. */
static void on_tick(struct loop_part *part)
{
    struct queries *queries = container_of(part, struct queries, part);
    struct query *query = queries->first;

    while (query) {
        struct query *next = query->next;

        if (queries->loop->mono_ms >= query->late_ms) {
            finish(queries, query, query->err ? query->err : ERR_TIMEOUT, NULL);
            next = queries->first; /* whatever `done` did to the list */
        }
        query = next;
    }
}

static void part_gone(struct loop_part *part)
{
    assert(!"queries_free comes before loop_done");
}

struct queries *queries_new(struct loop *loop,
                            bool (*send)(struct queries *queries, struct str text), void *user)
{
    struct queries *queries = mem_new(struct queries);

    queries->loop = loop;
    queries->send = send;
    queries->user = user;
    queries->id = QUERIES_ID_FIRST;
    queries->part = (struct loop_part){.tick = on_tick, .free = part_gone};
    loop_add_part(loop, &queries->part);
    return queries;
}

void *queries_user(const struct queries *queries)
{
    return queries->user;
}

void queries_send(struct queries *queries, struct query *query)
{
    struct jsonw w = jsonw_to(&queries->text);

    assert(query->done && query->path && !query->id && query->timeout_ms > 0);
    query->id = ++queries->id;
    query->err = ERR_OK;
    query->reply = NULL;
    query->late_ms = queries->loop->mono_ms + query->timeout_ms;
    query->prev = queries->last;
    query->next = NULL;
    if (queries->last)
        queries->last->next = query;
    else
        queries->first = query;
    queries->last = query;
    buf_clear(&queries->text);
    jsonw_obj(&w);
    jsonw_kstr(&w, "msg", STR("call"));
    jsonw_kint(&w, "id", query->id);
    if (query->method)
        jsonw_kstr(&w, "method", str_of(query->method));
    jsonw_kstr(&w, "path", str_of(query->path));
    jsonw_kraw(&w, "body", query->body.at ? query->body : STR("{}"));
    jsonw_end_obj(&w);
    if (!queries->send(queries, buf_view(&queries->text))) {
        query->err = ERR_CLOSED; /* told by the next tick, never in here */
        query->late_ms = queries->loop->mono_ms;
    }
}

static enum err refusal(const struct json *body)
{
    struct arena arena = {0};
    struct str name = json_str(json_get(body, "error"), &arena);
    int64_t status = 500;
    enum err err;

    json_int(json_get(body, "status"), &status);
    err = err_by_name(name.at ? arena_cstr(&arena, name) : "", (int)status);
    arena_free(&arena);
    return err ? err : ERR_INTERNAL;
}

bool queries_reply(struct queries *queries, const struct json *body)
{
    struct query *query = queries->first;
    bool ok = false;
    int64_t id;

    if (!json_int(json_get(body, "re"), &id) || id <= QUERIES_ID_FIRST)
        return false;
    while (query && query->id != id)
        query = query->next;
    json_bool(json_get(body, "ok"), &ok);
    if (query) /* else its time was over */
        finish(queries, query, ok ? ERR_OK : refusal(body), ok ? json_get(body, "body") : body);
    return true;
}

void queries_down(struct queries *queries)
{
    struct query *last = queries->last;
    bool more = last != NULL;

    while (more) { /* what `done` sends now is not among them */
        more = queries->first != last;
        finish(queries, queries->first, ERR_CLOSED, NULL);
    }
}

void queries_free(struct queries *queries)
{
    if (!queries)
        return;
    loop_remove_part(queries->loop, &queries->part);
    buf_free(&queries->text);
    free(queries);
}
