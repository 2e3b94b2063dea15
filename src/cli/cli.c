/* From argv to a running command: parsing by the table, the common flags, error messages. */
#include "cli/cli.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/url.h"
#include "cli/complete.h"
#include "cli/context.h"
#include "cli/help.h"
#include "cli/list.h"
#include "cli/request.h"
#include "cli/table.h"

#define ADDR_DEFAULT "http://127.0.0.1:7420"

enum { TOKEN_BYTES_MAX = 4096, COMMAND_NAME_MAX = 64 };

static void report(struct cli *cli, const char *fmt, va_list args)
{
    struct arena arena = {0};
    char *text;

    if (vasprintf(&text, fmt, args) < 0) /* before anything else, as errno may be printed (%m) */
        abort();
    fflush(cli->out);
    /* The text may contain what a node or a submitter wrote. */
    fprintf(cli->err, "berth: " STR_FMT "\n", STR_ARG(table_harmless(&arena, str_of(text))));
    free(text);
    arena_free(&arena);
}

int cli_fail(struct cli *cli, int code, const char *fmt, ...)
{
    va_list args;

    assert(code != CLI_OK);
    va_start(args, fmt);
    report(cli, fmt, args);
    va_end(args);
    return code;
}

int cli_misuse(struct cli *cli, const char *fmt, ...)
{
    char name[COMMAND_NAME_MAX] = "";
    va_list args;

    va_start(args, fmt);
    report(cli, fmt, args);
    va_end(args);
    if (cli->command)
        command_name(cli->command, name, sizeof name);
    fprintf(cli->err, "See `berth %s%s--help`.\n", name, cli->command ? " " : "");
    return CLI_USAGE;
}

/* Whether the running command has such a flag; asking for another is a bug. */
static bool in_table(const struct cli *cli, const char *name)
{
    struct flag_set sets[COMMAND_FLAG_SETS];

    command_flags(cli->command, sets);
    for (size_t s = 0; s < COUNT_OF(sets); s++)
        for (size_t i = 0; i < sets[s].count; i++)
            if (strcmp(sets[s].flags[i].name, name) == 0)
                return true;
    return false;
}

static const struct flag_given *given_flag(const struct cli *cli, const char *name)
{
    assert(in_table(cli, name));
    for (size_t i = 0; i < cli->given_count; i++)
        if (strcmp(cli->given[i].flag->name, name) == 0)
            return &cli->given[i];
    return NULL;
}

bool cli_given(const struct cli *cli, const char *name)
{
    return given_flag(cli, name) != NULL;
}

const char *cli_text(const struct cli *cli, const char *name)
{
    const struct flag_given *given = given_flag(cli, name);

    return given ? given->text : NULL;
}

int64_t cli_num(const struct cli *cli, const char *name, int64_t fallback)
{
    const struct flag_given *given = given_flag(cli, name);

    return given ? given->num : fallback;
}

void cli_put(const struct cli *cli, struct jsonw *w, const char *member, const char *flag)
{
    const struct flag_given *given = given_flag(cli, flag);

    if (!given)
        return;
    if (given->flag->type == FLAG_SWITCH)
        jsonw_kbool(w, member, true);
    else if (given->flag->type == FLAG_TEXT)
        jsonw_kstr(w, member, str_of(given->text));
    else
        jsonw_kint(w, member, given->num);
}

size_t cli_list(struct cli *cli, const char *name, struct str **ret_items)
{
    size_t count = 0, cap = 0;

    assert(in_table(cli, name));
    for (size_t i = 0; i < cli->given_count; i++)
        cap += strlen(cli->given[i].text ? cli->given[i].text : "") + 1;
    *ret_items = arena_array(&cli->arena, struct str, cap + 1);
    for (size_t i = 0; i < cli->given_count; i++) {
        struct str rest = str_of(cli->given[i].text);

        if (strcmp(cli->given[i].flag->name, name) != 0)
            continue;
        if (cli->given[i].flag->type == FLAG_TERMS && rest.len > 0) {
            (*ret_items)[count++] = rest;
            continue;
        }
        while (rest.at) {
            struct str item = str_trim(str_cut(&rest, ','));

            if (item.len > 0)
                (*ret_items)[count++] = item;
        }
    }
    assert(count <= cap);
    return count;
}

/* A header allows only visible characters, and a pasted token often has others around it. */
static int check_token(struct cli *cli, const char *from)
{
    for (const char *at = cli->token; *at; at++)
        if ((unsigned char)*at <= ' ' || (unsigned char)*at >= 0x7f)
            return cli_fail(cli, CLI_USAGE,
                            "the token in %s has a blank, a line end or another character that no "
                            "token has",
                            from);
    return CLI_OK;
}

