/* The audit: noted entries are found, newest first, also after a restart. */
#include "../unit.h"

#include "base/log.h"
#include "server/audit.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* A server with nothing but its main thread's inbox and one loop, both run by hand. */
struct fixture {
    char dir[64];
    struct server server;
    struct worker worker;
    struct audit_query query;
    int answers;
};

static void answered(struct audit_request *request)
{
    container_of(request, struct fixture, query.request)->answers++;
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);

    strcpy(fixture->dir, "/tmp/berth-audit-XXXXXX");
    assert_non_null(mkdtemp(fixture->dir));
    fixture->worker.server = &fixture->server;
    fixture->server.audit = audit_open(str_of(fixture->dir));
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    static const char *const names[] = {"audit.jsonl",         "audit.jsonl.1",
                                        "audit-refused.jsonl", "audit-refused.jsonl.1",
                                        "audit.key",           "audit.chain"};
    struct fixture *fixture = *state;
    char path[128];

    audit_free(fixture->server.audit);
    buf_free(&fixture->query.answer);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        snprintf(path, sizeof path, "%s/%s", fixture->dir, names[i]);
        unlink(path);
    }
    rmdir(fixture->dir);
    free(fixture);
    return 0;
}

/* Posts an entry to the main thread, which is not run yet. */
static void post(struct fixture *fixture, enum audit_kind kind, const char *who, const char *action,
                 const char *target)
{
    struct audit_entry entry = {.at_ms = 1000, .kind = kind, .count = 1, .status = 200};

    str_copy(str_of(who), entry.who, sizeof entry.who);
    str_copy(str_of(action), entry.action, sizeof entry.action);
    str_copy(str_of(target), entry.target, sizeof entry.target);
    audit_note(&fixture->worker, &entry);
}

static void note(struct fixture *fixture, const char *who, const char *action, const char *target)
{
    post(fixture, AUDIT_CHANGE, who, action, target);
    assert_false(audit_run(&fixture->server));
}

static void run_all(struct fixture *fixture)
{
    while (audit_run(&fixture->server))
        ;
}

static void refuse(struct fixture *fixture, const char *target)
{
    post(fixture, AUDIT_REFUSED, "eve", "nodes.drain", target);
    assert_false(audit_run(&fixture->server));
}

