/* The list of members. A node is one while it is connected, or was heard of within view_drop_ms. It
 * is looked at a few times a second: figures that move with every heartbeat are no part of it. */
#include "server/members.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "model/level.h"
#include "server/api.h"
#include "server/events.h"
#include "server/hub.h"

enum {
    SCAN_MS = 200,
    CHANGES_KEPT = 1024, /* for those who sync; more are a full list */
    LIST_DEFAULT = 1000,
    LIST_MAX = 10000,
    SOURCE_BYTES = 24,
};

struct terminal {
    uint64_t print; /* of what its text is made of */
    uint64_t seen;  /* the scan that last found it */
    struct str id;
    struct buf text; /* the object, without last_seen_ms and the closing brace */
    int64_t last_seen_ms;
};

struct change_line {
    uint64_t seq;
    struct buf text;
};

struct terminals {
    struct server *server;
    struct map by_id; /* -> struct terminal * */
    uint64_t seq;
    uint64_t scan;
    int64_t next_scan_ms;
    char source[SOURCE_BYTES];
    struct change_line changes[CHANGES_KEPT]; /* by seq, around */
};

struct terminals *terminals_new(struct server *server)
{
    struct terminals *terminals = mem_new(struct terminals);

    terminals->server = server;
    snprintf(terminals->source, sizeof terminals->source, "%llx",
             (unsigned long long)clock_wall_ms() << 16 ^ (unsigned long long)getpid());
    return terminals;
}

static void terminal_free(struct terminal *terminal)
{
    buf_free(&terminal->text);
    free((char *)terminal->id.at);
    free(terminal);
}

void terminals_free(struct terminals *terminals)
{
    struct terminal *terminal;

    if (!terminals)
        return;
    for (size_t i = 0; (terminal = map_next(&terminals->by_id, &i));)
        terminal_free(terminal);
    map_free(&terminals->by_id);
    for (size_t i = 0; i < CHANGES_KEPT; i++)
        buf_free(&terminals->changes[i].text);
    free(terminals);
}

/* A node that said it goes, or whose connection closed, is gone at once. */
static bool is_present(const struct node *node, int64_t now_ms, int64_t drop_ms)
{
    if (atomic_load(&node->left_ms) || atomic_load(&node->own) == NODE_OFFLINE)
        return false;
    return atomic_load(&node->link) || now_ms - atomic_load(&node->heartbeat_ms) <= drop_ms;
}

static bool takes_work(const struct node *node)
{
    return atomic_load(&node->health) == NODE_READY && atomic_load(&node->level) < LEVEL_DANGER &&
           atomic_load(&node->admin) == NODE_ADMIN_NONE;
}

static uint64_t print_of(const struct snap_node *member)
{
    uint64_t parts[] = {(uint64_t)(uintptr_t)member->facts, (uint64_t)member->facts->version,
                        (uint64_t)atomic_load(&member->node->health),
                        (uint64_t)atomic_load(&member->node->level), takes_work(member->node)};

    return str_hash((struct str){.at = (const char *)parts, .len = sizeof parts});
}

/* Up to last_seen_ms, which is written when it is sent. */
static void write_start(struct buf *buf, const struct snap_node *member)
{
    struct jsonw w = jsonw_to(buf);
    const struct node *node = member->node;
    int32_t level = atomic_load(&node->level);

    jsonw_obj(&w);
    jsonw_kstr(&w, "terminal_id", node->id);
    jsonw_kstr(&w, "name", member->facts->name);
    jsonw_kraw(&w, "tags", member->facts->tags);
    jsonw_kraw(&w, "labels", member->facts->labels);
    jsonw_kraw(&w, "namespaces",
               member->facts->namespaces ? json_raw(member->facts->namespaces) : STR("null"));
    jsonw_kbool(&w, "takes", takes_work(node));
    jsonw_kstr(&w, "health",
               str_of(node_health_name((enum node_health)atomic_load(&node->health))));
    jsonw_kstr(&w, "level", level < 0 ? STR_NONE : str_of(level_name((enum level)level)));
    jsonw_end_obj(&w);
    assert(buf->len > 1 && buf->at[buf->len - 1] == '}');
    buf->len--; /* the brace */
}

static void write_terminal(struct jsonw *w, const struct terminal *terminal)
{
    struct buf buf = {0};

    buf_str(&buf, buf_view(&terminal->text));
    buf_fmt(&buf, ",\"last_seen_ms\":%lld}", (long long)terminal->last_seen_ms);
    jsonw_raw(w, buf_view(&buf));
    buf_free(&buf);
}

