/* Why a job went to its node. Books of choices: rings of bytes, each written only by the loop it
 * belongs to. What would become of a job now is computed with the rules of a dispatch:
 * candidates.c's judgement of a member, the store's of its room and its breaker, the policy's
 * order, and the outcome's answer. */
#include "sched/explain.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/candidates.h"

/* Fills all but the nodes, the counts and the text. */
static struct explain record_of(const struct dispatch *dispatch, int64_t version, size_t size)
{
    return (struct explain){.size = (uint32_t)size,
                            .job = dispatch->job,
                            .at_ms = *dispatch->loop->wall_ms,
                            .version = version,
                            .attempt = dispatch->attempt,
                            .err = dispatch->err,
                            .nodes = dispatch->nodes,
                            .members = dispatch->members,
                            .wants = (uint8_t)candidates_wants(&dispatch->spec),
                            .f2f = dispatch->spec.f2f};
}

/* --- what would happen now --- */

/* All nodes, judged. The best are kept in order during the pass. */
struct survey {
    struct dispatch *dispatch;
    const struct store_breaker *breakers;
    size_t breaker_count;
    struct policy_rules rules;
    struct explain_node *nodes; /* of the snapshot, in its order */
    struct policy_candidate best[POLICY_SAMPLE_MAX];
    size_t best_count;
    int64_t load, slots; /* totals over all nodes seen so far that have room */
    bool again_ok;
    bool allow_probe; /* the breakers of the whole pool are open: one node gets a probe at a time */
};

/* Decides as a reserve in the store would: capacity, room, resources, breaker. */
static enum dispatch_why ask(const struct survey *survey, const struct snap_node *member,
                             const struct policy_candidate *candidate)
{
    const struct spec *spec = &survey->dispatch->spec;

    if (candidate->max <= 0)
        return WHY_NO_CAPACITY;
    if (candidate->load + spec_slots(spec) > candidate->max - candidate->withheld)
        return WHY_FULL;
    if (!candidates_has_left(spec, member))
        return WHY_RESOURCES;
    for (size_t i = 0; i < survey->breaker_count; i++) {
        const struct store_breaker *item = &survey->breakers[i];
        enum breaker_state state = item->breaker.state;

        if (str_eq(item->node, member->node->id) && str_eq(item->type, spec->type))
            return (state == BREAKER_OPEN && !survey->allow_probe) ||
                           (state == BREAKER_HALF_OPEN && item->breaker.probe_until_ms)
                       ? WHY_BREAKER
                       : WHY_COUNT;
    }
    return WHY_COUNT;
}

static bool is_member_of(const struct dispatch *dispatch, const struct snap_pool *pool,
                         const struct snap_node *node)
{
    return snapshot_is_member(dispatch->loop->snapshot, pool, node,
                              candidates_wants(&dispatch->spec));
}

/* Judges every node; the preferred one is the only candidate while it is eligible. */
static struct node *look_around(struct survey *survey, const struct snap_pool *pool,
                                const struct snap_node *preferred)
{
    struct dispatch *dispatch = survey->dispatch;
    const struct policy *policy = dispatch->loop->sched->policy;
    struct policy_rules *rules = &survey->rules;
    const struct snap_node *member;
    struct node *only = NULL;
    struct snap_at at = {0};

    survey->load = survey->slots = rules->others_slots = 0;
    for (size_t i = 0; (member = snapshot_next(dispatch->loop->snapshot, &at)); i++) {
        struct policy_candidate candidate;
        unsigned why = candidates_judge(dispatch, member, rules, survey->again_ok, &candidate);

        if (!is_member_of(dispatch, pool, member))
            why = EXPLAIN_NOT_CAPABLE;
        else if (why == WHY_COUNT)
            why = ask(survey, member, &candidate);
        survey->nodes[i] = (struct explain_node){0};
        candidates_look(&candidate, why, rules->now_ms, &survey->nodes[i].look);
        survey->nodes[i].look.lack =
            candidates_lack(dispatch, member->node, (enum dispatch_why)why);
        if (why != WHY_COUNT)
            continue;
        survey->nodes[i].look.why = EXPLAIN_BEHIND;
        survey->best[survey->best_count++] = candidate;
        survey->load += candidate.load;
        survey->slots += candidate.max - candidate.withheld;
        if (survey->best_count == COUNT_OF(survey->best)) { /* full: keeps the better half */
            rules->others_load = survey->load;
            rules->others_slots = survey->slots;
            policy_rank(policy, survey->best, survey->best_count, rules);
            survey->best_count /= 2;
        }
        if (member == preferred)
            only = member->node;
    }
    if (only)
        return only;
    if (rules->others_slots) { /* some were left out */
        rules->others_load = survey->load;
        rules->others_slots = survey->slots;
    }
    survey->best_count = policy_rank(policy, survey->best, survey->best_count, rules);
    return survey->best_count ? survey->best[0].node : NULL;
}

