/* Shared by the tests of the command line: cmocka, splitting a line into words, and a run whose
 * output is kept. */
#ifndef TESTS_CLI_UNIT_H
#define TESTS_CLI_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/cli.h"

enum { WORDS_MAX = 32, LINE_MAX_LEN = 512 };

struct words {
    char text[LINE_MAX_LEN];
    char *argv[WORDS_MAX];
    int argc;
};

/* Splits a line like a shell: at blanks, with single quotes; it ends at '|', '<' or '>'. */
static inline void words_cut(struct words *words, const char *line)
{
    char *at = words->text;
    bool quoted = false, inside = false;

    words->argc = 0;
    assert_true(strlen(line) < sizeof words->text);
    for (; *line && (quoted || (*line != '|' && *line != '<' && *line != '>')); line++) {
        if (*line == '\'') {
            quoted = !quoted;
            if (!inside)
                words->argv[words->argc++] = at;
            inside = true;
            continue;
        }
        if (*line == ' ' && !quoted) {
            if (inside)
                *at++ = 0;
            inside = false;
            continue;
        }
        if (!inside)
            words->argv[words->argc++] = at;
        inside = true;
        *at++ = *line;
        assert_true(words->argc < WORDS_MAX);
    }
    *at = 0;
    words->argv[words->argc] = NULL;
}

struct outcome_of_run {
    int code;
    char *out;
    char *err;
};

static inline struct outcome_of_run run_words(int argc, char **argv, const struct cli_host *host)
{
    struct outcome_of_run run = {0};
    size_t out_len, err_len;
    struct cli cli = {.host = host,
                      .out = open_memstream(&run.out, &out_len),
                      .err = open_memstream(&run.err, &err_len)};

    run.code = cli_run(&cli, argc, argv);
    arena_free(&cli.arena);
    fclose(cli.out);
    fclose(cli.err);
    return run;
}

/* Runs a line as if typed. */
static inline struct outcome_of_run run_line(const char *line)
{
    struct words words;

    words_cut(&words, line);
    return run_words(words.argc, words.argv, NULL);
}

static inline void run_free(struct outcome_of_run *run)
{
    free(run->out);
    free(run->err);
}

#define assert_has(text, part)                                                                     \
    do {                                                                                           \
        if (!strstr((text), (part)))                                                               \
            fail_msg("\"%s\" is not in: %s", (part), (text));                                      \
    } while (0)

#endif
