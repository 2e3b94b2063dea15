/* Rows by key; a key is ids separated by blanks, which no id contains. On each loop an attempt that
 * ended costs one map look-up; the keeper adds up, and keeps a ring of tallies by the number of the
 * hour. As text a tally is lines of JSON:
 * {"work":["us","dev"],"succeeded":3,"wait":[[0,2],[5,1]],...}; files of older and newer releases
 * can be read, and unknown names are ignored. */
#include "sched/tally.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/mem.h"
#include "model/node.h"
#include "sched/sched.h"

/* --- rows --- */

enum { KEY_MAX = 512 };

#define OTHER STR("other")

static const char *const count_names[TALLY_COUNTS] = {
    [TALLY_DONE] = "succeeded",      [TALLY_FAILED] = "failed",
    [TALLY_CANCELLED] = "cancelled", [TALLY_ATTEMPTS] = "attempts",
    [TALLY_RETRIED] = "retried",     [TALLY_FAILOVERS] = "failovers",
    [TALLY_KILLS] = "kills",         [TALLY_BREAKERS] = "breaker_opened"};

const char *tally_count_name(enum tally_count count)
{
    assert(count < TALLY_COUNTS);
    return count_names[count];
}

const char *tally_level_name(int level)
{
    assert(level >= 0 && level < TALLY_LEVELS);
    return level == TALLY_UNMEASURED ? "unmeasured"
           : level == TALLY_OFFLINE  ? "offline"
                                     : level_name((enum level)level);
}

void tally_time(struct tally_times *times, int64_t ms)
{
    int bucket = 0;

    if (ms > 1)
        bucket = (int)ceil(2 * log2((double)ms) - 1e-9);
    if (bucket >= TALLY_BUCKETS)
        bucket = TALLY_BUCKETS - 1;
    assert(bucket >= 0);
    times->counts[bucket]++;
}

int64_t tally_percentile(const struct tally_times *times, int percent)
{
    uint64_t total = 0, seen = 0;

    assert(percent > 0 && percent <= 100);
    for (int i = 0; i < TALLY_BUCKETS; i++)
        total += times->counts[i];
    if (total == 0)
        return -1;
    uint64_t rank = (total * (uint64_t)percent + 99) / 100;
    for (int i = 0; i < TALLY_BUCKETS; i++) {
        if (seen + times->counts[i] >= rank) {
            double part = (double)(rank - seen) / times->counts[i];

            /* Buckets end at 1, 1.41, 2, 2.83, 4 ... ms. */
            return i == 0 ? 1 : llround(exp2((i - 1 + part) / 2));
        }
        seen += times->counts[i];
    }
    return -1;
}

struct tally *tally_new(void)
{
    return mem_new(struct tally);
}

void tally_free(struct tally *tally)
{
    if (!tally)
        return;
    map_free(&tally->works);
    map_free(&tally->keys);
    map_free(&tally->machines);
    map_free(&tally->refusals);
    arena_free(&tally->arena);
    free(tally);
}

bool tally_is_empty(const struct tally *tally)
{
    return tally->works.count + tally->keys.count + tally->machines.count + tally->refusals.count ==
           0;
}

/* An id from a record; one that is malformed or too long has no row of its own. */
static struct str checked(struct str id)
{
    return id.len == 0 ? STR("-") : str_is_id(id, NODE_ID_MAX) ? id : OTHER;
}

/* A type may be prefixed with a namespace. */
static struct str checked_type(struct str type)
{
    return type.len == 0 ? STR("-") : str_is_name(type, NODE_ID_MAX) ? type : OTHER;
}

static struct str join(char key[KEY_MAX], struct str a, struct str b, struct str c)
{
    struct buf buf = {.at = key, .cap = KEY_MAX};

