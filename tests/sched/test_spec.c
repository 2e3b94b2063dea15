/* Job specifications: from a request, into the store and back, and to a node. */
#include "rig.h"

#include "../arena.h"
#include "sched/spec.h"

#include <stdlib.h>
#include <string.h>

static const struct json *parse(struct arena *arena, struct str json)
{
    const struct json *root;
    struct problem why = {0};

    if (json_parse(json, arena, &root, &why))
        fail_msg(STR_FMT ": %s", STR_ARG(json), why.detail);
    return root;
}

static const struct spec_author nobody = {.view = {.namespace = {"default", 7}, .all = true}};

static enum err read(struct arena *arena, bool f2f, const char *json, struct spec *spec,
                     struct problem *why)
{
    const struct json *root = parse(arena, str_of(json));

    *why = (struct problem){0};
    return spec_read(f2f, root, &nobody, arena, spec, why);
}

static struct spec must_read(struct arena *arena, bool f2f, const char *json)
{
    struct spec spec = {0};
    struct problem why;

    if (read(arena, f2f, json, &spec, &why))
        fail_msg("%s: %s", json, why.detail);
    return spec;
}

static void bad_input_names_its_field(void **state)
{
    static const struct {
        bool f2f;
        const char *json;
        const char *field;
    } rows[] = {
        {true, "{}", "src_lang"},
        {true, "{\"src_lang\":\"en\"}", "tgt_lang"},
        {true, "{\"src_lang\":\"e n\",\"tgt_lang\":\"zh\"}", "src_lang"},
        {true, "{\"src_lang\":\"en\",\"tgt_lang\":\"\"}", "tgt_lang"},
        {true, "{\"src_lang\":\"type\",\"tgt_lang\":\"zh\"}", "src_lang"},
        {true, "{\"src_lang\":5,\"tgt_lang\":\"zh\"}", "src"},
        {true, "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"session_id\":\"\"}", "session_id"},
        {true, "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"options\":[]}", "options"},
        {true, "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"options\":{\"strict\":1}}",
         "options.strict"},
        {true,
         "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"options\":{\"preferred_node_id\":\"a/b\"}}",
         "options.preferred_node_id"},
        {true, "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"max_attempts\":0}", "max_attempts"},
        {true, "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"max_attempts\":10}", "max_attempts"},
        {false, "{}", "type"},
        {false, "{\"type\":\"a b\"}", "type"},
        {false, "{\"type\":\"*\"}", "type"},
        {false, "{\"type\":\"f2f\"}", "type"},
        {false, "{\"type\":\"dev\",\"priority\":10}", "priority"},
        {false, "{\"type\":\"dev\",\"priority\":-1}", "priority"},
        {false, "{\"type\":\"dev\",\"queue_ms\":-1}", "queue_ms"},
        {false, "{\"type\":\"dev\",\"queue_ms\":86400001}", "queue_ms"},
        {false, "{\"type\":\"dev\",\"timeout_ms\":\"soon\"}", "timeout_ms"},
        {false, "{\"type\":\"dev\",\"requires\":\"gpu gpu\"}", "requires"},
        {false, "{\"type\":\"dev\",\"requires\":\"gpu=yes,\"}", "requires"},
        {false, "{\"type\":\"dev\",\"command\":{}}", "command"},
        {false, "{\"type\":\"dev\",\"command\":[]}", "command"},
        {false, "{\"type\":\"dev\",\"command\":[\"ls\",5]}", "command"},
        {false, "{\"type\":\"dev\",\"command\":7}", "command"},
        {false, "{\"type\":\"dev\",\"needs\":[]}", "needs"},
        {false, "{\"type\":\"dev\",\"needs\":{\"cpu\":-1}}", "needs"},
        {false, "{\"type\":\"dev\",\"needs\":{\"slots\":0}}", "needs"},
        {true, "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"needs\":{\"mem_mb\":0.5}}", "needs"},
        {false, "{\"type\":\"dev\",\"keys\":\"a\"}", "keys"},
        {false, "{\"type\":\"dev\",\"keys\":[\"a b\"]}", "keys"},
        {false, "{\"type\":\"dev\",\"keys\":[\"a\",\"a\"]}", "keys"},
        {false, "{\"type\":\"dev\",\"command\":\"\"}", "command"},
        {false, "{\"type\":\"dev\",\"command\":[\"\"]}", "command"},
        {false, "{\"type\":\"dev\",\"command\":[\"\",\"ls\"]}", "command"},
        {false, "{\"type\":\"dev\",\"command\":\"ls\\u0000\"}", "command"},
        {false, "{\"type\":\"dev\",\"command\":[\"ls\",\"\\u0000\"]}", "command"},
        {false, "{\"type\":\"dev\",\"interactive\":\"yes\"}", "interactive"},
        {false, "{\"type\":\"dev\",\"secrets\":[\"../x\"]}", "secrets"},
        {false, "{\"type\":\"dev\",\"secrets\":{\"A B\":\"x\"}}", "secrets"},
    };
    struct arena *arena = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct spec spec;
        struct problem why;

        if (read(arena, rows[i].f2f, rows[i].json, &spec, &why) != ERR_BAD_FIELD ||
            strcmp(why.field, rows[i].field) != 0)
            fail_msg("%s: field \"%s\", \"%s\"", rows[i].json, why.field, why.detail);
    }
}

