/* JSON bodies into structs by a table: what is accepted, what is refused, and with which
 * message. */
#include "../unit.h"

#include <string.h>

#include "base/schema.h"

struct limits {
    int64_t ttl_ms;
    int64_t tries;
    bool tts;
};

struct job {
    struct str id;
    struct str title;
    int64_t priority;
    int64_t wait_ms;
    int64_t stale_ms;
    int64_t at_least;
    int64_t delta;
    int mode;
    double share;
    bool dry;
    struct strs langs;
    struct limits limits;
    const struct json *payload;
};

static const char *const modes[] = {"normal", "seed", NULL};

static const struct field limit_fields[] = {
    {.name = "ttl_ms",
     .type = FIELD_MS,
     .offset = offsetof(struct limits, ttl_ms),
     .min = 1000,
     .max = 60000,
     .preset = "5s"},
    {.name = "tries",
     .type = FIELD_INT,
     .offset = offsetof(struct limits, tries),
     .flags = FIELD_REQUIRED},
    {.name = "tts", .type = FIELD_BOOL, .offset = offsetof(struct limits, tts), .preset = "true"},
};

static const struct field job_fields[] = {
    {.name = "job_id",
     .alias = "id",
     .type = FIELD_ID,
     .offset = offsetof(struct job, id),
     .max = 8,
     .flags = FIELD_REQUIRED},
    {.name = "title",
     .type = FIELD_STR,
     .offset = offsetof(struct job, title),
     .min = 1,
     .max = 20,
     .preset = "untitled"},
    {.name = "priority",
     .type = FIELD_INT,
     .offset = offsetof(struct job, priority),
     .min = 0,
     .max = 9,
     .preset = "5"},
    {.name = "wait_ms", .type = FIELD_MS, .offset = offsetof(struct job, wait_ms)},
    {.name = "stale_ms",
     .type = FIELD_MS,
     .offset = offsetof(struct job, stale_ms),
     .min = 1000,
     .max = 60000,
     .flags = FIELD_NULLABLE,
     .preset = "15s"},
    {.name = "at_least",
     .type = FIELD_INT,
     .offset = offsetof(struct job, at_least),
     .min = 3,
     .flags = FIELD_NULLABLE},
    {.name = "delta",
     .type = FIELD_INT,
     .offset = offsetof(struct job, delta),
     .flags = FIELD_NULLABLE},
    {.name = "mode",
     .type = FIELD_ENUM,
     .offset = offsetof(struct job, mode),
     .names = modes,
     .preset = "seed"},
    {.name = "share",
     .type = FIELD_REAL,
     .offset = offsetof(struct job, share),
     .min = 0,
     .max = 1,
     .preset = "0.25"},
    {.name = "dry", .type = FIELD_BOOL, .offset = offsetof(struct job, dry)},
    {.name = "langs",
     .type = FIELD_STRS,
     .offset = offsetof(struct job, langs),
     .min = 0,
     .max = 3,
     .preset = "zh, en"},
    {.name = "limits",
     .type = FIELD_OBJ,
     .offset = offsetof(struct job, limits),
     .fields = limit_fields,
     .field_count = COUNT_OF(limit_fields)},
    {.name = "payload", .type = FIELD_JSON, .offset = offsetof(struct job, payload)},
};

static const struct schema body = {"the body", job_fields, COUNT_OF(job_fields), false};
static const struct schema strict = {"the configuration", job_fields, COUNT_OF(job_fields), true};

static enum err read_job(const struct schema *schema, const char *text, struct job *job,
                         struct arena *arena, struct problem *why)
{
    const struct json *root;

    assert_int_equal(json_parse(str_of(text), arena, &root, why), ERR_OK);
    return schema_read(schema, root, job, arena, why);
}

