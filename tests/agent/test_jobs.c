/* A job from its message to its outcome, with a server that is in this file and fake runs. Above
 * all: nothing starts before its ACK was accepted, nothing runs twice, and no outcome is lost. */
#include "agent/jobs.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "fake_run.h"
#include "unit.h"

enum { WORDS_MAX = 256 };

struct fixture {
    struct loop loop;
    struct runs *runs;
    struct jobs *jobs;
    struct config config;
    struct executor executors[3];
    struct str allowed[1];
    char dir[64];
    const char *refuse; /* why new jobs are refused; NULL: they are taken */
    int slots;          /* held by jobs */
    bool has_gpus;
    int asked_slots;     /* slots of the last job asked about */
    uint64_t asked_gpus; /* its GPUs */
    /* Messages to the server. */
    struct arena arena;
    int said;
    struct str words[WORDS_MAX];
};

static bool on_send(struct jobs *jobs, struct str text)
{
    struct fixture *fixture = jobs->user;

    assert_true(fixture->said < WORDS_MAX);
    fixture->words[fixture->said++] = arena_str(&fixture->arena, text);
    return true;
}

static const char *on_refuses(struct jobs *jobs, const struct jobs_request *request,
                              struct buf *detail)
{
    struct fixture *fixture = jobs->user;

    fixture->asked_slots = request->demand.slots;
    fixture->asked_gpus = request->gpus;
    if (fixture->refuse && request->priority < 7)
        buf_str(detail, STR("Because."));
    return request->priority < 7 ? fixture->refuse : NULL;
}

static bool on_has_gpus(struct jobs *jobs)
{
    return ((struct fixture *)jobs->user)->has_gpus;
}

static void on_slot_taken(struct agent_job *job)
{
    ((struct fixture *)job->jobs->user)->slots++;
}

static void on_slot_freed(struct agent_job *job)
{
    struct fixture *fixture = job->jobs->user;

    assert_true(fixture->slots > 0);
    fixture->slots--;
}

static void on_started(struct agent_job *job)
{
    assert_int_equal(job->state, JOBS_RUNNING);
}

static const struct jobs_handler handler = {.send = on_send,
                                            .refuses = on_refuses,
                                            .slot_taken = on_slot_taken,
                                            .slot_freed = on_slot_freed,
                                            .started = on_started,
                                            .has_gpus = on_has_gpus};

/* --- the agent's life --- */

static void on_found(struct run *run)
{
    jobs_adopt(((struct fixture *)runs_user(run->runs))->jobs, run);
}

static void fixture_open(struct fixture *fixture)
{
    struct jobs_config config = {
        .config = &fixture->config, .node_id = STR("n1"), .data_dir = fixture->dir};
    struct problem why;
    char path[96];

    fixture->slots = 0;
    assert_int_equal(loop_init(&fixture->loop, 0), ERR_OK);
    snprintf(path, sizeof path, "%s/runs", fixture->dir);
    assert_int_equal(runs_new(&fixture->loop, path, "shim", NULL, fixture, &fixture->runs, &why),
                     ERR_OK);
    config.runs = fixture->runs;
    fixture->jobs = jobs_new(&fixture->loop, &config, &handler, fixture);
    runs_adopt(fixture->runs, on_found);
    outbox_up(fixture->jobs->outbox);
}

static void fixture_close(struct fixture *fixture)
{
    jobs_free(fixture->jobs);
    runs_free(fixture->runs);
    loop_done(&fixture->loop);
}

/* As after kill -9, except that all writes are on disk; see test_outbox for lost ones. */
static void fixture_restart(struct fixture *fixture)
{
    fixture_close(fixture);
    fixture->said = 0;
    fixture_open(fixture);
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);

    fake_run_reset();
    strcpy(fixture->dir, "/tmp/berth-jobs-XXXXXX");
    if (!mkdtemp(fixture->dir))
        return -1;
    fixture->allowed[0] = STR("*");
    fixture->executors[0] = (struct executor){
        .type = STR("dev"), .command = STR("build"), .stop_grace_ms = 700, .timeout_ms = 60000};
    fixture->executors[1] = (struct executor){.type = STR("f2f"), .command = STR("translate")};
    fixture->config = (struct config){.allowed_types = {fixture->allowed, 1},
                                      .executors = fixture->executors,
                                      .executor_count = 2,
                                      .runs_kept = 2,
                                      .runs_kept_bytes = 1000,
                                      .runs_kept_ms = 60000,
                                      .max_concurrent_jobs = 16};
    fixture_open(fixture);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    char command[128];

    fixture_close(fixture);
    arena_free(&fixture->arena);
    snprintf(command, sizeof command, "rm -rf %s", fixture->dir);
    free(fixture);
    return system(command);
}

/* --- the server's side --- */

static const struct json *parse(struct fixture *fixture, struct str text)
{
    const struct json *root;

    if (json_parse(text, &fixture->arena, &root, NULL) != ERR_OK)
        fail_msg("not JSON: " STR_FMT, STR_ARG(text));
    return root;
}

__attribute__((format(printf, 2, 3))) static void job(struct fixture *fixture, const char *fmt, ...)
{
    char text[4096];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    jobs_job(fixture->jobs,
             parse(fixture, arena_fmt(&fixture->arena, "{\"msg\":\"job\",%s}", text)));
}

static void dev_job(struct fixture *fixture, const char *id)
{
    job(fixture, "\"job_id\":\"%s\",\"attempt_id\":1,\"type\":\"dev\",\"payload\":{\"n\":1}", id);
}

static void reply_to(struct fixture *fixture, int word, const char *rest)
{
    int64_t id;

    assert_true(word < fixture->said);
    assert_true(json_int(json_get(parse(fixture, fixture->words[word]), "id"), &id));
    outbox_reply(fixture->jobs->outbox,
                 parse(fixture, arena_fmt(&fixture->arena, "{\"msg\":\"reply\",\"re\":%lld,%s}",
                                          (long long)id, rest)));
}

static void accept_last(struct fixture *fixture)
{
    reply_to(fixture, fixture->said - 1, "\"ok\":true");
}

static void say(struct fixture *fixture, void (*how)(struct jobs *jobs, const struct json *body),
                const char *id)
{
    how(fixture->jobs,
        parse(fixture,
              arena_fmt(&fixture->arena,
                        "{\"job_id\":\"%s\",\"attempt_id\":1,\"reason\":\"CANCELLED\"}", id)));
}

/* Checks the last message: its `msg`, its job and its reason (NULL: none). */
static const struct json *assert_sent(struct fixture *fixture, int count, const char *msg,
                                      const char *id, const char *reason)
{
    const struct json *last;

    assert_int_equal(fixture->said, count);
    last = parse(fixture, fixture->words[count - 1]);
    if (!json_str_is(json_get(last, "msg"), msg) || !json_str_is(json_get(last, "job_id"), id) ||
        (reason ? !json_str_is(json_get(last, "reason"), reason)
                : !json_is_null(json_get(last, "reason"))))
        fail_msg("not %s %s %s: " STR_FMT, msg, id, reason ? reason : "",
                 STR_ARG(fixture->words[count - 1]));
    return json_get(last, "result");
}

