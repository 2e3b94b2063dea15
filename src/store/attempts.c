/* Writes, bounds and searches the list of ended attempts. */
#include "store/attempts.h"

#include "base/json.h"

#include <assert.h>
#include <string.h>

/* The array without its oldest entry. Ours is always valid; one that is not starts anew. */
static void drop_oldest(struct buf *attempts)
{
    struct arena arena = {0};
    const struct json *root;
    struct str second = STR_NONE;

    if (!json_parse(buf_view(attempts), &arena, &root, NULL) && root->count > 1)
        second = json_raw(json_next(json_first(root)));
    if (second.at) {
        size_t cut = (size_t)(second.at - attempts->at) - 1;

        assert(cut > 0 && cut < attempts->len);
        memmove(attempts->at + 1, second.at, attempts->len - cut - 1);
        attempts->len -= cut;
    } else {
        buf_clear(attempts);
    }
    arena_free(&arena);
}

void attempts_add(struct buf *attempts, const struct store_head *head, enum job_event outcome,
                  struct str reason, int64_t now_ms)
{
    struct jsonw w;

    buf_reserve(attempts, 256); /* one entry, in one go */
    if (attempts->len == 0) {
        buf_char(attempts, '[');
    } else {
        assert(attempts->at[attempts->len - 1] == ']');
        attempts->at[attempts->len - 1] = ',';
    }
    w = jsonw_to(attempts);
    jsonw_obj(&w);
    jsonw_kint(&w, "attempt_id", head->attempt);
    jsonw_kstr(&w, "node_id", str_of(head->node));
    jsonw_kstr(&w, "outcome", str_of(job_event_name(outcome)));
    jsonw_kstr(&w, "reason", reason.len ? reason : STR_NONE);
    jsonw_kint(&w, "dispatched_ms", head->dispatched_ms);
    if (head->acked_ms)
        jsonw_kint(&w, "acked_ms", head->acked_ms);
    else
        jsonw_knull(&w, "acked_ms");
    jsonw_kint(&w, "ended_ms", now_ms);
    jsonw_end_obj(&w);
    buf_char(attempts, ']');
    while (attempts->len > STORE_HISTORY_MAX)
        drop_oldest(attempts);
}

static bool is_entry(const struct json *entry, int attempt, struct str node, enum job_event outcome,
                     struct arena *arena)
{
    int64_t attempt_id;

    return json_int(json_get(entry, "attempt_id"), &attempt_id) && attempt_id == attempt &&
           json_str_is(json_get(entry, "outcome"), job_event_name(outcome)) &&
           (!node.at || str_eq(json_str(json_get(entry, "node_id"), arena), node));
}

bool attempts_has(const struct buf *attempts, int attempt, struct str node, enum job_event outcome)
{
    struct arena arena = {0};
    const struct json *root;
    bool found = false;

    if (attempts->len == 0 || json_parse(buf_view(attempts), &arena, &root, NULL)) {
        arena_free(&arena);
        return false;
    }
    const struct json *entry = json_first(root);
    for (uint32_t i = 0; i < root->count && !found; i++, entry = json_next(entry))
        found = is_entry(entry, attempt, node, outcome, &arena);
    arena_free(&arena);
    return found;
}
