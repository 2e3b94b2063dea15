/* Explains where a job went, or where a request would go (dry run). Past decisions come from the
 * loops' records, here and at other instances; present ones from running the rules. Each reason is
 * a sentence for people, and has its figures as members for programs. */
#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "model/level.h"
#include "model/selector.h"
#include "sched/explain.h"
#include "sched/spec.h"
#include "sched/submit.h"
#include "server/api.h"
#include "server/peers.h"

/* The present state of one of the job's keys. */
struct explain_key {
    struct str key; /* with its namespace */
    bool unknown;   /* the store could not be asked */
    struct limit limit;
    struct store_limit_key now;
    struct limit_block block; /* why it blocks further starts */
};

/* What is known besides the record. */
struct explain_style {
    const struct snapshot *snapshot; /* the current one, for node ids; NULL: none yet */
    const struct sched *sched;
    const struct spec *spec;   /* NULL: the record says what the request was */
    const struct problem *why; /* NULL: the record says why it was refused */
    struct str node_id;        /* the node chosen; at == NULL: look it up */
    const struct store_breaker *breakers;
    size_t breaker_count;
    const struct explain_key *keys; /* NULL for a past decision */
    size_t key_count;
    size_t limit; /* number of nodes shown */
};

enum { NODES_DEFAULT = 1000, NODES_MAX = 10000, RECORDS_MAX = 64 };

/* --- as JSON --- */

/* What a sentence may refer to. */
struct scene {
    const struct explain *explain;
    const struct explain_style *style;
    const struct dispatch_look *look;
    const struct snap_node *member; /* its present state; NULL: it is gone */
    struct str id;
    struct str src, tgt; /* for a task: "type", NAME as nodes know it */
    struct str type;     /* with its namespace */
    unsigned wants;
};

static void say_requires(struct buf *to, const struct scene *scene)
{
    const struct spec *spec = scene->style->spec;
    const struct snap_node *member = scene->member;

    buf_str(to, STR("Its labels are not what the job requires"));
    if (spec && spec->selector.count > 0) {
        struct selector_facts facts = {.id = scene->id,
                                       .labels = member ? member->facts->label_values : NULL};

        buf_str(to, STR(": "));
        /* The node may be gone, or may have other labels now. */
        if (!member || !selector_explain(&spec->selector, &facts, to))
            buf_str(to, spec->requires);
    }
    buf_char(to, '.');
}

/* Finds which need is not met, and how much of it is requested. */
static bool lack_of(const struct scene *scene, struct resources_short *ret_lack)
{
    const struct dispatch_lack *lack = &scene->look->lack;
    const struct demand *demand = scene->style->spec ? scene->style->spec->demand : NULL;
    struct str name = STR_NONE;

    if (!demand || lack->what == NEEDS_UNKNOWN)
        return false;
    *ret_lack = (struct resources_short){.left = lack->left, .of = lack->of, .gpu = lack->gpu};
    if (lack->what >= NEEDS_NAMED) {
        size_t at = (size_t)(lack->what - NEEDS_NAMED);

        if (at >= demand->need_count)
            return false;
        name = demand->needs[at].name;
        ret_lack->needed = demand->needs[at].amount;
    } else {
        name = lack->what == NEEDS_SLOTS  ? STR("slots")
               : lack->what == NEEDS_GPUS ? STR("gpus")
                                          : STR("vram_mb");
        ret_lack->needed = lack->what == NEEDS_SLOTS  ? demand->slots
                           : lack->what == NEEDS_GPUS ? demand->gpus
                                                      : demand->vram_mb;
    }
    return str_copy(name, ret_lack->name, sizeof ret_lack->name);
}

static void say_small(struct buf *to, const struct scene *scene)
{
    struct resources_short lack;

    if (!lack_of(scene, &lack))
        buf_str(to, STR("It has less than the job needs, even when it is idle."));
    else if (lack.of == 0)
        buf_fmt(to, "It has no %s.", str_is(str_of(lack.name), "vram_mb") ? "GPU" : lack.name);
    else {
        buf_fmt(to, "It has only ");
        demand_write_amount(str_of(lack.name), lack.of, to);
        buf_fmt(to, " %s, and the job needs ", lack.name);
        demand_write_amount(str_of(lack.name), lack.needed, to);
        buf_char(to, '.');
    }
}

static const struct breaker *breaker_of(const struct scene *scene)
{
    for (size_t i = 0; i < scene->style->breaker_count; i++) {
        const struct store_breaker *item = &scene->style->breakers[i];

        if (str_eq(item->node, scene->id) && str_eq(item->type, scene->type))
            return &item->breaker;
    }
    return NULL;
}

static void say_breaker(struct buf *to, const struct scene *scene)
{
    const struct breaker *breaker = breaker_of(scene);

    if (breaker && breaker->state == BREAKER_HALF_OPEN)
        buf_fmt(to, "It failed %d such jobs in a row, and its probe is still out.",
                breaker->failures);
    else if (breaker && breaker->opened_ms && breaker->opened_ms <= scene->explain->at_ms)
        buf_fmt(to, "It failed %d such jobs in a row: its breaker is open since %lld ms.",
                breaker->failures, (long long)(scene->explain->at_ms - breaker->opened_ms));
    else
        buf_str(to, STR("It kept failing such jobs: its breaker was open."));
}

