/* `berth job ...`. The body of an f2f job or of a task is made from flags. */
#include "cli/cmd_job.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "cli/list.h"

/* --- show, list, wait, cancel, retry --- */

enum { JOB_LS_LIMIT = 50 };

static int cmd_job_wait(struct cli *cli)
{
    return wait_job(cli, cli->args[0], cli_num(cli, "timeout", WAIT_FOREVER));
}

static int cmd_job_retry(struct cli *cli)
{
    struct request request = {
        .method = "POST", .path = answer_path(cli, "/v1/jobs/{id}/retry"), .body = STR("{}")};
    int code = request_run(cli, &request);

    if (code != CLI_OK)
        return code;
    if (cli->json)
        show_raw(cli, request.json);
    else
        fprintf(cli->out, STR_FMT "\n", STR_ARG(show_member(cli, request.json, "job_id")));
    return CLI_OK;
}

/* Its title, or else the room it belongs to. */
static void put_title(struct list_view *view, const struct list_column *column,
                      const struct json *job)
{
    struct str title = show_member(view->cli, job, "title");

    table_cell(&view->table, title.len ? title : show_member(view->cli, job, "session_id"));
}

static const struct list_column job_columns[] = {
    {.title = "JOB ID", .member = "job_id"},
    {.title = "STATE", .member = "state", .put = list_put_colour},
    {.title = "TYPE", .member = "type"},
    {.title = "NODE", .member = "node_id"},
    {.title = ">TRY", .member = "attempt_id"},
    {.title = ">PRIO", .member = "priority"},
    {.title = ">AGE", .member = "created_ms", .put = list_put_age},
    {.title = "TITLE", .put = put_title},
    {.title = "REASON", .member = "reason"},
    {.title = ">CHANGED", .member = "updated_ms", .put = list_put_age, .wide = true},
    {.title = "SRC", .member = "src", .wide = true},
    {.title = "TGT", .member = "tgt", .wide = true},
    {.title = "SESSION", .member = "session_id", .wide = true},
};

static const struct flag job_ls_flags[] = {
    FLAG("state", 0, LIST, "STATE,...", "DONE, FAILED, ACKED, ...", .param = "state",
         .values = "NEW DISPATCHED ACKED RETRYING DONE FAILED"),
    FLAG("type", 0, TEXT, "TYPE", "only this type", .param = "type"),
    FLAG("session", 0, TEXT, "ID", "only this session", .param = "session_id"),
    FLAG("node", 0, TEXT, "ID", "only on this node", .param = "node_id"),
};

static const struct flag wait_flags[] = {
    FLAG("timeout", 0, MS, "DURATION", "give up after this long, exit 6 (default: never)"),
};

/* --- submit --- */

enum { PAYLOAD_BYTES_MAX = 16 * 1024 * 1024 };

/* The whole contents of a file, in the arena. */
static int read_all(struct cli *cli, FILE *file, const char *name, struct str *ret_text)
{
    struct buf text = {0};
    char piece[16384];
    size_t got;
    int code = CLI_OK;

    while ((got = fread(piece, 1, sizeof piece, file)) > 0 && text.len <= PAYLOAD_BYTES_MAX)
        buf_add(&text, piece, got);
    if (ferror(file))
        code = cli_fail(cli, CLI_USAGE, "cannot read %s: %m", name);
    else if (text.len > PAYLOAD_BYTES_MAX)
        code = cli_fail(cli, CLI_USAGE, "%s is larger than %d bytes", name, PAYLOAD_BYTES_MAX);
    *ret_text = arena_str(&cli->arena, buf_view(&text));
    buf_free(&text);
    return code;
}

/* JSON, @FILE or - (standard input); checked here, so that an error names the position of a
 * typo. */
static int read_payload(struct cli *cli, const char *given, struct str *ret_json)
{
    const struct json *json;
    struct problem why;
    int code = CLI_OK;

    *ret_json = str_of(given);
    if (strcmp(given, "-") == 0) {
        code = read_all(cli, stdin, "standard input", ret_json);
    } else if (given[0] == '@') {
        FILE *file = fopen(given + 1, "re");

        if (!file)
            return cli_fail(cli, CLI_USAGE, "cannot read %s: %m", given + 1);
        code = read_all(cli, file, given + 1, ret_json);
        fclose(file);
    }
    if (code == CLI_OK && json_parse(*ret_json, &cli->arena, &json, &why) != ERR_OK)
        return cli_misuse(cli, "--payload is not JSON: %s", why.detail);
    return code;
}

