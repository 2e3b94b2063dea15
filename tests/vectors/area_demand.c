/* demand, turns. */
#include "vec.h"

#include "model/demand.h"
#include "sched/shares.h"

/* Needs and keys of a request, over the defaults of its type. */
bool area_demand(struct vec *vec)
{
    struct demand demand = demand_plain, again;
    struct problem why = {0};
    struct buf text = {0};
    enum err err = demand_read_needs(json_get(vec->in, "type_needs"), vec->arena, &demand, &why);

    if (!err)
        err = demand_read_needs(json_get(vec->in, "needs"), vec->arena, &demand, &why);
    if (!err)
        err = demand_read_keys(json_get(vec->in, "keys"), vec->arena, &demand, &why);
    jsonw_obj(vec->w);
    if (err) {
        jsonw_kstr(vec->w, "refused", str_of(why.field));
        jsonw_end_obj(vec->w);
        return true;
    }
    demand_write(&demand, &text);
    bool comes_back = demand_parse(buf_view(&text), &again);
    jsonw_kint(vec->w, "slots", again.slots);
    jsonw_kint(vec->w, "gpus", again.gpus);
    jsonw_kint(vec->w, "vram_mb", again.vram_mb);
    jsonw_key(vec->w, "amounts");
    jsonw_obj(vec->w);
    for (size_t i = 0; i < again.need_count; i++) {
        jsonw_key_str(vec->w, again.needs[i].name);
        jsonw_int(vec->w, again.needs[i].amount);
    }
    jsonw_end_obj(vec->w);
    jsonw_key(vec->w, "keys");
    jsonw_arr(vec->w);
    for (size_t i = 0; i < again.key_count; i++)
        jsonw_str(vec->w, again.keys[i]);
    jsonw_end_arr(vec->w);
    jsonw_kbool(vec->w, "plain", demand_is_plain(&again));
    jsonw_end_obj(vec->w);
    buf_free(&text);
    return comes_back;
}

/* --- turns --- */

enum { LANES_MAX = 64, RULES_MAX = 16 };

/* Waiting jobs of one lane with the same first key. */
struct waiting_lane {
    struct share_place place;
    struct share *share;
    struct str name;
    int64_t priority, jobs, after;
    uint64_t oldest; /* age of its first job: smaller is older */
};

struct turns {
    struct vec *vec;
    struct shares shares;
    struct share_order order;
    struct waiting_lane lanes[LANES_MAX];
    size_t lane_count;
};

static void stand(struct turns *turns, struct waiting_lane *lane)
{
    share_order_put(&turns->shares, &turns->order, &lane->place, lane->share, (int)lane->priority,
                    lane->oldest);
}

/* Adds the lanes that come after this many jobs were served. */
static void arrive(struct turns *turns, int64_t served)
{
    for (size_t i = 0; i < turns->lane_count; i++)
        if (turns->lanes[i].after == served && turns->lanes[i].jobs > 0)
            stand(turns, &turns->lanes[i]);
}

/* Places the best job. */
static bool serve(struct turns *turns)
{
    struct share_place *first = share_order_first(&turns->order);
    struct waiting_lane *lane = first ? container_of(first, struct waiting_lane, place) : NULL;

    if (!lane)
        return false;
    struct share_turn turn = shares_take_turn(&turns->shares, lane->share, (int)lane->priority);
    shares_use_turn(&turns->shares, (int)lane->priority, turn);
    jsonw_str(turns->vec->w, lane->name);
    share_order_del(&lane->place);
    if (--lane->jobs > 0)
        stand(turns, lane);
    return true;
}

static bool read_lanes(struct turns *turns)
{
    const struct json *queue = json_get(turns->vec->in, "queue");
    struct vec_at at = {0};

    for (const struct json *row; (row = vec_each(queue, &at));) {
        struct waiting_lane *lane = &turns->lanes[turns->lane_count];
        struct str key = vec_str(turns->vec, row, "key");

        if (turns->lane_count == LANES_MAX)
            return false;
        lane->name = vec_str(turns->vec, row, "lane");
        lane->name = lane->name.at ? lane->name : key.at ? key : STR("-");
        lane->priority = vec_int(row, "priority", 5);
        lane->jobs = vec_int(row, "jobs", 1);
        lane->after = vec_int(row, "after", 0);
        lane->oldest = ++turns->lane_count;
        lane->share = shares_enter(&turns->shares, key);
        if (lane->priority < 0 || lane->priority >= SHARES_PRIORITIES)
            return false;
    }
    return true;
}

static void read_weights(struct turns *turns)
{
    struct store_limit rules[RULES_MAX];
    struct vec_at at = {0};
    size_t count = 0;

    for (const struct json *key; (key = vec_each(json_get(turns->vec->in, "weights"), &at));) {
        int64_t weight = 1;

        if (count == RULES_MAX || !json_int(key + 1, &weight))
            break;
        rules[count] =
            (struct store_limit){.pattern = json_str(key, turns->vec->arena), .limit = limit_none};
        rules[count++].limit.weight = (int32_t)weight;
    }
    shares_set_rules(&turns->shares, rules, count);
}

bool area_turns(struct vec *vec)
{
    struct turns *turns = arena_new(vec->arena, struct turns);
    int64_t slots = vec_int(vec->in, "slots", 0);

    turns->vec = vec;
    shares_init(&turns->shares);
    read_weights(turns);
    bool makes_sense = read_lanes(turns);
    jsonw_obj(vec->w);
    jsonw_key(vec->w, "served");
    jsonw_arr(vec->w);
    for (int64_t served = 0; makes_sense && served < slots; served++) {
        arrive(turns, served);
        if (!serve(turns))
            break;
    }
    jsonw_end_arr(vec->w);
    jsonw_end_obj(vec->w);
    for (size_t i = 0; i < turns->lane_count; i++) {
        share_order_del(&turns->lanes[i].place);
        shares_leave(&turns->shares, turns->lanes[i].share);
    }
    share_order_done(&turns->order);
    shares_done(&turns->shares);
    return makes_sense;
}
