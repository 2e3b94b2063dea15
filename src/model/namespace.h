/* Namespaces: whose a name is. A full name is "team/web"; of the namespace `default` it is the bare
 * name, "web". No id has a '/' in it, so that a full name is read in one way only. Everything
 * behind the API has full names; a caller has a view, which turns short names into full ones and
 * back. Nodes know short names: a node that does `translate` does it for every namespace. */
#ifndef MODEL_NAMESPACE_H
#define MODEL_NAMESPACE_H

#include "base/schema.h"

/* So much of a type's bytes may be the namespace's: the rest is left for its name. */
enum { NAMESPACE_MAX = 16 };

#define NAMESPACE_DEFAULT STR("default")

/* What a caller may see. */
struct namespace_view {
    struct str namespace; /* its own: where a short name of its is */
    bool all;             /* all of them, by their full names; short ones are of its own */
};

/* Which names a list is about: at == NULL, those of all namespaces. */
struct str namespace_listed(const struct namespace_view *view);
/* Is a full name one of those? */
bool namespace_lists(struct str listed, struct str full);

bool namespace_valid(struct str namespace);
/* The namespace of a full name; `default` for a bare one. */
struct str namespace_of(struct str full);
struct str namespace_name(struct str full); /* what follows the namespace */
/* The full name, in the arena, or `name` itself in `default`. */
struct str namespace_join(struct str namespace, struct str name, struct arena *arena);

/* A name as a caller wrote it, as a full one. ERR_BAD_FIELD: it is no id (for a caller that sees
 * all: nor a full name), or is longer than `max` with its namespace. */
enum err namespace_enter(const struct namespace_view *view, const char *field, struct str name,
                         size_t max, struct arena *arena, struct str *ret_full,
                         struct problem *why);
/* The same of a name that is only looked for: one that cannot be is not found. */
struct str namespace_wanted(const struct namespace_view *view, struct str name,
                            struct arena *arena);
bool namespace_sees(const struct namespace_view *view, struct str full);
/* Figures of the process, which are those of all namespaces together: for its operators, and for
 * monitoring, whose token is of `default`. */
bool namespace_sees_sums(const struct namespace_view *view);
/* As it is shown to a caller with this view. */
struct str namespace_shown(const struct namespace_view *view, struct str full);

/* Keys of what is no id. A session may be any text: one of `default` with a '/' in it has another
 * in front, which no full name has. An Idempotency-Key has no blank, so one is between. */
struct str namespace_session(struct str namespace, struct str session, struct arena *arena);
struct str namespace_key(struct str namespace, struct str key, struct arena *arena);
/* The session a caller names. */
struct str namespace_enter_session(const struct namespace_view *view, struct str session,
                                   struct arena *arena);

/* Has a list of namespaces (JSON) that of a full name? NULL or null: all are in it. */
bool namespace_in(const struct json *list, struct str full);

#endif
