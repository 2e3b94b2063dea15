/* Commands against a server with prepared answers: their requests, output and exit codes. */
#include <unistd.h>

#include "unit.h"

#include "canned.h"
#include "cli/request.h"

#define PROBLEM(error, detail) "{\"error\":\"" error "\",\"detail\":\"" detail "\"}"

struct row {
    const char *line; /* the address is appended */
    const char *answers[6];
    int code;
    const char *asked; /* how the last request begins */
    const char *sent;  /* part of the last request; NULL: not checked */
    const char *out;   /* all output; NULL: none */
    const char *err;   /* part of it; NULL: none */
};

static const struct row rows[] = {
    /* a refusal becomes a sentence and an exit code */
    {"berth job show j1",
     {"404 " PROBLEM("NOT_FOUND", "There is no job j1.")},
     CLI_NOT_FOUND,
     "GET /v1/jobs/j1 ",
     NULL,
     NULL,
     "berth: There is no job j1. (NOT_FOUND)\n"},
    {"berth job cancel j1",
     {"409 " PROBLEM("CONFLICT", "It has ended.")},
     CLI_CONFLICT,
     "POST /v1/jobs/j1/cancel ",
     NULL,
     NULL,
     "berth: It has ended. (CONFLICT)\n"},
    {"berth job submit --src en --tgt zh",
     {"422 " PROBLEM("NO_CAPABLE_NODE", "None.")},
     CLI_UNAVAILABLE,
     "POST /v1/dispatch/f2f ",
     NULL,
     NULL,
     "berth: None. (NO_CAPABLE_NODE)\n"},
    {"berth node ls",
     {"401 " PROBLEM("UNAUTHORIZED", "No token.")},
     CLI_FAILED,
     "GET /v1/nodes ",
     NULL,
     NULL,
     "wants a token: put it into a file and name that (--token-file), or into BERTH_TOKEN"},
    {"berth node ls",
     {"400 " PROBLEM("BAD_FIELD", "Bad.")},
     CLI_USAGE,
     "GET /v1/nodes ",
     NULL,
     NULL,
     "berth: Bad. (BAD_FIELD)\n"},
    {"berth node ls",
     {"502 <html>"},
     CLI_FAILED,
     "GET /v1/nodes ",
     NULL,
     NULL,
     "answered 502 without a reason. Is it a berth server?"},
    {"berth node ls",
     {"200 <html>"},
     CLI_FAILED,
     "GET /v1/nodes ",
     NULL,
     NULL,
     "did not answer JSON"},
    {"berth node ls",
     {""},
     CLI_UNAVAILABLE,
     "GET /v1/nodes ",
     NULL,
     NULL,
     "cannot reach the server"},

    /* lists: tables, JSON as received, pages */
    {"berth node ls -o json",
     {"200 {\"nodes\":[{\"a\":1}],\"next_cursor\":null}"},
     CLI_OK,
     "GET /v1/nodes ",
     NULL,
     "{\"nodes\":[{\"a\":1}],\"next_cursor\":null}\n",
     NULL},
    {"berth node ls -o json",
     {"200 {\"nodes\":[1],\"next_cursor\":\"a/b\"}", "200 {\"nodes\":[2],\"next_cursor\":null}"},
     CLI_OK,
     "GET /v1/nodes?cursor=a%2Fb ",
     NULL,
     "{\"nodes\":[1,2],\"next_cursor\":null}\n",
     NULL},
    {"berth node ls",
     {"200 {\"nodes\":[{\"node_id\":\"n1\",\"health\":\"ready\",\"max\":4,\"running\":1,"
      "\"reserved\":2,\"health_score\":90,\"level\":null,\"semantic_langs\":[\"en\",\"zh\"],"
      "\"nmt_pairs\":[[\"en\",\"zh\"],[\"zh\",\"en\"]],\"allowed_types\":[]}],"
      "\"next_cursor\":null}"},
     CLI_OK,
     "GET /v1/nodes ",
     NULL,
     "NODE ID  HEALTH  LOAD  MAX  SCORE  SEEN  LEVEL  SEMANTIC  NMT          TYPES\n"
     "n1       ready      3    4     90     -  -      en,zh     en:zh,zh:en  -\n",
     NULL},
    {"berth pool ls",
     {"200 "
      "{\"pools\":[{\"pool_id\":\"en:zh\",\"src\":\"en\",\"tgt\":\"zh\",\"members\":[\"a\",\"b\"],"
      "\"ready\":1,\"version\":7}],\"next_cursor\":null}"},
     CLI_OK,
     "GET /v1/pools ",
     NULL,
     "POOL ID  SRC  TGT  READY  MEMBERS  VERSION\n"
     "en:zh    en   zh       1        2        7\n",
     NULL},
    {"berth job ls --state DONE,FAILED --state NEW --node n/1 --session s --type t --limit 3",
     {"200 {\"jobs\":[{\"job_id\":\"j1\",\"state\":\"DONE\",\"type\":\"f2f\",\"node_id\":\"n1\","
      "\"attempt_id\":1,\"priority\":7,\"title\":null,\"session_id\":\"s\",\"reason\":null}],"
      "\"next_cursor\":\"c1\"}"},
     CLI_OK,
     "GET /v1/jobs?limit=3&state=DONE,FAILED,NEW&type=t&session_id=s&node_id=n%2F1 ",
     NULL,
     "JOB ID  STATE  TYPE  NODE  TRY  PRIO  AGE  TITLE  REASON\n"
     "j1      DONE   f2f   n1      1     7    -  s      -\n",
     "more: --cursor c1\n"},

    /* a single item */
    {"berth session show 'a b'",
     {"200 {\"session_id\":\"a b\",\"timeout_ms\":5,\"x\":[{\"y\":1}]}"},
     CLI_OK,
     "GET /v1/sessions/a%20b ",
     NULL,
     "FIELD       VALUE\nsession_id  a b\ntimeout_ms  5\nx           [{\"y\":1}]\n",
     NULL},

    {"berth health",
     {"200 {\"ready\":true}"},
     CLI_OK,
     "GET /readyz ",
     NULL,
     "FIELD  VALUE\nready  true\n",
     NULL},
    {"berth health",
     {"503 {\"ready\":false,\"reason\":\"draining\"}"},
     CLI_UNAVAILABLE,
     "GET /readyz ",
     NULL,
     "FIELD   VALUE\nready   false\nreason  draining\n",
     "the server is not ready: draining"},

    /* request bodies */
    {"berth node register n1 --semantic en,zh --nmt en:zh,zh:en --tts en --max 2 --label a=b=c",
     {"200 {\"ok\":true}"},
     CLI_OK,
     "POST /v1/node/register ",
     "\r\n\r\n{\"node_id\":\"n1\",\"health\":\"ready\",\"max_concurrent_jobs\":2,"
     "\"semantic_langs\":[\"en\",\"zh\"],\"tts_langs\":[\"en\"],"
     "\"nmt_pairs\":[[\"en\",\"zh\"],[\"zh\",\"en\"]],\"labels\":{\"a\":\"b=c\"}}",
     "n1 registered\n",
     NULL},
    {"berth node register n1 --nmt any",
     {"200 {\"ok\":true}"},
     CLI_OK,
     "POST /v1/node/register ",
     "\"nmt_pairs\":\"any\"",
     "n1 registered\n",
     NULL},
    {"berth node drain n1 --reason 'new kernel' --deadline 1m",
     {"200 {\"ok\":true}", "200 {\"deployments\":[{\"id\":\"web\"},{\"id\":\"db\"}]}",
      "200 {\"jobs\":[{\"job_id\":\"j1\",\"state\":\"ACKED\"}]}"},
     CLI_OK,
     "GET /v1/jobs?state=DISPATCHED,ACKED&node_id=n1", /* the last request */
     NULL,
     "n1 drained\nstill there: 3\n"
     "  deployment web  is being moved: stopped here, then claimed elsewhere\n"
     "  deployment db  waits for its turn: they move one by one\n"
     "  job j1  ACKED: runs to its end\n",
     NULL},
    {"berth node drain n1",
     {"404 " PROBLEM("NOT_FOUND", "There is no node n1.")},
     CLI_NOT_FOUND,
     "POST /v1/nodes/n1/drain ",
     NULL,
     NULL,
     "berth: There is no node n1. (NOT_FOUND)\n"},
    {"berth deploy disable web",
     {"200 {\"id\":\"web\"}"},
     CLI_OK,
     "PATCH /v1/deployments/web ",
     "\r\n\r\n{\"enabled\":false}",
     "web disabled\n",
     NULL},
    {"berth deploy delete web",
     {"412 " PROBLEM("PRECONDITION_FAILED", "Changed.")},
     CLI_CONFLICT,
     "DELETE /v1/deployments/web ",
     NULL,
     NULL,
     "berth: Changed. (PRECONDITION_FAILED)\n"},
    {"berth deploy history a/b",
     {"200 {\"history\":[{\"what\":\"claimed\",\"address\":\"n1\",\"generation\":2,\"version\":1}],"
      "\"next_cursor\":null}"},
     CLI_OK,
     "GET /v1/deployments/a%2Fb/history",
     NULL,
     "AGO  WHAT     NODE  GENERATION  VERSION  DETAIL\n"
     "  -  claimed  n1             2        1  -\n",
     NULL},
    {"berth deploy release n1",
     {"200 {\"released\":[\"a\"],\"held\":[{\"id\":\"b\",\"address\":\"n1\",\"left_ms\":9000}]}"},
     CLI_CONFLICT,
     "POST /v1/deployments/release ",
     "\r\n\r\n{\"address\":\"n1\"}",
     "1 released\n",
     "berth: b stays: the lease of its node lasts 9 s more\n"},
    {"berth node rm n1",
     {"200 {\"ok\":true}"},
     CLI_OK,
     "POST /v1/node/deregister ",
     "\r\n\r\n{\"node_id\":\"n1\"}",
     "n1 removed\n",
     NULL},
    {"berth job retry j1",
     {"200 {\"job_id\":\"j2\"}"},
     CLI_OK,
     "POST /v1/jobs/j1/retry ",
     NULL,
     "j2\n",
     NULL},
    {"berth job submit --session s --src en --tgt zh --audio-ref r --require-tts --strict "
     "--preferred-node n1 --idempotency-key k1",
     {"200 {\"job_id\":\"j1\",\"node_id\":\"n1\",\"attempt_id\":1}"},
     CLI_OK,
     "POST /v1/dispatch/f2f ",
     "\r\n\r\n{\"session_id\":\"s\",\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"audio_ref\":\"r\","
     "\"options\":{\"require_tts\":true,\"preferred_node_id\":\"n1\",\"strict\":true}}",
     "j1\n",
     NULL},
    {"berth job submit --src en --tgt zh --idempotency-key k1",
     {"200 {\"job_id\":\"j1\"}"},
     CLI_OK,
     "POST /v1/dispatch/f2f ",
     "\r\nIdempotency-Key: k1\r\n",
     "j1\n",
     NULL},
    {"berth job submit --type t --title T --priority 3 --payload '{\"a\":[1]}' --queue 2s "
     "--timeout 1m --max-attempts 2 --callback-url http://x/ --requires a=b,c=d --requires e=f "
     "--interactive --secret KEY=api-key -o json",
     {"202 {\"job_id\":\"j1\",\"state\":\"NEW\"}"},
     CLI_OK,
     "POST /v1/dispatch/task ",
     "\r\n\r\n{\"type\":\"t\",\"title\":\"T\",\"priority\":3,\"payload\":{\"a\":[1]},"
     "\"secrets\":{\"KEY\":\"api-key\"},\"requires\":\"a=b,c=d,e=f\",\"interactive\":true,\"queue_"
     "ms\":2000,\"timeout_ms\":60000,"
     "\"max_attempts\":2,\"callback_url\":\"http://x/\"}",
     "{\"job_id\":\"j1\",\"state\":\"NEW\"}\n",
     NULL},
    {"berth job submit --type 'x y'",
     {"200 {\"job_id\":\"j1\"}"},
     CLI_OK,
     "POST /v1/dispatch/task ",
     "{\"type\":\"x y\"}",
     "j1\n",
     NULL},

    {"berth node rpc us NodeUnit/InspectResourceUsage",
     {"200 {\"cpu_percent\":1.5,\"memory_mb\":20}"},
     CLI_OK,
     "POST /v1/nodes/us/rpc/NodeUnit/InspectResourceUsage ",
     "\r\n\r\n{}",
     "{\"cpu_percent\":1.5,\"memory_mb\":20}\n",
     NULL},
    {"berth node rpc us Job/Logs '{\"offset\":3}'",
     {"504 " PROBLEM("TIMEOUT", "The node did not answer in time.")},
     CLI_TIMEOUT,
     "POST /v1/nodes/us/rpc/Job/Logs ",
     "\r\n\r\n{\"offset\":3}",
     NULL,
     "did not answer in time. (TIMEOUT)"},
    {"berth breaker ls",
     {"200 {\"breakers\":[{\"node_id\":\"us\",\"type\":\"dev\",\"state\":\"OPEN\","
      "\"failures\":3,\"opened_ms\":0,\"probe_until_ms\":0}],\"next_cursor\":null}"},
     CLI_OK,
     "GET /v1/breakers ",
     NULL,
     "NODE  TYPE  STATE  FAILURES  OPENED  PROBE LEFT\n"
     "us    dev   OPEN          3       -           -\n",
     NULL},
    {"berth breaker reset us dev",
     {"200 {\"ok\":true}"},
     CLI_OK,
     "POST /v1/breakers/reset ",
     "\r\n\r\n{\"node_id\":\"us\",\"type\":\"dev\"}",
     "us takes dev again\n",
     NULL},

    /* waiting */
    {"berth job wait j1",
     {"200 {\"state\":\"ACKED\"}", "200 {\"state\":\"DONE\"}"},
     CLI_OK,
     "GET /v1/jobs/j1?wait=20000ms ",
     NULL,
     NULL,
     NULL},
    {"berth job wait j1",
     {"200 {\"state\":\"FAILED\",\"reason\":\"CANCELLED\"}"},
     CLI_JOB_FAILED,
     "GET /v1/jobs/j1?wait=20000ms ",
     NULL,
     NULL,
     "berth: job j1 failed: CANCELLED\n"},
    {"berth job wait j1 --timeout 0",
     {"200 {\"state\":\"NEW\"}"},
     CLI_TIMEOUT,
     "GET /v1/jobs/j1?wait=0ms ",
     NULL,
     NULL,
     "job j1 is still NEW"},
    {"berth job submit --wait --type t -o json",
     {"200 {\"job_id\":\"j9\"}", "200 {\"state\":\"DONE\",\"result\":4}"},
     CLI_OK,
     "GET /v1/jobs/j9?",
     NULL,
     "{\"state\":\"DONE\",\"result\":4}\n",
     NULL},
    {"berth job submit --wait=9s --type t",
     {"200 {\"job_id\":\"j9\"}", "200 {\"state\":\"FAILED\",\"reason\":\"X\"}"},
     CLI_JOB_FAILED,
     "GET /v1/jobs/j9?",
     NULL,
     "j9\n",
     "berth: job j9 failed: X\n"},

    /* output of a job */
    {"berth job logs j1",
     {"200 {\"offset\":0,\"next\":4,\"total\":6,\"text\":\"a\\nb\\n\",\"ended\":false}",
      "200 {\"offset\":4,\"next\":6,\"total\":9,\"text\":\"c\\n\",\"ended\":false}"},
     CLI_OK,
     "GET /v1/jobs/j1/logs?offset=4&max=",
     NULL,
     "a\nb\nc\n",
     NULL},
    {"berth job logs j1 --offset 3",
     {"200 {\"offset\":10,\"total\":12,\"text\":\"z\\n\",\"ended\":true}"},
     CLI_OK,
     "GET /v1/jobs/j1/logs?offset=3&max=",
     NULL,
     "z\n",
     "berth: 7 bytes before byte 10 are gone\n"},
    {"berth job logs j1 -f",
     {"200 {\"offset\":0,\"total\":2,\"text\":\"a\\n\",\"ended\":false}",
      "200 {\"offset\":2,\"total\":2,\"text\":\"\",\"ended\":false}",
      "200 {\"offset\":2,\"total\":4,\"text\":\"b\\n\",\"ended\":true}",
      "200 {\"state\":\"DONE\"}"},
     CLI_OK,
     "GET /v1/jobs/j1 ",
     NULL,
     "a\nb\n",
     NULL},
    /* an invalid byte became three: the agent says where to continue */
    {"berth job logs j1",
     {"200 {\"offset\":0,\"next\":1,\"total\":3,\"text\":\"\xef\xbf\xbd\",\"ended\":false}",
      "200 {\"offset\":1,\"next\":3,\"total\":3,\"text\":\"b\\n\",\"ended\":true}"},
     CLI_OK,
     "GET /v1/jobs/j1/logs?offset=1&max=",
     NULL,
     "\xef\xbf\xbd"
     "b\n",
     NULL},
    /* an answer that makes no progress is not requested again and again */
    {"berth job logs j1",
     {"200 {\"offset\":-7,\"next\":-9,\"total\":4,\"text\":\"a\\n\",\"ended\":false}",
      "200 {\"offset\":2,\"next\":2,\"total\":4,\"text\":\"b\\n\",\"ended\":false}"},
     CLI_OK,
     "GET /v1/jobs/j1/logs?offset=2&max=",
     NULL,
     "a\nb\n",
     NULL},
    {"berth job logs j1",
     {"200 {\"offset\":0,\"total\":2,\"text\":\"a\\n\",\"ended\":true,\"tail_only\":true}"},
     CLI_OK,
     "GET /v1/jobs/j1/logs?offset=0&max=",
     NULL,
     "a\n",
     "the last lines that came with the result"},
    /* the node was away while the job was followed: nothing is printed twice */
    {"berth job logs j1 -f",
     {"200 {\"offset\":0,\"total\":4,\"text\":\"a\\nb\\n\",\"ended\":false}",
      "200 {\"offset\":0,\"total\":4,\"text\":\"a\\nb\\nc\\n\",\"ended\":true,\"tail_only\":true}"},
     CLI_OK,
     "GET /v1/jobs/j1/logs?offset=4&max=",
     NULL,
     "a\nb\nc\n",
     NULL},
    /* another attempt writes its output from the beginning */
    {"berth job logs j1 -f",
     {"200 {\"offset\":0,\"total\":4,\"text\":\"a\\nb\\n\",\"ended\":false}",
      "200 {\"offset\":2,\"total\":2,\"text\":\"\",\"ended\":false}",
      "200 {\"offset\":0,\"total\":2,\"text\":\"a\\n\",\"ended\":true}",
      "200 {\"state\":\"FAILED\"}"},
     CLI_OK,
     "GET /v1/jobs/j1 ",
     NULL,
     "a\nb\na\n",
     "berth: the job began again, and so does its output\n"},
    /* and may have written more than the one before */
    {"berth job logs j1 -f",
     {"200 {\"attempt_id\":1,\"offset\":0,\"total\":2,\"text\":\"a\\n\",\"ended\":true}",
      "200 {\"state\":\"RETRYING\"}",
      "200 {\"attempt_id\":2,\"offset\":2,\"total\":4,\"text\":\"c\\n\",\"ended\":true}",
      "200 {\"attempt_id\":2,\"offset\":0,\"total\":4,\"text\":\"b\\nc\\n\",\"ended\":true}",
      "200 {\"state\":\"DONE\"}"},
     CLI_OK,
     "GET /v1/jobs/j1 ",
     NULL,
     "a\nb\nc\n",
     "berth: the job began again, and so does its output\n"},
    {"berth job logs j1 -f",
     {"409 " PROBLEM("CONFLICT", "It waits."), "200 {\"state\":\"NEW\"}",
      "200 {\"offset\":0,\"total\":2,\"text\":\"a\\n\",\"ended\":true}",
      "200 {\"state\":\"DONE\"}"},
     CLI_OK,
     "GET /v1/jobs/j1 ",
     NULL,
     "a\n",
     "berth: waiting for output: It waits.\n"},
    {"berth job logs j1 -f",
     {"409 " PROBLEM("CONFLICT", "Nobody has it."), "200 {\"state\":\"FAILED\"}"},
     CLI_CONFLICT,
     "GET /v1/jobs/j1 ",
     NULL,
     NULL,
     "berth: Nobody has it. (CONFLICT)\n"},
    {"berth job logs j1",
     {"409 " PROBLEM("CONFLICT", "Nobody has it.")},
     CLI_CONFLICT,
     "GET /v1/jobs/j1/logs?",
     NULL,
     NULL,
     "berth: Nobody has it. (CONFLICT)\n"},
    {"berth job logs j1 -f",
     {""},
     CLI_UNAVAILABLE,
     "GET /v1/jobs/j1/logs?",
     NULL,
     NULL,
     "cannot reach the server"},
    {"berth job logs j1 -f",
     {"200 {\"offset\":0,\"total\":2,\"text\":\"a\\n\",\"ended\":false}", "",
      "200 {\"offset\":2,\"total\":2,\"text\":\"\",\"ended\":true}", "200 {\"state\":\"DONE\"}"},
     CLI_OK,
     "GET /v1/jobs/j1 ",
     NULL,
     "a\n",
     "berth: waiting for output: the server does not answer\n"},
    {"berth job logs j1 -o json",
     {"200 {\"offset\":0,\"total\":2,\"text\":\"a\\n\",\"ended\":true}"},
     CLI_OK,
     "GET /v1/jobs/j1/logs?",
     NULL,
     "{\"offset\":0,\"total\":2,\"text\":\"a\\n\",\"ended\":true}\n",
     NULL},

    /* the cluster on one page */
    {"berth status -o json",
     {"200 {\"servers\":{},\"cluster_status\":\"degraded\"}"},
     CLI_OK,
     "GET /v1/cluster/status ",
     NULL,
     "{\"servers\":{},\"cluster_status\":\"degraded\"}\n",
     NULL},
    {"berth status",
     {"200 {\"servers\":{},\"cluster_status\":\"degraded\",\"total_slots\":0,"
      "\"available_slots\":0,\"recommendation\":\"No server is online\"}"},
     CLI_OK,
     "GET /v1/cluster/status ",
     NULL,
     "Cluster status: degraded, 0 of 0 slots free\nNo server is online\n",
     NULL},
    {"berth status --watch",
     {""},
     CLI_UNAVAILABLE,
     "GET /v1/cluster/status ",
     NULL,
     NULL,
     "cannot reach the server"},

    /* events: one line each, as many as asked for */
    {"berth events --count 2",
     {"200 : hi\n\nevent: job\ndata: {\"a\":1}\n\ndata: {\"b\":2}\n\ndata: {\"c\":3}\n\n"},
     CLI_OK,
     "GET /v1/events ",
     NULL,
     "job              {\"a\":1}\n                 {\"b\":2}\n",
     NULL},
    /* ... across a server restart, without a gap */
    {"berth events -o json --count 2",
     {"200 id: 7-1\r\nevent: job\r\ndata: 1\r\n\r\nid: 7-2\r\ndata: ha", "", "200 data: 2\n\n"},
     CLI_OK,
     "GET /v1/events ",
     "Last-Event-ID: 7-1\r\n",
     "1\n2\n",
     "berth: connected again\n"},
    {"berth events",
     {"200 data: 1\n\n", "401 {\"error\":\"UNAUTHORIZED\",\"detail\":\"The token was revoked.\"}"},
     CLI_FAILED,
     "GET /v1/events ",
     NULL,
     "                 1\n",
     "wants a token"},
    {"berth events", {""}, CLI_UNAVAILABLE, "GET /v1/events ", NULL, "", "cannot reach the server"},
};