/* The targets on a page as "c b a", followed by the cursor if there is more. */
static const char *page(struct fixture *fixture, struct audit_query query)
{
    static char text[256];
    struct arena arena = {0};
    const struct json *root, *item;
    size_t used = 0;

    buf_free(&fixture->query.answer);
    fixture->query = query;
    fixture->query.request.from = &fixture->worker;
    fixture->query.request.done = answered;
    fixture->answers = 0;
    audit_ask(&fixture->query);
    assert_false(audit_run(&fixture->server));
    inbox_run(&fixture->worker.loop.inbox);
    assert_int_equal(fixture->answers, 1);
    assert_int_equal(json_parse(buf_view(&fixture->query.answer), &arena, &root, NULL), ERR_OK);
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

static void note_four(struct fixture *fixture)
{
    note(fixture, "ops", "nodes.drain", "a");
    note(fixture, "ops", "nodes.drain", "b");
    note(fixture, "eve", "jobs.cancel", "c");
    note(fixture, "", "nodes.drain", "d");
}

static void pages_and_filters(void **state)
{
    struct fixture *fixture = *state;

    assert_string_equal(page(fixture, (struct audit_query){.max = 10}), "");
    note_four(fixture);
    assert_string_equal(page(fixture, (struct audit_query){.max = 10}), "d c b a");
    assert_string_equal(page(fixture, (struct audit_query){.max = 4}), "d c b a");
    assert_string_equal(page(fixture, (struct audit_query){.max = 3}), "d c b >2");
    assert_string_equal(page(fixture, (struct audit_query){.max = 3, .before = 2}), "a");
    assert_string_equal(page(fixture, (struct audit_query){.max = 3, .before = 1}), "");
    assert_string_equal(page(fixture, (struct audit_query){.max = 3, .before = 99}), "d c b >2");
    assert_string_equal(page(fixture, (struct audit_query){.max = 9, .who = STR("ops")}), "b a");
    assert_string_equal(page(fixture, (struct audit_query){.max = 1, .who = STR("ops")}), "b >2");
    assert_string_equal(page(fixture, (struct audit_query){.max = 9, .action = STR("jobs.cancel")}),
                        "c");
    assert_string_equal(page(fixture, (struct audit_query){.max = 9, .target = STR("a")}), "a");
    assert_string_equal(page(fixture, (struct audit_query){.max = 9, .who = STR("nobody")}), "");
}

static void reopen(struct fixture *fixture)
{
    audit_free(fixture->server.audit);
    fixture->server.audit = audit_open(str_of(fixture->dir));
}

static void append_to_file(struct fixture *fixture, const char *text)
{
    char path[128];
    FILE *file;

    snprintf(path, sizeof path, "%s/audit.jsonl", fixture->dir);
    file = fopen(path, "ae");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* The last line may have been cut off by a crash; later entries are still found. */
static void it_outlives_the_process(void **state)
{
    struct fixture *fixture = *state;

    note_four(fixture);
    append_to_file(fixture, "{\"id\":5,\"at_ms\":1000,\"who\":\"o");
    reopen(fixture);
    assert_string_equal(page(fixture, (struct audit_query){.max = 10}), "d c b a");
    note(fixture, "ops", "nodes.drain", "e");
    reopen(fixture);
    assert_string_equal(page(fixture, (struct audit_query){.max = 10}), "e d c b a");
}

static void the_oldest_make_room(void **state)
{
    struct fixture *fixture = *state;
    char target[16];

    for (int i = 1; i <= AUDIT_KEPT + 3; i++) {
        snprintf(target, sizeof target, "t%d", i);
        post(fixture, AUDIT_CHANGE, "ops", "nodes.drain", target);
        if (i % AUDIT_BATCH_MAX == 0)
            run_all(fixture);
    }
    run_all(fixture);
    assert_string_equal(page(fixture, (struct audit_query){.max = 2}), "t4099 t4098 >4098");
    assert_string_equal(page(fixture, (struct audit_query){.max = 2, .before = 6}), "t5 t4");
    assert_string_equal(page(fixture, (struct audit_query){.max = 2, .target = STR("t3")}), "");
}

/* Thousands of refusals push out only older refusals, not changes. */
static void refusals_push_out_no_change(void **state)
{
    static const struct audit_query changes = {.max = 10, .kind = STR("change")};
    struct fixture *fixture = *state;
    int64_t bytes = 0;

    note(fixture, "ops", "nodes.drain", "a");
    for (int i = 0; i < AUDIT_KEPT + 3; i++) {
        post(fixture, AUDIT_REFUSED, "eve", "nodes.drain", "r");
        if (i % AUDIT_BATCH_MAX == 0)
            run_all(fixture);
    }
    run_all(fixture);
    note(fixture, "ops", "nodes.drain", "b");
    for (int i = 0; i < 2; i++) {
        assert_string_equal(page(fixture, changes), "b a");
        assert_string_equal(page(fixture, (struct audit_query){.max = 2}), "b r >4100");
        reopen(fixture);
    }
    char path[128];
    struct stat st;
    snprintf(path, sizeof path, "%s/audit.jsonl", fixture->dir);
    assert_int_equal(stat(path, &st), 0);
    bytes = st.st_size;
    refuse(fixture, "r");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, bytes);
}

static void both_kinds_in_one_order(void **state)
{
    struct fixture *fixture = *state;

    note(fixture, "ops", "nodes.drain", "a");
    refuse(fixture, "b");
    refuse(fixture, "c");
    note(fixture, "ops", "nodes.drain", "d");
    for (int i = 0; i < 2; i++) {
        assert_string_equal(page(fixture, (struct audit_query){.max = 10}), "d c b a");
        assert_string_equal(page(fixture, (struct audit_query){.max = 2}), "d c >3");
        assert_string_equal(page(fixture, (struct audit_query){.max = 2, .before = 3}), "b a");
        assert_string_equal(page(fixture, (struct audit_query){.max = 9, .kind = STR("refused")}),
                            "c b");
        reopen(fixture);
    }
    refuse(fixture, "e");
    assert_string_equal(page(fixture, (struct audit_query){.max = 10}), "e d c b a");
}

/* In files from before the kinds were kept apart, the status of an entry tells its kind. */
static void a_file_with_both_kinds(void **state)
{
    struct fixture *fixture = *state;

    append_to_file(fixture,
                   "{\"id\":1,\"at_ms\":1,\"action\":\"x\",\"target\":\"a\",\"status\":200}\n"
                   "{\"id\":2,\"at_ms\":1,\"action\":\"x\",\"target\":\"b\",\"status\":403}\n"
                   "{\"id\":3,\"at_ms\":1,\"action\":\"x\",\"target\":\"c\",\"status\":504}\n");
    reopen(fixture);
    refuse(fixture, "d");
    assert_string_equal(page(fixture, (struct audit_query){.max = 9, .kind = STR("change")}),
                        "c a");
    assert_string_equal(page(fixture, (struct audit_query){.max = 9, .kind = STR("refused")}),
                        "d b");
}

/* However slow the main thread is, a limited number of entries waits for it. The rest is reported
 * as a number, and neither kind takes the other's room. */
static void what_does_not_fit_is_counted(void **state)
{
    struct fixture *fixture = *state;
    int slices = 1;

    for (int i = 0; i < AUDIT_QUEUED_MAX + 7; i++)
        post(fixture, AUDIT_REFUSED, "eve", "nodes.drain", "r");
    post(fixture, AUDIT_CHANGE, "ops", "nodes.drain", "a");
    while (audit_run(&fixture->server))
        slices++;
    assert_int_equal(slices, AUDIT_QUEUED_MAX / AUDIT_BATCH_MAX + 1);
    assert_string_equal(page(fixture, (struct audit_query){.max = 9, .kind = STR("change")}), "a");
    page(fixture, (struct audit_query){.max = 9, .action = STR("audit.left_out")});
    assert_non_null(strstr(fixture->query.answer.at, "\"kind\":\"refused\",\"count\":7"));
    for (int i = 0; i < AUDIT_QUEUED_MAX + 2; i++)
        post(fixture, AUDIT_CHANGE, "ops", "nodes.drain", "b");
    run_all(fixture);
    page(fixture, (struct audit_query){.max = 9, .action = STR("audit.left_out")});
    assert_non_null(strstr(fixture->query.answer.at, "\"kind\":\"change\",\"count\":2"));
}

static void no_place_for_a_file(void **state)
{
    struct fixture *fixture = *state;

    audit_free(fixture->server.audit);
    fixture->server.audit = audit_open(STR("/proc/nowhere"));
    note(fixture, "ops", "nodes.drain", "a");
    assert_string_equal(page(fixture, (struct audit_query){.max = 10}), "a");
}

static int last_error;

static void written(struct audit_request *request)
{
    last_error = request->error;
}

/* Writes an entry that must be on disk; returns its errno, or 0. */
static int must(struct fixture *fixture, const char *target)
{
    struct audit_record record = {.request = {.from = &fixture->worker, .done = written},
                                  .entry = {.at_ms = 1, .count = 1, .action = "nodes.drain"}};

    str_copy(str_of(target), record.entry.target, sizeof record.entry.target);
    last_error = -1;
    audit_write(&record);
    assert_int_equal(last_error, -1);
    run_all(fixture);
    inbox_run(&fixture->worker.loop.inbox);
    return last_error;
}

static void a_disk_that_refuses_is_told(void **state)
{
    struct fixture *fixture = *state;
    struct rlimit had, none;

    assert_int_equal(must(fixture, "a"), 0);
    reopen(fixture);
    assert_string_equal(page(fixture, (struct audit_query){.max = 10}), "a");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &had), 0);
    none = (struct rlimit){.rlim_cur = 200, .rlim_max = had.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    assert_int_equal(must(fixture, "b"), EFBIG); /* a part of the line may have been written */
    assert_int_equal(must(fixture, "c"), EFBIG);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &had), 0);
    assert_int_equal(must(fixture, "d"), 0);
    reopen(fixture);
    assert_string_equal(page(fixture, (struct audit_query){.max = 10}), "d a");
    audit_free(fixture->server.audit);
    fixture->server.audit = audit_open(STR("/proc/nowhere"));
    assert_int_equal(must(fixture, "e"), ENOENT);
}