/* The answer a client would get. */
static enum err answer(struct survey *survey, const struct snap_pool *pool,
                       const struct snap_node *preferred, const struct node *chosen)
{
    struct dispatch *dispatch = survey->dispatch;
    const struct spec *spec = &dispatch->spec;
    bool prefers = spec->options.preferred_node_id.at && dispatch->attempt == 1;
    struct outcome_start start = {.store_up = true,
                                  .preferred_given = prefers,
                                  .preferred_in_pool =
                                      prefers && is_member_of(dispatch, pool, preferred) &&
                                      candidates_fits(dispatch->loop, spec, preferred),
                                  .strict = spec->options.strict,
                                  .pool_count = dispatch->members};

    outcome_begin(&dispatch->outcome, &start);
    if (dispatch->outcome.phase == OUTCOME_PREFERRED && chosen != preferred->node)
        outcome_preferred_failed(&dispatch->outcome, dispatch->members - 1);
    if (dispatch->outcome.phase == OUTCOME_REFUSED)
        return dispatch->outcome.err;
    if (chosen) /* keys are checked before nodes, but only if there is a node to ask */
        return dispatch->block.why == LIMIT_OK ? ERR_OK : ERR_LIMITED;
    return candidates_nobody_fits(dispatch) ? ERR_NO_CAPABLE_NODE : ERR_ALL_FULL;
}

/* Sets every node's reason once it is known which one gets the job. */
static void settle(struct survey *survey, struct explain *explain, const struct node *chosen)
{
    struct dispatch *dispatch = survey->dispatch;
    enum err err = dispatch->err;
    bool preferred = dispatch->outcome.preferred_given &&
                     (err == ERR_PREFERRED_NOT_CAPABLE || err == ERR_PREFERRED_UNAVAILABLE ||
                      dispatch->outcome.phase == OUTCOME_PREFERRED);

    for (uint32_t i = 0; i < explain->nodes; i++) {
        struct dispatch_look *look = &survey->nodes[i].look;

        if (look->why == EXPLAIN_BEHIND && !err && look->node == chosen)
            look->why = EXPLAIN_CHOSEN;
        else if (look->why == EXPLAIN_BEHIND && preferred)
            look->why = EXPLAIN_NOT_PREFERRED;
        else if (look->why == EXPLAIN_BEHIND && err)
            look->why = EXPLAIN_NOT_ASKED;
        explain->counts[look->why]++;
    }
}

/* The chosen node, those after it in order, then the rest by reason. */
static void list(struct survey *survey, struct explain *explain, size_t max)
{
    static const uint8_t order[] = {EXPLAIN_CHOSEN, EXPLAIN_BEHIND, EXPLAIN_NOT_PREFERRED,
                                    EXPLAIN_NOT_ASKED};
    const struct snapshot *snapshot = survey->dispatch->loop->snapshot;
    uint8_t reasons[EXPLAIN_COUNT];
    size_t count = sizeof order;

    memcpy(reasons, order, sizeof order);
    for (uint8_t i = 0; i < WHY_COUNT; i++)
        reasons[count++] = i;
    reasons[count++] = EXPLAIN_NOT_CAPABLE;
    for (size_t r = 0; r < count; r++)
        for (size_t i = 0; i < snapshot->count && explain->node_count < max; i++)
            if (survey->nodes[i].look.why == reasons[r])
                explain->list[explain->node_count++] = survey->nodes[i];
}

static void count_whys(struct dispatch *dispatch, const struct survey *survey)
{
    for (uint32_t i = 0; i < dispatch->nodes; i++)
        if (survey->nodes[i].look.why < WHY_COUNT)
            dispatch->whys[survey->nodes[i].look.why]++;
}