static void check_row(const struct row *row)
{
    struct canned canned;
    struct outcome_of_run run;
    char line[LINE_MAX_LEN];
    const char *asked;

    canned_start(&canned, row->answers);
    snprintf(line, sizeof line, "%s --addr http://127.0.0.1:%d/", row->line, canned.port);
    run = run_line(line);
    canned_stop(&canned);
    if (run.code != row->code)
        fail_msg("%s: exit %d, wanted %d: %s", row->line, run.code, row->code, run.err);
    assert_true(canned.asked_count > 0);
    asked = canned.asked[canned.asked_count - 1];
    if (strncmp(asked, row->asked, strlen(row->asked)) != 0)
        fail_msg("%s asked: %s", row->line, asked);
    if (row->sent)
        assert_has(asked, row->sent);
    assert_string_equal(run.out, row->out ? row->out : "");
    if (row->err)
        assert_has(run.err, row->err);
    else
        assert_string_equal(run.err, "");
    run_free(&run);
}

static void commands_ask_print_and_exit(void **state)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        check_row(&rows[i]);
}

static void a_command_goes_as_an_array(void **state)
{
    static const struct row row = {"",
                                   {"200 {\"job_id\":\"j1\"}"},
                                   CLI_OK,
                                   "",
                                   "\"command\":[\"make\",\"-j2\",\"a b\"]",
                                   "j1\n",
                                   NULL};
    struct canned canned;
    struct outcome_of_run run;
    char line[LINE_MAX_LEN];

    canned_start(&canned, row.answers);
    snprintf(line, sizeof line, "berth job submit --addr 127.0.0.1:%d -- make -j2 'a b'",
             canned.port);
    run = run_line(line);
    canned_stop(&canned);
    assert_int_equal(run.code, row.code);
    assert_has(canned.asked[0], row.sent);
    assert_has(canned.asked[0], "\"type\":\"task\"");
    run_free(&run);
}

