/* See rig.h. */
#include "rig.h"

#include "base/clock.h"
#include "base/mem.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE_MS = 30000, STEP_MS = 1000 };

static _Atomic int64_t store_clock_ms;

static int64_t store_now_ms(void)
{
    return atomic_load(&store_clock_ms);
}

/* --- the turnstile --- */

static struct rig *rig_of(struct sched *sched)
{
    return container_of(sched, struct rig, sched);
}

static void go_through(struct rig *rig, struct store_op *op)
{
    assert_true(rig->op_count < RIG_OPS);
    rig->ops[rig->op_count].op = op;
    rig->ops[rig->op_count++].reply_to = op->reply_to;
    rig->calls[op->verb]++;
    op->reply_to = &rig->work_queue.inbox;
    assert_int_equal(store_send(rig->store, op), ERR_OK);
}

static enum err turnstile_take(struct rig *rig, struct store_op *op)
{
    if (rig->refuse)
        return rig->refuse;
    if (op->verb >= STORE_MESSAGE)
        /* Messages are ours alone, even if the turnstile has an instance's name. */
        return ERR_STORE_DOWN;
    if (rig->refuse_one_in && rnd_below(&rig->rnd, rig->refuse_one_in) == 0)
        return ERR_STORE_DOWN;
    if (op->verb == rig->keep) {
        assert_true(rig->kept_count < COUNT_OF(rig->kept));
        rig->kept[rig->kept_count++] = op;
        return ERR_OK;
    }
    go_through(rig, op);
    return ERR_OK;
}

static struct msg *turnstile_send(struct store *store, struct msg *ops)
{
    struct rig *rig = container_of(store, struct rig, turnstile);
    struct msg *refused = NULL;
    struct msg **last = &refused;

    for (struct msg *next; ops; ops = next) {
        struct store_op *op = container_of(ops, struct store_op, msg);
        enum err err;

        next = ops->next;
        err = turnstile_take(rig, op);
        if (!err)
            continue; /* the op may already be answered */
        op->err = err;
        *last = ops;
        last = &ops->next;
    }
    *last = NULL;
    return refused;
}

static void turnstile_status(struct store *store, struct store_status *ret_status)
{
    struct rig *rig = container_of(store, struct rig, turnstile);

    store_status(rig->store, ret_status);
    ret_status->moves = rig->moves;
    if (rig->refuse)
        ret_status->mode = STORE_L2_ONLY;
}

static const struct store_backend turnstile = {.send = turnstile_send, .status = turnstile_status};

void rig_let_go(struct rig *rig)
{
    rig->keep = STORE_VERB_COUNT;
    for (size_t i = 0; i < rig->kept_count; i++)
        go_through(rig, rig->kept[i]);
    rig->kept_count = 0;
}

static bool changes_job(enum store_verb verb)
{
    return verb == STORE_PUT || verb == STORE_RESERVE || verb == STORE_ACK ||
           verb == STORE_FINISH || verb == STORE_WAIT;
}

/* Takes the store's answers; true when all calls under way are answered. */
static bool take_answers(struct rig *rig)
{
    for (struct msg *msg = inbox_take(&rig->work_queue.inbox), *next; msg; msg = next) {
        size_t i = 0;

        next = msg->next;
        while (i < rig->op_count && &rig->ops[i].op->msg != msg)
            i++;
        if (i == rig->op_count)
            fail_msg("the store answered an op that was not sent");
        rig->answered++;
    }
    return rig->answered == rig->op_count;
}

/* Passes all answers back to their loops at once, in the order of the calls, so that the test does
 * not depend on the speed of the store's thread. */
static void pass_back(struct rig *rig)
{
    assert_int_equal(rig->answered, rig->op_count);
    for (size_t i = 0; i < rig->op_count; i++) {
        struct store_op *op = rig->ops[i].op;

        if (op->verb == rig->lose || (changes_job(op->verb) && rig->lose_one_in &&
                                      rnd_below(&rig->rnd, rig->lose_one_in) == 0)) {
            op->err = ERR_UNKNOWN;
            op->head = (struct store_head){0};
            op->record = (struct store_record){0};
        }
        op->reply_to = rig->ops[i].reply_to;
        inbox_post(op->reply_to, &op->msg);
    }
    rig->op_count = rig->answered = 0;
}