/* --- the chain --- */

static void path_of(const struct fixture *fixture, const char *name, char to[128])
{
    snprintf(to, 128, "%s/%s", fixture->dir, name);
}

/* Verifies the chain and returns the first entry that does not fit; 0: all fit, -1: nothing is
 * signed. */
static int64_t broken(struct fixture *fixture)
{
    struct arena arena = {0};
    const struct json *root, *chain;
    int64_t id = 0;

    page(fixture, (struct audit_query){.max = 1, .verify = true});
    assert_int_equal(json_parse(buf_view(&fixture->query.answer), &arena, &root, NULL), ERR_OK);
    chain = json_get(root, "chain");
    if (json_is_null(chain))
        id = -1;
    else
        json_int(json_get(chain, "broken_id"), &id);
    assert_true(json_is_null(chain) || (id == 0) == json_is_null(json_get(chain, "broken_reason")));
    arena_free(&arena);
    return id;
}

enum { LINES_MAX = 16 };

static size_t read_lines(struct fixture *fixture, const char *name, char *lines[LINES_MAX])
{
    char path[128], *line = NULL;
    size_t size = 0, count = 0;
    FILE *file;

    path_of(fixture, name, path);
    file = fopen(path, "re");
    assert_non_null(file);
    while (getline(&line, &size, file) > 0) {
        assert_true(count < LINES_MAX);
        lines[count++] = strdup(line);
    }
    free(line);
    fclose(file);
    return count;
}

