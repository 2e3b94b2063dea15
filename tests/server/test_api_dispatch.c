/* Which callback URLs a request that submits may name. */
#include "rig.h"

#include "sched/submit.h"
#include "server/api.h"

static void callbacks_go_where_they_may(void **state)
{
    static struct str loopback = STR("loopback");
    static const struct {
        const char *json;
        enum err err;
    } rows[] = {{"{\"type\":\"t\",\"callback_url\":\"http://127.0.0.1:1/\"}", ERR_OK},
                {"{\"type\":\"t\",\"callback_url\":\"http://10.0.0.1/\"}", ERR_BAD_FIELD}};
    struct rig *rig = *state;
    struct settings settings = {.allow_urls = {.at = &loopback, .count = 1}};
    struct server server = {.settings = &settings};
    struct worker worker = {.server = &server, .sched = rig_loop(rig, 0)};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct json *body;
        struct submit *submit;
        struct problem why = {0};

        assert_int_equal(json_parse(str_of(rows[i].json), &rig->arena, &body, &why), ERR_OK);
        assert_int_equal(api_dispatch_read(&worker, NULL, &rig->arena, body, false, &submit, &why),
                         rows[i].err);
        assert_string_equal(why.field, rows[i].err ? "callback_url" : "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(callbacks_go_where_they_may, rig_setup, rig_teardown),
    };

    return cmocka_run_group_tests_name("server/api_dispatch", tests, NULL, NULL);
}
