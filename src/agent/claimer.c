/* One cycle is a chain of calls: members, table, usage (if the policy needs it), then claims. Each
 * call has a deadline, so a cycle always ends. The member list and the table of deployments are
 * kept between cycles and updated. */
#include "agent/claimer.h"

#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

static void claim_next(struct claimer *claimer);
static void release_next(struct claimer *claimer);
static void ask_view(struct claimer *claimer, struct str cursor);

/* --- the table of deployments --- */

void deploy_table_init(struct deploy_table *table)
{
    *table = (struct deploy_table){.version = -1, .facts = -1};
}

void deploy_table_forget(struct deploy_table *table)
{
    table->version = table->facts = -1;
}

void deploy_table_done(struct deploy_table *table)
{
    arena_free(&table->arena);
    arena_free(&table->facts_arena);
    arena_free(&table->marks_arena);
    deploy_table_init(table);
}

void deploy_table_write(struct deploy_table *table, struct jsonw *w)
{
    table->page = 0;
    if (table->version >= 0) {
        jsonw_kint(w, "if_version", table->version);
        jsonw_kbool(w, "delta", true);
    }
    if (table->facts >= 0)
        jsonw_kint(w, "if_facts", table->facts);
}

static struct str text_of(const struct json *row, const char *name, struct arena *arena)
{
    struct str text = json_str(json_get(row, name), arena);

    return text.at ? text : STR("");
}

static void read_row(const struct json *row, struct arena *arena, struct deploy_row *to)
{
    const struct json *needs = json_get(row, "needs");

    *to = (struct deploy_row){.id = text_of(row, "id", arena),
                              .address = text_of(row, "address", arena),
                              .type = deploy_type_by_name(text_of(row, "type", arena)),
                              .selector = text_of(row, "selector", arena),
                              .updated_at = text_of(row, "updated_at", arena),
                              .created_at = text_of(row, "created_at", arena),
                              .needs = json_is_null(needs) ? STR("") : json_raw(needs)};
    to->demand = deploy_demand(to->needs, arena);
    json_bool(json_get(row, "enabled"), &to->enabled);
    json_int(json_get(row, "generation"), &to->generation);
}

/* A copy of a list, in the arena; NULL: not a list. */
static const struct json *own_list(const struct json *given, struct arena *arena)
{
    const struct json *list = NULL;
    enum err err = json_type(given) == JSON_ARR
                       ? json_parse(arena_str(arena, json_raw(given)), arena, &list, NULL)
                       : ERR_OK;

    assert(!err); /* it was read before */
    return list;
}

static void read_rows(struct deploy_table *table, const struct json *given)
{
    struct arena *arena = &table->arena;
    struct deploy_row *rows;
    const struct json *list, *row;

    if (table->page == 1) {
        arena_reset(arena);
        table->row_count = 0;
        table->rows = NULL;
    }
    list = own_list(given, arena);
    rows = arena_array(arena, struct deploy_row, table->row_count + list->count + 1);
    for (size_t i = 0; i < table->row_count; i++)
        rows[i] = table->rows[i];
    for (row = json_items(list); row; row = json_after(list, row))
        read_row(row, arena, &rows[table->row_count++]);
    table->rows = rows;
}

/* Merges changed and new rows, and the names of deleted ones, into our table. A row that was
 * deleted and created again is in both. */
static void merge_rows(struct deploy_table *table, const struct json *given,
                       const struct json *gone)
{
    struct deploy_table old = *table;
    const struct json *row, *name;
    size_t at = 0;
    struct map dropped = {0};
    struct arena arena = {0};

    table->arena = (struct arena){0};
    table->row_count = 0;
    row = json_first(own_list(given, &table->arena)); /* its strings live as long as the rows */
    table->rows = arena_array(&table->arena, struct deploy_row, old.row_count + given->count + 1);
    for (name = json_items(gone); name; name = json_after(gone, name))
        map_put(&dropped, json_str(name, &arena), &arena);
    for (uint32_t i = 0; i <= given->count; i++, row = i < given->count ? json_next(row) : NULL) {
        struct deploy_row one;
        int order = -1;

        if (i < given->count)
            read_row(row, &table->arena, &one);
        while (at < old.row_count &&
               (i == given->count || (order = str_cmp(old.rows[at].id, one.id)) < 0)) {
            struct deploy_row kept = old.rows[at++];

            if (map_get(&dropped, kept.id))
                continue;
            kept.id = arena_str(&table->arena, kept.id);
            kept.address = arena_str(&table->arena, kept.address);
            kept.selector = arena_str(&table->arena, kept.selector);
            kept.updated_at = arena_str(&table->arena, kept.updated_at);
            kept.created_at = arena_str(&table->arena, kept.created_at);
            kept.needs = arena_str(&table->arena, kept.needs);
            kept.demand = deploy_demand(kept.needs, &table->arena);
            table->rows[table->row_count++] = kept;
        }
        if (i == given->count)
            break;
        at += at < old.row_count && order == 0;
        table->rows[table->row_count++] = one;
    }
    map_free(&dropped);
    arena_free(&arena);
    arena_free(&old.arena);
}