/* Rewrites the file with some of its own lines: "134" leaves out the second. */
static void rewrite(struct fixture *fixture, const char *name, const char *order)
{
    char path[128], *lines[LINES_MAX];
    size_t count = read_lines(fixture, name, lines);
    FILE *file;

    path_of(fixture, name, path);
    file = fopen(path, "we");
    assert_non_null(file);
    for (; *order; order++)
        fputs(lines[*order - '1'], file);
    fclose(file);
    while (count > 0)
        free(lines[--count]);
}

/* Changes one character of a line. */
static void alter(struct fixture *fixture, size_t number, const char *find, char to)
{
    char path[128], *lines[LINES_MAX];
    size_t count = read_lines(fixture, "audit.jsonl", lines);
    FILE *file;

    assert_true(number < count && strstr(lines[number], find));
    strstr(lines[number], find)[strlen(find) - 1] = to;
    path_of(fixture, "audit.jsonl", path);
    file = fopen(path, "we");
    for (size_t i = 0; i < count; i++) {
        fputs(lines[i], file);
        free(lines[i]);
    }
    fclose(file);
}

static void a_change_of_the_file_is_noticed(void **state)
{
    static const struct {
        const char *order; /* of the remaining lines */
        int64_t broken;
    } rows[] = {
        {"1234", 0}, {"234", 2},   {"134", 3},  {"124", 4},   {"123", 4}, {"", 4},
        {"1324", 3}, {"12234", 2}, {"4123", 4}, {"12341", 1}, {"1", 4},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct fixture *fixture;

        setup((void **)&fixture);
        note_four(fixture);
        assert_int_equal(broken(fixture), 0);
        rewrite(fixture, "audit.jsonl", rows[i].order);
        if (broken(fixture) != rows[i].broken)
            fail_msg("%s: %lld", rows[i].order, (long long)broken(fixture));
        reopen(fixture); /* neither a restart nor later entries hide it */
        if (broken(fixture) != rows[i].broken)
            fail_msg("%s, restarted: %lld", rows[i].order, (long long)broken(fixture));
        note(fixture, "ops", "nodes.drain", "e");
        if ((broken(fixture) != 0) != (rows[i].broken != 0))
            fail_msg("%s, and one more: %lld", rows[i].order, (long long)broken(fixture));
        teardown((void **)&fixture);
    }
}

