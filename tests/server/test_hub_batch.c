/* What leaves at the end of a turn: jobs in one frame, and one receipt for many messages. The
 * socket is replaced (--wrap). */
#include "../unit.h"
#include "server/hub_ws.h"

#include "hand_server.h"

#include <stdlib.h>
#include <string.h>

static struct buf sent; /* frames, one a line */
static bool full;       /* the socket takes no more */

bool __wrap_ws_send(struct ws *ws, struct str text);
bool __wrap_ws_send_first(struct ws *ws, struct str text);
bool __wrap_ws_takes(struct ws *ws, size_t bytes);

bool __wrap_ws_send(struct ws *ws, struct str text)
{
    buf_str(&sent, text);
    buf_char(&sent, '\n');
    return true;
}

bool __wrap_ws_send_first(struct ws *ws, struct str text)
{
    return __wrap_ws_send(ws, text);
}

bool __wrap_ws_takes(struct ws *ws, size_t bytes)
{
    return !full;
}

struct fixture {
    struct server *server;
    struct settings settings;
    struct hub *hub;
    struct socket socket;
    struct ws ws;
};

static int setup(void **state)
{
    struct fixture *own = calloc(1, sizeof *own);

    full = false;
    own->server = hand_server_new(&own->settings);
    own->hub = own->server->workers[0].hub;
    own->socket = (struct socket){.hub = own->hub,
                                  .ws = &own->ws,
                                  .welcomed = true,
                                  .takes_jobs = true,
                                  .takes_accepted = true};
    *state = own;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *own = *state;

    hub_batch_free(&own->socket);
    hand_server_free(own->server);
    buf_free(&sent);
    free(own);
    return 0;
}

/* Everything sent since the last check. */
static void assert_sent(const char *want)
{
    if (!str_is(sent.len ? buf_view(&sent) : STR(""), want))
        fail_msg("sent:\n" STR_FMT "wanted:\n%s", STR_ARG(buf_view(&sent)), want);
    buf_clear(&sent);
}

static void assert_turn_sends(struct fixture *own, const char *want)
{
    assert_sent("");
    hub_turn(own->hub);
    assert_sent(want);
    hub_turn(own->hub);
    assert_sent("");
}

/* --- jobs --- */

static void jobs_of_a_turn_leave_in_one_frame(void **state)
{
    struct fixture *own = *state;

    for (int i = 0; i < 2; i++) {
        assert_true(hub_batch_job(&own->socket, STR("{\"job_id\":\"a\"}")));
        /* A plain frame for a single job. */
        assert_turn_sends(own, "{\"msg\":\"job\",\"job_id\":\"a\"}\n");
        assert_true(hub_batch_job(&own->socket, STR("{\"job_id\":\"a\"}")));
        assert_true(hub_batch_job(&own->socket, STR("{\"job_id\":\"b\"}")));
        assert_turn_sends(own,
                          "{\"msg\":\"jobs\",\"jobs\":[{\"job_id\":\"a\"},{\"job_id\":\"b\"}]}\n");
    }
}

static void who_did_not_ask_or_cannot_take_it_gets_it_as_always(void **state)
{
    struct fixture *own = *state;

    own->socket.takes_jobs = false;
    assert_false(hub_batch_job(&own->socket, STR("{\"a\":1}")));
    own->socket.takes_jobs = true;
    own->socket.welcomed = false;
    assert_false(hub_batch_job(&own->socket, STR("{\"a\":1}")));
    own->socket.welcomed = true;
    full = true;
    assert_false(hub_batch_job(&own->socket, STR("{\"a\":1}")));
    assert_turn_sends(own, "");
}

/* A cancel must follow the job it is about, even in one turn. */
static void nothing_overtakes_a_job(void **state)
{
    struct fixture *own = *state;

    assert_true(hub_batch_job(&own->socket, STR("{\"job_id\":\"a\"}")));
    buf_clear(&own->hub->frame);
    buf_str(&own->hub->frame, STR("{\"msg\":\"cancel\"}"));
    hub_socket_send(&own->socket, buf_view(&own->hub->frame));
    assert_sent("{\"msg\":\"job\",\"job_id\":\"a\"}\n{\"msg\":\"cancel\"}\n");
    assert_turn_sends(own, "");
}

static void a_frame_has_a_bound(void **state)
{
    struct fixture *own = *state;
    static char text[30000];
    struct str job = {.at = text, .len = sizeof text};

    memset(text, ' ', sizeof text);
    text[0] = '{';
    text[sizeof text - 1] = '}';
    assert_true(hub_batch_job(&own->socket, job));
    assert_true(hub_batch_job(&own->socket, job));
    assert_int_equal(sent.len, 0);
    assert_true(hub_batch_job(&own->socket, job)); /* the first two leave before it */
    assert_in_range(sent.len, 60000, 65536);
    buf_clear(&sent);
    hub_turn(own->hub);
    assert_in_range(sent.len, 30000, 30100);
    buf_clear(&sent);
}