/* One change gets the next number, is kept for those who sync, and told to those who listen. */
static void note(struct terminals *terminals, const char *what, const struct terminal *old,
                 const struct terminal *new)
{
    assert(old || new);
    uint64_t seq = ++terminals->seq;
    struct change_line *line = &terminals->changes[seq % CHANGES_KEPT];
    struct jsonw w = jsonw_to(&line->text);

    buf_clear(&line->text);
    line->seq = seq;
    jsonw_obj(&w);
    jsonw_kstr(&w, "type", STR("TERMINAL_CHANGE"));
    jsonw_kstr(&w, "change", str_of(what));
    jsonw_kstr(&w, "source", str_of(terminals->source));
    jsonw_kint(&w, "seq", (int64_t)seq);
    jsonw_key(&w, "payload");
    jsonw_obj(&w);
    if (new) {
        jsonw_key(&w, "new");
        write_terminal(&w, new);
    }
    if (old) {
        jsonw_key(&w, "old");
        write_terminal(&w, old);
    }
    jsonw_end_obj(&w);
    jsonw_end_obj(&w);
    atomic_store(&terminals->server->terminal_seq, (int64_t)seq);
    events_host(terminals->server, buf_view(&line->text));
}

static struct terminal *terminal_new(struct terminals *terminals, struct str id)
{
    struct terminal *terminal = mem_new(struct terminal);
    char *name = mem_alloc(id.len + 1);

    str_copy(id, name, id.len + 1);
    terminal->id = (struct str){.at = name, .len = id.len};
    map_put(&terminals->by_id, terminal->id, terminal);
    return terminal;
}

static void look_at(struct terminals *terminals, const struct snap_node *member)
{
    struct terminal *terminal = map_get(&terminals->by_id, member->node->id);
    uint64_t print = print_of(member);
    bool joins = !terminal;

    if (joins)
        terminal = terminal_new(terminals, member->node->id);
    assert(str_eq(terminal->id, member->node->id) && member->facts->tags.at);
    terminal->seen = terminals->scan;
    terminal->last_seen_ms = sched_wall_ms(server_keeper(terminals->server)->sched,
                                           atomic_load(&member->node->heartbeat_ms));
    if (!joins && terminal->print == print)
        return;
    struct terminal old = *terminal; /* with its text */
    terminal->print = print;
    terminal->text = (struct buf){0};
    write_start(&terminal->text, member);
    if (joins)
        note(terminals, "JOIN", NULL, terminal);
    else if (!str_eq(buf_view(&old.text), buf_view(&terminal->text)))
        note(terminals, "UPDATE", &old, terminal);
    buf_free(&old.text);
}

/* Found first, taken out then: the map must not change while it is walked. */
static void drop_gone(struct terminals *terminals)
{
    struct arena arena = {0};
    struct terminal **gone = arena_array(&arena, struct terminal *, terminals->by_id.count + 1);
    struct terminal *terminal;
    size_t count = 0;

    for (size_t i = 0; (terminal = map_next(&terminals->by_id, &i));)
        if (terminal->seen != terminals->scan)
            gone[count++] = terminal;
    for (size_t i = 0; i < count; i++) {
        map_del(&terminals->by_id, gone[i]->id);
        note(terminals, "LEAVE", gone[i], NULL);
        terminal_free(gone[i]);
    }
    arena_free(&arena);
}

void terminals_tick(struct terminals *terminals)
{
    struct worker *keeper = server_keeper(terminals->server);
    const struct snapshot *snapshot = keeper->sched->snapshot;
    const struct settings *settings = atomic_load(&terminals->server->settings);
    const struct snap_node *member;

    if (!snapshot || keeper->loop.mono_ms < terminals->next_scan_ms)
        return;
    terminals->next_scan_ms = keeper->loop.mono_ms + SCAN_MS;
    terminals->scan++;
    for (struct snap_at at = {0}; (member = snapshot_next(snapshot, &at));)
        if (is_present(member->node, sched_awake_ms(keeper->sched), settings->sched.view_drop_ms))
            look_at(terminals, member);
    drop_gone(terminals);
}

static int by_id(const void *a, const void *b)
{
    return str_cmp((*(struct terminal *const *)a)->id, (*(struct terminal *const *)b)->id);
}

/* Those behind `after`, by id; returns how many there are in all behind it. */
static size_t write_terminals(struct terminals *terminals, struct str after, size_t max,
                              struct jsonw *w, struct str *ret_last)
{
    struct arena arena = {0};
    struct terminal **list = arena_array(&arena, struct terminal *, terminals->by_id.count + 1);
    struct terminal *terminal;
    size_t count = 0;

    for (size_t i = 0; (terminal = map_next(&terminals->by_id, &i));)
        if (!after.len || str_cmp(terminal->id, after) > 0)
            list[count++] = terminal;
    qsort(list, count, sizeof *list, by_id);
    jsonw_key(w, "terminals");
    jsonw_arr(w);
    for (size_t i = 0; i < count && i < max; i++) {
        write_terminal(w, list[i]);
        *ret_last = list[i]->id;
    }
    jsonw_end_arr(w);
    arena_free(&arena);
    return count;
}