/* --- hooks --- */

static void answer_send(struct send_op *send, bool ok)
{
    send->ok = ok;
    send->reason = ok ? NULL : "NOT_CONNECTED";
}

static bool hook_send(struct sched_loop *from, struct send_op *send)
{
    struct rig *rig = rig_of(from->sched);
    struct rig_sent *sent = &rig->sent[rig->sent_count++];

    assert_true(rig->sent_count < RIG_SENDS);
    *sent = (struct rig_sent){.op = send,
                              .from = from,
                              .job = send->job,
                              .attempt = send->attempt,
                              .at_ms = rig->wall_ms};
    str_copy(send->node->id, sent->node, sizeof sent->node);
    str_copy(send->message, sent->message, sizeof sent->message);
    bool reachable = !str_eq(send->node->id, rig->unreachable);
    if (reachable && rig->reach == RIG_KEEP)
        return false;
    sent->op = NULL;
    answer_send(send, reachable && rig->reach == RIG_OK);
    return true;
}

void rig_answer(struct rig *rig, size_t sent, bool ok)
{
    struct send_op *send = rig->sent[sent].op;

    assert_true(sent < rig->sent_count && send != NULL);
    rig->sent[sent].op = NULL;
    answer_send(send, ok);
    send->done(send);
}

static void hook_noted(struct sched_loop *from, const struct settle_note *note)
{
    struct rig *rig = rig_of(from->sched);
    struct rig_note *kept = &rig->notes[rig->note_count++];

    assert_true(rig->note_count < RIG_NOTES);
    kept->head = *note->head;
    str_copy(str_of(note->event), kept->event, sizeof kept->event);
}

static void hook_node_changed(struct sched_loop *from, struct str node_id, const char *what)
{
    assert_true(node_id.len > 0 && what);
    rig_of(from->sched)->changes++;
}

static void hook_stop(struct sched_loop *from, struct str node_id, uint64_t job, int attempt,
                      const char *reason)
{
    struct rig *rig = rig_of(from->sched);
    struct rig_stop *stop = &rig->stops[rig->stop_count++ % COUNT_OF(rig->stops)];

    assert_non_null(reason);
    *stop = (struct rig_stop){.job = job, .attempt = attempt};
    str_copy(node_id, stop->node, sizeof stop->node);
}

static void hook_freed(struct sched_loop *from, struct str node_id, const struct lease_node *counts,
                       uint64_t order)
{
    assert_true(node_id.len > 0);
}

static void hook_loaded(struct sched *sched)
{
    rig_of(sched)->loads++;
}

static const struct sched_hooks hooks = {.send = hook_send,
                                         .noted = hook_noted,
                                         .node_changed = hook_node_changed,
                                         .stop = hook_stop,
                                         .freed = hook_freed,
                                         .loaded = hook_loaded};

/* --- life --- */

struct rig *rig_new(void)
{
    const char *tmp = getenv("TMPDIR");
    struct rig *rig = mem_new(struct rig);

