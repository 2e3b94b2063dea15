/* The last puts, oldest first. */
#include "sched/replay.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "sched/keeper.h"
#include "sched/spec.h"
#include "store/chain.h"

enum {
    JOBS_MAX = 4096,             /* beyond this the oldest are dropped */
    BYTES_MAX = 8 * 1024 * 1024, /* of their texts; an entry itself has a fixed size */
    PUT_BATCH = 256,             /* in one tick */
};

struct entry {
    struct chain link;
    struct replay *replay;
    struct store_record record; /* its texts follow the entry */
    int64_t put_ms;             /* of replay->time_ms */
    int64_t until_ms;           /* monotonic: how long it may wait */
    size_t bytes;
    unsigned begun; /* see replay->begun */
    bool busy;      /* it is being put; */
    bool gone;      /* and was forgotten meanwhile */
    struct store_op op;
    struct arena arena;
    char texts[];
};

struct replay {
    struct sched *sched;
    struct chain entries;
    struct idmap by_job;
    size_t bytes;
    /* The monotonic clock minus the time during which the store was down: nothing expires
     * meanwhile, and a failover may take longer than any entry is kept. */
    int64_t time_ms;
    int64_t ticked_ms; /* monotonic */
    unsigned begun; /* how often all had to be put again; an entry with a lower number must still be
                       put */
    bool putting;
};

struct replay *replay_new(struct sched *sched)
{
    struct replay *replay = mem_new(struct replay);

    replay->sched = sched;
    chain_init(&replay->entries);
    return replay;
}

static void entry_free(struct entry *entry)
{
    struct replay *replay = entry->replay;

    if (idmap_get(&replay->by_job, entry->record.head.id) == entry)
        idmap_del(&replay->by_job, entry->record.head.id);
    chain_del(&entry->link);
    replay->bytes -= entry->bytes;
    arena_free(&entry->arena);
    free(entry);
}

void replay_free(struct replay *replay)
{
    if (!replay)
        return;
    while (!chain_alone(&replay->entries))
        entry_free(container_of(replay->entries.next, struct entry, link));
    idmap_free(&replay->by_job);
    free(replay);
}

/* Drops entries from the front that are too old or too many. */
static void drop_old(struct replay *replay)
{
    struct chain *next;

    for (struct chain *link = replay->entries.next; link != &replay->entries; link = next) {
        struct entry *entry = container_of(link, struct entry, link);
        bool old =
            replay->time_ms - entry->put_ms >= REPLAY_KEEP_MS && entry->begun == replay->begun;

        next = link->next;
        if (!old && replay->by_job.count <= JOBS_MAX && replay->bytes <= BYTES_MAX)
            break;
        if (!entry->busy && entry->begun == replay->begun) /* not one that must still be put */
            entry_free(entry);
    }
}

static struct str copy(char **at, struct str text)
{
    struct str own = {.at = *at, .len = text.len};

    if (!text.at)
        return STR_NONE;
    memcpy(*at, text.at, text.len);
    *at += text.len;
    return own;
}

void replay_add(struct replay *replay, const struct store_record *record)
{
    size_t bytes = record->spec.len + record->idem.len;
    struct entry *entry;
    char *at;

    assert(record->head.id && record->spec.at);
    /* A store that is not shared has what it acknowledged. */
    if (!store_name(replay->sched->store) || idmap_get(&replay->by_job, record->head.id))
        return;
    entry = mem_zeroed(1, sizeof *entry + bytes);
    at = entry->texts;
    entry->replay = replay;
    entry->record.head = record->head;
    entry->record.spec = copy(&at, record->spec);
    entry->record.idem = copy(&at, record->idem);
    entry->record.fingerprint = record->fingerprint;
    entry->put_ms = replay->time_ms;
    entry->until_ms = store_mono_ms(replay->sched->store, record->head.due_ms);
    entry->begun = replay->begun;
    entry->bytes = bytes;
    replay->bytes += bytes;
    idmap_put(&replay->by_job, record->head.id, entry);
    chain_add_last(&replay->entries, &entry->link);
    drop_old(replay);
}

