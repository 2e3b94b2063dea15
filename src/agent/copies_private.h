/* Between the files of copies.h:
 *   copies.c         the life of a copy
 *   copies_table.c   all of them, and what others may know
 *   copies_start.c   from its spec to a run
 *   copies_health.c  is it well? */
#ifndef AGENT_COPIES_PRIVATE_H
#define AGENT_COPIES_PRIVATE_H

#include "agent/copies.h"
#include "agent/packages.h"
#include "base/log.h"
#include "base/map.h"
#include "io/client.h"

struct copies {
    struct loop *loop;
    const struct config *config;
    struct str node_id;
    const char *data_dir;
    struct runs *runs;
    struct packages *packages;
    struct client *client; /* for checks by HTTP */
    void (*changed)(struct copies *copies);
    void *user;
    struct map by_id;
    struct copy *first, *last;
    bool told;   /* a whole round came */
    bool ending; /* all are stopped and none is started */
    int64_t round;
    int64_t fence_ms, fence_grace_ms; /* clock_lease_ms(); 0: no lease yet */
    bool danger;                      /* the machine is in danger */
    int64_t number;                   /* of the next run, beside the time */
    struct rnd rnd;
    struct loop_part part;
    bool freed; /* its runs go on without it */
};

enum { COPY_WORDS_MAX = 256 }; /* of a reason, as the server takes it; with its NUL */

#define COPY_UNHEALTHY "UNHEALTHY" /* the reason of a stop */

enum copy_health { COPY_UNKNOWN, COPY_WELL, COPY_UNWELL };

enum copy_end { COPY_NOT_OVER, COPY_FINISHED, COPY_FAILED };

struct copy_check {
    int64_t next_ms;  /* CLOCK_MONOTONIC; 0: none is due */
    int64_t begun_ms; /* CLOCK_MONOTONIC: its copy is looked after since then; 0: not yet */
    int64_t failures; /* in a row */
    bool passed;      /* once since its start */
    struct run *run;  /* of a command; NULL: none is under way */
    struct client_call *call;
};

struct copy {
    struct copies *copies;
    struct copy *prev, *next;
    struct str id;
    struct arena id_arena, arena; /* of `spec` */
    int64_t generation;           /* what should run: the fencing token of this assignment, */
    int64_t version;              /* the version of its spec: another one means a restart, */
    bool daemon;                  /* on every node that matches, owned by nobody: without a lease */
    struct deploy_spec spec;      /* of the last version that could be read, */
    int64_t spec_version;         /* this one */
    bool known;                   /* it has one: not so of one that was adopted and not yet named */
    struct deploy_spec old;       /* of what runs, when another version is wanted */
    int64_t old_version;          /* 0: none is kept */
    struct arena old_arena;
    bool wanted;
    enum copy_hold held;         /* not COPY_KEPT: it must not run */
    char failed[COPY_WORDS_MAX]; /* how it last ended before it was held */
    int64_t round;               /* that named it last */
    char wrong[COPY_WORDS_MAX];  /* why its row cannot be run; "" = it can */
    enum copy_state state;
    struct run *run;                     /* NULL: none is alive */
    struct run *last;                    /* the one before it, for its output */
    int64_t last_version;                /* of `last` */
    int64_t run_generation, run_version; /* of `run` */
    bool stopping;                       /* its end was asked for, so it is no failure */
    bool unhealthy;                      /* and that was why */
    char unwell[COPY_WORDS_MAX];         /* what its check said last; "" = nothing bad */
    char ended[COPY_WORDS_MAX];          /* why the last one ended, or could not be started */
    char waits[COPY_WORDS_MAX];          /* why what is wanted is not started yet */
    int64_t failures;                    /* in a row */
    int64_t restarts;                    /* ever, while this agent knows it */
    int64_t next_ms;                     /* CLOCK_MONOTONIC: no start before */
    int64_t ask_ms;        /* CLOCK_MONOTONIC: when a changed daemon asks again for its turn */
    bool asks;             /* the next status asks */
    int64_t asked_version; /* the status that is under way asked for this one */
    int64_t turn_version;  /* the version the server has let this node go on to */
    enum copy_health told_health;
    int64_t since_ms;     /* CLOCK_MONOTONIC: in this state */
    bool looping;         /* told as a crash loop */
    enum copy_end over;   /* how it ran to its end, which is not started again */
    int64_t over_version; /* this version of it */
    bool killed;          /* its end was asked for to save the machine */
    int64_t kills;        /* how often that happened, in a row */
    char killed_why[192]; /* if that was how it last ended; else "" */
    struct copy_check check;
};

extern const struct run_handler copies_run_handler;

/* copies_table.c */
struct copy *copies_find(const struct copies *copies, struct str id);
struct copy *copies_enter(struct copies *copies, struct str id);
void copies_leave(struct copy *copy); /* neither run nor check may be left */
/* A text as a reason: one line, cut where it is too long. */
void copy_words(struct str text, char words[COPY_WORDS_MAX]);
void copy_log(const struct copy *copy, enum log_level level, const char *event, const char *reason);

/* copies.c */
bool copy_changed(const struct copy *copy);       /* another one than runs is wanted */
enum copy_end copy_over(const struct copy *copy); /* of the version that is wanted */
void copy_stop(struct copy *copy, const char *reason, int64_t grace_ms);

/* copies_start.c */
/* Starts copy->run from copy->spec; dir is its package's (NULL: none). */
enum err copy_start(struct copy *copy, const char *dir, struct problem *why);
/* ERR_OK: as far as can be known without doing it, copy_start would succeed. */
enum err copy_startable(const struct copy *copy, const char *dir, struct problem *why);
/* The environment of a version of a copy and of its health checks; in the arena. */
/* What its spec names, if this agent gives them to it. */
enum err copy_secrets(const struct copy *copy, const struct deploy_spec *own, struct run_spec *spec,
                      struct problem *why);
void copy_env(const struct copy *copy, const struct deploy_spec *own, int64_t version,
              const char *dir, struct arena *arena, struct run_spec *spec);
/* What is kept with the run, to know it again. kind: "copy" or "health". */
void copy_meta_write(const struct copy *copy, const char *kind, struct buf *out);
struct copy_meta {
    struct str kind, id;
    int64_t generation, version;
    bool daemon;
};
bool copy_meta_read(struct str meta, struct arena *arena, struct copy_meta *ret_meta);
void copy_run_key(struct copy *copy, const char *prefix, char key[RUN_KEY_MAX + 1]);

/* copies_health.c */
/* Of what runs; NULL: an earlier agent started it, and its version is no longer what is wanted. */
const struct deploy_spec *copy_spec_of_run(const struct copy *copy);
void copy_check_begin(struct copy *copy);  /* its process runs */
void copy_check_tick(struct copy *copy);   /* every tick, while it runs */
void copy_check_cancel(struct copy *copy); /* its process does not */
/* A check of an earlier agent: it is ended and forgotten. */
void copy_check_adopt(struct run *run);
enum copy_health copy_health(const struct copy *copy);

#endif
