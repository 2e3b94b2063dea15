/* How jobs reach nodes: boxes, polls, and links that change while a job is on its way. Real sockets
 * are tested end to end. */
#include "../unit.h"

#include "hand_server.h"

#include <stdlib.h>
#include <string.h>

/* One node whose box is on loop 0, and one whose box is on loop 1. */
struct fixture {
    struct server *server;
    struct settings settings;
    struct node nodes[2];
    struct http_request req;
    struct call call;
};

static int setup(void **state)
{
    struct fixture *own = calloc(1, sizeof *own);

    own->server = hand_server_new(&own->settings);
    own->nodes[0] = (struct node){.id = STR("n0"), .number = 0};
    own->nodes[1] = (struct node){.id = STR("n1"), .number = 1};
    *state = own;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *own = *state;

    hand_server_free(own->server);
    free(own);
    return 0;
}

static int dones;

static void send_done(struct send_op *send)
{
    dones++;
}

static struct send_op send_to(struct fixture *own, int node, const char *message)
{
    dones = 0;
    return (struct send_op){.done = send_done,
                            .reply_to = &own->server->workers[0].loop.inbox,
                            .node = &own->nodes[node],
                            .message = str_of(message),
                            .deadline_ms = own->server->workers[0].loop.wall_ms + 5000};
}

/* A request on loop 0 polls for this node. */
static void poll_from(struct fixture *own, int node, int64_t wait_ms, size_t max)
{
    own->req = (struct http_request){.gone = false};
    own->call = (struct call){.req = &own->req, .worker = &own->server->workers[0]};
    hub_poll(&own->call, &own->nodes[node], wait_ms, max);
}

/* Takes the answer that came back to loop 0; NULL: none. */
static char *answered(struct fixture *own)
{
    struct msg *msg = inbox_take(&own->server->workers[0].loop.inbox);
    char *text = NULL;

    if (!msg)
        return NULL;
    assert_null(msg->next);
    struct poll *poll = container_of(msg, struct poll, msg);
    assert_ptr_equal(poll->call, &own->call);
    text = strndup(poll->answer.at, poll->answer.len);
    buf_free(&poll->answer);
    free(poll);
    return text;
}

static void assert_answer(struct fixture *own, const char *want)
{
    char *got = answered(own);

    if (!got || strcmp(got, want) != 0)
        fail_msg("got %s, wanted %s", got, want);
    free(got);
}

/* --- boxes and polls --- */

static void a_box_keeps_jobs_until_the_node_asks(void **state)
{
    struct fixture *own = *state;
    struct sched_loop *from = own->server->workers[0].sched;
    struct send_op first = send_to(own, 1, "{\"job\":1}"), second = send_to(own, 1, "{\"job\":22}"),
                   third = send_to(own, 1, "{\"job\":333}");

    assert_false(hub_send(from, &first)); /* posted: the box is on loop 1 */
    hub_send(from, &second);
    hub_send(from, &third);
    assert_int_equal(dones, 0);
    hand_server_run(own->server, 1);
    hand_server_run(own->server, 0);
    assert_int_equal(dones, 3);
    assert_true(first.ok && second.ok && third.ok);
    poll_from(own, 1, 0, 2);
    hand_server_run(own->server, 1);
    assert_answer(own, "{\"jobs\":[{\"job\":1},{\"job\":22}]}");
    poll_from(own, 1, 0, 2);
    hand_server_run(own->server, 1);
    assert_answer(own, "{\"jobs\":[{\"job\":333}]}");
    poll_from(own, 1, 0, 2);
    hand_server_run(own->server, 1);
    assert_answer(own, "{\"jobs\":[]}");
}

static void a_poll_waits_for_a_job(void **state)
{
    struct fixture *own = *state;
    struct send_op send = send_to(own, 1, "{\"job\":1}");

    poll_from(own, 1, 30000, 16);
    hand_server_run(own->server, 1);
    hand_server_pass(own->server, 10000);
    assert_null(answered(own));
    send.deadline_ms += 10000;
    /* Sent at once from the box's own loop. */
    assert_true(hub_send(own->server->workers[1].sched, &send));
    assert_answer(own, "{\"jobs\":[{\"job\":1}]}");
}