static void assert_running(struct fixture *fixture, const char *list)
{
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);

    jobs_write_running(fixture->jobs, &w);
    assert_str(buf_view(&text), list);
    buf_free(&text);
}

#define LIST(id) "[{\"job_id\":\"" id "\",\"attempt_id\":1}]"

/* A job whose process runs. */
static void run_job(struct fixture *fixture, const char *id)
{
    dev_job(fixture, id);
    accept_last(fixture);
    char key[32];
    snprintf(key, sizeof key, "%s.1", id);
    fake_run_begin(key);
}

/* --- a job that succeeds --- */

static void test_done(void **state)
{
    struct fixture *fixture = *state;
    const struct json *result;
    int64_t value;

    dev_job(fixture, "j1");
    assert_sent(fixture, 1, "ack", "j1", NULL);
    assert_int_equal(fake_run_count, 0); /* not before the ACK is accepted */
    assert_int_equal(fixture->slots, 1);
    assert_running(fixture, "[]"); /* the server has no running lease yet */
    accept_last(fixture);
    assert_int_equal(fake_run_count, 1);
    assert_running(fixture, LIST("j1"));
    fake_run_begin("j1.1");
    fake_run_end("j1.1", "EXITED", 0, -1, "last words\n");
    result = assert_sent(fixture, 2, "done", "j1", NULL);
    assert_true(json_int(json_get(result, "exit_code"), &value) && value == 0);
    assert_true(json_int(json_get(result, "user_ms"), &value) && value == 12);
    assert_true(json_int(json_get(result, "rss_kb_max"), &value) && value == 2048);
    assert_true(json_str_is(json_get(result, "tail"), "last words\\n") ||
                str_is(json_str(json_get(result, "tail"), &fixture->arena), "last words\n"));
    assert_int_equal(fixture->slots, 0);
    assert_running(fixture, LIST("j1")); /* listed until the server has the outcome */
    assert_true(fake_run_find("j1.1")->there);
    accept_last(fixture);
    assert_running(fixture, "[]");
    assert_int_equal(fixture->said, 2);
    assert_true(fake_run_find("j1.1")->there); /* its output can still be read */
    assert_non_null(jobs_find(fixture->jobs, STR("j1"), 1));
    assert_non_null(jobs_find(fixture->jobs, STR("j1"), 0));
}

/* Of settled jobs the newest are kept. */
static void test_kept(void **state)
{
    struct fixture *fixture = *state;

    for (int i = 0; i < 5; i++) {
        char id[8], key[8];

        snprintf(id, sizeof id, "j%d", i);
        snprintf(key, sizeof key, "j%d.1", i);
        run_job(fixture, id);
        fake_run_end(key, "EXITED", 0, -1, "");
        accept_last(fixture);
    }
    assert_false(fake_run_find("j2.1")->there);
    assert_true(fake_run_find("j3.1")->there && fake_run_find("j4.1")->there);
    assert_null(jobs_find(fixture->jobs, STR("j2"), 1));
}

static void test_kept_bytes_and_age(void **state)
{
    static const struct {
        int64_t written, dropped, age_ms;
        bool left; /* kept in the end */
    } rows[] = {
        {900, 0, 0, false},    /* too much with the next two */
        {500, 0, 0, true},     /* */
        {9500, 9000, 0, true}, /* most of it was dropped already */
        {0, 0, 60001, false},  /* too old */
        {0, 0, 59000, true},   /* */
        {0, 0, -100000, true}, /* the clock was set back */
    };
    struct fixture *fixture = *state;

    fixture->config.runs_kept = 100;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char id[8], key[8];

        snprintf(id, sizeof id, "j%zu", i);
        snprintf(key, sizeof key, "j%zu.1", i);
        run_job(fixture, id);
        fake_run_end(key, "EXITED", 0, -1, "");
        fake_run_find(key)->run.exit.output_bytes = rows[i].written;
        fake_run_find(key)->run.exit.output_dropped = rows[i].dropped;
        fake_run_find(key)->run.exit.ended_ms = fixture->loop.wall_ms - rows[i].age_ms;
        accept_last(fixture);
    }
    jobs_trim(fixture->jobs);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char key[8];

        snprintf(key, sizeof key, "j%zu.1", i);
        assert_int_equal(fake_run_find(key)->there, rows[i].left);
    }
    fixture->config.runs_kept_bytes = 0;
    jobs_trim(fixture->jobs);
    assert_false(fake_run_find("j1.1")->there || fake_run_find("j2.1")->there);
    assert_true(fake_run_find("j4.1")->there);
}

static void test_reasons(void **state)
{
    static const struct {
        const char *reason;
        int exit_code, signal;
        const char *msg, *reported;
    } rows[] = {
        {"EXITED", 0, -1, "done", NULL},
        {"EXITED", 3, -1, "fail", "EXIT_3"},
        {"SIGNALLED", -1, 9, "fail", "SIGNAL_KILL"},
        {"SIGNALLED", -1, 11, "fail", "SIGNAL_SEGV"},
        {"SIGNALLED", -1, 40, "fail", "SIGNAL_40"},
        {"TIMEOUT", -1, 15, "fail", "TIMEOUT"},
        {"DEADLINE", -1, 15, "fail", "LEASE_LOST"},
        {"TIMEOUT", 0, -1, "fail", "TIMEOUT"}, /* it exited when asked to, but late */
        {"OOM", -1, 9, "fail", "OOM"},
        {"START_FAILED", -1, -1, "fail", "START_FAILED"},
        {"SHIM_LOST", -1, -1, "fail", "SHIM_LOST"},
        {"EMERGENCY", -1, 15, "fail", "EMERGENCY"},
    };
    struct fixture *fixture = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char id[8], key[16];

        snprintf(id, sizeof id, "j%zu", i);
        snprintf(key, sizeof key, "j%zu.1", i);
        run_job(fixture, id);
        fake_run_end(key, rows[i].reason, rows[i].exit_code, rows[i].signal, "");
        assert_sent(fixture, fixture->said, rows[i].msg, id, rows[i].reported);
        accept_last(fixture);
        assert_int_equal(fixture->slots, 0);
    }
}

/* --- what is run --- */

