/* The member list. A node is a member while it is connected, or if it sent a heartbeat within
 * view_drop_ms. The list is refreshed five times a second, of a large fleet once; figures that
 * change with every heartbeat are not part of it. Also asks members for their usage. */
#include "server/members.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/map.h"
#include "base/mem.h"
#include "model/level.h"
#include "server/api.h"
#include "server/events.h"
#include "server/hub.h"
#include "server/rpc.h"

struct usage_ask {
    struct usage_call *own;
    struct str address;
    struct rpc rpc;
};

/* Usage: all nodes are asked at the same time, each with its own deadline; the answer is sent when
 * the last of them has answered or timed out. */
struct usage_call {
    const struct json *room; /* include the room of these nodes; NULL: of none */
    struct call *call;
    struct usage_ask *asks;
    size_t count;
    size_t waiting;
};

/* --- the list --- */

enum {
    SCAN_MS = 200,
    SCAN_NODES_A_MS = 20, /* nodes to look at in each millisecond between scans, at most */
    CHANGES_KEPT = 1024,  /* for clients that sync; after more they get the full list */
    LIST_DEFAULT = 1000,
    LIST_MAX = 10000,
    SOURCE_BYTES = 24,
};

struct terminal {
    uint64_t print; /* a hash of what its text is made of */
    uint64_t seen;  /* the scan that last found it */
    struct str id;
    struct buf text; /* the object, without last_seen_ms and the closing brace */
    int64_t last_seen_ms;
};

struct change_line {
    uint64_t seq;
    struct buf text;
};

struct members {
    struct server *server;
    struct map by_id; /* -> struct terminal * */
    uint64_t seq;
    uint64_t scan;
    int64_t next_scan_ms;
    char source[SOURCE_BYTES];
    struct change_line changes[CHANGES_KEPT]; /* by seq, as a ring */
};

struct members *members_new(struct server *server)
{
    struct members *members = mem_new(struct members);

    members->server = server;
    snprintf(members->source, sizeof members->source, "%llx",
             (unsigned long long)clock_wall_ms() << 16 ^ (unsigned long long)getpid());
    return members;
}

static void terminal_free(struct terminal *terminal)
{
    buf_free(&terminal->text);
    free((char *)terminal->id.at);
    free(terminal);
}

void members_free(struct members *members)
{
    struct terminal *terminal;

    if (!members)
        return;
    for (size_t i = 0; (terminal = map_next(&members->by_id, &i));)
        terminal_free(terminal);
    map_free(&members->by_id);
    for (size_t i = 0; i < CHANGES_KEPT; i++)
        buf_free(&members->changes[i].text);
    free(members);
}

static bool takes_work(const struct node *node)
{
    return atomic_load(&node->health) == NODE_READY && atomic_load(&node->level) < LEVEL_DANGER &&
           atomic_load(&node->admin) == NODE_ADMIN_NONE;
}

static void write_terminal(struct jsonw *w, const struct terminal *terminal)
{
    struct buf buf = {0};

    buf_str(&buf, buf_view(&terminal->text));
    buf_fmt(&buf, ",\"last_seen_ms\":%lld}", (long long)terminal->last_seen_ms);
    jsonw_raw(w, buf_view(&buf));
    buf_free(&buf);
}

/* A change gets the next number, is kept for clients that sync, and sent to event readers. */
static void note(struct members *members, const char *what, const struct terminal *old,
                 const struct terminal *new)
{
    assert(old || new);
    uint64_t seq = ++members->seq;
    struct change_line *line = &members->changes[seq % CHANGES_KEPT];
    struct jsonw w = jsonw_to(&line->text);

    buf_clear(&line->text);
    line->seq = seq;
    jsonw_obj(&w);
    jsonw_kstr(&w, "type", STR("TERMINAL_CHANGE"));
    jsonw_kstr(&w, "change", str_of(what));
    jsonw_kstr(&w, "source", str_of(members->source));
    jsonw_kint(&w, "seq", (int64_t)seq);
    jsonw_kobj(&w, "payload");
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
    atomic_store(&members->server->terminal_seq, (int64_t)seq);
    events_host(members->server, buf_view(&line->text));
}

