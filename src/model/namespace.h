/* Namespaces of names. A full name is "team/web"; in the namespace `default` it is the bare name,
 * "web". No id contains '/', so a full name is unambiguous. Everything behind the API uses full
 * names; a caller has a view, which converts between short and full names. Nodes use short names: a
 * node that does `translate` does it for every namespace. */
#ifndef MODEL_NAMESPACE_H
#define MODEL_NAMESPACE_H

#include "base/schema.h"

/* The namespace may use at most this many bytes of a type: the rest is left for its name. */
enum { NAMESPACE_MAX = 16 };

#define NAMESPACE_DEFAULT STR("default")

/* What a caller may see. */
struct namespace_view {
    struct str namespace; /* its own: short names belong to it */
    bool all;             /* all namespaces, by full names; short names belong to its own */
};

/* Which namespace a list covers; at == NULL: all of them. */
struct str namespace_listed(const struct namespace_view *view);
/* Is a full name in that namespace? */
bool namespace_lists(struct str listed, struct str full);

bool namespace_valid(struct str namespace);
/* The namespace of a full name; `default` for a bare one. */
struct str namespace_of(struct str full);
struct str namespace_name(struct str full); /* what follows the namespace */
/* The full name, in the arena, or `name` itself in `default`. */
struct str namespace_join(struct str namespace, struct str name, struct arena *arena);

/* Converts a name as a caller wrote it to a full one. ERR_BAD_FIELD: it is not an id (for a caller
 * that sees all: nor a full name), or is longer than `max` with its namespace. */
enum err namespace_enter(const struct namespace_view *view, const char *field, struct str name,
                         size_t max, struct arena *arena, struct str *ret_full,
                         struct problem *why);
/* The same for a look-up: an invalid name is simply not found. */
struct str namespace_wanted(const struct namespace_view *view, struct str name,
                            struct arena *arena);
bool namespace_sees(const struct namespace_view *view, struct str full);
/* May it see figures of the whole process, which cover all namespaces? For operators, and for
 * monitoring, whose token is of `default`. */
bool namespace_sees_sums(const struct namespace_view *view);
/* The name as shown to a caller with this view. */
struct str namespace_shown(const struct namespace_view *view, struct str full);

/* Keys for texts that are not ids. A session may be any text: in `default`, one that contains '/'
 * gets another '/' in front, which no full name has. An Idempotency-Key has no blank, so a blank
 * separates it. */
struct str namespace_session(struct str namespace, struct str session, struct arena *arena);
struct str namespace_key(struct str namespace, struct str key, struct arena *arena);
/* The session that a caller names. */
struct str namespace_enter_session(const struct namespace_view *view, struct str session,
                                   struct arena *arena);

/* Is the namespace of a full name in this list (JSON)? NULL or null: all are. */
bool namespace_in(const struct json *list, struct str full);

#endif