static void test_executor(void **state)
{
    struct str args[] = {STR("-x"), STR("two words")}, env[] = {STR("A=b"), STR("BERTH_TYPE=no")};
    struct fixture *fixture = *state;
    struct fake_run *fake;
    char want[256];

    fixture->executors[0].args = (struct strs){args, 2};
    fixture->executors[0].env = (struct strs){env, 2};
    fixture->executors[0].cwd = STR("/srv");
    fixture->executors[0].user = STR("nobody");
    fixture->executors[0].memory_mb_max = 100;
    fixture->executors[0].pids_max = 7;
    fixture->executors[0].disk_mb_max = 3;
    job(fixture, "\"job_id\":\"j1\",\"attempt_id\":2,\"type\":\"dev\",\"payload\":[1, 2],"
                 "\"session_id\":\"s 1\",\"timeout_ms\":5000,\"title\":\"t\",\"new_field\":{}");
    accept_last(fixture);
    fake = fake_run_find("j1.2");
    assert_string_equal(fake->argv, "build|-x|two words");
    assert_string_equal(fake->input, "[1, 2]");
    snprintf(want, sizeof want,
             "A=b|BERTH_TYPE=no|BERTH_JOB_ID=j1|BERTH_ATTEMPT_ID=2|BERTH_NODE_ID=n1|BERTH_TYPE=dev|"
             "BERTH_SESSION_ID=s 1|BERTH_RESULT_FILE=%s/runs/j1.2/work/.result.json",
             fixture->dir);
    assert_string_equal(fake->env, want);
    assert_int_equal(fake->spec.timeout_ms, 5000); /* the shorter of the two */
    assert_int_equal(fake->spec.stop_grace_ms, 700);
    assert_int_equal(fake->spec.memory_bytes_max, 100 << 20);
    assert_int_equal(fake->spec.pids_max, 7);
    assert_int_equal(fake->spec.disk_bytes_max, 3 << 20);
    assert_str(fake->spec.cwd, "/srv");
    assert_str(fake->spec.user, "nobody");
}

static void test_timeouts(void **state)
{
    static const struct {
        int64_t job, executor, used;
    } rows[] = {{0, 0, 0}, {5, 0, 5}, {0, 7, 7}, {5, 7, 5}, {9, 7, 7}};
    struct fixture *fixture = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char key[16];

        snprintf(key, sizeof key, "j%zu.1", i);
        fixture->executors[0].timeout_ms = rows[i].executor;
        job(fixture, "\"job_id\":\"j%zu\",\"attempt_id\":1,\"type\":\"dev\",\"timeout_ms\":%lld", i,
            (long long)rows[i].job);
        accept_last(fixture);
        assert_int_equal(fake_run_find(key)->spec.timeout_ms, rows[i].used);
        assert_string_equal(fake_run_find(key)->input, "");
    }
}

/* A face-to-face job has no payload: its fields are its input. */
static void test_f2f(void **state)
{
    struct fixture *fixture = *state;

    fixture->allowed[0] = STR("talk"); /* checked by language, not by task type */
    job(fixture, "\"job_id\":\"j1\",\"attempt_id\":1,\"type\":\"f2f\",\"session_id\":\"room\","
                 "\"src\":\"en\",\"tgt\":\"zh\",\"audio_ref\":\"blob://1\",\"priority\":7,"
                 "\"options\":{\"require_tts\":true}");
    accept_last(fixture);
    assert_string_equal(fake_run_find("j1.1")->argv, "translate");
    assert_string_equal(fake_run_find("j1.1")->input,
                        "{\"session_id\":\"room\",\"src\":\"en\",\"tgt\":\"zh\","
                        "\"audio_ref\":\"blob://1\",\"options\":{\"require_tts\":true}}");
    assert_has(str_of(fake_run_find("j1.1")->env), "|BERTH_SRC=en|BERTH_TGT=zh|");
}

/* A command states no needs: it gets the agent's limits, if they can be enforced. */
static void test_bounds_of_commands(void **state)
{
    static const struct {
        bool offered;
        int64_t pids_max, memory_mb_max; /* of the agent */
        int64_t pids, memory_mb;         /* of the run */
    } rows[] = {
        {true, 512, 0, 512, 0}, {true, 20, 64, 20, 64}, {true, 0, 0, 0, 0}, {false, 512, 64, 0, 0}};
    struct cgroup_place before = fake_run_offered;
    struct fixture *fixture = *state;

    fixture->config.allow_commands = true;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct fake_run *fake;
        char id[16], key[24];

        snprintf(id, sizeof id, "b%zu", i);
        snprintf(key, sizeof key, "%s.1", id);
        fake_run_offered = (struct cgroup_place){.limits[CGROUP_PIDS] = rows[i].offered,
                                                 .limits[CGROUP_MEMORY] = rows[i].offered};
        fixture->config.job_pids_max = rows[i].pids_max;
        fixture->config.job_memory_mb_max = rows[i].memory_mb_max;
        job(fixture, "\"job_id\":\"%s\",\"attempt_id\":1,\"type\":\"any\",\"command\":\"ls\"", id);
        accept_last(fixture);
        fake = fake_run_find(key);
        assert_int_equal(fake->spec.pids_max, rows[i].pids);
        assert_int_equal(fake->spec.memory_bytes_max, rows[i].memory_mb << 20);
        assert_true(fake->spec.alone);
        fake_run_end(key, "EXITED", 0, -1, "");
        accept_last(fixture);
    }
    fake_run_offered = before;
}

static void test_commands(void **state)
{
    static const struct {
        const char *command, *argv; /* NULL: START_FAILED */
    } rows[] = {
        {"\"echo $A\"", "/bin/sh|-c|echo $A"},
        {"[\"ls\",\"-l\",\"a b\"]", "ls|-l|a b"},
        {"[]", NULL},
        {"[\"ls\",1]", NULL},
        {"{\"a\":1}", NULL},
        {"[\"a\\u0000b\"]", NULL},
        {"7", NULL},
    };
    struct fixture *fixture = *state;

    fixture->config.allow_commands = true;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char id[8], key[16];

        snprintf(id, sizeof id, "j%zu", i);
        snprintf(key, sizeof key, "j%zu.1", i);
        job(fixture, "\"job_id\":\"%s\",\"attempt_id\":1,\"type\":\"any\",\"command\":%s", id,
            rows[i].command);
        accept_last(fixture);
        if (rows[i].argv) {
            assert_string_equal(fake_run_find(key)->argv, rows[i].argv);
        } else {
            assert_sent(fixture, fixture->said, "fail", id, "START_FAILED");
            accept_last(fixture);
            assert_null(jobs_find(fixture->jobs, str_of(id), 1));
        }
    }
    assert_int_equal(fixture->slots, 2);
}

/* Clients choose the words of a job, so it gets only secrets that a rule gives it; a command of its
 * own gets none of the executor's. */
static void test_secrets(void **state)
{
    static const struct {
        const char *type, *fields, *secrets; /* NULL: START_FAILED */
    } rows[] = {
        {"dev", "", "KEY=api-key"},
        {"dev", ",\"secrets\":[\"ci\"]", "KEY=api-key|ci"},
        /* `dev` of another namespace. */
        {"dev", ",\"namespace\":\"maps\",\"secrets\":[\"ci\"]", NULL},
        /* The executor has it, but the job may not name it. */
        {"dev", ",\"secrets\":[\"api-key\"]", NULL},
        {"dev", ",\"secrets\":[\"none\"]", NULL},
        {"dev", ",\"secrets\":[\"../x\"]", NULL},
        {"dev", ",\"command\":\"env\"", ""},
        {"dev", ",\"command\":\"env\",\"secrets\":{\"K\":\"ci\"}", NULL},
        {"dev", ",\"command\":\"env\",\"secrets\":{\"K\":\"open\"}", "K=open"},
        {"any", ",\"command\":\"env\",\"secrets\":[\"api-key\"]", NULL},
    };
    struct str own[] = {STR("KEY=api-key")}, dev[] = {STR("dev")};
    struct secret_rule rules[] = {
        {.name = STR("ci"), .types = {dev, 1}},
        {.name = STR("open"), .types = {dev, 1}, .commands = true},
    };
    struct fixture *fixture = *state;

    fixture->config.allow_commands = true;
    fixture->config.secret_rules = rules;
    fixture->config.secret_rule_count = COUNT_OF(rules);
    fixture->executors[0].secrets = (struct strs){own, 1};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct fake_run *fake;
        char id[16], key[24];

        snprintf(id, sizeof id, "s%zu", i);
        snprintf(key, sizeof key, "%s.1", id);
        job(fixture, "\"job_id\":\"%s\",\"attempt_id\":1,\"type\":\"%s\"%s", id, rows[i].type,
            rows[i].fields);
        accept_last(fixture);
        fake = fake_run_find(key);
        if (!fake || (rows[i].secrets == NULL) != fake->run.unstarted ||
            (rows[i].secrets && strcmp(fake->secrets, rows[i].secrets) != 0))
            fail_msg("row %zu: %s", i, fake ? fake->secrets : "was not started");
        if (rows[i].secrets)
            fake_run_end(key, "EXITED", 0, -1, "");
        accept_last(fixture);
    }
}