/* What the node lacks, "nmt(en->zh)", in a list. */
static void say_missing(struct buf *to, const struct scene *scene)
{
    const struct pool_facts *facts = &scene->member->facts->pool;
    struct str src = scene->src, tgt = scene->tgt;
    size_t before = to->len;
    bool has_pair = facts->nmt_any;

    if (str_is(src, "type")) {
        buf_fmt(to, "type(" STR_FMT ")", STR_ARG(tgt));
        return;
    }
    for (size_t i = 0; i < facts->nmt_count; i++)
        has_pair |= str_eq(facts->nmt_pairs[i].src, src) && str_eq(facts->nmt_pairs[i].tgt, tgt);
    if (!facts->semantic || !str_in(src, facts->semantic_langs, facts->semantic_count))
        buf_fmt(to, "semantic(" STR_FMT ")", STR_ARG(src));
    if (!facts->nmt || !has_pair)
        buf_fmt(to, "%snmt(" STR_FMT "->" STR_FMT ")", to->len > before ? " + " : "", STR_ARG(src),
                STR_ARG(tgt));
    if ((scene->wants & POOL_WANT_TTS) &&
        (!facts->tts || !str_in(tgt, facts->tts_langs, facts->tts_count)))
        buf_fmt(to, "%stts(" STR_FMT ")", to->len > before ? " + " : "", STR_ARG(tgt));
    if ((scene->wants & POOL_WANT_ASR) && !facts->asr)
        buf_fmt(to, "%sasr", to->len > before ? " + " : "");
}

/* The reason as a sentence for people. */
static void say_reason(struct buf *to, const struct scene *scene)
{
    static const char *const orders[] = {[NODE_ADMIN_NONE] = "",
                                         [NODE_ADMIN_CORDONED] = ": an operator cordoned it",
                                         [NODE_ADMIN_DRAINING] = ": an operator drained it"};
    static const char *const fixed[EXPLAIN_COUNT] = {
        [WHY_SEND_FAILED] = "The job could not be sent to it.",
        [WHY_TRIED] = "The job was there before, or it refused the job.",
        [WHY_NAMESPACE] = "The server's configuration keeps it for other namespaces.",
        [EXPLAIN_NOT_ASKED] = "It was not asked: the dispatch ended before.",
        [EXPLAIN_NOT_PREFERRED] = "Another node was preferred, and only that one counted."};
    const struct dispatch_look *look = scene->look;
    const struct sched_config *config = &scene->style->sched->config;
    /* Whether the node has loaded what the job prefers; "" when it has no preference. */
    const char *warm = look->warm < 0 ? "" : look->warm > 0 ? ", warm" : ", cold";
    struct resources_short lack;

    switch (look->why) {
    case WHY_NOT_READY:
        buf_fmt(to, "Its health is %s%s.", node_health_name((enum node_health)look->health),
                orders[look->admin]);
        break;
    case WHY_STALE:
        if (config->heartbeat_stale_ms == FIELD_OFF || look->age_ms <= config->heartbeat_stale_ms)
            buf_str(to, STR("Its connection is closed, and there is no other way to it."));
        else
            buf_fmt(to, "Its last heartbeat is %d ms old; %lld ms are allowed.", look->age_ms,
                    (long long)config->heartbeat_stale_ms);
        break;
    case WHY_NO_CAPACITY:
        buf_fmt(to, "It offers no slot now (max %d).", look->max);
        break;
    case WHY_FULL:
        buf_fmt(to, "%d of its %d slots for such work are taken.", look->load, look->max);
        break;
    case WHY_REQUIRES:
        say_requires(to, scene);
        break;
    case WHY_LEVEL:
        if (look->level == LEVEL_WARNING)
            buf_fmt(to, "Its machine is at level warning: it takes only priority %lld and higher.",
                    (long long)config->high_priority_min);
        else
            buf_fmt(to, "Its machine is at level %s: it takes no new work.",
                    level_name((enum level)(look->level < 0 ? 0 : look->level)));
        break;
    case WHY_ROUTE:
        buf_fmt(to, "The route of type " STR_FMT " does not name it.", STR_ARG(scene->tgt));
        break;
    case WHY_TOO_SMALL:
        say_small(to, scene);
        break;
    case WHY_RESOURCES:
        if (lack_of(scene, &lack)) {
            resources_short_text(&lack, to);
            buf_char(to, '.');
        } else {
            buf_str(to, STR("Too little is left there of what the job needs."));
        }
        break;
    case WHY_BREAKER:
        say_breaker(to, scene);
        break;
    case EXPLAIN_CHOSEN:
    case EXPLAIN_BEHIND:
        buf_fmt(to, "It has room (%d of %d taken%s), %s.", look->load, look->max, warm,
                look->why == EXPLAIN_CHOSEN ? "and the policy put it first"
                                            : "but the policy put another first");
        break;
    case EXPLAIN_NOT_SAMPLED:
        buf_fmt(to, "It was not among the %lld that were looked at.", (long long)config->sample_k);
        break;
    case EXPLAIN_NOT_CAPABLE:
        if (scene->member) {
            buf_str(to, STR("It does not offer "));
            say_missing(to, scene);
            buf_char(to, '.');
        } else {
            buf_str(to, STR("It cannot do such work."));
        }
        break;
    default:
        assert(look->why < EXPLAIN_COUNT && fixed[look->why]);
        buf_str(to, str_of(fixed[look->why]));
    }
}

