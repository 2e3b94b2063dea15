/* Frames of a node as calls: whatever a handler answers becomes a frame, at any later time. Socket
 * and scheduler are replaced (--wrap). */
#include "../unit.h"
#include "server/hub_ws.h"

#include "sched/registry.h"
#include "sched/settle.h"

#include "hand_server.h"

#include <stdlib.h>

enum { SETTLES_MAX = 16 };

static struct {
    struct ws ws;
    struct buf sent; /* frames, one a line */
    int close_code;
    bool has_left; /* the peer has closed */
    struct settle *settles[SETTLES_MAX];
    int settle_count;
} world;

struct ws *__wrap_ws_accept(struct http_request *req, const struct ws_handler *handler,
                            const struct ws_limits *limits, void *user);
bool __wrap_ws_send(struct ws *ws, struct str text);
void __wrap_ws_close(struct ws *ws, int code, const char *reason);
bool __wrap_ws_send_first(struct ws *ws, struct str text);
bool __wrap_ws_peer_left(const struct ws *ws);
void __wrap_settle_start(struct settle *settle);
enum registry_beat __wrap_registry_heartbeat(struct sched_loop *loop,
                                             const struct node_report *report,
                                             const struct node_report_load *load);

struct ws *__wrap_ws_accept(struct http_request *req, const struct ws_handler *handler,
                            const struct ws_limits *limits, void *user)
{
    world.ws = (struct ws){.handler = handler, .user = user};
    return &world.ws;
}

bool __wrap_ws_send(struct ws *ws, struct str text)
{
    buf_str(&world.sent, text);
    buf_char(&world.sent, '\n');
    return true;
}

void __wrap_ws_close(struct ws *ws, int code, const char *reason)
{
    world.close_code = code;
}

bool __wrap_ws_send_first(struct ws *ws, struct str text)
{
    return __wrap_ws_send(ws, text);
}

bool __wrap_ws_peer_left(const struct ws *ws)
{
    return world.has_left;
}

void __wrap_settle_start(struct settle *settle)
{
    assert_true(world.settle_count < SETTLES_MAX);
    world.settles[world.settle_count++] = settle;
}

enum registry_beat __wrap_registry_heartbeat(struct sched_loop *loop,
                                             const struct node_report *report,
                                             const struct node_report_load *load)
{
    return BEAT_TAKEN;
}

struct fixture {
    struct server *server;
    struct settings settings;
    struct hub *hub;
    struct socket *socket;
    struct node node;
};

static int setup(void **state)
{
    struct fixture *own = calloc(1, sizeof *own);
    struct http_request req = {0};
    size_t at = 0;

    world.close_code = world.settle_count = 0;
    own->settings.result_bytes_max = 16;
    own->server = hand_server_new(&own->settings);
    own->hub = own->server->workers[0].hub;
    own->node = (struct node){.id = STR("n1")};
    struct call call = {.req = &req, .worker = &own->server->workers[0]};
    hub_accept(&call);
    own->socket = idmap_next(&own->hub->sockets, &at);
    *state = own;
    return 0;
}

static void hang_up(struct fixture *own)
{
    if (own->socket) {
        own->socket->node = NULL; /* not in a list here */
        world.ws.handler->closed(&world.ws, 1006);
    }
    own->socket = NULL;
}

static int teardown(void **state)
{
    struct fixture *own = *state;

    hang_up(own);
    buf_free(&own->server->workers[0].answer);
    hand_server_free(own->server);
    buf_free(&world.sent);
    free(own);
    return 0;
}

static void receive(const char *text)
{
    world.ws.handler->message(&world.ws, str_of(text));
}

/* Everything sent since the last check. */
static void assert_sent(const char *want)
{
    if (!str_is(world.sent.len ? buf_view(&world.sent) : STR(""), want))
        fail_msg("sent:\n" STR_FMT "wanted:\n%s", STR_ARG(buf_view(&world.sent)), want);
    buf_clear(&world.sent);
}

/* The scheduler answers settle number `index`. */
static void settled(int index, enum err err, bool duplicate, int attempt, int64_t timeout_ms)
{
    struct settle *settle = world.settles[index];

    settle->err = err;
    settle->duplicate = duplicate;
    settle->head = (struct store_head){.id = attempt ? settle->job : 0,
                                       .attempt = attempt,
                                       .max_attempts = 2,
                                       .timeout_ms = timeout_ms,
                                       .type = "t",
                                       .node = "n1",
                                       .state = JOB_ACKED};
    settle->op.u.settle.terms = (struct lease_terms){.task_ms = 120, .f2f_ms = 45};
    settle->op.u.settle.stop_grace_ms = 7;
    settle->done(settle);
}

#define JOB "\"job_id\":\"j0000000000005\",\"attempt_id\":1"

static void known(struct fixture *own)
{
    own->socket->node = &own->node;
}