static void test_start_fails(void **state)
{
    struct fixture *fixture = *state;
    const struct json *result;

    fake_run_fail = "The disk is full.";
    dev_job(fixture, "j1");
    accept_last(fixture);
    result = assert_sent(fixture, 2, "fail", "j1", "START_FAILED");
    assert_true(json_str_is(json_get(result, "detail"), "The disk is full."));
    assert_int_equal(fixture->slots, 0);
    assert_running(fixture, LIST("j1"));
    accept_last(fixture);
    assert_running(fixture, "[]");
}

/* --- refusals --- */

static void test_refusals(void **state)
{
    static const struct {
        const char *allowed, *type, *command, *machine;
        int priority;
        const char *reason; /* NULL: taken */
    } rows[] = {
        {"*", "dev", "null", NULL, 5, NULL},
        {"dev", "dev", "null", NULL, 5, NULL},
        {"talk", "dev", "null", NULL, 5, "TYPE_NOT_ALLOWED"},
        {"*", "talk", "null", NULL, 5, "TYPE_NOT_ALLOWED"},  /* no executor for it */
        {"*", "dev", "\"ls\"", NULL, 5, "TYPE_NOT_ALLOWED"}, /* allow_commands is off */
        {"*", "dev", "null", "NODE_OVERLOADED", 5, "NODE_OVERLOADED"},
        {"*", "dev", "null", "NODE_OVERLOADED", 7, NULL}, /* high priority still gets in */
        {"talk", "dev", "null", "NODE_OVERLOADED", 5, "TYPE_NOT_ALLOWED"},
    };
    struct fixture *fixture = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char id[8];

        snprintf(id, sizeof id, "j%zu", i);
        fixture->allowed[0] = str_of(rows[i].allowed);
        fixture->refuse = rows[i].machine;
        fixture->said = fixture->slots = 0;
        job(fixture,
            "\"job_id\":\"%s\",\"attempt_id\":1,\"type\":\"%s\",\"command\":%s,"
            "\"priority\":%d",
            id, rows[i].type, rows[i].command, rows[i].priority);
        if (rows[i].reason)
            assert_sent(fixture, 1, "fail", id, rows[i].reason);
        else
            assert_sent(fixture, 1, "ack", id, NULL);
        assert_int_equal(fixture->slots, rows[i].reason == NULL);
        if (rows[i].reason) {
            accept_last(fixture);
            assert_null(jobs_find(fixture->jobs, str_of(id), 1));
        }
    }
    assert_int_equal(fake_run_count, 0);
}

/* The same attempt may come again after a refusal, and is checked again. */
static void test_refused_is_not_known(void **state)
{
    struct fixture *fixture = *state;

    fixture->refuse = "NODE_OVERLOADED";
    dev_job(fixture, "j1");
    accept_last(fixture);
    fixture->refuse = NULL;
    dev_job(fixture, "j1");
    assert_sent(fixture, 2, "ack", "j1", NULL);
}

static void test_unreadable(void **state)
{
    struct fixture *fixture = *state;

    job(fixture, "\"attempt_id\":1,\"type\":\"dev\"");
    job(fixture, "\"job_id\":\"j1\",\"type\":\"dev\"");
    job(fixture, "\"job_id\":\"../x\",\"attempt_id\":1,\"type\":\"dev\"");
    job(fixture, "\"job_id\":\"j1\",\"attempt_id\":0,\"type\":\"dev\"");
    job(fixture, "\"job_id\":\"j1\",\"attempt_id\":1");
    assert_int_equal(fixture->said, 0);
    assert_int_equal(fixture->slots, 0);
}

/* --- the ACK --- */

static void test_ack_answers(void **state)
{
    static const struct {
        const char *reply;
        bool runs, waits;
    } rows[] = {
        {"\"ok\":true", true, false},
        {"\"ok\":true,\"duplicate\":true", true, false},
        {"\"status\":409,\"error\":\"STALE_ATTEMPT\"", false, false},
        {"\"status\":404", false, false},
        {"\"status\":503", false, true},
    };
    struct fixture *fixture = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char id[8], key[16];

        snprintf(id, sizeof id, "j%zu", i);
        snprintf(key, sizeof key, "j%zu.1", i);
        fixture->slots = 0;
        dev_job(fixture, id);
        reply_to(fixture, fixture->said - 1, rows[i].reply);
        assert_int_equal(fake_run_find(key) != NULL, rows[i].runs);
        assert_int_equal(fixture->slots, rows[i].runs || rows[i].waits);
        assert_int_equal(jobs_find(fixture->jobs, str_of(id), 1) != NULL,
                         rows[i].runs || rows[i].waits);
    }
}

/* The connection breaks while the ACK is under way: it is sent again, and nothing starts before its
 * answer. */
static void test_ack_again_after_reconnect(void **state)
{
    struct fixture *fixture = *state;

    dev_job(fixture, "j1");
    outbox_down(fixture->jobs->outbox);
    reply_to(fixture, 0, "\"ok\":true"); /* impossible, as that connection is closed */
    assert_int_equal(fake_run_count, 0);
    outbox_up(fixture->jobs->outbox);
    assert_sent(fixture, 2, "ack", "j1", NULL);
    reply_to(fixture, 1, "\"ok\":true,\"duplicate\":true");
    assert_int_equal(fake_run_count, 1);
}

/* An agent that dies between the ACK and the start has started nothing, and the next one starts
 * nothing either. */
static void test_dies_before_the_answer(void **state)
{
    struct fixture *fixture = *state;

    dev_job(fixture, "j1");
    fixture_restart(fixture);
    assert_int_equal(fixture->said, 0);
    assert_running(fixture, "[]");
    assert_int_equal(fake_run_count, 0);
}

/* --- the same attempt again --- */

