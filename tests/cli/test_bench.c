/* The load generator reads whole frames and whole answers, however the bytes arrive. */
#include "unit.h"

#include "cli/bench.h"

/* A server's frame: not masked. */
static void put_server_frame(struct buf *out, int opcode, size_t len)
{
    unsigned char head[10] = {(unsigned char)(0x80 | opcode), (unsigned char)len};
    size_t head_len = 2;

    if (len > UINT16_MAX) {
        head[1] = 127;
        for (int i = 0; i < 8; i++)
            head[2 + i] = (unsigned char)((uint64_t)len >> (56 - 8 * i));
        head_len = 10;
    } else if (len > 125) {
        head[1] = 126;
        head[2] = (unsigned char)(len >> 8);
        head[3] = (unsigned char)len;
        head_len = 4;
    }
    buf_add(out, head, head_len);
    for (size_t i = 0; i < len; i++)
        buf_char(out, (char)('a' + i % 26));
}

static void frames_come_whole(void **state)
{
    static const size_t lens[] = {0, 1, 125, 126, 127, 65535, 65536, 70000};
    struct buf in = {0};

    for (size_t i = 0; i < COUNT_OF(lens); i++)
        put_server_frame(&in, i % 2 ? BENCH_WS_TEXT : BENCH_WS_PING, lens[i]);
    for (size_t have = 0; have <= in.len; have += have < 400 ? 1 : 997) {
        struct str part = {.at = in.at, .len = have}, payload;
        size_t at = 0, seen = 0;
        int opcode, got;

        while ((got = bench_ws_next(part, &at, &opcode, &payload)) > 0) {
            assert_int_equal(payload.len, lens[seen]);
            assert_int_equal(opcode, seen % 2 ? BENCH_WS_TEXT : BENCH_WS_PING);
            assert_true(payload.len == 0 || payload.at[0] == 'a');
            seen++;
        }
        assert_int_equal(got, 0);
        assert_true(at <= have);
    }
    buf_free(&in);
}

static void frames_that_cannot_be_are_seen(void **state)
{
    static const struct {
        const char *bytes;
    } bad[] = {{"\x01\x01x"}, {"\x81\x81xxxxx"}};

    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct str payload;
        size_t at = 0;
        int opcode;

        assert_int_equal(bench_ws_next(str_of(bad[i].bytes), &at, &opcode, &payload), -1);
    }
}

/* What we send is masked, as a server must demand. */
static void our_frames_are_masked(void **state)
{
    static const struct {
        size_t len, head;
    } rows[] = {{0, 6}, {125, 6}, {126, 8}, {1000, 8}};
    char text[1000];

    memset(text, 'x', sizeof text);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct buf out = {0};

        bench_ws_put(&out, BENCH_WS_TEXT, (struct str){.at = text, .len = rows[i].len});
        assert_int_equal(out.len, rows[i].head + rows[i].len);
        assert_int_equal((unsigned char)out.at[0], 0x81);
        assert_true(out.at[1] & 0x80);
        assert_memory_equal(out.at + rows[i].head - 4, "\0\0\0\0", 4);
        buf_free(&out);
    }
}

static void answers_come_whole(void **state)
{
    static const char text[] = "HTTP/1.1 503 Service Unavailable\r\nX: y\r\n"
                               "content-length: 5\r\nY: z\r\n\r\nhelloHTTP/1.1 200";
    size_t whole = strlen(text) - strlen("HTTP/1.1 200"), len;

    for (size_t have = 0; have < whole; have++)
        assert_int_equal(bench_http_answer((struct str){.at = text, .len = have}, &len), 0);
    assert_int_equal(bench_http_answer(str_of(text), &len), 503);
    assert_int_equal(len, whole);
}

static void answers_without_a_length_are_refused(void **state)
{
    size_t len;

    assert_int_equal(bench_http_answer(STR("HTTP/1.1 200 OK\r\nX: y\r\n\r\n"), &len), -1);
    assert_int_equal(bench_http_answer(STR("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"), &len),
                     -1);
    assert_int_equal(bench_http_answer(STR("nonsense\r\n\r\n"), &len), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_come_whole),
        cmocka_unit_test(frames_that_cannot_be_are_seen),
        cmocka_unit_test(our_frames_are_masked),
        cmocka_unit_test(answers_come_whole),
        cmocka_unit_test(answers_without_a_length_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
