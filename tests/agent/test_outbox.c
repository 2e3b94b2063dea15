/* Notes stay until they are answered, in order, across connections and restarts. */
#include "agent/outbox.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit.h"

enum { SENT_MAX = 4096 };

struct desk {
    struct loop loop;
    struct outbox *outbox;
    char path[64];
    bool cut; /* the connection is gone: nothing can be sent */
    int sent;
    uint64_t ids[SENT_MAX]; /* of what was sent, in order */
    struct buf last;        /* the last message */
    int settled;
    enum outbox_verdict verdict;
    char job[OUTBOX_JOB_MAX + 1]; /* of the last that was settled */
    void *user;
};

static bool on_send(struct outbox *outbox, struct str text)
{
    struct desk *desk = outbox_user(outbox);
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
    struct desk *desk = outbox_user(note->outbox);

    desk->settled++;
    desk->verdict = verdict;
    desk->user = note->user;
    str_copy(str_of(note->job_id), desk->job, sizeof desk->job);
}

static const struct outbox_handler handler = {.send = on_send, .settled = on_settled};

static void desk_open(struct desk *desk)
{
    struct problem why;

    assert_int_equal(loop_init(&desk->loop, 0), ERR_OK);
    desk->sent = desk->settled = 0;
    if (outbox_new(&desk->loop, desk->path, &handler, desk, &desk->outbox, &why) != ERR_OK)
        fail_msg("%s", why.detail);
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
    rmdir(desk->path); /* fails if something was left there */
    if (access(desk->path, F_OK) == 0)
        return -1;
    buf_free(&desk->last);
    free(desk);
    return 0;
}

static struct outbox_note *put(struct desk *desk, enum outbox_kind kind, const char *job)
{
    return outbox_put(desk->outbox, kind, str_of(job), 1,
                      kind == OUTBOX_FAIL ? STR("EXIT_3") : STR_NONE,
                      kind == OUTBOX_ACK ? STR_NONE : STR("{\"exit_code\":3}"), kind == OUTBOX_FAIL,
                      kind != OUTBOX_ACK, desk);
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

static int64_t file_size(const struct desk *desk)
{
    struct stat st;

    return stat(desk->path, &st) == 0 ? (int64_t)st.st_size : -1;
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
        assert_int_equal(outbox_count(desk->outbox), 0);
        outbox_down(desk->outbox);
    }
}

/* A reply to nobody, to a note that was not sent on this connection, or a second one. */
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

