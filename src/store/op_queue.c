/* The ops of a loop's turn arrive as one list and leave as one list per sender: one atomic exchange
 * and at most one wakeup for all of them, and the store thread never starts a batch with only the
 * first of many. */
#include "store/op_queue.h"

#include <assert.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/str.h"

/* --- a thread and its inbox --- */

/* Sleeping and waking without a lock. The poster sets `asleep` to 0 by exchange after queueing its
 * message; the sleeper sets it to 1 by exchange before its last check. Whichever exchange comes
 * second sees the other side's write, so no message is missed. */

static void wake(struct inbox *inbox)
{
    struct work_queue *work_queue = container_of(inbox, struct work_queue, inbox);

    if (atomic_exchange(&work_queue->asleep, 0))
        syscall(SYS_futex, &work_queue->asleep, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void note_stop(struct msg *msg)
{
    container_of(msg, struct work_queue, stop)->stopping = true;
}

void work_queue_init(struct work_queue *work_queue)
{
    atomic_init(&work_queue->inbox.head, NULL);
    atomic_init(&work_queue->asleep, 0);
    work_queue->inbox.wake = wake;
    work_queue->stop.run = note_stop;
}

bool work_queue_start(struct work_queue *work_queue, const char *name, void *(*work)(void *),
                      void *arg)
{
    sigset_t all;
    sigset_t before;
    int failed;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&work_queue->thread, NULL, work, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed)
        pthread_setname_np(work_queue->thread, name);
    return !failed;
}

void work_queue_join(struct work_queue *work_queue)
{
    int failed = pthread_join(work_queue->thread, NULL);

    assert(!failed);
    (void)failed;
}

void work_queue_stop(struct work_queue *work_queue)
{
    inbox_post(&work_queue->inbox, &work_queue->stop);
    work_queue_join(work_queue);
}

void work_queue_wait(struct work_queue *work_queue, int64_t timeout_ms)
{
    struct timespec timeout = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000};

    assert(timeout_ms >= 0);
    if (atomic_load_explicit(&work_queue->inbox.head, memory_order_relaxed))
        return;
    atomic_exchange(&work_queue->asleep, 1);
    if (!atomic_load(&work_queue->inbox.head))
        syscall(SYS_futex, &work_queue->asleep, FUTEX_WAIT_PRIVATE, 1, &timeout, NULL, 0);
    atomic_store(&work_queue->asleep, 0);
}

/* --- ops and answers --- */

enum { IN_FLIGHT_DEFAULT = 65536 };

void op_queue_init(struct op_queue *op_queue, bool (*is_read)(enum store_verb verb),
                   int64_t in_flight_max)
{
    assert(is_read);
    work_queue_init(&op_queue->work_queue);
    work_queue_init(&op_queue->reader);
    work_queue_init(&op_queue->lists);
    op_queue->is_read = is_read;
    op_queue->in_flight_max = in_flight_max > 0 ? in_flight_max : IN_FLIGHT_DEFAULT;
    op_queue->since_ms = clock_wall_ms();
}

/* Runs on the sender's thread. The store may have been freed by then and must not be touched. */
static void answered(struct msg *msg)
{
    struct store_op *op = container_of(msg, struct store_op, msg);

    op->done(op);
}

bool op_queue_is_up(const struct op_queue *op_queue)
{
    return atomic_load_explicit(&op_queue->up, memory_order_relaxed);
}

static enum err admit(struct op_queue *op_queue, struct store_op *op, bool reads)
{
    assert(op->done && op->reply_to && op->verb < STORE_VERB_COUNT);
    if (!op_queue_is_up(op_queue) && !(reads && op_queue->reads_while_down))
        return ERR_STORE_DOWN;
    if (atomic_fetch_add_explicit(&op_queue->in_flight, 1, memory_order_relaxed) >=
        op_queue->in_flight_max) {
        atomic_fetch_sub_explicit(&op_queue->in_flight, 1, memory_order_relaxed);
        return ERR_BUSY;
    }
    return ERR_OK;
}

struct msg *op_queue_send(struct op_queue *op_queue, struct msg *ops)
{
    struct mail own = {0}, reads_mail = {0}, lists_mail = {0};
    struct msg *refused = NULL;
    struct msg **last = &refused;

    for (struct msg *next; ops; ops = next) {
        struct store_op *op = container_of(ops, struct store_op, msg);
        bool reads = op_queue->is_read(op->verb);

        next = ops->next;
        op->err = admit(op_queue, op, reads);
        if (op->err) {
            *last = ops;
            last = &ops->next;
            continue;
        }
        ops->run = answered;
        mail_add(!reads || op_queue->reads_pass_store_thread        ? &own
                 : op_queue->is_long && op_queue->is_long(op->verb) ? &lists_mail
                                                                    : &reads_mail,
                 ops);
    }
    *last = NULL;
    inbox_post_all(&op_queue->work_queue.inbox, &own);
    inbox_post_all(&op_queue->reader.inbox, &reads_mail);
    inbox_post_all(&op_queue->lists.inbox, &lists_mail);
    return refused;
}