static void test_again(void **state)
{
    struct fixture *fixture = *state;

    dev_job(fixture, "j1");
    dev_job(fixture, "j1"); /* its ACK is under way and will be answered */
    assert_int_equal(fixture->said, 1);
    accept_last(fixture);
    dev_job(fixture, "j1"); /* running: acknowledged again */
    assert_sent(fixture, 2, "ack", "j1", NULL);
    dev_job(fixture, "j1");
    assert_int_equal(fixture->said, 2);
    reply_to(fixture, 1, "\"ok\":true,\"duplicate\":true");
    assert_int_equal(fake_run_count, 1);
    fake_run_begin("j1.1");
    fake_run_end("j1.1", "EXITED", 3, -1, "");
    dev_job(fixture, "j1"); /* its outcome is under way */
    assert_sent(fixture, 3, "fail", "j1", "EXIT_3");
    accept_last(fixture);
    dev_job(fixture, "j1"); /* settled: the same outcome again */
    assert_sent(fixture, 4, "fail", "j1", "EXIT_3");
    accept_last(fixture);
    assert_int_equal(fake_run_count, 1);
    assert_int_equal(fixture->slots, 0);
}

static void test_again_but_not_ours(void **state)
{
    struct fixture *fixture = *state;

    run_job(fixture, "j1");
    dev_job(fixture, "j1");
    reply_to(fixture, 1, "\"status\":409");
    assert_string_equal(fake_run_find("j1.1")->stop, "DROPPED");
    fake_run_end("j1.1", "DROPPED", -1, 15, "");
    assert_int_equal(fixture->said, 2);
    assert_false(fake_run_find("j1.1")->there);
}

/* The run ends while the second ACK is under way: the outcome is sent without waiting for that
 * ACK. */
static void test_again_then_ends(void **state)
{
    struct fixture *fixture = *state;

    run_job(fixture, "j1");
    dev_job(fixture, "j1");
    fake_run_end("j1.1", "EXITED", 0, -1, "");
    assert_sent(fixture, 3, "done", "j1", NULL);
    reply_to(fixture, 1, "\"status\":409");
    accept_last(fixture);
    assert_running(fixture, "[]");
}

/* --- cancel and drop --- */

static void test_cancel(void **state)
{
    struct fixture *fixture = *state;

    run_job(fixture, "j1");
    say(fixture, jobs_cancel, "j1");
    assert_string_equal(fake_run_find("j1.1")->stop, "CANCELLED");
    assert_int_equal(fake_run_find("j1.1")->stop_grace_ms, -1); /* the run's own */
    assert_int_equal(fixture->said, 1);
    say(fixture, jobs_cancel, "j1");
    say(fixture, jobs_cancel, "unknown");
    fake_run_end("j1.1", "CANCELLED", -1, 15, "");
    assert_sent(fixture, 2, "fail", "j1", "CANCELLED");
    say(fixture, jobs_cancel, "j1"); /* too late */
    accept_last(fixture);
    say(fixture, jobs_cancel, "j1");
    assert_int_equal(fixture->said, 2);
}

/* The cancel arrives before the ACK is accepted. */
static void test_cancel_before_it_began(void **state)
{
    struct fixture *fixture = *state;

    dev_job(fixture, "j1");
    say(fixture, jobs_cancel, "j1");
    assert_int_equal(fixture->said, 1);
    accept_last(fixture);
    assert_sent(fixture, 2, "fail", "j1", "CANCELLED");
    assert_true(fake_run_find("j1.1")->run.unstarted);
    assert_int_equal(fixture->slots, 0);
}

static void test_drop(void **state)
{
    struct fixture *fixture = *state;

    run_job(fixture, "j1");
    say(fixture, jobs_drop, "j1");
    assert_string_equal(fake_run_find("j1.1")->stop, "DROPPED");
    assert_running(fixture, "[]");
    assert_int_equal(fixture->slots, 1); /* it still takes room */
    say(fixture, jobs_drop, "j1");
    fake_run_end("j1.1", "DROPPED", -1, 15, "");
    assert_int_equal(fixture->said, 1);
    assert_false(fake_run_find("j1.1")->there);
    assert_int_equal(fixture->slots, 0);
}

/* A drop crosses with the outcome: the answer to the outcome decides. */
static void test_drop_while_reporting(void **state)
{
    struct fixture *fixture = *state;

    run_job(fixture, "j1");
    fake_run_end("j1.1", "EXITED", 0, -1, "");
    say(fixture, jobs_drop, "j1");
    assert_true(fake_run_find("j1.1")->there);
    assert_running(fixture, LIST("j1"));
    accept_last(fixture);
    assert_running(fixture, "[]");
}

static void test_kill(void **state)
{
    struct fixture *fixture = *state;
    const struct json *result;

    run_job(fixture, "j1");
    jobs_kill(jobs_find(fixture->jobs, STR("j1"), 1), STR("{\"score\":5000}"), 1000);
    assert_string_equal(fake_run_find("j1.1")->stop, "EMERGENCY");
    assert_true(fake_run_find("j1.1")->stop_grace_ms <= 1000);
    fake_run_end("j1.1", "EMERGENCY", -1, 15, "");
    result = assert_sent(fixture, 2, "fail", "j1", "EMERGENCY");
    assert_str(json_raw(json_get(result, "emergency")), "{\"score\":5000}");
}

/* --- restarts --- */

static void test_restart_while_running(void **state)
{
    struct fixture *fixture = *state;

    run_job(fixture, "j1");
    run_job(fixture, "j2");
    fixture_restart(fixture);
    assert_int_equal(fixture->said, 0);
    assert_int_equal(fixture->slots, 2);
    assert_running(fixture, "[{\"job_id\":\"j1\",\"attempt_id\":1},"
                            "{\"job_id\":\"j2\",\"attempt_id\":1}]");
    assert_int_equal(fake_run_count, 2);
    dev_job(fixture, "j1"); /* known to the new agent */
    assert_int_equal(fake_run_count, 2);
    fake_run_end("j1.1", "EXITED", 3, -1, "");
    assert_sent(fixture, 2, "fail", "j1", "EXIT_3");
    say(fixture, jobs_cancel, "j2");
    assert_string_equal(fake_run_find("j2.1")->stop, "CANCELLED");
    assert_int_equal(fixture->slots, 1);
}

/* A run that ended while there was no agent is reported from its record. */
static void test_restart_after_the_end(void **state)
{
    struct fixture *fixture = *state;

    run_job(fixture, "j1");
    fixture_close(fixture);
    fake_run_end("j1.1", "EXITED", 7, -1, "bye");
    fixture->said = 0;
    fixture_open(fixture);
    assert_sent(fixture, 1, "fail", "j1", "EXIT_7");
    assert_int_equal(fixture->slots, 0);
    assert_running(fixture, LIST("j1"));
    accept_last(fixture);
    assert_running(fixture, "[]");
}

/* An outcome without an answer is sent again, from the record. */
static void test_restart_while_reporting(void **state)
{
    struct fixture *fixture = *state;

    run_job(fixture, "j1");
    fake_run_end("j1.1", "EXITED", 3, -1, "");
    fixture_restart(fixture);
    assert_sent(fixture, 1, "fail", "j1", "EXIT_3");
    assert_running(fixture, LIST("j1"));
    accept_last(fixture);
    assert_running(fixture, "[]");
    fixture_restart(fixture);
    assert_int_equal(fixture->said, 0); /* kept for its output, and known as settled */
    assert_running(fixture, "[]");
    assert_true(fake_run_find("j1.1")->there);
    fixture->config.runs_kept = 0;
    fixture_restart(fixture);
    assert_false(fake_run_find("j1.1")->there);
}

