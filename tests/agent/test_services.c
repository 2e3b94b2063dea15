/* The file that says where copies listen: exactly what the server answered, always complete, and no
 * copy in it past its lease. */
#include "agent/services.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "unit.h"

struct site {
    struct loop loop;
    struct link_calls *link_calls;
    struct config config;
    struct services services;
    struct arena arena;
    struct buf sent; /* the last message */
    int asked;
    char dir[64];
};

static bool on_send(struct link_calls *link_calls, struct str text)
{
    struct site *site = link_calls->user;

    buf_clear(&site->sent);
    buf_str(&site->sent, text);
    site->asked++;
    return true;
}

static int setup(void **state)
{
    struct site *site = calloc(1, sizeof *site);

    strcpy(site->dir, "/tmp/berth-services-XXXXXX");
    assert_non_null(mkdtemp(site->dir));
    site->config = (struct config){.services_file = STR("here.json"), .services_interval_ms = 5000};
    assert_int_equal(loop_init(&site->loop, 0), ERR_OK);
    site->link_calls = link_calls_new(&site->loop, on_send, site);
    services_init(&site->services, &site->loop, site->link_calls, &site->config, STR("n1"),
                  site->dir);
    *state = site;
    return 0;
}

static int teardown(void **state)
{
    struct site *site = *state;
    char command[96];

    services_stop(&site->services);
    link_calls_free(site->link_calls);
    loop_done(&site->loop);
    services_done(&site->services);
    buf_free(&site->sent);
    arena_free(&site->arena);
    snprintf(command, sizeof command, "rm -rf %s", site->dir);
    assert_int_equal(system(command), 0);
    free(site);
    return 0;
}

static void tick(struct site *site, int64_t ms)
{
    site->loop.mono_ms += ms;
    for (struct loop_part *part = site->loop.parts; part; part = part->next)
        if (part->tick)
            part->tick(part);
}

static void answer(struct site *site, const char *body)
{
    const struct json *json;
    struct str text =
        arena_fmt(&site->arena, "{\"msg\":\"reply\",\"re\":%lld,\"ok\":true,\"body\":%s}",
                  (long long)site->services.call.id, body);

    assert_int_equal(json_parse(text, &site->arena, &json, NULL), ERR_OK);
    assert_true(link_calls_reply(site->link_calls, json));
}

/* Waits until the file has this content; NULL: no file. */
static void assert_file(struct site *site, const char *expected)
{
    char path[96];

    snprintf(path, sizeof path, "%s/here.json", site->dir);
    for (int i = 0;; i++) {
        struct str text = STR_NONE;

        uv_run(&site->loop.uv, UV_RUN_NOWAIT);
        tick(site, 0);
        if (file_read(path, 1 << 20, &site->arena, &text, NULL) || !text.at)
            text = STR_NONE;
        if (expected ? str_is(text, expected) : !text.at)
            return;
        if (i == 2000)
            fail_msg("it is " STR_FMT, STR_ARG(text));
        poll(NULL, 0, 10);
    }
}

#define COPY(name, index, node, left)                                                              \
    "{\"service\":\"" name "\",\"index\":" index ",\"node\":\"" node                               \
    "\",\"address\":\"h\",\"port\":21000,\"healthy\":true,\"left_ms\":" left "}"
#define ENTRY(index, node)                                                                         \
    "{\"index\":" index ",\"node\":\"" node "\",\"address\":\"h\",\"port\":21000,\"healthy\":"     \
    "true}"
#define NONE "{\"services\":{}}\n"

static void test_the_file_is_as_the_server_says(void **state)
{
    struct site *site = *state;

    tick(site, 1000);
    assert_int_equal(site->asked, 0); /* not connected */
    services_up(&site->services);
    tick(site, 0);
    assert_int_equal(site->asked, 1);
    answer(site, "{\"number\":7,\"unchanged\":false,\"left_ms\":60000,\"copies\":[" COPY(
                     "web", "1", "n2", "60000") "," COPY("db", "0", "n1",
                                                         "60000") "," COPY("web", "0", "n3",
                                                                           "60000") "]}");
    assert_file(site, "{\"services\":{\"db\":[" ENTRY("0", "n1") "],\"web\":[" ENTRY(
                          "0", "n3") "," ENTRY("1", "n2") "]}}\n");
    assert_int_equal(site->asked, 1);
    tick(site, 60000);
    assert_int_equal(site->asked, 2);
    assert_non_null(strstr(buf_view(&site->sent).at, "\"if_number\":7"));
    answer(site, "{\"number\":8,\"unchanged\":false,\"left_ms\":null,\"copies\":[]}");
    assert_file(site, NONE);
}

static void test_nobody_longer_than_its_lease(void **state)
{
    struct site *site = *state;

    services_up(&site->services);
    tick(site, 0);
    answer(site, "{\"number\":7,\"unchanged\":false,\"left_ms\":300,\"copies\":[" COPY(
                     "web", "0", "n1", "300") "," COPY("web", "1", "n2", "60000") "]}");
    site->services.up = false; /* no more answers */
    assert_file(site, "{\"services\":{\"web\":[" ENTRY("1", "n2") "]}}\n");
    /* An unchanged answer is valid until the first of its leases ends. */
    services_up(&site->services);
    tick(site, 5000);
    answer(site, "{\"number\":7,\"unchanged\":true,\"left_ms\":60000}");
    assert_file(site, "{\"services\":{\"web\":[" ENTRY("0", "n1") "," ENTRY("1", "n2") "]}}\n");
}

/* A file left by an earlier agent is removed if the server does not answer in time. */
static void test_what_was_left(void **state)
{
    struct site *site = *state;
    char path[96];

    snprintf(path, sizeof path, "%s/here.json", site->dir);
    assert_int_equal(file_replace(path, STR("old"), NULL), ERR_OK);
    tick(site, 0);
    assert_file(site, "old");
    assert_file(site, NONE);
}

static void test_none_is_wanted(void **state)
{
    struct site *site = *state;

    site->config.services_interval_ms = 0;
    services_up(&site->services);
    tick(site, 60000);
    assert_int_equal(site->asked, 0);
    assert_file(site, NULL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_the_file_is_as_the_server_says),
        TEST(test_nobody_longer_than_its_lease),
        TEST(test_what_was_left),
        TEST(test_none_is_wanted),
    };

    return cmocka_run_group_tests_name("services", tests, NULL, NULL);
}
