/* Rows in memory, by id, by key and by age. */
#include "store/memtable.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "store/chain.h"
#include "store/change.h"

enum {
    MEMTABLE_SCAN_MAX = 4096,      /* rows given to one read */
    MEMTABLE_READ_BYTES = 1 << 20, /* approximate size of their texts */
};

static int compare_ids(uint64_t id, const struct memjob *job)
{
    return id < job->row.head.id ? -1 : id > job->row.head.id;
}

static int compare_by_id(const void *key, const struct tree_node *node)
{
    return compare_ids(*(const uint64_t *)key, container_of(node, struct memjob, by_id));
}

static int compare_by_callback(const void *key, const struct tree_node *node)
{
    return compare_ids(*(const uint64_t *)key, container_of(node, struct memjob, by_callback));
}

void memtable_init(struct memtable *table)
{
    *table = (struct memtable){.slab = {.size = sizeof(struct memjob)},
                               .by_id.compare = compare_by_id,
                               .by_callback.compare = compare_by_callback};
    for (int i = 0; i < MEMTABLE_TEXT_CLASSES; i++)
        table->texts[i].size = (size_t)MEMTABLE_TEXT_MIN << i;
    chain_init(&table->order);
    chain_init(&table->side_order);
    table->changed_end = &table->changed;
    table->side_changed_end = &table->side_changed;
}

/* Texts of a row. */

/* The slab for a text of `len` bytes plus NUL; NULL: the heap. */
static struct slab *slab_of(struct memtable *table, size_t len)
{
    int class = 0;

    while (class < MEMTABLE_TEXT_CLASSES && table->texts[class].size <= len)
        class ++;
    return class < MEMTABLE_TEXT_CLASSES ? &table->texts[class] : NULL;
}

static void drop_text(struct memtable *table, struct str *text)
{
    struct slab *slab = slab_of(table, text->len);

    if (!text->at)
        return;
    table->bytes -= (int64_t)text->len;
    if (slab)
        slab_drop(slab, (char *)text->at);
    else
        free((char *)text->at);
    *text = STR_NONE;
}

static void keep_text(struct memtable *table, struct str *kept, struct str text)
{
    struct slab *slab = slab_of(table, text.len);
    char *copy;

    if (!!kept->at == !!text.at && str_eq(*kept, text))
        return;
    drop_text(table, kept);
    if (!text.at)
        return;
    copy = slab ? slab_new(slab) : mem_alloc(text.len + 1);
    memcpy(copy, text.at, text.len);
    copy[text.len] = '\0';
    *kept = (struct str){.at = copy, .len = text.len};
    table->bytes += (int64_t)text.len;
}

/* Jobs. */

static void forget_key(struct memtable *table, struct memjob *job)
{
    if (job->row.idem.at && map_get(&table->keys, job->row.idem) == job)
        map_del(&table->keys, job->row.idem);
}

static void job_free(struct memtable *table, struct memjob *job)
{
    uint64_t id = job->row.head.id;

    assert(!job->changed);
    forget_key(table, job);
    idmap_del(&table->jobs, id);
    tree_del(&table->by_id, &job->by_id, &id);
    tree_del(&table->by_callback, &job->by_callback, &id);
    chain_del(&job->order);
    drop_text(table, &job->row.spec);
    drop_text(table, &job->row.demand);
    drop_text(table, &job->row.idem);
    drop_text(table, &job->row.attempts);
    drop_text(table, &job->row.first_node);
    drop_text(table, &job->row.result);
    table->bytes -= (int64_t)sizeof *job;
    slab_drop(&table->slab, job);
}

struct memjob *memtable_job(const struct memtable *table, uint64_t id)
{
    return idmap_get(&table->jobs, id);
}

static void put_job(struct memtable *table, const struct change_job *change)
{
    struct memjob *job = memtable_job(table, change->head.id);
    struct change_job *row;

    if (!job) {
        job = slab_new(&table->slab);
        job->row.head.id = change->head.id;
        chain_init(&job->order);
        idmap_put(&table->jobs, change->head.id, job);
        tree_add(&table->by_id, &job->by_id, &change->head.id);
        table->bytes += (int64_t)sizeof *job;
    }
    row = &job->row;
    row->head = change->head;
    row->run_until_ms = change->run_until_ms;
    row->answered = change->answered;
    row->parts |= change->parts;
    job->batch_parts |= change->parts;
    keep_text(table, &row->attempts, change->attempts);
    if (change->parts & CHANGE_NEW) {
        keep_text(table, &row->spec, change->spec);
        keep_text(table, &row->demand, change->demand);
        keep_text(table, &row->idem, change->idem);
        row->fingerprint = change->fingerprint;
        if (row->idem.at)
            map_put(&table->keys, row->idem, job);
    }
    if (change->parts & CHANGE_RESULT)
        keep_text(table, &row->result, change->result);
    if (change->parts & CHANGE_FIRST_NODE)
        keep_text(table, &row->first_node, change->first_node);
    if (change->parts & CHANGE_KEY_DROPPED)
        forget_key(table, job);
    if (row->head.callback >= CALLBACK_PENDING && !job->by_callback.rank)
        tree_add(&table->by_callback, &job->by_callback, &row->head.id);
    chain_del(&job->order);
    chain_add_last(&table->order, &job->order);
    if (job->changed)
        return;
    job->changed = true;
    job->next_changed = NULL;
    *table->changed_end = job;
    table->changed_end = &job->next_changed;
}

