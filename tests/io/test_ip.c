/* Addresses, ranges, and texts that are neither. */
#include "../unit.h"

#include "io/ip.h"

static struct ip ip(const char *text)
{
    struct ip parsed;

    if (!ip_parse(str_of(text), &parsed))
        fail_msg("%s", text);
    return parsed;
}

static void texts(void **state)
{
    static const struct {
        const char *text, *shown; /* NULL: not an address */
    } rows[] = {
        {"10.0.0.7", "10.0.0.7"},
        {"10.0.0.7:5123", "10.0.0.7"},
        {"::1", "::1"},
        {"[::1]", "::1"},
        {"[2001:db8::7]:5123", "2001:db8::7"},
        {"::ffff:10.0.0.7", "10.0.0.7"}, /* the same address in either form */
        {"", NULL},
        {"unknown", NULL},
        {"_hidden", NULL},
        {"10.0.0", NULL},
        {"10.0.0.256", NULL},
        {"10.0.0.7:", NULL},
        {"10.0.0.7:x", NULL},
        {"10.0.0.7:65536", NULL},
        {"[::1", NULL},
        {"[::1]5", NULL},
        {"[::1]:", NULL},
        {"::1%lo", NULL},
        {"10.0.0.7 ", NULL},
        {"10.0.0.0/8", NULL},
        {"2001:0db8:0000:0000:0000:0000:0000:0000:0000:0000:0007", NULL},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct ip parsed;
        char shown[IP_TEXT_MAX];

        if (ip_parse(str_of(rows[i].text), &parsed) != (rows[i].shown != NULL))
            fail_msg("\"%s\"", rows[i].text);
        if (!rows[i].shown)
            continue;
        ip_text(&parsed, shown);
        assert_string_equal(shown, rows[i].shown);
    }
}

static void ranges(void **state)
{
    static const struct {
        const char *range, *in, *out;
    } rows[] = {
        {"10.0.0.0/8", "10.255.0.1", "11.0.0.0"},
        {"10.0.0.0/8", "::ffff:10.1.2.3", "::a01:203"},
        {"10.0.0.128/25", "10.0.0.128", "10.0.0.127"},
        {"192.0.2.7", "192.0.2.7", "192.0.2.6"},
        {"192.0.2.7/32", "192.0.2.7", "192.0.2.6"},
        {"0.0.0.0/0", "203.0.113.9", "::1"},
        {"fd00::/8", "fdff::1", "fe00::"},
        {"2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::"},
        {"::1", "::1", "::2"},
        {"::/0", "10.0.0.1", NULL},
    };
    static const char *const bad[] = {"",           "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/",
                                      "10.0.0.0/x", "fd00::/129",  "[fd00::]/8",  "10.0.0.0:80",
                                      "localhost",  "/8",          "10.0.0.0/8/8"};
    struct ip_range range;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct ip in = ip(rows[i].in);

        assert_true(ip_range_parse(str_of(rows[i].range), &range));
        if (!ip_range_has(&range, &in))
            fail_msg("%s in %s", rows[i].in, rows[i].range);
        if (!rows[i].out)
            continue;
        struct ip out = ip(rows[i].out);
        if (ip_range_has(&range, &out))
            fail_msg("%s in %s", rows[i].out, rows[i].range);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        if (ip_range_parse(str_of(bad[i]), &range))
            fail_msg("\"%s\"", bad[i]);
}

/* Limits per address count one IPv4 address, but a whole IPv6 network. */
static void what_counts_as_one(void **state)
{
    struct ip a = ip("10.0.0.7"), b = ip("[::ffff:10.0.0.7]:80"), c = ip("10.0.0.8");
    struct ip d = ip("2001:db8::1"), e = ip("2001:db8::2:1"), f = ip("2001:db8:0:1::1");
    struct ip loop4 = ip("127.1.2.3"), loop6 = ip("::1");

    assert_true(ip_peer_id(&a) == ip_peer_id(&b) && ip_peer_id(&a) != ip_peer_id(&c));
    assert_true(ip_peer_id(&d) == ip_peer_id(&e) && ip_peer_id(&d) != ip_peer_id(&f));
    assert_true(ip_peer_id(&loop6) != 0);
    assert_true(ip_is_loopback(&loop4) && ip_is_loopback(&loop6) && !ip_is_loopback(&a));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),
        cmocka_unit_test(ranges),
        cmocka_unit_test(what_counts_as_one),
    };

    return cmocka_run_group_tests_name("io/ip", tests, NULL, NULL);
}