static void reason_write(struct jsonw *w, const struct scene *scene)
{
    struct buf text = {0};

    say_reason(&text, scene);
    jsonw_kstr(w, "reason", str_of(explain_why_name(scene->look->why)));
    jsonw_kstr(w, "detail", buf_view(&text));
    buf_free(&text);
}

static void node_line(struct jsonw *w, const struct scene *scene, bool figures)
{
    const struct dispatch_look *look = scene->look;
    struct resources_short lack;
    struct buf text = {0};

    jsonw_obj(w);
    jsonw_kstr(w, "node_id", scene->id);
    reason_write(w, scene);
    if (figures) {
        jsonw_kint(w, "load", look->load);
        jsonw_kint(w, "max", look->max);
        jsonw_kstr(w, "health", str_of(node_health_name((enum node_health)look->health)));
        jsonw_kstr(w, "admin", str_of(node_admin_name(look->admin)));
        jsonw_kstr(w, "level",
                   look->level < 0 ? STR_NONE : str_of(level_name((enum level)look->level)));
        jsonw_kint(w, "heartbeat_age_ms", look->age_ms);
        /* Only policies that rank by score compute one. */
        write_int_or_null(w, "health_score", scene->style->sched->policy->by_score, look->score);
        jsonw_kint(w, "rank", look->route_position);
        if (look->warm >= 0)
            jsonw_kstr(w, "warm", look->warm > 0 ? STR("warm") : STR("cold"));
    }
    /* Members that only one reason has. */
    if (look->why == WHY_BREAKER && breaker_of(scene)) {
        jsonw_key(w, "breaker"); /* its present state */
        breaker_write(breaker_of(scene), w);
    }
    if ((look->why == WHY_RESOURCES || look->why == WHY_TOO_SMALL) && lack_of(scene, &lack)) {
        struct str name = str_of(lack.name);

        jsonw_kobj(w, "lack");
        jsonw_kstr(w, "resource", name);
        write_amount(w, "needed", name, lack.needed);
        if (look->why == WHY_RESOURCES)
            write_amount(w, "left", name, lack.left);
        write_amount(w, "of", name, lack.of);
        if (lack.gpu >= 0)
            jsonw_kint(w, "gpu", lack.gpu);
        jsonw_end_obj(w);
    }
    if (look->why == EXPLAIN_NOT_CAPABLE && scene->member) {
        say_missing(&text, scene);
        jsonw_kstr(w, "missing", buf_view(&text));
        buf_free(&text);
    }
    jsonw_end_obj(w);
}

static const struct snap_node *by_hash(const struct snapshot *snapshot, uint64_t hash)
{
    const struct snap_node *node;
    struct snap_at at = {0};

    while ((node = snapshot_next(snapshot, &at)) && node->node->hash != hash)
        ;
    return node;
}

static void set_node(struct scene *scene, const struct explain_node *node)
{
    scene->look = &node->look;
    scene->member = by_hash(scene->style->snapshot, node->look.hash);
    scene->id = explain_text(scene->explain, node->name);
    if (!scene->id.len && scene->member)
        scene->id = scene->member->node->id;
}

/* Writes the nodes that were not looked at, but only if the snapshot is unchanged and every node is
 * accounted for. */
static size_t write_rest(struct jsonw *w, struct scene *scene, size_t shown)
{
    const struct explain *explain = scene->explain;
    const struct snapshot *snapshot = scene->style->snapshot;
    uint32_t unseen = explain->counts[EXPLAIN_NOT_SAMPLED] +
                      explain->counts[EXPLAIN_NOT_PREFERRED] + explain->counts[EXPLAIN_NOT_CAPABLE];
    uint8_t member_why =
        explain->counts[EXPLAIN_NOT_PREFERRED] ? EXPLAIN_NOT_PREFERRED : EXPLAIN_NOT_SAMPLED;

    if (!snapshot || snapshot->version != explain->version || !scene->tgt.len ||
        explain->node_count + unseen != explain->nodes)
        return shown;
    const struct snap_pool *pool = str_is(scene->src, "type")
                                       ? snapshot_type_pool(snapshot, scene->tgt)
                                       : snapshot_pool(snapshot, scene->src, scene->tgt);
    const struct snap_node *node;
    for (struct snap_at at = {0};
         shown < scene->style->limit && (node = snapshot_next(snapshot, &at));) {
        uint32_t listed = 0;

        while (listed < explain->node_count && explain->list[listed].look.hash != node->node->hash)
            listed++;
        if (listed < explain->node_count)
            continue;
        bool member = snapshot_is_member(snapshot, pool, node, scene->wants);
        struct dispatch_look look = {.warm = -1, .why = member ? member_why : EXPLAIN_NOT_CAPABLE};
        scene->member = node;
        scene->id = node->node->id;
        scene->look = &look;
        node_line(w, scene, false);
        shown++;
    }
    return shown;
}