    rig->turnstile.backend = &turnstile;
    rig->turnstile.number = 1;
    rig->turnstile.number_until_ms = INT64_MAX;
    rig->keep = rig->lose = STORE_VERB_COUNT;
    rig->held = -1;
    rnd_seed(&rig->rnd, 1);
    rig->wall_ms = rig->mono_ms = RIG_START_MS;
    rig->config = (struct sched_config){.sample_k = 20,
                                        .explain_bytes = 256 * 1024,
                                        .reservation_ttl_ms = 5000,
                                        .max_attempts = 2,
                                        .candidate_shuffle = true,
                                        .health_filter = STR("ready"),
                                        .heartbeat_ms = 5000,
                                        .heartbeat_stale_ms = 15000,
                                        .view_drop_ms = 30000,
                                        .lost_grace_ms = 15000,
                                        .forget_ms = 3600000,
                                        .leases = {45000, 45000},
                                        .stop_grace_ms = 15000,
                                        .store_timeout_ms = 2000,
                                        .queue_max = 10000,
                                        .queue_total_max = 100000,
                                        .nodes_max = 20000,
                                        .latency_target_ms = 1000,
                                        .policy = 1, /* least_loaded */
                                        .high_priority_min = 7};
    snprintf(rig->dir, sizeof rig->dir, "%s/berth-sched-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(rig->dir));
    return rig;
}

static void open_store(struct rig *rig)
{
    struct store_config config = {.url = "embedded:",
                                  .data_dir = rig->dir,
                                  .instance = 1,
                                  .in_flight_max = 10000,
                                  .terms = rig->config.leases,
                                  .now_ms = store_now_ms};
    struct problem why = {0};

    atomic_store(&store_clock_ms, rig->wall_ms);
    assert_int_equal(store_open(&config, &rig->store, &why), ERR_OK);
}

void rig_open(struct rig *rig)
{
    struct problem why = {0};

    if (rig->peer)
        rig->store = rig->peer->store;
    else
        open_store(rig);
    work_queue_init(&rig->work_queue);
    assert_int_equal(
        sched_init(&rig->sched, &rig->config, &rig->turnstile, RIG_LOOPS, &hooks, &why), ERR_OK);
    for (int i = 0; i <= RIG_LOOPS; i++) {
        atomic_store(&rig->inboxes[i].head, NULL);
        sched_loop_init(&rig->sched, i, &rig->inboxes[i], &rig->wall_ms, &rig->mono_ms);
        rnd_seed(&rig->sched.loops[i].rnd, (uint64_t)i + 1);
    }
    keeper_start(rig->sched.keeper);
    rig_quiet(rig);
    assert_true(atomic_load(&rig->sched.ready));
}

static void shut(struct rig *rig)
{
    if (!rig->is_guest)
        store_close(rig->store);
    sched_done(&rig->sched);
    rig->store = NULL;
}

void rig_join(struct rig *rig, struct rig *host)
{
    assert_null(host->peer);
    rig->is_guest = true;
    rig->peer = host;
    rig->wall_ms = host->wall_ms;
    rig->mono_ms = host->mono_ms;
    rig->turnstile.number = 2;
    rig->turnstile.name = 2;
    host->turnstile.name = 1;
    rig_open(rig);
    host->peer = rig;
}

void rig_leave(struct rig *guest)
{
    assert_true(guest->is_guest);
    rig_quiet(guest);
    guest->peer->peer = NULL;
    guest->peer = NULL;
    rig_free(guest);
}

void rig_restart(struct rig *rig)
{
    rig_quiet(rig);
    shut(rig);
    rig_open(rig);
}

static void remove_dir(const char *dir)
{
    DIR *list = opendir(dir);

    for (struct dirent *entry; list && (entry = readdir(list));) {
        char path[512];

        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        if (entry->d_name[0] != '.')
            unlink(path);
    }
    if (list)
        closedir(list);
    rmdir(dir);
}

void rig_free(struct rig *rig)
{
    if (rig->store)
        shut(rig);
    arena_free(&rig->arena);
    remove_dir(rig->dir);
    free(rig);
}

int rig_setup(void **state)
{
    struct rig *rig = rig_new();

    rig_open(rig);
    *state = rig;
    return 0;
}

int rig_teardown(void **state)
{
    rig_free(*state);
    return 0;
}

/* --- running the loops --- */

struct sched_loop *rig_loop(struct rig *rig, int index)
{
    assert_true(index < RIG_LOOPS);
    return &rig->sched.loops[index];
}

struct sched_loop *rig_keeper(struct rig *rig)
{
    return sched_keeper_loop(&rig->sched);
}

/* One round over all loops; false if there was nothing to do. */
static bool turn_one(struct rig *rig)
{
    bool some = false;

    for (int i = 0; i <= RIG_LOOPS; i++) {
        if (i == rig->held)
            continue;
        some |= inbox_run(&rig->inboxes[i]) > 0;
        if (i == RIG_LOOPS)
            keeper_turn(rig->sched.keeper);
        some |= rig->sched.loops[i].out_first != NULL;
        sched_flush(&rig->sched.loops[i]);
    }
    return some;
}

static bool turn_all(struct rig *rig)
{
    bool some = turn_one(rig);

    return (rig->peer && turn_one(rig->peer)) || some;
}

static void wait_for_answers(struct rig *rig, int64_t until_ms)
{
    while (!take_answers(rig)) {
        work_queue_wait(&rig->work_queue, 10);
        if (clock_mono_ms() > until_ms)
            fail_msg("the rig never became quiet");
    }
}

void rig_quiet(struct rig *rig)
{
    int64_t until_ms = clock_mono_ms() + PATIENCE_MS;

    do {
        while (turn_all(rig))
            if (clock_mono_ms() > until_ms)
                fail_msg("the rig never became quiet");
        wait_for_answers(rig, until_ms);
        if (rig->peer)
            wait_for_answers(rig->peer, until_ms);
        if (rig->op_count + (rig->peer ? rig->peer->op_count : 0) == 0)
            return;
        pass_back(rig);
        if (rig->peer)
            pass_back(rig->peer);
    } while (true);
}

void rig_tick(struct rig *rig, int64_t ms)
{
    rig->wall_ms += ms;
    rig->mono_ms += ms;
    atomic_store(&store_clock_ms, rig->wall_ms);
    if (rig->peer) {
        rig->peer->wall_ms += ms;
        rig->peer->mono_ms += ms;
        keeper_tick(rig->peer->sched.keeper);
    }
    keeper_tick(rig->sched.keeper);
    rig_quiet(rig);
}

void rig_pass(struct rig *rig, int64_t ms)
{
    for (; ms > 0; ms -= STEP_MS)
        rig_tick(rig, ms < STEP_MS ? ms : STEP_MS);
}

/* --- nodes --- */

const struct node *rig_node(struct rig *rig, const char *id)
{
    const struct snap_node *known = snapshot_node(rig_loop(rig, 0)->snapshot, str_of(id));

    return known ? known->node : NULL;
}

static const struct json *parse(struct rig *rig, const char *json)
{
    const struct json *root;
    struct problem why = {0};

    if (json_parse(str_of(json), &rig->arena, &root, &why))
        fail_msg("%s: %s", json, why.detail);
    return root;
}

static void change_done(struct node_change *change)
{
    assert_false(rig_changed(change)); /* answered only once */
    change->next = change;
}

bool rig_changed(const struct node_change *change)
{
    return change->next == change;
}

struct node_change *rig_begin(struct rig *rig, int loop, const struct node_change *change)
{
    struct node_change *own = arena_new(&rig->arena, struct node_change);