/* NAME is a file, VARIABLE=NAME also an environment variable; with any of the latter an object is
 * written. */
static int put_secrets(struct cli *cli, struct jsonw *w)
{
    struct str *items;
    size_t count = cli_list(cli, "secret", &items), variables = 0;

    for (size_t i = 0; i < count; i++)
        variables += memchr(items[i].at, '=', items[i].len) != NULL;
    if (variables > 0 && variables < count)
        return cli_misuse(cli, "--secret is NAME or VARIABLE=NAME, the same for all of a job");
    if (count == 0)
        return CLI_OK;
    jsonw_key(w, "secrets");
    if (variables)
        jsonw_obj(w);
    else
        jsonw_arr(w);
    for (size_t i = 0; i < count; i++) {
        struct str name = items[i];

        if (variables)
            jsonw_key_str(w, str_cut(&name, '='));
        jsonw_str(w, name);
    }
    if (variables)
        jsonw_end_obj(w);
    else
        jsonw_end_arr(w);
    return CLI_OK;
}

/* "cpu=1.5": the server decides which resources are valid. */
static int put_needs(struct cli *cli, struct jsonw *w)
{
    struct str *items;
    size_t count = cli_list(cli, "needs", &items);
    const struct json *number;
    double amount;

    for (size_t i = 0; i < count; i++) {
        struct str value = items[i], name = str_cut(&value, '=');

        if (!name.len || !value.len || json_parse(value, &cli->arena, &number, NULL) ||
            !json_double(number, &amount))
            return cli_misuse(cli, "--needs is NAME=AMOUNT like cpu=1.5, not \"" STR_FMT "\"",
                              STR_ARG(items[i]));
        if (i == 0) {
            jsonw_kobj(w, "needs");
        }
        jsonw_key_str(w, name);
        jsonw_raw(w, value);
    }
    if (count > 0)
        jsonw_end_obj(w);
    return CLI_OK;
}

/* All values of a repeatable flag. */
static void put_texts(struct cli *cli, struct jsonw *w, const char *member, const char *flag)
{
    struct str *items;
    size_t count = cli_list(cli, flag, &items);

    if (count == 0)
        return;
    jsonw_karr(w, member);
    for (size_t i = 0; i < count; i++)
        jsonw_str(w, items[i]);
    jsonw_end_arr(w);
}

static int put_task(struct cli *cli, struct jsonw *w)
{
    const char *payload = cli_text(cli, "payload");
    struct buf selector = {0};
    struct str json, *items;
    size_t count;
    int code = CLI_OK;

    assert(cli_given(cli, "type") || cli->rest_count > 0);
    if (payload)
        code = read_payload(cli, payload, &json);
    if (code != CLI_OK)
        return code;
    if (!cli_given(cli, "type"))
        jsonw_kstr(w, "type", STR("task"));
    cli_put(cli, w, "type", "type");
    cli_put(cli, w, "title", "title");
    cli_put(cli, w, "priority", "priority");
    if (payload)
        jsonw_kraw(w, "payload", json);
    if (cli->rest_count > 0) {
        jsonw_karr(w, "command");
        for (int i = 0; i < cli->rest_count; i++)
            jsonw_str(w, str_of(cli->rest[i]));
        jsonw_end_arr(w);
    }
    if ((code = put_secrets(cli, w)) != CLI_OK)
        return code;
    count = cli_list(cli, "requires", &items);
    if (count > 0) { /* all parts are joined into one selector */
        for (size_t i = 0; i < count; i++)
            buf_fmt(&selector, "%s" STR_FMT, i ? "," : "", STR_ARG(items[i]));
        jsonw_kstr(w, "requires", buf_view(&selector));
        buf_free(&selector);
    }
    cli_put(cli, w, "interactive", "interactive");
    cli_put(cli, w, "queue_ms", "queue");
    cli_put(cli, w, "timeout_ms", "timeout");
    cli_put(cli, w, "max_attempts", "max-attempts");
    cli_put(cli, w, "callback_url", "callback-url");
    return CLI_OK;
}

/* Finds missing or conflicting flags; CLI_OK if there are none. A flag of a group decides the kind
 * of job, f2f or task. */