static void face_to_face_has_its_own_defaults(void **state)
{
    struct spec spec = must_read(*state, true,
                                 "{\"src_lang\":\"EN\",\"tgt_lang\":\" zh \",\"queue_ms\":5000,"
                                 "\"type\":\"other\",\"max_retry\":3}");

    assert_true(spec.f2f);
    assert_str(spec.type, "f2f");
    assert_str(spec.src, "en");
    assert_str(spec.tgt, "zh");
    assert_int_equal(spec.priority, SPEC_PRIORITY_F2F);
    assert_int_equal(spec.queue_ms, 0); /* it never waits */
    assert_int_equal(spec.max_attempts, 3);
    spec = must_read(*state, false, "{\"type\":\"dev\",\"queue_ms\":\"5s\"}");
    assert_int_equal(spec.priority, SPEC_PRIORITY_TASK);
    assert_int_equal(spec.queue_ms, 5000);
    assert_int_equal(spec.max_attempts, FIELD_OFF);
}

#define TASK                                                                                       \
    "{\"type\":\"dev\",\"title\":\"a \\\"b\\\"\",\"priority\":8,\"payload\":{\"k\":[1,2]},"        \
    "\"command\":[\"sh\",\"-c\",\"true\"],\"requires\":\"gpu=yes\",\"interactive\":true,"          \
    "\"secrets\":{\"KEY\":\"api-key\"},"                                                           \
    "\"queue_ms\":1000,\"timeout_ms\":2000,\"max_attempts\":4,"                                    \
    "\"callback_url\":\"http://127.0.0.1:1/cb\",\"session_id\":\"s\"}"
#define TALK                                                                                       \
    "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"session_id\":\"s1\",\"audio_ref\":\"a.wav\","      \
    "\"options\":{\"require_tts\":true,\"strict\":true,\"preferred_node_id\":\"n1\",\"x\":1}}"