/* The others. */

/* A change and the deletion of the same row have the same key. A session's name is not limited
 * here. */
static void write_key(struct buf *to, const struct change *change)
{
    const struct change_row *row = &change_rows[change->kind];

    assert(change->kind != CHANGE_JOB && row->keys > 0);
    buf_char(to, (char)row->kind);
    for (size_t i = 0; i < row->keys; i++) {
        if (i > 0)
            buf_char(to, '|');
        buf_str(to, change_text(change, &row->fields[i]));
    }
}

static void put_side(struct memtable *table, const struct change *change)
{
    struct buf key = {0};
    struct memside *side;

    write_key(&key, change);
    side = map_get(&table->sides, buf_view(&key));
    if (!side) {
        side = mem_zeroed(1, sizeof *side + key.len);
        memcpy(side->text, key.at, key.len);
        side->key = (struct str){.at = side->text, .len = key.len};
        chain_init(&side->order);
        map_put(&table->sides, side->key, side);
        table->bytes += (int64_t)(sizeof *side + key.len);
    }
    buf_free(&key);
    table->bytes -= (int64_t)side->change.len;
    buf_clear(&side->change);
    change_write(&side->change, change);
    table->bytes += (int64_t)side->change.len;
    chain_del(&side->order);
    chain_add_last(&table->side_order, &side->order);
    if (side->changed)
        return;
    side->changed = true;
    side->next_changed = NULL;
    *table->side_changed_end = side;
    table->side_changed_end = &side->next_changed;
}

void memtable_put(struct memtable *table, const struct change *change)
{
    if (change->kind == CHANGE_JOB)
        put_job(table, &change->u.job);
    else
        put_side(table, change);
}

static void read_side(const struct memside *side, struct change *ret_change)
{
    struct str rest = buf_view(&side->change);
    bool ok = change_read(&rest, ret_change);

    assert(ok && rest.len == 0);
    (void)ok;
}

bool memtable_side(const struct memtable *table, const struct change *like,
                   struct change *ret_change)
{
    struct buf key = {0};
    const struct memside *side;

    if (table->sides.count == 0)
        return false;
    write_key(&key, like);
    side = map_get(&table->sides, buf_view(&key));
    buf_free(&key);
    if (side)
        read_side(side, ret_change);
    return side != NULL;
}

bool memtable_side_next(const struct memtable *table, enum change_kind kind, size_t *at,
                        struct change *ret_change)
{
    const struct memside *side;

    while ((side = map_next(&table->sides, at)))
        if (side->key.at[0] == (char)kind) {
            read_side(side, ret_change);
            return true;
        }
    return false;
}

/* Batches. */

void memtable_seal(struct memtable *table, uint64_t seq, struct buf *to)
{
    for (struct memside *side = table->side_changed; side; side = side->next_changed) {
        side->changed = false;
        side->seq = seq;
        if (to)
            buf_str(to, buf_view(&side->change));
    }
    for (struct memjob *job = table->changed; job; job = job->next_changed) {
        struct change change = {.kind = CHANGE_JOB, .u.job = job->row};

        change.u.job.parts = job->batch_parts;
        job->batch_parts = 0;
        job->changed = false;
        job->seq = seq;
        if (to)
            change_write(to, &change);
    }
    table->changed = NULL;
    table->changed_end = &table->changed;
    table->side_changed = NULL;
    table->side_changed_end = &table->side_changed;
}

