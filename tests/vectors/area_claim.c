/* Claiming: active_nodes, lost_addresses, deployment_counts, eligibility, resource_eligibility,
 * candidate_order, claim_cas, claim_cycle, claim_config, lost_grace. */
#include "vec.h"

#include <assert.h>

#include "model/claim.h"
#include "model/member.h"

struct rows {
    struct deploy_row *at;
    size_t count;
};

static struct deploy_row read_row(struct vec *vec, const struct json *value)
{
    struct str type = vec_str(vec, value, "type");

    return (struct deploy_row){
        .id = vec_str(vec, value, "id"),
        .address = vec_str(vec, value, "address"),
        .type = type.at ? deploy_type_by_name(type) : DEPLOY_DEPLOYMENT,
        .enabled = vec_bool(value, "enabled", true),
        .generation = vec_int(value, "generation", 0),
        .selector = vec_str(vec, value, "selector"),
        .updated_at = vec_str(vec, value, "updated_at"),
        .created_at = vec_str(vec, value, "created_at"),
        .demand = json_is_null(json_get(value, "needs"))
                      ? NULL
                      : deploy_demand(json_raw(json_get(value, "needs")), vec->arena),
    };
}

static struct rows read_rows(struct vec *vec, const struct json *list)
{
    struct vec_at at = {0};
    struct rows rows = {.at = arena_array(vec->arena, struct deploy_row,
                                          json_type(list) == JSON_ARR ? list->count + 1 : 1)};

    for (const struct json *value; (value = vec_each(list, &at));)
        rows.at[rows.count++] = read_row(vec, value);
    return rows;
}

static struct names read_names(struct vec *vec, const struct json *list)
{
    struct vec_at at = {0};
    struct names names;

    names_init(&names, json_type(list) == JSON_ARR ? list->count : 0, vec->arena);
    for (const struct json *value; (value = vec_each(list, &at));)
        names_add(&names, json_str(value, vec->arena));
    return names;
}

static void write_names(struct vec *vec, const char *key, const struct str *names, size_t count)
{
    jsonw_key(vec->w, key);
    jsonw_arr(vec->w);
    for (size_t i = 0; i < count; i++)
        jsonw_str(vec->w, names[i]);
    jsonw_end_arr(vec->w);
}

bool area_active_nodes(struct vec *vec)
{
    const struct json *list = json_get(vec->in, "members");
    int64_t ttl_s = vec_int(vec->in, "ttl_s", -1);
    struct member_units units;
    struct member *members;
    struct vec_at at = {0};
    size_t count = 0;

    if (json_type(list) != JSON_ARR)
        return false;
    members = arena_array(vec->arena, struct member, list->count + 1);
    for (const struct json *value; (value = vec_each(list, &at));) {
        const struct json *tags = json_get(value, "tags");

        members[count++] = (struct member){.terminal_id = vec_str(vec, value, "terminal_id"),
                                           .node_unit = vec_str(vec, tags, "node_unit"),
                                           .address = vec_str(vec, tags, "node_unit_address"),
                                           .last_seen_ms = vec_int(value, "last_seen_ms", 0)};
    }
    member_units(members, count, vec_int(vec->in, "now_ms", 0),
                 ttl_s < 0 ? MEMBER_TTL_OFF : ttl_s * 1000, vec->arena, &units);
    jsonw_obj(vec->w);
    write_names(vec, "active", units.addresses.at, units.addresses.count);
    jsonw_key(vec->w, "terminals");
    jsonw_obj(vec->w);
    for (size_t i = 0; i < units.addresses.count; i++) {
        jsonw_key_str(vec->w, units.addresses.at[i]);
        jsonw_str(vec->w, units.terminals[i]);
    }
    jsonw_end_obj(vec->w);
    jsonw_end_obj(vec->w);
    return true;
}

bool area_lost_addresses(struct vec *vec)
{
    struct rows rows = read_rows(vec, json_get(vec->in, "deployments"));
    struct names online = read_names(vec, json_get(vec->in, "active"));
    struct names lost;

    deploy_absent_owners(rows.at, rows.count, &online, vec->arena, &lost);
    jsonw_obj(vec->w);
    write_names(vec, "lost", lost.at, lost.count);
    jsonw_end_obj(vec->w);
    return true;
}

