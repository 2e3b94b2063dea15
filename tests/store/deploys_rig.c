/* See deploys_rig.h. */
#include "deploys_rig.h"

#include <poll.h>
#include <string.h>

#include "base/clock.h"

enum { PATIENCE_MS = 20000 };

void deploys_rig_open(struct deploys_rig *rig, const char *url, const char *dir)
{
    struct deploys_config config = {.url = url, .data_dir = dir, .timeout_ms = 5000};
    struct problem why = {0};

    *rig = (struct deploys_rig){.url = url};
    work_queue_init(&rig->work_queue);
    if (deploys_open(&config, &rig->deploys, &why))
        fail_msg("%s", why.detail);
}

void deploys_rig_close(struct deploys_rig *rig)
{
    deploys_close(rig->deploys);
    arena_free(&rig->arena);
}

/* The answer comes on this thread, through the rig's own inbox. */
static void done(struct deploys_op *op)
{
    op->done = NULL;
}

enum err deploys_rig_call(struct deploys_rig *rig, struct deploys_op *op)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    enum err err;

    op->arena = &rig->arena;
    op->reply_to = &rig->work_queue.inbox;
    op->done = done;
    err = deploys_send(rig->deploys, op);
    if (err)
        return op->err = err;
    while (op->done) {
        work_queue_wait(&rig->work_queue, 100);
        inbox_run(&rig->work_queue.inbox);
        assert_true(clock_mono_ms() < end_ms);
    }
    return op->err;
}

struct deploys_op deploys_rig_put_as(struct deploys_rig *rig, enum deploy_type type, const char *id,
                                     const char *command)
{
    struct deploys_spec spec = {.id = str_of(id),
                                .type = type,
                                .package_name = STR("pkg"),
                                .package_version = STR("1"),
                                .command = str_of(command),
                                .args = STR("[\"-v\", \"x\"]"),
                                .env = STR("{\"A\":\"1\"}"),
                                .selector = STR(""),
                                .options = STR("{}"),
                                .enabled = true};
    struct deploys_op op = {.verb = DEPLOYS_PUT,
                            .u.put = {.spec = &spec, .if_version = DEPLOYS_ANY}};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    return op;
}

struct deploys_op deploys_rig_put(struct deploys_rig *rig, const char *id, const char *command)
{
    return deploys_rig_put_as(rig, DEPLOY_DEPLOYMENT, id, command);
}

struct deploys_op deploys_rig_get(struct deploys_rig *rig, const char *id)
{
    struct deploys_op op = {.verb = DEPLOYS_GET, .id = str_of(id)};

    deploys_rig_call(rig, &op);
    return op;
}

struct deploys_op deploys_rig_renew(struct deploys_rig *rig, const char *node, int64_t lease_ms)
{
    struct deploys_op op = {.verb = DEPLOYS_RENEW,
                            .node = str_of(node),
                            .u.renew = {.lease_ms = lease_ms, .if_version = DEPLOYS_ANY}};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    return op;
}

struct deploys_op deploys_rig_claim(struct deploys_rig *rig, const char *node, const char *id,
                                    const char *observed, int64_t generation)
{
    struct deploys_op op = {.verb = DEPLOYS_CLAIM,
                            .id = str_of(id),
                            .node = str_of(node),
                            .u.claim = {.observed = str_of(observed), .generation = generation}};

    deploys_rig_call(rig, &op);
    return op;
}

/* All leases as they are now: the reading thread keeps them by window, and each call asks for
 * another. */
struct deploys_op deploys_rig_view(struct deploys_rig *rig)
{
    static int64_t within_ms = 1000000000;
    struct deploys_op op = {
        .verb = DEPLOYS_VIEW,
        .u.view = {.if_version = DEPLOYS_ANY, .if_facts = DEPLOYS_ANY, .within_ms = within_ms++}};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    return op;
}

static int64_t left_ms(struct deploys_rig *rig, const char *node)
{
    struct deploys_op op = deploys_rig_view(rig);

    for (size_t i = 0; i < op.u.view.lease_count; i++)
        if (str_is(op.u.view.leases[i].node, node))
            return op.u.view.leases[i].until_ms - op.now_ms;
    return INT64_MIN;
}

void deploys_rig_lapse(struct deploys_rig *rig, const char *node)
{
    deploys_rig_renew(rig, node, 1);
    while (left_ms(rig, node) >= 0)
        poll(NULL, 0, 1);
}

/* --- several copies --- */

static const char *const copy_ids[] = {"web", "web#1", "web#2"};
static const char *const owners[] = {"n1", "n2", "n3"};

struct deploys_op deploys_rig_put_copies(struct deploys_rig *rig, const char *command,
                                         int64_t count)
{
    struct deploys_spec spec = {.id = STR("web"),
                                .type = DEPLOY_DEPLOYMENT,
                                .package_name = STR(""),
                                .package_version = STR(""),
                                .command = str_of(command),
                                .args = STR("[]"),
                                .env = STR("{}"),
                                .selector = STR(""),
                                .options = STR("{}"),
                                .enabled = true,
                                .count = count};
    struct deploys_op op = {.verb = DEPLOYS_PUT,
                            .u.put = {.spec = &spec, .if_version = DEPLOYS_ANY}};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    return op;
}

struct deploys_op deploys_rig_scale(struct deploys_rig *rig, const char *id, int64_t count)
{
    struct deploys_op op = {.verb = DEPLOYS_SCALE,
                            .id = str_of(id),
                            .u.put = {.count = count, .if_version = DEPLOYS_ANY}};

    deploys_rig_call(rig, &op);
    return op;
}

void deploys_rig_start_three(struct deploys_rig *rig)
{
    deploys_rig_put_copies(rig, "run 1", 3);
    for (size_t i = 0; i < 3; i++) {
        deploys_rig_renew(rig, owners[i], 60000);
        assert_int_equal(deploys_rig_claim(rig, owners[i], copy_ids[i], "", 0).err, ERR_OK);
    }
}

void deploys_rig_tell(struct deploys_rig *rig, size_t index, int64_t version, const char *word)
{
    struct deploys_copy copy = {.id = str_of(copy_ids[index]),
                                .generation = deploys_rig_get(rig, copy_ids[index]).row.generation,
                                .version = version,
                                .state = str_of(word),
                                .healthy = strcmp(word, "running") ? STR("false") : STR("true"),
                                .reason = STR("exit 1"),
                                .limits = STR("")};
    struct deploys_op op = {.verb = DEPLOYS_STATUS,
                            .node = deploys_rig_get(rig, copy_ids[index]).row.owner,
                            .u.status = {.copies = &copy, .count = 1, .partial = true}};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_false(copy.stale);
}
