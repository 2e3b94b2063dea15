/* The conversation with a client, step by step. Its socket, the dispatch and the store are replaced
 * (--wrap), so that events can come in any order. */
#include "../unit.h"

#include "hand_server.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/submit_socket.h"

enum { CALLS_MAX = 600, READS_MAX = 600, JOB = 700 }; /* id j00000000000nw */

/* What the code under test did, and the state of its surroundings. */
static struct {
    struct ws ws;
    struct buf sent; /* frames, one a line */
    bool behind;
    bool full; /* one more frame does not fit */
    int close_code;
    struct call *calls[CALLS_MAX]; /* dispatches in order */
    int call_count;
    struct store_op *reads[READS_MAX]; /* reads in order; NULL: answered */
    int read_count;
} world;

bool __wrap_ws_wanted(const struct http_request *req);
struct ws *__wrap_ws_accept(struct http_request *req, const struct ws_handler *handler,
                            const struct ws_limits *limits, void *user);
bool __wrap_ws_send(struct ws *ws, struct str text);
bool __wrap_ws_is_behind(struct ws *ws, size_t bytes);
bool __wrap_ws_takes(struct ws *ws, size_t bytes);
void __wrap_ws_close(struct ws *ws, int code, const char *reason);
void __wrap_sched_send(struct sched_loop *loop, struct store_op *op);
void __wrap_api_dispatch_entry(struct call *call);

bool __wrap_ws_wanted(const struct http_request *req)
{
    return true;
}

struct ws *__wrap_ws_accept(struct http_request *req, const struct ws_handler *handler,
                            const struct ws_limits *limits, void *user)
{
    world.ws = (struct ws){.handler = handler, .user = user};
    return &world.ws;
}

bool __wrap_ws_send(struct ws *ws, struct str text)
{
    if (world.close_code)
        return false;
    buf_str(&world.sent, text);
    buf_char(&world.sent, '\n');
    return true;
}

bool __wrap_ws_is_behind(struct ws *ws, size_t bytes)
{
    return world.behind;
}

bool __wrap_ws_takes(struct ws *ws, size_t bytes)
{
    return !world.full;
}

void __wrap_ws_close(struct ws *ws, int code, const char *reason)
{
    if (!world.close_code)
        world.close_code = code;
}

void __wrap_sched_send(struct sched_loop *loop, struct store_op *op)
{
    assert_true(world.read_count < READS_MAX);
    assert_int_equal(op->verb, STORE_JOB_GET);
    world.reads[world.read_count++] = op;
}

void __wrap_api_dispatch_entry(struct call *call)
{
    assert_true(world.call_count < CALLS_MAX);
    world.calls[world.call_count++] = call;
    if (call->begun)
        call->begun(call, (uint64_t)(JOB + world.call_count - 1));
}

/* --- steps --- */

struct fixture {
    struct server *server;
    struct settings settings;
    struct worker *worker;
    struct token token;
};

static int setup(void **state)
{
    struct fixture *own = calloc(1, sizeof *own);

    memset(&world, 0, sizeof world);
    own->settings.ws.queue_bytes_max = 8 << 20;
    own->settings.http.net.write_queue_bytes_max = 8 << 20;
    own->settings.http.body_bytes_max = 1 << 20;
    own->server = hand_server_new(&own->settings);
    own->server->limits.bodies_bytes_max = 1 << 20;
    own->worker = &own->server->workers[0];
    own->worker->submit_sockets = submit_sockets_new(own->worker);
    *state = own;
    return 0;
}

static void hang_up(void)
{
    if (world.ws.handler)
        world.ws.handler->closed(&world.ws, 1006);
    world.ws.handler = NULL;
}

static int teardown(void **state)
{
    struct fixture *own = *state;

    hang_up();
    assert_false(waiters_wait(own->server)); /* a closed socket leaves no watch */
    submit_sockets_free(own->worker->submit_sockets);
    hand_server_free(own->server);
    buf_free(&world.sent);
    free(own);
    return 0;
}

