/* Notes stay until they are answered, in order, over any number of connections. */
#include "agent/outbox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "unit.h"

enum { SENT_MAX = 4096 };

struct desk {
    struct loop loop;
    struct outbox *outbox;
    char path[64];
    bool cut; /* the connection is closed: nothing can be sent */
    int sent;
    uint64_t ids[SENT_MAX]; /* of the messages sent, in order */
    struct buf last;        /* the last message */
    int settled;
    enum outbox_verdict verdict;
    char job[OUTBOX_JOB_MAX + 1]; /* of the note that was settled last */
    void *user;
};

static bool on_send(struct outbox *outbox, struct str text)
{
    struct desk *desk = outbox->user;
    struct arena arena = {0};
    const struct json *root;
    int64_t id;

    if (desk->cut)
        return false;
    assert_int_equal(json_parse(text, &arena, &root, NULL), ERR_OK);
    assert_true(json_int(json_get(root, "id"), &id));
    assert_true(desk->sent < SENT_MAX);
    desk->ids[desk->sent++] = (uint64_t)id;
    buf_clear(&desk->last);
    buf_str(&desk->last, text);
    arena_free(&arena);
    return true;
}

static void on_settled(struct outbox_note *note, enum outbox_verdict verdict)
{
    struct desk *desk = note->outbox->user;

    desk->settled++;
    desk->verdict = verdict;
    desk->user = note->user;
    str_copy(str_of(note->job_id), desk->job, sizeof desk->job);
}

static const struct outbox_handler handler = {.send = on_send, .settled = on_settled};

static void desk_open(struct desk *desk)
{
    assert_int_equal(loop_init(&desk->loop, 0), ERR_OK);
    desk->sent = desk->settled = 0;
    desk->outbox = outbox_new(&desk->loop, &handler, desk);
    outbox_take_old(desk->outbox, desk->path);
}

static void desk_close(struct desk *desk)
{
    outbox_free(desk->outbox);
    desk->outbox = NULL;
    loop_done(&desk->loop);
}

static int setup(void **state)
{
    struct desk *desk = calloc(1, sizeof *desk);

    strcpy(desk->path, "/tmp/berth-outbox-XXXXXX");
    if (!mkdtemp(desk->path))
        return -1;
    strcat(desk->path, "/outbox");
    desk_open(desk);
    *state = desk;
    return 0;
}

static int teardown(void **state)
{
    struct desk *desk = *state;

    desk_close(desk);
    unlink(desk->path);
    *strrchr(desk->path, '/') = 0;
    rmdir(desk->path); /* fails unless it is empty */
    if (access(desk->path, F_OK) == 0)
        return -1;
    buf_free(&desk->last);
    free(desk);
    return 0;
}

static struct outbox_note *put(struct desk *desk, enum outbox_kind kind, const char *job)
{
    return outbox_put(
        desk->outbox, kind, str_of(job), 1, kind == OUTBOX_FAIL ? STR("EXIT_3") : STR_NONE,
        kind == OUTBOX_ACK ? STR_NONE : STR("{\"exit_code\":3}"), kind == OUTBOX_FAIL, desk);
}

static bool reply(struct desk *desk, uint64_t id, const char *rest)
{
    struct arena arena = {0};
    struct str text =
        arena_fmt(&arena, "{\"msg\":\"reply\",\"re\":%llu,%s}", (unsigned long long)id, rest);
    const struct json *root;
    bool taken;

    assert_int_equal(json_parse(text, &arena, &root, NULL), ERR_OK);
    taken = outbox_reply(desk->outbox, root);
    arena_free(&arena);
    return taken;
}

static void test_messages(void **state)
{
    struct desk *desk = *state;
    static const struct {
        enum outbox_kind kind;
        const char *text;
    } rows[] = {
        {OUTBOX_ACK, "{\"id\":1,\"msg\":\"ack\",\"job_id\":\"j1\",\"attempt_id\":1}"},
        {OUTBOX_DONE, "{\"id\":2,\"msg\":\"done\",\"job_id\":\"j1\",\"attempt_id\":1,"
                      "\"status\":\"ok\",\"result\":{\"exit_code\":3}}"},
        {OUTBOX_FAIL, "{\"id\":3,\"msg\":\"fail\",\"job_id\":\"j1\",\"attempt_id\":1,"
                      "\"reason\":\"EXIT_3\",\"command\":true,\"result\":{\"exit_code\":3}}"},
    };

    outbox_up(desk->outbox);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        put(desk, rows[i].kind, "j1");
        assert_str(buf_view(&desk->last), rows[i].text);
    }
}