    *own = *change;
    own->done = change_done;
    registry_send(rig_loop(rig, loop), own);
    sched_flush(rig_loop(rig, loop));
    return own;
}

static enum err send_change(struct rig *rig, const struct node_change *change)
{
    struct node_change *own = rig_begin(rig, 0, change);

    rig_quiet(rig);
    assert_true(rig_changed(own));
    return own->err;
}

static struct node_report read_report(struct rig *rig, const char *json)
{
    struct node_report report = {0};
    struct problem why = {0};

    if (node_report_read(parse(rig, json), STR_NONE, &rig->sched.config.node_rules, &rig->arena,
                         &report, &why))
        fail_msg("%s: %s", json, why.detail);
    return report;
}

struct node_change *rig_begin_register(struct rig *rig, int loop, const char *json)
{
    struct node_report report = read_report(rig, json);
    struct node_change change;
    struct problem why = {0};

    if (registry_prepare(rig_loop(rig, loop), &report, &change, &why))
        fail_msg("%s: %s", json, why.detail);
    return rig_begin(rig, loop, &change);
}

enum err rig_register(struct rig *rig, const char *json)
{
    struct node_report report = read_report(rig, json);
    struct node_change change;
    struct problem why = {0};
    enum err err = registry_prepare(rig_loop(rig, 0), &report, &change, &why);

    return err ? err : send_change(rig, &change);
}

void rig_worker(struct rig *rig, const char *id, int max)
{
    struct str json = arena_fmt(&rig->arena,
                                "{\"node_id\":\"%s\",\"max_concurrent_jobs\":%d,"
                                "\"allowed_types\":[\"*\"],\"semantic_langs\":[\"en\"],"
                                "\"nmt_pairs\":[[\"en\",\"zh\"]]}",
                                id, max);

    assert_int_equal(rig_register(rig, json.at), ERR_OK);
}

enum registry_beat rig_beat(struct rig *rig, const char *json)
{
    struct node_report report = read_report(rig, json);
    struct node_change change;
    struct node_report_load load;
    struct problem why = {0};

