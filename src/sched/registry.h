/* How nodes come, change and go. A change becomes true in the store, then in the keeper's table,
 * then live on every loop of this instance; only then is it answered. A heartbeat that says nothing
 * new writes a few atomics on its own loop: no copy, no lock, no call. */
#ifndef SCHED_REGISTRY_H
#define SCHED_REGISTRY_H

#include "sched/node_report.h"
#include "sched/sched.h"

enum change_kind {
    CHANGE_PUT,     /* register, or a heartbeat with news */
    CHANGE_FIGURES, /* what it would run right now, what of its resources is usable */
    CHANGE_ADMIN,   /* drain, undrain, cordon */
    CHANGE_DROP,    /* deregister, forgotten */
    CHANGE_WATCH,   /* what the keeper makes of its silence; offline = lost = a new epoch */
};

struct change {
    struct msg msg;
    struct store_op op;
    struct sched_loop *from;
    enum change_kind kind;
    struct str node_id;  /* memory of the owner of the change */
    struct facts *facts; /* PUT: ours until the keeper took it */
    enum node_health own;
    enum node_admin admin;
    enum node_health watch; /* WATCH */
    bool without_runs;      /* PUT: it is back and has none of what it ran: a new epoch */
    struct str admin_reason;
    /* PUT, FIGURES: what of its resources is usable, see resources_write(); ours until it is over;
     * NULL: as it was */
    char *resources;
    struct node_report report;           /* PUT: to remember its marks */
    enum err err;                        /* answer */
    struct problem why;                  /* answer */
    struct node *node;                   /* answer: PUT */
    struct change *next;                 /* the keeper's list of those who wait for an edition */
    void (*done)(struct change *change); /* on the loop it came from */
};

/* Fills the change from a report; checks it against what is known. Nothing is sent yet. */
enum err registry_prepare(struct sched_loop *loop, const struct node_report *report,
                          struct change *ret_change, struct problem *why);
void registry_prepare_figures(struct sched_loop *loop, const struct node_report *report,
                              struct node *node, struct change *ret_change);
/* Sends it; done() is called once, whatever happens. */
void registry_send(struct sched_loop *loop, struct change *change);

/* A new connection lists no runs, though the store has some: it began anew (a reboot, say). */
bool registry_came_back_empty(const struct sched_loop *loop, const struct node_report *report);

enum registry_beat {
    BEAT_TAKEN,   /* nothing new: done */
    BEAT_NEWS,    /* prepare and send a change */
    BEAT_FIGURES, /* only what it would run now, or what is usable, differs: prepare_figures */
    BEAT_UNKNOWN, /* no such node */
};
enum registry_beat registry_heartbeat(struct sched_loop *loop, const struct node_report *report,
                                      const struct node_report_load *load);
/* What of its resources is usable, once the store knows. */
void registry_take_resources(struct node *node, struct change *change);
/* Level, usage and what is loaded, of a report, into the live figures. */
void registry_take_live(struct sched *sched, struct node *node, const struct node_report *report);
/* Any message of a node is a sign of life. */
void registry_alive(struct sched_loop *loop, struct node *node);
/* Its connection closed: until the next sign of life nothing is sent to it, and its grace runs. */
void registry_left(struct sched_loop *loop, struct node *node, bool goodbye);

#endif
