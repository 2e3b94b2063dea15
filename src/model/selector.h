/* Selectors: choose nodes by their labels. One grammar for the `requires` of a job, the `selector`
 * of a deployment, routes and lists of nodes:
 *
 *     zone in (eu,us), gpu.vram_mb >= 16000, !spot, name != x
 *
 * Terms are separated by commas, and all must hold. Pure; matching allocates nothing. */
#ifndef MODEL_SELECTOR_H
#define MODEL_SELECTOR_H

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

enum {
    SELECTOR_BYTES_MAX = 4096,
    SELECTOR_TERMS_MAX = 128,
    SELECTOR_VALUES_MAX = 256, /* in one `in` or `notin` */
    SELECTOR_WORD_MAX = 64,    /* of a key or a value: [A-Za-z0-9_.-] */
};

/* Which grammar. What both can express means the same in both. */
enum selector_form {
    SELECTOR_FULL,
    SELECTOR_EQUALITY, /* `key=value[,key=value]*` without blanks: all that older releases read */
};

enum selector_op {
    SELECTOR_HAS,     /* key */
    SELECTOR_LACKS,   /* !key */
    SELECTOR_IS,      /* key = value, key == value */
    SELECTOR_NOT,     /* key != value */
    SELECTOR_IN,      /* key in (a,b) */
    SELECTOR_NOTIN,   /* key notin (a,b) */
    SELECTOR_MORE,    /* key > 1 */
    SELECTOR_MORE_EQ, /* key >= 1 */
    SELECTOR_LESS,    /* key < 1 */
    SELECTOR_LESS_EQ, /* key <= 1 */
};

struct selector_term {
    enum selector_op op;
    struct str key;
    struct str values; /* the value; for a list, the text between its brackets */
    struct str text;   /* the whole term as it was written */
};

/* A parsed selector; all zero matches every node. Its texts point into the text it was read
 * from. */
struct selector {
    const struct selector_term *terms;
    size_t count;
};

/* What is known of a node. */
struct selector_facts {
    struct str id;             /* at == NULL: not known, and `name` is a label like any other */
    const struct json *labels; /* an object of texts; NULL: unknown, only no terms match that */
};

/* Reads it; an empty one is valid. ERR_BAD_FIELD names the field, the character (from 1, also in
 * why->column) and what was expected there. The terms are in the arena. */
enum err selector_read(struct str text, const char *field, struct arena *arena,
                       struct selector *ret_selector, struct problem *why);
/* Only checks the text, for fields that require a given form. */
enum err selector_check(struct str text, enum selector_form form, const char *field,
                        struct problem *why);
bool selector_fits(const struct selector *selector, const struct selector_facts *facts);
/* Reads and matches in one call, for one-time matches: an invalid selector matches nothing. */
bool selector_match(struct str text, const struct selector_facts *facts);
/* Appends it in canonical form: selectors that ask for the same with another order or other
 * operators are equal. If it only has equality terms, the result is those terms in byte order. */
void selector_canonical(const struct selector *selector, struct buf *to);
/* Appends the first term that does not hold, and why: "zone in (eu,us): zone is asia". False:
 * all hold, nothing was appended. */
bool selector_explain(const struct selector *selector, const struct selector_facts *facts,
                      struct buf *to);

#endif