static void write_counts(struct vec *vec, const struct names *names, const int64_t *counts)
{
    jsonw_key(vec->w, "counts");
    jsonw_obj(vec->w);
    for (size_t i = 0; i < names->count; i++) {
        jsonw_key_str(vec->w, names->at[i]);
        jsonw_int(vec->w, counts[i]);
    }
    jsonw_end_obj(vec->w);
}

bool area_deployment_counts(struct vec *vec)
{
    struct rows rows = read_rows(vec, json_get(vec->in, "deployments"));
    struct names online = read_names(vec, json_get(vec->in, "active"));
    int64_t *counts = arena_array(vec->arena, int64_t, online.count + 1);

    deploy_counts(rows.at, rows.count, &online, counts);
    jsonw_obj(vec->w);
    write_counts(vec, &online, counts);
    jsonw_end_obj(vec->w);
    return true;
}

static void write_eligible(struct vec *vec, const struct names *nodes,
                           const struct claim_snapshot *snapshots)
{
    bool *eligible = arena_array(vec->arena, bool, nodes->count + 1);

    claim_eligible(snapshots, nodes->count, vec->seed, eligible);
    jsonw_obj(vec->w);
    jsonw_key(vec->w, "eligible");
    jsonw_arr(vec->w);
    for (size_t i = 0; i < nodes->count; i++)
        if (eligible[i])
            jsonw_str(vec->w, nodes->at[i]);
    jsonw_end_arr(vec->w);
    jsonw_end_obj(vec->w);
}

bool area_eligibility(struct vec *vec)
{
    struct names nodes = read_names(vec, json_get(vec->in, "nodes"));
    const struct json *values = json_get(vec->in, "values");
    struct claim_snapshot *snapshots =
        arena_array(vec->arena, struct claim_snapshot, nodes.count + 1);

    for (size_t i = 0; i < nodes.count; i++)
        snapshots[i].known =
            json_double(json_get(values, arena_cstr(vec->arena, nodes.at[i])), &snapshots[i].value);
    write_eligible(vec, &nodes, snapshots);
    return true;
}

static void read_usage(struct vec *vec, struct claim_node *node)
{
    const struct json *usage =
        json_get(json_get(vec->in, "usage"), arena_cstr(vec->arena, node->id));

    node->usage_known = json_double(json_get(usage, "cpu_percent"), &node->usage.cpu_percent) &&
                        json_double(json_get(usage, "memory_mb"), &node->usage.memory_mb);
}

bool area_resource_eligibility(struct vec *vec)
{
    struct names names = read_names(vec, json_get(vec->in, "nodes"));
    struct claim_context context = {.weights = score_defaults, .unknown_zero = vec->seed};
    struct claim_node *nodes = arena_array(vec->arena, struct claim_node, names.count + 1);
    struct claim_snapshot *snapshots =
        arena_array(vec->arena, struct claim_snapshot, names.count + 1);

    for (size_t i = 0; i < names.count; i++) {
        nodes[i].id = names.at[i];
        read_usage(vec, &nodes[i]);
    }
    claim_snapshots(claim_policy_by_name(STR("resource_usage")), nodes, names.count, &context,
                    snapshots);
    write_eligible(vec, &names, snapshots);
    return true;
}

static enum deploy_mode mode_of(const struct vec *vec)
{
    return vec->seed ? DEPLOY_SEED : DEPLOY_HARDENED;
}

bool area_candidate_order(struct vec *vec)
{
    struct rows rows = read_rows(vec, json_get(vec->in, "deployments"));
    struct names lost = read_names(vec, json_get(vec->in, "lost"));
    const struct deploy_row **order =
        arena_array(vec->arena, const struct deploy_row *, rows.count + 1);
    size_t count = deploy_candidates(rows.at, rows.count, &lost, mode_of(vec), order);

    jsonw_obj(vec->w);
    jsonw_key(vec->w, "order");
    jsonw_arr(vec->w);
    for (size_t i = 0; i < count; i++)
        jsonw_str(vec->w, order[i]->id);
    jsonw_end_arr(vec->w);
    jsonw_kstr(vec->w, "pick", count > 0 ? order[0]->id : STR_NONE);
    jsonw_end_obj(vec->w);
    return true;
}