static void take_facts(struct deploy_table *table, const struct json *reply)
{
    int64_t facts = -1, until_ms = 0;

    table->mode = json_str_is(json_get(reply, "mode"), deploy_mode_name(DEPLOY_SEED))
                      ? DEPLOY_SEED
                      : DEPLOY_HARDENED;
    json_int(json_get(reply, "now_ms"), &table->now_ms);
    table->approved =
        json_int(json_get(reply, "approved_until_ms"), &until_ms) && until_ms > table->now_ms;
    json_int(json_get(reply, "facts"), &facts);
    if (facts >= 0 && facts == table->facts)
        return; /* as they were */
    table->facts = facts;
    table->facts_ms = table->now_ms;
    arena_reset(&table->facts_arena);
    table->leases = own_list(json_get(reply, "leases"), &table->facts_arena);
    table->failures = own_list(json_get(reply, "failures"), &table->facts_arena);
}

static int by_row_id(const void *id, const void *row)
{
    return str_cmp(*(const struct str *)id, ((const struct deploy_row *)row)->id);
}

/* The failures of one row are adjacent. */
static void mark_failures(struct deploy_table *table)
{
    struct arena *arena = &table->marks_arena;
    size_t count = table->failures ? table->failures->count : 0;
    struct str *addresses;
    const struct json *failure = json_first(table->failures);

    arena_reset(arena);
    addresses = arena_array(arena, struct str, count + 1);
    for (size_t i = 0; i < table->row_count; i++)
        table->rows[i].failed_count = 0;
    for (size_t i = 0; i < count; i++, failure = json_next(failure)) {
        struct str id = text_of(failure, "id", arena);
        struct deploy_row *row = /* the failures are sorted by id */
            table->row_count ? bsearch(&id, table->rows, table->row_count, sizeof *row, by_row_id)
                             : NULL;

        addresses[i] = text_of(failure, "address", arena);
        if (!row)
            continue;
        if (row->failed_count == 0)
            row->failed_on = &addresses[i];
        row->failed_count++;
    }
}

void deploy_table_take(struct deploy_table *table, const struct json *reply, struct arena *arena,
                       struct str *ret_cursor)
{
    const struct json *rows = json_get(reply, "rows");
    int64_t version = -1;
    bool delta = false;

    *ret_cursor = STR("");
    json_bool(json_get(reply, "delta"), &delta);
    if (++table->page == 1)
        take_facts(table, reply);
    if (json_type(rows) == JSON_ARR) { /* otherwise unchanged */
        if (delta)
            merge_rows(table, rows, json_get(reply, "gone"));
        else
            read_rows(table, rows);
        json_int(json_get(reply, "version"), &version);
        if (table->page == 1 || version < table->oldest_page)
            table->oldest_page = version;
        table->version = -1;
        if (json_is_null(json_get(reply, "next_cursor")))
            table->version = table->oldest_page; /* the next view brings what has changed */
        else
            *ret_cursor = json_str(json_get(reply, "next_cursor"), arena);
    }
    if (!ret_cursor->len)
        mark_failures(table);
}

static const struct json *find_lease(const struct deploy_table *table, struct str node)
{
    const struct json *lease = json_items(table->leases), *found = NULL;
    struct arena arena = {0};

    for (; lease && !found; lease = json_after(table->leases, lease))
        if (str_eq(json_str(json_get(lease, "address"), &arena), node))
            found = lease;
    arena_free(&arena);
    return found;
}

int64_t deploy_table_left_ms(const struct deploy_table *table, struct str node)
{
    int64_t left_ms = -1;

    if (json_int(json_get(find_lease(table, node), "left_ms"), &left_ms))
        left_ms -= table->now_ms - table->facts_ms;
    return left_ms;
}

bool deploy_table_goodbye(const struct deploy_table *table, struct str node)
{
    bool goodbye = false;

    json_bool(json_get(find_lease(table, node), "goodbye"), &goodbye);
    return goodbye;
}

/* --- the member list --- */

/* A member that has been away for longer and owns nothing is dropped. */
enum { WATCH_MS_MAX = 5 * 60 * 1000 };

/* Tag of a node that would not claim although it is healthy: it is full, or claims nothing. */
#define TAG_TAKES "node_unit_takes"

/* Tag of a node that supports copies with an index. */
#define TAG_INDEXED "node_unit_indexed"

struct member_list_entry {
    struct arena arena;
    struct str id;
    const struct json *terminal;
};

struct member_list_watch {
    struct arena arena;
    struct str node;
    struct member_watch watch;
};

void member_list_init(struct member_list *member_list)
{
    *member_list = (struct member_list){.synced_ms = MEMBER_NEVER};
}

static void free_entry(struct member_list_entry *entry)
{
    if (entry)
        arena_free(&entry->arena);
    free(entry);
}

static void free_entries(struct map *map)
{
    struct member_list_entry *entry;

    for (size_t i = 0; (entry = map_next(map, &i));)
        free_entry(entry);
    map_free(map);
    *map = (struct map){0};
}

static void free_watch(struct member_list_watch *watch)
{
    arena_free(&watch->arena);
    free(watch);
}

void member_list_done(struct member_list *member_list)
{
    struct member_list_watch *watch;

    free_entries(&member_list->by_id);
    for (size_t i = 0; (watch = map_next(&member_list->watches, &i));)
        free_watch(watch);
    map_free(&member_list->watches);
}

void member_list_write(const struct member_list *member_list, struct jsonw *w)
{
    if (!member_list->source[0])
        return;
    jsonw_kstr(w, "source", str_of(member_list->source));
    jsonw_kint(w, "seq", member_list->seq);
}

