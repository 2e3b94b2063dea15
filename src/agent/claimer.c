/* One cycle is a chain of calls: members, table, usage (if the policy wants it), then claims. Each
 * has a deadline, so a cycle always ends. */
#include "agent/claimer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agent/docket.h"
#include "agent/roster.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    CALL_MS = 3000,
    USAGE_MS = 1000,    /* for one node's answer */
    WAKE_MS_MAX = 100,  /* a random pause before a cycle that an event brings about */
    CONFLICTS_MAX = 64, /* in one cycle: then the others are quicker, and there is a next one */
    PAGES_MAX = 1000,
};

struct claimer {
    struct loop *loop;
    struct claimer_config config;
    struct roster roster;
    bool up, danger, busy;
    enum err failed;    /* why the last cycle did; ERR_OK: it did not */
    bool woken;         /* while a cycle was under way */
    int64_t next_ms;    /* of the next cycle, CLOCK_MONOTONIC */
    int64_t due_ms;     /* when the next of those that are absent will be lost; 0: none */
    int64_t begun_ms;   /* of the last cycle */
    int64_t claimed_ms; /* the end of the last one that tried to claim */
    struct docket docket;
    /* this cycle */
    struct arena cycle;
    struct query query;
    struct buf body;
    struct claim_node *nodes;
    size_t node_count;
    struct names lost;   /* whose rows may be taken */
    bool mass_loss;      /* none may */
    size_t absent_count; /* nodes that went without a goodbye */
    size_t released;     /* of the lost; mode seed */
    struct claim_plan plan;
    size_t budget; /* claims in this cycle at most */
    size_t tried, claimed, conflicts;
    size_t owned; /* by this node, as the table has it and with what was claimed since */
    /* ever */
    int64_t cycles, claims, skips[CLAIM_SKIP_COUNT];
    enum claim_skip last;
    struct rnd rnd;
    struct loop_part part;
};