static void look_at(struct members *members, const struct snap_node *member)
{
    const struct node *node = member->node;
    const struct facts *facts = member->facts;
    struct terminal *terminal = map_get(&members->by_id, node->id);
    int32_t level = atomic_load(&node->level);
    bool joins = !terminal;
    uint64_t parts[] = {(uint64_t)(uintptr_t)facts, (uint64_t)facts->version,
                        (uint64_t)atomic_load(&node->health), (uint64_t)level, takes_work(node)};
    uint64_t print = str_hash((struct str){.at = (const char *)parts, .len = sizeof parts});

    if (joins) {
        terminal = mem_new(struct terminal);
        terminal->id = mem_str(node->id);
        map_put(&members->by_id, terminal->id, terminal);
    }
    assert(str_eq(terminal->id, node->id) && facts->tags.at);
    terminal->seen = members->scan;
    terminal->last_seen_ms =
        sched_wall_ms(server_keeper(members->server)->sched, atomic_load(&node->heartbeat_ms));
    if (!joins && terminal->print == print)
        return;
    struct terminal old = *terminal; /* with its text */
    terminal->print = print;
    terminal->text = (struct buf){0};
    struct jsonw w = jsonw_to(&terminal->text);
    jsonw_obj(&w);
    jsonw_kstr(&w, "terminal_id", node->id);
    jsonw_kstr(&w, "name", facts->name);
    jsonw_kraw(&w, "tags", facts->tags);
    jsonw_kraw(&w, "labels", facts->labels);
    jsonw_kraw(&w, "namespaces", json_raw(facts->namespaces));
    jsonw_kbool(&w, "takes", takes_work(node));
    jsonw_kstr(&w, "health",
               str_of(node_health_name((enum node_health)atomic_load(&node->health))));
    jsonw_kstr(&w, "level", level < 0 ? STR_NONE : str_of(level_name((enum level)level)));
    jsonw_end_obj(&w);
    assert(terminal->text.len > 1 && terminal->text.at[terminal->text.len - 1] == '}');
    terminal->text.len--; /* without the brace: last_seen_ms is appended when it is sent */
    if (joins)
        note(members, "JOIN", NULL, terminal);
    else if (!str_eq(buf_view(&old.text), buf_view(&terminal->text)))
        note(members, "UPDATE", &old, terminal);
    buf_free(&old.text);
}

void members_tick(struct members *members)
{
    struct worker *keeper = server_keeper(members->server);
    const struct snapshot *snapshot = keeper->sched->snapshot;
    const struct settings *settings = atomic_load(&members->server->settings);
    const struct snap_node *member;
    struct terminal *terminal;
    struct arena arena = {0};
    size_t count = 0;

    if (!snapshot || keeper->loop.mono_ms < members->next_scan_ms)
        return;
    int64_t pause_ms = (int64_t)(snapshot->count / SCAN_NODES_A_MS);
    members->next_scan_ms = keeper->loop.mono_ms + (pause_ms > SCAN_MS ? pause_ms : SCAN_MS);
    members->scan++;
    for (struct snap_at at = {0}; (member = snapshot_next(snapshot, &at));) {
        const struct node *node = member->node;

        /* A node that said goodbye, or whose connection closed, is gone at once. */
        if (atomic_load(&node->disconnected_ms) || atomic_load(&node->own) == NODE_OFFLINE)
            continue;
        if (atomic_load(&node->link) ||
            sched_awake_ms(keeper->sched) - atomic_load(&node->heartbeat_ms) <=
                settings->sched.view_drop_ms)
            look_at(members, member);
    }
    /* Collect first, remove afterwards: the map must not change during the walk. */
    struct terminal **gone = arena_array(&arena, struct terminal *, members->by_id.count + 1);
    for (size_t i = 0; (terminal = map_next(&members->by_id, &i));)
        if (terminal->seen != members->scan)
            gone[count++] = terminal;
    for (size_t i = 0; i < count; i++) {
        map_del(&members->by_id, gone[i]->id);
        note(members, "LEAVE", gone[i], NULL);
        terminal_free(gone[i]);
    }
    arena_free(&arena);
}