static void test_a_full_body(void **state)
{
    struct arena arena = {0};
    struct job job = {0};
    struct problem why = {0};

    assert_int_equal(
        read_job(&body,
                 "{\"id\":\"j-1\",\"title\":\"caf\\u00e9\",\"priority\":9,\"wait_ms\":\"2m\","
                 "\"stale_ms\":null,\"at_least\":\"off\",\"mode\":\"normal\",\"share\":1e0,"
                 "\"dry\":true,\"langs\":[\"zh\",\"\\u0065n\"],\"limits\":{\"ttl_ms\":2000,"
                 "\"tries\":3,\"tts\":false},\"payload\":{\"x\":[1]},\"unknown\":{}}",
                 &job, &arena, &why),
        ERR_OK);
    assert_str(job.id, "j-1");
    assert_str(job.title, "caf\xc3\xa9");
    assert_int_equal(job.priority, 9);
    assert_int_equal(job.wait_ms, 120000);
    assert_int_equal(job.stale_ms, FIELD_OFF);
    assert_int_equal(job.at_least, FIELD_OFF);
    assert_int_equal(job.mode, 0);
    assert_true(job.share == 1.0);
    assert_true(job.dry);
    assert_int_equal(job.langs.count, 2);
    assert_str(job.langs.at[1], "en");
    assert_int_equal(job.limits.ttl_ms, 2000);
    assert_int_equal(job.limits.tries, 3);
    assert_false(job.limits.tts);
    assert_str(json_raw(job.payload), "{\"x\":[1]}");
    arena_free(&arena);
}

static void test_presets_and_absence(void **state)
{
    struct arena arena = {0};
    struct job job = {.wait_ms = 7};
    struct problem why;

    assert_int_equal(schema_presets(&body, &job, &arena), ERR_OK);
    assert_int_equal(read_job(&body,
                              "{\"job_id\":\"j\",\"priority\":null,\"langs\":null,\"payload\":null,"
                              "\"limits\":null,\"wait_ms\":null,\"mode\":null,\"id\":null}",
                              &job, &arena, &why),
                     ERR_OK);
    assert_str(job.title, "untitled");
    assert_int_equal(job.priority, 5);
    assert_int_equal(job.wait_ms, 7);
    assert_int_equal(job.stale_ms, 15000);
    assert_int_equal(job.mode, 1);
    assert_true(job.share == 0.25);
    assert_int_equal(job.langs.count, 2);
    assert_str(job.langs.at[0], "zh");
    assert_str(job.langs.at[1], "en");
    assert_int_equal(job.limits.ttl_ms, 5000);
    assert_true(job.limits.tts);
    assert_null(job.payload);
    arena_free(&arena);
}