    assert_int_equal(node_report_load(&report, &load, &why), ERR_OK);
    enum registry_beat beat = registry_heartbeat(rig_loop(rig, 0), &report, &load);
    if (beat == BEAT_TAKEN || beat == BEAT_UNKNOWN)
        return beat;
    if (beat == BEAT_FIGURES)
        registry_prepare_figures(rig_loop(rig, 0), &report,
                                 snapshot_node(rig_loop(rig, 0)->snapshot, report.node_id)->node,
                                 &change);
    else
        assert_int_equal(registry_prepare(rig_loop(rig, 0), &report, &change, &why), ERR_OK);
    assert_int_equal(send_change(rig, &change), ERR_OK);
    return beat;
}

enum err rig_admin(struct rig *rig, const char *id, enum node_admin word)
{
    return send_change(rig, &(struct node_change){
                                .kind = NODE_CHANGE_ADMIN, .node_id = str_of(id), .admin = word});
}

enum err rig_drop(struct rig *rig, const char *id)
{
    return send_change(rig, &(struct node_change){.kind = NODE_CHANGE_DROP, .node_id = str_of(id)});
}

/* --- jobs --- */

static void dispatch_done(struct dispatch *dispatch)
{
    assert_ptr_not_equal(dispatch->user, dispatch); /* answered only once */
    dispatch->user = dispatch;
}

bool rig_over(const struct dispatch *dispatch)
{
    return dispatch->user == dispatch;
}

static struct dispatch *prepare(struct rig *rig, const char *json, bool f2f)
{
    struct dispatch *dispatch = dispatch_new(&rig->arena);
    const struct spec_author author = {.view = {.namespace = NAMESPACE_DEFAULT, .all = true}};
    struct problem why = {0};
    enum err err = spec_read(f2f, parse(rig, json), &author, &rig->arena, &dispatch->spec, &why);

    if (err)
        fail_msg("%s: %s", json, why.detail);
    dispatch->loop = rig_loop(rig, 0);
    dispatch->job = job_id_next(rig->wall_ms, store_number(&rig->turnstile));
    dispatch->attempt = 1;
    dispatch->max_attempts =
        (int)(dispatch->spec.max_attempts != FIELD_OFF ? dispatch->spec.max_attempts
                                                       : rig->config.max_attempts);
    dispatch->done = dispatch_done;
    return dispatch;
}

struct dispatch *rig_f2f(struct rig *rig, const char *json)
{
    return prepare(rig, json, true);
}

struct dispatch *rig_task(struct rig *rig, const char *json)
{
    return prepare(rig, json, false);
}

enum err rig_run(struct rig *rig, struct dispatch *dispatch)
{
    dispatch_start(dispatch);
    rig_quiet(rig);
    assert_true(rig_over(dispatch));
    return dispatch->err;
}

uint64_t rig_place(struct rig *rig, const char *task_json)
{
    struct dispatch *dispatch = rig_task(rig, task_json);

    assert_int_equal(rig_run(rig, dispatch), ERR_OK);
    return dispatch->job;
}

struct call {
    struct store_op op;
    bool done;
};

static void answered(struct store_op *op)
{
    container_of(op, struct call, op)->done = true;
}

/* Makes a store call of the test itself, which is never kept, refused or lost. */
static void ask(struct rig *rig, struct call *call)
{
    uint32_t lose_one_in = rig->lose_one_in;

    rig->lose_one_in = 0;
    call->op.reply_to = &rig->inboxes[0];
    call->op.done = answered;
    call->op.arena = &rig->arena;
    go_through(rig, &call->op);
    rig->calls[call->op.verb]--;
    rig_quiet(rig);
    rig->lose_one_in = lose_one_in;
    assert_true(call->done);
}

void rig_drop_behind(struct rig *rig, const char *id)
{
    struct call *call = arena_new(&rig->arena, struct call);

    call->op = (struct store_op){.verb = STORE_NODE_DROP, .node = str_of(id)};
    ask(rig, call);
    assert_int_equal(call->op.err, ERR_OK);
}

static struct call *put_waiting(struct rig *rig, const struct dispatch *job)
{
    struct call *call = arena_new(&rig->arena, struct call);

