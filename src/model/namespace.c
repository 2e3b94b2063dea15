/* Full names, split and joined. */
#include "model/namespace.h"

#include <string.h>

/* Does it have a slash? If not, it is a bare name. */
static bool is_full(struct str name)
{
    return name.len && memchr(name.at, '/', name.len);
}

static bool is_default(struct str namespace)
{
    return str_eq(namespace, NAMESPACE_DEFAULT);
}

bool namespace_valid(struct str namespace)
{
    return str_is_id(namespace, NAMESPACE_MAX);
}

struct str namespace_of(struct str full)
{
    struct str first = str_cut(&full, '/');

    return full.at ? first : NAMESPACE_DEFAULT;
}

struct str namespace_name(struct str full)
{
    struct str rest = full;

    str_cut(&rest, '/');
    return rest.at ? rest : full;
}

struct str namespace_join(struct str namespace, struct str name, struct arena *arena)
{
    return is_default(namespace)
               ? name
               : arena_fmt(arena, STR_FMT "/" STR_FMT, STR_ARG(namespace), STR_ARG(name));
}

enum err namespace_enter(const struct namespace_view *view, const char *field, struct str name,
                         size_t max, struct arena *arena, struct str *ret_full, struct problem *why)
{
    bool full = view->all && is_full(name);
    struct str namespace = full ? namespace_of(name) : view->namespace;
    struct str bare = full ? namespace_name(name) : name;

    if (!str_is_id(bare, max) || !namespace_valid(namespace))
        return problem_set(why, ERR_BAD_FIELD, field,
                           "%s must be 1 to %zu characters out of A-Z a-z 0-9 . _ : @ - and not "
                           "start with a dot.",
                           field, max);
    struct str joined = namespace_join(namespace, bare, arena);
    if (joined.len > max)
        return problem_set(why, ERR_BAD_FIELD, field,
                           "%s must be 1 to %zu characters in the namespace " STR_FMT
                           ": with it, it has at most %zu.",
                           field, max - namespace.len - 1, STR_ARG(namespace), max);
    *ret_full = joined;
    return ERR_OK;
}

struct str namespace_wanted(const struct namespace_view *view, struct str name, struct arena *arena)
{
    if (!name.len)
        return name;
    if (view->all)
        return namespace_join(is_full(name) ? namespace_of(name) : view->namespace,
                              namespace_name(name), arena);
    /* No name has two slashes, so a full name cannot reach another namespace. */
    return is_full(name)
               ? arena_fmt(arena, STR_FMT "/" STR_FMT, STR_ARG(view->namespace), STR_ARG(name))
               : namespace_join(view->namespace, name, arena);
}

struct str namespace_listed(const struct namespace_view *view)
{
    return view->all ? STR_NONE : view->namespace;
}

bool namespace_lists(struct str listed, struct str full)
{
    return !listed.at || str_eq(namespace_of(full), listed);
}

bool namespace_sees_sums(const struct namespace_view *view)
{
    return view->all || is_default(view->namespace);
}

bool namespace_sees(const struct namespace_view *view, struct str full)
{
    return namespace_lists(namespace_listed(view), full);
}

struct str namespace_shown(const struct namespace_view *view, struct str full)
{
    return view->all ? full : namespace_name(full);
}

struct str namespace_session(struct str namespace, struct str session, struct arena *arena)
{
    if (is_default(namespace))
        return is_full(session) ? arena_fmt(arena, "/" STR_FMT, STR_ARG(session)) : session;
    return namespace_join(namespace, session, arena);
}

struct str namespace_key(struct str namespace, struct str key, struct arena *arena)
{
    return is_default(namespace)
               ? key
               : arena_fmt(arena, STR_FMT " " STR_FMT, STR_ARG(namespace), STR_ARG(key));
}

struct str namespace_enter_session(const struct namespace_view *view, struct str session,
                                   struct arena *arena)
{
    struct str namespace = namespace_of(session);

    if (!view->all)
        return namespace_session(view->namespace, session, arena);
    /* "/a/b" is the key itself; "default/a" is another way to write "a". */
    return namespace_valid(namespace) ? namespace_session(namespace, namespace_name(session), arena)
                                      : session;
}

bool namespace_in(const struct json *list, struct str full)
{
    const struct json *item;
    char namespace[NAMESPACE_MAX + 1];

    if (json_type(list) != JSON_ARR || !str_copy(namespace_of(full), namespace, sizeof namespace))
        return json_is_null(list);
    for (item = json_items(list); item; item = json_after(list, item))
        if (json_str_is(item, namespace))
            return true;
    return false;
}