/* Everything sent since the last check. */
static void assert_sent(const char *want)
{
    struct buf text = {0};

    buf_str(&text, STR(""));
    buf_str(&text, buf_view(&world.sent));
    buf_clear(&world.sent);
    if (!str_is(buf_view(&text), want))
        fail_msg("sent:\n" STR_FMT "wanted:\n%s", STR_ARG(buf_view(&text)), want);
    buf_free(&text);
}

static void open_as(struct fixture *own, const struct token *token)
{
    static const struct route route = {.scope = SCOPE_SUBMIT};
    static struct http_request req;
    struct call call = {.req = &req, .worker = own->worker, .route = &route, .token = token};

    submit_socket_accept(&call);
    buf_clear(&world.sent); /* drops the welcome */
}

static void open_socket(struct fixture *own)
{
    open_as(own, NULL);
}

static void receive(const char *text)
{
    world.ws.handler->message(&world.ws, str_of(text));
}

static void receive_submit(int id)
{
    char text[64];

    snprintf(text, sizeof text, "{\"msg\":\"submit\",\"id\":%d,\"job\":{}}", id);
    receive(text);
}

/* The dispatch of a submission answers. job 0: it is refused. */
static void dispatched(int index, uint64_t job)
{
    struct call *call = world.calls[index];
    struct buf body = {0};

    if (!job) {
        call_error(call, ERR_ALL_FULL, "", "Full.");
        return;
    }
    call->job = job;
    buf_str(&body, STR("{\"n\":1}"));
    call_json(call, 200, &body);
}

static void ended(struct fixture *own, uint64_t job)
{
    waiters_wake(own->server, NULL, job, NULL);
    hand_server_run(own->server, 0);
}

/* The same, with the whole record. */
static void ended_whole(struct fixture *own, uint64_t job)
{
    struct store_record end = {.head = {.id = job, .state = JOB_DONE, .attempt = 1},
                               .result = STR("7")};

    waiters_wake(own->server, NULL, job, &end);
    hand_server_run(own->server, 0);
}

/* The store answers a read. */
static void is_read(int index, enum err err, enum job_state state)
{
    struct store_op *op = world.reads[index];

    assert_true(index < world.read_count && op);
    world.reads[index] = NULL;
    op->err = err;
    op->head = (struct store_head){.id = op->job, .state = state, .attempt = 1};
    op->record = (struct store_record){
        .head = op->head, .spec = STR("{\"submitted_by\":\"ci\"}"), .result = STR("7")};
    op->done(op);
}

static void tick(struct fixture *own)
{
    submit_sockets_tick(own->worker->submit_sockets);
}

#define PLACED(id) "{\"msg\":\"placed\",\"id\":" #id ",\"n\":1}\n"
#define ENDED(id, job)                                                                             \
    "{\"msg\":\"ended\",\"id\":" #id ",\"job_id\":\"" job                                          \
    "\",\"state\":\"DONE\",\"node_id\":null,\"attempt_id\":1,\"reason\":null,"                     \
    "\"created_ms\":0,\"ended_ms\":0,\"result\":7}\n"
#define FULL                                                                                       \
    "\"retry_after_s\":1,\"type\":\"about:blank\",\"title\":\"No candidate took the work\","       \
    "\"status\":503,\"error\":\"ALL_CANDIDATES_FULL_OR_FAILED\",\"detail\":\"Full.\"}\n"

/* --- rows and cases --- */

static void all_answers_that_credit_allows_have_room(void **state)
{
    static const struct {
        int64_t queue_bytes_max, credit;
    } rows[] = {{1, 1},
                {4095, 1},
                {65536, 16}, /* the smallest value allowed */
                {1 << 20, 256},
                {(int64_t)8 << 20, SUBMIT_CREDIT_MAX},
                {INT64_MAX, SUBMIT_CREDIT_MAX}};

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(submit_socket_credit(rows[i].queue_bytes_max), rows[i].credit);
}