    assert(a.len + b.len + c.len + 2 < KEY_MAX);
    buf_str(&buf, a);
    buf_char(&buf, ' ');
    buf_str(&buf, b);
    buf_char(&buf, ' ');
    buf_str(&buf, c);
    assert(buf.at == key);
    return buf_view(&buf);
}

/* The row of these ids, created if needed; once there are `max` rows, the shared one. A row of
 * `bytes` bytes begins with its ids, of which `c` may be empty. */
static void *find_row(struct tally *tally, struct map *rows, size_t max, size_t bytes, struct str a,
                      struct str b, struct str c)
{
    char text[KEY_MAX];
    struct str key = join(text, a, b, c), *ids;
    void *row = map_get(rows, key);

    if (!row && rows->count >= max - 1) {
        key = join(text, OTHER, OTHER, c.len ? OTHER : STR(""));
        row = map_get(rows, key);
    }
    if (row)
        return row;
    ids = row = arena_alloc(&tally->arena, bytes);
    key = arena_str(&tally->arena, key);
    map_put(rows, key, row);
    while (key.len)
        *ids++ = arena_str(&tally->arena, str_cut(&key, ' '));
    return row;
}

struct tally_work *tally_work(struct tally *tally, struct str node, struct str type)
{
    _Static_assert(offsetof(struct tally_work, type) == sizeof(struct str), "begins with its ids");
    return find_row(tally, &tally->works, TALLY_WORKS_MAX, sizeof(struct tally_work), checked(node),
                    checked_type(type), STR(""));
}

struct tally_key *tally_key(struct tally *tally, struct str key, struct str type)
{
    _Static_assert(offsetof(struct tally_key, type) == sizeof(struct str), "begins with its ids");
    return find_row(tally, &tally->keys, TALLY_KEYS_MAX, sizeof(struct tally_key),
                    demand_is_key(key) ? key : OTHER, checked_type(type), STR(""));
}

static void add_amount(int64_t *to, int64_t more)
{
    if (__builtin_add_overflow(*to, more, to))
        *to = INT64_MAX;
}

static void add_other(struct tally_usage *to, struct str name, int64_t amount_ms,
                      struct arena *arena)
{
    struct tally_other **at = &to->others;
    int count = 0;

    for (; *at && !str_eq((*at)->name, name); at = &(*at)->next)
        count++;
    if (!*at && count < TALLY_OTHERS_MAX) {
        *at = arena_new(arena, struct tally_other);
        (*at)->name = arena_str(arena, name);
    }
    if (*at)
        add_amount(&(*at)->amount_ms, amount_ms);
}

void tally_usage_add(struct tally_usage *to, const struct tally_usage *more, struct arena *arena)
{
    add_amount(&to->runs, more->runs);
    for (int i = 0; i < TALLY_AMOUNTS; i++)
        add_amount(&to->amount_ms[i], more->amount_ms[i]);
    for (const struct tally_other *other = more->others; other; other = other->next)
        add_other(to, other->name, other->amount_ms, arena);
}

struct tally_machine *tally_machine(struct tally *tally, struct str node)
{
    struct str id = checked(node);
    struct tally_machine *machine = map_get(&tally->machines, id);

    if (!machine && tally->machines.count >= TALLY_MACHINES_MAX - 1) {
        id = OTHER;
        machine = map_get(&tally->machines, id);
    }
    if (!machine) {
        machine = arena_new(&tally->arena, struct tally_machine);
        machine->node = arena_str(&tally->arena, id);
        map_put(&tally->machines, machine->node, machine);
    }
    return machine;
}

void tally_refuse(struct tally *tally, struct str node, struct str type, struct str reason,
                  uint64_t count)
{
    struct tally_refusal *refusal =
        find_row(tally, &tally->refusals, TALLY_REFUSALS_MAX, sizeof *refusal, checked(node),
                 checked_type(type), checked(reason));

    _Static_assert(offsetof(struct tally_refusal, reason) == 2 * sizeof(struct str),
                   "begins with its ids");
    refusal->count += count;
}

