/* The setting `nodes`: what is true of a node whatever it says of itself. */
#include <stdio.h>
#include <string.h>

#include "sched/node_report.h"
#include "server/settings.h"

/* What decides whose work a node takes, and members of a registration that decide what work a node
 * gets, and what others read in its name. What says how it is right now is its own to say. */
static const struct {
    const char *name;
    const char *unless_named; /* what it is when one of those is named; NULL: the node's own word */
} members[] = {
    {"namespaces", NULL}, /* no member of one: whose work it takes */
    {"labels", NULL},
    {"allowed_types", NULL},
    /* Which pools it is in is decided by all four together. */
    {"semantic_langs", "[]"},
    {"nmt_pairs", "[]"},
    {"tts_langs", "[]"},
    {"capability_by_type", "{}"},
    {"max_concurrent_jobs", NULL},
    {"reserved_slots", NULL},
    {"priority", NULL},
    {"name", NULL},
    {"role", NULL},
};

static bool is_member(struct str name)
{
    for (size_t i = 0; i < COUNT_OF(members); i++)
        if (str_is(name, members[i].name))
            return true;
    return false;
}

static enum err bad_row(struct str pattern, const char *detail, struct problem *why)
{
    return problem_set(why, ERR_BAD_CONFIG, "nodes", "nodes: the row \"" STR_FMT "\": %.300s",
                       STR_ARG(pattern), detail);
}

static enum err check_names(struct str pattern, const struct json *row, struct arena *arena,
                            struct problem *why)
{
    const struct json *key = json_first(row);
    char text[400];

    for (uint32_t i = 0; i < row->count; i++, key = json_next(key + 1)) {
        struct str name = json_str(key, arena);
        int len;

        if (is_member(name))
            continue;
        len = snprintf(text, sizeof text, "There is no \"%.64s\"; it may have",
                       arena_cstr(arena, name));
        for (size_t m = 0; m < COUNT_OF(members); m++)
            len += snprintf(text + len, sizeof text - (size_t)len, "%s %s", m ? "," : "",
                            members[m].name);
        return bad_row(pattern, text, why);
    }
    return ERR_OK;
}

/* All that the row fixes, also what it leaves out. */
static struct str whole_row(const struct json *row, struct arena *arena)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    bool pools = false;

    for (size_t i = 0; i < COUNT_OF(members); i++)
        pools |= members[i].unless_named && !json_is_null(json_get(row, members[i].name));
    jsonw_obj(&w);
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        const struct json *value = json_get(row, members[i].name);

        if (!json_is_null(value))
            jsonw_kraw(&w, members[i].name, json_raw(value));
        else if (pools && members[i].unless_named)
            jsonw_kraw(&w, members[i].name, str_of(members[i].unless_named));
    }
    jsonw_end_obj(&w);
    struct str text = arena_str(arena, buf_view(&buf));
    buf_free(&buf);
    return text;
}

/* A node that said just that would be let in. */
static enum err check_values(const struct json *facts, struct arena *arena, struct problem *why)
{
    struct node_report report;
    struct facts *made;
    enum err err = node_report_read(facts, STR("any"), NULL, arena, &report, why);

    if (!err)
        err = node_report_facts(&report, NULL, &made, why);
    if (!err)
        facts_unref(made);
    return err;
}

/* Namespaces, one at least. */
static bool check_namespaces(const struct json *list, struct arena *arena)
{
    const struct json *item = json_first(list);

    if (json_is_null(list))
        return true;
    if (json_type(list) != JSON_ARR || list->count == 0)
        return false;
    for (uint32_t i = 0; i < list->count; i++, item = json_next(item))
        if (json_type(item) != JSON_STR || !namespace_valid(json_str(item, arena)))
            return false;
    return true;
}

static enum err read_row(const struct json *key, struct arena *arena, struct node_rule *ret_rule,
                         struct problem *why)
{
    struct str pattern = json_str(key, arena);
    const struct json *facts;
    struct problem what;
    enum err err;

    if (json_type(key + 1) != JSON_OBJ)
        return bad_row(pattern, "It must be an object, like {labels: {zone: eu}}.", why);
    err = check_names(pattern, key + 1, arena, why);
    if (err)
        return err;
    if (!check_namespaces(json_get(key + 1, "namespaces"), arena))
        return bad_row(pattern, "namespaces must be a list of namespaces, like [maps].", why);
    if (json_parse(whole_row(key + 1, arena), arena, &facts, &what) ||
        check_values(facts, arena, &what))
        return bad_row(pattern, what.detail, why);
    *ret_rule = (struct node_rule){.pattern = pattern, .facts = facts};
    return ERR_OK;
}

enum err settings_read_nodes(struct settings *settings, struct arena *arena, struct problem *why)
{
    const struct json *map = settings->nodes, *key = json_first(map);
    struct node_rule *rows;
    enum err err = ERR_OK;

    if (json_is_null(map))
        return ERR_OK;
    if (json_type(map) != JSON_OBJ || map->count > NODE_RULES_MAX)
        return problem_set(why, ERR_BAD_CONFIG, "nodes",
                           "nodes must map at most %d patterns of node ids to what is fixed of "
                           "them, like \"gpu-*\": {labels: {zone: eu}}.",
                           NODE_RULES_MAX);
    rows = arena_array(arena, struct node_rule, map->count + 1);
    bool namespaces = false;
    for (uint32_t i = 0; !err && i < map->count; i++, key = json_next(key + 1)) {
        err = read_row(key, arena, &rows[i], why);
        namespaces |= !json_is_null(json_get(key + 1, "namespaces"));
    }
    settings->sched.node_rules =
        (struct node_rules){.rows = rows, .count = map->count, .namespaces = namespaces};
    return err;
}