static void an_end_is_told_behind_its_answer(void **state)
{
    open_socket(*state);
    receive_submit(5);
    ended(*state, JOB); /* before the dispatch answered */
    assert_sent("");
    tick(*state);
    assert_int_equal(world.read_count, 0);
    dispatched(0, JOB);
    assert_sent(PLACED(5));
    assert_int_equal(world.read_count, 1);
    is_read(0, ERR_OK, JOB_DONE);
    assert_sent(ENDED(5, "j00000000000nw"));
    ended(*state, JOB); /* reported again */
    tick(*state);
    assert_sent("");
}

/* An end whose record is known needs no read. It is still not sent before the answer to its
 * submission, to a reader that is behind, or before an end that waits. */
static void an_end_that_is_known_is_not_read(void **state)
{
    open_socket(*state);
    for (int i = 0; i < 5; i++)
        receive_submit(i);
    for (int i = 0; i < 4; i++)
        dispatched(i, (uint64_t)(JOB + i));
    buf_clear(&world.sent);
    ended_whole(*state, JOB);
    assert_sent(ENDED(0, "j00000000000nw"));
    world.behind = true;
    ended_whole(*state, JOB + 1);
    assert_sent("");
    world.behind = false;
    ended_whole(*state, JOB + 2);
    assert_sent("");
    assert_int_equal(world.read_count, 2);
    ended_whole(*state, JOB + 3);
    assert_sent(ENDED(3, "j00000000000nz"));
    is_read(0, ERR_OK, JOB_DONE);
    is_read(1, ERR_OK, JOB_DONE);
    assert_sent(ENDED(1, "j00000000000nx") ENDED(2, "j00000000000ny"));
    ended_whole(*state, JOB + 4);
    assert_sent("");
    dispatched(4, JOB + 4);
    is_read(2, ERR_OK, JOB_DONE);
    assert_sent(PLACED(4) ENDED(4, "j00000000000p0"));
}

static void of_a_refused_job_no_end_is_told(void **state)
{
    open_socket(*state);
    receive_submit(5);
    ended(*state, JOB); /* abandoned */
    dispatched(0, 0);
    assert_sent("{\"msg\":\"refused\",\"id\":5," FULL);
    receive_submit(6);
    dispatched(1, 0);
    assert_false(waiters_wait(((struct fixture *)*state)->server)); /* no longer watched either */
    ended(*state, JOB + 1);
    assert_int_equal(world.read_count, 0);
}

static void so_many_are_followed_and_no_more(void **state)
{
    char text[96], id[JOB_ID_TEXT + 1];

    open_socket(*state);
    for (uint64_t i = 0; i < SUBMIT_FOLLOWED_MAX; i++) {
        job_id_text(2 * JOB + i, id);
        snprintf(text, sizeof text, "{\"msg\":\"attach\",\"job_id\":\"%s\"}", id);
        receive(text);
        is_read(0, ERR_OK, JOB_ACKED);
        world.read_count = 0;
    }
    buf_clear(&world.sent);
    receive("{\"msg\":\"attach\",\"job_id\":\"j00000000000aa\"}");
    receive_submit(1);
    assert_int_equal(world.read_count + world.call_count, 0);
    assert_non_null(memmem(world.sent.at, world.sent.len, "SCHEDULER_BUSY", 14));
    receive("{\"msg\":\"submit\",\"job\":{},\"follow\":false}");
    assert_int_equal(world.call_count, 1);
    dispatched(0, 1);
    ended(*state, 2 * JOB); /* one job ends, which makes room for another */
    is_read(0, ERR_OK, JOB_DONE);
    receive_submit(2);
    assert_int_equal(world.call_count, 2);
    dispatched(1, 0);
}

static void who_left_is_told_nothing(void **state)
{
    open_socket(*state);
    receive_submit(1);
    receive_submit(2);
    receive("{\"msg\":\"attach\",\"job_id\":\"j00000000000xx\"}");
    dispatched(0, JOB);
    ended(*state, JOB);
    buf_clear(&world.sent);
    hang_up();
    dispatched(1, JOB + 1);
    is_read(0, ERR_OK, JOB_DISPATCHED);
    is_read(1, ERR_OK, JOB_DONE);
    assert_sent("");
}

