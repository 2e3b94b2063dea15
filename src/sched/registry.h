/* How nodes register, change and leave. A change is applied in the store, then in the keeper's
 * table, then on every loop of this instance; only then is it answered. A heartbeat with nothing
 * new writes a few atomics on its own loop: no copy, no lock, no call. */
#ifndef SCHED_REGISTRY_H
#define SCHED_REGISTRY_H

#include "sched/node_report.h"
#include "sched/sched.h"

enum node_change_kind {
    NODE_CHANGE_PUT,     /* register, or a heartbeat with news */
    NODE_CHANGE_FIGURES, /* what it would run right now, which resources are usable */
    NODE_CHANGE_ADMIN,   /* drain, undrain, cordon */
    NODE_CHANGE_DROP,    /* deregister, forgotten */
    NODE_CHANGE_WATCH,   /* the keeper's judgement of its silence; offline = lost = a new epoch */
};

struct node_change {
    struct msg msg;
    struct store_op op;
    struct sched_loop *from;
    enum node_change_kind kind;
    struct str node_id;  /* memory of the owner of the change */
    struct facts *facts; /* PUT: ours until the keeper takes it */
    enum node_health own;
    enum node_admin admin;
    enum node_health watch; /* WATCH */
    bool without_runs;      /* PUT: it is back without the jobs it was running: a new epoch */
    struct str admin_reason;
    /* PUT, FIGURES: the usable resources, see resources_write(); ours until the change is done;
     * NULL: unchanged */
    char *resources;
    struct node_report report; /* PUT: to remember its marks */
    enum err err;              /* answer */
    struct problem why;        /* answer */
    struct node *node;         /* answer: PUT */
    struct node_change *next;  /* the keeper's list of changes that wait for an edition */
    void (*done)(struct node_change *change); /* on the loop it came from */
};

/* Fills the change from a report and checks it against what is known. Nothing is sent yet. */
enum err registry_prepare(struct sched_loop *loop, const struct node_report *report,
                          struct node_change *ret_change, struct problem *why);
void registry_prepare_figures(struct sched_loop *loop, const struct node_report *report,
                              struct node *node, struct node_change *ret_change);
/* Sends it; done() is called once, whatever happens. */
void registry_send(struct sched_loop *loop, struct node_change *change);

/* A new connection lists no runs although the store has some: the node started afresh (a reboot,
 * say). */
bool registry_came_back_empty(const struct sched_loop *loop, const struct node_report *report);

enum registry_beat {
    BEAT_TAKEN,   /* nothing new: done */
    BEAT_NEWS,    /* prepare and send a change */
    BEAT_FIGURES, /* only what it would run now, or what is usable, differs: prepare_figures */
    BEAT_UNKNOWN, /* no such node */
};
enum registry_beat registry_heartbeat(struct sched_loop *loop, const struct node_report *report,
                                      const struct node_report_load *load);
/* Takes over its usable resources once the store has them. */
void registry_take_resources(struct node *node, struct node_change *change);
/* Copies level, usage and what is loaded from a report into the live figures. */
void registry_take_live(struct sched *sched, struct node *node, const struct node_report *report);
/* Any message of a node is a sign of life. */
void registry_alive(struct sched_loop *loop, struct node *node);
/* Its connection closed: nothing is sent to it until the next sign of life, and its grace runs. */
void registry_left(struct sched_loop *loop, struct node *node, bool goodbye);

#endif