bool memtable_release(struct memtable *table, uint64_t seq, int budget)
{
    for (; !chain_alone(&table->order); budget--) {
        struct memjob *job = container_of(table->order.next, struct memjob, order);

        if (job->seq > seq || job->changed)
            break;
        if (budget <= 0)
            return true;
        job_free(table, job);
    }
    for (; !chain_alone(&table->side_order); budget--) {
        struct memside *side = container_of(table->side_order.next, struct memside, order);

        if (side->seq > seq || side->changed)
            break;
        if (budget <= 0)
            return true;
        map_del(&table->sides, side->key);
        chain_del(&side->order);
        table->bytes -= (int64_t)(sizeof *side + side->key.len + side->change.len);
        buf_free(&side->change);
        free(side);
    }
    return false;
}

void memtable_free(struct memtable *table)
{
    if (!table->slab.size)
        return; /* never initialised or already freed */
    memtable_seal(table, 0, NULL);
    while (memtable_release(table, UINT64_MAX, INT32_MAX))
        ;
    assert(table->bytes == 0 && table->jobs.count == 0 && table->keys.count == 0);
    idmap_free(&table->jobs);
    map_free(&table->keys);
    map_free(&table->sides);
    slab_free(&table->slab);
    for (int i = 0; i < MEMTABLE_TEXT_CLASSES; i++)
        slab_free(&table->texts[i]);
    *table = (struct memtable){0};
}

/* Reads. */

struct store_head memtable_head(const struct memjob *job, int64_t wait_shift_ms)
{
    struct store_head head = job->row.head;

    if (head.lane)
        head.due_ms += wait_shift_ms;
    return head;
}

void memtable_record(const struct memjob *job, int64_t wait_shift_ms, struct arena *arena,
                     struct store_record *ret_record)
{
    const struct change_job *row = &job->row;

    *ret_record = (struct store_record){
        .head = memtable_head(job, wait_shift_ms),
        .spec = store_kept(arena, row->spec),
        .result = store_kept(arena, row->result),
        .history = row->attempts.at ? arena_str(arena, row->attempts) : STR("[]"),
    };
    if (row->idem.at && !(row->parts & CHANGE_KEY_DROPPED)) {
        ret_record->idem = arena_str(arena, row->idem);
        ret_record->fingerprint = row->fingerprint;
    }
}

static void read_one(const struct memjob *job, const struct store_op *op, struct memread *read)
{
    struct memread_row *row = &read->rows[read->count++];

    row->id = job->row.head.id;
    row->whole = job->row.parts & CHANGE_NEW;
    row->has_result = row->whole || job->row.parts & CHANGE_RESULT;
    if (!store_head_fits(&job->row.head, op))
        return;
    row->record = arena_new(op->arena, struct store_record);
    memtable_record(job, read->wait_shift_ms, op->arena, row->record);
}

static struct memjob *next_of(const struct memtable *table, const struct store_op *op, uint64_t at)
{
    struct tree_node *node;

    if (op->verb == STORE_CALLBACKS) {
        node = tree_after(&table->by_callback, &at);
        return node ? container_of(node, struct memjob, by_callback) : NULL;
    }
    node = tree_before(&table->by_id, &at);
    return node ? container_of(node, struct memjob, by_id) : NULL;
}

static void read_many(const struct memtable *table, const struct store_op *op, struct memread *read)
{
    uint64_t at = op->verb == STORE_CALLBACKS ? op->u.list.after
                  : op->u.list.before         ? op->u.list.before
                                              : UINT64_MAX;
    size_t room = 64;
    size_t bytes = 0;
    size_t fitting = 0;
    const struct store_record *record;
    struct memjob *job;

    read->rows = arena_array(op->arena, struct memread_row, room);
    while ((job = next_of(table, op, at))) {
        /* A page has at most these; the next page continues after the last of them. */
        if (read->count >= MEMTABLE_SCAN_MAX || fitting >= op->u.list.max ||
            bytes >= MEMTABLE_READ_BYTES) {
            read->end = at;
            return;
        }
        if (read->count == room) {
            read->rows = arena_resize(op->arena, read->rows, room * sizeof *read->rows,
                                      2 * room * sizeof *read->rows);
            memset(read->rows + room, 0, room * sizeof *read->rows);
            room *= 2;
        }
        read_one(job, op, read);
        record = read->rows[read->count - 1].record;
        fitting += record != NULL;
        bytes += record ? store_record_bytes(record) : 0;
        at = job->row.head.id;
    }
}

struct memread *memtable_read(const struct memtable *table, const struct store_op *op,
                              int64_t wait_shift_ms)
{
    struct memread *read = arena_new(op->arena, struct memread);
    const struct memjob *job;

    read->wait_shift_ms = wait_shift_ms;
    if (op->verb != STORE_JOB_GET) {
        read_many(table, op, read);
    } else if ((job = memtable_job(table, op->job))) {
        read->rows = arena_new(op->arena, struct memread_row);
        read_one(job, op, read);
    }
    return read;
}