const struct explain *explain_now(struct dispatch *dispatch, const struct store_breaker *breakers,
                                  size_t breaker_count, size_t max)
{
    const struct snapshot *snapshot = dispatch->loop->snapshot;
    const struct snap_pool *pool = candidates_pool(dispatch);
    struct survey *survey = arena_new(dispatch->arena, struct survey);
    const struct snap_node *preferred =
        snapshot_node(snapshot, dispatch->spec.options.preferred_node_id);

    assert(snapshot && !dispatch->done);
    max = max < snapshot->count ? max : snapshot->count;
    struct explain *explain =
        arena_alloc(dispatch->arena, sizeof *explain + max * sizeof *explain->list);
    *survey = (struct survey){
        .dispatch = dispatch,
        .breakers = breakers,
        .breaker_count = breaker_count,
        .rules = candidates_rules(dispatch),
        .nodes = arena_array(dispatch->arena, struct explain_node, snapshot->count + 1)};
    candidates_read_history(dispatch);
    survey->again_ok = candidates_again_ok(dispatch);
    dispatch->nodes = (uint32_t)snapshot->count;
    dispatch->members = pool ? pool->counts[candidates_wants(&dispatch->spec)] : 0;
    struct node *chosen = look_around(survey, pool, preferred);
    count_whys(dispatch, survey);
    if (!chosen && candidates_pool_shut(dispatch)) {
        survey->allow_probe = true;
        memset(dispatch->whys, 0, sizeof dispatch->whys);
        chosen = look_around(survey, pool, preferred);
        count_whys(dispatch, survey);
    }
    dispatch->err = answer(survey, pool, preferred, chosen);
    if (dispatch->err)
        dispatch_refuse(dispatch, dispatch->err);
    *explain = record_of(dispatch, snapshot->version, sizeof *explain);
    settle(survey, explain, chosen);
    list(survey, explain, max);
    dispatch->node = dispatch->err ? NULL : chosen;
    return explain;
}

/* --- books --- */

static const char *const names[EXPLAIN_COUNT] = {[EXPLAIN_CHOSEN] = "CHOSEN",
                                                 [EXPLAIN_BEHIND] = "RANKED_BEHIND",
                                                 [EXPLAIN_NOT_ASKED] = "NOT_ASKED",
                                                 [EXPLAIN_NOT_SAMPLED] = "NOT_SAMPLED",
                                                 [EXPLAIN_NOT_PREFERRED] = "NOT_PREFERRED",
                                                 [EXPLAIN_NOT_CAPABLE] = "NOT_CAPABLE"};

/* Records one after the other; positions only grow and are used modulo `cap`. No record is split:
 * unused space at the end of the memory is a gap. */
struct log {
    char *mem;
    size_t cap;
    uint64_t first, end;
};

enum explain_kind { KIND_PLACED, KIND_KEPT, KIND_COUNT };

struct explain_book {
    struct log logs[KIND_COUNT];
};

const char *explain_why_name(unsigned why)
{
    assert(why < EXPLAIN_COUNT);
    return why < WHY_COUNT ? dispatch_why_name((enum dispatch_why)why) : names[why];
}

struct str explain_text(const struct explain *explain, struct explain_part part)
{
    const char *text = (const char *)(explain->list + explain->node_count);

    assert((size_t)part.at + part.len <= explain->text_len);
    return part.len ? (struct str){.at = text + part.at, .len = part.len} : STR_NONE;
}

struct explain_book *explain_book_new(size_t bytes)
{
    struct explain_book *book = mem_new(struct explain_book);

    bytes = bytes > EXPLAIN_BYTES_MIN ? bytes : EXPLAIN_BYTES_MIN;
    for (int i = 0; i < KIND_COUNT; i++)
        book->logs[i] = (struct log){.mem = mem_alloc(bytes), .cap = bytes / 8 * 8};
    return book;
}

void explain_book_free(struct explain_book *book)
{
    if (!book)
        return;
    for (int i = 0; i < KIND_COUNT; i++)
        free(book->logs[i].mem);
    free(book);
}

static struct explain *log_at(const struct log *log, uint64_t position)
{
    return (struct explain *)(log->mem + position % log->cap);
}

