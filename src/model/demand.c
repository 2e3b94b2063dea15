/* Needs and keys: reading them, and their text form. */
#include "model/demand.h"

#include <assert.h>
#include <math.h>

const struct demand demand_plain = {.slots = 1};

bool demand_is_key(struct str key)
{
    return str_is_name(key, DEMAND_FULL_KEY_MAX);
}

/* A name is part of the text form, so it must contain no separator. Figures with their own member
 * (slots, gpus, vram_mb) are handled separately. */
static bool is_name(struct str name)
{
    return str_is_id(name, DEMAND_NAME_MAX) && !memchr(name.at, ':', name.len);
}

bool demand_amount(struct str name, const struct json *value, int32_t *ret_amount)
{
    double amount;

    if (json_type(value) != JSON_NUM || !json_double(value, &amount))
        return false;
    if (str_is(name, "cpu"))
        /* 0.0001 of a core still rounds up to some */
        amount = ceil(amount * DEMAND_CPU_MILLI - 1e-6);
    if (!(amount >= 0 && amount <= DEMAND_AMOUNT_MAX) || amount != floor(amount))
        return false;
    *ret_amount = (int32_t)amount;
    return true;
}

/* An amount of 0 removes the need, for instance a type's default. */
static bool set(struct demand *demand, struct str name, int32_t amount)
{
    struct demand_need *need = NULL;
    size_t at = 0;

    while (at < demand->need_count && str_cmp(demand->needs[at].name, name) < 0)
        at++;
    if (at < demand->need_count && str_eq(demand->needs[at].name, name))
        need = &demand->needs[at];
    if (!need && amount == 0)
        return true;
    if (need && amount == 0) {
        demand->need_count--;
        memmove(need, need + 1, (demand->need_count - at) * sizeof *need);
        return true;
    }
    if (!need && demand->need_count == DEMAND_NEEDS_MAX)
        return false;
    if (!need) {
        need = &demand->needs[at];
        memmove(need + 1, need, (demand->need_count - at) * sizeof *need);
        demand->need_count++;
    }
    *need = (struct demand_need){.name = name, .amount = amount};
    return true;
}

enum err demand_read_needs(const struct json *needs, struct arena *arena, struct demand *ret_demand,
                           struct problem *why)
{
    struct demand demand = *ret_demand;
    const struct {
        const char *name;
        int32_t *to;
        int32_t min, max;
    } own[] = {{"slots", &demand.slots, 1, DEMAND_SLOTS_MAX},
               {"gpus", &demand.gpus, 0, DEMAND_GPUS_MAX},
               {"vram_mb", &demand.vram_mb, 0, DEMAND_AMOUNT_MAX}};

    if (json_is_null(needs))
        return ERR_OK;
    if (json_type(needs) != JSON_OBJ)
        return problem_set(why, ERR_BAD_FIELD, "needs",
                           "needs must be an object like {\"cpu\": 1.5, \"mem_mb\": 6000}.");
    for (const struct json *key = json_keys(needs); key; key = json_after(needs, key)) {
        struct str name = json_str(key, arena);
        int32_t amount;
        size_t at = 0;

        if (!is_name(name))
            return problem_set(why, ERR_BAD_FIELD, "needs",
                               "A name in needs must be 1 to %d characters out of letters, digits "
                               "and . _ @ -, not \"" STR_FMT "\".",
                               DEMAND_NAME_MAX, STR_ARG(name));
        while (at < COUNT_OF(own) && !str_is(name, own[at].name))
            at++;
        if (!demand_amount(name, key + 1, &amount))
            return problem_set(
                why, ERR_BAD_FIELD, "needs", "needs." STR_FMT " must be a %snumber from 0 to %d.",
                STR_ARG(name), str_is(name, "cpu") ? "" : "whole ",
                str_is(name, "cpu") ? DEMAND_AMOUNT_MAX / DEMAND_CPU_MILLI : DEMAND_AMOUNT_MAX);
        if (at < COUNT_OF(own) && (amount < own[at].min || amount > own[at].max))
            return problem_set(why, ERR_BAD_FIELD, "needs", "needs.%s must be %d to %d, not %d.",
                               own[at].name, own[at].min, own[at].max, amount);
        if (at < COUNT_OF(own))
            *own[at].to = amount;
        else if (!set(&demand, name, amount))
            return problem_set(why, ERR_BAD_FIELD, "needs",
                               "needs names at most %d resources beside slots, gpus and vram_mb.",
                               DEMAND_NEEDS_MAX);
    }
    *ret_demand = demand;
    return ERR_OK;
}

enum err demand_read_keys(const struct json *keys, struct arena *arena, struct demand *ret_demand,
                          struct problem *why)
{
    ret_demand->key_count = 0;
    if (json_is_null(keys))
        return ERR_OK;
    if (json_type(keys) != JSON_ARR || keys->count > DEMAND_KEYS_MAX)
        return problem_set(why, ERR_BAD_FIELD, "keys",
                           "keys must be a list of at most %d texts like \"tenant:acme\".",
                           DEMAND_KEYS_MAX);
    for (const struct json *item = json_items(keys); item; item = json_after(keys, item)) {
        struct str key = json_type(item) == JSON_STR ? json_str(item, arena) : STR_NONE;

        if (!str_is_id(key, DEMAND_KEY_MAX))
            return problem_set(why, ERR_BAD_FIELD, "keys",
                               "A key must be 1 to %d characters out of letters, digits and "
                               ". _ : @ -, like \"tenant:acme\".",
                               DEMAND_KEY_MAX);
        if (str_in(key, ret_demand->keys, ret_demand->key_count))
            return problem_set(why, ERR_BAD_FIELD, "keys", "keys names \"" STR_FMT "\" twice.",
                               STR_ARG(key));
        ret_demand->keys[ret_demand->key_count++] = key;
    }
    return ERR_OK;
}