static void a_change_of_a_line_is_noticed(void **state)
{
    static const char *const places[] = {"\"who\":\"o", "\"status\":2", "\"at_ms\":1", "\"id\":2",
                                         "\"mac\":\""};

    for (size_t i = 0; i < COUNT_OF(places); i++) {
        struct fixture *fixture;

        setup((void **)&fixture);
        note_four(fixture);
        alter(fixture, 1, places[i], '9');
        if (!broken(fixture))
            fail_msg("%s", places[i]);
        teardown((void **)&fixture);
    }
}

static void a_line_that_nobody_signed(void **state)
{
    struct fixture *fixture = *state;

    note_four(fixture);
    append_to_file(fixture,
                   "{\"id\":5,\"at_ms\":1,\"action\":\"x\",\"target\":\"y\",\"status\":200}\n");
    assert_int_equal(broken(fixture), 5);
}

/* What a crash leaves is no change: a cut line, a whole line without its newline, a file that is
 * ahead of the notes beside it. */
static void a_crash_breaks_nothing(void **state)
{
    struct fixture *fixture = *state;
    char chain[128], kept[128];

    note(fixture, "ops", "nodes.drain", "a");
    path_of(fixture, "audit.chain", chain);
    path_of(fixture, "kept", kept);
    char command[300];
    snprintf(command, sizeof command, "cp %s %s", chain, kept);
    assert_int_equal(system(command), 0);
    note(fixture, "ops", "nodes.drain", "b");
    append_to_file(fixture, "{\"id\":3,\"at_ms\":1000,\"who\":\"o");
    assert_int_equal(rename(kept, chain), 0);
    reopen(fixture);
    assert_int_equal(broken(fixture), 0);
    note(fixture, "ops", "nodes.drain", "c");
    assert_int_equal(broken(fixture), 0);
    char path[128];
    struct stat st;
    path_of(fixture, "audit.jsonl", path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 1), 0);
    reopen(fixture);
    note(fixture, "ops", "nodes.drain", "d");
    assert_int_equal(broken(fixture), 0);
    assert_string_equal(page(fixture, (struct audit_query){.max = 10}), "d c b a");
}

/* A line that a full disk did not take, or took in part, is not in the chain. */
static void a_full_disk_breaks_nothing(void **state)
{
    struct fixture *fixture = *state;
    struct rlimit had, some;
    struct stat st;
    char path[128];

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &had), 0);
    signal(SIGXFSZ, SIG_IGN);
    path_of(fixture, "audit.jsonl", path);
    for (rlim_t more = 0; more < 400; more += 7) { /* a line has fewer bytes than this */
        assert_int_equal(must(fixture, "a"), 0);
        assert_int_equal(stat(path, &st), 0);
        some = (struct rlimit){.rlim_cur = (rlim_t)st.st_size + more, .rlim_max = had.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &some), 0);
        must(fixture, "b");
        must(fixture, "c");
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &had), 0);
        if (broken(fixture))
            fail_msg("%d bytes: %lld", (int)more, (long long)broken(fixture));
    }
    assert_int_equal(must(fixture, "d"), 0);
    reopen(fixture);
    assert_int_equal(broken(fixture), 0);
}