static void ask(struct claimer *claimer, const char *path, void (*done)(struct query *query),
                int64_t timeout_ms)
{
    assert(claimer->busy && claimer->up);
    claimer->query = (struct query){
        .path = path, .body = buf_view(&claimer->body), .timeout_ms = timeout_ms, .done = done};
    queries_send(claimer->config.queries, &claimer->query);
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

/* A share, instead of a budget for each interval. Not while the list is new: nodes that were
 * started together must have had the time to come, or the first of them takes everything. */
static bool claims_share(const struct claimer *claimer)
{
    return claimer->config.config->claim_budget == 0 && claimer->docket.mode != DEPLOY_SEED &&
           member_view_ready(&(struct member_rules){.warmup_ms = interval_ms(claimer)},
                             claimer->roster.synced_ms, claimer->loop->mono_ms);
}

/* The next share may follow at once, unless the metric must be measured again before. */
static bool claims_at_will(const struct claimer *claimer)
{
    const struct claim_provider *provider = claimer->config.config->claim_policy->provider;

    return provider && provider->step > 0 && claims_share(claimer);
}

static void end_cycle(struct claimer *claimer, enum claim_skip skip)
{
    int64_t pause_ms = interval_ms(claimer), now_ms = claimer->loop->mono_ms;

    assert(claimer->busy);
    if (claimer->claimed > 0 && claims_at_will(claimer))
        pause_ms /= 10; /* there may be more */
    claimer->busy = false;
    claimer->cycles++;
    if (skip != CLAIM_CONFLICT) /* those were counted one by one */
        claimer->skips[skip]++;
    claimer->last = skip;
    log_event(LOG_DEBUG, "claim.cycle", KS("node_id", claimer->config.node_id),
              KC("result", claim_skip_name(skip)), KI("claimed", (int64_t)claimer->claimed),
              KI("nodes", (int64_t)claimer->node_count),
              KI("absent", (int64_t)claimer->absent_count),
              KI("ms", claimer->loop->mono_ms - claimer->begun_ms));
    /* Up to a tenth more, so that nodes that began together do not stay together. */
    pause_ms += rnd_below(&claimer->rnd, (uint32_t)(pause_ms / 10 + 1));
    claimer->next_ms = now_ms + pause_ms;
    if (claimer->due_ms && claimer->due_ms < claimer->next_ms &&
        (claimer->tried == 0 || claims_at_will(claimer)))
        claimer->next_ms = claimer->due_ms;
    if (claimer->tried > 0)
        claimer->claimed_ms = now_ms;
    if (claimer->claimed > 0)
        tenure_look(claimer->config.tenure);
    if (claimer->woken)
        claimer_wake(claimer);
    arena_reset(&claimer->cycle);
}

/* What went wrong is the server's or the network's; the next cycle sees. */
static void give_up(struct claimer *claimer, const char *what, enum err err)
{
    if (err != ERR_CLOSED && err != claimer->failed) /* once, not every few seconds */
        log_event(LOG_WARN, "claim.cycle_failed", KS("node_id", claimer->config.node_id),
                  KC("call", what), KC("reason", err_name(err)));
    claimer->failed = err;
    end_cycle(claimer, CLAIM_NOT_READY);
}

/* --- claiming --- */

static void claim_next(struct claimer *claimer);

static void count_refusal(struct claimer *claimer, const struct json *reply,
                          const struct deploy_row *row)
{
    struct arena arena = {0};
    struct str reason = json_str(json_get(reply, "reason"), &arena);

    claimer->conflicts++;
    claimer->skips[CLAIM_CONFLICT]++;
    log_event(LOG_DEBUG, "claim.refused", KS("node_id", claimer->config.node_id),
              KS("deployment_id", row->id), KS("reason", reason));
    arena_free(&arena);
}

static void on_claimed(struct query *query)
{
    struct claimer *claimer = container_of(query, struct claimer, query);
    const struct deploy_row *row = claimer->plan.order[claimer->tried - 1];
    int64_t generation = 0;

    assert(claimer->tried > 0 && claimer->tried <= claimer->plan.count);
    if (query->err == ERR_OK) {
        claimer->claimed++;
        claimer->claims++;
        claimer->owned++;
        json_int(json_get(query->reply, "generation"), &generation);
        log_event(LOG_INFO, "claim.claimed", KS("deployment_id", row->id),
                  KS("node_id", claimer->config.node_id), KI("generation", generation),
                  KS("from", row->address));
    } else if (query->err == ERR_CONFLICT) {
        count_refusal(claimer, query->reply, row);
    } else {
        docket_forget(&claimer->docket); /* nobody knows whether it was done */
        give_up(claimer, query->path, query->err);
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

    if (claimer->tried == claimer->plan.count || room(claimer) == 0 ||
        claimer->claimed >= claimer->budget || claimer->conflicts >= CONFLICTS_MAX) {
        end_cycle(claimer, claimer->claimed > 0 ? CLAIM_GO : CLAIM_CONFLICT);
        return;
    }
    row = claimer->plan.order[claimer->tried++];
    w = new_body(claimer);
    jsonw_kstr(&w, "id", row->id);
    jsonw_kstr(&w, "instance", claimer->config.instance);
    jsonw_kstr(&w, "observed", row->address);
    jsonw_kint(&w, "generation", row->generation);
    jsonw_end_obj(&w);
    ask(claimer, "/v1/deployments/claim", on_claimed, CALL_MS);
}

/* --- deciding --- */

static struct member_rules rules_of(const struct claimer *claimer)
{
    int64_t lease_ms = tenure_lease_ms(claimer->config.tenure);

    /* Everything scales with the lease: 15 s and 30 s of 45 s. */
    return claimer->docket.mode == DEPLOY_SEED
               ? member_seed
               : (struct member_rules){.grace_ms = lease_ms / 3, .warmup_ms = lease_ms / 3 * 2};
}

/* From when on the rows of an absent owner may be taken. */
static int64_t lost_ms(const struct claimer *claimer, struct str address)
{
    struct member_rules rules = rules_of(claimer);
    int64_t at_ms = roster_lost_ms(&claimer->roster, address, &rules);
    int64_t left_ms =
        claimer->docket.mode == DEPLOY_SEED ? -1 : docket_left_ms(&claimer->docket, address);
    int64_t lease_ms = claimer->loop->mono_ms + left_ms + 1;

    return at_ms != MEMBER_NEVER && left_ms >= 0 && lease_ms > at_ms ? lease_ms : at_ms;
}

static void find_lost(struct claimer *claimer, const struct names *online)
{
    struct names absent;
    int64_t now_ms = claimer->loop->mono_ms;

    deploy_lost(claimer->docket.rows, claimer->docket.row_count, online, &claimer->cycle, &absent);
    roster_note(&claimer->roster, online, &absent, now_ms);
    names_init(&claimer->lost, absent.count, &claimer->cycle);
    claimer->due_ms = 0;
    for (size_t i = 0; i < absent.count; i++) {
        int64_t at_ms = lost_ms(claimer, absent.at[i]);

        if (str_eq(absent.at[i], claimer->config.node_id) || at_ms == MEMBER_NEVER)
            continue;
        if (at_ms <= now_ms)
            names_add(&claimer->lost, absent.at[i]);
        else if (!claimer->due_ms || at_ms < claimer->due_ms)
            claimer->due_ms = at_ms;
    }
}

/* Most of the others are gone, and said nothing: what they own is not touched. */
static void guard(struct claimer *claimer)
{
    struct names absent;

    roster_absent(&claimer->roster, &claimer->cycle, &absent);
    claimer->absent_count = 0;
    for (size_t i = 0; i < absent.count; i++)
        claimer->absent_count += !docket_goodbye(&claimer->docket, absent.at[i]);
    claimer->mass_loss = claimer->docket.mode != DEPLOY_SEED && !claimer->docket.approved &&
                         claimer->lost.count > 0 &&
                         claim_mass_loss(claimer->node_count, claimer->absent_count);
    if (claimer->mass_loss)
        names_init(&claimer->lost, 0, &claimer->cycle);
}

/* Why this node claims nothing now, whatever there is. */
static enum claim_skip own_skip(const struct claimer *claimer)
{
    const struct tenure *tenure = claimer->config.tenure;

    if (!claimer->config.config->allow_deployments)
        return CLAIM_NOT_ALLOWED;
    if (claimer->danger)
        return CLAIM_LEVEL;
    if (tenure_admin(tenure) != TENURE_NONE)
        return CLAIM_DRAINING;
    if (room(claimer) == 0)
        return CLAIM_FULL;
    if (!tenure_good(tenure))
        return CLAIM_NOT_READY;
    return CLAIM_GO;
}

/* Who is online, with how much, and who is lost. */
static void look_around(struct claimer *claimer)
{
    struct names online;
    int64_t *counts;

    claimer->node_count = roster_nodes(&claimer->roster, &claimer->cycle, &claimer->nodes);
    names_init(&online, claimer->node_count, &claimer->cycle);
    for (size_t i = 0; i < claimer->node_count; i++)
        names_add(&online, claimer->nodes[i].address);
    counts = arena_array(&claimer->cycle, int64_t, claimer->node_count + 1);
    deploy_counts(claimer->docket.rows, claimer->docket.row_count, &online, counts);
    claimer->owned = 0;
    for (size_t i = 0; i < claimer->node_count; i++) {
        claimer->nodes[i].deployments = counts[i];
        if (str_eq(claimer->nodes[i].address, claimer->config.node_id))
            claimer->owned = (size_t)counts[i];
    }
    find_lost(claimer, &online);
    guard(claimer);
}

/* What keeps failing here and did not fail elsewhere goes there. Where all failed, or there is
 * nobody else, it stays and is tried on. */
static void leave_failing(struct claimer *claimer, const struct claim_view *view)
{
    int64_t failures_max = claimer->config.config->move_after_failures;
    struct copies *copies = claimer->config.copies;

    if (failures_max == 0 || view->mode == DEPLOY_SEED || !tenure_good(claimer->config.tenure))
        return;
    for (size_t i = 0; i < view->row_count; i++) {
        const struct deploy_row *row = &view->rows[i];

        if (str_eq(row->address, view->me) && row->type == DEPLOY_DEPLOYMENT &&
            copies_failures(copies, row->id) >= failures_max && claim_elsewhere(view, row))
            copies_hold(copies, row->id, COPY_FAILING);
    }
}

static void decide(struct claimer *claimer)
{
    const struct config *config = claimer->config.config;
    bool seed = claimer->docket.mode == DEPLOY_SEED;
    struct claim_view view = {
        .me = claimer->config.node_id,
        .policy = config->claim_policy,
        .context = {.weights = config->claim_weights,
                    .unknown_zero = seed || config->unknown_metric == CONFIG_UNKNOWN_ZERO},
        .mode = claimer->docket.mode,
        .nodes = claimer->nodes,
        .node_count = claimer->node_count,
        .rows = claimer->docket.rows,
        .row_count = claimer->docket.row_count,
        .lost = &claimer->lost};
    enum claim_skip skip = own_skip(claimer);

    assert(claimer->tried == 0 && claimer->claimed == 0);
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

static void on_usage(struct query *query)
{
    struct claimer *claimer = container_of(query, struct claimer, query);
    const struct json *all = json_get(query->reply, "usage"), *key = json_first(all);
    uint32_t count = json_type(all) == JSON_OBJ ? all->count : 0;

    if (query->err == ERR_CLOSED) {
        give_up(claimer, query->path, query->err);
        return;
    }
    /* Nobody's usage is known then, and the policy says what that means. */
    if (query->err)
        log_event(LOG_WARN, "claim.no_usage", KS("node_id", claimer->config.node_id),
                  KC("reason", err_name(query->err)));
    for (uint32_t i = 0; !query->err && i < count; i++, key = json_next(key + 1))
        for (size_t j = 0; j < claimer->node_count; j++) {
            struct claim_node *node = &claimer->nodes[j];

            if (!str_eq(json_str(key, &claimer->cycle), node->address))
                continue;
            node->usage_known =
                json_double(json_get(key + 1, "cpu_percent"), &node->usage.cpu_percent) &&
                json_double(json_get(key + 1, "memory_mb"), &node->usage.memory_mb);
            json_double(json_get(key + 1, "memory_total_mb"), &node->memory_total_mb);
        }
    decide(claimer);
}

static void ask_usage(struct claimer *claimer)
{
    struct jsonw w = new_body(claimer);

    jsonw_key(&w, "addresses");
    jsonw_arr(&w);
    for (size_t i = 0; i < claimer->node_count; i++)
        jsonw_str(&w, claimer->nodes[i].address);
    jsonw_end_arr(&w);
    jsonw_kint(&w, "timeout_ms", USAGE_MS);
    jsonw_end_obj(&w);
    ask(claimer, "/v1/terminals/usage", on_usage, USAGE_MS + CALL_MS);
}

/* --- the table --- */

static void ask_view(struct claimer *claimer, struct str cursor);

static void release_next(struct claimer *claimer);

static void on_released(struct query *query)
{
    struct claimer *claimer = container_of(query, struct claimer, query);

    if (query->err)
        give_up(claimer, query->path, query->err);
    else
        release_next(claimer);
}

/* Mode seed: what a lost node has is nobody's, all of it at once. Then the table is read
 * again, and claimed from in the same cycle. */
static void release_next(struct claimer *claimer)
{
    struct jsonw w;

    if (claimer->released == claimer->lost.count) {
        docket_forget(&claimer->docket);
        ask_view(claimer, STR_NONE);
        return;
    }
    w = new_body(claimer);
    jsonw_kstr(&w, "address", claimer->lost.at[claimer->released++]);
    jsonw_end_obj(&w);
    ask(claimer, "/v1/deployments/lost", on_released, CALL_MS);
}

static void table_known(struct claimer *claimer)
{
    claimer->failed = ERR_OK;
    look_around(claimer);
    if (claimer->docket.mode == DEPLOY_SEED && claimer->node_count > 0 && claimer->lost.count > 0 &&
        claimer->released == 0)
        release_next(claimer);
    else if (claimer->config.config->claim_policy->wants_usage && own_skip(claimer) == CLAIM_GO)
        ask_usage(claimer);
    else
        decide(claimer);
}

static void on_view(struct query *query)
{
    struct claimer *claimer = container_of(query, struct claimer, query);
    struct str cursor;

    if (query->err) {
        docket_forget(&claimer->docket);
        give_up(claimer, query->path, query->err);
        return;
    }
    docket_take(&claimer->docket, query->reply, &claimer->cycle, &cursor);
    if (cursor.len && claimer->docket.page < PAGES_MAX)
        ask_view(claimer, cursor);
    else
        table_known(claimer);
}

static void ask_view(struct claimer *claimer, struct str cursor)
{
    struct jsonw w = new_body(claimer);

    if (cursor.at)
        jsonw_kstr(&w, "cursor", cursor);
    else
        docket_write(&claimer->docket, &w);
    jsonw_end_obj(&w);
    ask(claimer, "/v1/deployments/view", on_view, CALL_MS);
}

/* --- the members --- */

static void on_members(struct query *query)
{
    struct claimer *claimer = container_of(query, struct claimer, query);

    if (query->err) {
        give_up(claimer, query->path, query->err);
        return;
    }
    if (!roster_take(&claimer->roster, query->reply, claimer->loop->mono_ms)) {
        give_up(claimer, query->path, ERR_STALE); /* the next cycle asks for everything */
        return;
    }
    ask_view(claimer, STR_NONE);
}

static void begin_cycle(struct claimer *claimer)
{
    struct jsonw w = new_body(claimer);

    assert(!claimer->busy);
    claimer->busy = true;
    claimer->woken = false;
    claimer->begun_ms = claimer->loop->mono_ms;
    claimer->tried = claimer->claimed = claimer->conflicts = claimer->released = 0;
    claimer->nodes = NULL;
    claimer->node_count = 0;
    roster_write(&claimer->roster, &w);
    jsonw_end_obj(&w);
    ask(claimer, "/v1/terminals/sync", on_members, CALL_MS);
}

/* --- when --- */

static void on_tick(struct loop_part *part)
{
    struct claimer *claimer = container_of(part, struct claimer, part);

    if (claimer->up && !claimer->busy && claimer->loop->mono_ms >= claimer->next_ms)
        begin_cycle(claimer);
}

void claimer_wake(struct claimer *claimer)
{
    int64_t now_ms = claimer->loop->mono_ms, next_ms;

    claimer->woken = claimer->busy;
    if (claimer->busy)
        return;
    next_ms = now_ms + rnd_below(&claimer->rnd, WAKE_MS_MAX);
    if (!claims_at_will(claimer) && next_ms < claimer->claimed_ms + interval_ms(claimer))
        next_ms = claimer->claimed_ms + interval_ms(claimer);
    if (next_ms < claimer->begun_ms + interval_ms(claimer) / 10)
        next_ms = claimer->begun_ms + interval_ms(claimer) / 10;
    if (next_ms < claimer->next_ms)
        claimer->next_ms = next_ms;
}

void claimer_up(struct claimer *claimer)
{
    claimer->up = true;
    docket_forget(&claimer->docket);
    roster_forget(&claimer->roster);
    claimer->next_ms = claimer->loop->mono_ms;
}

void claimer_down(struct claimer *claimer)
{
    claimer->up = false;
}

void claimer_danger(struct claimer *claimer, bool danger)
{
    claimer->danger = danger;
}

bool claimer_takes(const struct claimer *claimer)
{
    const struct config *config = claimer->config.config;

    return config->allow_deployments && config->claim_policy->provider && room(claimer) > 0;
}

void claimer_write(const struct claimer *claimer, struct jsonw *w)
{
    jsonw_obj(w);
    jsonw_kint(w, "cycles", claimer->cycles);
    jsonw_kint(w, "claims", claimer->claims);
    jsonw_key(w, "skips");
    jsonw_obj(w);
    for (int skip = CLAIM_GO + 1; skip < CLAIM_SKIP_COUNT; skip++)
        if (claimer->skips[skip])
            jsonw_kint(w, claim_skip_name((enum claim_skip)skip), claimer->skips[skip]);
    jsonw_end_obj(w);
    jsonw_kstr(w, "last", claimer->cycles ? str_of(claim_skip_name(claimer->last)) : STR_NONE);
    jsonw_end_obj(w);
}

static void part_gone(struct loop_part *part)
{
    assert(!"claimer_free comes before loop_done");
}

struct claimer *claimer_new(struct loop *loop, const struct claimer_config *config)
{
    struct claimer *claimer = mem_new(struct claimer);

    claimer->loop = loop;
    claimer->config = *config;
    docket_init(&claimer->docket);
    claimer->claimed_ms = INT64_MIN / 2; /* never */
    roster_init(&claimer->roster);
    rnd_seed_os(&claimer->rnd);
    claimer->part = (struct loop_part){.tick = on_tick, .free = part_gone};
    loop_add_part(loop, &claimer->part);
    return claimer;
}

void claimer_free(struct claimer *claimer)
{
    if (!claimer)
        return;
    loop_remove_part(claimer->loop, &claimer->part);
    roster_done(&claimer->roster);
    docket_done(&claimer->docket);
    arena_free(&claimer->cycle);
    buf_free(&claimer->body);
    free(claimer);
}