/* --- updates from the server --- */

static void put_entry(struct member_list *member_list, const struct json *terminal)
{
    struct member_list_entry *entry = mem_new(struct member_list_entry);
    struct str text = arena_str(&entry->arena, json_raw(terminal));

    if (json_parse(text, &entry->arena, &entry->terminal, NULL) != ERR_OK)
        entry->terminal = NULL;
    entry->id = json_str(json_get(entry->terminal, "terminal_id"), &entry->arena);
    if (!entry->id.len) {
        free_entry(entry);
        return;
    }
    free_entry(map_del(&member_list->by_id, entry->id));
    map_put(&member_list->by_id, entry->id, entry);
}

bool member_list_take(struct member_list *member_list, const struct json *reply, int64_t now_ms)
{
    const struct json *list = json_get(reply, "terminals"), *changes = json_get(reply, "changes");
    const struct json *change, *terminal;
    int64_t seq = 0, before = member_list->seq;
    struct arena own = {0};
    struct str source = json_str(json_get(reply, "source"), &own);
    bool same = source.len > 0 && str_is(source, member_list->source);

    if (!same && !str_copy(source, member_list->source, sizeof member_list->source))
        member_list->source[0] = 0;
    arena_free(&own);
    if (!json_int(json_get(reply, "seq"), &seq) || !member_list->source[0])
        return false;
    member_list->seq = seq;
    if (json_type(list) == JSON_ARR) {
        if (!same) /* the server restarted: all nodes have to reconnect first */
            member_list->synced_ms = MEMBER_NEVER;
        free_entries(&member_list->by_id);
        for (terminal = json_items(list); terminal; terminal = json_after(list, terminal))
            put_entry(member_list, terminal);
        if (member_list->synced_ms == MEMBER_NEVER)
            member_list->synced_ms = now_ms;
        return true;
    }
    if (!same || json_type(changes) != JSON_ARR || before + changes->count != seq) {
        member_list->source[0] = 0;
        return false;
    }
    for (change = json_items(changes); change; change = json_after(changes, change)) {
        const struct json *payload = json_get(change, "payload"), *added = json_get(payload, "new");
        struct arena arena = {0};

        if (!json_is_null(added))
            put_entry(member_list, added);
        else
            free_entry(
                map_del(&member_list->by_id,
                        json_str(json_get(json_get(payload, "old"), "terminal_id"), &arena)));
        arena_free(&arena);
    }
    return true;
}

/* --- what is derived from it --- */

static int by_id(const void *a, const void *b)
{
    return str_cmp((*(struct member_list_entry *const *)a)->id,
                   (*(struct member_list_entry *const *)b)->id);
}

static const struct json *tag(const struct member_list_entry *entry, const char *name)
{
    return json_get(json_get(entry->terminal, "tags"), name);
}

size_t member_list_nodes(const struct member_list *member_list, struct arena *arena,
                         struct claim_node **ret_nodes)
{
    size_t count = member_list->by_id.count, filled = 0;
    struct member_list_entry **sorted = arena_array(arena, struct member_list_entry *, count + 1),
                             *entry;
    struct member *members = arena_array(arena, struct member, count + 1);
    struct member_units units;

    for (size_t i = 0; (entry = map_next(&member_list->by_id, &i));)
        sorted[filled++] = entry;
    assert(filled == count);
    qsort(sorted, filled, sizeof *sorted, by_id);
    for (size_t i = 0; i < filled; i++)
        members[i] =
            (struct member){.terminal_id = sorted[i]->id,
                            .node_unit = json_str(tag(sorted[i], "node_unit"), arena),
                            .address = json_str(tag(sorted[i], "node_unit_address"), arena)};
    member_units(members, filled, 0, MEMBER_TTL_OFF, arena, &units);
    *ret_nodes = arena_array(arena, struct claim_node, units.addresses.count + 1);
    for (size_t i = 0; i < units.addresses.count; i++) {
        struct claim_node *node = &(*ret_nodes)[i];

        entry = map_get(&member_list->by_id, units.terminals[i]);
        *node = (struct claim_node){.id = units.addresses.at[i],
                                    .labels = json_get(entry->terminal, "labels"),
                                    .namespaces = json_get(entry->terminal, "namespaces"),
                                    .indexed = json_str_is(tag(entry, TAG_INDEXED), "true")};
        json_bool(json_get(entry->terminal, "takes"), &node->takes);
        if (json_str_is(tag(entry, TAG_TAKES), "false"))
            node->takes = false;
    }
    return units.addresses.count;
}

static void watch(struct member_list *member_list, struct str node)
{
    struct member_list_watch *own = map_get(&member_list->watches, node);

    assert(node.len > 0);
    if (own)
        return;
    own = mem_new(struct member_list_watch);
    own->node = arena_str(&own->arena, node);
    member_watch_init(&own->watch);
    map_put(&member_list->watches, own->node, own);
}

static struct member_list_watch *next_forgotten(struct member_list *member_list,
                                                const struct names *owners, int64_t now_ms)
{
    struct member_list_watch *own;

    for (size_t i = 0; (own = map_next(&member_list->watches, &i));)
        if (own->watch.absent_since_ms != MEMBER_NEVER &&
            now_ms - own->watch.absent_since_ms > WATCH_MS_MAX &&
            names_find(owners, own->node) == NAMES_NONE)
            return own;
    return NULL;
}