static void write_name(const struct terminals *terminals, struct jsonw *w)
{
    jsonw_kstr(w, "source", str_of(terminals->source));
    jsonw_kint(w, "seq", (int64_t)terminals->seq);
}

void terminals_write_list(struct terminals *terminals, struct jsonw *w)
{
    struct str last;

    jsonw_obj(w);
    jsonw_kstr(w, "type", STR("TERMINAL_LIST"));
    write_name(terminals, w);
    write_terminals(terminals, STR_NONE, SIZE_MAX, w, &last);
    jsonw_end_obj(w);
}

void terminals_tell(struct worker *worker)
{
    int64_t seq = atomic_load(&worker->server->terminal_seq);
    char text[64];

    if (seq == worker->told_seq)
        return;
    worker->told_seq = seq;
    snprintf(text, sizeof text, "{\"msg\":\"terminals_changed\",\"seq\":%lld}", (long long)seq);
    hub_tell_all(worker->hub, str_of(text));
}

/* A request on its way to the keeper and back. */
struct terminals_ask {
    struct msg msg;
    struct call *call;
    void (*write)(struct terminals *terminals, struct terminals_ask *ask, struct jsonw *w);
    struct str source, after;
    int64_t seq, limit;
    struct buf answer;
};

static void ask_answered(struct msg *msg)
{
    struct terminals_ask *ask = container_of(msg, struct terminals_ask, msg);
    struct buf answer = ask->answer; /* the reply ends the request, and us with it */

    call_json(ask->call, 200, &answer);
    buf_free(&answer);
}

static void ask_keeper(struct msg *msg)
{
    struct terminals_ask *ask = container_of(msg, struct terminals_ask, msg);
    struct jsonw w = jsonw_to(&ask->answer);

    assert(ask->write && !ask->answer.len);
    jsonw_obj(&w);
    ask->write(ask->call->worker->server->terminals, ask, &w);
    jsonw_end_obj(&w);
    ask->msg.run = ask_answered;
    inbox_post(&ask->call->worker->loop.inbox, &ask->msg);
}

static struct terminals_ask *terminals_ask(struct call *call)
{
    struct terminals_ask *ask = arena_new(call->arena, struct terminals_ask);

    ask->msg.run = ask_keeper;
    ask->call = call;
    ask->limit = LIST_DEFAULT;
    return ask;
}

static void ask_send(struct terminals_ask *ask)
{
    inbox_post(&server_keeper(ask->call->worker->server)->loop.inbox, &ask->msg);
}

static void write_page(struct terminals *terminals, struct terminals_ask *ask, struct jsonw *w)
{
    struct str last = STR_NONE;

    write_name(terminals, w);
    size_t count = write_terminals(terminals, ask->after, (size_t)ask->limit, w, &last);
    jsonw_kstr(w, "next_cursor", count > (size_t)ask->limit ? last : STR_NONE);
}

void api_terminal_list(struct call *call)
{
    struct terminals_ask *ask = terminals_ask(call);

    ask->write = write_page;
    ask->after = call_query(call, "cursor");
    if (call_query_int(call, "limit", 1, LIST_MAX, &ask->limit))
        ask_send(ask);
}

static void write_sync(struct terminals *terminals, struct terminals_ask *ask, struct jsonw *w)
{
    bool knows = str_is(ask->source, terminals->source) && ask->seq >= 0 &&
                 (uint64_t)ask->seq <= terminals->seq &&
                 terminals->seq - (uint64_t)ask->seq < CHANGES_KEPT;
    struct str last;

    write_name(terminals, w);
    jsonw_kbool(w, "full", !knows);
    if (!knows) {
        write_terminals(terminals, STR_NONE, SIZE_MAX, w, &last);
        return;
    }
    jsonw_key(w, "changes");
    jsonw_arr(w);
    for (uint64_t seq = (uint64_t)ask->seq + 1; seq <= terminals->seq; seq++) {
        assert(terminals->changes[seq % CHANGES_KEPT].seq == seq);
        jsonw_raw(w, buf_view(&terminals->changes[seq % CHANGES_KEPT].text));
    }
    jsonw_end_arr(w);
}

void api_terminal_sync(struct call *call)
{
    struct terminals_ask *ask = terminals_ask(call);
    struct str node;

    ask->write = write_sync;
    ask->source = json_str(json_get(call->body, "source"), call->arena);
    ask->seq = -1;
    json_int(json_get(call->body, "seq"), &ask->seq);
    if (call_node(call, &node))
        ask_send(ask);
}