/* The first line of the file. */
static int read_token(struct cli *cli, const char *path)
{
    char line[TOKEN_BYTES_MAX];
    FILE *file = fopen(path, "re");
    char *got;

    if (!file)
        return cli_fail(cli, CLI_USAGE, "cannot read the token file %s: %m", path);
    got = fgets(line, sizeof line, file);
    fclose(file);
    if (got)
        line[strcspn(line, "\r\n")] = 0;
    if (!got || str_trim(str_of(line)).len == 0)
        return cli_fail(cli, CLI_USAGE, "the token file %s is empty", path);
    cli->token = arena_cstr(&cli->arena, str_trim(str_of(line)));
    if (file_is_public(path))
        fprintf(cli->err, "berth: everybody on this machine can read the token in %s: chmod 600\n",
                path);
    return check_token(cli, path);
}

/* The flag, or else its environment variable; NULL: neither. */
static const char *given_or_env(struct cli *cli, const char *flag, const char *env)
{
    const char *text = cli_text(cli, flag);

    if (!text)
        text = getenv(env);
    return text && *text ? text : NULL;
}

/* Certificate files: from the flag, or else the environment, or else the context. */
static int read_files(struct cli *cli, const struct context *context)
{
    const struct {
        const char *flag, *env;
        struct str kept;
        const char **to;
    } files[] = {
        {"ca-file", "BERTH_CA_FILE", context ? context->ca_file : STR_NONE, &cli->ca_file},
        {"cert-file", "BERTH_CERT_FILE", context ? context->cert_file : STR_NONE, &cli->cert_file},
        {"key-file", "BERTH_KEY_FILE", context ? context->key_file : STR_NONE, &cli->key_file},
    };

    for (size_t i = 0; i < COUNT_OF(files); i++) {
        *files[i].to = given_or_env(cli, files[i].flag, files[i].env);
        if (!*files[i].to && files[i].kept.at)
            *files[i].to = context_path(cli, files[i].kept);
        if (*files[i].to && access(*files[i].to, R_OK) != 0)
            return cli_fail(cli, CLI_USAGE, "cannot read the certificates in %s: %m", *files[i].to);
    }
    if (!cli->cert_file != !cli->key_file)
        return cli_misuse(cli, "--cert-file and --key-file must be given together");
    return CLI_OK;
}

int cli_reach(struct cli *cli)
{
    const char *addr = given_or_env(cli, "addr", "BERTH_ADDR"), *output = cli_text(cli, "output");
    static const char *const outputs[CLI_OUTPUT_COUNT] = {[CLI_TABLE] = "table",
                                                          [CLI_WIDE] = "wide",
                                                          [CLI_JSON] = "json",
                                                          [CLI_JSONL] = "jsonl",
                                                          [CLI_NAME] = "name"};
    const char *token_file = cli_text(cli, "token-file");
    const struct context *context = NULL;
    struct str text;
    int code = CLI_OK, i = 0;

    while (output && i < CLI_OUTPUT_COUNT && strcmp(outputs[i], output) != 0)
        i++;
    if (i == CLI_OUTPUT_COUNT)
        return cli_misuse(cli, "--output is table, wide, json, jsonl or name, not \"%s\"", output);
    if (output) {
        cli->output = (enum cli_output)i;
        cli->json = i == CLI_JSON || i == CLI_JSONL;
    }
    if (addr && cli_given(cli, "context"))
        return cli_misuse(cli, "--context or an address (--addr, BERTH_ADDR), not both");
    if (!addr)
        code = contexts_chosen(cli, &context);
    if (code != CLI_OK)
        return code;
    text = context ? context->addr : str_of(addr ? addr : ADDR_DEFAULT);
    while (text.len > 0 && text.at[text.len - 1] == '/')
        text.len--;
    if (!memmem(text.at, text.len, "://", 3)) /* "host:port" is taken as http */
        text = arena_fmt(&cli->arena, "http://" STR_FMT, STR_ARG(text));
    if (!str_starts(text, STR("http://")) && !str_starts(text, STR("https://")))
        return cli_misuse(cli, "the address must be http:// or https://, not " STR_FMT,
                          STR_ARG(text));
    cli->addr = arena_cstr(&cli->arena, text);
    code = read_files(cli, context);
    if (code != CLI_OK)
        return code;
    cli->token = getenv("BERTH_TOKEN");
    if (cli->token && !*cli->token)
        cli->token = NULL;
    if (!token_file && !cli->token && context && context->token_file.at)
        token_file = context_path(cli, context->token_file);
    if (token_file)
        code = read_token(cli, token_file);
    else if (cli->token)
        code = check_token(cli, "BERTH_TOKEN");
    if (code == CLI_OK && cli->token && url_is_exposed(str_of(cli->addr)))
        fprintf(cli->err, "berth: the token crosses the network to %s unencrypted: use https\n",
                cli->addr);
    return code;
}

void cli_host_flags(const struct cli *cli, const struct command *command, struct buf *flags)
{
    bool agent = strcmp(command->noun, "agent") == 0;

    if (command->kind != COMMAND_HOST || !cli->host)
        return;
    if (agent && cli->host->agent_flags)
        cli->host->agent_flags(flags);
    else if (!agent && cli->host->flags)
        cli->host->flags(flags);
}