void member_list_note(struct member_list *member_list, const struct names *online,
                      const struct names *owners, int64_t now_ms)
{
    struct member_list_watch *own;

    for (size_t i = 0; i < online->count; i++)
        watch(member_list, online->at[i]);
    for (size_t i = 0; i < owners->count; i++)
        watch(member_list, owners->at[i]);
    for (size_t i = 0; (own = map_next(&member_list->watches, &i));)
        member_watch_note(&own->watch, names_find(online, own->node) != NAMES_NONE, now_ms);
    while ((own = next_forgotten(member_list, owners, now_ms))) {
        map_del(&member_list->watches, own->node);
        free_watch(own);
    }
}

int64_t member_list_lost_at_ms(const struct member_list *member_list, struct str node,
                               const struct member_rules *rules)
{
    const struct member_list_watch *own = map_get(&member_list->watches, node);

    return own ? member_lost_at_ms(&own->watch, rules, member_list->synced_ms) : MEMBER_NEVER;
}

void member_list_absent(const struct member_list *member_list, struct arena *arena,
                        struct names *ret_absent)
{
    const struct member_list_watch *own;

    names_init(ret_absent, member_list->watches.count, arena);
    for (size_t i = 0; (own = map_next(&member_list->watches, &i));)
        if (own->watch.absent_since_ms != MEMBER_NEVER)
            names_add(ret_absent, own->node);
}

/* --- the claim cycle --- */

enum {
    CALL_MS = 3000,
    USAGE_MS = 1000,    /* for one node's answer */
    WAKE_MS_MAX = 100,  /* maximum random pause before a cycle that an event triggers */
    CONFLICTS_MAX = 64, /* per cycle: beyond this others are faster, and there is a next cycle */
    PAGES_MAX = 1000,
};

static void ask(struct claimer *claimer, const char *path, void (*done)(struct link_call *call),
                int64_t timeout_ms)
{
    assert(claimer->busy && claimer->up);
    claimer->link_call = (struct link_call){
        .path = path, .body = buf_view(&claimer->body), .timeout_ms = timeout_ms, .done = done};
    link_calls_send(claimer->config.link_calls, &claimer->link_call);
}

static struct jsonw new_body(struct claimer *claimer)
{
    struct jsonw w = jsonw_to(&claimer->body);

    buf_clear(&claimer->body);
    jsonw_obj(&w);
    jsonw_kstr(&w, "node_id", claimer->config.node_id);
    return w;
}

/* --- the end of a cycle --- */

static int64_t interval_ms(const struct claimer *claimer)
{
    return claimer->config.config->claim_interval_ms;
}

/* Claims up to its share instead of a budget per interval. Not while the list is new: nodes that
 * were started together need time to connect, or the first of them takes everything. */
static bool claims_share(const struct claimer *claimer)
{
    return claimer->config.config->claim_budget == 0 && claimer->table.mode != DEPLOY_SEED &&
           member_view_ready(&(struct member_rules){.warmup_ms = interval_ms(claimer)},
                             claimer->members.synced_ms, claimer->loop->mono_ms);
}

/* The next share may be claimed at once, unless the metric must be measured again first. */
static bool claims_at_will(const struct claimer *claimer)
{
    return claimer->config.config->claim_policy->step > 0 && claims_share(claimer);
}

static void end_cycle(struct claimer *claimer, enum claim_skip skip)
{
    int64_t pause_ms = interval_ms(claimer), now_ms = claimer->loop->mono_ms;

    assert(claimer->busy);
    if (claimer->claimed > 0 && claims_at_will(claimer))
        pause_ms /= 10; /* there may be more to claim */
    claimer->busy = false;
    claimer->cycles++;
    /* Conflicts, and planned rows without room, were counted one by one. */
    if (skip != CLAIM_CONFLICT && (skip != CLAIM_NO_ROOM || claimer->next == 0))
        claimer->skips[skip]++;
    claimer->last = skip;
    log_event(LOG_DEBUG, "claim.cycle", KS("node_id", claimer->config.node_id),
              KC("result", claim_skip_name(skip)), KI("claimed", (int64_t)claimer->claimed),
              KI("nodes", (int64_t)claimer->node_count),
              KI("absent", (int64_t)claimer->absent_count),
              KI("ms", claimer->loop->mono_ms - claimer->begun_ms));
    /* Up to a tenth more, so that nodes that started together spread out. */
    pause_ms += rnd_below(&claimer->rnd, (uint32_t)(pause_ms / 10 + 1));
    claimer->next_ms = now_ms + pause_ms;
    if (claimer->due_ms && claimer->due_ms < claimer->next_ms &&
        (claimer->tried == 0 || claims_at_will(claimer)))
        claimer->next_ms = claimer->due_ms;
    if (claimer->tried > 0)
        claimer->last_attempt_ms = now_ms;
    if (claimer->claimed > 0)
        node_lease_renew_now(claimer->config.node_lease);
    if (claimer->woken)
        claimer_wake(claimer);
    arena_reset(&claimer->cycle);
}