static void a_poll_ends_with_its_time(void **state)
{
    struct fixture *own = *state;

    poll_from(own, 1, 1000, 16);
    hand_server_run(own->server, 1);
    hand_server_pass(own->server, 999);
    assert_null(answered(own));
    hand_server_pass(own->server, 1);
    assert_answer(own, "{\"jobs\":[]}");
}

/* A job past its deadline is not handed out, since its ACK would be refused. */
static void a_job_past_its_deadline_is_not_handed_out(void **state)
{
    struct fixture *own = *state;
    struct send_op late = send_to(own, 1, "{\"job\":1}"), good = send_to(own, 1, "{\"job\":2}");

    good.deadline_ms += 5000;
    hub_send(own->server->workers[1].sched, &late);
    hub_send(own->server->workers[1].sched, &good);
    hand_server_pass(own->server, 5000);
    poll_from(own, 1, 0, 16);
    hand_server_run(own->server, 1);
    assert_answer(own, "{\"jobs\":[{\"job\":2}]}");
}

/* The polling peer hangs up while its box is on another loop: no job may be handed to it. */
static void a_poll_whose_peer_left_takes_no_job(void **state)
{
    struct fixture *own = *state;
    struct send_op send = send_to(own, 1, "{\"job\":1}");

    poll_from(own, 1, 30000, 16);
    hand_server_run(own->server, 1);
    own->req.gone = true; /* as io/http.c does */
    own->req.on_gone(&own->req);
    hand_server_run(own->server, 1);
    assert_answer(own, "{\"jobs\":[]}");
    hub_send(own->server->workers[1].sched, &send);
    assert_true(send.ok);
    poll_from(own, 1, 0, 16); /* the node polls again */
    hand_server_run(own->server, 1);
    assert_answer(own, "{\"jobs\":[{\"job\":1}]}");
}

/* The first token is configured: a poll without a token may not go on waiting for jobs, nor start
 * to. */
static void a_poll_whose_token_ended_takes_no_job(void **state)
{
    struct fixture *own = *state;
    struct send_op send = send_to(own, 1, "{\"job\":1}");
    struct worker *home = &own->server->workers[1];
    struct token token = {.name = STR("a")};

    poll_from(own, 1, 30000, 16);
    hand_server_run(own->server, 1);
    home->auth->tokens = (struct tokens){.at = &token, .count = 1};
    hub_send(home->sched, &send); /* before the poll was checked again */
    assert_answer(own, "{\"jobs\":[]}");
    poll_from(own, 1, 30000, 16);
    hand_server_run(own->server, 1);
    assert_answer(own, "{\"jobs\":[]}");
    home->auth->tokens = (struct tokens){0};
    poll_from(own, 1, 30000, 16); /* the job is still there for a valid poll */
    hand_server_run(own->server, 1);
    assert_answer(own, "{\"jobs\":[{\"job\":1}]}");
    poll_from(own, 1, 30000, 16);
    hand_server_run(own->server, 1);
    hub_recheck(home->hub);
    assert_null(answered(own));
    home->auth->tokens = (struct tokens){.at = &token, .count = 1};
    hub_recheck(home->hub);
    assert_answer(own, "{\"jobs\":[]}");
}

/* The peer hangs up when its answer is already on the way: nothing is answered twice. */
static void a_peer_that_leaves_too_late_changes_nothing(void **state)
{
    struct fixture *own = *state;

    poll_from(own, 1, 0, 16);
    hand_server_run(own->server, 1);
    own->req.gone = true;
    own->req.on_gone(&own->req);
    hand_server_run(own->server, 1);
    assert_answer(own, "{\"jobs\":[]}");
    assert_null(answered(own));
}

static void a_draining_server_keeps_nobody_waiting(void **state)
{
    struct fixture *own = *state;

    poll_from(own, 1, 30000, 16);
    hand_server_run(own->server, 1);
    atomic_store(&own->server->draining, true);
    hub_drain(own->server->workers[1].hub);
    assert_answer(own, "{\"jobs\":[]}");
    poll_from(own, 1, 30000, 16); /* a poll that arrives during the drain */
    hand_server_run(own->server, 1);
    assert_answer(own, "{\"jobs\":[]}");
}