static struct str chosen_id(struct scene *scene)
{
    const struct explain *explain = scene->explain;

    if (scene->style->node_id.at)
        return scene->style->node_id;
    for (uint32_t i = 0; i < explain->node_count; i++)
        if (explain->list[i].look.why == EXPLAIN_CHOSEN) {
            set_node(scene, &explain->list[i]);
            return scene->id;
        }
    return STR_NONE;
}

static void key_text(const struct explain_key *look, struct buf *to)
{
    buf_fmt(to, STR_FMT ": ", STR_ARG(namespace_name(look->key)));
    if (look->unknown) {
        buf_str(to, STR("the store did not tell"));
    } else if (look->block.why == LIMIT_HELD) {
        buf_fmt(to, "held for another %lld s", (long long)((look->now.hold_ms + 999) / 1000));
        if (look->now.hold_reason.len)
            buf_fmt(to, ": " STR_FMT, STR_ARG(look->now.hold_reason));
    } else if (look->block.why == LIMIT_RATE) {
        buf_fmt(to, "%d started, of ", look->now.started);
        limit_rate_text(&look->limit, to);
    } else if (look->limit.concurrency != LIMIT_NONE) {
        int64_t more = look->now.in_flight - look->now.holder_count;

        /* "2 of 2, held by JOB, JOB and 2 more" */
        buf_fmt(to, "%d of %d", look->now.in_flight, look->limit.concurrency);
        for (size_t i = 0; i < look->now.holder_count; i++) {
            char id[JOB_ID_TEXT + 1];

            job_id_text(look->now.holders[i], id);
            buf_fmt(to, "%s%s", i ? ", " : ", held by ", id);
        }
        if (look->now.holder_count && more > 0)
            buf_fmt(to, " and %lld more", (long long)more);
    } else {
        buf_fmt(to, "%d, no limit", look->now.in_flight);
    }
}

static void keys_write(struct jsonw *w, const struct explain_style *style)
{
    struct buf text = {0};

    jsonw_karr(w, "keys");
    for (size_t i = 0; i < style->key_count; i++) {
        const struct explain_key *look = &style->keys[i];

        buf_clear(&text);
        key_text(look, &text);
        jsonw_obj(w);
        jsonw_kstr(w, "key", namespace_name(look->key));
        jsonw_kstr(w, "why", look->block.why ? str_of(limit_why_name(look->block.why)) : STR_NONE);
        jsonw_kstr(w, "detail", buf_view(&text));
        limit_holders_write(w, &look->now);
        jsonw_end_obj(w);
    }
    jsonw_end_arr(w);
    buf_free(&text);
}

static void explain_write(struct jsonw *w, const struct explain *explain,
                          const struct explain_style *style)
{
    struct scene scene = {.explain = explain, .style = style, .wants = explain->wants};
    const struct policy *policy = style->sched->policy;
    const struct spec *spec = style->spec;
    struct str detail =
        style->why ? str_of(style->why->detail) : explain_text(explain, explain->detail);
    char pool[POOL_ID_MAX];
    size_t shown = 0;

    if (spec) {
        scene.src = spec->f2f ? spec->src : STR("type");
        scene.tgt = spec->f2f ? spec->tgt : spec_node_type(spec);
        scene.type = spec->type;
    } else {
        scene.src = explain_text(explain, explain->src);
        scene.tgt = explain_text(explain, explain->tgt);
        scene.type = explain_text(explain, explain->type);
        if (!scene.type.len)
            scene.type = explain->f2f ? STR("f2f") : scene.tgt;
    }
    jsonw_obj(w);
    jsonw_kint(w, "at_ms", explain->at_ms);
    jsonw_kint(w, "attempt_id", explain->attempt);
    jsonw_kstr(w, "outcome",
               explain->err ? str_of(err_name((enum err)explain->err)) : STR("PLACED"));
    jsonw_kbool(w, "waits", explain->waits);
    jsonw_kstr(w, "detail", explain->err ? detail : STR_NONE);
    jsonw_kstr(w, "node_id", chosen_id(&scene));
    jsonw_kstr(w, "policy", str_of(policy->name));
    jsonw_kstr(w, "policy_key", str_of(policy->key));
    jsonw_kint(w, "snapshot_version", explain->version);
    bool has_pool = scene.tgt.len && scene.src.len + scene.tgt.len + 2 <= sizeof pool;
    if (has_pool)
        pool_id(scene.src, scene.tgt, pool);
    jsonw_kstr(w, "pool_id", has_pool ? str_of(pool) : STR_NONE);
    if (style->keys)
        keys_write(w, style);
    jsonw_kint(w, "nodes_total", explain->nodes);
    jsonw_kint(w, "pool_members", explain->members);
    jsonw_kobj(w, "reasons");
    for (unsigned i = 0; i < EXPLAIN_COUNT; i++)
        if (explain->counts[i])
            jsonw_kint(w, explain_why_name(i), explain->counts[i]);
    jsonw_end_obj(w);
    jsonw_karr(w, "nodes");
    for (; shown < explain->node_count && shown < style->limit; shown++) {
        set_node(&scene, &explain->list[shown]);
        node_line(w, &scene, true);
    }
    if (shown == explain->node_count)
        shown = write_rest(w, &scene, shown);
    jsonw_end_arr(w);
    assert(shown <= explain->nodes);
    jsonw_kint(w, "nodes_left_out", (int64_t)(explain->nodes - shown));
    jsonw_end_obj(w);
}

