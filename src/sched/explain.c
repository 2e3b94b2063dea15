/* Books of choices: rings of bytes, one writer each (the loop they belong to). */
#include "sched/explain.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "sched/candidates.h"

static const char *const names[EXPLAIN_COUNT] = {[EXPLAIN_CHOSEN] = "CHOSEN",
                                                 [EXPLAIN_BEHIND] = "RANKED_BEHIND",
                                                 [EXPLAIN_NOT_ASKED] = "NOT_ASKED",
                                                 [EXPLAIN_NOT_SAMPLED] = "NOT_SAMPLED",
                                                 [EXPLAIN_NOT_PREFERRED] = "NOT_PREFERRED",
                                                 [EXPLAIN_NOT_CAPABLE] = "NOT_CAPABLE"};

/* Records one behind the other; positions only grow, and stand at their remainder by `cap`. None is
 * cut in two: what is left at the end of the memory is a gap. */
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

struct str explain_text(const struct explain *explain, uint32_t at, uint32_t len)
{
    assert((size_t)at + len <= explain->text_len);
    if (!len)
        return STR_NONE;
    return (struct str){.at = (const char *)(explain->list + explain->node_count) + at, .len = len};
}

struct explain_book *explain_book_new(size_t bytes)
{
    struct explain_book *book = calloc(1, sizeof *book);

    assert(book);
    bytes = bytes > EXPLAIN_BYTES_MIN ? bytes : EXPLAIN_BYTES_MIN;
    for (int i = 0; i < KIND_COUNT; i++) {
        book->logs[i] = (struct log){.mem = malloc(bytes), .cap = bytes / 8 * 8};
        assert(book->logs[i].mem);
    }
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

/* Room for one record; the oldest go. */
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
        gap->node_count = UINT32_MAX; /* nothing else: there may be room for these two only */
        log->first += log->first == log->end ? rest : 0;
        log->end += rest;
    }
    struct explain *explain = log_at(log, log->end);
    log->end += size;
    return explain;
}

/* A piece of the record's text; returns where it stands. */
static uint32_t put_text(struct explain *explain, struct str text)
{
    uint32_t at = explain->text_len;

    memcpy((char *)(explain->list + explain->node_count) + at, text.at, text.len);
    explain->text_len += (uint32_t)text.len;
    return at;
}

static void put_node(struct explain_node *to, const struct dispatch_look *look, unsigned why)
{
    to->look = *look;
    to->look.why = (uint8_t)why;
    to->hash = look->node->hash;
    to->name_at = to->name_len = 0;
}

/* What became of a place of the list. */
static unsigned list_why(const struct dispatch *dispatch, size_t i)
{
    if (dispatch->answers[i])
        return dispatch->answers[i] - 1u;
    if (dispatch->err)
        return EXPLAIN_NOT_ASKED;
    return i + 1 == dispatch->next ? EXPLAIN_CHOSEN : EXPLAIN_BEHIND;
}

static void put_nodes(struct explain *explain, const struct dispatch *dispatch, uint32_t looks)
{
    int64_t now_ms = sched_awake_ms(dispatch->loop);
    uint32_t at = 0;

    for (size_t i = 0; i < dispatch->count; i++, at++) {
        struct dispatch_look look = candidates_look(&dispatch->list[i], WHY_FULL, now_ms);
        unsigned why = list_why(dispatch, i);

        put_node(&explain->list[at], &look, why);
        explain->counts[why] += why >= WHY_COUNT;
    }
    for (uint32_t i = 0; i < looks; i++, at++)
        put_node(&explain->list[at], &dispatch->looks[i], dispatch->looks[i].why);
    assert(at == explain->node_count);
}

/* Whatever was not looked at has a reason too: all add up to the number of nodes. */
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

/* Ids and what it was about: of jobs that are kept, since their nodes may be gone when somebody
 * asks, and refused ones are nowhere else. */
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

/* The type of a job whose namespace it tells. */
static struct str told_type(const struct dispatch *dispatch)
{
    struct str type = dispatch->spec.type;

    return str_eq(namespace_of(type), NAMESPACE_DEFAULT) ? STR("") : type;
}

static void put_type(struct explain *explain, const struct dispatch *dispatch)
{
    struct str type = told_type(dispatch);

    explain->type_at = put_text(explain, type);
    explain->type_len = (uint32_t)type.len;
}

