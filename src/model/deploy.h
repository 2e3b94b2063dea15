/* A deployment as the claim rules see it: who owns it, who may take it, in which order. The same
 * rules run on every agent and stand, as predicates, in the server's SQL. */
#ifndef MODEL_DEPLOY_H
#define MODEL_DEPLOY_H

#include "model/names.h"

enum {
    DEPLOY_ID_MAX = 128,
    DEPLOY_INSTANCE_MAX = 64, /* of an agent */
    DEPLOY_REASON_MAX = 256,  /* of a copy, or of a node that gives one up */
    DEPLOY_TIME_MAX = 32, /* created_at, updated_at: text whose byte order is the order of time */
};

enum deploy_type {
    DEPLOY_OTHER,      /* a type nobody knows: never counted, never claimed, never run */
    DEPLOY_DEPLOYMENT, /* runs once, on the node that claimed it */
    DEPLOY_DAEMON,     /* runs on every node its selector matches; has no owner */
    DEPLOY_TYPE_COUNT
};

const char *deploy_type_name(enum deploy_type type);
enum deploy_type deploy_type_by_name(struct str name); /* DEPLOY_OTHER when unknown */

struct deploy_row {
    struct str id;
    struct str address; /* the owner; empty: unassigned */
    enum deploy_type type;
    bool enabled;
    int64_t generation; /* the fencing token: +1 with every change of owner */
    struct str selector;
    struct str updated_at; /* of the spec, never of the status */
    struct str created_at;
    const struct str *failed_on; /* nodes that gave it up lately because it failed there */
    size_t failed_count;
    void *user; /* the caller's */
};

/* Addresses that own enabled deployments and are not online, first seen first. */
void deploy_lost(const struct deploy_row *rows, size_t count, const struct names *online,
                 struct arena *arena, struct names *ret_lost);
/* For each online address, at its place in `online`, how many enabled deployments it owns. */
void deploy_counts(const struct deploy_row *rows, size_t count, const struct names *online,
                   int64_t *ret_counts);

/* What may be claimed. Seed: what nobody owns. Hardened: what a lost node owns, and only if there
 * is none of that what nobody owns. */
enum deploy_mode { DEPLOY_HARDENED, DEPLOY_SEED };

const char *deploy_mode_name(enum deploy_mode mode); /* "hardened", "seed" */

/* The rows that may be claimed, in order: updated_at, created_at, id. `ret_order` has
 * room for `count`; returns how many. */
size_t deploy_candidates(const struct deploy_row *rows, size_t count, const struct names *lost,
                         enum deploy_mode mode, const struct deploy_row **ret_order);

/* A conditional update: what the claimer saw must still be so. */
struct deploy_claim {
    struct str by;
    struct str observed; /* the owner it saw; empty: none */
    int64_t generation;  /* the generation it saw */
    bool owner_lost;     /* `observed` is lost (and its lease ran out) */
};
/* True: the row changed hands and has a new generation. False: nothing changed. */
bool deploy_claim(struct deploy_row *row, const struct deploy_claim *claim);
/* In mode seed what a lost node owned is nobody's; it is an operator's command, too. True: it
 * changed. */
bool deploy_release(struct deploy_row *row, const struct names *lost);

#endif