/* Makes room for one record; the oldest are dropped. */
static struct explain *log_room(struct log *log, size_t size)
{
    size_t rest = log->cap - log->end % log->cap;

    assert(size % 8 == 0 && size <= log->cap / 2);
    size_t need = size <= rest ? size : rest + size;
    while (log->first < log->end && log->end + need - log->first > log->cap) {
        log->first += log_at(log, log->first)->size;
        assert(log->first <= log->end);
    }
    if (size > rest) {
        struct explain *gap = log_at(log, log->end);

        gap->size = (uint32_t)rest;
        gap->node_count = UINT32_MAX; /* no other field: there may be room for these two only */
        log->first += log->first == log->end ? rest : 0;
        log->end += rest;
    }
    struct explain *explain = log_at(log, log->end);
    log->end += size;
    return explain;
}

static struct explain_part put_text(struct explain *explain, struct str text)
{
    struct explain_part part = {.at = explain->text_len, .len = (uint32_t)text.len};

    memcpy((char *)(explain->list + explain->node_count) + part.at, text.at, text.len);
    explain->text_len += part.len;
    return part;
}

static void put_nodes(struct explain *explain, const struct dispatch *dispatch, uint32_t looks)
{
    struct explain_node *to = explain->list;
    int64_t now_ms = sched_awake_ms(dispatch->loop);

    for (size_t i = 0; i < dispatch->count; i++, to++) {
        const struct policy_candidate *candidate = &dispatch->list[i];
        unsigned why = dispatch->answers[i]      ? dispatch->answers[i] - 1u
                       : dispatch->err           ? EXPLAIN_NOT_ASKED
                       : i + 1 == dispatch->next ? EXPLAIN_CHOSEN
                                                 : EXPLAIN_BEHIND;

        to->name = (struct explain_part){0};
        candidates_look(candidate, why, now_ms, &to->look);
        if (dispatch->answers[i]) /* else it lacks nothing */
            to->look.lack = candidates_lack(dispatch, candidate->node, (enum dispatch_why)why);
        explain->counts[why] += why >= WHY_COUNT;
    }
    for (uint32_t i = 0; i < looks; i++, to++)
        *to = (struct explain_node){.look = dispatch->looks[i]};
    assert(to == explain->list + explain->node_count);
}

/* Nodes that were not looked at have a reason too: the counts add up to the number of nodes. */
static void put_counts(struct explain *explain, const struct dispatch *dispatch)
{
    uint32_t seen = 0;
    bool preferred =
        dispatch->outcome.phase == OUTCOME_PREFERRED ||
        (dispatch->outcome.preferred_given &&
         (dispatch->err == ERR_PREFERRED_NOT_CAPABLE ||
          dispatch->err == ERR_PREFERRED_UNAVAILABLE || dispatch->node == dispatch->preferred));

    for (int i = 0; i < WHY_COUNT; i++)
        explain->counts[i] = dispatch->whys[i];
    for (int i = 0; i < EXPLAIN_COUNT; i++)
        seen += explain->counts[i];
    /* The edition may have changed between two choices. */
    if (explain->members < seen)
        explain->members = seen;
    if (explain->nodes < explain->members)
        explain->nodes = explain->members;
    explain->counts[preferred ? EXPLAIN_NOT_PREFERRED : EXPLAIN_NOT_SAMPLED] =
        explain->members - seen;
    explain->counts[EXPLAIN_NOT_CAPABLE] = explain->nodes - explain->members;
}

/* Ids and the job's pair or type: needed for jobs that are kept, since their nodes may be gone when
 * this is read, and for refused ones, which are stored nowhere else. */
static size_t text_size(const struct dispatch *dispatch, uint32_t looks)
{
    size_t size = strlen(dispatch->why.detail) + dispatch->spec.type.len + dispatch->spec.src.len +
                  dispatch->spec.tgt.len + sizeof "type";

    for (size_t i = 0; i < dispatch->count; i++)
        size += ((const struct node *)dispatch->list[i].node)->id.len;
    for (uint32_t i = 0; i < looks; i++)
        size += dispatch->looks[i].node->id.len;
    return size;
}