/* A server or network failure; the next cycle tries again. */
static void give_up(struct claimer *claimer, const char *what, enum err err)
{
    if (err != ERR_CLOSED && err != claimer->failed) /* logged once, not every few seconds */
        log_event(LOG_WARN, "claim.cycle_failed", KS("node_id", claimer->config.node_id),
                  KC("call", what), KC("reason", err_name(err)));
    claimer->failed = err;
    end_cycle(claimer, CLAIM_NOT_READY);
}

/* --- claiming --- */

/* Does a row fit here beside all that was claimed? The server knows no more about this node than
 * its last heartbeat said. */
static bool fits_here(const struct claimer *claimer, const struct deploy_row *row)
{
    struct resources_short lack;
    uint64_t gpus;

    return !row->demand || !claimer->config.capacity ||
           resources_fit(&claimer->own, row->demand, &gpus, &lack);
}

/* The row is this node's: what it needs is no longer free. */
static void reserve_here(struct claimer *claimer, const struct deploy_row *row)
{
    struct resources_short lack;
    uint64_t gpus;

    if (row->demand && claimer->config.capacity &&
        resources_fit(&claimer->own, row->demand, &gpus, &lack))
        resources_take(&claimer->own, row->demand, gpus);
}

static void on_claimed(struct link_call *call)
{
    struct claimer *claimer = container_of(call, struct claimer, link_call);
    const struct deploy_row *row = claimer->plan.order[claimer->next - 1];
    int64_t generation = 0;

    assert(claimer->tried > 0 && claimer->tried <= claimer->next);
    if (call->err == ERR_OK) {
        claimer->claimed++;
        claimer->claims++;
        claimer->owned++;
        reserve_here(claimer, row);
        json_int(json_get(call->reply, "generation"), &generation);
        log_event(LOG_INFO, "claim.claimed", KS("deployment_id", row->id),
                  KS("node_id", claimer->config.node_id), KI("generation", generation),
                  KS("from", row->address));
    } else if (call->err == ERR_CONFLICT) {
        struct arena arena = {0};
        struct str reason = json_str(json_get(call->reply, "reason"), &arena);

        claimer->conflicts++;
        claimer->skips[CLAIM_CONFLICT]++;
        log_event(LOG_DEBUG, "claim.refused", KS("node_id", claimer->config.node_id),
                  KS("deployment_id", row->id), KS("reason", reason));
        arena_free(&arena);
    } else {
        deploy_table_forget(&claimer->table); /* the claim may or may not have been made */
        give_up(claimer, call->path, call->err);
        return;
    }
    claim_next(claimer);
}

static size_t room(const struct claimer *claimer)
{
    size_t max = (size_t)claimer->config.config->deployments_max;
    size_t have = copies_count(claimer->config.copies);

    if (have < claimer->owned)
        have = claimer->owned;
    return have < max ? max - have : 0;
}

static void claim_next(struct claimer *claimer)
{
    const struct deploy_row *row;
    struct jsonw w;

    while (claimer->next < claimer->plan.count &&
           !fits_here(claimer, claimer->plan.order[claimer->next])) {
        claimer->next++;
        claimer->skips[CLAIM_NO_ROOM]++;
    }
    if (claimer->next == claimer->plan.count || room(claimer) == 0 ||
        claimer->claimed >= claimer->budget || claimer->conflicts >= CONFLICTS_MAX) {
        end_cycle(claimer, claimer->claimed > 0     ? CLAIM_GO
                           : claimer->conflicts > 0 ? CLAIM_CONFLICT
                                                    : CLAIM_NO_ROOM);
        return;
    }
    row = claimer->plan.order[claimer->next++];
    claimer->tried++;
    w = new_body(claimer);
    jsonw_kstr(&w, "id", row->id);
    jsonw_kstr(&w, "instance", claimer->config.instance);
    jsonw_kstr(&w, "observed", row->address);
    jsonw_kint(&w, "generation", row->generation);
    jsonw_end_obj(&w);
    ask(claimer, "/v1/deployments/claim", on_claimed, CALL_MS);
}

/* --- deciding --- */

/* When the rows of an absent owner may be taken. */
static int64_t lost_at_ms(const struct claimer *claimer, struct str owner)
{
    int64_t lease_ms = claimer->config.node_lease->lease_ms, at_ms, left_ms, over_ms;
    /* Everything scales with the lease: 15 s and 30 s for a lease of 45 s. */
    struct member_rules rules = {.grace_ms = lease_ms / 3, .warmup_ms = lease_ms / 3 * 2};

    if (claimer->table.mode == DEPLOY_SEED)
        return member_list_lost_at_ms(&claimer->members, owner, &member_seed);
    at_ms = member_list_lost_at_ms(&claimer->members, owner, &rules);
    left_ms = deploy_table_left_ms(&claimer->table, owner);
    over_ms = claimer->loop->mono_ms + left_ms + 1;
    return at_ms != MEMBER_NEVER && left_ms >= 0 && over_ms > at_ms ? over_ms : at_ms;
}

/* The reason this node claims nothing now, whatever the table holds. */
static enum claim_skip own_skip(const struct claimer *claimer)
{
    const struct node_lease *node_lease = claimer->config.node_lease;

    if (!claimer->config.config->allow_deployments)
        return CLAIM_NOT_ALLOWED;
    if (claimer->danger)
        return CLAIM_LEVEL;
    if (node_lease->admin != NODE_LEASE_NONE)
        return CLAIM_DRAINING;
    if (room(claimer) == 0)
        return CLAIM_FULL;
    if (!node_lease_may_run_now(node_lease))
        return CLAIM_NOT_READY;
    return CLAIM_GO;
}