static void all_the_credit_and_no_more(void **state)
{
    open_socket(*state);
    for (int i = 0; i < SUBMIT_CREDIT_MAX; i++)
        receive_submit(i);
    assert_int_equal(world.call_count, SUBMIT_CREDIT_MAX);
    dispatched(0, JOB); /* an answer gives back one credit */
    receive_submit(0);
    assert_int_equal(world.close_code, 0);
    buf_clear(&world.sent);
    receive("x");
    assert_int_equal(world.close_code, SUBMIT_CLOSE_CREDIT);
    assert_int_equal(world.call_count, SUBMIT_CREDIT_MAX + 1);
    hang_up();
    for (int i = 1; i <= SUBMIT_CREDIT_MAX; i++)
        dispatched(i, 0);
}

/* Nothing is sent to a client that does not read: answers wait, for which it has used credit, and
 * ends are not even read. */
static void a_reader_that_is_behind_gets_nothing_more(void **state)
{
    open_socket(*state);
    for (int i = 0; i < SUBMIT_CREDIT_MAX; i++)
        receive_submit(i);
    dispatched(0, JOB);
    assert_sent(PLACED(0));
    world.behind = true;
    ended(*state, JOB);
    dispatched(1, 0);
    dispatched(2, 0);
    tick(*state);
    assert_sent("");
    assert_int_equal(world.read_count, 0);
    receive("{}"); /* uses the credit that the first answer gave back */
    receive("{}"); /* no credit is left */
    assert_int_equal(world.close_code, SUBMIT_CLOSE_CREDIT);
    world.close_code = 0;
    world.behind = false;
    world.ws.handler->written(&world.ws);
    assert_sent("{\"msg\":\"refused\",\"id\":1,\"credit\":0," FULL
                "{\"msg\":\"refused\",\"id\":2,\"credit\":0," FULL
                "{\"msg\":\"refused\",\"id\":null,\"credit\":0,\"type\":\"about:blank\","
                "\"title\":\"A field is missing or has a wrong value\",\"status\":400,"
                "\"error\":\"BAD_FIELD\",\"detail\":\"msg must be submit or attach.\","
                "\"field\":\"msg\"}\n"
                "{\"msg\":\"credit\",\"n\":3}\n");
    is_read(0, ERR_OK, JOB_DONE);
    assert_sent(ENDED(0, "j00000000000nw"));
    for (int i = 3; i < SUBMIT_CREDIT_MAX; i++)
        dispatched(i, 0);
    buf_clear(&world.sent);
}

/* An end that was read meanwhile is read again. */
static void an_end_that_was_read_too_late_is_not_lost(void **state)
{
    open_socket(*state);
    receive_submit(1);
    dispatched(0, JOB);
    ended(*state, JOB);
    world.behind = true;
    buf_clear(&world.sent);
    is_read(0, ERR_OK, JOB_DONE);
    tick(*state);
    assert_int_equal(world.read_count, 1);
    world.behind = false;
    world.ws.handler->written(&world.ws);
    is_read(1, ERR_OK, JOB_DONE);
    assert_sent(ENDED(1, "j00000000000nw"));
}

static void what_the_store_could_not_say_is_asked_again(void **state)
{
    open_socket(*state);
    receive_submit(1);
    dispatched(0, JOB);
    buf_clear(&world.sent);
    ended(*state, JOB);
    is_read(0, ERR_STORE_DOWN, JOB_NEW);
    tick(*state);
    is_read(1, ERR_UNKNOWN, JOB_NEW);
    tick(*state);
    is_read(2, ERR_OK, JOB_DONE);
    assert_sent(ENDED(1, "j00000000000nw"));
    receive_submit(2);
    dispatched(1, JOB + 1);
    buf_clear(&world.sent);
    ended(*state, JOB + 1);
    is_read(3, ERR_NOT_FOUND, JOB_NEW); /* the job was removed after its retention */
    assert_sent("{\"msg\":\"ended\",\"id\":2,\"job_id\":\"j00000000000nx\",\"state\":null,"
                "\"node_id\":null,\"attempt_id\":0,\"reason\":\"NOT_FOUND\",\"created_ms\":0,"
                "\"ended_ms\":0,\"result\":null}\n");
}