static void fill_file(struct fixture *fixture)
{
    struct audit_entry entry = {
        .at_ms = 1000, .kind = AUDIT_CHANGE, .count = 1, .status = 200, .action = "nodes.drain"};
    struct stat st = {0};
    char path[128];

    path_of(fixture, "audit.jsonl", path);
    memset(entry.target, 'x', sizeof entry.target - 1);
    memset(entry.request_id, 'x', sizeof entry.request_id - 1);
    memset(entry.who, 'x', sizeof entry.who - 1);
    do {
        for (int i = 0; i < AUDIT_BATCH_MAX; i++)
            audit_note(&fixture->worker, &entry);
        run_all(fixture);
        assert_int_equal(stat(path, &st), 0);
    } while (st.st_size < AUDIT_FILE_BYTES_MAX);
}

static int open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

/* Dropping old entries is no gap in the chain; a missing or older file is one. */
static void rotation_is_no_gap(void **state)
{
    struct fixture *fixture = *state;
    char old[128], kept[128], command[300];
    int files = open_files();

    path_of(fixture, "audit.jsonl.1", old);
    path_of(fixture, "kept", kept);
    for (int i = 0; i < 3; i++) {
        fill_file(fixture);
        note(fixture, "ops", "nodes.drain", "first of the next");
        assert_int_equal(open_files(), files);
        if (broken(fixture))
            fail_msg("file %d: %lld", i, (long long)broken(fixture));
        if (i == 0) {
            snprintf(command, sizeof command, "cp %s %s", old, kept);
            assert_int_equal(system(command), 0);
        }
        reopen(fixture);
        assert_int_equal(broken(fixture), 0);
    }
    assert_int_equal(rename(kept, old), 0); /* the file from two rotations ago */
    assert_true(broken(fixture) > 0);
    unlink(old);
    assert_true(broken(fixture) > 0);
    fill_file(fixture);
    fill_file(fixture); /* the changed file is rotated away */
    note(fixture, "ops", "nodes.drain", "x");
    assert_int_equal(broken(fixture), 0);
}

static void files_that_cannot_be_renamed(void **state)
{
    struct fixture *fixture = *state;
    char old[128];

    path_of(fixture, "audit.jsonl.1", old);
    assert_int_equal(mkdir(old, 0700), 0);
    fill_file(fixture);
    for (int i = 0; i < 3; i++) {
        note(fixture, "ops", "nodes.drain", "x");
        assert_int_equal(broken(fixture), 0);
    }
    assert_int_equal(rmdir(old), 0);
    note(fixture, "ops", "nodes.drain", "y");
    assert_int_equal(broken(fixture), 0);
    reopen(fixture);
    assert_int_equal(broken(fixture), 0);
}