static void test_answers(void **state)
{
    struct desk *desk = *state;
    static const struct {
        const char *reply;
        int settled;
        enum outbox_verdict verdict;
    } rows[] = {
        {"\"ok\":true", 1, OUTBOX_ACCEPTED},
        {"\"ok\":true,\"duplicate\":true", 1, OUTBOX_DUPLICATE},
        {"\"status\":409,\"error\":\"STALE_ATTEMPT\",\"detail\":\"x\"", 1, OUTBOX_REFUSED},
        {"\"status\":404", 1, OUTBOX_REFUSED},
        {"\"status\":503", 0, 0},
        {"\"status\":429", 0, 0},
        {"\"status\":500", 0, 0},
        {"\"status\":401", 0, 0},
        {"\"ok\":false", 0, 0},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct outbox_note *note;

        outbox_up(desk->outbox);
        desk->settled = 0;
        note = put(desk, OUTBOX_ACK, "j1");
        assert_true(reply(desk, note->seq, rows[i].reply));
        assert_int_equal(desk->settled, rows[i].settled);
        if (rows[i].settled) {
            assert_int_equal(desk->verdict, rows[i].verdict);
            assert_ptr_equal(desk->user, desk);
        } else {
            outbox_drop(note);
        }
        assert_int_equal(desk->outbox->count, 0);
        outbox_down(desk->outbox);
    }
}

/* A reply with an unknown id, one for a note that was not sent on this connection, or a second
 * one. */
static void test_strange_replies(void **state)
{
    struct desk *desk = *state;
    struct outbox_note *note = put(desk, OUTBOX_ACK, "j1");
    uint64_t seq = note->seq;

    assert_false(reply(desk, seq, "\"ok\":true"));
    outbox_up(desk->outbox);
    assert_false(reply(desk, seq + 1, "\"ok\":true"));
    assert_false(reply(desk, 0, "\"ok\":true"));
    assert_int_equal(desk->settled, 0);
    assert_true(reply(desk, seq, "\"ok\":true"));
    assert_false(reply(desk, seq, "\"ok\":true"));
    assert_int_equal(desk->settled, 1);
}

/* After "not now" a note is sent again by itself, and nothing else is sent meanwhile. */
static void test_not_now(void **state)
{
    struct desk *desk = *state;
    struct outbox_note *note;

    outbox_up(desk->outbox);
    note = put(desk, OUTBOX_DONE, "j1");
    assert_int_equal(outbox_pause_ms(desk->outbox), OUTBOX_PAUSE_MIN_MS);
    assert_true(reply(desk, note->seq, "\"status\":503"));
    assert_int_equal(outbox_pause_ms(desk->outbox), 2 * OUTBOX_PAUSE_MIN_MS);
    put(desk, OUTBOX_DONE, "j2");
    assert_int_equal(desk->sent, 1);
    await(&desk->loop, desk->sent == 3);
    assert_int_equal(desk->ids[1], note->seq);
    assert_int_equal(outbox_pause_ms(desk->outbox), 2 * OUTBOX_PAUSE_MIN_MS);
    assert_true(reply(desk, note->seq, "\"ok\":true"));
    assert_string_equal(desk->job, "j1");
    /* The server accepts notes again. */
    assert_int_equal(outbox_pause_ms(desk->outbox), OUTBOX_PAUSE_MIN_MS);
}

static void test_reconnect(void **state)
{
    struct desk *desk = *state;
    struct outbox_note *notes[5];

    for (int i = 0; i < 3; i++)
        notes[i] = put(desk, OUTBOX_DONE, "j1");
    assert_int_equal(desk->sent, 0);
    outbox_up(desk->outbox);
    notes[3] = put(desk, OUTBOX_ACK, "j2");
    assert_int_equal(desk->sent, 4);
    assert_true(reply(desk, notes[1]->seq, "\"ok\":true"));
    outbox_down(desk->outbox);
    notes[4] = put(desk, OUTBOX_FAIL, "j3");
    desk->sent = 0;
    outbox_up(desk->outbox);
    assert_int_equal(desk->sent, 4);
    assert_int_equal(desk->ids[0], notes[0]->seq);
    assert_int_equal(desk->ids[1], notes[2]->seq);
    assert_int_equal(desk->ids[2], notes[3]->seq);
    assert_int_equal(desk->ids[3], notes[4]->seq);
}

/* The connection breaks in the middle of a burst. */
static void test_cut_while_sending(void **state)
{
    struct desk *desk = *state;
    struct outbox_note *note = put(desk, OUTBOX_DONE, "j1");

    desk->cut = true;
    outbox_up(desk->outbox);
    assert_false(reply(desk, note->seq, "\"ok\":true"));
    outbox_down(desk->outbox);
    desk->cut = false;
    outbox_up(desk->outbox);
    assert_int_equal(desk->sent, 1);
}

