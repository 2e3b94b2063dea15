/* The changes of a batch as bytes: the record the journal keeps. A change holds the resulting row,
 * not what happened to it, so of two changes of the same row the later one wins. */
#ifndef STORE_CHANGE_H
#define STORE_CHANGE_H

#include "base/str.h"
#include "store/fault.h"
#include "store/store.h"

/* These values are stored on disk: a released number keeps its meaning. */
enum change_kind {
    CHANGE_JOB = 1,
    CHANGE_NODE = 2,
    CHANGE_NODE_DEL = 3,
    CHANGE_BREAKER = 4,
    CHANGE_BREAKER_DEL = 5,
    CHANGE_SESSION = 6,
    CHANGE_META = 7,
    CHANGE_NODE_RESOURCES = 8, /* only on disk: a CHANGE_NODE with resources */
    CHANGE_LIMIT = 9,
    CHANGE_LIMIT_DEL = 10,
    CHANGE_LIMIT_KEY = 11,
    CHANGE_LIMIT_KEY_DEL = 12,
};
enum { CHANGE_KINDS = CHANGE_LIMIT_KEY_DEL + 1 };

/* What a change of a job contains besides its head and attempts. */
enum change_part {
    CHANGE_NEW = 1,         /* there is no row yet: its spec and its Idempotency-Key */
    CHANGE_RESULT = 2,      /* `result`; at == NULL: none */
    CHANGE_FIRST_NODE = 4,  /* `first_node` */
    CHANGE_KEY_DROPPED = 8, /* its Idempotency-Key is free again */
    /* Set and cleared by change_write(); when unset, the job has no GPUs or no demand. */
    CHANGE_GPUS = 16,   /* `head.gpus` */
    CHANGE_DEMAND = 32, /* with CHANGE_NEW: `demand` */
    CHANGE_PARTS = 63,
};

struct change_job {
    struct store_head head; /* in a lane, due_ms is stored less the meta row's wait_shift_ms */
    int64_t run_until_ms;
    bool answered;
    unsigned parts;      /* enum change_part */
    struct str attempts; /* at == NULL: none has ended yet */
    struct str spec;
    struct str demand; /* empty: demand_plain */
    struct str idem;   /* at == NULL: none */
    uint64_t fingerprint;
    struct str first_node;
    struct str result;
};

struct change_breaker {
    struct str node;
    struct str type;
    struct breaker breaker;
    uint64_t probe_job; /* the job whose lease is the probe; 0: none was out */
};

struct change_session {
    struct str id;
    struct str pool;
    struct str lang_pair;
    int64_t version;
    int64_t updated_ms;
};

struct change_limit {
    struct str pattern;
    struct limit limit;
};

struct change_limit_key {
    struct str key;
    int64_t hold_until_ms; /* 0: not held. Like the starts, stored less wait_shift_ms */
    struct str reason;
    struct str starts; /* see limit_window_write() */
};

struct change_meta {
    uint64_t floor; /* no active job has a smaller id */
    int64_t wait_shift_ms;
};

struct change {
    enum change_kind kind;
    union {
        struct change_job job;
        struct store_node node;        /* NODE_DEL: the id alone */
        struct change_breaker breaker; /* BREAKER_DEL: node and type alone */
        struct change_session session;
        struct change_limit limit;         /* LIMIT_DEL: the pattern alone */
        struct change_limit_key limit_key; /* LIMIT_KEY_DEL: the key alone */
        struct change_meta meta;
    } u;
};

void change_write(struct buf *to, const struct change *change);
/* Takes the next change from *rest and borrows its texts. False: not a valid change, or written by
 * a later berth. */
bool change_read(struct str *rest, struct change *ret_change);
/* Merges a later change of the same job into `into`. */
void change_job_merge(struct change_job *into, const struct change_job *later);

/* A row's fields, in the order of its columns in store.db. Every kind but a job is also encoded
 * this way here. */
struct change_field {
    enum { CHANGE_NUMBER, CHANGE_SIGNED, CHANGE_TEXT, CHANGE_NAME, CHANGE_CHARS } kind;
    bool empty_is_null; /* a text in store.db */
    uint8_t size;       /* of a number, or of the char array that holds a text */
    uint16_t offset;    /* in struct change */
    int64_t min, max; /* of a number, or of the length in bytes of a name, which is never absent */
};

extern const struct change_row {
    const struct change_field *fields;
    uint8_t count;
    uint8_t keys;          /* how many of the first fields identify the row */
    enum change_kind kind; /* the same for changing and for deleting the row */
} change_rows[CHANGE_KINDS];

struct str change_text(const struct change *change, const struct change_field *field);
int64_t change_number(const struct change *change, const struct change_field *field);
/* False: an invalid number, which is stored as 0, or an invalid name. */
bool change_set_number(struct change *change, const struct change_field *field, int64_t number);
bool change_set_text(struct change *change, const struct change_field *field, struct str text);

/* Sets the fault for a commit whose changes cannot be decoded. */
void change_damaged(uint64_t seq, struct fault *fault);

#endif