static void add_times(struct tally_times *to, const struct tally_times *from)
{
    for (int i = 0; i < TALLY_BUCKETS; i++)
        to->counts[i] += from->counts[i];
}

static int64_t looked_ms(const struct tally_machine *machine)
{
    int64_t sum_ms = 0;

    for (int i = 0; i < TALLY_LEVELS; i++)
        sum_ms += machine->level_ms[i];
    return sum_ms;
}

/* `other`: from another instance, which observed the same machines. */
static void merge(struct tally *tally, const struct tally *more, bool other)
{
    const struct tally_work *work;
    const struct tally_key *key;
    const struct tally_refusal *refusal;
    const struct tally_machine *machine;

    assert(tally != more);
    for (size_t at = 0; (work = map_next(&more->works, &at));) {
        struct tally_work *to = tally_work(tally, work->node, work->type);

        for (int i = 0; i < TALLY_COUNTS; i++)
            to->counts[i] += work->counts[i];
        add_times(&to->wait, &work->wait);
        add_times(&to->run, &work->run);
        tally_usage_add(&to->keyless, &work->keyless, &tally->arena);
        tally_usage_add(&to->keyed, &work->keyed, &tally->arena);
    }
    for (size_t at = 0; (key = map_next(&more->keys, &at));)
        tally_usage_add(&tally_key(tally, key->key, key->type)->usage, &key->usage, &tally->arena);
    for (size_t at = 0; (refusal = map_next(&more->refusals, &at));)
        tally_refuse(tally, refusal->node, refusal->type, refusal->reason, refusal->count);
    for (size_t at = 0; (machine = map_next(&more->machines, &at));) {
        struct tally_machine *to = tally_machine(tally, machine->node);

        if (other && looked_ms(machine) <= looked_ms(to))
            continue;
        if (other) /* replaces what was seen here */
            *to = (struct tally_machine){.node = to->node};
        for (int i = 0; i < TALLY_LEVELS; i++)
            to->level_ms[i] += machine->level_ms[i];
        to->used_ms += machine->used_ms;
        to->max_ms += machine->max_ms;
    }
}

void tally_merge(struct tally *tally, const struct tally *more)
{
    merge(tally, more, false);
}

void tally_merge_other(struct tally *tally, const struct tally *other)
{
    merge(tally, other, true);
}

/* --- where they come from --- */

const char *tally_kill_name(struct str reason)
{
    static const struct {
        const char *reason, *name;
    } kills[] = {{"EMERGENCY", "emergency"},
                 {"OOM", "oom"},
                 {"DISK_LIMIT", "disk_limit"},
                 {"TIMEOUT", "timeout"},
                 {"RUN_TIMEOUT", "timeout"}};

    for (size_t i = 0; reason.len && i < COUNT_OF(kills); i++) /* most runs end without one */
        if (str_is(reason, kills[i].reason))
            return kills[i].name;
    return NULL;
}

static int64_t times_ms(int64_t amount, int64_t ms)
{
    int64_t product;

    return __builtin_mul_overflow(amount, ms, &product) ? INT64_MAX : product;
}

/* Adds what this demand takes in `ms` milliseconds. */
static void use(struct tally_usage *usage, const struct demand *demand, int64_t ms,
                struct arena *arena)
{
    const int64_t amounts[TALLY_AMOUNTS] = {
        [TALLY_RUN_MS] = 1,
        [TALLY_SLOTS] = demand->slots,
        [TALLY_CPU] = demand_need(demand, STR("cpu")),
        [TALLY_MEM_MB] = demand_need(demand, STR("mem_mb")),
        [TALLY_GPUS] = demand->gpus,
        [TALLY_VRAM_MB] = demand->gpus ? 0 : demand->vram_mb,
    };

