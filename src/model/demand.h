/* What a job takes besides a slot on a node: amounts of resources (`needs`), and the keys whose
 * limits it counts against (`keys`). Read from JSON once, then passed on and stored as one short
 * text, identical for all jobs with the same demand. Pure. */
#ifndef MODEL_DEMAND_H
#define MODEL_DEMAND_H

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"

enum {
    DEMAND_NEEDS_MAX = 8, /* of names, besides slots, gpus and vram_mb */
    DEMAND_KEYS_MAX = 4,
    DEMAND_NAME_MAX = 32,           /* bytes of a resource name */
    DEMAND_KEY_MAX = 64,            /* bytes of a key, */
    DEMAND_FULL_KEY_MAX = 81,       /* with its namespace */
    DEMAND_AMOUNT_MAX = 1000000000, /* of any one need */
    DEMAND_SLOTS_MAX = 1000000,     /* as many as a node may have */
    DEMAND_GPUS_MAX = 16,           /* GPUs of one job */
    DEMAND_TEXT_MAX = 1024,         /* bytes */
    DEMAND_CPU_MILLI = 1000,        /* `cpu` is counted in thousandths of a core */
};

struct demand_need {
    struct str name; /* "cpu" in 1/1000 of a core, "mem_mb", any other name */
    int32_t amount;  /* > 0 */
};

struct demand {
    int32_t slots;   /* 1.. */
    int32_t gpus;    /* whole ones, used by no other job meanwhile; 0: none */
    int32_t vram_mb; /* without gpus: on one shared GPU; with: on each of them */
    size_t need_count;
    struct demand_need needs[DEMAND_NEEDS_MAX]; /* by name */
    size_t key_count;
    struct str keys[DEMAND_KEYS_MAX]; /* as given: the queue takes turns by the first */
};

/* One slot and nothing else. */
extern const struct demand demand_plain;

/* Reads the members of a request: objects and lists may be absent. Names and keys are borrowed from
 * the JSON or the arena. `needs` is applied on top of *ret_demand, so that a type's defaults can be
 * read first; the caller starts with demand_plain. */
enum err demand_read_needs(const struct json *needs, struct arena *arena, struct demand *ret_demand,
                           struct problem *why);
enum err demand_read_keys(const struct json *keys, struct arena *arena, struct demand *ret_demand,
                          struct problem *why);

/* "SLOTS GPUS VRAM NAME=AMOUNT,NAME=AMOUNT KEY,KEY"; the last two may be empty. demand_plain gives
 * an empty text. */
void demand_write(const struct demand *demand, struct buf *to);
/* Borrows from the text. False: not written by demand_write. "" is demand_plain. */
bool demand_parse(struct str text, struct demand *ret_demand);

bool demand_is_plain(const struct demand *demand);
int32_t demand_need(const struct demand *demand, struct str name); /* how much of it; 0: none */
/* May a job have this key? Takes full names: a key of a namespace other than `default` has the
 * namespace in front, so that no namespace uses up another's limit. Callers write short names. */
bool demand_is_key(struct str key);
/* The needs as the object a request would contain; slots only when it is not 1. */
void demand_write_needs(const struct demand *demand, struct jsonw *w);
/* An amount as people write it: 1500 of "cpu" is 1.5. */
void demand_write_amount(struct str name, int32_t amount, struct buf *to);
/* The reverse: reads a JSON number. */
bool demand_amount(struct str name, const struct json *value, int32_t *ret_amount);

#endif