/* Which nodes are online, with how much, and which are lost. */
static void look_around(struct claimer *claimer)
{
    int64_t now_ms = claimer->loop->mono_ms, *counts;
    struct names online, absent;

    claimer->node_count = member_list_nodes(&claimer->members, &claimer->cycle, &claimer->nodes);
    names_init(&online, claimer->node_count, &claimer->cycle);
    for (size_t i = 0; i < claimer->node_count; i++)
        names_add(&online, claimer->nodes[i].id);
    counts = arena_array(&claimer->cycle, int64_t, claimer->node_count + 1);
    deploy_counts(claimer->table.rows, claimer->table.row_count, &online, counts);
    claimer->owned = 0;
    for (size_t i = 0; i < claimer->node_count; i++) {
        claimer->nodes[i].deployments = counts[i];
        if (str_eq(claimer->nodes[i].id, claimer->config.node_id))
            claimer->owned = (size_t)counts[i];
    }
    deploy_absent_owners(claimer->table.rows, claimer->table.row_count, &online, &claimer->cycle,
                         &absent);
    member_list_note(&claimer->members, &online, &absent, now_ms);
    names_init(&claimer->lost, absent.count, &claimer->cycle);
    claimer->due_ms = 0;
    for (size_t i = 0; i < absent.count; i++) {
        int64_t at_ms = lost_at_ms(claimer, absent.at[i]);

        if (str_eq(absent.at[i], claimer->config.node_id) || at_ms == MEMBER_NEVER)
            continue;
        if (at_ms <= now_ms)
            names_add(&claimer->lost, absent.at[i]);
        else if (!claimer->due_ms || at_ms < claimer->due_ms)
            claimer->due_ms = at_ms;
    }
    /* If most other nodes left without a goodbye, their rows are not touched. */
    member_list_absent(&claimer->members, &claimer->cycle, &absent);
    claimer->absent_count = 0;
    for (size_t i = 0; i < absent.count; i++)
        claimer->absent_count += !deploy_table_goodbye(&claimer->table, absent.at[i]);
    claimer->mass_loss = claimer->table.mode != DEPLOY_SEED && !claimer->table.approved &&
                         claimer->lost.count > 0 &&
                         claim_mass_loss(claimer->node_count, claimer->absent_count);
    if (claimer->mass_loss)
        names_init(&claimer->lost, 0, &claimer->cycle);
}

/* Rows that were claimed but have not reached the copies yet are deducted from the room of this
 * node, both as it knows itself and as the server does. */
static void count_own(struct claimer *claimer)
{
    struct resources *told = NULL;

    if (!claimer->config.capacity)
        return;
    claimer->own = claimer->config.capacity->resources;
    for (size_t i = 0; i < claimer->node_count; i++)
        if (claimer->nodes[i].room && str_eq(claimer->nodes[i].id, claimer->config.node_id)) {
            told = arena_new(&claimer->cycle, struct resources);
            *told = *claimer->nodes[i].room;
            claimer->nodes[i].room = told;
        }
    for (size_t i = 0; i < claimer->table.row_count; i++) {
        const struct deploy_row *row = &claimer->table.rows[i];
        const struct copy *copy = map_get(&claimer->config.copies->by_id, row->id);
        struct resources_short lack;
        uint64_t gpus;

        if (!row->demand || !row->enabled || !str_eq(row->address, claimer->config.node_id) ||
            (copy && copy->demand[0])) /* its room is kept for it */
            continue;
        reserve_here(claimer, row);
        if (told && resources_fit(told, row->demand, &gpus, &lack))
            resources_take(told, row->demand, gpus);
    }
}

/* Gives up rows that keep failing here and have not failed elsewhere, and rows that have had no
 * room here for an interval: a figure that goes up and down must not send them to and fro. A row
 * that failed everywhere, or has no other node, stays and is retried. */
static void leave_failing(struct claimer *claimer, const struct claim_view *view)
{
    int64_t failures_max = claimer->config.config->move_after_failures;
    struct copies *copies = claimer->config.copies;

    if (view->mode == DEPLOY_SEED || !node_lease_may_run_now(claimer->config.node_lease))
        return;
    for (size_t i = 0; i < view->row_count; i++) {
        const struct deploy_row *row = &view->rows[i];
        enum copy_hold hold = COPY_NOT_HELD;

        if (!str_eq(row->address, view->me) || row->type != DEPLOY_DEPLOYMENT)
            continue;
        if (failures_max > 0 && copies_failures(copies, row->id) >= failures_max)
            hold = COPY_FAILING;
        else if (copies_lacks(copies, row->id, interval_ms(claimer)))
            hold = COPY_NO_ROOM;
        if (hold && claim_elsewhere(view, row))
            copies_set_hold(copies, row->id, hold);
    }
}