static const struct {
    const char *text; /* of a member, in addition to job_id */
    const char *field;
    const char *detail; /* NULL: accepted */
} rows[] = {
    {"\"priority\":0", "", NULL},
    {"\"priority\":9.0", "", NULL},
    {"\"priority\":10", "priority", "priority must be a whole number from 0 to 9."},
    {"\"priority\":-1", "priority", "priority must be a whole number from 0 to 9."},
    {"\"priority\":1.5", "priority", "priority must be a whole number from 0 to 9."},
    {"\"priority\":\"5\"", "priority", "priority must be a whole number from 0 to 9."},
    {"\"priority\":99999999999999999999", "priority",
     "priority must be a whole number from 0 to 9."},
    {"\"at_least\":2", "at_least", "at_least must be a whole number of at least 3, or off."},
    {"\"at_least\":-9223372036854775808", "at_least",
     "at_least must be a whole number of at least 3, or off."},
    {"\"at_least\":9223372036854775807", "", NULL},
    {"\"delta\":-9223372036854775807", "", NULL},
    {"\"delta\":-9223372036854775808", "delta", "delta must be a whole number, or off."},
    {"\"wait_ms\":-1", "wait_ms", "wait_ms must be a time such as 250ms, 5s or 2m."},
    {"\"wait_ms\":\"off\"", "wait_ms", "wait_ms must be a time such as 250ms, 5s or 2m."},
    {"\"wait_ms\":1.5", "wait_ms", "wait_ms must be a time such as 250ms, 5s or 2m."},
    {"\"stale_ms\":999", "stale_ms",
     "stale_ms must be a time such as 250ms, 5s or 2m, from 1000 to 60000 ms, or off."},
    {"\"stale_ms\":\"61s\"", "stale_ms",
     "stale_ms must be a time such as 250ms, 5s or 2m, from 1000 to 60000 ms, or off."},
    {"\"stale_ms\":\"1m\"", "", NULL},
    {"\"mode\":\"Seed\"", "mode", "mode must be one of normal, seed."},
    {"\"mode\":0", "mode", "mode must be one of normal, seed."},
    {"\"share\":1.01", "share", "share must be a number from 0 to 1."},
    {"\"share\":-1e-9", "share", "share must be a number from 0 to 1."},
    {"\"share\":1e999", "share", "share must be a number from 0 to 1."},
    {"\"dry\":1", "dry", "dry must be true or false."},
    {"\"dry\":\"true\"", "dry", "dry must be true or false."},
    {"\"title\":\"\"", "title",
     "title must be a text of 1 to 20 bytes without control characters."},
    {"\"title\":\"123456789012345678901\"", "title",
     "title must be a text of 1 to 20 bytes without control characters."},
    {"\"title\":\"a\\nb\"", "title",
     "title must be a text of 1 to 20 bytes without control characters."},
    {"\"title\":\"a\\u009bb\"", "title",
     "title must be a text of 1 to 20 bytes without control characters."},
    {"\"langs\":\"zh\"", "langs",
     "langs must be a list of 0 to 3 texts without control characters."},
    {"\"langs\":[\"a\",1]", "langs",
     "langs must be a list of 0 to 3 texts without control characters."},
    {"\"langs\":[\"a\",null]", "langs",
     "langs must be a list of 0 to 3 texts without control characters."},
    {"\"langs\":[\"a\",\"b\",\"c\",\"d\"]", "langs",
     "langs must be a list of 0 to 3 texts without control characters."},
    {"\"langs\":[]", "", NULL},
    {"\"limits\":[]", "limits", "limits must be an object."},
    {"\"limits\":{}", "limits.tries", "limits.tries is required."},
    {"\"limits\":{\"tries\":null}", "limits.tries", "limits.tries is required."},
    {"\"limits\":{\"tries\":1,\"tts\":\"no\"}", "limits.tts", "limits.tts must be true or false."},
    {"\"limits\":{\"tries\":1,\"more\":2}", "", NULL},
    {"\"id\":\"other\"", "job_id", "job_id is given twice, as job_id and as id."},
    {"\"pri\\u006frity\":10", "priority", "priority must be a whole number from 0 to 9."},
};

static void test_values_and_sentences(void **state)
{
    struct arena arena = {0};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct job job = {0};
        struct problem why = {0};
        struct str text = arena_fmt(&arena, "{\"job_id\":\"j\",%s}", rows[i].text);
        enum err err = read_job(&body, text.at, &job, &arena, &why);

        if (err != (rows[i].detail ? ERR_BAD_FIELD : ERR_OK))
            fail_msg("%s: %s", rows[i].text, why.detail);
        if (strcmp(why.detail, rows[i].detail ? rows[i].detail : "") != 0)
            fail_msg("%s: %s", rows[i].text, why.detail);
        assert_string_equal(why.field, rows[i].field);
        assert_int_equal(why.line, 0);
    }
    arena_free(&arena);
}

static void test_ids(void **state)
{
    static const char *const bad[] = {"\"\"", "\".x\"", "\"a b\"", "\"123456789\"", "7", "[\"a\"]"};
    struct arena arena = {0};
    struct problem why;
    struct job job;

    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct str text = arena_fmt(&arena, "{\"job_id\":%s}", bad[i]);

        assert_int_equal(read_job(&body, text.at, &job, &arena, &why), ERR_BAD_FIELD);
        assert_string_equal(why.detail, "job_id must be 1 to 8 characters out of A-Z a-z 0-9 . _ : "
                                        "@ - and not start with a dot.");
    }
    arena_free(&arena);
}

