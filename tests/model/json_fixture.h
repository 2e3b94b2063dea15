/* Parses JSON texts of a test, in memory that is freed after it. */
#ifndef TESTS_MODEL_JSON_FIXTURE_H
#define TESTS_MODEL_JSON_FIXTURE_H

#include "../unit.h"
#include "base/json.h"
#include "base/mem.h"

static struct arena arena;

static int tidy_up(void **state)
{
    arena_free(&arena);
    return 0;
}

static const struct json *parse(const char *text)
{
    const struct json *json;

    assert_int_equal(json_parse(str_of(text), &arena, &json, NULL), ERR_OK);
    return json;
}

#endif