static void decide(struct claimer *claimer)
{
    const struct config *config = claimer->config.config;
    bool seed = claimer->table.mode == DEPLOY_SEED;
    struct claim_view view = {
        .me = claimer->config.node_id,
        .policy = config->claim_policy,
        .context = {.weights = config->claim_weights,
                    .unknown_zero = seed || config->unknown_metric == CONFIG_UNKNOWN_ZERO},
        .mode = claimer->table.mode,
        .nodes = claimer->nodes,
        .node_count = claimer->node_count,
        .rows = claimer->table.rows,
        .row_count = claimer->table.row_count,
        .lost = &claimer->lost};
    enum claim_skip skip = own_skip(claimer);

    assert(claimer->next == 0 && claimer->tried == 0 && claimer->claimed == 0);
    count_own(claimer);
    leave_failing(claimer, &view);
    if (skip == CLAIM_GO) {
        bool share = claims_share(claimer);

        (share ? claim_share : claim_plan)(&view, &claimer->cycle, &claimer->plan);
        skip = claimer->plan.skip;
        claimer->budget = share                      ? claimer->plan.count
                          : config->claim_budget > 0 ? (size_t)config->claim_budget
                                                     : 1;
    }
    if (skip != CLAIM_GO && claimer->mass_loss)
        skip = CLAIM_MASS_LOSS;
    if (skip == CLAIM_GO)
        claim_next(claimer);
    else
        end_cycle(claimer, skip);
}

/* --- usage --- */

/* The usage of other nodes is requested only when a row to be claimed needs some. */
static bool wants_room(const struct claimer *claimer)
{
    for (size_t i = 0; i < claimer->table.row_count; i++) {
        const struct deploy_row *row = &claimer->table.rows[i];

        if (row->demand && row->enabled && row->type == DEPLOY_DEPLOYMENT &&
            (!row->address.len || names_find(&claimer->lost, row->address) != NAMES_NONE ||
             copies_lacks(claimer->config.copies, row->id, 0) ||
             copies_failures(claimer->config.copies, row->id) > 0))
            return true;
    }
    return false;
}

static void on_usage(struct link_call *call)
{
    struct claimer *claimer = container_of(call, struct claimer, link_call);
    const struct json *all = json_get(call->reply, "usage"), *key;
    const struct json *rooms = json_get(call->reply, "room");

    if (call->err == ERR_CLOSED) {
        give_up(claimer, call->path, call->err);
        return;
    }
    /* All usage is unknown then; the policy says what that means. */
    if (call->err)
        log_event(LOG_WARN, "claim.no_usage", KS("node_id", claimer->config.node_id),
                  KC("reason", err_name(call->err)));
    for (key = call->err ? NULL : json_keys(all); key; key = json_after(all, key))
        for (size_t j = 0; j < claimer->node_count; j++) {
            struct claim_node *node = &claimer->nodes[j];

            if (!str_eq(json_str(key, &claimer->cycle), node->id))
                continue;
            node->usage_known =
                json_double(json_get(key + 1, "cpu_percent"), &node->usage.cpu_percent) &&
                json_double(json_get(key + 1, "memory_mb"), &node->usage.memory_mb);
            json_double(json_get(key + 1, "memory_total_mb"), &node->memory_total_mb);
        }
    for (size_t i = 0; !call->err && json_type(rooms) == JSON_OBJ && i < claimer->node_count; i++) {
        struct claim_node *node = &claimer->nodes[i];
        const struct json *told = json_get(rooms, arena_cstr(&claimer->cycle, node->id));
        struct resources *room = arena_new(&claimer->cycle, struct resources);
        struct problem why;

        if (!json_is_null(told) &&
            !resources_read(json_get(told, "resources"), &claimer->cycle, room, &why) &&
            !resources_read_free(json_get(told, "left"), NULL, &claimer->cycle, room, &why))
            node->room = room;
    }
    decide(claimer);
}

static void write_addresses(const struct claimer *claimer, const char *name, bool all,
                            struct jsonw *w)
{
    jsonw_karr(w, name);
    for (size_t i = 0; all && i < claimer->node_count; i++)
        jsonw_str(w, claimer->nodes[i].id);
    jsonw_end_arr(w);
}

static void ask_usage(struct claimer *claimer, bool room)
{
    struct jsonw w = new_body(claimer);

    write_addresses(claimer, "addresses", claimer->config.config->claim_policy->wants_usage, &w);
    if (room)
        write_addresses(claimer, "room", true, &w);
    jsonw_kint(&w, "timeout_ms", USAGE_MS);
    jsonw_end_obj(&w);
    ask(claimer, "/v1/terminals/usage", on_usage, USAGE_MS + CALL_MS);
}

/* --- the table --- */

static void on_released(struct link_call *call)
{
    struct claimer *claimer = container_of(call, struct claimer, link_call);

    if (call->err)
        give_up(claimer, call->path, call->err);
    else
        release_next(claimer);
}

/* Mode seed: all rows of a lost node are released at once. Then the table is read again, and rows
 * are claimed from it in the same cycle. */
static void release_next(struct claimer *claimer)
{
    struct jsonw w;

    if (claimer->released == claimer->lost.count) {
        deploy_table_forget(&claimer->table);
        ask_view(claimer, STR_NONE);
        return;
    }
    w = new_body(claimer);
    jsonw_kstr(&w, "address", claimer->lost.at[claimer->released++]);
    jsonw_end_obj(&w);
    ask(claimer, "/v1/deployments/lost", on_released, CALL_MS);
}

