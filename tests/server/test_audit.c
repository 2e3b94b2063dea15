/* The audit: what was noted is found again, newest first, also after a restart. */
#include "unit.h"

#include "server/audit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A server that has nothing but its main thread's inbox and one loop, both run by hand. */
struct rig {
    char dir[64];
    struct server server;
    struct worker worker;
    struct audit_query query;
    int answers;
};

static void answered(struct audit_query *query)
{
    container_of(query, struct rig, query)->answers++;
}

static int setup(void **state)
{
    struct rig *rig = calloc(1, sizeof *rig);

    strcpy(rig->dir, "/tmp/berth-audit-XXXXXX");
    assert_non_null(mkdtemp(rig->dir));
    rig->worker.server = &rig->server;
    rig->server.audit = audit_open(str_of(rig->dir));
    *state = rig;
    return 0;
}

static int teardown(void **state)
{
    static const char *const names[] = {"audit.jsonl", "audit.jsonl.1"};
    struct rig *rig = *state;
    char path[128];

    audit_free(rig->server.audit);
    buf_free(&rig->query.answer);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        snprintf(path, sizeof path, "%s/%s", rig->dir, names[i]);
        unlink(path);
    }
    rmdir(rig->dir);
    free(rig);
    return 0;
}

static void note(struct rig *rig, const char *who, const char *action, const char *target)
{
    struct audit_entry entry = {.at_ms = 1000, .status = 200, .result = "ok"};

    str_copy(str_of(who), entry.who, sizeof entry.who);
    str_copy(str_of(action), entry.action, sizeof entry.action);
    str_copy(str_of(target), entry.target, sizeof entry.target);
    audit_note(&rig->worker, &entry);
    assert_int_equal(inbox_run(&rig->server.errands), 1);
}

/* The targets of a page as "c b a", and behind them the cursor if there is more. */
static const char *page(struct rig *rig, struct audit_query query)
{
    static char text[256];
    struct arena arena = {0};
    const struct json *root, *item;
    size_t used = 0;

    buf_free(&rig->query.answer);
    rig->query = query;
    rig->query.from = &rig->worker;
    rig->query.done = answered;
    rig->answers = 0;
    audit_ask(&rig->query);
    inbox_run(&rig->server.errands);
    inbox_run(&rig->worker.loop.inbox);
    assert_int_equal(rig->answers, 1);
    assert_int_equal(json_parse(buf_view(&rig->query.answer), &arena, &root, NULL), ERR_OK);
    item = json_first(json_get(root, "audit"));
    text[0] = 0;
    for (uint32_t i = 0; i < json_get(root, "audit")->count; i++, item = json_next(item))
        used += (size_t)snprintf(text + used, sizeof text - used, "%s" STR_FMT, used ? " " : "",
                                 STR_ARG(json_str(json_get(item, "target"), &arena)));
    if (!json_is_null(json_get(root, "next_cursor")))
        snprintf(text + used, sizeof text - used, " >" STR_FMT,
                 STR_ARG(json_str(json_get(root, "next_cursor"), &arena)));
    arena_free(&arena);
    return text;
}

static void note_four(struct rig *rig)
{
    note(rig, "ops", "nodes.drain", "a");
    note(rig, "ops", "nodes.drain", "b");
    note(rig, "eve", "jobs.cancel", "c");
    note(rig, "", "nodes.drain", "d");
}

static void pages_and_filters(void **state)
{
    struct rig *rig = *state;

    assert_string_equal(page(rig, (struct audit_query){.max = 10}), "");
    note_four(rig);
    assert_string_equal(page(rig, (struct audit_query){.max = 10}), "d c b a");
    assert_string_equal(page(rig, (struct audit_query){.max = 4}), "d c b a");
    assert_string_equal(page(rig, (struct audit_query){.max = 3}), "d c b >2");
    assert_string_equal(page(rig, (struct audit_query){.max = 3, .before = 2}), "a");
    assert_string_equal(page(rig, (struct audit_query){.max = 3, .before = 1}), "");
    assert_string_equal(page(rig, (struct audit_query){.max = 3, .before = 99}), "d c b >2");
    assert_string_equal(page(rig, (struct audit_query){.max = 9, .who = STR("ops")}), "b a");
    assert_string_equal(page(rig, (struct audit_query){.max = 1, .who = STR("ops")}), "b >2");
    assert_string_equal(page(rig, (struct audit_query){.max = 9, .action = STR("jobs.cancel")}),
                        "c");
    assert_string_equal(page(rig, (struct audit_query){.max = 9, .target = STR("a")}), "a");
    assert_string_equal(page(rig, (struct audit_query){.max = 9, .who = STR("nobody")}), "");
}

static void append_to_file(struct rig *rig, const char *text)
{
    char path[128];
    FILE *file;

    snprintf(path, sizeof path, "%s/audit.jsonl", rig->dir);
    file = fopen(path, "ae");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* The last line may have been cut by a crash; what comes next is still found. */
static void it_outlives_the_process(void **state)
{
    struct rig *rig = *state;

    note_four(rig);
    append_to_file(rig, "{\"id\":5,\"at_ms\":1000,\"who\":\"o");
    audit_free(rig->server.audit);
    rig->server.audit = audit_open(str_of(rig->dir));
    assert_string_equal(page(rig, (struct audit_query){.max = 10}), "d c b a");
    append_to_file(rig, "\n");
    note(rig, "ops", "nodes.drain", "e");
    audit_free(rig->server.audit);
    rig->server.audit = audit_open(str_of(rig->dir));
    assert_string_equal(page(rig, (struct audit_query){.max = 10}), "e d c b a");
}

static void the_oldest_make_room(void **state)
{
    struct rig *rig = *state;
    char target[16];

    for (int i = 1; i <= AUDIT_KEPT + 3; i++) {
        snprintf(target, sizeof target, "t%d", i);
        note(rig, "ops", "nodes.drain", target);
    }
    assert_string_equal(page(rig, (struct audit_query){.max = 2}), "t4099 t4098 >4098");
    assert_string_equal(page(rig, (struct audit_query){.max = 2, .before = 6}), "t5 t4");
    assert_string_equal(page(rig, (struct audit_query){.max = 2, .target = STR("t3")}), "");
}

static void no_place_for_a_file(void **state)
{
    struct rig *rig = *state;

    audit_free(rig->server.audit);
    rig->server.audit = audit_open(STR("/proc/nowhere"));
    note(rig, "ops", "nodes.drain", "a");
    assert_string_equal(page(rig, (struct audit_query){.max = 10}), "a");
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(pages_and_filters),
        ROW(it_outlives_the_process),
        ROW(the_oldest_make_room),
        ROW(no_place_for_a_file),
    };

    log_setup(LOG_ERROR, LOG_LOGFMT, STDERR_FILENO);
    return cmocka_run_group_tests_name("server/audit", tests, NULL, NULL);
}
