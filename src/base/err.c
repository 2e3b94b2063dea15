/* The error table, and the struct that carries one error with its sentence. */
#include "base/err.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct err_row {
    const char *name;
    const char *title;
    int http;
    int exit_code;
};

#define ERR_TABLE_ROW(symbol, wire, status, code, text)                                            \
    [symbol] = {.name = wire, .title = text, .http = status, .exit_code = code},
static const struct err_row rows[ERR_COUNT] = {
    [ERR_OK] = {.name = "OK", .title = "It worked", .http = 200, .exit_code = 0},
    ERR_ROWS(ERR_TABLE_ROW)};

static const struct err_row *row_of(enum err err)
{
    assert(err >= ERR_OK && err < ERR_COUNT);
    return &rows[err];
}

const char *err_name(enum err err)
{
    return row_of(err)->name;
}

const char *err_title(enum err err)
{
    return row_of(err)->title;
}

int err_http(enum err err)
{
    return row_of(err)->http;
}

int err_exit(enum err err)
{
    return row_of(err)->exit_code;
}

enum err err_by_name(const char *wire, int http)
{
    for (int i = ERR_OK + 1; i < ERR_COUNT; i++)
        if (strcmp(rows[i].name, wire) == 0)
            return (enum err)i;
    for (int i = ERR_OK + 1; i < ERR_COUNT; i++)
        if (rows[i].http == http)
            return (enum err)i;
    return ERR_INTERNAL;
}

enum err problem_set(struct problem *why, enum err err, const char *field, const char *fmt, ...)
{
    va_list args;

    assert(err != ERR_OK);
    if (!why)
        return err;
    why->err = err;
    why->line = 0;
    why->column = 0;
    snprintf(why->field, sizeof why->field, "%s", field ? field : "");
    va_start(args, fmt);
    vsnprintf(why->detail, sizeof why->detail, fmt, args);
    va_end(args);
    return err;
}