void replay_forget(struct replay *replay, uint64_t job)
{
    struct entry *entry = idmap_get(&replay->by_job, job);

    if (entry && entry->busy)
        entry->gone = true; /* freed when its put is answered */
    else if (entry)
        entry_free(entry);
}

void replay_begin(struct replay *replay)
{
    replay->begun++;
    replay->putting = true;
}

static void put(struct store_op *op)
{
    struct entry *entry = container_of(op, struct entry, op);
    struct replay *replay = entry->replay;
    bool again = store_is_away(op->err) || op->err == ERR_IDEMPOTENCY;

    assert(entry->busy);
    entry->busy = false;
    if (entry->gone) {
        entry_free(entry);
        return;
    }
    if (op->err == ERR_IDEMPOTENCY) /* another request has its key now; it was accepted all the
                                       same */
        entry->record.idem = STR_NONE;
    if (again) {
        entry->begun--;
        replay->putting = true;
    } else if (op->err || op->head.id != op->job) {
        if (!op->err) { /* its client submitted it again while the store had lost it */
            char id[JOB_ID_TEXT + 1], by[JOB_ID_TEXT + 1];

            job_id_text(op->job, id);
            job_id_text(op->head.id, by);
            log_event(
                LOG_WARN, "job.replaced", KC("job_id", id), KC("by", by),
                KC("reason", "its Idempotency-Key was used again while the store had lost it"));
        }
        entry_free(entry);
    } else if (!op->u.put.duplicate) {
        entry->record.head = op->head;
        keeper_continue(replay->sched->keeper, &entry->record);
    }
}

static void put_again(struct entry *entry, int64_t now_ms)
{
    struct replay *replay = entry->replay;
    const struct store_record *record = &entry->record;
    struct store_op *op = &entry->op;
    struct spec spec;

    arena_reset(&entry->arena);
    if (spec_stored(record->spec, &entry->arena, &spec, NULL) || entry->until_ms <= now_ms) {
        entry_free(entry);
        return;
    }
    entry->busy = true;
    *op = (struct store_op){.verb = STORE_PUT,
                            .done = put,
                            .job = record->head.id,
                            .attempt = 1,
                            .arena = &entry->arena};
    op->u.put.spec = record->spec;
    op->u.put.type = spec.type;
    op->u.put.demand = spec.demand_text;
    op->u.put.idem = record->idem;
    op->u.put.fingerprint = record->fingerprint;
    op->u.put.max_attempts = record->head.max_attempts;
    op->u.put.timeout_ms = spec.timeout_ms;
    op->u.put.callback = spec.callback_url.at != NULL;
    op->u.put.owner = store_number(replay->sched->store);
    op->u.put.lane = spec_lane(&spec);
    op->u.put.priority = (int)spec.priority;
    op->u.put.wait_ms = entry->until_ms - now_ms;
    op->u.put.bounds.account = spec_account(&spec);
    sched_send(sched_keeper_loop(replay->sched), op);
}

void replay_tick(struct replay *replay)
{
    int64_t now_ms = *sched_keeper_loop(replay->sched)->mono_ms;
    struct store_status status;
    struct chain *next;
    int sent = 0;

    store_status(replay->sched->store, &status);
    if (status.mode == STORE_NORMAL && replay->ticked_ms)
        replay->time_ms += now_ms - replay->ticked_ms;
    replay->ticked_ms = now_ms;
    drop_old(replay);
    if (!replay->putting)
        return;
    replay->putting = false;
    for (struct chain *link = replay->entries.next; link != &replay->entries; link = next) {
        struct entry *entry = container_of(link, struct entry, link);

        next = link->next;
        if (entry->begun == replay->begun)
            continue;
        replay->putting |= entry->busy || sent == PUT_BATCH;
        if (entry->busy || sent == PUT_BATCH)
            continue;
        entry->begun = replay->begun;
        put_again(entry, now_ms);
        sent++;
    }
}
