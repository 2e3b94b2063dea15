/* The fleet's state, sums and summary sentence. */
#include "model/fleet.h"

#include "../unit.h"

#define S(text)                                                                                    \
    {                                                                                              \
        .at = (text), .len = sizeof(text) - 1                                                      \
    }

static struct str all[] = {S("dev"), S("review"), S("automation"), S("talk"), S("research")};
static struct str light[] = {S("talk"), S("research"), S("automation")};
static struct str any[] = {S("*")};

static struct fleet_server us(bool online, int64_t free)
{
    return (struct fleet_server){.id = S("us"),
                                 .name = S("US VPS"),
                                 .online = online,
                                 .slots_max = 5,
                                 .slots_available = free,
                                 .available_for = {all, COUNT_OF(all)}};
}

static struct fleet_server hk(bool online, int64_t free)
{
    return (struct fleet_server){.id = S("hk"),
                                 .online = online,
                                 .slots_max = 2,
                                 .slots_available = free,
                                 .available_for = {light, COUNT_OF(light)}};
}

static void test_two_servers(void **state)
{
    static const struct {
        bool us_online;
        int64_t us_free;
        bool hk_online;
        int64_t hk_free;
        const char *status;
        int64_t available;
        const char *sentence;
    } rows[] = {
        {true, 0, true, 1, "partial", 1, "US VPS full; talk, research, automation can go to hk"},
        {true, 5, true, 2, "healthy", 7, "All servers have room"},
        {true, 0, true, 0, "degraded", 0, "No server has room; work waits"},
        {true, 2, false, 2, "partial", 2,
         "hk offline; dev, review, automation, talk, research can go to US VPS"},
        {false, 3, false, 2, "degraded", 0, "No server is online"},
        {true, 0, false, 2, "degraded", 0, "No server has room; work waits"},
        {true, -1, true, 2, "partial", 2, "US VPS full; talk, research, automation can go to hk"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct fleet_server servers[] = {us(rows[i].us_online, rows[i].us_free),
                                         hk(rows[i].hk_online, rows[i].hk_free)};
        struct fleet fleet = fleet_sum(servers, 2);
        struct buf text = {0};

        fleet_recommend(servers, 2, &text);
        assert_string_equal(fleet_status_name(fleet.status), rows[i].status);
        assert_int_equal(fleet.total_slots, 7);
        assert_int_equal(fleet.available_slots, rows[i].available);
        assert_str(buf_view(&text), rows[i].sentence);
        buf_free(&text);
    }
}

static void test_sentence_of_several(void **state)
{
    struct fleet_server servers[] = {us(true, 0),  hk(true, 0), us(false, 1),
                                     hk(false, 1), us(true, 1), hk(true, 1)};
    struct buf text = {0};

    fleet_recommend(servers, COUNT_OF(servers), &text);
    assert_str(buf_view(&text), "US VPS, hk full, US VPS, hk offline; dev, review, automation, "
                                "talk, research can go to US VPS, hk");
    buf_clear(&text);
    servers[5].available_for = (struct strs){any, 1};
    fleet_recommend(servers, COUNT_OF(servers), &text);
    assert_str(buf_view(&text),
               "US VPS, hk full, US VPS, hk offline; all types can go to US VPS, hk");
    buf_clear(&text);
    servers[4].available_for.count = servers[5].available_for.count = 0;
    fleet_recommend(servers, COUNT_OF(servers), &text); /* none is available for anything */
    assert_str(buf_view(&text), "US VPS, hk full, US VPS, hk offline");
    buf_free(&text);
}

static void test_a_type_is_named_once(void **state)
{
    static struct str twice[] = {S("talk"), S("dev"), S("talk")};
    struct fleet_server servers[] = {us(true, 0), hk(true, 1)};
    struct buf text = {0};

    servers[1].available_for = (struct strs){twice, COUNT_OF(twice)};
    fleet_recommend(servers, 2, &text);
    assert_str(buf_view(&text), "US VPS full; talk, dev can go to hk");
    buf_free(&text);
}

static void test_nobody_and_one(void **state)
{
    struct fleet_server server = us(true, 1);
    struct fleet fleet = fleet_sum(NULL, 0);
    struct buf text = {0};

    assert_int_equal(fleet.status, FLEET_DEGRADED);
    assert_int_equal(fleet.total_slots, 0);
    fleet_recommend(NULL, 0, &text);
    assert_str(buf_view(&text), "No server is online");
    fleet = fleet_sum(&server, 1);
    assert_int_equal(fleet.status, FLEET_HEALTHY);
    assert_int_equal(fleet.available_slots, 1);
    buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_servers),
        cmocka_unit_test(test_sentence_of_several),
        cmocka_unit_test(test_a_type_is_named_once),
        cmocka_unit_test(test_nobody_and_one),
    };

    return cmocka_run_group_tests_name("fleet", tests, NULL, NULL);
}