/* "Not now": it comes again by itself, and nothing else is sent meanwhile. */
static void test_not_now(void **state)
{
    struct desk *desk = *state;
    struct outbox_note *note;

    outbox_up(desk->outbox);
    note = put(desk, OUTBOX_DONE, "j1");
    assert_true(reply(desk, note->seq, "\"status\":503"));
    put(desk, OUTBOX_DONE, "j2");
    assert_int_equal(desk->sent, 1);
    await(&desk->loop, desk->sent == 3);
    assert_int_equal(desk->ids[1], note->seq);
    assert_true(reply(desk, note->seq, "\"ok\":true"));
    assert_string_equal(desk->job, "j1");
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

/* A connection that breaks in the middle of the burst. */
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

/* A result that the server will not have is left out; the outcome itself gets through. */
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

/* --- across restarts --- */

static void test_restart(void **state)
{
    struct desk *desk = *state;
    struct outbox_note *note;

    outbox_up(desk->outbox);
    put(desk, OUTBOX_ACK, "ack");
    put(desk, OUTBOX_DONE, "one");
    note = put(desk, OUTBOX_FAIL, "two");
    outbox_put(desk->outbox, OUTBOX_DONE, STR("three"), 7, STR_NONE, STR("{\"a\":\n[1,\r\n2]}"),
               false, true, NULL);
    assert_true(reply(desk, note->seq, "\"ok\":true"));
    desk_close(desk);
    desk_open(desk);
    assert_int_equal(outbox_count(desk->outbox), 2);
    note = outbox_next(desk->outbox, NULL);
    assert_string_equal(note->job_id, "one");
    assert_int_equal(note->kind, OUTBOX_DONE);
    assert_null(note->user);
    note = outbox_next(desk->outbox, note);
    assert_string_equal(note->job_id, "three");
    assert_int_equal(note->attempt, 7);
    assert_null(outbox_next(desk->outbox, note));
    outbox_up(desk->outbox);
    assert_int_equal(desk->sent, 2);
    assert_has(buf_view(&desk->last), "\"result\":{\"a\": [1,  2]}");
    /* A new one does not take the number of an old one. */
    assert_true(put(desk, OUTBOX_ACK, "new")->seq > note->seq);
    for (int i = 0; i < 3; i++)
        assert_true(reply(desk, desk->ids[i], "\"ok\":true"));
    desk_close(desk);
    desk_open(desk);
    assert_int_equal(outbox_count(desk->outbox), 0);
}

/* What kill -9 leaves: whole lines count, half a line never did. */
static void test_torn_file(void **state)
{
    static const char line[] =
        "{\"seq\":4,\"msg\":\"done\",\"job_id\":\"j4\",\"attempt_id\":1,\"status\":\"ok\"}\n";
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

    for (size_t i = 0; i < COUNT_OF(tails); i++) {
        FILE *file;

        desk_close(desk);
        file = fopen(desk->path, "w");
        fprintf(file, "%s%s", line, tails[i]);
        fclose(file);
        desk_open(desk);
        if (outbox_count(desk->outbox) != 1)
            fail_msg("row %zu: %zu notes", i, outbox_count(desk->outbox));
        put(desk, OUTBOX_DONE, "more");
        desk_close(desk);
        desk_open(desk);
        if (outbox_count(desk->outbox) != 2)
            fail_msg("row %zu: %zu notes after one more", i, outbox_count(desk->outbox));
    }
}

/* Notes that are settled leave the disk, and the file does not grow for ever. */
static void test_compaction(void **state)
{
    struct desk *desk = *state;
    struct buf large = {0};
    struct outbox_note *kept;

    for (int i = 0; i < 50000; i++)
        buf_str(&large, i ? STR(",1") : STR("[1"));
    buf_char(&large, ']');
    outbox_up(desk->outbox);
    kept = put(desk, OUTBOX_DONE, "kept");
    for (int i = 0; i < 40; i++) {
        struct outbox_note *note = outbox_put(desk->outbox, OUTBOX_DONE, STR("j1"), 1, STR_NONE,
                                              buf_view(&large), false, true, desk);

        assert_true(reply(desk, note->seq, "\"ok\":true"));
    }
    await(&desk->loop, file_size(desk) > 1 << 20);
    put(desk, OUTBOX_DONE, "last");
    await(&desk->loop, file_size(desk) < 10000);
    assert_string_equal(kept->job_id, "kept");
    desk_close(desk);
    desk_open(desk);
    assert_int_equal(outbox_count(desk->outbox), 2);
    buf_free(&large);
}

/* A full disk stops nobody from being told; when there is room again all that lives is written. */
static void test_disk_full(void **state)
{
    struct desk *desk = *state;
    struct rlimit limit, none = {0, 0};
    struct outbox_note *note;

    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    none.rlim_max = limit.rlim_max;
    outbox_up(desk->outbox);
    setrlimit(RLIMIT_FSIZE, &none);
    put(desk, OUTBOX_DONE, "one");
    note = put(desk, OUTBOX_DONE, "two");
    assert_int_equal(desk->sent, 2);
    /* Long enough for the write to have failed: its answer is what turns the loop. */
    for (int i = 0; i < 10; i++)
        uv_run(&desk->loop.uv, UV_RUN_ONCE);
    assert_true(reply(desk, note->seq, "\"ok\":true"));
    assert_int_equal(file_size(desk), 0);
    setrlimit(RLIMIT_FSIZE, &limit);
    await(&desk->loop, file_size(desk) > 0);
    desk_close(desk);
    desk_open(desk);
    assert_int_equal(outbox_count(desk->outbox), 1);
    assert_string_equal(outbox_next(desk->outbox, NULL)->job_id, "one");
}

static void test_cannot_open(void **state)
{
    struct desk *desk = *state;
    struct outbox *other;
    struct problem why;

    assert_int_equal(outbox_new(&desk->loop, "/nonexistent/outbox", &handler, NULL, &other, &why),
                     ERR_IO);
    assert_has(str_of(why.detail), "/nonexistent/outbox");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_messages),       TEST(test_answers),    TEST(test_strange_replies),
        TEST(test_not_now),        TEST(test_reconnect),  TEST(test_cut_while_sending),
        TEST(test_window),         TEST(test_restart),    TEST(test_torn_file),
        TEST(test_result_refused), TEST(test_compaction), TEST(test_disk_full),
        TEST(test_cannot_open),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