static void put_texts(struct explain *explain, const struct dispatch *dispatch)
{
    const struct spec *spec = &dispatch->spec;

    explain->src = put_text(explain, spec->f2f ? spec->src : STR("type"));
    explain->tgt = put_text(explain, spec->f2f ? spec->tgt : spec_node_type(spec));
    explain->detail = put_text(explain, str_of(dispatch->err ? dispatch->why.detail : ""));
    for (uint32_t i = 0; i < explain->node_count; i++)
        explain->list[i].name = put_text(explain, explain->list[i].look.node->id);
}

void explain_note(struct dispatch *dispatch)
{
    /* Not a choice: an answer decided elsewhere (the first one repeated, the job went on without
     * us), or one that was recorded a moment ago. */
    if (dispatch->err ? !dispatch->loop->snapshot || dispatch->quiet
                      : dispatch->outcome.phase != OUTCOME_PLACED)
        return;
    bool plain = !dispatch->err && dispatch->attempt == 1 && !dispatch->queued &&
                 !dispatch->whys[WHY_SEND_FAILED];
    /* A type in a namespace other than the default is kept: it decides who may see the record. */
    struct str type = dispatch->spec.type;
    if (str_eq(namespace_of(type), NAMESPACE_DEFAULT))
        type = STR("");
    uint32_t looks =
        dispatch->look_count < dispatch->look_max ? dispatch->look_count : dispatch->look_max;
    size_t text = (plain ? 0 : text_size(dispatch, looks)) + type.len;
    size_t size = sizeof(struct explain) + (dispatch->count + looks) * sizeof(struct explain_node);
    size = (size + text + 7) / 8 * 8;
    struct explain *explain =
        log_room(&dispatch->loop->book->logs[plain ? KIND_PLACED : KIND_KEPT], size);

    *explain = record_of(dispatch, dispatch->version, size);
    explain->node_count = (uint32_t)dispatch->count + looks;
    explain->waits = dispatch->err && dispatch->spec.queue_ms > 0 &&
                     !store_is_away(dispatch->err) && !dispatch->ended;
    if (!explain->version) { /* refused before any node was looked at */
        explain->version = dispatch->loop->snapshot->version;
        explain->nodes = (uint32_t)dispatch->loop->snapshot->count;
        const struct snap_pool *pool = candidates_pool(dispatch);
        explain->members = pool ? pool->counts[explain->wants] : 0;
    }
    put_nodes(explain, dispatch, looks);
    put_counts(explain, dispatch);
    explain->type = put_text(explain, type);
    if (!plain)
        put_texts(explain, dispatch);
    assert(explain->text_len <= text);
}

/* From loop to loop, then back: each reads its own book. */
static void visit(struct msg *msg)
{
    struct explain_ask *ask = container_of(msg, struct explain_ask, msg);
    struct sched *sched = ask->from->sched;

    if (ask->at > sched->loop_count) {
        ask->done(ask);
        return;
    }
    for (int i = 0; i < KIND_COUNT; i++) {
        const struct log *log = &sched->loops[ask->at].book->logs[i];
        const struct explain *explain;

        for (uint64_t at = log->first; at < log->end; at += explain->size) {
            explain = log_at(log, at);
            if (explain->node_count != UINT32_MAX && explain->job == ask->job)
                buf_add(&ask->found, explain, explain->size);
        }
    }
    ask->at++;
    struct sched_loop *next = ask->at <= sched->loop_count ? &sched->loops[ask->at] : ask->from;
    inbox_post(next->inbox, &ask->msg);
}

void explain_find(struct explain_ask *ask)
{
    assert(ask->from && ask->job && ask->done);
    ask->at = 0;
    ask->msg.run = visit;
    inbox_post(ask->from->sched->loops[0].inbox, &ask->msg);
}

const struct explain *explain_next(const struct buf *found, size_t *at)
{
    if (*at >= found->len)
        return NULL;
    const struct explain *explain = (const struct explain *)(found->at + *at);
    *at += explain->size;
    assert(*at <= found->len);
    return explain;
}

void explain_keep(struct buf *found, struct str listed)
{
    const struct explain *explain;
    size_t kept = 0;

    for (size_t at = 0; (explain = explain_next(found, &at));) {
        size_t size = explain->size;

        if (!namespace_lists(listed, explain_text(explain, explain->type)))
            continue;
        memmove(found->at + kept, explain, size);
        kept += size;
    }
    found->len = kept;
}