static void specs_survive_the_store(void **state)
{
    const struct spec rows[] = {must_read(*state, false, TASK), must_read(*state, true, TALK),
                                must_read(*state, false, "{\"type\":\"dev\"}")};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct spec back = {0}, again = {0};
        struct problem why = {0};

        assert_int_equal(spec_stored(rows[i].json, *state, &back, &why), ERR_OK);
        assert_true(str_eq(back.json, rows[i].json));
        assert_int_equal(back.f2f, rows[i].f2f);
        assert_true(str_eq(back.type, rows[i].type) && str_eq(back.title, rows[i].title));
        assert_true(str_eq(back.src, rows[i].src) && str_eq(back.tgt, rows[i].tgt));
        assert_true(str_eq(back.requires, rows[i].requires));
        assert_true(str_eq(json_raw(back.secrets), json_raw(rows[i].secrets)));
        assert_true(str_eq(back.callback_url, rows[i].callback_url));
        assert_true(str_eq(back.options.preferred_node_id, rows[i].options.preferred_node_id));
        assert_int_equal(back.options.strict, rows[i].options.strict);
        assert_int_equal(back.options.require_tts, rows[i].options.require_tts);
        assert_int_equal(back.priority, rows[i].priority);
        assert_int_equal(back.interactive, rows[i].interactive);
        assert_int_equal(back.queue_ms, rows[i].queue_ms);
        assert_int_equal(back.timeout_ms, rows[i].timeout_ms);
        assert_int_equal(back.max_attempts, rows[i].max_attempts);
        assert_int_equal(spec_again(rows[i].json, 77, STR_NONE, *state, &again, &why), ERR_OK);
        assert_int_equal(again.retried_from.len, JOB_ID_TEXT);
        assert_int_equal(again.priority, rows[i].priority);
        assert_int_equal(spec_stored(again.json, *state, &back, &why), ERR_OK);
        assert_true(str_eq(back.retried_from, again.retried_from));
    }
}

/* {"name":example,...} with every row that this kind of job has. */
static struct str body_of_all(struct arena *arena, bool f2f)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    jsonw_obj(&w);
    for (size_t i = 0; i < spec_schema.count; i++) {
        const struct field *row = &spec_schema.fields[i];

        if (!row->example)
            fail_msg("%s has no example", row->name);
        if (strcmp(row->name, "type") == 0)
            jsonw_kstr(&w, "type", f2f ? STR("f2f") : STR("dev"));
        else if (f2f || !(row->flags & SPEC_TALK))
            jsonw_kraw(&w, row->name, str_of(row->example));
    }
    jsonw_end_obj(&w);
    struct str body = arena_str(arena, buf_view(&buf));
    buf_free(&buf);
    return body;
}

/* A row that is read but not written, or the reverse, would lose what a client sent. */
static void every_row_is_kept_read_back_and_sent(void **state)
{
    static const struct store_head head = {.id = 99, .attempt = 1};
    struct arena *arena = *state;

    for (int f2f = 0; f2f < 2; f2f++) {
        struct str body = body_of_all(arena, f2f);
        const struct json *sent = parse(arena, body), *kept, *message;
        struct str by = json_str(json_get(sent, "submitted_by"), arena);
        struct spec spec, back;
        struct problem why = {0};
        uint64_t from;

        assert_true(job_id_parse(json_str(json_get(sent, "retried_from"), arena), &from));
        assert_int_equal(spec_again(body, from, by, arena, &spec, &why), ERR_OK);
        assert_int_equal(spec_stored(spec.json, arena, &back, &why), ERR_OK);
        kept = parse(arena, spec.json);
        message = parse(arena, spec_message(&back, &head, arena));
        for (size_t i = 0; i < spec_schema.count; i++) {
            const struct field *row = &spec_schema.fields[i];
            struct str value = json_raw(json_get(sent, row->name));
            bool told = !(row->flags & SPEC_NOT_NODE);

            if (!str_eq(json_raw(json_get(kept, row->name)), value))
                fail_msg("%s is not kept: " STR_FMT, row->name, STR_ARG(spec.json));
            if (!field_same(row, &spec, &back))
                fail_msg("%s is not read back: " STR_FMT, row->name, STR_ARG(spec.json));
            if (!str_eq(json_raw(json_get(message, row->name)), told ? value : STR("null")))
                fail_msg("the node gets %s wrong", row->name);
        }
    }
}

/* A damaged record is refused, and does no harm. */
static void what_we_did_not_write_is_refused(void **state)
{
    static const char *const rows[] = {
        "", "x", "{}", "[]", "5", "{\"type\":5}", "{\"priority\":5}", "{\"type\":\"a b\"}"};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct spec spec;
        struct problem why = {0};

        if (!spec_stored(str_of(rows[i]), *state, &spec, &why))
            fail_msg("%s", rows[i]);
    }
}