static void put_texts(struct explain *explain, const struct dispatch *dispatch)
{
    const struct spec *spec = &dispatch->spec;
    struct str src = spec->f2f ? spec->src : STR("type"),
               tgt = spec->f2f ? spec->tgt : spec_node_type(spec);
    struct str detail = str_of(dispatch->err ? dispatch->why.detail : "");

    explain->src_at = put_text(explain, src);
    explain->src_len = (uint32_t)src.len;
    explain->tgt_at = put_text(explain, tgt);
    explain->tgt_len = (uint32_t)tgt.len;
    explain->detail_at = put_text(explain, detail);
    explain->detail_len = (uint32_t)detail.len;
    for (uint32_t i = 0; i < explain->node_count; i++) {
        struct str id = explain->list[i].look.node->id;

        explain->list[i].name_at = put_text(explain, id);
        explain->list[i].name_len = (uint32_t)id.len;
    }
}

static enum explain_kind kind_of(const struct dispatch *dispatch)
{
    bool plain = !dispatch->err && dispatch->attempt == 1 && !dispatch->queued &&
                 !dispatch->whys[WHY_SEND_FAILED];

    return plain ? KIND_PLACED : KIND_KEPT;
}

/* An answer that is somebody else's (the first one again, the job went on without us), or one that
 * was kept a moment ago, is no choice. */
static bool is_worth_it(const struct dispatch *dispatch)
{
    if (!dispatch->err)
        return dispatch->outcome.phase == OUTCOME_PLACED;
    return dispatch->loop->snapshot && !dispatch->quiet;
}

void explain_note(struct dispatch *dispatch)
{
    if (!is_worth_it(dispatch))
        return;
    enum explain_kind kind = kind_of(dispatch);
    uint32_t looks =
        dispatch->look_count < dispatch->look_max ? dispatch->look_count : dispatch->look_max;
    size_t text = (kind == KIND_KEPT ? text_size(dispatch, looks) : 0) + told_type(dispatch).len;
    size_t size = sizeof(struct explain) + (dispatch->count + looks) * sizeof(struct explain_node);
    struct explain *explain =
        log_room(&dispatch->loop->book->logs[kind], (size + text + 7) / 8 * 8);

    *explain = (struct explain){.size = (uint32_t)((size + text + 7) / 8 * 8),
                                .node_count = (uint32_t)dispatch->count + looks,
                                .job = dispatch->job,
                                .at_ms = *dispatch->loop->wall_ms,
                                .version = dispatch->version,
                                .attempt = dispatch->attempt,
                                .err = dispatch->err,
                                .nodes = dispatch->nodes,
                                .members = dispatch->members,
                                .wants = (uint8_t)candidates_wants(&dispatch->spec),
                                .f2f = dispatch->spec.f2f,
                                .waits = dispatch->err && dispatch->spec.queue_ms > 0 &&
                                         !store_is_away(dispatch->err) && !dispatch->ended};
    if (!explain->version) { /* refused before anybody was looked at */
        explain->version = dispatch->loop->snapshot->version;
        explain->nodes = (uint32_t)dispatch->loop->snapshot->count;
        const struct snap_pool *pool = candidates_pool(dispatch);
        explain->members = pool ? pool->counts[explain->wants] : 0;
    }
    put_nodes(explain, dispatch, looks);
    put_counts(explain, dispatch);
    put_type(explain, dispatch);
    if (kind == KIND_KEPT)
        put_texts(explain, dispatch);
    assert(explain->text_len <= text);
}

static void log_find(const struct log *log, uint64_t job, struct buf *found)
{
    for (uint64_t at = log->first; at < log->end;) {
        const struct explain *explain = log_at(log, at);

        if (explain->node_count != UINT32_MAX && explain->job == job)
            buf_add(found, explain, explain->size);
        at += explain->size;
    }
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
    const struct explain_book *book = sched->loops[ask->at].book;
    for (int i = 0; i < KIND_COUNT; i++)
        log_find(&book->logs[i], ask->job, &ask->found);
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

        if (!namespace_lists(listed, explain_text(explain, explain->type_at, explain->type_len)))
            continue;
        memmove(found->at + kept, explain, size);
        kept += size;
    }
    found->len = kept;
}