/* Applies the rules of candidates_judge and the store's reserve to a job without special
 * demands. */
static unsigned node_why(const struct snap_node *member, const struct sched *sched,
                         const struct dispatch_look *look, int64_t now_ms)
{
    struct policy_candidate candidate = {.health = (enum node_health)look->health,
                                         .heartbeat_ms = now_ms - look->age_ms};
    struct policy_rules rules = {.now_ms = now_ms,
                                 .stale_ms = sched->config.heartbeat_stale_ms,
                                 .heartbeat_interval_ms = sched->config.heartbeat_ms};
    enum policy_skip skip = policy_filter(&candidate, &rules);

    if (skip == POLICY_SKIP_HEALTH && look->health != NODE_DEGRADED)
        return WHY_NOT_READY;
    if (skip == POLICY_SKIP_STALE ||
        (atomic_load(&member->node->disconnected_ms) && !member->facts->endpoint.at))
        return WHY_STALE;
    if (look->level > LEVEL_WARNING) /* first: an agent's degraded health follows from its level */
        return WHY_LEVEL;
    if (skip == POLICY_SKIP_HEALTH)
        return WHY_NOT_READY;
    if (atomic_load(&member->node->max) <= 0)
        return WHY_NO_CAPACITY;
    if (look->load >= look->max)
        return WHY_FULL;
    return look->level == LEVEL_WARNING ? WHY_LEVEL : WHY_COUNT;
}

void explain_write_node(struct jsonw *w, const struct snap_node *member, const struct sched *sched,
                        int64_t now_ms)
{
    const struct node *node = member->node;
    int64_t age_ms = now_ms - atomic_load(&node->heartbeat_ms);
    struct dispatch_look look = {.load = counts_load(node),
                                 .warm = -1,
                                 .max = atomic_load(&node->max) - member->facts->reserved_slots,
                                 .age_ms = age_ms < 0           ? 0
                                           : age_ms > INT32_MAX ? INT32_MAX
                                                                : (int32_t)age_ms,
                                 .health = (uint8_t)atomic_load(&node->health),
                                 .admin = (uint8_t)atomic_load(&node->admin),
                                 .level = (int8_t)atomic_load(&node->level)};
    unsigned why = node_why(member, sched, &look, now_ms);
    struct explain_style style = {.sched = sched};
    struct scene scene = {.style = &style, .look = &look, .member = member, .id = node->id};

    jsonw_kbool(w, "takes_work", why == WHY_COUNT);
    jsonw_key(w, "why_not");
    if (why == WHY_COUNT) {
        jsonw_null(w);
        return;
    }
    look.why = (uint8_t)why;
    jsonw_obj(w);
    reason_write(w, &scene);
    jsonw_end_obj(w);
}

/* --- what other instances decided --- */

static int records_by_time(const void *a, const void *b)
{
    const struct explain *left = *(const struct explain *const *)a,
                         *right = *(const struct explain *const *)b;

    return (left->at_ms > right->at_ms) - (left->at_ms < right->at_ms);
}

/* Decisions as a JSON array, oldest first. */
static struct str explain_decisions(const struct buf *found, const struct explain_style *style,
                                    struct arena *arena)
{
    const struct explain *all[RECORDS_MAX], *explain;
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    size_t count = 0;

    for (size_t at = 0; (explain = explain_next(found, &at));)
        all[count++ % RECORDS_MAX] = explain; /* with too many, keep the newest */
    count = count < RECORDS_MAX ? count : RECORDS_MAX;
    qsort(all, count, sizeof *all, records_by_time);
    jsonw_arr(&w);
    for (size_t i = 0; i < count; i++)
        explain_write(&w, all[i], style);
    jsonw_end_arr(&w);
    struct str text = arena_str(arena, buf_view(&buf));
    buf_free(&buf);
    return text;
}

/* --- questions from other instances --- */

