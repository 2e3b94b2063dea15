/* `berth pool ...` and `berth session ...` */
#include "cli/answer.h"
#include "cli/list.h"

static const struct list_column pool_columns[] = {
    {.title = "POOL ID", .member = "pool_id"},
    {.title = "SRC", .member = "src"},
    {.title = "TGT", .member = "tgt"},
    {.title = ">READY", .member = "ready", .put = list_put_count},
    {.title = ">MEMBERS", .member = "members", .put = list_put_count},
    {.title = ">VERSION", .member = "version"},
    {.title = "NODES", .member = "members", .wide = true},
};

static const struct listing pool_list = {.path = "/v1/pools",
                                         .name = "pools",
                                         .id = "pool_id",
                                         .columns = pool_columns,
                                         .column_count = COUNT_OF(pool_columns)};

static const struct command pool_rows[] = {
    {.noun = "pool",
     .verb = "ls",
     .kind = COMMAND_API,
     .list = &pool_list,
     .help = "which work has which nodes",
     .examples = "berth pool ls\n"
                 "berth pool ls -o wide"},
};

const struct command_set commands_pool = COMMANDS(pool_rows);

static int cmd_session_show(struct cli *cli)
{
    return answer_show(cli, answer_path(cli, "/v1/sessions/", ""), "session_id");
}

static const struct command session_rows[] = {
    {.noun = "session",
     .verb = "show",
     .arg = "ID",
     .kind = COMMAND_API,
     .help = "what is kept of a session",
     .examples = "berth session show room-1",
     .run = cmd_session_show},
};

const struct command_set commands_session = COMMANDS(session_rows);