    add_amount(&usage->runs, 1);
    for (int i = 0; i < TALLY_AMOUNTS; i++)
        add_amount(&usage->amount_ms[i], times_ms(amounts[i], ms));
    for (size_t i = 0; i < demand->need_count; i++)
        if (!str_is(demand->needs[i].name, "cpu") && !str_is(demand->needs[i].name, "mem_mb"))
            add_other(usage, demand->needs[i].name, times_ms(demand->needs[i].amount, ms), arena);
}

/* An attempt was on a node and is over. Returns the row it counts in. */
static struct tally_work *note_attempt(struct tally *tally, const struct store_op *op)
{
    const struct store_head *head = &op->head;
    enum store_outcome outcome = op->u.settle.outcome;
    struct str node = op->node.at ? op->node : str_of(head->node);
    struct tally_work *work = tally_work(tally, node, str_of(head->type));
    bool opened =
        op->u.settle.breaker != BREAKER_NO_EVENT && op->u.settle.breaker != BREAKER_RECOVERED;
    bool retried = head->state == JOB_RETRYING;

    work->counts[TALLY_ATTEMPTS]++;
    work->counts[TALLY_RETRIED] += retried;
    work->counts[TALLY_FAILOVERS] += retried && outcome == STORE_EXPIRE;
    work->counts[TALLY_KILLS] += outcome != STORE_DONE && tally_kill_name(str_of(head->reason));
    work->counts[TALLY_BREAKERS] += opened;
    if (head->attempt == 1)
        tally_time(&work->wait, head->dispatched_ms - head->created_ms);
    /* For a node that does not acknowledge: a finished job did begin. */
    int64_t begun_ms = head->acked_ms          ? head->acked_ms
                       : outcome == STORE_DONE ? head->dispatched_ms
                                               : 0;
    if (!begun_ms)
        return work;
    int64_t ms = head->updated_ms - begun_ms;
    struct demand demand;
    tally_time(&work->run, ms);
    ms = ms > 0 ? ms : 0; /* the clocks disagree */
    if (!op->u.settle.demand.len || !demand_parse(op->u.settle.demand, &demand)) {
        /* Most jobs take one slot: nothing else to add. */
        work->keyless.runs++;
        add_amount(&work->keyless.amount_ms[TALLY_RUN_MS], ms);
        add_amount(&work->keyless.amount_ms[TALLY_SLOTS], ms);
        return work;
    }
    use(demand.key_count ? &work->keyed : &work->keyless, &demand, ms, &tally->arena);
    for (size_t i = 0; i < demand.key_count; i++)
        use(&tally_key(tally, demand.keys[i], work->type)->usage, &demand, ms, &tally->arena);
    return work;
}

/* Counted at its last node; "-" if it never was on one. `work`: the row of its last attempt, or
 * NULL; nearly always it is the same. */
static void note_job(struct tally *tally, const struct store_head *head, enum tally_count how,
                     struct tally_work *work)
{
    assert(job_state_final(head->state) && how <= TALLY_CANCELLED);
    if (!work || !str_is(work->node, head->node))
        work = tally_work(tally, str_of(head->node), str_of(head->type));
    work->counts[how]++;
}