static int print_help(struct cli *cli)
{
    struct buf flags = {0};

    help_command(cli->out, cli->command);
    cli_host_flags(cli, cli->command, &flags);
    if (flags.len > 0)
        fprintf(cli->out, "\nFlags:\n" STR_FMT, STR_ARG(buf_view(&flags)));
    buf_free(&flags);
    return CLI_OK;
}

static int run_command(struct cli *cli, int argc, char **argv)
{
    const char *no_colour = getenv("NO_COLOR"), *term = getenv("TERM");
    struct flag_set sets[COMMAND_FLAG_SETS];
    struct str names = str_of(cli->command->arg);
    struct flag_line line;
    struct problem why;
    int known = 0, fd = fileno(cli->out), code = CLI_OK;

    command_flags(cli->command, sets);
    if (flag_parse(sets, COUNT_OF(sets), argc, argv, &cli->arena, &line, &why))
        return cli_misuse(cli, "%s", why.detail);
    cli->given = line.given;
    cli->given_count = line.given_count;
    cli->args = line.args;
    cli->arg_count = line.arg_count;
    cli->rest = line.rest;
    cli->rest_count = line.rest_count;
    /* Where no command can follow, everything after `--` is an argument: a name may start with a
     * dash. */
    for (; !cli->command->rest && cli->rest_count > 0; cli->rest++, cli->rest_count--)
        cli->args[cli->arg_count++] = cli->rest[0];
    cli->terminal = fd >= 0 && isatty(fd);
    cli->colour = cli->terminal && !(no_colour && *no_colour) && term && strcmp(term, "dumb") != 0;
    if (cli_given(cli, "help"))
        return print_help(cli);
    /* "NODE SERVICE/METHOD [JSON]": three arguments, two of them required. */
    for (; names.at; known++) {
        struct str name = str_cut(&names, ' ');

        if (cli->arg_count == known && name.at[0] != '[')
            return cli_misuse(cli, STR_FMT " is missing", STR_ARG(name));
    }
    if (cli->arg_count > known)
        return cli_misuse(cli, "unexpected argument \"%s\"", cli->args[known]);
    if (cli->command->kind == COMMAND_API)
        code = cli_reach(cli);
    if (code == CLI_OK)
        code = cli->command->list   ? list_run(cli, cli->command->list)
               : cli->command->call ? answer_call(cli, cli->command->call)
                                    : cli->command->run(cli);
    return (fflush(cli->out) != 0 || ferror(cli->out)) && code == CLI_OK ? CLI_FAILED : code;
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0;
}

/* Commands that run a server or an agent parse their own flags; only --help is handled here. */
static int run_host(struct cli *cli, int argc, char **argv)
{
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return print_help(cli);
    assert(cli->host != NULL);
    if (cli->command->verb && strcmp(cli->command->noun, "store") == 0)
        return cli->host->store(argc + 1, argv - 1); /* with the verb */
    if (cli->command->verb)
        return cli->host->config(argc + 1, argv - 1);
    if (strcmp(cli->command->noun, "agent") == 0)
        return cli->host->agent(argc, argv);
    return cli->host->serve(argc, argv, strcmp(cli->command->noun, "dev") == 0);
}

/* `berth help [NOUN [VERB]]`, `berth --help`, `berth NOUN --help`: argv without the help word or
 * flag. */
static int show_help(struct cli *cli, int argc, char **argv)
{
    struct problem why;
    int used;

    if (argc == 0) {
        help_all(cli->out);
        return CLI_OK;
    }
    cli->command = command_find(argc, argv, &used, &why);
    if (cli->command)
        return print_help(cli);
    if (argc > 1 || !help_noun(cli->out, argv[0]))
        return cli_misuse(cli, "%s", why.detail);
    return CLI_OK;
}

int cli_run(struct cli *cli, int argc, char **argv)
{
    struct problem why;
    int used = 0;

    assert(argc > 0 && cli->out && cli->err);
    argc--, argv++;
    if (argc == 0) {
        help_all(cli->err);
        return CLI_USAGE;
    }
    if (is_help(argv[0]))
        return show_help(cli, argc - 1, argv + 1);
    if (strcmp(argv[0], "__complete") == 0)
        return complete_run(cli, argc - 1, argv + 1);
    if (strcmp(argv[0], "--version") == 0)
        argv[0] = (char *)"version";
    cli->command = command_find(argc, argv, &used, &why);
    if (!cli->command && argc > 1 && is_help(argv[1]))
        return show_help(cli, 1, argv);
    if (!cli->command)
        return cli_misuse(cli, "%s", why.detail);
    if (cli->command->kind == COMMAND_HOST)
        return run_host(cli, argc - used, argv + used);
    return run_command(cli, argc - used, argv + used);
}

int cli_main(int argc, char **argv, const struct cli_host *host)
{
    struct cli cli = {.host = host, .out = stdout, .err = stderr};
    int code = cli_run(&cli, argc, argv);

    arena_free(&cli.arena);
    return code;
}