/* A client must not be able to claim that its job is an operator's retry. */
static void only_a_retry_says_where_it_came_from(void **state)
{
    struct spec spec =
        must_read(*state, false, "{\"type\":\"dev\",\"retried_from\":\"j0000000000001\"}");

    assert_null(spec.retried_from.at);
    assert_null(strstr(spec.json.at, "retried_from"));
}

/* Nor can a client say who submits: that comes from authentication. */
static void nobody_says_themselves_who_submits(void **state)
{
    const struct json *root = parse(*state, STR("{\"type\":\"dev\",\"submitted_by\":\"ops\"}"));
    struct spec spec = must_read(*state, false, "{\"type\":\"dev\",\"submitted_by\":\"ops\"}"),
                back;
    const struct spec_author author = {.name = STR("a \"b\""), .view = nobody.view};
    struct problem why;

    assert_null(spec.submitted_by.at);
    assert_null(strstr(spec.json.at, "submitted_by"));
    assert_null(spec_account(&spec).name.at);
    assert_int_equal(spec_read(false, root, &author, *state, &spec, &why), ERR_OK);
    assert_int_equal(spec_stored(spec.json, *state, &back, &why), ERR_OK);
    assert_true(str_is(back.submitted_by, "a \"b\""));
    assert_int_equal(spec_account(&back).bytes, spec.json.len);
    assert_int_equal(spec_again(spec.json, 77, STR_NONE, *state, &back, &why), ERR_OK);
    assert_null(strstr(back.json.at, "submitted_by"));
}

static void the_message_is_whole_and_tells_no_callback(void **state)
{
    struct arena *arena = *state;
    const struct spec specs[] = {must_read(arena, false, TASK), must_read(arena, true, TALK)};
    const struct store_head head = {
        .id = 99, .attempt = 3, .dispatched_ms = RIG_START_MS - 1, .due_ms = RIG_START_MS};

    for (size_t i = 0; i < COUNT_OF(specs); i++) {
        char id[JOB_ID_TEXT + 1];
        struct str text = spec_message(&specs[i], &head, arena);
        const struct json *message = parse(arena, text);
        int64_t number = 0;

        job_id_text(99, id);
        assert_true(json_str_is(json_get(message, "job_id"), id));
        assert_true(json_int(json_get(message, "attempt_id"), &number) && number == 3);
        assert_true(json_int(json_get(message, "send_id"), &number) && number == RIG_START_MS - 1);
        assert_true(json_int(json_get(message, "deadline_ms"), &number) && number == RIG_START_MS);
        assert_true(json_is_null(json_get(message, "callback_url")));
        assert_true(json_str_is(json_get(message, "type"), i ? "f2f" : "dev"));
    }
    const struct json *message = parse(arena, spec_message(&specs[0], &head, arena));
    assert_str(json_raw(json_get(message, "payload")), "{\"k\":[1,2]}");
    assert_str(json_raw(json_get(message, "command")), "[\"sh\",\"-c\",\"true\"]");
    assert_str(json_str(json_get(message, "title"), arena), "a \"b\"");
    assert_non_null(strstr(specs[0].json.at, "callback_url")); /* but the spec keeps it */
}