/* Nodes come and go: their boxes are removed. */
static void boxes_do_not_pile_up(void **state)
{
    enum { NODES = 40 };
    struct fixture *own = *state;
    struct hub *hub = own->server->workers[1].hub;
    struct node nodes[NODES];

    for (int i = 0; i < NODES; i++) {
        nodes[i] = (struct node){.id = STR("x"), .number = (uint32_t)(2 * i + 1)};
        struct send_op send = send_to(own, 1, "{\"job\":1}");
        send.node = &nodes[i];
        hub_send(own->server->workers[1].sched, &send);
    }
    assert_int_equal(hub->boxes.count, NODES);
    hand_server_pass(own->server, 61000);
    hand_server_pass(own->server, 10000);
    assert_int_equal(hub->boxes.count, 0);
}

/* --- links that change while a job is on its way --- */

/* The node was connected to loop 1 when the job left loop 0, but not when it arrives. Its box is on
 * loop 0, which loop 1's thread must not touch. */
static void a_node_that_hung_up_gets_nothing_into_a_box(void **state)
{
    struct fixture *own = *state;
    struct send_op send = send_to(own, 0, "{\"job\":1}");

    atomic_store(&own->nodes[0].link, hub_link(1, 7));
    hub_send(own->server->workers[0].sched, &send);
    atomic_store(&own->nodes[0].link, 0);
    hand_server_run(own->server, 1);
    assert_int_equal(own->server->workers[0].hub->boxes.count, 0);
    hand_server_run(own->server, 0);
    assert_int_equal(dones, 1);
    assert_false(send.ok); /* the next candidate is tried in the same attempt */
    assert_string_equal(send.reason, "NOT_CONNECTED");
}

/* The node has moved to loop 0: the job follows it, since loop 1's thread must not write to that
 * socket. */
static void a_job_follows_a_node_that_moved(void **state)
{
    struct fixture *own = *state;
    struct send_op send = send_to(own, 0, "{\"job\":1}");

    atomic_store(&own->nodes[0].link, hub_link(1, 7));
    hub_send(own->server->workers[HAND_SERVER_LOOPS].sched, &send); /* sent by the keeper */
    atomic_store(&own->nodes[0].link, hub_link(0, 8));
    assert_int_equal(hand_server_run(own->server, 1), 1);
    assert_int_equal(dones, 0);
    assert_int_equal(hand_server_run(own->server, 0), 1);
    hand_server_run(own->server, 0); /* the answer */
    assert_int_equal(dones, 1);
    assert_false(send.ok); /* this test has no socket 8 */
    assert_string_equal(send.reason, "NOT_CONNECTED");
}

static void links_name_loop_and_connection(void **state)
{
    static const struct {
        int loop;
        uint64_t incarnation;
    } rows[] = {{0, 1}, {1, 1}, {63, UINT64_C(1) << 53}, {255, 5}};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint64_t link = hub_link(rows[i].loop, rows[i].incarnation);

        assert_true(link != 0);
        assert_int_equal(hub_link_loop(link), rows[i].loop);
        assert_true(hub_link_incarnation(link) == rows[i].incarnation);
    }
    assert_true(hub_link_incarnation(0) == 0); /* older than any */
}

/* A push to an endpoint that is not allowed any more is not made. */
static void a_push_asks_what_is_allowed_now(void **state)
{
    struct fixture *own = *state;
    struct send_op send = send_to(own, 0, "{\"job\":1}");

    send.endpoint = STR("http://10.0.0.1/");
    assert_true(hub_send(own->server->workers[0].sched, &send));
    assert_false(send.ok);
    assert_string_equal(send.reason, "URL_NOT_ALLOWED");
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(a_box_keeps_jobs_until_the_node_asks),
        ROW(a_poll_waits_for_a_job),
        ROW(a_poll_ends_with_its_time),
        ROW(a_job_past_its_deadline_is_not_handed_out),
        ROW(a_poll_whose_peer_left_takes_no_job),
        ROW(a_poll_whose_token_ended_takes_no_job),
        ROW(a_peer_that_leaves_too_late_changes_nothing),
        ROW(a_draining_server_keeps_nobody_waiting),
        ROW(boxes_do_not_pile_up),
        ROW(a_node_that_hung_up_gets_nothing_into_a_box),
        ROW(a_job_follows_a_node_that_moved),
        ROW(links_name_loop_and_connection),
        ROW(a_push_asks_what_is_allowed_now),
    };

    return cmocka_run_group_tests_name("server/hub", tests, NULL, NULL);
}