/* A step without a generation claims with the current one. */
static bool cas_step(struct vec *vec, const struct json *step, struct deploy_row *row,
                     const struct names *lost, bool *ret_changed)
{
    const struct json *op = json_get(step, "op");
    struct deploy_claim claim = {.by = vec_str(vec, step, "by"),
                                 .observed = vec_str(vec, step, "observed"),
                                 .generation = vec_int(step, "generation", row->generation)};

    if (json_str_is(op, "release_lost")) {
        *ret_changed = deploy_release(row, lost);
        return true;
    }
    claim.owner_lost = names_find(lost, claim.observed) != NAMES_NONE;
    if (!json_str_is(op, "claim") || !claim.by.len)
        return false;
    *ret_changed = deploy_claim(row, &claim);
    return true;
}

bool area_claim_cas(struct vec *vec)
{
    struct deploy_row row = read_row(vec, json_get(vec->in, "row"));
    struct names lost = read_names(vec, json_get(vec->in, "lost"));
    struct vec_at at = {0};

    jsonw_obj(vec->w);
    jsonw_key(vec->w, "results");
    jsonw_arr(vec->w);
    for (const struct json *step; (step = vec_each(json_get(vec->in, "steps"), &at));) {
        bool changed;

        if (!cas_step(vec, step, &row, &lost, &changed))
            return false;
        jsonw_bool(vec->w, changed);
    }
    jsonw_end_arr(vec->w);
    jsonw_kstr(vec->w, "address", row.address);
    jsonw_end_obj(vec->w);
    return true;
}

/* A node's declared resources, less what the rows it owns need. */
static void read_room(struct vec *vec, const struct rows *rows, struct claim_node *node)
{
    const struct json *declared =
        json_get(json_get(vec->in, "resources"), arena_cstr(vec->arena, node->id));
    struct resources *room = arena_new(vec->arena, struct resources);
    struct resources_short lack;
    struct problem why;
    uint64_t gpus;

    if (json_is_null(declared) || resources_read(declared, vec->arena, room, &why))
        return;
    for (size_t i = 0; i < rows->count; i++)
        if (rows->at[i].demand && str_eq(rows->at[i].address, node->id) &&
            resources_fit(room, rows->at[i].demand, &gpus, &lack))
            resources_take(room, rows->at[i].demand, gpus);
    node->room = room;
}

/* One cycle with fresh state, in which all nodes take rows and all leases have run out. */
static void run_cycle(struct vec *vec, struct str me, const struct claim_policy *policy,
                      const struct names *online, struct rows *rows)
{
    struct claim_node *nodes = arena_array(vec->arena, struct claim_node, online->count + 1);
    int64_t *counts = arena_array(vec->arena, int64_t, online->count + 1);
    struct claim_plan plan;
    struct names lost;

    deploy_absent_owners(rows->at, rows->count, online, vec->arena, &lost);
    deploy_counts(rows->at, rows->count, online, counts);
    for (size_t i = 0; i < rows->count; i++)
        rows->at[i].user = &rows->at[i];
    for (size_t i = 0; i < online->count; i++) {
        nodes[i] =
            (struct claim_node){.id = online->at[i], .takes = true, .deployments = counts[i]};
        read_usage(vec, &nodes[i]);
        read_room(vec, rows, &nodes[i]);
    }
    struct claim_view view = {
        .me = me,
        .policy = policy,
        .context = {.weights = score_defaults, .unknown_zero = vec->seed},
        .mode = mode_of(vec),
        .nodes = nodes,
        .node_count = online->count,
        .rows = rows->at,
        .row_count = rows->count,
        .lost = &lost,
    };
    claim_plan(&view, vec->arena, &plan);
    if (plan.skip) {
        jsonw_str(vec->w, arena_fmt(vec->arena, "skip:%s", claim_skip_name(plan.skip)));
        return;
    }
    struct deploy_row *row = plan.order[0]->user;
    struct deploy_claim claim = {.by = me,
                                 .observed = row->address,
                                 .generation = row->generation,
                                 .owner_lost = names_find(&lost, row->address) != NAMES_NONE};
    bool claimed = deploy_claim(row, &claim);
    jsonw_str(vec->w, arena_fmt(vec->arena, "%s" STR_FMT,
                                claimed ? "claim:" : "conflict:", STR_ARG(row->id)));
}

