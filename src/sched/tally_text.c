/* A tally as lines of JSON and back: {"work":["us","dev"],"succeeded":3,"wait":[[0,2],[5,1]],...}.
 * Files of older and newer releases may be read: names that are not known are left out. */
#include "base/json.h"
#include "sched/tally.h"

#include <assert.h>

static void save_times(struct jsonw *w, const char *name, const struct tally_times *times)
{
    jsonw_key(w, name);
    jsonw_arr(w);
    for (int i = 0; i < TALLY_BUCKETS; i++) {
        if (!times->counts[i])
            continue;
        jsonw_arr(w);
        jsonw_int(w, i);
        jsonw_int(w, times->counts[i]);
        jsonw_end_arr(w);
    }
    jsonw_end_arr(w);
}

static struct jsonw begin(struct buf *text, const char *kind, struct str a, struct str b,
                          struct str c)
{
    struct jsonw w = jsonw_to(text);
    const struct str ids[] = {a, b, c};

    jsonw_obj(&w);
    jsonw_key(&w, kind);
    jsonw_arr(&w);
    for (size_t i = 0; i < COUNT_OF(ids) && ids[i].at; i++)
        jsonw_str(&w, ids[i]);
    jsonw_end_arr(&w);
    return w;
}

static void end(struct buf *text, struct jsonw *w)
{
    jsonw_end_obj(w);
    buf_char(text, '\n');
}

void tally_save(const struct tally *tally, struct buf *text)
{
    const struct tally_work *work;
    const struct tally_machine *machine;
    const struct tally_refusal *refusal;

    for (size_t at = 0; (work = map_next(&tally->works, &at));) {
        struct jsonw w = begin(text, "work", work->node, work->type, STR_NONE);

        for (int i = 0; i < TALLY_COUNTS; i++)
            if (work->counts[i] || i == TALLY_ATTEMPTS) /* without it a row is an old one */
                jsonw_kint(&w, tally_count_name((enum tally_count)i), work->counts[i]);
        save_times(&w, "wait", &work->wait);
        save_times(&w, "run", &work->run);
        end(text, &w);
    }
    for (size_t at = 0; (machine = map_next(&tally->machines, &at));) {
        struct jsonw w = begin(text, "machine", machine->node, STR_NONE, STR_NONE);

        for (int i = 0; i < TALLY_LEVELS; i++)
            if (machine->level_ms[i])
                jsonw_kint(&w, tally_level_name(i), machine->level_ms[i]);
        jsonw_kint(&w, "used_ms", machine->used_ms);
        jsonw_kint(&w, "max_ms", machine->max_ms);
        end(text, &w);
    }
    for (size_t at = 0; (refusal = map_next(&tally->refusals, &at));) {
        struct jsonw w = begin(text, "refusal", refusal->node, refusal->type, refusal->reason);

        jsonw_kint(&w, "count", (int64_t)refusal->count);
        end(text, &w);
    }
}

/* What is not there, or cannot be, counts nothing. */
static int64_t number(const struct json *row, const char *name)
{
    int64_t value;

    return json_int(json_get(row, name), &value) && value > 0 ? value : 0;
}

static void load_times(struct tally_times *times, const struct json *list)
{
    const struct json *pair = json_first(list);

    for (uint32_t i = 0; json_type(list) == JSON_ARR && i < list->count;
         i++, pair = json_next(pair)) {
        int64_t bucket, count;

        if (json_type(pair) == JSON_ARR && pair->count == 2 &&
            json_int(json_first(pair), &bucket) && json_int(json_next(json_first(pair)), &count) &&
            bucket >= 0 && bucket < TALLY_BUCKETS && count > 0 && count <= UINT32_MAX)
            times->counts[bucket] += (uint32_t)count;
    }
}

/* The ids of a row: `count` texts. */
static bool read_ids(const struct json *row, const char *kind, uint32_t count, struct str *ids,
                     struct arena *arena)
{
    const struct json *list = json_get(row, kind);
    const struct json *id = json_first(list);

    if (json_type(list) != JSON_ARR || list->count != count)
        return false;
    for (uint32_t i = 0; i < count; i++, id = json_next(id)) {
        if (json_type(id) != JSON_STR)
            return false;
        ids[i] = json_str(id, arena);
    }
    return true;
}

/* A file of a release that counted attempts only: those of jobs that went on stand there as failed.
 */
static void load_old_work(struct tally_work *work, const struct json *row)
{
    int64_t failed = number(row, "failed"), retried = number(row, "retried");

    work->counts[TALLY_ATTEMPTS] +=
        (uint32_t)(number(row, "succeeded") + failed + number(row, "cancelled"));
    work->counts[TALLY_FAILED] -= (uint32_t)(retried < failed ? retried : failed);
}

static void load_work(struct tally *tally, const struct json *row, const struct str *ids)
{
    struct tally_work *work = tally_work(tally, ids[0], ids[1]);

    for (int i = 0; i < TALLY_COUNTS; i++)
        work->counts[i] += (uint32_t)number(row, tally_count_name((enum tally_count)i));
    if (json_is_null(json_get(row, tally_count_name(TALLY_ATTEMPTS))))
        load_old_work(work, row);
    load_times(&work->wait, json_get(row, "wait"));
    load_times(&work->run, json_get(row, "run"));
}

static void load_machine(struct tally *tally, const struct json *row, const struct str *ids)
{
    struct tally_machine *machine = tally_machine(tally, ids[0]);

    for (int i = 0; i < TALLY_LEVELS; i++)
        machine->level_ms[i] += number(row, tally_level_name(i));
    machine->used_ms += number(row, "used_ms");
    machine->max_ms += number(row, "max_ms");
}

static void load_refusal(struct tally *tally, const struct json *row, const struct str *ids)
{
    tally_refuse(tally, ids[0], ids[1], ids[2], (uint64_t)number(row, "count"));
}

enum err tally_load(struct tally *tally, struct str line)
{
    static const struct {
        const char *kind;
        uint32_t ids;
        void (*load)(struct tally *tally, const struct json *row, const struct str *ids);
    } kinds[] = {
        {"work", 2, load_work}, {"machine", 1, load_machine}, {"refusal", 3, load_refusal}};
    struct arena arena = {0};
    const struct json *row;
    struct str ids[3];
    bool taken = false;

    if (json_parse(line, &arena, &row, NULL) != ERR_OK)
        row = NULL;
    for (size_t i = 0; i < COUNT_OF(kinds) && !taken && json_type(row) == JSON_OBJ; i++) {
        taken = read_ids(row, kinds[i].kind, kinds[i].ids, ids, &arena);
        if (taken)
            kinds[i].load(tally, row, ids);
    }
    arena_free(&arena);
    return taken ? ERR_OK : ERR_BAD_JSON;
}
