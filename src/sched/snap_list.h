/* Things in the order of their names, in runs that versions of a list share: a new version makes
 * only those runs anew in which something changed. An item is a struct that begins with its name.
 * One thread makes and frees versions (the keeper); whoever has one may read it. */
#ifndef SCHED_SNAP_LIST_H
#define SCHED_SNAP_LIST_H

#include "base/str.h"

enum { SNAP_RUN = 128 }; /* items of one run, at most */

struct snap_run {
    int refs; /* the versions that have it */
    uint32_t count;
    const struct str *items[SNAP_RUN];
};

/* Who keeps items alive; a run holds its own. NULL: they live longer anyway. */
struct snap_kind {
    void (*hold)(const struct str *item);
    void (*drop)(const struct str *item);
};

struct snap_list {
    int refs;
    const struct snap_kind *kind;
    size_t count;
    size_t run_count;
    struct snap_run *runs[];
};

struct snap_edit {
    const struct str *item; /* in the place of the one with its name, if there is one */
    bool gone;              /* no: that one goes */
};

struct snap_at { /* where a walk is; {0} is before the first */
    size_t run;
    uint32_t item;
};

/* A new version of a list (NULL: of an empty one); the old one stays as it is. The edits are sorted
 * here, and no two have the same name. What is written is added to *copied. */
struct snap_list *snap_list_edit(const struct snap_list *list, const struct snap_kind *kind,
                                 struct snap_edit *edits, size_t count, size_t *copied);
struct snap_list *snap_list_ref(struct snap_list *list);
void snap_list_unref(struct snap_list *list); /* NULL is fine */

const struct str *snap_list_find(const struct snap_list *list, struct str name);
struct snap_at snap_list_after(const struct snap_list *list, struct str name);
const struct str *snap_list_next(const struct snap_list *list, struct snap_at *at);

#endif