static void what_is_said_of_a_job_is_answered(void **state)
{
    static const struct {
        const char *said;
        enum err err;
        bool duplicate;
        int attempt;
        int64_t timeout_ms;
        const char *answer;
    } rows[] = {
        {"{\"msg\":\"ack\",\"id\":5," JOB "}", ERR_OK, false, 1, 0,
         "{\"msg\":\"reply\",\"re\":5,\"ok\":true,\"lease_ms\":120}\n"},
        {"{\"msg\":\"ack\",\"id\":5," JOB "}", ERR_OK, false, 1, 1,
         "{\"msg\":\"reply\",\"re\":5,\"ok\":true,\"lease_ms\":120,\"stop_grace_ms\":7}\n"},
        {"{\"msg\":\"ack\",\"id\":5," JOB "}", ERR_OK, false, 2, 1,
         "{\"msg\":\"reply\",\"re\":5,\"ok\":true}\n"},
        {"{\"msg\":\"ack\",\"id\":5," JOB "}", ERR_OK, true, 2, 0,
         "{\"msg\":\"reply\",\"re\":5,\"ok\":true,\"duplicate\":true}\n"},
        {"{\"msg\":\"done\",\"id\":-6," JOB "}", ERR_OK, false, 1, 1,
         "{\"msg\":\"reply\",\"re\":-6,\"ok\":true}\n"},
        {"{\"msg\":\"fail\",\"id\":7," JOB "}", ERR_STORE_DOWN, false, 0, 0,
         "{\"msg\":\"reply\",\"re\":7,\"type\":\"about:blank\",\"title\":\"The store cannot be "
         "reached\",\"status\":503,\"error\":\"SCHEDULER_DEPENDENCY_DOWN\",\"detail\":\"The store "
         "cannot be reached.\"}\n"},
        /* Without an id only errors are answered. */
        {"{\"msg\":\"done\"," JOB "}", ERR_OK, false, 1, 0, ""},
        {"{\"msg\":\"done\"," JOB "}", ERR_STALE, false, 2, 0,
         "{\"msg\":\"reply\",\"re\":null,\"type\":\"about:blank\",\"title\":\"The message belongs "
         "to an attempt that ended\",\"status\":409,"
         "\"error\":\"STALE_ATTEMPT\",\"detail\":\"Attempt 1 on this node is over: job "
         "j0000000000005 is ACKED in attempt 2.\","
         "\"field\":\"attempt_id\",\"attempt_id\":2}\n"},
    };
    struct fixture *own = *state;

    known(own);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        world.settle_count = 0;
        receive(rows[i].said);
        assert_sent("");
        settled(0, rows[i].err, rows[i].duplicate, rows[i].attempt, rows[i].timeout_ms);
        assert_sent(rows[i].answer);
    }
}

/* The node of the socket counts, whatever node_id a message has. A DONE with another status is a
 * FAIL. */
static void it_speaks_for_its_own_node(void **state)
{
    struct fixture *own = *state;

    known(own);
    receive("{\"msg\":\"done\",\"node_id\":\"n2\",\"status\":\"bad\"," JOB "}");
    assert_int_equal(world.settle_count, 1);
    assert_true(str_is(world.settles[0]->node, "n1"));
    assert_int_equal(world.settles[0]->kind, SETTLE_FAIL);
    assert_true(str_is(world.settles[0]->reason, "FAILED"));
    settled(0, ERR_OK, false, 1, 0);
}

/* Messages cost no allocation: calls are reused. */
static void calls_are_used_again(void **state)
{
    struct fixture *own = *state;

    known(own);
    for (int round = 0; round < 3; round++) {
        world.settle_count = 0;
        for (int i = 0; i < 4; i++)
            receive("{\"msg\":\"ack\"," JOB "}");
        assert_int_equal(own->hub->spare_count, 0);
        for (int i = 0; i < 4; i++)
            settled(3 - i, ERR_OK, false, 1, 0);
        assert_int_equal(own->hub->spare_count, 4);
    }
    receive("{\"msg\":\"nonsense\"}");
    receive("[]");
    receive("{");
    assert_int_equal(own->hub->spare_count, 4);
    assert_true(LIST_EMPTY(&own->hub->calls));
}

static void an_answer_may_come_after_its_socket_went(void **state)
{
    struct fixture *own = *state;

    known(own);
    receive("{\"msg\":\"ack\",\"id\":1," JOB "}");
    receive("{\"msg\":\"done\",\"id\":2," JOB "}");
    own->socket->takes_accepted = true;
    receive("{\"msg\":\"done\",\"id\":3," JOB "}");
    hang_up(own);
    settled(0, ERR_OK, false, 1, 0);
    settled(1, ERR_STALE, false, 2, 0);
    settled(2, ERR_OK, false, 1, 0);
    assert_sent("");
    assert_int_equal(own->hub->spare_count, 3);
}