/* A question from another instance. */
struct peer_ask {
    struct explain_ask ask;
    struct rpc *rpc;
    struct arena arena;
    struct str spec;
    struct str listed;
    int64_t limit;
};

static void peer_found(struct explain_ask *ask)
{
    struct peer_ask *own = container_of(ask, struct peer_ask, ask);
    struct spec spec;
    bool known = own->spec.len && !spec_stored(own->spec, &own->arena, &spec, NULL);
    struct explain_style style = {.snapshot = ask->from->snapshot,
                                  .sched = ask->from->sched,
                                  .spec = known ? &spec : NULL,
                                  .limit = (size_t)own->limit};

    explain_keep(&ask->found, own->listed);
    if (ask->found.len)
        buf_str(&own->rpc->answer, explain_decisions(&ask->found, &style, &own->arena));
    buf_free(&ask->found);
    rpc_over(own->rpc, ERR_OK);
    arena_free(&own->arena);
    free(own);
}

/* Params: "JOB LIMIT\nSPEC" or "JOB LIMIT NAMESPACE\n" */
void explain_peers_answer(struct rpc *rpc)
{
    struct peer_ask *own = mem_new(struct peer_ask);
    struct str rest = rpc->params;
    struct str head = str_cut(&rest, '\n');

    own->rpc = rpc;
    own->spec = rest;
    own->ask.from = rpc->from->sched;
    own->ask.done = peer_found;
    if (job_id_parse(str_cut(&head, ' '), &own->ask.job) &&
        str_int(str_cut(&head, ' '), &own->limit) && own->limit > 0 && rpc->from->sched->snapshot) {
        own->listed = head; /* the namespace; at == NULL: none given */
        explain_find(&own->ask);
        return;
    }
    free(own);
    rpc_over(rpc, ERR_BAD_REQUEST);
}

/* --- routes --- */

/* GET of a job's explanation: our records, the job, the other instances, the present state of its
 * breakers. */
struct why_call {
    struct call *call;
    struct explain_ask ask;
    struct store_op op;       /* JOB_GET */
    struct store_op breakers; /* BREAKERS */
    struct peers_round round;
    int64_t limit;
    struct submit *submit;     /* of a dry run */
    struct dispatch *dispatch; /* of the job; NULL: its spec is unknown */
    struct store_op limits;    /* LIMITS, for one key at a time */
    struct explain_key keys[DEMAND_KEYS_MAX];
    size_t key; /* index of the next key to read */
    void (*then)(struct why_call *own);
};

static struct why_call *why_call(struct call *call)
{
    struct why_call *own = arena_new(call->arena, struct why_call);

    own->call = call;
    own->limit = NODES_DEFAULT;
    return own;
}

static void send_breakers(struct why_call *own, store_done *done)
{
    own->breakers = call_op_timely(own->call, STORE_BREAKERS, done);
    sched_send(own->call->worker->sched, &own->breakers);
}

/* Would this key allow one more start? Uses the same rules as the store's reserve. */
static struct explain_key check_key(const struct store_op *op, struct str key)
{
    struct explain_key look = {.key = key, .limit = limit_none};
    const struct store_limit *rule = limit_rule_for(op, key);

    if (rule)
        look.limit = rule->limit;
    for (size_t i = 0; i < op->u.limits.key_count; i++)
        if (str_eq(op->u.limits.keys[i].key, key))
            look.now = op->u.limits.keys[i];
    if (look.now.hold_ms > 0)
        look.block = (struct limit_block){.why = LIMIT_HELD, .retry_ms = look.now.hold_ms};
    else if (look.limit.concurrency != LIMIT_NONE && look.now.in_flight >= look.limit.concurrency)
        look.block = (struct limit_block){
            .why = LIMIT_CONCURRENCY, .limit = look.limit.concurrency, .used = look.now.in_flight};
    else if (look.limit.rate != LIMIT_NONE && look.now.started >= look.limit.rate)
        look.block = (struct limit_block){
            .why = LIMIT_RATE, .limit = look.limit.rate, .used = look.now.started};
    return look;
}

static void send_key(struct why_call *own);

static void key_read(struct store_op *op)
{
    struct why_call *own = container_of(op, struct why_call, limits);
    struct dispatch *dispatch = own->dispatch;
    struct str key = dispatch->spec.demand->keys[own->key];
    struct explain_key *look = &own->keys[own->key];

    *look = op->err ? (struct explain_key){.key = key, .unknown = true} : check_key(op, key);
    look->block.key = (int32_t)own->key++;
    if (dispatch->block.why == LIMIT_OK) /* the client gets the first key that blocks */
        dispatch->block = look->block;
    send_key(own);
}

/* Reads the next key; calls `then` after the last one. */
static void send_key(struct why_call *own)
{
    const struct demand *demand = own->dispatch ? own->dispatch->spec.demand : NULL;

    if (!demand || own->key >= demand->key_count) {
        own->then(own);
        return;
    }
    own->limits = call_op_timely(own->call, STORE_LIMITS, key_read);
    own->limits.u.limits.prefix = demand->keys[own->key];
    own->limits.u.limits.max = 1; /* the first with this prefix is the key itself */
    sched_send(own->call->worker->sched, &own->limits);
}