static int check_flags(struct cli *cli, const char **ret_kind)
{
    const char *kind = cli->rest_count > 0 ? "task" : NULL;
    const char *one = "a command", *other = NULL; /* the flag that decided it, one that conflicts */

    for (size_t i = 0; i < cli->given_count; i++) {
        const struct flag *flag = cli->given[i].flag;

        assert(!flag->group || strcmp(flag->group, "f2f") == 0 || strcmp(flag->group, "task") == 0);
        if (!flag->group)
            continue;
        if (!kind) {
            kind = flag->group;
            one = flag->name;
        } else if (strcmp(kind, flag->group) != 0) {
            other = flag->name;
        }
    }
    if (!kind)
        return cli_misuse(cli,
                          "what shall be done? Give --src and --tgt, or --type, or -- COMMAND");
    if (other)
        return cli_misuse(cli, "%s%s is about another kind of job than --%s: f2f or task, not both",
                          cli->rest_count > 0 ? "" : "--", one, other);
    if (strcmp(kind, "f2f") == 0 && !(cli_given(cli, "src") && cli_given(cli, "tgt")))
        return cli_misuse(cli, "an f2f job needs --src and --tgt");
    if (strcmp(kind, "task") == 0 && !cli_given(cli, "type") && cli->rest_count == 0)
        return cli_misuse(cli, "a task needs --type or -- COMMAND");
    *ret_kind = kind;
    return CLI_OK;
}

int submit_ask(struct cli *cli, struct request *request)
{
    const char *kind = NULL;
    struct jsonw w;
    int code = check_flags(cli, &kind);

    if (code != CLI_OK)
        return code;
    assert(kind != NULL);
    request->method = "POST";
    request->path = strcmp(kind, "f2f") == 0 ? "/v1/dispatch/f2f" : "/v1/dispatch/task";
    w = body_begin(cli);
    if (strcmp(kind, "task") == 0) {
        code = put_task(cli, &w);
    } else {
        assert(cli->rest_count == 0);
        cli_put(cli, &w, "session_id", "session");
        cli_put(cli, &w, "src_lang", "src");
        cli_put(cli, &w, "tgt_lang", "tgt");
        cli_put(cli, &w, "audio_ref", "audio-ref");
        jsonw_kobj(&w, "options");
        jsonw_kbool(&w, "require_tts", cli_given(cli, "require-tts"));
        cli_put(cli, &w, "preferred_node_id", "preferred-node");
        cli_put(cli, &w, "strict", "strict");
        jsonw_end_obj(&w);
    }
    put_texts(cli, &w, "prefers", "prefers");
    put_texts(cli, &w, "keys", "key");
    if (code == CLI_OK)
        code = put_needs(cli, &w);
    request->body = body_end(cli, &w);
    return code;
}

/* Prints the id or, with -o json, the reply; then waits for the end if requested. */
static int cmd_job_submit(struct cli *cli)
{
    struct request request = {.idempotency_key = cli_text(cli, "idempotency-key")};
    bool wait = cli_given(cli, "wait");
    struct str id;
    int code = submit_ask(cli, &request);

    if (code == CLI_OK)
        code = request_run(cli, &request);
    if (code != CLI_OK)
        return code;
    id = show_member(cli, request.json, "job_id");
    if (cli->json && !wait)
        show_raw(cli, request.json);
    if (!cli->json)
        fprintf(cli->out, STR_FMT "\n", STR_ARG(id));
    fflush(cli->out);
    if (!wait)
        return CLI_OK;
    return wait_job(cli, arena_cstr(&cli->arena, id), cli_num(cli, "wait", WAIT_FOREVER));
}