int32_t demand_need(const struct demand *demand, struct str name)
{
    for (size_t i = 0; i < demand->need_count; i++)
        if (str_eq(demand->needs[i].name, name))
            return demand->needs[i].amount;
    return 0;
}

bool demand_is_plain(const struct demand *demand)
{
    return demand->slots == 1 && !demand->gpus && !demand->vram_mb && !demand->need_count &&
           !demand->key_count;
}

void demand_write(const struct demand *demand, struct buf *to)
{
    assert(demand->slots >= 1 && demand->need_count <= DEMAND_NEEDS_MAX &&
           demand->key_count <= DEMAND_KEYS_MAX);
    if (demand_is_plain(demand))
        return;
    buf_int(to, demand->slots);
    buf_char(to, ' ');
    buf_int(to, demand->gpus);
    buf_char(to, ' ');
    buf_int(to, demand->vram_mb);
    buf_char(to, ' ');
    for (size_t i = 0; i < demand->need_count; i++) {
        if (i)
            buf_char(to, ',');
        buf_str(to, demand->needs[i].name);
        buf_char(to, '=');
        buf_int(to, demand->needs[i].amount);
    }
    buf_char(to, ' ');
    for (size_t i = 0; i < demand->key_count; i++) {
        if (i)
            buf_char(to, ',');
        buf_str(to, demand->keys[i]);
    }
}

/* In the form buf_int() writes, so that each demand has exactly one text. */
static bool parse_number(struct str word, int32_t min, int32_t max, int32_t *ret_number)
{
    int64_t number;

    if (!word.len || word.at[0] < '0' || word.at[0] > '9' || (word.at[0] == '0' && word.len > 1) ||
        !str_int(word, &number) || number < min || number > max)
        return false;
    *ret_number = (int32_t)number;
    return true;
}

bool demand_parse(struct str text, struct demand *ret_demand)
{
    struct demand demand = demand_plain;
    struct str rest = text;

    *ret_demand = demand_plain;
    if (!text.len)
        return true;
    if (!parse_number(str_cut(&rest, ' '), 1, DEMAND_SLOTS_MAX, &demand.slots) ||
        !parse_number(str_cut(&rest, ' '), 0, DEMAND_GPUS_MAX, &demand.gpus) ||
        !parse_number(str_cut(&rest, ' '), 0, DEMAND_AMOUNT_MAX, &demand.vram_mb))
        return false;
    struct str needs = str_cut(&rest, ' ');
    bool more = needs.len > 0;
    while (more) {
        struct str need = str_cut(&needs, ',');
        struct str name = str_cut(&need, '=');
        int32_t amount;

        more = needs.at != NULL;
        if (!is_name(name) || str_is(name, "slots") || str_is(name, "gpus") ||
            str_is(name, "vram_mb") || !parse_number(need, 1, DEMAND_AMOUNT_MAX, &amount) ||
            (demand.need_count && str_cmp(demand.needs[demand.need_count - 1].name, name) >= 0) ||
            !set(&demand, name, amount))
            return false;
    }
    if (!rest.at)
        return false;
    more = rest.len > 0;
    while (more) {
        struct str key = str_cut(&rest, ',');

        more = rest.at != NULL;
        if (!demand_is_key(key) || demand.key_count == DEMAND_KEYS_MAX ||
            str_in(key, demand.keys, demand.key_count))
            return false;
        demand.keys[demand.key_count++] = key;
    }
    if (demand_is_plain(&demand))
        return false;
    *ret_demand = demand;
    return true;
}

void demand_write_amount(struct str name, int32_t amount, struct buf *to)
{
    int32_t milli = amount % DEMAND_CPU_MILLI;

    if (!str_is(name, "cpu") || milli == 0) {
        buf_int(to, str_is(name, "cpu") ? amount / DEMAND_CPU_MILLI : amount);
        return;
    }
    buf_fmt(to, "%d.%03d", amount / DEMAND_CPU_MILLI, milli);
    while (to->at[to->len - 1] == '0')
        to->len--;
}

void demand_write_needs(const struct demand *demand, struct jsonw *w)
{
    struct buf number = {0};

    jsonw_obj(w);
    if (demand->slots != 1)
        jsonw_kint(w, "slots", demand->slots);
    if (demand->gpus)
        jsonw_kint(w, "gpus", demand->gpus);
    if (demand->vram_mb)
        jsonw_kint(w, "vram_mb", demand->vram_mb);
    for (size_t i = 0; i < demand->need_count; i++) {
        buf_clear(&number);
        demand_write_amount(demand->needs[i].name, demand->needs[i].amount, &number);
        jsonw_key_str(w, demand->needs[i].name);
        jsonw_raw(w, buf_view(&number));
    }
    jsonw_end_obj(w);
    buf_free(&number);
}
