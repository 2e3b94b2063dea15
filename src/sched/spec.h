/* What a job is about: read from a request, kept in the store as JSON, sent to a node. */
#ifndef SCHED_SPEC_H
#define SCHED_SPEC_H

#include "base/schema.h"
#include "model/demand.h"
#include "model/namespace.h"
#include "model/selector.h"
#include "model/warm.h"
#include "store/store.h"

/* Marks of the rows of spec_schema: where a field of a job appears. Every field that was given is
 * stored in the job's record. */
enum spec_mark {
    SPEC_F2F = FIELD_OWN,            /* in a face-to-face request */
    SPEC_TASK = FIELD_OWN << 1,      /* in a task request */
    SPEC_NEEDED = FIELD_OWN << 2,    /* required in these requests */
    SPEC_LONG_NAME = FIELD_OWN << 3, /* requests use its alias */
    SPEC_KEPT = FIELD_OWN << 4,      /* always stored and sent to the node */
    SPEC_TALK = FIELD_OWN << 5,      /* the same for face-to-face, and never for a task */
    SPEC_NOT_NODE = FIELD_OWN << 6,  /* not sent to the node */
    SPEC_SHOWN = FIELD_OWN << 7,     /* shown with the job; null if it was not given */
    SPEC_SHOWN_SET = FIELD_OWN << 8, /* shown if it was given */
};
extern const struct schema spec_schema;

struct spec_options {
    bool require_tts;
    bool require_asr;
    bool strict;
    struct str preferred_node_id;
};

struct spec {
    bool f2f;
    struct str session_id, src, tgt, audio_ref;
    struct spec_options options;
    const struct json *options_raw;
    struct str type; /* with its namespace; nodes use spec_node_type() */
    struct str title;
    int64_t priority;
    const struct json *payload, *command, *secrets;
    struct str requires;      /* a selector */
    struct selector selector; /* the same, parsed */
    bool interactive;
    const struct json *prefers; /* names that should preferably be loaded on its node */
    uint32_t prefer_marks[WARM_PREFERS_MAX]; /* the same as marks, see model/warm.h */
    uint32_t prefer_count;
    const struct json *needs, *keys; /* including the defaults of its type */
    const struct demand *demand;     /* the same, parsed; NULL: one slot and no keys */
    struct str demand_text;          /* see demand_write(); at == NULL likewise */
    int64_t queue_ms, timeout_ms;
    int64_t max_attempts; /* FIELD_OFF: the configured one */
    struct str callback_url;
    struct str traceparent; /* of the request, see model/trace.h; at == NULL: none */
    struct str retried_from;
    struct str submitted_by; /* the name of a token; at == NULL: no tokens are configured */
    struct str json;         /* as the store keeps it */
};

enum { SPEC_PRIORITY_F2F = 7, SPEC_PRIORITY_TASK = 5 };

/* Default needs and keys of jobs of a type. */
struct spec_type {
    struct str type; /* as nodes know it */
    const struct json *needs, *keys;
};

struct spec_types {
    const struct spec_type *rows; /* by type */
    size_t count;
};

/* The sender of the body; not part of the body. */
struct spec_author {
    struct str name; /* of a token; at == NULL: no tokens are configured */
    struct namespace_view view;
    const struct spec_types *types; /* NULL: none */
};
/* Reads a face-to-face request or a task request. */
enum err spec_read(bool f2f, const struct json *body, const struct spec_author *author,
                   struct arena *arena, struct spec *ret_spec, struct problem *why);
/* The type as nodes know it: the same in every namespace. */
struct str spec_node_type(const struct spec *spec);
/* The key of its session in the store; at == NULL: none is kept. */
struct str spec_session(const struct spec *spec, struct arena *arena);
/* Sets the traceparent from the request's header, as if the body had named it. An invalid one
 * changes nothing. */
void spec_set_trace(struct spec *spec, struct str header, struct arena *arena);
/* Reads spec.json back into the struct. */
enum err spec_stored(struct str json, struct arena *arena, struct spec *ret_spec,
                     struct problem *why);
/* The same work again under a new id, for an operator's retry. */
enum err spec_again(struct str json, uint64_t retried_from, struct str submitted_by,
                    struct arena *arena, struct spec *ret_spec, struct problem *why);
/* The account it counts against while it waits, without bounds. */
struct store_account spec_account(const struct spec *spec);
/* The number of the lane in which it waits, never 0: a digest of everything that decides which
 * nodes may take it, and when. The same in every instance and after every restart, and clients
 * cannot craft other work that shares it. */
uint64_t spec_lane(const struct spec *spec);
/* The same without its keys: a node that may take one job may take all with the same number. */
uint64_t spec_fit(const struct spec *spec);
/* Does it ask for more than slots? */
bool spec_has_needs(const struct spec *spec);
/* The slots it takes. */
static inline int32_t spec_slots(const struct spec *spec)
{
    return spec->demand ? spec->demand->slots : 1;
}
/* The ids of a set of GPUs as a JSON list. */
void spec_gpus_write(uint64_t gpus, struct buf *to);
/* The message to the node, in the arena: the type as the node knows it, its namespace in a separate
 * field, and without fields that are not for the node (callback_url). */
struct str spec_message(const struct spec *spec, const struct store_head *head,
                        struct arena *arena);

#endif
