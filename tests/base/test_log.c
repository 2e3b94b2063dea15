/* Lines as they are written: one write each, and no value can forge a line. */
#include "../unit.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"

static int ends[2];

static int open_pipe(void **state)
{
    return pipe2(ends, O_CLOEXEC | O_NONBLOCK | O_DIRECT); /* one packet for each write */
}

static int close_pipe(void **state)
{
    close(ends[0]);
    close(ends[1]);
    return 0;
}

/* The next write; "" if there was none. */
static struct str next_line(void)
{
    static char line[8192];
    ssize_t len = read(ends[0], line, sizeof line);

    return (struct str){line, len > 0 ? (size_t)len : 0};
}

/* Checks `ts=2026-11-15T19:33:00.123Z ` (or its JSON form) and returns the rest of the line. */
static struct str without_time(struct str line, const char *before)
{
    size_t len = strlen(before);
    struct tm tm = {0};
    const char *end;

    assert_true(str_starts(line, str_of(before)));
    end = strptime(line.at + len, "%Y-%m-%dT%H:%M:%S.", &tm);
    assert_non_null(end);
    assert_in_range(timegm(&tm), time(NULL) - 5, time(NULL) + 1);
    assert_int_equal(end[3], 'Z');
    assert_int_equal(line.at[line.len - 1], '\n');
    end += 4;
    return (struct str){end, line.len - (size_t)(end - line.at) - 1};
}

static const struct {
    struct str value;
    const char *logfmt, *json;
} rows[] = {
    {STR("plain"), "plain", "\"plain\""},
    {STR("a/b:c,d"), "a/b:c,d", "\"a/b:c,d\""},
    {STR(""), "\"\"", "\"\""},
    {STR("two words"), "\"two words\"", "\"two words\""},
    {STR("a=b"), "\"a=b\"", "\"a=b\""},
    {STR("say \"hi\""), "\"say \\\"hi\\\"\"", "\"say \\\"hi\\\"\""},
    {STR("back\\slash"), "\"back\\\\slash\"", "\"back\\\\slash\""},
    {STR("x\nlevel=error event=forged"), "\"x\\nlevel=error event=forged\"",
     "\"x\\nlevel=error event=forged\""},
    {STR("\t\r\x1b[31m\x7f\0"), "\"\\t\\r\\u001b[31m\\u007f\\u0000\"",
     "\"\\t\\r\\u001b[31m\\u007f\\u0000\""},
    {STR("\xc2\x9b"
         "2J"),
     "\"\\u009b2J\"", "\"\\u009b2J\""},
    {STR("\xe4\xb8\xad"), "\xe4\xb8\xad", "\"\xe4\xb8\xad\""},
    {STR("\xff"
         "a\xe4\xb8"),
     "\"\xef\xbf\xbd"
     "a\xef\xbf\xbd\xef\xbf\xbd\"",
     "\"\xef\xbf\xbd"
     "a\xef\xbf\xbd\xef\xbf\xbd\""},
};

static void test_values(void **state)
{
    char want[256];

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        log_setup(LOG_INFO, LOG_LOGFMT, ends[1]);
        log_event(LOG_WARN, "job.retry", KS("v", rows[i].value), KI("n", -7));
        snprintf(want, sizeof want, " level=warn event=job.retry v=%s n=-7", rows[i].logfmt);
        assert_str(without_time(next_line(), "ts="), want);

        log_setup(LOG_INFO, LOG_JSON, ends[1]);
        log_event(LOG_WARN, "job.retry", KS("v", rows[i].value), KI("n", INT64_MIN));
        snprintf(
            want, sizeof want,
            "\",\"level\":\"warn\",\"event\":\"job.retry\",\"v\":%s,\"n\":-9223372036854775808}",
            rows[i].json);
        assert_str(without_time(next_line(), "{\"ts\":\""), want);
    }
}

static void test_levels(void **state)
{
    log_setup(LOG_WARN, LOG_LOGFMT, ends[1]);
    assert_false(log_on(LOG_INFO));
    assert_true(log_on(LOG_ERROR));
    log_event(LOG_INFO, "quiet", KI("n", 1));
    assert_int_equal(next_line().len, 0);
    log_event(LOG_ERROR, "loud", KC("why", NULL));
    assert_str(without_time(next_line(), "ts="), " level=error event=loud why=\"\"");
}

static void test_long_values_are_cut(void **state)
{
    char text[5000];
    struct str line;

    memset(text, 'x', sizeof text);
    log_setup(LOG_INFO, LOG_LOGFMT, ends[1]);
    log_event(LOG_INFO, "e", KS("v", ((struct str){text, sizeof text})), KI("n", 1));
    line = without_time(next_line(), "ts=");
    assert_true(line.len < 1200);
    assert_memory_equal(line.at + line.len - 8, "...\" n=1", 8);

    /* A cut never leaves half a character. */
    for (size_t i = 0; i + 3 <= sizeof text; i += 3)
        memcpy(text + i, "\xe4\xb8\xad", 3);
    log_event(LOG_INFO, "e", KS("v", ((struct str){text, 3000})));
    assert_true(str_is_utf8(next_line()));
}