/* A job that could not be started is reported by the next agent as well. */
static void test_restart_after_a_failed_start(void **state)
{
    struct fixture *fixture = *state;
    const struct json *result;

    fake_run_fail = "The disk is full.";
    dev_job(fixture, "j1");
    accept_last(fixture);
    fixture_restart(fixture);
    result = assert_sent(fixture, 1, "fail", "j1", "START_FAILED");
    assert_true(json_str_is(json_get(result, "detail"), "The disk is full."));
    assert_int_equal(fixture->slots, 0);
    assert_running(fixture, LIST("j1"));
    accept_last(fixture);
    assert_running(fixture, "[]");
    assert_false(fake_run_find("j1.1")->there);
}

/* The next agent knows why a job was killed. */
static void test_restart_after_a_kill(void **state)
{
    struct fixture *fixture = *state;
    const struct json *result;

    run_job(fixture, "j1");
    jobs_kill(jobs_find(fixture->jobs, STR("j1"), 1), STR("{\"score\":5000}"), 1000);
    fixture_restart(fixture);
    fake_run_end("j1.1", "EMERGENCY", -1, 15, "");
    fixture_restart(fixture);
    result = assert_sent(fixture, 1, "fail", "j1", "EMERGENCY");
    assert_str(json_raw(json_get(result, "emergency")), "{\"score\":5000}");
}

/* Killed after the answer, before it was noted: the outcome is sent again, once. */
static void test_restart_after_the_answer(void **state)
{
    struct fixture *fixture = *state;
    char path[128];

    run_job(fixture, "j1");
    fake_run_end("j1.1", "EXITED", 3, -1, "");
    accept_last(fixture);
    fixture_close(fixture);
    snprintf(path, sizeof path, "%s/runs/j1.1/settled", fixture->dir);
    assert_int_equal(unlink(path), 0);
    fixture->said = 0;
    fixture_open(fixture);
    assert_sent(fixture, 1, "fail", "j1", "EXIT_3");
    reply_to(fixture, 0, "\"ok\":true,\"duplicate\":true");
    assert_running(fixture, "[]");
    assert_int_equal(fake_run_count, 1);
}

/* An outcome without a run (it never started) survives as well. */
static void test_restart_with_orphan(void **state)
{
    struct fixture *fixture = *state;

    fake_run_fail = "No room.";
    dev_job(fixture, "j1");
    accept_last(fixture);
    fixture_restart(fixture);
    assert_sent(fixture, 1, "fail", "j1", "START_FAILED");
    accept_last(fixture);
    fixture_restart(fixture);
    assert_int_equal(fixture->said, 0);
}

/* A directory among the runs is not a valid job's: its run is ended and forgotten, and nothing is
 * sent. */
static void test_strange_runs(void **state)
{
    static const char *const metas[] = {"", "{}", "nonsense",
                                        "{\"job_id\":\"other\",\"attempt_id\":1,\"type\":\"a\"}"};
    struct fixture *fixture = *state;

    for (size_t i = 0; i < COUNT_OF(metas); i++) {
        char id[8], key[16];

        snprintf(id, sizeof id, "j%zu", i);
        snprintf(key, sizeof key, "j%zu.1", i);
        run_job(fixture, id);
        fixture_close(fixture);
        strcpy(fake_run_find(key)->meta, metas[i]);
        fake_run_find(key)->run.meta = str_of(fake_run_find(key)->meta);
        if (i % 2)
            fake_run_end(key, "EXITED", 0, -1, "");
        fixture->said = 0;
        fixture_open(fixture);
        assert_running(fixture, "[]");
        if (i % 2 == 0) {
            assert_string_equal(fake_run_find(key)->stop, "DROPPED");
            fake_run_end(key, "DROPPED", -1, 15, "");
        }
        assert_false(fake_run_find(key)->there);
        assert_int_equal(fixture->said, 0);
        assert_int_equal(fixture->slots, 0);
    }
}

/* --- the result file --- */

static void write_file(const char *path, const char *text, size_t len)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fwrite(text, 1, len, file);
    fclose(file);
}

static void result_file(struct fixture *fixture, const char *key, const char *text, size_t len)
{
    char path[256];

    snprintf(path, sizeof path, "%s/runs/%s/" RUNFILE_RESULT, fixture->dir, key);
    unlink(path);
    if (text[0] == '@')
        assert_int_equal(symlink(text + 1, path), 0);
    else
        write_file(path, text, len);
}

static void test_output(void **state)
{
    static const struct {
        const char *text;
        const char *output; /* NULL: refused, and the reason is reported */
    } rows[] = {
        {"{\"a\":[1,2]}", "{\"a\":[1,2]}"},
        {"\n{\n \"a\": 1\n}\n", "{  \"a\": 1 }"},
        {"7", "7"},
        {"null", "null"},
        {"{\"a\":1,\"a\":2}", NULL},
        {"1],[2", NULL},
        {"not JSON", NULL},
        {"\"\xff\"", NULL},
        {"@../../secret", NULL}, /* must not be taken for a file name of ours */
        {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]", NULL}, /* 30 deep */
    };
    struct fixture *fixture = *state;
    char path[128];

    snprintf(path, sizeof path, "%s/secret", fixture->dir);
    write_file(path, "{}", 2);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char id[8], key[16];
        const struct json *result;

        snprintf(id, sizeof id, "j%zu", i);
        snprintf(key, sizeof key, "j%zu.1", i);
        run_job(fixture, id);
        result_file(fixture, key, rows[i].text, strlen(rows[i].text));
        fake_run_end(key, "EXITED", 0, -1, "");
        result = assert_sent(fixture, fixture->said, "done", id, NULL);
        assert_int_equal(json_get(result, "output_error") == NULL, rows[i].output != NULL);
        if (rows[i].output)
            assert_str(json_raw(json_get(result, "output")), rows[i].output);
        else
            assert_null(json_get(result, "output"));
        accept_last(fixture);
    }
}

/* Whatever a job leaves, the message stays below the server's limit. */
static void test_result_size(void **state)
{
    struct fixture *fixture = *state;
    char *text = malloc(JOBS_OUTPUT_MAX + 2), tail[RUN_TAIL_BYTES];
    const struct json *result;

    memset(text, '1', JOBS_OUTPUT_MAX + 1);
    memset(tail, 1, sizeof tail); /* each becomes \u0001 */
    tail[sizeof tail - 1] = 0;
    run_job(fixture, "j1");
    result_file(fixture, "j1.1", text, JOBS_OUTPUT_MAX);
    fake_run_end("j1.1", "EXITED", 0, -1, tail);
    result = assert_sent(fixture, 2, "done", "j1", NULL);
    assert_int_equal(json_raw(json_get(result, "output")).len, JOBS_OUTPUT_MAX);
    assert_true(json_raw(json_get(result, "tail")).len > 1000);
    assert_true(json_raw(result).len <= JOBS_RESULT_MAX);
    run_job(fixture, "j2");
    result_file(fixture, "j2.1", text, JOBS_OUTPUT_MAX + 1);
    fake_run_end("j2.1", "EXITED", 0, -1, tail);
    result = assert_sent(fixture, 4, "done", "j2", NULL);
    assert_null(json_get(result, "output"));
    assert_true(json_raw(json_get(result, "tail")).len > 20000);
    free(text);
}