static void write_owners(struct vec *vec, const struct rows *rows)
{
    int64_t *counts = arena_array(vec->arena, int64_t, rows->count + 1);
    struct names owners;

    names_init(&owners, rows->count, vec->arena);
    for (size_t i = 0; i < rows->count; i++)
        counts[names_add(&owners, rows->at[i].address)]++;
    write_counts(vec, &owners, counts);
}

bool area_claim_cycle(struct vec *vec)
{
    struct rows rows = read_rows(vec, json_get(vec->in, "deployments"));
    struct names online = read_names(vec, json_get(vec->in, "active"));
    const struct claim_policy *policy = claim_policy_by_name(vec_str(vec, vec->in, "policy"));
    struct vec_at at = {0};

    if (!policy)
        return false;
    jsonw_obj(vec->w);
    jsonw_key(vec->w, "actions");
    jsonw_arr(vec->w);
    for (const struct json *step; (step = vec_each(json_get(vec->in, "steps"), &at));)
        run_cycle(vec, vec_str(vec, step, "me"), policy, &online, &rows);
    jsonw_end_arr(vec->w);
    write_owners(vec, &rows);
    jsonw_end_obj(vec->w);
    return true;
}

bool area_claim_config(struct vec *vec)
{
    const struct json *env = json_get(vec->in, "env");
    struct claim_env read = {
        .policy = vec_str(vec, env, "NODE_UNIT_CLAIM_POLICY"),
        .interval_ms = vec_str(vec, env, "NODE_UNIT_SCHEDULER_INTERVAL_MS"),
        .cpu_weight = vec_str(vec, env, "NODE_UNIT_CPU_WEIGHT"),
        .memory_weight = vec_str(vec, env, "NODE_UNIT_MEMORY_WEIGHT"),
    };
    struct claim_config config;

    claim_config_read(&read, &config);
    jsonw_obj(vec->w);
    jsonw_kstr(vec->w, "policy", str_of(config.policy->name));
    jsonw_kdouble(vec->w, "interval_ms", config.interval_ms);
    jsonw_kdouble(vec->w, "cpu_weight", config.weights.cpu);
    jsonw_kdouble(vec->w, "memory_weight", config.weights.memory);
    jsonw_end_obj(vec->w);
    return true;
}

/* Notes for the address every view up to this time. */
static bool watch_address(struct vec *vec, struct str address, int64_t at_ms,
                          struct member_watch *watch)
{
    struct vec_at at = {0};

    member_watch_init(watch);
    for (const struct json *view; (view = vec_each(json_get(vec->in, "views"), &at));) {
        const struct json *time = json_type(view) == JSON_ARR ? json_first(view) : NULL;
        struct names members;
        int64_t view_ms;

        if (!time || view->count < 2 || !json_int(time, &view_ms))
            return false;
        if (view_ms > at_ms)
            break;
        members = read_names(vec, json_next(time));
        member_watch_note(watch, names_find(&members, address) != NAMES_NONE, view_ms);
    }
    return true;
}

bool area_lost_grace(struct vec *vec)
{
    struct names owned = read_names(vec, json_get(vec->in, "owned"));
    struct member_rules rules = vec->seed ? member_seed : member_defaults;
    int64_t synced_ms = vec_int(vec->in, "synced_at_ms", MEMBER_NEVER);
    int64_t at_ms = vec_int(vec->in, "at_ms", 0);

    rules.grace_ms = vec_int(vec->in, "grace_ms", rules.grace_ms);
    rules.warmup_ms = vec_int(vec->in, "warmup_ms", rules.warmup_ms);
    jsonw_obj(vec->w);
    jsonw_key(vec->w, "lost");
    jsonw_arr(vec->w);
    for (size_t i = 0; i < owned.count; i++) {
        struct member_watch watch;
        int64_t lost_at_ms;

        if (!watch_address(vec, owned.at[i], at_ms, &watch))
            return false;
        lost_at_ms = member_lost_at_ms(&watch, &rules, synced_ms);
        if (lost_at_ms != MEMBER_NEVER && at_ms >= lost_at_ms)
            jsonw_str(vec->w, owned.at[i]);
    }
    jsonw_end_arr(vec->w);
    jsonw_end_obj(vec->w);
    return true;
}