static void the_token_is_sent_and_the_flag_wins(void **state)
{
    static const char *const answers[] = {"200 {\"a\":1}", "200 {\"a\":1}", NULL};
    char path[] = "/tmp/berth-test-XXXXXX", line[LINE_MAX_LEN];
    int fd = mkstemp(path);
    struct canned canned;
    struct outcome_of_run run;

    assert_int_equal(write(fd, "from-file\n", 10), 10);
    close(fd);
    setenv("BERTH_TOKEN", "from-env", 1);
    canned_start(&canned, answers);
    snprintf(line, sizeof line, "http://127.0.0.1:%d", canned.port);
    setenv("BERTH_ADDR", line, 1);
    run = run_line("berth session show s");
    assert_int_equal(run.code, CLI_OK);
    run_free(&run);
    snprintf(line, sizeof line, "berth session show s --token-file %s", path);
    run = run_line(line);
    assert_int_equal(run.code, CLI_OK);
    run_free(&run);
    canned_stop(&canned);
    assert_has(canned.asked[0], "\r\nAuthorization: Bearer from-env\r\n");
    assert_has(canned.asked[1], "\r\nAuthorization: Bearer from-file\r\n");
    unsetenv("BERTH_TOKEN");
    unsetenv("BERTH_ADDR");
    unlink(path);
}

/* No server: the message says what to do and which address was tried. */
static void a_missing_server_is_explained(void **state)
{
    static const char *const none[] = {NULL};
    struct canned canned;
    struct outcome_of_run run;
    char line[LINE_MAX_LEN];

    canned_start(&canned, none);
    canned_stop(&canned); /* its port is closed now */
    snprintf(line, sizeof line, "berth node ls --addr http://127.0.0.1:%d", canned.port);
    run = run_line(line);
    assert_int_equal(run.code, CLI_UNAVAILABLE);
    assert_has(run.err, "Is `berth dev` running? Tried http://127.0.0.1:");
    assert_has(run.err, "https:// if it has a certificate");
    run_free(&run);
    run = run_line("berth node ls --addr 'ftp://127.0.0.1'");
    assert_int_equal(run.code, CLI_USAGE);
    run_free(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands_ask_print_and_exit),
        cmocka_unit_test(a_command_goes_as_an_array),
        cmocka_unit_test(the_token_is_sent_and_the_flag_wins),
        cmocka_unit_test(a_missing_server_is_explained),
    };

    unsetenv("BERTH_ADDR");
    unsetenv("BERTH_TOKEN");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