static void test_window(void **state)
{
    struct desk *desk = *state;

    for (int i = 0; i < OUTBOX_WINDOW + 50; i++)
        put(desk, OUTBOX_ACK, "j1");
    outbox_up(desk->outbox);
    assert_int_equal(desk->sent, OUTBOX_WINDOW);
    for (int i = 0; i < 50; i++) {
        assert_true(reply(desk, desk->ids[i], "\"ok\":true"));
        assert_int_equal(desk->sent, OUTBOX_WINDOW + i + 1);
    }
    for (int i = 1; i < desk->sent; i++)
        assert_true(desk->ids[i] > desk->ids[i - 1]);
}

/* A result that the server refuses is left out; the outcome itself gets through. */
static void test_result_refused(void **state)
{
    struct desk *desk = *state;
    struct outbox_note *note;

    outbox_up(desk->outbox);
    note = put(desk, OUTBOX_DONE, "j1");
    assert_true(reply(desk, note->seq, "\"status\":413,\"detail\":\"too large\""));
    assert_int_equal(desk->settled, 0);
    assert_int_equal(desk->sent, 2);
    assert_null(memmem(desk->last.at, desk->last.len, "result", 6));
    assert_true(reply(desk, note->seq, "\"status\":413"));
    assert_int_equal(desk->settled, 1);
    assert_int_equal(desk->verdict, OUTBOX_REFUSED);
}

/* --- what an earlier version left --- */

#define OLD(seq, job)                                                                              \
    "{\"seq\":" seq ",\"msg\":\"done\",\"job_id\":\"" job                                          \
    "\",\"attempt_id\":1,\"status\":\"ok\",\"result\":{\"a\":1}}\n"

static void old_file(struct desk *desk, const char *text)
{
    FILE *file;

    desk_close(desk);
    file = fopen(desk->path, "w");
    fputs(text, file);
    fclose(file);
    desk_open(desk);
}

/* Old notes are sent first, in order, and the file stays until all of them were answered. */
static void test_old_file(void **state)
{
    struct desk *desk = *state;
    struct outbox_note *note;

    old_file(desk, OLD("3", "one") OLD("4", "two") "{\"end\":3}\n" OLD("5", "three"));
    note = put(desk, OUTBOX_FAIL, "new");
    assert_int_equal(desk->outbox->count, 3);
    assert_true(note->seq > 5); /* no number is used twice */
    outbox_up(desk->outbox);
    assert_int_equal(desk->sent, 3);
    assert_int_equal(desk->ids[0], 4);
    assert_int_equal(desk->ids[1], 5);
    assert_true(reply(desk, 4, "\"ok\":true"));
    assert_string_equal(desk->job, "two");
    assert_int_equal(access(desk->path, F_OK), 0);
    desk_close(desk); /* the next outbox starts with the same */
    desk_open(desk);
    assert_int_equal(desk->outbox->count, 2);
    outbox_up(desk->outbox);
    assert_has(buf_view(&desk->last), "\"result\":{\"a\":1}");
    assert_true(reply(desk, 4, "\"ok\":true,\"duplicate\":true"));
    assert_true(reply(desk, 5, "\"status\":409"));
    assert_int_equal(access(desk->path, F_OK), -1);
}

/* What kill -9 leaves: complete lines count, a partial one does not. */
static void test_torn_old_file(void **state)
{
    static const char *const tails[] = {"",
                                        "{\"seq\":5,\"msg\":\"done\",\"job_id\":\"j5\",\"at",
                                        "{\"end\":4}",
                                        "\n",
                                        "{}\n",
                                        "nonsense\n",
                                        "{\"seq\":4,\"msg\":\"done\",\"job_id\":\"j4\","
                                        "\"attempt_id\":1}\n",
                                        "{\"seq\":9,\"msg\":\"ack\",\"job_id\":\"j4\","
                                        "\"attempt_id\":1}\n"};
    struct desk *desk = *state;
    char text[512];

    for (size_t i = 0; i < COUNT_OF(tails); i++) {
        snprintf(text, sizeof text, "%s%s", OLD("4", "j4"), tails[i]);
        old_file(desk, text);
        if (desk->outbox->count != 1)
            fail_msg("row %zu: %zu notes", i, desk->outbox->count);
    }
    old_file(desk, OLD("4", "j4") "{\"end\":4}\n"); /* nothing left to send */
    assert_int_equal(desk->outbox->count, 0);
    assert_int_equal(access(desk->path, F_OK), -1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_messages),       TEST(test_answers),   TEST(test_strange_replies),
        TEST(test_not_now),        TEST(test_reconnect), TEST(test_cut_while_sending),
        TEST(test_window),         TEST(test_old_file),  TEST(test_torn_old_file),
        TEST(test_result_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