/* --- the fence --- */

enum { LEASE_MS = 120000, STEP_MS = LEASE_MS / 60 };

#define LEASED  "\"ok\":true,\"lease_ms\":120000"
#define RENEWED "{\"ok\":true,\"running_lease_ms\":120000,\"f2f_lease_ms\":45000}"

static void renewed(struct fixture *fixture, int64_t sent_ms)
{
    jobs_renewed(fixture->jobs, sent_ms, parse(fixture, STR(RENEWED)));
}

/* Only a job that may be tried again has a fence, which counts from before its ACK was sent. */
static void test_fence_begins(void **state)
{
    struct fixture *fixture = *state;
    int64_t before_ms = clock_lease_ms(), sent_ms;
    struct fake_run *fake;

    dev_job(fixture, "j1");
    sent_ms = clock_lease_ms();
    while (clock_lease_ms() < sent_ms + 5) /* the answer is slow */
        ;
    reply_to(fixture, 0, LEASED);
    fake = fake_run_find("j1.1");
    assert_true(fake->deadline_ms >= before_ms + LEASE_MS / 3 * 2);
    assert_true(fake->deadline_ms <= sent_ms + LEASE_MS / 3 * 2);
    assert_int_equal(fake->spec.deadline_grace_ms, 10000);

    dev_job(fixture, "j2");
    accept_last(fixture); /* no lease: no other node would start it */
    assert_int_equal(fake_run_find("j2.1")->deadline_ms, 0);
    renewed(fixture, clock_lease_ms() + STEP_MS);
    assert_int_equal(fake_run_find("j2.1")->deadline_ms, 0);
}

static void test_fence_moves(void **state)
{
    struct fixture *fixture = *state;
    int64_t old_ms, sent_ms;
    struct fake_run *fake;

    dev_job(fixture, "j1");
    reply_to(fixture, 0, LEASED);
    fake = fake_run_find("j1.1");
    old_ms = fake->deadline_ms;
    sent_ms = old_ms - LEASE_MS / 3 * 2 + STEP_MS;
    /* The heartbeat was accepted but renewed nothing: the store is away, or the server is old. */
    jobs_renewed(fixture->jobs, sent_ms, parse(fixture, STR("{\"ok\":true}")));
    assert_int_equal(fake->deadline_ms, old_ms);
    renewed(fixture, sent_ms - 1); /* too small a step to write a file for */
    assert_int_equal(fake->deadline_ms, old_ms);
    renewed(fixture, sent_ms);
    assert_int_equal(fake->deadline_ms, old_ms + STEP_MS);
    renewed(fixture, sent_ms - 3 * STEP_MS); /* a late answer never moves it back */
    assert_int_equal(fake->deadline_ms, old_ms + STEP_MS);
    /* A fence that has passed stays: the run is being ended, whatever the server answers. */
    fake->deadline_ms = old_ms = clock_lease_ms();
    renewed(fixture, clock_lease_ms());
    assert_int_equal(fake->deadline_ms, old_ms);
}

/* A heartbeat that was sent before it listed the job did not renew the job's lease. */
static void test_fence_of_what_was_not_listed(void **state)
{
    struct fixture *fixture = *state;
    struct fake_run *fake;
    int64_t sent_ms, old_ms;

    dev_job(fixture, "j1");
    sent_ms = clock_lease_ms();
    while (clock_lease_ms() == sent_ms)
        ;
    reply_to(fixture, 0, LEASED);
    fake = fake_run_find("j1.1");
    fake->deadline_ms = old_ms = clock_lease_ms() + 10000;
    renewed(fixture, sent_ms);
    assert_int_equal(fake->deadline_ms, old_ms);
    renewed(fixture, clock_lease_ms());
    assert_true(fake->deadline_ms > old_ms);
}

/* Each type has a lease term of its own, and the next agent goes on moving the fence. */
static void test_fence_after_a_restart(void **state)
{
    struct fixture *fixture = *state;
    int64_t sent_ms;

    job(fixture, "\"job_id\":\"j1\",\"attempt_id\":1,\"type\":\"f2f\",\"src\":\"en\"");
    reply_to(fixture, 0, "\"ok\":true,\"lease_ms\":45000");
    run_job(fixture, "j2");
    fixture_restart(fixture);
    sent_ms = clock_lease_ms() + 5000;
    renewed(fixture, sent_ms);
    assert_int_equal(fake_run_find("j1.1")->deadline_ms, sent_ms + 30000);
    assert_int_equal(fake_run_find("j2.1")->deadline_ms, 0);
}

/* A job over its timeout must be gone before the server starts it elsewhere. */
static void test_fence_and_timeout(void **state)
{
    struct fixture *fixture = *state;
    const struct run_spec *spec;
    int64_t sent_ms;

    job(fixture, "\"job_id\":\"j1\",\"attempt_id\":1,\"type\":\"dev\",\"timeout_ms\":2000");
    reply_to(fixture, 0, LEASED ",\"stop_grace_ms\":15000");
    spec = &fake_run_find("j1.1")->spec;
    assert_int_equal(spec->timeout_ms, 2000);
    assert_int_equal(spec->timeout_grace_ms, 10000);
    assert_int_equal(spec->stop_grace_ms, 700); /* otherwise unchanged */

    /* The answer took more than a third of the grace. */
    job(fixture, "\"job_id\":\"j2\",\"attempt_id\":1,\"type\":\"dev\",\"timeout_ms\":2000");
    sent_ms = clock_lease_ms();
    while (clock_lease_ms() < sent_ms + 30)
        ;
    reply_to(fixture, 1, LEASED ",\"stop_grace_ms\":30");
    spec = &fake_run_find("j2.1")->spec;
    assert_true(spec->timeout_ms <= 2000 - 20 && spec->timeout_ms > 0);
    assert_int_equal(spec->timeout_grace_ms, 20);

    job(fixture, "\"job_id\":\"j3\",\"attempt_id\":1,\"type\":\"dev\",\"timeout_ms\":2000");
    accept_last(fixture); /* its last attempt */
    spec = &fake_run_find("j3.1")->spec;
    assert_int_equal(spec->timeout_ms, 2000);
    assert_int_equal(spec->timeout_grace_ms, 0);
}

/* A job with a fence that is dropped may already run elsewhere: it gets no grace. */
static void test_fence_and_drop(void **state)
{
    struct fixture *fixture = *state;
    int64_t old_ms;

    dev_job(fixture, "j1");
    reply_to(fixture, 0, LEASED);
    run_job(fixture, "j2");
    say(fixture, jobs_drop, "j1");
    say(fixture, jobs_drop, "j2");
    assert_int_equal(fake_run_find("j1.1")->stop_grace_ms, 0);
    assert_int_equal(fake_run_find("j2.1")->stop_grace_ms, -1);
    old_ms = fake_run_find("j1.1")->deadline_ms;
    renewed(fixture, clock_lease_ms() + STEP_MS); /* the answer arrives after the drop */
    assert_int_equal(fake_run_find("j1.1")->deadline_ms, old_ms);
}