static void on_view(struct link_call *call)
{
    struct claimer *claimer = container_of(call, struct claimer, link_call);
    struct str cursor;
    bool room;

    if (call->err) {
        deploy_table_forget(&claimer->table);
        give_up(claimer, call->path, call->err);
        return;
    }
    deploy_table_take(&claimer->table, call->reply, &claimer->cycle, &cursor);
    if (cursor.len && claimer->table.page < PAGES_MAX) {
        ask_view(claimer, cursor);
        return;
    }
    claimer->failed = ERR_OK;
    look_around(claimer);
    room = wants_room(claimer);
    if (claimer->table.mode == DEPLOY_SEED && claimer->node_count > 0 && claimer->lost.count > 0 &&
        claimer->released == 0)
        release_next(claimer);
    else if (room ||
             (claimer->config.config->claim_policy->wants_usage && own_skip(claimer) == CLAIM_GO))
        ask_usage(claimer, room);
    else
        decide(claimer);
}

static void ask_view(struct claimer *claimer, struct str cursor)
{
    struct jsonw w = new_body(claimer);

    if (cursor.at)
        jsonw_kstr(&w, "cursor", cursor);
    else
        deploy_table_write(&claimer->table, &w);
    jsonw_kbool(&w, "indexed", true);
    jsonw_end_obj(&w);
    ask(claimer, "/v1/deployments/view", on_view, CALL_MS);
}

/* --- the members --- */

static void on_members(struct link_call *call)
{
    struct claimer *claimer = container_of(call, struct claimer, link_call);

    if (call->err) {
        give_up(claimer, call->path, call->err);
        return;
    }
    if (!member_list_take(&claimer->members, call->reply, claimer->loop->mono_ms)) {
        give_up(claimer, call->path, ERR_STALE); /* the next cycle requests everything */
        return;
    }
    ask_view(claimer, STR_NONE);
}

/* --- scheduling --- */

static void on_tick(struct loop_part *part)
{
    struct claimer *claimer = container_of(part, struct claimer, part);
    struct jsonw w;

    if (!claimer->up || claimer->busy || claimer->loop->mono_ms < claimer->next_ms)
        return;
    claimer->busy = true;
    claimer->woken = false;
    claimer->begun_ms = claimer->loop->mono_ms;
    claimer->next = claimer->tried = claimer->claimed = claimer->conflicts = 0;
    claimer->released = 0;
    claimer->nodes = NULL;
    claimer->node_count = 0;
    w = new_body(claimer);
    member_list_write(&claimer->members, &w);
    jsonw_end_obj(&w);
    ask(claimer, "/v1/terminals/sync", on_members, CALL_MS);
}

void claimer_wake(struct claimer *claimer)
{
    int64_t now_ms = claimer->loop->mono_ms, next_ms;

    claimer->woken = claimer->busy;
    if (claimer->busy)
        return;
    next_ms = now_ms + rnd_below(&claimer->rnd, WAKE_MS_MAX);
    if (!claims_at_will(claimer) && next_ms < claimer->last_attempt_ms + interval_ms(claimer))
        next_ms = claimer->last_attempt_ms + interval_ms(claimer);
    if (next_ms < claimer->begun_ms + interval_ms(claimer) / 10)
        next_ms = claimer->begun_ms + interval_ms(claimer) / 10;
    if (next_ms < claimer->next_ms)
        claimer->next_ms = next_ms;
}

void claimer_up(struct claimer *claimer)
{
    claimer->up = true;
    deploy_table_forget(&claimer->table);
    member_list_done(&claimer->members); /* warm-up starts again with the next full list */
    member_list_init(&claimer->members);
    claimer->next_ms = claimer->loop->mono_ms;
}

bool claimer_takes(const struct claimer *claimer)
{
    const struct config *config = claimer->config.config;

    return config->allow_deployments && config->claim_policy->evaluate && room(claimer) > 0;
}

void claimer_write(const struct claimer *claimer, struct jsonw *w)
{
    jsonw_obj(w);
    jsonw_kint(w, "cycles", claimer->cycles);
    jsonw_kint(w, "claims", claimer->claims);
    jsonw_kobj(w, "skips");
    for (int skip = CLAIM_GO + 1; skip < CLAIM_SKIP_COUNT; skip++)
        if (claimer->skips[skip])
            jsonw_kint(w, claim_skip_name((enum claim_skip)skip), claimer->skips[skip]);
    jsonw_end_obj(w);
    jsonw_kstr(w, "last", claimer->cycles ? str_of(claim_skip_name(claimer->last)) : STR_NONE);
    jsonw_end_obj(w);
}

struct claimer *claimer_new(struct loop *loop, const struct claimer_config *config)
{
    struct claimer *claimer = mem_new(struct claimer);

    claimer->loop = loop;
    claimer->config = *config;
    deploy_table_init(&claimer->table);
    claimer->last_attempt_ms = INT64_MIN / 2; /* never */
    member_list_init(&claimer->members);
    rnd_seed_os(&claimer->rnd);
    claimer->part = (struct loop_part){.tick = on_tick, .free = link_part_left};
    loop_add_part(loop, &claimer->part);
    return claimer;
}

void claimer_free(struct claimer *claimer)
{
    if (!claimer)
        return;
    loop_remove_part(claimer->loop, &claimer->part);
    member_list_done(&claimer->members);
    deploy_table_done(&claimer->table);
    arena_free(&claimer->cycle);
    buf_free(&claimer->body);
    free(claimer);
}
