/* Items in the order of their names, in runs that versions of a list share: a new version copies
 * only the runs in which something changed. An item is a struct that begins with its name. One
 * thread makes and frees versions (the keeper); whoever has a version may read it. */
#ifndef SCHED_SNAP_LIST_H
#define SCHED_SNAP_LIST_H

#include "base/str.h"

enum { SNAP_RUN = 128 }; /* items of one run, at most */

struct snap_run {
    int refs; /* versions that contain it */
    uint32_t count;
    const struct str *items[SNAP_RUN];
};

/* How items are kept alive: a run holds references to its own. NULL: they live longer anyway. */
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
    const struct str *item; /* replaces the item of the same name, if there is one */
    bool gone;              /* the item is removed instead */
};

struct snap_at { /* the position of a walk; {0} is before the first */
    size_t run;
    uint32_t item;
};

/* Makes a new version of a list (NULL: of an empty one); the old one is unchanged. The edits are
 * sorted here, and no two may have the same name. The number of items written is added to
 * *copied. */
struct snap_list *snap_list_edit(const struct snap_list *list, const struct snap_kind *kind,
                                 struct snap_edit *edits, size_t count, size_t *copied);
struct snap_list *snap_list_ref(struct snap_list *list);
void snap_list_unref(struct snap_list *list); /* NULL is fine */

const struct str *snap_list_find(const struct snap_list *list, struct str name);
struct snap_at snap_list_after(const struct snap_list *list, struct str name);
const struct str *snap_list_next(const struct snap_list *list, struct snap_at *at);

#endif