void tally_note_end(struct sched_loop *loop, const struct store_op *op, bool ended)
{
    static const struct {
        enum tally_count job; /* how its end counts for the job, unless the job is done */
        bool attempt;         /* always ends an attempt */
        bool refusal;         /* a refusal of the job */
    } kinds[STORE_OUTCOME_COUNT] = {
        [STORE_DONE] = {TALLY_FAILED, true, false},
        [STORE_FAIL] = {TALLY_FAILED, true, false},
        [STORE_EXPIRE] = {TALLY_FAILED, true, false},
        [STORE_CANCEL] = {TALLY_CANCELLED, false, false},
        [STORE_REFUSED] = {TALLY_FAILED, false, true},
        [STORE_SEND_FAILED] = {TALLY_FAILED, false, true},
        [STORE_QUEUE_TIMEOUT] = {TALLY_FAILED, false, true},
        [STORE_NO_CANDIDATE] = {TALLY_FAILED, false, true},
    };
    enum store_outcome outcome = op->u.settle.outcome;
    const struct store_head *head = &op->head;
    struct tally_work *work = NULL;

    assert(op->verb == STORE_FINISH && !op->err && outcome < STORE_OUTCOME_COUNT);
    if (outcome == STORE_ABANDON)
        return; /* its request was refused, and counted then: the client never had a job */
    if (kinds[outcome].refusal) /* no node, if it waited for one in vain */
        tally_refuse(loop->tally, op->node, str_of(head->type),
                     op->node.at ? op->u.settle.reason : str_of(head->reason), 1);
    else if (kinds[outcome].attempt || op->u.settle.ended_lease)
        work = note_attempt(loop->tally, op);
    if (ended)
        note_job(loop->tally, head, head->state == JOB_DONE ? TALLY_DONE : kinds[outcome].job,
                 work);
}

void tally_note_unplaced(struct sched_loop *loop, const struct store_head *head)
{
    note_job(loop->tally, head, TALLY_FAILED, NULL);
    tally_refuse(loop->tally, STR_NONE, str_of(head->type), str_of(head->reason), 1);
}

void tally_note_refusal(struct sched_loop *loop, struct str node, struct str type,
                        const char *reason)
{
    tally_refuse(loop->tally, node, type, str_of(reason), 1);
}

void tally_note_machine(struct tally *tally, const struct node *node, int64_t ms)
{
    struct tally_machine *machine = tally_machine(tally, node->id);
    int32_t level = atomic_load_explicit(&node->level, memory_order_relaxed);
    int32_t max = atomic_load_explicit(&node->max, memory_order_relaxed);
    struct counts counts = counts_of(node);
    bool offline = atomic_load_explicit(&node->health, memory_order_relaxed) == NODE_OFFLINE;

    assert(ms >= 0 && level < LEVEL_COUNT);
    machine->level_ms[offline ? TALLY_OFFLINE : level < 0 ? TALLY_UNMEASURED : level] += ms;
    machine->used_ms += (counts.reserved + counts.running) * ms;
    machine->max_ms += offline ? 0 : max * ms;
}

void tally_tick(struct sched_loop *loop)
{
    if (tally_is_empty(loop->tally) || atomic_load(&loop->tallied))
        return; /* the keeper has not taken the last one yet */
    atomic_store(&loop->tallied, loop->tally);
    loop->tally = tally_new();
}

void tally_collect(struct sched *sched, struct tally *into)
{
    for (int i = 0; i <= sched->loop_count; i++) {
        struct tally *more = atomic_exchange(&sched->loops[i].tallied, NULL);

        if (more && into)
            tally_merge(into, more);
        tally_free(more);
    }
}

/* --- as text --- */

