/* The load generator reads complete frames, answers and messages, however the bytes arrive. */
#include <stdlib.h>
#include <string.h>

#include "../unit.h"

#include "peer.h"

/* An unmasked frame, as servers send it. */
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

/* Frames that we send are masked, as servers require. */
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

enum { JOBS = 10 };

/* How each side of a queue server's protocol reads its input. */
static const struct {
    const struct bench_protocol *protocol;
    bool worker;
    struct str in, out;
    int ready, started, done; /* the job's number, or -1 */
} talks[] = {
    {&gearman_protocol, false,
     STR("\0RES\0\0\0\10\0\0\0\3H:1\0RES\0\0\0\15\0\0\0\5H:1\0"
         "7"),
     STR(""), 0, -1, 7},
    {&gearman_protocol, true, STR("\0RES\0\0\0\12\0\0\0\0\0RES\0\0\0\6\0\0\0\0"),
     STR("\0REQ\0\0\0\4\0\0\0\0\0REQ\0\0\0\11\0\0\0\0"), 1, -1, -1},
    {&gearman_protocol, true,
     STR("\0RES\0\0\0\13\0\0\0\12H:1\0noop\0"
         "7"),
     STR("\0REQ\0\0\0\15\0\0\0\5H:1\0"
         "7\0REQ\0\0\0\11\0\0\0\0"),
     0, 7, -1},
    {&beanstalkd_protocol, false, STR("INSERTED 12\r\nINSERTED 13\r\n"), STR(""), 0, -1, -1},
    {&beanstalkd_protocol, true, STR("WATCHING 1\r\nRESERVED 12 1\r\n7\r\nDELETED\r\n"),
     STR("delete 12\r\nreserve\r\n"), 1, 7, 7},
    {&nats_protocol, false, STR("INFO {}\r\nPING\r\nMSG _INBOX.s0 1 1\r\n7\r\n"), STR("PONG\r\n"),
     0, -1, 7},
    {&nats_protocol, true, STR("INFO {}\r\nPONG\r\nMSG noop 1 _INBOX.s3 1\r\n7\r\n"),
     STR("PUB _INBOX.s3 1\r\n7\r\n"), 1, 7, -1},
    {&jetstream_protocol, false, STR("MSG _INBOX.s0 1 10\r\n{\"seq\": 1}\r\n"), STR(""), 0, -1, -1},
    {&jetstream_protocol, true,
     STR("PONG\r\nMSG deliver.noop 2 $JS.ACK.x 1\r\n7\r\nMSG _INBOX.w0.7 1 0\r\n\r\n"),
     STR("PUB $JS.ACK.x _INBOX.w0.7 4\r\n+ACK\r\n"), 1, 7, 7},
};

static void messages_come_whole(void **state)
{
    for (size_t i = 0; i < COUNT_OF(talks); i++) {
        for (size_t cut = 0; cut <= talks[i].in.len; cut++) {
            struct bench_shared *shared =
                calloc(1, sizeof *shared + JOBS * sizeof shared->slots[0]);
            struct peer peer = {.protocol = talks[i].protocol, .shared = shared, .jobs = JOBS};
            peer_take *take =
                talks[i].worker ? peer.protocol->work_take : peer.protocol->submit_take;
            struct bench_conn conn = {.fd = -1};

            buf_add(&conn.in, talks[i].in.at, cut);
            assert_int_equal(peer_take_all(&peer, &conn, take), ERR_OK);
            buf_add(&conn.in, talks[i].in.at + cut, talks[i].in.len - cut);
            assert_int_equal(peer_take_all(&peer, &conn, take), ERR_OK);
            assert_int_equal(conn.in.len, 0);
            assert_int_equal(conn.out.len, talks[i].out.len);
            assert_true(str_eq(buf_view(&conn.out), talks[i].out));
            assert_int_equal(shared->ready, talks[i].ready);
            assert_int_equal(peer.ended, talks[i].done >= 0);
            for (int job = 0; job < JOBS; job++) {
                assert_int_equal(shared->slots[job].start_ns > 0, job == talks[i].started);
                assert_int_equal(shared->slots[job].done_ns > 0, job == talks[i].done);
            }
            buf_free(&conn.in);
            buf_free(&conn.out);
            free(shared);
        }
    }
}

static void messages_that_cannot_be_are_told(void **state)
{
    static const struct {
        const struct bench_protocol *protocol;
        bool worker;
        struct str in;
    } bad[] = {
        {&gearman_protocol, false, STR("HTTP/1.1 400 Bad Request")},
        {&gearman_protocol, false, STR("\0RES\0\0\0\23\0\0\0\4no\0!")}, /* ERROR */
        {&gearman_protocol, true,
         STR("\0RES\0\0\0\13\0\0\0\13H:1\0noop\0"
             "10")}, /* no such job */
        {&beanstalkd_protocol, false, STR("OUT_OF_MEMORY\r\n")},
        {&beanstalkd_protocol, true, STR("DEADLINE_SOON\r\n")},
        {&nats_protocol, false, STR("-ERR 'Slow Consumer'\r\n")},
        {&nats_protocol, true, STR("MSG noop 1 a b c 1\r\n7\r\n")},
        {&jetstream_protocol, false, STR("MSG _INBOX.s0 1 12\r\n{\"error\":{}}\r\n")},
    };

    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct bench_shared *shared = calloc(1, sizeof *shared + JOBS * sizeof shared->slots[0]);
        struct peer peer = {.protocol = bad[i].protocol, .shared = shared, .jobs = JOBS};
        struct bench_conn conn = {.fd = -1};

        buf_str(&conn.in, bad[i].in);
        assert_int_equal(
            peer_take_all(&peer, &conn,
                          bad[i].worker ? peer.protocol->work_take : peer.protocol->submit_take),
            ERR_BAD_REQUEST);
        assert_non_null(strstr(shared->trouble, peer.protocol->name));
        buf_free(&conn.in);
        buf_free(&conn.out);
        free(shared);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_come_whole),
        cmocka_unit_test(frames_that_cannot_be_are_seen),
        cmocka_unit_test(our_frames_are_masked),
        cmocka_unit_test(answers_come_whole),
        cmocka_unit_test(answers_without_a_length_are_refused),
        cmocka_unit_test(messages_come_whole),
        cmocka_unit_test(messages_that_cannot_be_are_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
