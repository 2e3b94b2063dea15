/* Puts many jobs into a store at once, as if servers had taken them:
 *     fill URL WAITING TYPES RUNNING NODES [BYTES]
 * WAITING jobs of the types wait-0, wait-1, ... with every priority and a payload of BYTES, then
 * RUNNING jobs of type `run` on the nodes busy-0, busy-1, ..., which must be registered and have
 * room. The embedded store's files are in the working directory. */
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/spec.h"
#include "store/op_queue.h"

enum { FLIGHT = 2048, TERM_MS = 120000, PAYLOAD_MAX = 4096 };

struct slot {
    struct store_op op;
    struct arena arena;
    char node[NODE_ID_MAX + 1];
};

static struct {
    struct work_queue work_queue;
    struct store *store;
    long waiting, types, running, nodes;
    long begun, ended;
    char payload[PAYLOAD_MAX + 1];
} fill;

static void answered(struct store_op *op);

static struct spec read_spec(struct slot *slot, const char *text)
{
    const struct json *body;
    struct spec spec;
    const struct spec_author author = {.view = {.namespace = NAMESPACE_DEFAULT}};
    struct problem why = {0};

    if (json_parse(str_of(text), &slot->arena, &body, &why) ||
        spec_read(false, body, &author, &slot->arena, &spec, &why)) {
        fprintf(stderr, "%s: %s\n", text, why.detail);
        exit(1);
    }
    return spec;
}

static void make_put(struct slot *slot, long number)
{
    struct store_op *op = &slot->op;
    char text[PAYLOAD_MAX + 160];

    snprintf(text, sizeof text,
             "{\"type\":\"wait-%ld\",\"priority\":%ld,\"queue_ms\":86400000,\"payload\":\"%s\"}",
             number % fill.types, number / fill.types % 10, fill.payload);
    struct spec spec = read_spec(slot, text);
    op->verb = STORE_PUT;
    op->u.put.lane = spec_lane(&spec);
    op->u.put.priority = (int)spec.priority;
    op->u.put.wait_ms = spec.queue_ms;
    op->u.put.spec = spec.json;
    op->u.put.type = spec.type;
}

static void make_reserve(struct slot *slot, long number)
{
    struct store_op *op = &slot->op;
    struct spec spec = read_spec(slot, "{\"type\":\"run\"}");

    op->verb = STORE_RESERVE;
    op->u.put.fresh = true;
    op->u.put.spec = spec.json;
    op->u.put.type = spec.type;
    op->u.put.ttl_ms = TERM_MS;
    snprintf(slot->node, sizeof slot->node, "busy-%ld", number % fill.nodes);
    op->u.put.candidates[0].node = str_of(slot->node);
    op->u.put.candidates[0].hash = str_hash(str_of(slot->node));
    op->u.put.candidate_count = 1;
}

static void make_commit(struct store_op *op, struct slot *slot, uint64_t job)
{
    op->verb = STORE_ACK;
    op->job = job;
    op->node = str_of(slot->node);
    op->u.settle.terms = (struct lease_terms){TERM_MS, TERM_MS};
}

static void send(struct slot *slot)
{
    struct store_op *op = &slot->op;
    bool reserved = op->verb == STORE_RESERVE && op->done;
    uint64_t job = op->job;

    if (!reserved && fill.begun == fill.waiting + fill.running)
        return;
    arena_reset(&slot->arena);
    *op = (struct store_op){
        .reply_to = &fill.work_queue.inbox, .done = answered, .attempt = 1, .arena = &slot->arena};
    if (reserved) {
        make_commit(op, slot, job);
    } else {
        op->job = job_id_next(clock_wall_ms(), store_number(fill.store));
        op->u.put.max_attempts = 2;
        op->u.put.owner = store_number(fill.store);
        if (fill.begun < fill.waiting)
            make_put(slot, fill.begun);
        else
            make_reserve(slot, fill.begun - fill.waiting);
        fill.begun++;
    }
    if (store_send(fill.store, op)) {
        fprintf(stderr, "the store takes nothing\n");
        exit(1);
    }
}

static void answered(struct store_op *op)
{
    if (op->err) {
        fprintf(stderr, "verb %d of job %ld: %s\n", op->verb, fill.ended, err_name(op->err));
        exit(1);
    }
    if (op->verb != STORE_RESERVE)
        fill.ended++;
    send(container_of(op, struct slot, op));
}

int main(int argc, char **argv)
{
    struct store_config config = {.data_dir = ".",
                                  .in_flight_max = 2 * FLIGHT,
                                  .journal_bytes_max = INT64_MAX / 4,
                                  .timeout_ms = 30000};
    struct problem why = {0};
    long bytes = argc == 7 ? atol(argv[6]) : 0;

    if (argc < 6 || argc > 7 || bytes < 0 || bytes > PAYLOAD_MAX) {
        fprintf(stderr, "fill URL WAITING TYPES RUNNING NODES [BYTES]\n");
        return 2;
    }
    config.url = argv[1];
    fill.waiting = atol(argv[2]);
    fill.types = atol(argv[3]);
    fill.running = atol(argv[4]);
    fill.nodes = atol(argv[5]);
    memset(fill.payload, 'x', (size_t)bytes);
    work_queue_init(&fill.work_queue);
    if (store_open(&config, &fill.store, &why)) {
        fprintf(stderr, "%s\n", why.detail);
        return 1;
    }
    struct slot *slots = mem_array(struct slot, FLIGHT);
    for (size_t i = 0; i < FLIGHT; i++)
        send(&slots[i]);
    while (fill.ended < fill.waiting + fill.running) {
        work_queue_wait(&fill.work_queue, 1000);
        inbox_run(&fill.work_queue.inbox);
    }
    store_close(fill.store);
    for (size_t i = 0; i < FLIGHT; i++)
        arena_free(&slots[i].arena);
    free(slots);
    return 0;
}