/* --- receipts --- */

static void expect(struct fixture *own, int from, int upto)
{
    for (int id = from; id <= upto; id++)
        assert_true(hub_batch_expect(&own->socket, id));
}

static void done(struct fixture *own, int id)
{
    hub_batch_accept(&own->socket, id, false, 0, 0);
}

static void acked(struct fixture *own, int id, int64_t lease_ms, int64_t stop_grace_ms)
{
    hub_batch_accept(&own->socket, id, true, lease_ms, stop_grace_ms);
}

static void all_that_was_accepted_in_a_row_is_one_word(void **state)
{
    struct fixture *own = *state;

    expect(own, 1, 6);
    done(own, 1);
    done(own, 2);
    done(own, 4); /* not 3, which may still be refused */
    assert_turn_sends(own, "{\"msg\":\"accepted\",\"upto\":2}\n");
    done(own, 5);
    assert_turn_sends(own, "");
    done(own, 3);
    assert_turn_sends(own, "{\"msg\":\"accepted\",\"upto\":5}\n");
    expect(own, 7, 7);
    done(own, 7);
    done(own, 6);
    assert_turn_sends(own, "{\"msg\":\"accepted\",\"upto\":7}\n");
}

/* A message with a reply of its own is not in a receipt, and does not delay one. */
static void a_reply_of_its_own(void **state)
{
    struct fixture *own = *state;

    expect(own, 10, 14);
    hub_batch_answered(&own->socket, 10);
    assert_turn_sends(own, "");
    done(own, 11);
    hub_batch_answered(&own->socket, 12);
    done(own, 13);
    hub_batch_answered(&own->socket, 14);
    assert_turn_sends(own, "{\"msg\":\"accepted\",\"upto\":13}\n");
}

/* All ACKs in one receipt have the same terms. */
static void other_terms_another_word(void **state)
{
    struct fixture *own = *state;

    expect(own, 1, 9);
    acked(own, 1, 120, 0);
    done(own, 2);
    acked(own, 3, 120, 0);
    done(own, 4);
    acked(own, 5, 45, 0);
    acked(own, 6, 45, 7);
    done(own, 7);
    acked(own, 8, 0, 0); /* its last attempt */
    done(own, 9);
    assert_turn_sends(own, "{\"msg\":\"accepted\",\"upto\":4,\"lease_ms\":120}\n"
                           "{\"msg\":\"accepted\",\"upto\":5,\"lease_ms\":45}\n"
                           "{\"msg\":\"accepted\",\"upto\":7,\"lease_ms\":45,"
                           "\"stop_grace_ms\":7}\n"
                           "{\"msg\":\"accepted\",\"upto\":9}\n");
}

static void only_ids_that_rise(void **state)
{
    struct fixture *own = *state;

    assert_true(hub_batch_expect(&own->socket, -5));
    assert_false(hub_batch_expect(&own->socket, -5));
    assert_false(hub_batch_expect(&own->socket, -6));
    assert_true(hub_batch_expect(&own->socket, 1000000));
    assert_false(hub_batch_expect(&own->socket, 7));
    done(own, 1000000);
    done(own, -5);
    assert_turn_sends(own, "{\"msg\":\"accepted\",\"upto\":1000000}\n");
}

static void many_in_any_order(void **state)
{
    struct fixture *own = *state;
    enum { COUNT = 1000 };
    char want[64];

    for (int round = 0; round < 5; round++) {
        int first = round * COUNT;

        expect(own, first, first + COUNT - 1);
        for (int i = 1; i < COUNT; i++) /* a permutation, as 7 and 1000 have no common factor */
            done(own, first + i * 7 % COUNT);
        assert_turn_sends(own, "");
        done(own, first);
        snprintf(want, sizeof want, "{\"msg\":\"accepted\",\"upto\":%d}\n", first + COUNT - 1);
        assert_turn_sends(own, want);
    }
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(jobs_of_a_turn_leave_in_one_frame),
        ROW(who_did_not_ask_or_cannot_take_it_gets_it_as_always),
        ROW(nothing_overtakes_a_job),
        ROW(a_frame_has_a_bound),
        ROW(all_that_was_accepted_in_a_row_is_one_word),
        ROW(a_reply_of_its_own),
        ROW(other_terms_another_word),
        ROW(only_ids_that_rise),
        ROW(many_in_any_order),
    };

    return cmocka_run_group_tests_name("server/hub_batch", tests, NULL, NULL);
}