static int by_id(const void *a, const void *b)
{
    return str_cmp((*(struct terminal *const *)a)->id, (*(struct terminal *const *)b)->id);
}

/* Those after `after`, by id; returns how many there are after it in all. */
static size_t write_terminals(struct members *members, struct str after, size_t max,
                              struct jsonw *w, struct str *ret_last)
{
    struct arena arena = {0};
    struct terminal **list = arena_array(&arena, struct terminal *, members->by_id.count + 1);
    struct terminal *terminal;
    size_t count = 0;

    for (size_t i = 0; (terminal = map_next(&members->by_id, &i));)
        if (!after.len || str_cmp(terminal->id, after) > 0)
            list[count++] = terminal;
    qsort(list, count, sizeof *list, by_id);
    jsonw_karr(w, "terminals");
    for (size_t i = 0; i < count && i < max; i++) {
        write_terminal(w, list[i]);
        *ret_last = list[i]->id;
    }
    jsonw_end_arr(w);
    arena_free(&arena);
    return count;
}

static void write_name(const struct members *members, struct jsonw *w)
{
    jsonw_kstr(w, "source", str_of(members->source));
    jsonw_kint(w, "seq", (int64_t)members->seq);
}

void members_write_list(struct members *members, struct jsonw *w)
{
    struct str last;

    jsonw_obj(w);
    jsonw_kstr(w, "type", STR("TERMINAL_LIST"));
    write_name(members, w);
    write_terminals(members, STR_NONE, SIZE_MAX, w, &last);
    jsonw_end_obj(w);
}

void members_announce(struct worker *worker)
{
    int64_t seq = atomic_load(&worker->server->terminal_seq);
    char text[64];

    if (seq == worker->announced_seq)
        return;
    worker->announced_seq = seq;
    snprintf(text, sizeof text, "{\"msg\":\"terminals_changed\",\"seq\":%lld}", (long long)seq);
    hub_broadcast(worker->hub, str_of(text));
}

/* A request on its way to the keeper and back. */
struct members_ask {
    struct msg msg;
    struct call *call;
    void (*write)(struct members *members, struct members_ask *ask, struct jsonw *w);
    struct str source, after;
    int64_t seq, limit;
    struct buf answer;
};

static void ask_answered(struct msg *msg)
{
    struct members_ask *ask = container_of(msg, struct members_ask, msg);
    struct buf answer = ask->answer; /* the reply ends the request, and frees `ask` */

    call_json(ask->call, 200, &answer);
}

static void ask_keeper(struct msg *msg)
{
    struct members_ask *ask = container_of(msg, struct members_ask, msg);
    struct jsonw w = jsonw_to(&ask->answer);

    assert(ask->write && !ask->answer.len);
    jsonw_obj(&w);
    ask->write(ask->call->worker->server->members, ask, &w);
    jsonw_end_obj(&w);
    ask->msg.run = ask_answered;
    inbox_post(&ask->call->worker->loop.inbox, &ask->msg);
}

static struct members_ask *members_ask(struct call *call)
{
    struct members_ask *ask = arena_new(call->arena, struct members_ask);

    ask->msg.run = ask_keeper;
    ask->call = call;
    ask->limit = LIST_DEFAULT;
    return ask;
}

static void ask_send(struct members_ask *ask)
{
    inbox_post(&server_keeper(ask->call->worker->server)->loop.inbox, &ask->msg);
}