static void save_times(struct jsonw *w, const char *name, const struct tally_times *times)
{
    jsonw_karr(w, name);
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

static const char *const amount_names[TALLY_AMOUNTS] = {
    [TALLY_RUN_MS] = "run_ms", [TALLY_SLOTS] = "slot_ms", [TALLY_CPU] = "cpu_milli_ms",
    [TALLY_MEM_MB] = "mb_ms",  [TALLY_GPUS] = "gpu_ms",   [TALLY_VRAM_MB] = "vram_mb_ms"};

static void save_usage(struct jsonw *w, const char *name, const struct tally_usage *usage)
{
    if (!usage->runs)
        return;
    jsonw_kobj(w, name);
    jsonw_kint(w, "runs", usage->runs);
    for (int i = 0; i < TALLY_AMOUNTS; i++)
        if (usage->amount_ms[i])
            jsonw_kint(w, amount_names[i], usage->amount_ms[i]);
    jsonw_kobj(w, "others");
    for (const struct tally_other *other = usage->others; other; other = other->next) {
        jsonw_key_str(w, other->name);
        jsonw_int(w, other->amount_ms);
    }
    jsonw_end_obj(w);
    jsonw_end_obj(w);
}

static struct jsonw begin(struct buf *text, const char *kind, struct str a, struct str b,
                          struct str c)
{
    struct jsonw w = jsonw_to(text);
    const struct str ids[] = {a, b, c};

    jsonw_obj(&w);
    jsonw_karr(&w, kind);
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
    const struct tally_key *key;
    const struct tally_machine *machine;
    const struct tally_refusal *refusal;

    for (size_t at = 0; (work = map_next(&tally->works, &at));) {
        struct jsonw w = begin(text, "work", work->node, work->type, STR_NONE);

        for (int i = 0; i < TALLY_COUNTS; i++)
            if (work->counts[i] || i == TALLY_ATTEMPTS) /* rows of old releases lack it */
                jsonw_kint(&w, tally_count_name((enum tally_count)i), work->counts[i]);
        save_times(&w, "wait", &work->wait);
        save_times(&w, "run", &work->run);
        save_usage(&w, "keyless", &work->keyless);
        save_usage(&w, "keyed", &work->keyed);
        end(text, &w);
    }
    for (size_t at = 0; (key = map_next(&tally->keys, &at));) {
        struct jsonw w = begin(text, "key", key->key, key->type, STR_NONE);

        save_usage(&w, "usage", &key->usage);
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

/* Absent or invalid values count as 0. */
static int64_t number(const struct json *row, const char *name)
{
    int64_t value;

    return json_int(json_get(row, name), &value) && value > 0 ? value : 0;
}

static void load_times(struct tally_times *times, const struct json *list)
{
    for (const struct json *pair = json_items(list); pair; pair = json_after(list, pair)) {
        int64_t bucket, count;

        if (json_type(pair) == JSON_ARR && pair->count == 2 &&
            json_int(json_first(pair), &bucket) && json_int(json_next(json_first(pair)), &count) &&
            bucket >= 0 && bucket < TALLY_BUCKETS && count > 0 && count <= UINT32_MAX)
            times->counts[bucket] += (uint32_t)count;
    }
}

static void load_usage(struct tally_usage *usage, const struct json *from, struct tally *tally)
{
    const struct json *others = json_get(from, "others");
    struct arena arena = {0};

    if (json_type(from) != JSON_OBJ)
        return;
    add_amount(&usage->runs, number(from, "runs"));
    for (int i = 0; i < TALLY_AMOUNTS; i++)
        add_amount(&usage->amount_ms[i], number(from, amount_names[i]));
    for (const struct json *name = json_keys(others); name; name = json_after(others, name)) {
        struct str other = json_str(name, &arena);
        int64_t amount_ms;

        if (json_int(name + 1, &amount_ms) && amount_ms > 0 && str_is_id(other, DEMAND_NAME_MAX))
            add_other(usage, other, amount_ms, &tally->arena);
    }
    arena_free(&arena);
}

/* Reads the ids of a row: `count` texts. */
static bool read_ids(const struct json *row, const char *kind, uint32_t count, struct str *ids,
                     struct arena *arena)
{
    const struct json *list = json_get(row, kind);

    if (json_type(list) != JSON_ARR || list->count != count)
        return false;
    for (const struct json *id = json_items(list); id; id = json_after(list, id)) {
        if (json_type(id) != JSON_STR)
            return false;
        *ids++ = json_str(id, arena);
    }
    return true;
}

static void load_work(struct tally *tally, const struct json *row, const struct str *ids)
{
    struct tally_work *work = tally_work(tally, ids[0], ids[1]);

    for (int i = 0; i < TALLY_COUNTS; i++)
        work->counts[i] += (uint32_t)number(row, tally_count_name((enum tally_count)i));
    if (json_is_null(json_get(row, tally_count_name(TALLY_ATTEMPTS)))) {
        /* A file of a release that counted attempts only: there, retried ones count as failed. */
        int64_t failed = number(row, "failed"), retried = number(row, "retried");

        work->counts[TALLY_ATTEMPTS] +=
            (uint32_t)(number(row, "succeeded") + failed + number(row, "cancelled"));
        work->counts[TALLY_FAILED] -= (uint32_t)(retried < failed ? retried : failed);
    }
    load_times(&work->wait, json_get(row, "wait"));
    load_times(&work->run, json_get(row, "run"));
    load_usage(&work->keyless, json_get(row, "keyless"), tally);
    load_usage(&work->keyed, json_get(row, "keyed"), tally);
}

static void load_key(struct tally *tally, const struct json *row, const struct str *ids)
{
    load_usage(&tally_key(tally, ids[0], ids[1])->usage, json_get(row, "usage"), tally);
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
    } kinds[] = {{"work", 2, load_work},
                 {"key", 2, load_key},
                 {"machine", 1, load_machine},
                 {"refusal", 3, load_refusal}};
    struct arena arena = {0};
    const struct json *row = NULL;
    struct str ids[3];
    bool taken = false;

    json_parse(line, &arena, &row, NULL);
    for (size_t i = 0; i < COUNT_OF(kinds) && !taken; i++) {
        taken = read_ids(row, kinds[i].kind, kinds[i].ids, ids, &arena);
        if (taken)
            kinds[i].load(tally, row, ids);
    }
    arena_free(&arena);
    return taken ? ERR_OK : ERR_BAD_JSON;
}

/* --- hours --- */

static void drop(struct hour *hour)
{
    tally_free(hour->tally);
    *hour = (struct hour){0};
}

void hours_free(struct hours *hours)
{
    for (size_t i = 0; i < HOURS_MAX; i++)
        drop(&hours->ring[i]);
}

struct tally *hours_at(struct hours *hours, int64_t ms)
{
    int64_t number = ms / HOUR_MS;
    struct hour *hour = &hours->ring[number % HOURS_MAX];

    assert(ms >= 0);
    if (hour->tally && hour->number > number)
        return NULL;
    if (hour->tally && hour->number < number)
        drop(hour);
    if (!hour->tally)
        *hour = (struct hour){.number = number, .tally = tally_new()};
    hour->unsaved = true;
    return hour->tally;
}

struct tally *hours_sum(const struct hours *hours, int64_t since_ms, int64_t until_ms)
{
    struct tally *sum = tally_new();

    for (size_t i = 0; i < HOURS_MAX; i++) {
        const struct hour *hour = &hours->ring[i];

        if (hour->tally && (hour->number + 1) * HOUR_MS > since_ms &&
            hour->number * HOUR_MS <= until_ms)
            tally_merge(sum, hour->tally);
    }
    return sum;
}

void hours_tidy(struct hours *hours, int64_t now_ms)
{
    hours->works = hours->keys = 0;
    for (size_t i = 0; i < HOURS_MAX; i++) {
        struct hour *hour = &hours->ring[i];

        if (hour->tally && hour->number + HOURS_MAX <= now_ms / HOUR_MS)
            drop(hour);
        hours->works += hour->tally ? hour->tally->works.count : 0;
        hours->keys += hour->tally ? hour->tally->keys.count : 0;
    }
    while (hours->works > HOURS_WORKS_MAX || hours->keys > HOURS_KEYS_MAX) {
        struct hour *oldest = NULL;

        for (size_t i = 0; i < HOURS_MAX; i++)
            if (hours->ring[i].tally && (!oldest || hours->ring[i].number < oldest->number))
                oldest = &hours->ring[i];
        assert(oldest);
        hours->works -= oldest->tally->works.count;
        hours->keys -= oldest->tally->keys.count;
        drop(oldest);
    }
}