static void test_required_and_not_an_object(void **state)
{
    static const char *const texts[] = {"[]", "1", "null", "\"x\""};
    struct arena arena = {0};
    struct problem why;
    struct job job;

    assert_int_equal(read_job(&body, "{}", &job, &arena, &why), ERR_BAD_FIELD);
    assert_string_equal(why.detail, "job_id is required.");
    assert_string_equal(why.field, "job_id");
    assert_int_equal(read_job(&body, "{\"job_id\":null}", &job, &arena, &why), ERR_BAD_FIELD);
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        assert_int_equal(read_job(&body, texts[i], &job, &arena, &why), ERR_BAD_FIELD);
        assert_string_equal(why.detail, "The body must be an object with named values.");
    }
    assert_int_equal(schema_read(&body, NULL, &job, &arena, &why), ERR_BAD_FIELD);
    assert_int_equal(schema_read(&body, NULL, &job, &arena, NULL), ERR_BAD_FIELD);
    arena_free(&arena);
}

static const struct {
    const char *key, *detail;
} unknown[] = {
    {"priorty", "Unknown setting \"priorty\"; did you mean \"priority\"?"},
    {"pirority", "Unknown setting \"pirority\"; did you mean \"priority\"?"},
    {"moed", "Unknown setting \"moed\"; did you mean \"mode\"?"},
    {"made", "Unknown setting \"made\"; did you mean \"mode\"?"},
    {"mad", "Unknown setting \"mad\"."},
    {"Mode", "Unknown setting \"Mode\"; did you mean \"mode\"?"},
    {"xyzzy", "Unknown setting \"xyzzy\"."},
    {"", "Unknown setting \"\"."},
    {"mode\\u0000", "Unknown setting \"mode?\"; did you mean \"mode\"?"},
    {"\\u001b[31m", "Unknown setting \"?[31m\"."},
    {"a123456789a123456789a123456789a123456789a123456789a123456789a123456789",
     "Unknown setting \"a123456789a123456789a123456789a123456789a123456789a123456789a123...\"."},
};

/* An object may have names of the user's own besides those of its table; but a misspelt or
 * differently spelt name of the table is refused. */
static void test_an_open_object(void **state)
{
    static const struct field inner[] = {
        {.name = "load_pct", .alias = "loadPct", .type = FIELD_INT, .offset = 0}};
    static const struct field outer[] = {{.name = "has",
                                          .type = FIELD_OBJ,
                                          .flags = FIELD_OPEN,
                                          .fields = inner,
                                          .field_count = COUNT_OF(inner)}};
    static const struct schema schema = {
        .what = "the body", .fields = outer, .count = COUNT_OF(outer), .strict = true};
    static const struct {
        const char *text;
        int64_t pct; /* -1: refused */
    } bodies[] = {
        {"{\"has\":{\"load_pct\":3,\"licences\":2}}", 3},
        {"{\"has\":{\"cpu\":1,\"loadPct\":4}}", 4},
        {"{\"has\":{\"load_pc\":3}}", -1},
        {"{\"has\":{\"loadPc\":3}}", -1},
        {"{\"licences\":2}", -1},
    };
    struct arena arena = {0};

    for (size_t i = 0; i < COUNT_OF(bodies); i++) {
        const struct json *root;
        int64_t pct = 0;

        assert_int_equal(json_parse(str_of(bodies[i].text), &arena, &root, NULL), ERR_OK);
        assert_int_equal(schema_read(&schema, root, &pct, &arena, NULL),
                         bodies[i].pct < 0 ? ERR_BAD_FIELD : ERR_OK);
        assert_true(bodies[i].pct < 0 || bodies[i].pct == pct);
    }
    arena_free(&arena);
}