/* A long result waits for a client that has not read everything before it. */
static void an_end_without_room_waits(void **state)
{
    open_socket(*state);
    receive_submit(1);
    dispatched(0, JOB);
    buf_clear(&world.sent);
    ended(*state, JOB);
    world.full = true;
    is_read(0, ERR_OK, JOB_DONE);
    assert_sent("");
    assert_int_equal(world.close_code, 0);
    world.full = false;
    tick(*state);
    is_read(1, ERR_OK, JOB_DONE);
    assert_sent(ENDED(1, "j00000000000nw"));
}

/* The job ends between the registration and the read of an attach, or after it. */
static void an_attached_job_is_told_once_whenever_it_ends(void **state)
{
    static const char attach[] = "{\"msg\":\"attach\",\"id\":1,\"job_id\":\"j00000000000nw\"}";
    static const char attached[] =
        "{\"msg\":\"attached\",\"id\":1,\"job_id\":\"j00000000000nw\",\"state\":\"DISPATCHED\"}\n";

    open_socket(*state);
    receive(attach);
    ended(*state, JOB);
    is_read(0, ERR_OK, JOB_DISPATCHED); /* read a moment before the end */
    assert_sent(attached);
    is_read(1, ERR_OK, JOB_DONE);
    assert_sent(ENDED(1, "j00000000000nw"));
    receive(attach);
    is_read(2, ERR_OK, JOB_DISPATCHED);
    receive(attach);
    ended(*state, JOB);
    is_read(3, ERR_OK, JOB_DONE);
    buf_clear(&world.sent);
    receive(attach);
    ended(*state, JOB);
    is_read(4, ERR_OK, JOB_DONE);
    assert_sent(
        "{\"msg\":\"attached\",\"id\":1,\"job_id\":\"j00000000000nw\",\"state\":\"DONE\"}\n" ENDED(
            1, "j00000000000nw"));
    receive(attach);
    is_read(5, ERR_STORE_DOWN, JOB_NEW);
    buf_clear(&world.sent);
    ended(*state, JOB); /* the attach was refused */
    tick(*state);
    assert_int_equal(world.read_count, 6);
    assert_sent("");
}

/* Two submissions with one key are about one job: the store may answer the second before the
 * first. */
static void two_with_one_key_are_told_one_end(void **state)
{
    open_socket(*state);
    receive_submit(1);
    receive_submit(2);
    dispatched(1, JOB); /* the second is answered first */
    dispatched(0, JOB);
    assert_sent(PLACED(2) PLACED(1));
    ended(*state, JOB);
    is_read(0, ERR_OK, JOB_DONE);
    assert_sent(ENDED(1, "j00000000000nw"));
    receive_submit(3); /* again, after the job has ended */
    dispatched(2, JOB);
    is_read(1, ERR_OK, JOB_DONE);
    assert_sent(PLACED(3) ENDED(3, "j00000000000nw"));
    /* The first is refused after all; the second, which was accepted, still gets the end. */
    receive_submit(4);
    receive_submit(5);
    dispatched(4, JOB + 3);
    dispatched(3, 0);
    buf_clear(&world.sent);
    ended(*state, JOB + 3);
    is_read(2, ERR_OK, JOB_DONE);
    assert_sent(ENDED(4, "j00000000000nz"));
}

