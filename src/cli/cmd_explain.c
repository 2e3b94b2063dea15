/* `berth job explain` and `berth explain`: why a job was placed on its node or on none, and where a
 * new one would go now. */
#include "cli/cmd_job.h"
#include "cli/list.h"
#include "cli/request.h"

static enum table_colour reason_colour(struct str reason)
{
    static const char *const fine[] = {"RANKED_BEHIND", "NOT_SAMPLED", "NOT_PREFERRED",
                                       "NOT_CAPABLE", "NOT_ASKED"};

    if (str_is(reason, "CHOSEN"))
        return TABLE_GREEN;
    for (size_t i = 0; i < COUNT_OF(fine); i++)
        if (str_is(reason, fine[i]))
            return TABLE_DIM;
    return TABLE_RED;
}

static void show_decision(struct cli *cli, const struct json *decision, const char *title)
{
    struct str detail = show_member(cli, decision, "detail");
    struct str node = show_member(cli, decision, "node_id");
    const struct json *keys = json_get(decision, "keys"), *key;
    static const char *const titles[] = {"NODE", "REASON", ">LOAD", ">MAX", "LEVEL", "WHY"};
    const struct json *list = json_get(decision, "nodes"), *row;
    struct table table;

    fprintf(cli->out, "%s: " STR_FMT, title, STR_ARG(show_member(cli, decision, "outcome")));
    if (node.len)
        fprintf(cli->out, " on " STR_FMT, STR_ARG(node));
    fprintf(cli->out, "\n");
    if (detail.len)
        fprintf(cli->out, "  " STR_FMT "\n", STR_ARG(detail));
    for (key = json_items(keys); key; key = json_after(keys, key)) /* how much of it is in use */
        fprintf(cli->out, "  key " STR_FMT "\n", STR_ARG(show_member(cli, key, "detail")));
    fprintf(cli->out, "  pool " STR_FMT ": " STR_FMT " of " STR_FMT " nodes; " STR_FMT "\n",
            STR_ARG(show_member(cli, decision, "pool_id")),
            STR_ARG(show_member(cli, decision, "pool_members")),
            STR_ARG(show_member(cli, decision, "nodes_total")),
            STR_ARG(show_counts(cli, json_get(decision, "reasons"))));
    fprintf(cli->out, "  policy " STR_FMT " (" STR_FMT "), snapshot " STR_FMT "\n\n",
            STR_ARG(show_member(cli, decision, "policy")),
            STR_ARG(show_member(cli, decision, "policy_key")),
            STR_ARG(show_member(cli, decision, "snapshot_version")));
    table_init(&table, &cli->arena, titles, COUNT_OF(titles));
    for (row = json_items(list); row; row = json_after(list, row)) {
        struct str reason = show_member(cli, row, "reason");

        table_cell(&table, show_member(cli, row, "node_id"));
        table_cell_colour(&table, reason, reason_colour(reason));
        table_cell(&table, show_member(cli, row, "load"));
        table_cell(&table, show_member(cli, row, "max"));
        table_cell(&table, show_member(cli, row, "level"));
        table_cell(&table, show_member(cli, row, "detail"));
    }
    table_print(&table, cli->out, cli->colour);
    if (show_int(decision, "nodes_left_out", 0) > 0)
        fprintf(cli->out, "and " STR_FMT " more nodes\n",
                STR_ARG(show_member(cli, decision, "nodes_left_out")));
}

static void show_job(struct cli *cli, const struct json *json)
{
    const struct json *list = json_get(json, "decisions"), *decision = json_items(list);
    const struct json *attempts = json_get(json, "attempts"), *attempt;
    const struct json *now = json_get(json, "now");
    struct str state = show_member(cli, json, "state"), reason = show_member(cli, json, "reason");

    fprintf(
        cli->out, STR_FMT " " STR_FMT "%s" STR_FMT "\n", STR_ARG(show_member(cli, json, "job_id")),
        STR_ARG(state.len ? state : STR("was refused")), reason.len ? ": " : "", STR_ARG(reason));
    for (attempt = json_items(attempts); attempt; attempt = json_after(attempts, attempt))
        fprintf(cli->out, STR_FMT "\n", STR_ARG(show_attempt(cli, attempt)));
    if (!decision)
        fprintf(cli->out,
                "\nHow it was placed is not kept any more, or another instance did it.\n");
    for (; decision; decision = json_after(list, decision)) {
        struct str title = arena_fmt(&cli->arena, "\nattempt " STR_FMT,
                                     STR_ARG(show_member(cli, decision, "attempt_id")));

        show_decision(cli, decision, title.at);
    }
    if (!json_is_null(now))
        show_decision(cli, now, "\nnow");
}

static int cmd_job_explain(struct cli *cli)
{
    return answer_show(cli, answer_path(cli, "/v1/jobs/{id}/explain"), "job_id", show_job);
}

static int cmd_explain(struct cli *cli)
{
    struct request request = {0};
    int code = submit_ask(cli, &request);

    if (code != CLI_OK)
        return code;
    request.path = arena_fmt(&cli->arena, "%s?dry_run=1", request.path).at;
    code = request_run(cli, &request);
    if (code != CLI_OK)
        return code;
    if (cli->json) {
        show_raw(cli, request.json);
        return CLI_OK;
    }
    if (cli->output == CLI_NAME) { /* the node it would be placed on */
        if (!json_is_null(json_get(request.json, "node_id")))
            show_name(cli, show_member(cli, request.json, "node_id"), cli->out);
        return CLI_OK;
    }
    if (json_str_is(json_get(request.json, "outcome"), "WAITS"))
        fprintf(cli->out, "It would wait: " STR_FMT " wait already.\n",
                STR_ARG(show_member(cli, request.json, "waiting")));
    show_decision(cli, json_get(request.json, "now"), "now");
    return CLI_OK;
}

static const struct command rows[] = {
    VERB("job", "explain", "ID", .help = "why a job went to its node, or to none",
         .detail =
             "For each choice that was made the first reason each node did not get the job. Works\n"
             "for refused jobs too: the refusal has their id.",
         .examples = "berth job explain j0abcdefghijkl\n"
                     "berth job explain j0abcdefghijkl -o json | jq .now.reasons",
         .run = cmd_job_explain),
    {.noun = "explain",
     .rest = "COMMAND [ARG...]",
     .flags = &submit_job_flags,
     .help = "what would become of a job now; changes nothing",
     .detail = "Takes the flags of `berth job submit` that describe a job.",
     .examples = "berth explain --type dev --priority 3\n"
                 "berth explain --src en --tgt zh --require-tts\n"
                 "berth explain --type build --requires zone=eu -o json",
     .run = cmd_explain},
};

const struct command_set commands_explain = COMMANDS(rows);