static void write_page(struct members *members, struct members_ask *ask, struct jsonw *w)
{
    struct str last = STR_NONE;

    write_name(members, w);
    size_t count = write_terminals(members, ask->after, (size_t)ask->limit, w, &last);
    jsonw_kstr(w, "next_cursor", count > (size_t)ask->limit ? last : STR_NONE);
}

void api_terminal_list(struct call *call)
{
    struct members_ask *ask = members_ask(call);

    ask->write = write_page;
    ask->after = call_query(call, "cursor");
    if (call_query_int(call, "limit", 1, LIST_MAX, &ask->limit))
        ask_send(ask);
}

static void write_sync(struct members *members, struct members_ask *ask, struct jsonw *w)
{
    bool knows = str_is(ask->source, members->source) && ask->seq >= 0 &&
                 (uint64_t)ask->seq <= members->seq &&
                 members->seq - (uint64_t)ask->seq < CHANGES_KEPT;
    struct str last;

    write_name(members, w);
    jsonw_kbool(w, "full", !knows);
    if (!knows) {
        write_terminals(members, STR_NONE, SIZE_MAX, w, &last);
        return;
    }
    jsonw_karr(w, "changes");
    for (uint64_t seq = (uint64_t)ask->seq + 1; seq <= members->seq; seq++) {
        assert(members->changes[seq % CHANGES_KEPT].seq == seq);
        jsonw_raw(w, buf_view(&members->changes[seq % CHANGES_KEPT].text));
    }
    jsonw_end_arr(w);
}

void api_terminal_sync(struct call *call)
{
    struct members_ask *ask = members_ask(call);
    struct str node;

    ask->write = write_sync;
    ask->source = json_str(json_get(call->body, "source"), call->arena);
    ask->seq = -1;
    json_int(json_get(call->body, "seq"), &ask->seq);
    if (call_node(call, &node))
        ask_send(ask);
}

/* --- routes --- */

enum {
    ADDRESSES_MAX = 4096,
    USAGE_TIMEOUT_MS = 1000,
    USAGE_ASKS_MAX = 65536, /* in progress for callers of one loop */
};

/* What other work may use there now. A GPU that is shared cannot be had whole, however much of it
 * is left, so its figure is capped below that. */
static void room_write(struct jsonw *w, const struct snap_node *known)
{
    const struct resources *declared = known ? known->facts->resources : NULL;
    struct resources_left left;

    if (!declared || !counts_left(known->node, declared, &left)) {
        jsonw_null(w);
        return;
    }
    jsonw_obj(w);
    jsonw_kraw(w, "resources", known->facts->resources_json);
    jsonw_kobj(w, "left");
    for (size_t i = 0; i < declared->count; i++)
        write_amount(w, declared->items[i].name, str_of(declared->items[i].name), left.left[i]);
    jsonw_karr(w, "gpus");
    for (size_t i = 0; i < declared->gpu_count; i++) {
        const struct resource_gpu *gpu = &declared->gpus[i];
        int32_t most = (int32_t)((int64_t)gpu->vram_mb * RESOURCES_WHOLE_PERCENT / 100) - 1;
        int32_t amount = left.gpu_left[i];

        if ((left.shared >> i & 1) && amount > most)
            amount = most;
        jsonw_obj(w);
        jsonw_kint(w, "id", gpu->id);
        jsonw_kint(w, "vram_mb", amount > 0 ? amount : 0);
        jsonw_end_obj(w);
    }
    jsonw_end_arr(w);
    jsonw_end_obj(w);
    jsonw_end_obj(w);
}