static const struct flag submit_flags[] = {
    FLAG("wait", 0, MS_MAYBE, "DURATION",
         "wait for the end; exit 7 if the job failed, 6 if it took longer"),
    FLAG("idempotency-key", 0, TEXT, "KEY", "the same key again gives the same job"),
    FLAG("session", 0, TEXT, "ID", "session or room", .group = "f2f"),
    FLAG("src", 0, TEXT, "LANG", "from this language", .group = "f2f"),
    FLAG("tgt", 0, TEXT, "LANG", "to this language", .group = "f2f"),
    FLAG("audio-ref", 0, TEXT, "REF", "what to translate", .group = "f2f"),
    FLAG("require-tts", 0, SWITCH, NULL, "the node must also speak the target", .group = "f2f"),
    FLAG("preferred-node", 0, TEXT, "ID", "try this node first", .group = "f2f"),
    FLAG("strict", 0, SWITCH, NULL, "the preferred node or none", .group = "f2f"),
    FLAG("type", 0, TEXT, "TYPE", "type of task (default \"task\" with a command)",
         .group = "task"),
    FLAG("title", 0, TEXT, "TEXT", "shown in lists", .group = "task"),
    FLAG("priority", 0, INT, "0-9", "higher first (default 5)", .max = 9, .group = "task"),
    FLAG("payload", 0, TEXT, "JSON|@FILE|-", "what the node gets; - reads standard input",
         .group = "task"),
    FLAG("queue", 0, MS, "DURATION", "how long it may wait for a slot", .group = "task"),
    FLAG("timeout", 0, MS, "DURATION", "how long it may run", .group = "task"),
    FLAG("max-attempts", 0, INT, "1-9", "attempts in all", .min = 1, .max = 9, .group = "task"),
    FLAG("callback-url", 0, TEXT, "URL", "called when it has ended", .group = "task"),
    FLAG("secret", 0, LIST, "[VARIABLE=]NAME",
         "a secret of its node, as a file or as a variable too (several allowed)", .group = "task"),
    FLAG("requires", 0, TERMS, "SELECTOR",
         "what its node must be like: zone=eu, 'zone in (eu,us), !spot' (several: all of them)",
         .group = "task"),
    FLAG("prefers", 0, LIST, "NAME",
         "rather where this is loaded; a wish, no condition (several allowed)"),
    FLAG("needs", 0, LIST, "NAME=AMOUNT",
         "what it takes of its node: cpu=1.5,mem_mb=6000, vram_mb, gpus, slots (several allowed)"),
    FLAG("key", 0, LIST, "KEY", "whose limits it counts against, like tenant:acme (up to four)"),
    FLAG("interactive", 0, SWITCH, NULL, "a person waits: may use reserved slots", .group = "task"),
};

/* All but the first two, which control the submission. */
const struct flag_set submit_job_flags = {.flags = submit_flags + 2,
                                          .count = COUNT_OF(submit_flags) - 2};

static const struct command rows[] = {
    VERB("job", "submit", NULL, .rest = "COMMAND [ARG...]", .flags = FLAGS(submit_flags),
         .help = "start a job and print its id",
         .detail = "A job is either f2f (speech from one language to another) or a task.",
         .examples =
             "berth job submit --session room-1 --src en --tgt zh --audio-ref blob://1\n"
             "berth job submit --type research --title 'read it' --payload '{\"url\":\"x\"}' "
             "--wait=1m\n"
             "berth job submit --type build --payload @build.json --queue 30s --requires zone=eu\n"
             "berth job submit --type build --payload @build.json --prefers whisper-v3\n"
             "berth job submit --type build --needs slots=2 --key tenant:umbrella\n"
             "berth job submit --wait -- make -j2 test",
         .run = cmd_job_submit),
    VERB("job", "ls", NULL, .flags = FLAGS(job_ls_flags),
         .list = LISTING("/v1/jobs", "jobs", "job_id", job_columns, .limit = JOB_LS_LIMIT),
         .help = "jobs, newest first, 50 at a time",
         .examples = "berth job ls --state FAILED --limit 20\n"
                     "berth job ls --node node-1 -o jsonl\n"
                     "berth job ls --state NEW,DISPATCHED,ACKED --watch"),
    VERB("job", "show", "ID", .help = "one job, everything known of it",
         .examples = "berth job show j0abcdefghijkl", .call = SHOW("/v1/jobs/{id}", "job_id")),
    VERB("job", "wait", "ID", .flags = FLAGS(wait_flags),
         .help = "wait for a job's end; exit 7 if it failed",
         .examples = "berth job wait j0abcdefghijkl --timeout 30s", .run = cmd_job_wait),
    VERB("job", "cancel", "ID", .help = "stop a job", .examples = "berth job cancel j0abcdefghijkl",
         .call = CALL("POST", "/v1/jobs/{id}/cancel", "cancelled")),
    VERB("job", "retry", "ID", .help = "the same work again, as a new job",
         .examples = "berth job retry j0abcdefghijkl", .run = cmd_job_retry),
};

const struct command_set commands_job = COMMANDS(rows);