/* However long, a line is one write of at most PIPE_BUF bytes and still valid JSON. */
static void test_a_full_line_stays_whole(void **state)
{
    char text[1000];
    struct arena arena = {0};
    const struct json *root;
    struct str line;

    for (int c = 0; c < 2; c++) {
        struct str value = {text, sizeof text};

        memset(text, c ? '\n' : 'x', sizeof text);
        log_setup(LOG_INFO, LOG_JSON, ends[1]);
        log_event(LOG_INFO, "e", KS("a", value), KS("b", value), KS("c", value), KS("d", value),
                  KS("f", value), KS("g", value));
        line = next_line();
        assert_in_range(line.len, 1000, 4096);
        assert_int_equal(json_parse(line, &arena, &root, NULL), ERR_OK);
        assert_int_equal(json_type(json_get(root, "cut")), JSON_TRUE);
        assert_int_equal(next_line().len, 0);
    }
    arena_free(&arena);
}

static void *talk(void *arg)
{
    for (int i = 0; i < 20; i++)
        log_event(LOG_INFO, "thread", KS("text", *(struct str *)arg), KI("n", i));
    return NULL;
}

/* Lines of several threads never mix: here the pipe is a stream, and each line must be complete. */
static void test_threads_do_not_mix(void **state)
{
    struct str texts[2] = {STR("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
                           STR("b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b")};
    pthread_t threads[2];
    static char all[65536];
    struct str rest;
    int stream[2];
    int lines = 0;

    assert_int_equal(pipe2(stream, O_CLOEXEC), 0);
    log_setup(LOG_INFO, LOG_LOGFMT, stream[1]);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, talk, &texts[i]);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    close(stream[1]);
    rest = (struct str){all, 0};
    for (ssize_t got; (got = read(stream[0], all + rest.len, sizeof all - rest.len)) > 0;)
        rest.len += (size_t)got;
    while (rest.len > 0) {
        struct str line = str_cut(&rest, '\n');
        bool a = memmem(line.at, line.len, texts[0].at, texts[0].len) != NULL;
        bool b = memmem(line.at, line.len, texts[1].at, texts[1].len) != NULL;

        assert_true(str_starts(line, STR("ts=")));
        assert_true(a != b);
        lines++;
    }
    assert_int_equal(lines, 40);
    close(stream[0]);
}

enum { FLOOD = 5000, PATIENCE_S = 20 };

/* Nothing reads the log, and the program goes on. Once it is read again the log reports how many
 * lines were lost; lines that were written are complete and in order. */
static void flood(int from)
{
    static char all[1 << 20];
    struct str rest = {all, 0};
    int seen = 0;

    alarm(PATIENCE_S); /* a blocking write would never return */
    for (int i = 0; i < FLOOD; i++)
        log_event(LOG_INFO, "flood", KI("n", i),
                  KC("pad", "0123456789012345678901234567890123456"));
    alarm(0);
    assert_int_equal(fcntl(from, F_SETFL, O_NONBLOCK), 0);
    for (ssize_t got; (got = read(from, all + rest.len, sizeof all - rest.len)) > 0;)
        rest.len += (size_t)got;
    for (struct str line; rest.len > 0; seen++) {
        char want[32];

        line = str_cut(&rest, '\n');
        snprintf(want, sizeof want, "event=flood n=%d ", seen);
        if (rest.len > 0) /* the last line of a socket may be incomplete */
            assert_non_null(memmem(line.at, line.len, want, strlen(want)));
    }
    assert_in_range(seen, 10, FLOOD - 1);
    log_event(LOG_INFO, "read.again", KI("n", 1));
    rest = (struct str){all, (size_t)read(from, all, sizeof all - 1)};
    all[rest.len] = '\0';
    assert_non_null(strstr(all, "event=read.again n=1\n"));
    if (!strstr(all, "event=log.lost")) /* each is a packet */
        all[read(from, all, sizeof all - 1)] = '\0';
    assert_non_null(strstr(all, "event=log.lost lines="));
    assert_in_range(atoi(strstr(all, "lines=") + 6), FLOOD - seen, FLOOD - seen + 1);
}

static void test_a_full_pipe_does_not_block(void **state)
{
    log_setup(LOG_INFO, LOG_LOGFMT, ends[1]);
    flood(ends[0]);
}

/* A blocking socket, as systemd's journal has. */
static void test_a_full_socket_does_not_block(void **state)
{
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    log_setup(LOG_INFO, LOG_LOGFMT, pair[1]);
    flood(pair[0]);
    close(pair[0]);
    close(pair[1]);
}

/* A blocking pipe that other processes share: for them it must stay blocking. */
static void test_a_full_stderr_does_not_block(void **state)
{
    int before = dup(STDERR_FILENO);
    int stream[2];
    int flags;

    assert_int_equal(pipe2(stream, O_CLOEXEC), 0);
    dup2(stream[1], STDERR_FILENO);
    log_setup(LOG_INFO, LOG_LOGFMT, STDERR_FILENO);
    flags = fcntl(STDERR_FILENO, F_GETFL);
    dup2(before, STDERR_FILENO);
    flood(stream[0]);
    assert_false(flags & O_NONBLOCK);
    close(before);
    close(stream[0]);
    close(stream[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_values, open_pipe, close_pipe),
        cmocka_unit_test_setup_teardown(test_levels, open_pipe, close_pipe),
        cmocka_unit_test_setup_teardown(test_long_values_are_cut, open_pipe, close_pipe),
        cmocka_unit_test_setup_teardown(test_a_full_line_stays_whole, open_pipe, close_pipe),
        cmocka_unit_test_setup_teardown(test_threads_do_not_mix, open_pipe, close_pipe),
        cmocka_unit_test_setup_teardown(test_a_full_pipe_does_not_block, open_pipe, close_pipe),
        cmocka_unit_test(test_a_full_socket_does_not_block),
        cmocka_unit_test(test_a_full_stderr_does_not_block),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