static void write_usage(struct usage_call *own)
{
    struct map written = {0};
    struct jsonw w = call_begin(own->call);

    jsonw_kobj(&w, "usage");
    for (size_t i = 0; i < own->count; i++) {
        struct usage_ask *ask = &own->asks[i];

        jsonw_key_str(&w, ask->address);
        jsonw_raw(&w, ask->rpc.err ? STR("null") : buf_view(&ask->rpc.answer));
        buf_free(&ask->rpc.answer);
    }
    jsonw_end_obj(&w);
    if (own->room) {
        jsonw_kobj(&w, "room");
        for (const struct json *item = json_items(own->room); item;
             item = json_after(own->room, item)) {
            struct str address = json_str(item, own->call->arena);

            if (!address.len || map_get(&written, address))
                continue;
            map_put(&written, address, &written);
            jsonw_key_str(&w, address);
            room_write(&w, snapshot_node(own->call->worker->sched->snapshot, address));
        }
        jsonw_end_obj(&w);
        map_free(&written);
    }
    own->call->worker->usage_asks -= (int64_t)own->count;
    call_end(own->call, 200, &w);
}

static void usage_answered(struct rpc *rpc)
{
    struct usage_call *own = container_of(rpc, struct usage_ask, rpc)->own;

    assert(own->waiting > 0);
    if (--own->waiting == 0)
        write_usage(own);
}

void api_terminal_usage(struct call *call)
{
    struct usage_call *own = arena_new(call->arena, struct usage_call);
    const struct json *list = json_get(call->body, "addresses");
    int64_t timeout_ms = USAGE_TIMEOUT_MS;
    struct map listed = {0};
    struct str node;

    if (!call_node(call, &node))
        return;
    if (json_type(list) != JSON_ARR || list->count > ADDRESSES_MAX) {
        call_error(call, ERR_BAD_FIELD, "addresses",
                   "addresses must be a list of at most %d nodes.", ADDRESSES_MAX);
        return;
    }
    own->room = json_get(call->body, "room");
    if (json_is_null(own->room))
        own->room = NULL;
    if (own->room && (json_type(own->room) != JSON_ARR || own->room->count > ADDRESSES_MAX)) {
        call_error(call, ERR_BAD_FIELD, "room", "room must be a list of at most %d nodes.",
                   ADDRESSES_MAX);
        return;
    }
    json_int(json_get(call->body, "timeout_ms"), &timeout_ms);
    if (timeout_ms < 1 || timeout_ms > RPC_TIMEOUT_MS)
        timeout_ms = timeout_ms < 1 ? 1 : RPC_TIMEOUT_MS;
    own->call = call;
    own->asks = arena_array(call->arena, struct usage_ask, list->count + 1);
    for (const struct json *item = json_items(list); item; item = json_after(list, item)) {
        struct str address = json_type(item) == JSON_STR ? json_str(item, call->arena) : STR_NONE;

        if (!address.len || map_get(&listed, address))
            continue; /* do not ask a node twice */
        map_put(&listed, address, own);
        own->asks[own->count++].address = address;
    }
    map_free(&listed);
    if (call->worker->usage_asks + (int64_t)own->count > USAGE_ASKS_MAX) {
        call_error(call, ERR_BUSY, "addresses", "%d nodes are being asked already.",
                   USAGE_ASKS_MAX);
        return;
    }
    call->worker->usage_asks += (int64_t)own->count;
    own->waiting = own->count + 1; /* one extra, until all have been asked */
    for (size_t i = 0; i < own->count; i++) {
        struct usage_ask *ask = &own->asks[i];
        const struct snap_node *known = snapshot_node(call->worker->sched->snapshot, ask->address);

        ask->own = own;
        ask->rpc.from = call->worker;
        ask->rpc.timeout_ms = timeout_ms;
        ask->rpc.done = usage_answered;
        snprintf(ask->rpc.method, sizeof ask->rpc.method, "NodeUnit/InspectResourceUsage");
        if (known) {
            rpc_send(&ask->rpc, known->node);
        } else {
            ask->rpc.err = ERR_NOT_FOUND;
            own->waiting--;
        }
    }
    if (--own->waiting == 0)
        write_usage(own);
}