static struct explain_style style_of(const struct why_call *own, const struct spec *spec)
{
    const struct sched_loop *loop = own->call->worker->sched;
    const struct store_op *op = &own->breakers;

    return (struct explain_style){.snapshot = loop->snapshot,
                                  .sched = loop->sched,
                                  .spec = spec,
                                  .breakers = op->err ? NULL : op->u.breakers.items,
                                  .breaker_count = op->err ? 0 : op->u.breakers.count,
                                  .limit = (size_t)own->limit};
}

static void write_now(struct jsonw *w, struct why_call *own, struct dispatch *dispatch)
{
    struct explain_style style = style_of(own, &dispatch->spec);
    const struct explain *now =
        explain_now(dispatch, style.breakers, style.breaker_count, (size_t)own->limit);

    style.why = dispatch->err ? &dispatch->why : NULL;
    style.node_id = dispatch->node ? dispatch->node->id : STR_NONE;
    style.keys = own->keys;
    style.key_count = own->key;
    explain_write(w, now, &style);
}

/* Does it make sense to explain what would happen now? */
static bool has_now(const struct why_call *own)
{
    return !own->op.err && own->op.head.state != JOB_DONE && own->op.head.state != JOB_ACKED &&
           own->op.head.state != JOB_DISPATCHED && own->call->worker->sched->snapshot;
}

struct decision {
    int64_t at_ms;
    struct str json;
};

static int by_time(const void *a, const void *b)
{
    const struct decision *left = a, *right = b;

    return (left->at_ms > right->at_ms) - (left->at_ms < right->at_ms);
}

/* Splits a JSON array. The text may come from another instance, so it can be anything. */
static size_t add_decisions(struct decision *list, size_t count, struct str text,
                            struct arena *arena)
{
    const struct json *root, *item;

    if (json_parse(text, arena, &root, NULL) || json_type(root) != JSON_ARR)
        return count;
    item = json_first(root);
    for (uint32_t i = 0; i < root->count && count < RECORDS_MAX; i++, item = json_next(item)) {
        list[count] = (struct decision){.json = json_raw(item)};
        count += json_int(json_get(item, "at_ms"), &list[count].at_ms);
    }
    return count;
}

static void job_answer(struct why_call *own)
{
    const struct store_head *head = &own->op.head;
    struct dispatch *dispatch = own->dispatch;
    struct arena *arena = own->call->arena;
    struct explain_style style = style_of(own, dispatch ? &dispatch->spec : NULL);
    struct decision list[RECORDS_MAX];
    bool known = !own->op.err;
    struct jsonw w = call_begin(own->call);

    write_job_id(&w, own->ask.job);
    jsonw_kstr(&w, "state", known ? str_of(job_state_name(head->state)) : STR_NONE);
    jsonw_kstr(&w, "reason", known && head->reason[0] ? str_of(head->reason) : STR_NONE);
    jsonw_kstr(&w, "node_id", known && head->node[0] ? str_of(head->node) : STR_NONE);
    write_int_or_null(&w, "attempt_id", known, head->attempt);
    jsonw_kraw(&w, "attempts",
               known && own->op.record.history.len ? own->op.record.history : STR("[]"));
    /* Decisions made here and at other instances, oldest first. */
    size_t count = add_decisions(list, 0, explain_decisions(&own->ask.found, &style, arena), arena);
    for (size_t i = 0; i < own->round.count; i++)
        count = add_decisions(list, count, own->round.texts[i], arena);
    qsort(list, count, sizeof *list, by_time);
    jsonw_karr(&w, "decisions");
    for (size_t i = 0; i < count; i++)
        jsonw_raw(&w, list[i].json);
    jsonw_end_arr(&w);
    if (dispatch && has_now(own)) {
        jsonw_key(&w, "now");
        write_now(&w, own, dispatch);
    } else {
        jsonw_knull(&w, "now");
    }
    buf_free(&own->ask.found);
    call_end(own->call, 200, &w);
}

static void job_breakers(struct store_op *op)
{
    struct why_call *own = container_of(op, struct why_call, breakers);
    const struct store_head *head = &own->op.head;
    struct dispatch *dispatch = dispatch_new(own->call->arena);

    /* A dispatch like the job's next attempt; none for a spec we did not write. */
    dispatch->loop = own->call->worker->sched;
    if (!own->op.err &&
        !spec_stored(own->op.record.spec, own->call->arena, &dispatch->spec, NULL)) {
        dispatch->job = head->id;
        dispatch->attempt = head->attempt + (head->state == JOB_RETRYING);
        dispatch->max_attempts = head->max_attempts;
        dispatch->history = own->op.record.history;
        own->dispatch = dispatch;
    }
    own->then = job_answer;
    if (has_now(own))
        send_key(own);
    else
        job_answer(own);
}