/* A client attaches to an id that it guessed, before the job exists. */
static void one_attached_before_it_was_there(void **state)
{
    open_socket(*state);
    receive("{\"msg\":\"attach\",\"id\":1,\"job_id\":\"j00000000000nw\"}");
    receive_submit(2);
    is_read(0, ERR_NOT_FOUND, JOB_NEW);
    buf_clear(&world.sent);
    dispatched(0, JOB);
    is_read(1, ERR_OK, JOB_ACKED);
    ended(*state, JOB);
    is_read(2, ERR_OK, JOB_DONE);
    assert_sent(PLACED(2) ENDED(2, "j00000000000nw"));
    receive("{\"msg\":\"attach\",\"id\":3,\"job_id\":\"j00000000000nx\"}");
    receive_submit(4);
    dispatched(1, JOB + 1);
    is_read(3, ERR_NOT_FOUND, JOB_NEW); /* read a moment before the job existed */
    ended(*state, JOB + 1);
    buf_clear(&world.sent);
    is_read(4, ERR_OK, JOB_DONE);
    assert_sent(ENDED(3, "j00000000000nx"));
}

static void a_server_that_goes_answers_first(void **state)
{
    struct fixture *own = *state;

    open_socket(own);
    receive_submit(1);
    receive_submit(2);
    submit_sockets_drain(own->worker->submit_sockets);
    assert_int_equal(world.close_code, 0);
    receive_submit(3);
    assert_sent("{\"msg\":\"refused\",\"id\":3,\"retry_after_s\":1,\"type\":\"about:blank\","
                "\"title\":\"Too much is in flight\",\"status\":503,\"error\":\"SCHEDULER_BUSY\","
                "\"detail\":\"The server is about to stop.\"}\n");
    dispatched(0, JOB);
    assert_int_equal(world.close_code, 0);
    world.behind = true;
    dispatched(1, JOB + 1);
    assert_int_equal(world.close_code, 0); /* the answer has not left yet */
    world.behind = false;
    world.ws.handler->written(&world.ws);
    assert_int_equal(world.close_code, 1012);
    hang_up();
    own->server->draining = true; /* a client that comes now */
    world.close_code = 0;
    open_socket(own);
    assert_int_equal(world.close_code, 1012);
}

static void its_token_must_be_good_each_time(void **state)
{
    struct fixture *own = *state;
    struct worker *worker = own->worker;
    struct token token = {.name = STR("ci"),
                          .digest = "a",
                          .scopes = 1u << SCOPE_SUBMIT,
                          .expires_ms = worker->loop.wall_ms + 1000};

    worker->auth->tokens = (struct tokens){.at = &token, .count = 1};
    open_as(own, &token);
    submit_sockets_recheck(worker->submit_sockets);
    assert_int_equal(world.close_code, 0);
    token.quota.waiting = 3; /* after a reload */
    submit_sockets_recheck(worker->submit_sockets);
    receive_submit(1);
    assert_int_equal(world.calls[0]->token->quota.waiting, 3);
    worker->loop.wall_ms += 1000;
    receive_submit(2);
    assert_int_equal(world.close_code, SUBMIT_CLOSE_TOKEN);
    assert_int_equal(world.call_count, 1);
    dispatched(0, 0);
    hang_up();
    worker->loop.wall_ms -= 1000;
    world.close_code = 0;
    open_as(own, &token);
    worker->auth->tokens = (struct tokens){0};
    submit_sockets_recheck(worker->submit_sockets);
    assert_int_equal(world.close_code, SUBMIT_CLOSE_TOKEN);
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_answers_that_credit_allows_have_room),
        ROW(an_end_is_told_behind_its_answer),
        ROW(an_end_that_is_known_is_not_read),
        ROW(of_a_refused_job_no_end_is_told),
        ROW(so_many_are_followed_and_no_more),
        ROW(who_left_is_told_nothing),
        ROW(all_the_credit_and_no_more),
        ROW(a_reader_that_is_behind_gets_nothing_more),
        ROW(an_end_that_was_read_too_late_is_not_lost),
        ROW(what_the_store_could_not_say_is_asked_again),
        ROW(an_end_without_room_waits),
        ROW(an_attached_job_is_told_once_whenever_it_ends),
        ROW(two_with_one_key_are_told_one_end),
        ROW(one_attached_before_it_was_there),
        ROW(a_server_that_goes_answers_first),
        ROW(its_token_must_be_good_each_time),
    };

    return cmocka_run_group_tests_name("server/submit_socket", tests, NULL, NULL);
}