static void test_unknown_names_in_a_strict_schema(void **state)
{
    struct arena arena = {0};
    struct problem why;
    struct job job;

    for (size_t i = 0; i < COUNT_OF(unknown); i++) {
        struct str text = arena_fmt(&arena, "{\"job_id\":\"j\",\"%s\":1}", unknown[i].key);

        assert_int_equal(read_job(&strict, text.at, &job, &arena, &why), ERR_BAD_FIELD);
        assert_string_equal(why.detail, unknown[i].detail);
        assert_int_equal(read_job(&body, text.at, &job, &arena, &why), ERR_OK);
    }
    assert_int_equal(read_job(&strict, "{\"limits\":{\"tires\":1}}", &job, &arena, &why),
                     ERR_BAD_FIELD);
    assert_string_equal(why.detail,
                        "Unknown setting \"limits.tires\"; did you mean \"limits.tries\"?");
    assert_string_equal(why.field, "limits.tires");
    arena_free(&arena);
}

static void test_a_wrong_preset_is_told(void **state)
{
    static const struct field fields[] = {
        {.name = "priority", .type = FIELD_INT, .min = 0, .max = 9, .preset = "10"}};
    static const struct schema wrong = {"the body", fields, 1, false};
    struct arena arena = {0};
    int64_t out = 0;

    assert_int_equal(schema_presets(&wrong, &out, &arena), ERR_BAD_CONFIG);
    arena_free(&arena);
}

struct shown {
    struct str name, none, json;
    int64_t count, pid;
    int word;
    bool on;
};

static const char *word_at(size_t index)
{
    static const char *const words[] = {"one", "two", NULL};

    return words[index];
}

#define SHOWN(member, kind, ...) FIELD_ROW(shown, member, kind, __VA_ARGS__)
static const struct field shown_fields[] = {
    SHOWN(name, STR, .flags = FIELD_EMPTY),
    SHOWN(none, STR),
    SHOWN(json, RAW),
    SHOWN(count, INT),
    SHOWN(pid, INT, .flags = FIELD_EMPTY),
    SHOWN(word, ENUM, .name_at = word_at),
    SHOWN(on, BOOL),
};
static const struct schema shown_schema = {
    .what = "what is shown", .fields = shown_fields, .count = COUNT_OF(shown_fields)};

static void test_an_answer_by_rows(void **state)
{
    static const struct {
        struct shown shown;
        const char *json;
    } cases[] = {
        {{.name = STR("a\"b"), .json = STR("[1]"), .count = 3, .pid = 7, .word = 1, .on = true},
         "{\"name\":\"a\\\"b\",\"none\":null,\"json\":[1],\"count\":3,\"pid\":7,"
         "\"word\":\"two\",\"on\":true}"},
        {{.name = STR("")},
         "{\"name\":null,\"none\":null,\"json\":null,\"count\":0,\"pid\":null,"
         "\"word\":\"one\",\"on\":false}"},
    };

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct buf buf = {0};
        struct jsonw w = jsonw_to(&buf);

        schema_write(&shown_schema, &cases[i].shown, &w);
        assert_str(buf_view(&buf), cases[i].json);
        buf_free(&buf);
    }
}

/* Names out of another table are accepted; the refusal of any other lists them. */
static void test_words_out_of_a_table(void **state)
{
    struct arena arena = {0};
    struct shown out = {0};
    struct problem why = {0};
    const struct json *sent;

    assert_int_equal(json_parse(STR("{\"word\":\"two\"}"), &arena, &sent, NULL), ERR_OK);
    assert_int_equal(schema_read(&shown_schema, sent, &out, &arena, &why), ERR_OK);
    assert_int_equal(out.word, 1);
    assert_int_equal(json_parse(STR("{\"word\":\"six\"}"), &arena, &sent, NULL), ERR_OK);
    assert_int_equal(schema_read(&shown_schema, sent, &out, &arena, &why), ERR_BAD_FIELD);
    assert_string_equal(why.detail, "word must be one of one, two.");
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_full_body),
        cmocka_unit_test(test_presets_and_absence),
        cmocka_unit_test(test_values_and_sentences),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_required_and_not_an_object),
        cmocka_unit_test(test_unknown_names_in_a_strict_schema),
        cmocka_unit_test(test_an_open_object),
        cmocka_unit_test(test_a_wrong_preset_is_told),
        cmocka_unit_test(test_an_answer_by_rows),
        cmocka_unit_test(test_words_out_of_a_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