struct msg *op_queue_take(struct work_queue *work_queue, struct msg **ret_own)
{
    struct msg *ops = inbox_take(&work_queue->inbox);

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

void op_queue_run_own(struct msg *own)
{
    for (struct msg *next; own; own = next) {
        next = own->next; /* its handler may post it again */
        own->run(own);
    }
}

static void count(_Atomic int64_t *value, int64_t n)
{
    atomic_fetch_add_explicit(value, n, memory_order_relaxed);
}

bool op_queue_only_looks(enum store_verb verb)
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
    case STORE_LIMITS:
    case STORE_PEERS:
        return true;
    default:
        return false;
    }
}

void op_queue_answer(struct op_queue *op_queue, struct msg *batch, enum err fate)
{
    struct inbox *to = NULL;
    struct mail mail = {0};
    int64_t total = 0, refused = 0;

    for (struct msg *msg = batch; msg; msg = msg->next)
        total++;
    atomic_fetch_sub_explicit(&op_queue->in_flight, total, memory_order_relaxed);
    count(&op_queue->calls, total);
    /* They came as the senders' lists, so they leave as lists: otherwise a running loop would take
     * the first few and be woken again for the rest. */
    for (struct msg *next; batch; batch = next) {
        struct store_op *op = container_of(batch, struct store_op, msg);

        next = batch->next;
        if (fate) {
            op->err = op_queue_only_looks(op->verb) ? ERR_STORE_DOWN : fate;
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
    if (total > refused)
        metric_add_label(METRIC_STORE_CALLS, "ok", total - refused);
    if (refused)
        metric_add_label(METRIC_STORE_CALLS,
                         fate == ERR_UNKNOWN ? "unknown"
                         : fate              ? "down"
                                             : "refused",
                         refused);
}

void op_queue_set_mode(struct op_queue *op_queue, enum store_mode mode)
{
    if ((int)mode == atomic_load_explicit(&op_queue->mode, memory_order_relaxed))
        return;
    atomic_store_explicit(&op_queue->mode, (int)mode, memory_order_relaxed);
    atomic_store_explicit(&op_queue->since_ms, clock_wall_ms(), memory_order_relaxed);
    metric_set(METRIC_STORE_MODE, mode);
}

void op_queue_set_up(struct op_queue *op_queue, bool up)
{
    atomic_store_explicit(&op_queue->up, up, memory_order_relaxed);
}

void op_queue_count_batch(struct op_queue *op_queue)
{
    count(&op_queue->batches, 1);
    metric_add(METRIC_STORE_BATCHES, 1);
}

void op_queue_count_error(struct op_queue *op_queue)
{
    count(&op_queue->errors, 1);
}

void op_queue_count_repairs(struct op_queue *op_queue, enum store_rule rule, int64_t repairs)
{
    assert(repairs > 0);
    count(&op_queue->repairs[rule], repairs);
    metric_add(METRIC_AUDIT_REPAIRS, repairs);
    metric_add_label(METRIC_INVARIANT, store_rule_name(rule), repairs);
}

void op_queue_status(const struct op_queue *op_queue, struct store_status *ret_status)
{
    *ret_status = (struct store_status){
        .mode = (enum store_mode)atomic_load_explicit(&op_queue->mode, memory_order_relaxed),
        .since_ms = atomic_load_explicit(&op_queue->since_ms, memory_order_relaxed),
        .errors = atomic_load_explicit(&op_queue->errors, memory_order_relaxed),
        .calls = atomic_load_explicit(&op_queue->calls, memory_order_relaxed),
        .batches = atomic_load_explicit(&op_queue->batches, memory_order_relaxed),
    };
    for (int i = 0; i < STORE_RULES; i++)
        ret_status->repairs[i] = atomic_load_explicit(&op_queue->repairs[i], memory_order_relaxed);
}

/* --- short texts --- */

void status_text_put(struct status_text *box, const char *text)
{
    char bytes[STATUS_TEXT_SIZE] = "";
    size_t len = strnlen(text, sizeof bytes - 1);

    memcpy(bytes, text, len);
    for (size_t i = 0; i < STATUS_TEXT_WORDS; i++) {
        uint64_t word;

        memcpy(&word, bytes + i * 8, 8);
        atomic_store_explicit(&box->words[i], word, memory_order_relaxed);
    }
}

void status_text_get(const struct status_text *box, char to[STATUS_TEXT_SIZE])
{
    for (size_t i = 0; i < STATUS_TEXT_WORDS; i++) {
        uint64_t word = atomic_load_explicit(&box->words[i], memory_order_relaxed);

        memcpy(to + i * 8, &word, 8);
    }
    to[STATUS_TEXT_SIZE - 1] = '\0';
}