    call->op = (struct store_op){.verb = STORE_PUT, .job = job->job, .attempt = 1};
    call->op.u.put.spec = job->spec.json;
    call->op.u.put.type = job->spec.type;
    call->op.u.put.demand = job->spec.demand_text;
    call->op.u.put.max_attempts = job->max_attempts;
    call->op.u.put.timeout_ms = job->spec.timeout_ms;
    call->op.u.put.owner = store_number(&rig->turnstile);
    call->op.u.put.lane = spec_lane(&job->spec);
    call->op.u.put.priority = (int)job->spec.priority;
    call->op.u.put.wait_ms = job->spec.queue_ms;
    ask(rig, call);
    assert_int_equal(call->op.err, ERR_OK);
    return call;
}

uint64_t rig_put_waiting(struct rig *rig, const char *task_json)
{
    struct dispatch *job = rig_task(rig, task_json);

    put_waiting(rig, job);
    return job->job;
}

uint64_t rig_put_unreadable(struct rig *rig, const char *task_json, int64_t hold_ms)
{
    const struct dispatch *job = rig_task(rig, task_json);
    struct call *call = arena_new(&rig->arena, struct call);

    call->op = (struct store_op){.verb = STORE_PUT, .job = job->job, .attempt = 1};
    call->op.u.put.spec =
        arena_fmt(&rig->arena, "{\"type\":[\"of a later release\"],\"queue_ms\":%lld}",
                  (long long)job->spec.queue_ms);
    call->op.u.put.type = job->spec.type;
    call->op.u.put.max_attempts = job->max_attempts;
    call->op.u.put.owner = 9;
    call->op.u.put.hold_ms = hold_ms;
    call->op.u.put.lane = hold_ms ? 0 : spec_lane(&job->spec);
    call->op.u.put.priority = (int)job->spec.priority;
    call->op.u.put.wait_ms = job->spec.queue_ms;
    ask(rig, call);
    assert_int_equal(call->op.err, ERR_OK);
    return job->job;
}

void rig_put_many(struct rig *rig, const char *task_json, size_t count)
{
    enum { BATCH = 1024 };
    const struct dispatch *job = rig_task(rig, task_json);
    uint64_t lane = spec_lane(&job->spec);
    struct arena arenas[BATCH] = {0};
    struct call *calls = mem_array(struct call, BATCH);

    while (count > 0) {
        size_t batch = count < BATCH ? count : BATCH;

        for (size_t i = 0; i < batch; i++) {
            calls[i] = (struct call){.op = {.verb = STORE_PUT,
                                            .job = job_id_next(rig->wall_ms, 1),
                                            .attempt = 1,
                                            .reply_to = &rig->inboxes[0],
                                            .done = answered,
                                            .arena = &arenas[i]}};
            calls[i].op.u.put.spec = job->spec.json;
            calls[i].op.u.put.type = job->spec.type;
            calls[i].op.u.put.demand = job->spec.demand_text;
            calls[i].op.u.put.max_attempts = job->max_attempts;
            calls[i].op.u.put.lane = lane;
            calls[i].op.u.put.priority = (int)job->spec.priority;
            calls[i].op.u.put.wait_ms = job->spec.queue_ms;
            go_through(rig, &calls[i].op);
        }
        rig_quiet(rig);
        for (size_t i = 0; i < batch; i++) {
            assert_true(calls[i].done && !calls[i].op.err);
            arena_free(&arenas[i]);
        }
        count -= batch;
    }
    free(calls);
}

void rig_limit(struct rig *rig, const char *pattern, const char *limit)
{
    struct call *call = arena_new(&rig->arena, struct call);

    call->op = (struct store_op){.verb = STORE_LIMIT_SET};
    call->op.u.limit.pattern = str_of(pattern);
    assert_true(limit_parse(str_of(limit), &call->op.u.limit.limit));
    ask(rig, call);
    assert_int_equal(call->op.err, ERR_OK);
}

void rig_hold(struct rig *rig, const char *key, int64_t hold_ms)
{
    struct call *call = arena_new(&rig->arena, struct call);

    call->op = (struct store_op){.verb = STORE_LIMIT_HOLD};
    call->op.u.limit.pattern = str_of(key);
    call->op.u.limit.hold_ms = hold_ms;
    call->op.u.limit.reason = STR("a test");
    ask(rig, call);
    assert_int_equal(call->op.err, ERR_OK);
}

uint64_t rig_wait_in_queue(struct rig *rig, const char *task_json)
{
    struct dispatch *job = rig_task(rig, task_json);
    struct call *call = put_waiting(rig, job);
    struct store_record record = {.head = call->op.head, .spec = job->spec.json};

    keeper_continue(rig->sched.keeper, &record);
    rig_quiet(rig);
    return job->job;
}

void rig_renew(struct rig *rig, const char *node)
{
    struct call *call = arena_new(&rig->arena, struct call);

    call->op = (struct store_op){.verb = STORE_RENEW, .node = str_of(node)};
    call->op.u.renew.terms = rig->config.leases;
    ask(rig, call);
}

static void settle_done(struct settle *settle)
{
    settle->user = settle;
}

enum err rig_settle(struct rig *rig, enum settle_kind kind, uint64_t job, int attempt,
                    const char *node, const char *reason)
{
    struct settle *settle = arena_new(&rig->arena, struct settle);

    *settle = (struct settle){.loop = rig_loop(rig, 0),
                              .arena = &rig->arena,
                              .kind = kind,
                              .job = job,
                              .attempt = attempt,
                              .node = str_of(node),
                              .reason = str_of(reason),
                              .done = settle_done};
    settle_start(settle);
    rig_quiet(rig);
    assert_ptr_equal(settle->user, settle);
    return settle->err;
}

void rig_finish_behind(struct rig *rig, enum store_outcome outcome, uint64_t job, int attempt,
                       const char *node)
{
    struct call *call = arena_new(&rig->arena, struct call);

    call->op = (struct store_op){
        .verb = STORE_FINISH, .job = job, .attempt = attempt, .node = str_of(node)};
    call->op.u.settle.outcome = outcome;
    call->op.u.settle.reason = STR("BEHIND");
    call->op.u.settle.owner = 9;
    call->op.u.settle.hold_ms = SCHED_HOLD_MS;
    call->op.u.settle.candidates_left = true;
    ask(rig, call);
    assert_int_equal(call->op.err, ERR_OK);
}

static const struct store_op *get(struct rig *rig, uint64_t job)
{
    struct call *call = arena_new(&rig->arena, struct call);

    call->op = (struct store_op){.verb = STORE_JOB_GET, .job = job};
    ask(rig, call);
    assert_true(call->op.err == ERR_OK || call->op.err == ERR_NOT_FOUND);
    return &call->op;
}

struct store_head rig_job(struct rig *rig, uint64_t job)
{
    return get(rig, job)->head;
}

struct str rig_history(struct rig *rig, uint64_t job)
{
    const struct store_op *op = get(rig, job);

