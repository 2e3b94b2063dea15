/* A turn's ops arrive as one list and leave as one list for each sender: one exchange and at most
 * one waking up for all of them, and the store thread never begins a batch with the first of many.
 */
#include "store/op_queue.h"

#include "base/clock.h"
#include "base/metrics.h"
#include "base/str.h"

#include <assert.h>

enum { IN_FLIGHT_DEFAULT = 65536 };

void front_init(struct front *front, bool (*is_read)(enum store_verb verb), int64_t in_flight_max)
{
    assert(is_read);
    desk_init(&front->desk);
    desk_init(&front->helper);
    desk_init(&front->lists);
    front->is_read = is_read;
    front->in_flight_max = in_flight_max > 0 ? in_flight_max : IN_FLIGHT_DEFAULT;
    front->since_ms = clock_wall_ms();
}

/* Runs on the sender's thread. The store may be gone by then: it must not be touched. */
static void answered(struct msg *msg)
{
    struct store_op *op = container_of(msg, struct store_op, msg);

    op->done(op);
}

bool front_is_up(const struct front *front)
{
    return atomic_load_explicit(&front->up, memory_order_relaxed);
}

static enum err admit(struct front *front, struct store_op *op, bool reads)
{
    assert(op->done && op->reply_to && op->verb < STORE_VERB_COUNT);
    if (!front_is_up(front) && !(reads && front->reads_while_down))
        return ERR_STORE_DOWN;
    if (atomic_fetch_add_explicit(&front->in_flight, 1, memory_order_relaxed) >=
        front->in_flight_max) {
        atomic_fetch_sub_explicit(&front->in_flight, 1, memory_order_relaxed);
        return ERR_BUSY;
    }
    return ERR_OK;
}

struct msg *front_send(struct front *front, struct msg *ops)
{
    struct mail own = {0}, reads_mail = {0}, lists_mail = {0};
    struct msg *refused = NULL;
    struct msg **last = &refused;

    for (struct msg *next; ops; ops = next) {
        struct store_op *op = container_of(ops, struct store_op, msg);
        bool reads = front->is_read(op->verb);

        next = ops->next;
        op->err = admit(front, op, reads);
        if (op->err) {
            *last = ops;
            last = &ops->next;
            continue;
        }
        ops->run = answered;
        mail_add(!reads || front->reads_at_desk               ? &own
                 : front->is_long && front->is_long(op->verb) ? &lists_mail
                                                              : &reads_mail,
                 ops);
    }
    *last = NULL;
    inbox_post_all(&front->desk.inbox, &own);
    inbox_post_all(&front->helper.inbox, &reads_mail);
    inbox_post_all(&front->lists.inbox, &lists_mail);
    return refused;
}

void front_hand_on(struct front *front, const struct mail *reads)
{
    inbox_post_all(&front->helper.inbox, reads);
}

struct msg *front_take(struct desk *desk, struct msg **ret_own)
{
    struct msg *ops = inbox_take(&desk->inbox);

    *ret_own = NULL;
    for (struct msg **at = &ops; *at;) {
        struct msg *msg = *at;

        if (msg->run == answered) {
            at = &msg->next;
        } else {
            *at = msg->next;
            msg->next = *ret_own;
            *ret_own = msg;
        }
    }
    return ops;
}

void front_run_own(struct msg *own)
{
    for (struct msg *next; own; own = next) {
        next = own->next; /* it may be posted again at once */
        own->run(own);
    }
}

static void count(_Atomic int64_t *value, int64_t n)
{
    atomic_fetch_add_explicit(value, n, memory_order_relaxed);
}

bool front_only_looks(enum store_verb verb)
{
    switch (verb) {
    case STORE_LANES:
    case STORE_LANE:
    case STORE_DUE:
    case STORE_NODES:
    case STORE_COUNTS:
    case STORE_JOB_GET:
    case STORE_JOB_LIST:
    case STORE_SESSION_GET:
    case STORE_CALLBACKS:
    case STORE_BREAKERS:
    case STORE_PEERS:
        return true;
    default:
        return false;
    }
}

/* They came as the senders' lists, so they leave as lists: a loop that is awake would otherwise
 * take the first few, and be woken for the rest once more. */
static int64_t post(struct msg *batch, enum err fate)
{
    struct inbox *to = NULL;
    struct mail mail = {0};
    int64_t refused = 0;

    for (struct msg *next; batch; batch = next) {
        struct store_op *op = container_of(batch, struct store_op, msg);

        next = batch->next;
        if (fate) {
            op->err = front_only_looks(op->verb) ? ERR_STORE_DOWN : fate;
            op->head = (struct store_head){0};
            op->record = (struct store_record){0};
        }
        refused += op->err != ERR_OK;
        if (op->reply_to != to && to) {
            inbox_post_all(to, &mail);
            mail = (struct mail){0};
        }
        to = op->reply_to;
        mail_add(&mail, &op->msg);
    }
    if (to)
        inbox_post_all(to, &mail);
    return refused;
}

void front_answer(struct front *front, struct msg *batch, enum err fate)
{
    int64_t total = 0;
    int64_t refused;

    for (struct msg *msg = batch; msg; msg = msg->next)
        total++;
    atomic_fetch_sub_explicit(&front->in_flight, total, memory_order_relaxed);
    count(&front->calls, total);
    refused = post(batch, fate);
    if (total > refused)
        metric_add_label(METRIC_STORE_CALLS, "ok", total - refused);
    if (refused)
        metric_add_label(METRIC_STORE_CALLS,
                         fate == ERR_UNKNOWN ? "unknown"
                         : fate              ? "down"
                                             : "refused",
                         refused);
}

void front_set_mode(struct front *front, enum store_mode mode)
{
    if ((int)mode == atomic_load_explicit(&front->mode, memory_order_relaxed))
        return;
    atomic_store_explicit(&front->mode, (int)mode, memory_order_relaxed);
    atomic_store_explicit(&front->since_ms, clock_wall_ms(), memory_order_relaxed);
    metric_set(METRIC_STORE_MODE, mode);
}

void front_set_up(struct front *front, bool up)
{
    atomic_store_explicit(&front->up, up, memory_order_relaxed);
}

void front_count_batch(struct front *front)
{
    count(&front->batches, 1);
    metric_add(METRIC_STORE_BATCHES, 1);
}

void front_count_error(struct front *front)
{
    count(&front->errors, 1);
}

void front_count_repairs(struct front *front, int64_t repairs)
{
    assert(repairs > 0);
    count(&front->repairs, repairs);
    metric_add(METRIC_AUDIT_REPAIRS, repairs);
    metric_add_label(METRIC_INVARIANT, "slots_equal_leases", repairs);
}

void front_status(const struct front *front, struct store_status *ret_status)
{
    *ret_status = (struct store_status){
        .mode = (enum store_mode)atomic_load_explicit(&front->mode, memory_order_relaxed),
        .since_ms = atomic_load_explicit(&front->since_ms, memory_order_relaxed),
        .errors = atomic_load_explicit(&front->errors, memory_order_relaxed),
        .calls = atomic_load_explicit(&front->calls, memory_order_relaxed),
        .batches = atomic_load_explicit(&front->batches, memory_order_relaxed),
        .repairs = atomic_load_explicit(&front->repairs, memory_order_relaxed),
    };
}

void front_stop_desk(struct desk *desk, struct msg *stop)
{
    inbox_post(&desk->inbox, stop);
    desk_join(desk);
}