/* The same type in two namespaces is two types, which nodes know by one name. */
static void a_namespace_is_part_of_the_type(void **state)
{
    static const struct spec_author author = {.view = {.namespace = {"maps", 4}}};
    const struct store_head head = {.id = 99, .attempt = 1};
    struct arena *arena = *state;
    struct spec specs[2], stored;
    struct problem why = {0};

    assert_int_equal(
        spec_read(false, parse(arena, STR("{\"type\":\"dev\"}")), &author, arena, &specs[0], &why),
        ERR_OK);
    assert_int_equal(
        spec_read(
            true,
            parse(arena, STR("{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"session_id\":\"s\"}")),
            &author, arena, &specs[1], &why),
        ERR_OK);
    for (size_t i = 0; i < COUNT_OF(specs); i++) {
        const char *name = i ? "f2f" : "dev";
        struct spec other = must_read(
            arena, i, i ? "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\"}" : "{\"type\":\"dev\"}");

        assert_str(specs[i].type, i ? "maps/f2f" : "maps/dev");
        assert_str(spec_node_type(&specs[i]), name);
        assert_int_equal(spec_stored(specs[i].json, arena, &stored, &why), ERR_OK);
        assert_str(stored.type, i ? "maps/f2f" : "maps/dev");
        assert_int_equal(stored.f2f, i);
        assert_true(spec_lane(&stored) == spec_lane(&specs[i]));
        assert_true(spec_lane(&other) != spec_lane(&specs[i]));
        const struct json *message = parse(arena, spec_message(&stored, &head, arena));
        assert_true(json_str_is(json_get(message, "type"), name));
        assert_true(json_str_is(json_get(message, "namespace"), "maps"));
        message = parse(arena, spec_message(&other, &head, arena));
        assert_true(json_is_null(json_get(message, "namespace")));
    }
    assert_null(spec_session(&specs[0], arena).at);
    assert_str(spec_session(&specs[1], arena), "maps/s");
    assert_str(specs[1].session_id, "s");
    static const char *const bad[] = {"{\"type\":\"maps/dev\"}", "{\"type\":\"other/dev\"}",
                                      "{\"type\":\"f2f\"}",
                                      "{\"type\":\"0123456789012345678901234567\"}"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_int_equal(
            spec_read(false, parse(arena, str_of(bad[i])), &author, arena, &stored, &why),
            ERR_BAD_FIELD);
        assert_string_equal(why.field, "type");
    }
}

/* A lane depends on what decides which nodes may take the job, and on nothing else. */
static void a_lane_is_of_those_who_wait_for_the_same(void **state)
{
    static const struct {
        const char *json;
        bool f2f;
        int like; /* the row with the same lane; -1: a lane of its own */
    } rows[] = {
        {"{\"type\":\"a\"}", false, -1},
        {"{\"type\":\"a\",\"priority\":9,\"title\":\"x\",\"payload\":1,\"queue_ms\":5}", false, 0},
        {"{\"type\":\"a\",\"options\":{\"preferred_node_id\":\"n\"}}", false, 0},
        {"{\"type\":\"b\"}", false, -1},
        {"{\"type\":\"a\",\"interactive\":true}", false, -1},
        {"{\"type\":\"a\",\"requires\":\"k=1\"}", false, -1},
        {"{\"type\":\"a\",\"requires\":\"k=2\"}", false, -1},
        {"{\"type\":\"a\",\"requires\":\"k=1\",\"interactive\":true}", false, -1},
        {"{\"type\":\"a\",\"requires\":\"\"}", false, 0},
        {"{\"type\":\"a\",\"requires\":\"a=b,c=d,ca=a,c-=x\"}", false, -1},
        {"{\"type\":\"a\",\"requires\":\"ca=a,c-=x,c=d,a=b\"}", false, 9},
        {"{\"type\":\"a\",\"requires\":\"a=d,c=b,ca=a,c-=x\"}", false, -1},
        {"{\"src_lang\":\"en\",\"tgt_lang\":\"zh\"}", true, -1},
        {"{\"src_lang\":\"zh\",\"tgt_lang\":\"en\"}", true, -1},
        {"{\"src_lang\":\"EN\",\"tgt_lang\":\"zh\",\"session_id\":\"s\"}", true, 12},
        {"{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"options\":{\"require_tts\":true}}", true, -1},
        {"{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"options\":{\"require_asr\":true}}", true, -1},
        {"{\"type\":\"a\",\"requires\":\" c == d, ca in (a),c-=x ,a=b\"}", false, 9},
        {"{\"type\":\"a\",\"requires\":\"z in (eu,us),!spot,c>=4\"}", false, -1},
        {"{\"type\":\"a\",\"requires\":\"c >= 04.0, !spot, z in (us, eu)\"}", false, 18},
        {"{\"type\":\"a\",\"requires\":\"z notin (eu,us),!spot,c>=4\"}", false, -1},
    };
    struct arena *arena = *state;
    uint64_t lanes[COUNT_OF(rows)];

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct spec spec = must_read(arena, rows[i].f2f, rows[i].json), stored;

        lanes[i] = spec_lane(&spec);
        assert_true(lanes[i] != 0);
        assert_int_equal(spec_stored(spec.json, arena, &stored, NULL), ERR_OK);
        assert_true(spec_lane(&stored) == lanes[i]);
        for (size_t j = 0; j < i; j++)
            if ((lanes[i] == lanes[j]) !=
                (rows[i].like == (int)j || (rows[i].like >= 0 && rows[i].like == rows[j].like)))
                fail_msg("%s and %s", rows[i].json, rows[j].json);
    }
    /* Instances of two releases must agree on the lane: this is sha256("task a 0 "). */
    assert_true(lanes[0] == UINT64_C(0x7856b1696a89334f));
    /* sha256("task a 0 a=b,c-=x,c=d,ca=a"): selectors with only equality keep the lane they always
     * had. */
    assert_true(lanes[9] == UINT64_C(0x2ac3d64677040d56));
}