    return op->err ? STR_NONE : op->record.history;
}

struct lease_node rig_counts(struct rig *rig, const char *node)
{
    struct call *call = arena_new(&rig->arena, struct call);

    call->op = (struct store_op){.verb = STORE_COUNTS};
    ask(rig, call);
    assert_int_equal(call->op.err, ERR_OK);
    for (size_t i = 0; i < call->op.u.nodes.count; i++)
        if (str_is(call->op.u.nodes.items[i].id, node))
            return call->op.u.nodes.items[i].counts;
    return (struct lease_node){0};
}

size_t rig_lanes(struct rig *rig)
{
    struct call *call = arena_new(&rig->arena, struct call);

    call->op = (struct store_op){.verb = STORE_LANES};
    call->op.u.lanes.max = 64;
    ask(rig, call);
    assert_int_equal(call->op.err, ERR_OK);
    return call->op.u.lanes.count;
}

/* --- what the hooks recorded --- */

size_t rig_noted(const struct rig *rig, uint64_t job, const char *event)
{
    size_t count = 0;

    for (size_t i = 0; i < rig->note_count; i++)
        count += rig->notes[i].head.id == job && strcmp(rig->notes[i].event, event) == 0;
    return count;
}

const struct rig_sent *rig_last_sent(const struct rig *rig, uint64_t job)
{
    for (size_t i = rig->sent_count; i-- > 0;)
        if (rig->sent[i].job == job)
            return &rig->sent[i];
    fail_msg("the job was never sent");
    return NULL;
}

size_t rig_sends_of(const struct rig *rig, uint64_t job)
{
    size_t count = 0;

    for (size_t i = 0; i < rig->sent_count; i++)
        count += rig->sent[i].job == job;
    return count;
}