/* --- what it needs --- */

#define NEEDS                                                                                      \
    "\"needs\":{\"slots\":2,\"cpu\":1.5,\"mem_mb\":600,\"vram_mb\":700,\"licences\":1},\"gpus\":[" \
    "3]"

/* A job's needs are checked against the machine and become its limits, and its GPUs are in its
 * environment; a job without needs runs as before. */
static void test_needs(void **state)
{
    static const struct {
        const char *more;
        bool has_gpus;
        const char *visible; /* NULL: not set */
        const char *hip;
        int64_t memory_mb, weight;
    } rows[] = {
        {"," NEEDS, true, "3", "0", 600, 150},
        {"," NEEDS, false, "3", "0", 600, 150},
        {",\"needs\":{\"gpus\":2},\"gpus\":[1,5]", true, "1,5", "0,1", 1000, 0},
        {",\"needs\":{\"cpu\":0.001}", true, "", "-1", 1000, 1},
        {",\"needs\":{\"cpu\":500,\"mem_mb\":2000}", false, NULL, NULL, 1000, 10000},
        {"", true, NULL, NULL, 1000, 0},
        {",\"keys\":[\"tenant:a\"]", true, NULL, NULL, 1000, 0},
    };
    struct cgroup_place before = fake_run_offered;
    struct fixture *fixture = *state;

    fixture->executors[0].memory_mb_max = 1000;
    fake_run_offered = (struct cgroup_place){
        .limits[CGROUP_MEMORY] = true, .limits[CGROUP_CPU] = true, .limits[CGROUP_PIDS] = true};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char key[16], want[96];
        struct fake_run *fake;

        fixture->has_gpus = rows[i].has_gpus;
        job(fixture, "\"job_id\":\"n%zu\",\"attempt_id\":1,\"type\":\"dev\"%s", i, rows[i].more);
        assert_int_equal(fixture->asked_slots, i < 2 ? 2 : 1);
        accept_last(fixture);
        snprintf(key, sizeof key, "n%zu.1", i);
        fake = fake_run_find(key);
        assert_int_equal(fake->spec.memory_bytes_max, rows[i].memory_mb << 20);
        assert_int_equal(fake->spec.cpu_weight, rows[i].weight);
        assert_int_equal(fake->spec.cpu_permille_max, 0);
        if (rows[i].visible) {
            snprintf(want, sizeof want, "|CUDA_VISIBLE_DEVICES=%s|", rows[i].visible);
            assert_has(str_of(fake->env), want);
            snprintf(want, sizeof want, "|HIP_VISIBLE_DEVICES=%s|", rows[i].hip);
            assert_has(str_of(fake->env), want);
        } else {
            assert_null(strstr(fake->env, "VISIBLE_DEVICES"));
            assert_null(strstr(fake->env, "BERTH_GPUS"));
        }
    }
    /* A job runs even where its memory cannot be limited; with cpu_strict its CPU need is a hard
     * limit. */
    fake_run_offered = (struct cgroup_place){.limits[CGROUP_CPU] = true};
    fixture->executors[0].memory_mb_max = 0;
    fixture->config.cpu_strict = true;
    job(fixture, "\"job_id\":\"strict\",\"attempt_id\":1,\"type\":\"dev\"," NEEDS);
    accept_last(fixture);
    assert_int_equal(fake_run_find("strict.1")->spec.memory_bytes_max, 0);
    assert_int_equal(fake_run_find("strict.1")->spec.cpu_permille_max, 1500);
    fake_run_offered = before;
}

/* The next agent knows what the one before had promised. */
static void test_needs_after_a_restart(void **state)
{
    struct fixture *fixture = *state;
    struct agent_job *found;
    struct buf text = {0};

    job(fixture, "\"job_id\":\"j1\",\"attempt_id\":1,\"type\":\"dev\"," NEEDS);
    accept_last(fixture);
    fake_run_begin("j1.1");
    run_job(fixture, "j2");
    fixture_restart(fixture);
    found = jobs_find(fixture->jobs, STR("j1"), 1);
    assert_true(found->asks);
    assert_int_equal(found->gpus, 1 << 3);
    demand_write(&found->demand, &text);
    assert_str(buf_view(&text), "2 0 700 cpu=1500,licences=1,mem_mb=600 ");
    found = jobs_find(fixture->jobs, STR("j2"), 1);
    assert_false(found->asks);
    assert_true(demand_is_plain(&found->demand));
    buf_free(&text);
}

/* Messages with needs that cannot be read are ignored. */
static void test_needs_that_cannot_be_read(void **state)
{
    static const char *const rows[] = {
        "\"needs\":7", "\"needs\":{\"cpu\":-1}", "\"gpus\":3", "\"gpus\":[64]", "\"gpus\":[\"a\"]",
    };
    struct fixture *fixture = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        job(fixture, "\"job_id\":\"j1\",\"attempt_id\":1,\"type\":\"dev\",%s", rows[i]);
    assert_int_equal(fixture->said, 0);
    assert_int_equal(fixture->slots, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_done),
        TEST(test_kept),
        TEST(test_kept_bytes_and_age),
        TEST(test_reasons),
        TEST(test_executor),
        TEST(test_timeouts),
        TEST(test_f2f),
        TEST(test_commands),
        TEST(test_bounds_of_commands),
        TEST(test_secrets),
        TEST(test_start_fails),
        TEST(test_refusals),
        TEST(test_refused_is_not_known),
        TEST(test_unreadable),
        TEST(test_ack_answers),
        TEST(test_ack_again_after_reconnect),
        TEST(test_dies_before_the_answer),
        TEST(test_again),
        TEST(test_again_but_not_ours),
        TEST(test_again_then_ends),
        TEST(test_cancel),
        TEST(test_cancel_before_it_began),
        TEST(test_drop),
        TEST(test_drop_while_reporting),
        TEST(test_kill),
        TEST(test_restart_while_running),
        TEST(test_restart_after_the_end),
        TEST(test_restart_while_reporting),
        TEST(test_restart_after_the_answer),
        TEST(test_restart_after_a_failed_start),
        TEST(test_restart_after_a_kill),
        TEST(test_restart_with_orphan),
        TEST(test_strange_runs),
        TEST(test_output),
        TEST(test_result_size),
        TEST(test_fence_begins),
        TEST(test_fence_moves),
        TEST(test_fence_of_what_was_not_listed),
        TEST(test_fence_after_a_restart),
        TEST(test_fence_and_timeout),
        TEST(test_fence_and_drop),
        TEST(test_needs),
        TEST(test_needs_after_a_restart),
        TEST(test_needs_that_cannot_be_read),
    };

    log_setup(LOG_ERROR, LOG_LOGFMT, open("/dev/null", O_WRONLY | O_CLOEXEC));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