/* --- needs and keys --- */

static void needs_come_from_the_type_and_stay(void **state)
{
    static const struct {
        const char *json;
        const char *demand;
        const char *needs; /* as the spec keeps them; NULL: not at all */
    } rows[] = {
        {"{\"type\":\"other\"}", "", NULL},
        {"{\"type\":\"other\",\"needs\":{\"cpu\":2}}", "1 0 0 cpu=2000 ", "{\"cpu\":2}"},
        {"{\"type\":\"dev\"}", "1 0 0 cpu=1200,mem_mb=1536 t:dev", "{\"cpu\":1.2,\"mem_mb\":1536}"},
        {"{\"type\":\"dev\",\"needs\":{\"mem_mb\":10,\"gpus\":1},\"keys\":[\"b\",\"a\"]}",
         "1 1 0 cpu=1200,mem_mb=10 b,a", "{\"gpus\":1,\"cpu\":1.2,\"mem_mb\":10}"},
        {"{\"type\":\"dev\",\"needs\":{\"mem_mb\":0,\"cpu\":0},\"keys\":[]}", "", NULL},
    };
    struct arena *arena = *state;
    struct spec_type row = {
        .type = STR("dev"),
        .needs = parse(arena, STR("{\"cpu\":1.2,\"mem_mb\":1536}")),
        .keys = parse(arena, STR("[\"t:dev\"]")),
    };
    struct spec_types types = {.rows = &row, .count = 1};
    struct spec_author author = nobody;

    author.types = &types;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct spec spec, stored, again;
        struct problem why = {0};

        assert_int_equal(
            spec_read(false, parse(arena, str_of(rows[i].json)), &author, arena, &spec, &why),
            ERR_OK);
        if (!str_eq(spec.demand_text.at ? spec.demand_text : STR(""), str_of(rows[i].demand)))
            fail_msg("%s: " STR_FMT, rows[i].json, STR_ARG(spec.demand_text));
        assert_int_equal(spec.demand != NULL, rows[i].demand[0] != 0);
        assert_int_equal(json_is_null(spec.needs), rows[i].needs == NULL);
        if (rows[i].needs)
            assert_true(str_is(json_raw(spec.needs), rows[i].needs));
        /* Read from the store under another configuration, as after a restart or by a retry:
         * unchanged. */
        assert_int_equal(spec_stored(spec.json, arena, &stored, &why), ERR_OK);
        assert_true(str_eq(stored.demand_text, spec.demand_text));
        assert_int_equal(spec_lane(&stored), spec_lane(&spec));
        assert_int_equal(spec_again(spec.json, 7, STR_NONE, arena, &again, &why), ERR_OK);
        assert_true(str_eq(again.demand_text, spec.demand_text));
    }
}