static void peers_answered(struct peers_round *round)
{
    struct why_call *own = container_of(round, struct why_call, round);
    const struct store_op *op = &own->op;
    char id[JOB_ID_TEXT + 1];

    if (op->err && !own->ask.found.len && !round->count) {
        buf_free(&own->ask.found);
        job_id_text(own->ask.job, id);
        if (op->err == ERR_NOT_FOUND)
            call_error(own->call, ERR_NOT_FOUND, "job_id",
                       "There is no job \"%s\", and nothing is kept of one that was refused.", id);
        else
            call_error(own->call, op->err, "", "%s.", err_title(op->err));
        return;
    }
    send_breakers(own, job_breakers);
}

/* Asks the other instances: "JOB LIMIT\nSPEC" if we have the spec; else "JOB LIMIT NAMESPACE\n",
 * which asks only for decisions of that namespace (any, if none is given). They answer with JSON
 * arrays of decisions. */
static void job_read(struct store_op *op)
{
    struct why_call *own = container_of(op, struct why_call, op);
    struct namespace_view view = call_view(own->call);
    struct str listed = namespace_listed(&view);
    struct str spec = STR_NONE;
    char id[JOB_ID_TEXT + 1];

    call_hide_job(own->call, op);
    explain_keep(&own->ask.found, listed);
    if (!op->err)
        spec = op->record.spec;
    assert(own->ask.job && own->limit > 0);
    job_id_text(own->ask.job, id);
    own->round = (struct peers_round){
        .worker = own->call->worker,
        .arena = own->call->arena,
        .method = "Instance/Explain",
        .params = arena_fmt(own->call->arena, "%s %zu%s" STR_FMT "\n" STR_FMT, id,
                            (size_t)own->limit, spec.len || !listed.at ? "" : " ",
                            STR_ARG(spec.len ? STR("") : listed), STR_ARG(spec)),
        .done = peers_answered};
    peers_round_start(&own->round);
}

static void job_found(struct explain_ask *ask)
{
    struct why_call *own = container_of(ask, struct why_call, ask);

    own->op = call_op(own->call, STORE_JOB_GET, job_read);
    own->op.job = ask->job;
    sched_send(own->call->worker->sched, &own->op);
}

void api_job_explain(struct call *call)
{
    struct why_call *own = why_call(call);

    own->ask.from = call->worker->sched;
    own->ask.done = job_found;
    if (call_job_id(call, call->params[0], &own->ask.job) &&
        call_query_int(call, "limit", 1, NODES_MAX, &own->limit))
        explain_find(&own->ask);
}

static void dry_run_answer(struct why_call *own)
{
    struct dispatch *dispatch = own->submit->dispatch;
    struct sched *sched = dispatch->loop->sched;
    struct buf would = {0};
    struct jsonw inner = jsonw_to(&would);

    write_now(&inner, own, dispatch); /* first: it makes the decision */
    bool others = atomic_load(&sched->queue_depth) > 0 && dispatch->err != ERR_NO_CAPABLE_NODE;
    bool later = dispatch->err == ERR_ALL_FULL || dispatch->err == ERR_LIMITED;
    bool waits = dispatch->spec.queue_ms > 0 && (others || later);
    struct jsonw w = call_begin(own->call);
    jsonw_kbool(&w, "dry_run", true);
    jsonw_kint(&w, "status", waits ? 202 : dispatch->err ? err_http(dispatch->err) : 200);
    jsonw_kstr(&w, "outcome",
               waits           ? STR("WAITS")
               : dispatch->err ? str_of(err_name(dispatch->err))
                               : STR("PLACED"));
    jsonw_kstr(&w, "detail",
               waits && !dispatch->err ? STR("Others wait already: the queue decides who is next.")
                                       : str_of(dispatch->err ? dispatch->why.detail : NULL));
    jsonw_kstr(&w, "node_id", dispatch->node && !waits ? dispatch->node->id : STR_NONE);
    jsonw_kint(&w, "waiting", atomic_load(&sched->queue_depth));
    jsonw_kraw(&w, "now", buf_view(&would));
    buf_free(&would);
    call_end(own->call, 200, &w);
}

static void dry_run_breakers(struct store_op *op)
{
    struct why_call *own = container_of(op, struct why_call, breakers);

    if (op->err) /* without reads there are no writes either: a job would be refused the same way */
        call_error(own->call, ERR_STORE_DOWN, "",
                   "The store cannot be reached: every job is refused now.");
    else
        send_key(own);
}

void explain_dry_run(struct call *call, struct submit *submit)
{
    struct why_call *own = why_call(call);

    own->submit = submit;
    own->dispatch = submit->dispatch;
    own->then = dry_run_answer;
    if (!call_query_int(call, "limit", 1, NODES_MAX, &own->limit))
        return;
    if (!call->worker->sched->snapshot)
        call_error(call, ERR_STORE_DOWN, "",
                   "The server is starting: its nodes are not loaded yet.");
    else
        send_breakers(own, dry_run_breakers);
}