/* Accepted messages share a receipt; a refused one gets a reply of its own. */
static void accepted_together(void **state)
{
    struct fixture *own = *state;

    known(own);
    own->socket->takes_accepted = true;
    receive("{\"msg\":\"ack\",\"id\":1," JOB "}");
    receive("{\"msg\":\"done\",\"id\":2," JOB "}");
    receive("{\"msg\":\"done\",\"id\":3," JOB "}");
    receive("{\"msg\":\"done\",\"id\":4," JOB ",\"result\":\"longer than it may be\"}");
    assert_int_equal(world.settle_count, 3);
    buf_clear(&world.sent); /* the refusal */
    settled(1, ERR_OK, false, 1, 0);
    settled(0, ERR_OK, false, 1, 0);
    settled(2, ERR_OK, true, 1, 0);
    assert_sent("{\"msg\":\"reply\",\"re\":3,\"ok\":true,\"duplicate\":true}\n");
    hub_turn(own->hub);
    assert_sent("{\"msg\":\"accepted\",\"upto\":2,\"lease_ms\":120}\n");
}

/* Closed with 1008, as repeating the message would not help. */
static void the_first_message_is_hello(void **state)
{
    static const char *const rows[] = {"{\"msg\":\"ack\",\"id\":1," JOB "}",
                                       "{\"msg\":\"hello\",\"protocol\":2,\"node_id\":\"n1\"}",
                                       "{\"msg\":\"hello\"}"};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        receive(rows[i]);
        assert_true(world.sent.len > 0);
        buf_clear(&world.sent);
        assert_int_equal(world.close_code, 1008);
        assert_int_equal(teardown(state), 0);
        assert_int_equal(setup(state), 0);
    }
    assert_int_equal(world.settle_count, 0);
}

/* The hello may be as old as a pause of this process, and the node may have connected elsewhere
 * since. */
static void a_hello_of_who_has_left_counts_for_nothing(void **state)
{
    struct fixture *own = *state;

    world.has_left = true;
    receive("{\"msg\":\"hello\",\"protocol\":1,\"node_id\":\"n1\",\"health\":\"ready\",\"running_"
            "jobs\":[]}");
    world.has_left = false;
    assert_int_equal(world.close_code, 1008);
    assert_null(own->server->workers[0].sched->out_first); /* nothing was sent to the store */
}

/* Answers the renewals that were sent to the store; returns their number. */
static int renewals(struct fixture *own)
{
    struct sched_loop *loop = own->server->workers[0].sched;
    int count = 0;

    while (loop->out_first) {
        struct store_op *op = loop->out_first;
        struct msg *next = op->msg.next;

        assert_int_equal(op->verb, STORE_RENEW);
        assert_str(op->node, "n1");
        loop->out_first = next ? container_of(next, struct store_op, msg) : NULL;
        if (!next)
            loop->out_last = NULL;
        count++;
        op->done(op);
    }
    return count;
}

static void what_is_listed_is_renewed_with_every_heartbeat(void **state)
{
    struct fixture *own = *state;

    known(own);
    own->server->sched.config.leases = (struct lease_terms){.task_ms = 120000, .f2f_ms = 45000};
    for (int i = 0; i < 3; i++) {
        receive("{\"msg\":\"heartbeat\",\"id\":1,\"running_jobs\":[{" JOB "}]}");
        assert_sent("");
        assert_int_equal(renewals(own), 1);
        assert_sent("{\"msg\":\"reply\",\"re\":1,\"ok\":true,\"running_lease_ms\":120000,"
                    "\"f2f_lease_ms\":45000}\n");
    }
    receive("{\"msg\":\"heartbeat\",\"id\":1,\"running_jobs\":[]}"); /* no runs to renew */
    assert_int_equal(renewals(own), 0);
    assert_sent("{\"msg\":\"reply\",\"re\":1,\"ok\":true}\n");
}

/* A node that does not list its runs has all leases renewed, but no more often than necessary. */
static void all_are_renewed_once_in_a_while(void **state)
{
    struct fixture *own = *state;

    known(own);
    own->server->sched.config.leases = lease_terms_default;
    int64_t every_ms = lease_renew_every_ms(&lease_terms_default);
    for (int round = 0; round < 3; round++) {
        receive("{\"msg\":\"heartbeat\"}");
        assert_int_equal(renewals(own), 1);
        for (int i = 0; i < 5; i++) /* more at the same moment */
            receive("{\"msg\":\"heartbeat\"}");
        hand_server_pass(own->server, every_ms - 1);
        receive("{\"msg\":\"heartbeat\"}");
        assert_int_equal(renewals(own), 0);
        hand_server_pass(own->server, 1);
    }
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(what_is_said_of_a_job_is_answered),
        ROW(it_speaks_for_its_own_node),
        ROW(calls_are_used_again),
        ROW(an_answer_may_come_after_its_socket_went),
        ROW(accepted_together),
        ROW(the_first_message_is_hello),
        ROW(a_hello_of_who_has_left_counts_for_nothing),
        ROW(what_is_listed_is_renewed_with_every_heartbeat),
        ROW(all_are_renewed_once_in_a_while),
    };

    return cmocka_run_group_tests_name("server/hub_ws", tests, NULL, NULL);
}