static void two_demands_share_no_lane(void **state)
{
    static const char *const jobs[] = {
        "{\"type\":\"dev\"}",
        "{\"type\":\"dev\",\"needs\":{\"slots\":2}}",
        "{\"type\":\"dev\",\"needs\":{\"cpu\":2}}",
        "{\"type\":\"dev\",\"needs\":{\"mem_mb\":2000}}",
        "{\"type\":\"dev\",\"keys\":[\"a\",\"b\"]}",
        "{\"type\":\"dev\",\"keys\":[\"b\",\"a\"]}",
        "{\"type\":\"dev\",\"needs\":{\"cpu\":2},\"keys\":[\"a\"]}",
    };
    struct arena *arena = *state;

    for (size_t i = 0; i < COUNT_OF(jobs); i++)
        for (size_t j = 0; j < COUNT_OF(jobs); j++) {
            struct spec a = must_read(arena, false, jobs[i]), b = must_read(arena, false, jobs[j]);

            if ((spec_lane(&a) == spec_lane(&b)) != (i == j))
                fail_msg("%s and %s", jobs[i], jobs[j]);
        }
    struct spec plain = must_read(arena, false, jobs[0]), keyed = must_read(arena, false, jobs[4]);
    assert_int_equal(spec_fit(&plain), spec_fit(&keyed)); /* the same nodes may take both */
    struct spec large = must_read(arena, false, jobs[2]), both = must_read(arena, false, jobs[6]);
    assert_int_equal(spec_fit(&large), spec_fit(&both));
    assert_int_not_equal(spec_fit(&large), spec_fit(&plain));
}

static void the_node_hears_which_gpus_it_got(void **state)
{
    struct arena *arena = *state;
    struct spec spec = must_read(arena, false, "{\"type\":\"dev\",\"needs\":{\"gpus\":2}}");
    struct store_head head = {.id = 7, .attempt = 1, .gpus = UINT64_C(1) << 63 | 2};
    const struct json *message = parse(arena, spec_message(&spec, &head, arena));

    assert_true(str_is(json_raw(json_get(message, "gpus")), "[1,63]"));
    assert_true(str_is(json_raw(json_get(message, "needs")), "{\"gpus\":2}"));
    head.gpus = UINT64_MAX >> 48; /* as many as a node may have */
    parse(arena, spec_message(&spec, &head, arena));
    head.gpus = 0;
    message = parse(arena, spec_message(&spec, &head, arena));
    assert_true(json_is_null(json_get(message, "gpus")));
}

static void keys_are_of_a_namespace(void **state)
{
    static const struct spec_author author = {.view = {.namespace = {"maps", 4}}};
    struct arena *arena = *state;
    struct spec spec, stored;
    struct problem why;

    assert_int_equal(
        spec_read(false, parse(arena, STR("{\"type\":\"dev\",\"keys\":[\"tenant:a\",\"x\"]}")),
                  &author, arena, &spec, &why),
        ERR_OK);
    assert_str(spec.demand_text, "1 0 0  maps/tenant:a,maps/x");
    assert_int_equal(spec_stored(spec.json, arena, &stored, &why), ERR_OK);
    assert_str(stored.demand_text, "1 0 0  maps/tenant:a,maps/x");
    assert_str(json_raw(stored.keys), "[\"tenant:a\",\"x\"]"); /* as the client wrote them */
    assert_int_equal(spec_read(false, parse(arena, STR("{\"type\":\"dev\",\"keys\":[\"ml/a\"]}")),
                               &author, arena, &spec, &why),
                     ERR_BAD_FIELD);
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, arena_setup, arena_teardown)
    const struct CMUnitTest tests[] = {
        ROW(bad_input_names_its_field),
        ROW(a_namespace_is_part_of_the_type),
        ROW(face_to_face_has_its_own_defaults),
        ROW(specs_survive_the_store),
        ROW(every_row_is_kept_read_back_and_sent),
        ROW(what_we_did_not_write_is_refused),
        ROW(only_a_retry_says_where_it_came_from),
        ROW(nobody_says_themselves_who_submits),
        ROW(a_lane_is_of_those_who_wait_for_the_same),
        ROW(the_message_is_whole_and_tells_no_callback),
        ROW(needs_come_from_the_type_and_stay),
        ROW(two_demands_share_no_lane),
        ROW(the_node_hears_which_gpus_it_got),
        ROW(keys_are_of_a_namespace),
    };

    return cmocka_run_group_tests_name("sched/spec", tests, NULL, NULL);
}