/* Entries from before there was a key do not count as changed. */
static void an_audit_from_before(void **state)
{
    struct fixture *fixture = *state;
    char path[128];

    audit_free(fixture->server.audit);
    path_of(fixture, "audit.key", path);
    unlink(path);
    path_of(fixture, "audit.chain", path);
    unlink(path);
    append_to_file(fixture,
                   "{\"id\":1,\"at_ms\":1,\"action\":\"x\",\"target\":\"a\",\"status\":200}\n"
                   "{\"id\":2,\"at_ms\":1,\"action\":\"x\",\"target\":\"b\",\"status\":403}\n");
    fixture->server.audit = audit_open(str_of(fixture->dir));
    assert_int_equal(broken(fixture), 0);
    note(fixture, "ops", "nodes.drain", "c");
    reopen(fixture);
    assert_int_equal(broken(fixture), 0);
    assert_string_equal(page(fixture, (struct audit_query){.max = 10}), "c b a");
    struct stat st;
    path_of(fixture, "audit.key", path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

/* Removing a file beside the audit does not hide a change. */
static void without_its_key_or_its_end(void **state)
{
    static const char *const names[] = {"audit.key", "audit.chain"};

    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct fixture *fixture;
        char path[128];

        setup((void **)&fixture);
        note_four(fixture);
        rewrite(fixture, "audit.jsonl", "234");
        path_of(fixture, names[i], path);
        unlink(path);
        reopen(fixture);
        if (broken(fixture) != 2)
            fail_msg("%s: %lld", names[i], (long long)broken(fixture));
        teardown((void **)&fixture);
    }
}

/* Without audit.chain the end of the file is unknown; the missing file itself is reported instead,
 * from then on. */
static void without_its_end_nothing_can_be_taken_from_it(void **state)
{
    static const char *const orders[] = {"12", "", "1234"};

    for (size_t i = 0; i < COUNT_OF(orders); i++) {
        struct fixture *fixture;
        char path[128];

        setup((void **)&fixture);
        note_four(fixture);
        rewrite(fixture, "audit.jsonl", orders[i]);
        path_of(fixture, "audit.chain", path);
        unlink(path);
        reopen(fixture);
        if (!broken(fixture))
            fail_msg("\"%s\"", orders[i]);
        note(fixture, "ops", "nodes.drain", "e");
        if (!broken(fixture))
            fail_msg("\"%s\", and one more", orders[i]);
        reopen(fixture);
        if (!broken(fixture))
            fail_msg("\"%s\", and started again", orders[i]);
        teardown((void **)&fixture);
    }
}

/* Two servers on a shared store use one directory by mistake. */
static void a_second_server_leaves_it_alone(void **state)
{
    struct fixture *fixture = *state;
    struct audit *first = fixture->server.audit;

    note(fixture, "ops", "nodes.drain", "a");
    fixture->server.audit = audit_open(str_of(fixture->dir));
    note(fixture, "ops", "nodes.drain", "x");
    assert_string_equal(page(fixture, (struct audit_query){.max = 10}), "x");
    assert_int_equal(broken(fixture), -1); /* an audit in memory is not signed */
    audit_free(fixture->server.audit);
    fixture->server.audit = first;
    note(fixture, "ops", "nodes.drain", "b");
    assert_int_equal(broken(fixture), 0);
    reopen(fixture);
    assert_int_equal(broken(fixture), 0);
    assert_string_equal(page(fixture, (struct audit_query){.max = 10}), "b a");
}

static void without_a_place_nothing_is_signed(void **state)
{
    struct fixture *fixture = *state;

    audit_free(fixture->server.audit);
    fixture->server.audit = audit_open(STR("/proc/nowhere"));
    note(fixture, "ops", "nodes.drain", "a");
    assert_int_equal(broken(fixture), -1);
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(pages_and_filters),
        ROW(it_outlives_the_process),
        ROW(the_oldest_make_room),
        ROW(refusals_push_out_no_change),
        ROW(both_kinds_in_one_order),
        ROW(a_file_with_both_kinds),
        ROW(what_does_not_fit_is_counted),
        ROW(no_place_for_a_file),
        ROW(a_disk_that_refuses_is_told),
        ROW(a_change_of_the_file_is_noticed),
        ROW(a_change_of_a_line_is_noticed),
        ROW(a_line_that_nobody_signed),
        ROW(a_crash_breaks_nothing),
        ROW(a_full_disk_breaks_nothing),
        ROW(rotation_is_no_gap),
        ROW(files_that_cannot_be_renamed),
        ROW(an_audit_from_before),
        ROW(without_its_key_or_its_end),
        ROW(without_its_end_nothing_can_be_taken_from_it),
        ROW(a_second_server_leaves_it_alone),
        ROW(without_a_place_nothing_is_signed),
    };

    log_setup(LOG_ERROR, LOG_LOGFMT, STDERR_FILENO);
    return cmocka_run_group_tests_name("server/audit", tests, NULL, NULL);
}
