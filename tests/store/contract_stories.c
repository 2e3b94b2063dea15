/* Stories: calls, their answers, and the counters of n1 after each. */
#include "contract.h"

#include <stdio.h>
#include <string.h>

enum act {
    END,
    RESERVE, /* job, attempt, candidates */
    PUT,     /* job */
    ACK,     /* job, attempt, node */
    DONE,
    FAIL,
    REFUSED,     /* while other candidates are left */
    REFUSED_ALL, /* no candidate is left */
    SEND_FAILED,
    SEND_FAILED_ALL,
    EXPIRE,
    CANCEL,
    QUEUE_TIMEOUT,
    NO_CANDIDATE,
    RENEW,  /* all leases of the node */
    DUE,    /* ERR_OK if DUE lists the job, else ERR_STALE */
    PASS,   /* ms, during which the store is called */
    JUMP,   /* ms, during which it is not */
    REOPEN, /* close and open the store */
    EPOCH,  /* the node comes back without its runs: a new epoch */
    MAX,    /* `job` is the node's new max */
};

enum { DUP = 1000, ANY = -1 }; /* expected: ERR_OK and `duplicate`; not checked */

struct step {
    enum act act;
    int job; /* or ms */
    int attempt;
    const char *node;
    int want; /* enum err, or DUP */
    int state;
    int reserved; /* of n1, afterwards */
    int running;
};

struct story {
    const char *name;
    struct step steps[18];
};

#define S_NEW  JOB_NEW
#define S_SEL  JOB_SELECTING
#define S_DISP JOB_DISPATCHED
#define S_ACK  JOB_ACKED
#define S_RET  JOB_RETRYING
#define S_DONE JOB_DONE
#define S_FAIL JOB_FAILED

static const struct story stories[] = {
    {"the normal way",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {DONE, 1, 1, "n1", ERR_OK, S_DONE, 0, 0}}},
    {"first fit: the first full one is passed over",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {RESERVE, 2, 1, "n1", ERR_OK, S_DISP, 2, 0},
      {RESERVE, 3, 1, "n1 n2", ERR_OK, S_DISP, 2, 0},
      {ACK, 3, 1, "n2", ERR_OK, S_ACK, 2, 0}}},
    {"no fit: nothing is written",
     {{RESERVE, 1, 1, "n3 nowhere", ERR_ALL_FULL, ANY, 0, 0},
      {ACK, 1, 1, "n3", ERR_NOT_FOUND, ANY, 0, 0},
      {RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0}}},
    {"running counts as much as reserved",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {RESERVE, 2, 1, "n1", ERR_OK, S_DISP, 1, 1},
      {RESERVE, 3, 1, "n1", ERR_ALL_FULL, ANY, 1, 1},
      {DONE, 1, 1, "n1", ERR_OK, S_DONE, 1, 0},
      {RESERVE, 3, 1, "n1", ERR_OK, S_DISP, 2, 0}}},
    {"reserve replayed: the first answer, one slot",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {RESERVE, 1, 1, "n2 n1", DUP, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {RESERVE, 1, 1, "n2", DUP, S_ACK, 0, 1}}},
    {"reserve of the wrong attempt",
     {{RESERVE, 1, 2, "n1", ERR_NOT_FOUND, ANY, 0, 0},
      {RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {RESERVE, 1, 2, "n1", ERR_STALE, S_DISP, 1, 0},
      {FAIL, 1, 1, "n1", ERR_OK, S_RET, 0, 0},
      {RESERVE, 1, 1, "n1", ERR_STALE, S_RET, 0, 0},
      {RESERVE, 1, 3, "n1", ERR_STALE, S_RET, 0, 0},
      {RESERVE, 1, 2, "n1", ERR_OK, S_DISP, 1, 0}}},
    {"reserve of a finished job",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {DONE, 1, 1, "n1", ERR_OK, S_DONE, 0, 0},
      {RESERVE, 1, 1, "n1", ERR_STALE, S_DONE, 0, 0},
      {RESERVE, 1, 2, "n1", ERR_STALE, S_DONE, 0, 0}}},
    {"ACK again, and again",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {ACK, 1, 1, "n1", DUP, S_ACK, 0, 1},
      {ACK, 1, 1, "n1", DUP, S_ACK, 0, 1}}},
    {"ACK of another node or attempt",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n2", ERR_STALE, S_DISP, 1, 0},
      {ACK, 1, 2, "n1", ERR_STALE, S_DISP, 1, 0},
      {ACK, 9, 1, "n1", ERR_NOT_FOUND, ANY, 1, 0}}},
    {"ACK again after the node lost its runs: it must not start what has no slot",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {EPOCH, 0, 0, "n1", ERR_OK, ANY, 0, 0},
      {ACK, 1, 1, "n1", ERR_STALE, S_ACK, 0, 0}}},
    {"ACK after the reservation ran out, before any sweep",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {PASS, 5000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {ACK, 1, 1, "n1", ERR_STALE, S_DISP, 0, 0}}},
    {"ACK one ms before it ran out",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {PASS, 4999, 0, NULL, ERR_OK, ANY, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1}}},
    {"ACK after the end never starts work again",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {DONE, 1, 1, "n1", ERR_OK, S_DONE, 0, 0},
      {ACK, 1, 1, "n1", ERR_STALE, S_DONE, 0, 0}}},
    {"DONE twice frees one slot",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {RESERVE, 2, 1, "n1", ERR_OK, S_DISP, 2, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 1, 1},
      {ACK, 2, 1, "n1", ERR_OK, S_ACK, 0, 2},
      {DONE, 1, 1, "n1", ERR_OK, S_DONE, 0, 1},
      {DONE, 1, 1, "n1", DUP, S_DONE, 0, 1},
      {DONE, 1, 1, "n1", DUP, S_DONE, 0, 1}}},
    {"the ACK was lost: DONE and FAIL end the reservation",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {RESERVE, 2, 1, "n1", ERR_OK, S_DISP, 2, 0},
      {DONE, 1, 1, "n1", ERR_OK, S_DONE, 1, 0},
      {FAIL, 2, 1, "n1", ERR_OK, S_RET, 0, 0}}},
    {"FAIL twice spawns one retry",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {FAIL, 1, 1, "n1", ERR_OK, S_RET, 0, 0},
      {FAIL, 1, 1, "n1", DUP, S_RET, 0, 0},
      {RESERVE, 1, 2, "n1", ERR_OK, S_DISP, 1, 0},
      {FAIL, 1, 1, "n1", DUP, S_DISP, 1, 0},
      {ACK, 1, 2, "n1", ERR_OK, S_ACK, 0, 1},
      {FAIL, 1, 1, "n1", DUP, S_ACK, 0, 1},
      {FAIL, 1, 2, "n1", ERR_OK, S_FAIL, 0, 0},
      {FAIL, 1, 1, "n1", DUP, S_FAIL, 0, 0},
      {FAIL, 1, 2, "n1", DUP, S_FAIL, 0, 0}}},
    {"a contradicting end changes nothing",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {DONE, 1, 1, "n1", ERR_OK, S_DONE, 0, 0},
      {FAIL, 1, 1, "n1", ERR_STALE, S_DONE, 0, 0},
      {REFUSED, 1, 1, "n1", ERR_STALE, S_DONE, 0, 0},
      {CANCEL, 1, 0, NULL, ERR_STALE, S_DONE, 0, 0}}},
    {"DONE of an old attempt never finishes the new one",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {FAIL, 1, 1, "n1", ERR_OK, S_RET, 0, 0},
      {RESERVE, 1, 2, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 2, "n1", ERR_OK, S_ACK, 0, 1},
      {DONE, 1, 1, "n1", ERR_STALE, S_ACK, 0, 1},
      {DONE, 1, 2, "n1", ERR_OK, S_DONE, 0, 0}}},
    {"DONE of a node that does not hold the lease",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {DONE, 1, 1, "n2", ERR_STALE, S_ACK, 0, 1},
      {DONE, 1, 1, NULL, ERR_STALE, S_ACK, 0, 1}}},
    {"a refusal goes on in the same attempt",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {REFUSED, 1, 1, "n1", ERR_OK, S_SEL, 0, 0},
      {REFUSED, 1, 1, "n1", DUP, S_SEL, 0, 0},
      {RESERVE, 1, 1, "n2", ERR_OK, S_DISP, 0, 0},
      {REFUSED, 1, 1, "n1", DUP, S_DISP, 0, 0},
      {ACK, 1, 1, "n1", ERR_STALE, S_DISP, 0, 0},
      {ACK, 1, 1, "n2", ERR_OK, S_ACK, 0, 0}}},
    {"a refusal when nobody is left",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {REFUSED_ALL, 1, 1, "n1", ERR_OK, S_FAIL, 0, 0},
      {REFUSED_ALL, 1, 1, "n1", DUP, S_FAIL, 0, 0}}},
    {"no refusal after the ACK",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {REFUSED, 1, 1, "n1", ERR_STALE, S_ACK, 0, 1},
      {SEND_FAILED, 1, 1, "n1", ERR_STALE, S_ACK, 0, 1}}},
    {"a failed send",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {SEND_FAILED, 1, 1, "n2", ERR_STALE, S_DISP, 1, 0},
      {SEND_FAILED, 1, 1, "n1", ERR_OK, S_SEL, 0, 0},
      {SEND_FAILED, 1, 1, "n1", DUP, S_SEL, 0, 0},
      {RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {SEND_FAILED_ALL, 1, 1, NULL, ERR_OK, S_FAIL, 0, 0}}},
    {"a reserve nobody was told of is taken back, also when it has run out",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {SEND_FAILED, 1, 1, NULL, ERR_OK, S_SEL, 0, 0},
      {SEND_FAILED, 1, 1, NULL, DUP, S_SEL, 0, 0},
      {RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {PASS, 5000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {SEND_FAILED, 1, 1, NULL, ERR_OK, S_SEL, 0, 0},
      {RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {SEND_FAILED, 1, 1, NULL, DUP, S_ACK, 0, 1},
      {DONE, 1, 1, "n1", ERR_OK, S_DONE, 0, 0}}},
    {"nothing is taken back from a job that waits",
     {{PUT, 1, 1, NULL, ERR_OK, S_NEW, 0, 0},
      {SEND_FAILED, 1, 1, NULL, ERR_STALE, S_NEW, 0, 0},
      {RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0}}},
    {"a release after the reservation ran out moves nothing",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {PASS, 5000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {SEND_FAILED, 1, 1, "n1", ERR_STALE, S_DISP, 0, 0},
      {REFUSED, 1, 1, "n1", ERR_STALE, S_DISP, 0, 0},
      {DONE, 1, 1, "n1", ERR_STALE, S_DISP, 0, 0},
      {FAIL, 1, 1, "n1", ERR_STALE, S_DISP, 0, 0}}},
    {"a reservation runs out: the sweep retries once, then fails it",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {EXPIRE, 1, 1, NULL, ERR_STALE, S_DISP, 1, 0},
      {PASS, 5000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {EXPIRE, 1, 1, NULL, ERR_OK, S_RET, 0, 0},
      {EXPIRE, 1, 1, NULL, DUP, S_RET, 0, 0},
      {RESERVE, 1, 2, "n1", ERR_OK, S_DISP, 1, 0},
      {EXPIRE, 1, 1, NULL, DUP, S_DISP, 1, 0},
      {PASS, 5000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {EXPIRE, 1, 2, NULL, ERR_OK, S_FAIL, 0, 0},
      {EXPIRE, 1, 2, NULL, DUP, S_FAIL, 0, 0}}},
    {"a reserve clears what ran out by itself",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {RESERVE, 2, 1, "n1", ERR_OK, S_DISP, 2, 0},
      {PASS, 4000, 0, NULL, ERR_OK, ANY, 2, 0},
      {RESERVE, 3, 1, "n1", ERR_ALL_FULL, ANY, 2, 0},
      {PASS, 1000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {RESERVE, 3, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_STALE, S_DISP, 1, 0},
      {EXPIRE, 1, 1, NULL, ERR_OK, S_RET, 1, 0},
      {EXPIRE, 2, 1, NULL, ERR_OK, S_RET, 1, 0}}},
    {"a running lease runs out without heartbeats",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {PASS, 44999, 0, NULL, ERR_OK, ANY, 0, 1},
      {EXPIRE, 1, 1, NULL, ERR_STALE, S_ACK, 0, 1},
      {PASS, 1, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {DONE, 1, 1, "n1", ERR_STALE, S_ACK, 0, 0},
      {EXPIRE, 1, 1, NULL, ERR_OK, S_RET, 0, 0},
      {DONE, 1, 1, "n1", ERR_STALE, S_RET, 0, 0}}},
    {"heartbeats keep it for ever",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {PASS, 40000, 0, NULL, ERR_OK, ANY, 0, 1},
      {RENEW, 0, 0, "n1", ERR_OK, ANY, 0, 1},
      {PASS, 40000, 0, NULL, ERR_OK, ANY, 0, 1},
      {RENEW, 0, 0, "n1", ERR_OK, ANY, 0, 1},
      {PASS, 40000, 0, NULL, ERR_OK, ANY, 0, 1},
      {DONE, 1, 1, "n1", ERR_OK, S_DONE, 0, 0}}},
    {"a heartbeat does not revive what ran out",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {PASS, 45000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {RENEW, 0, 0, "n1", ERR_OK, ANY, ANY, ANY},
      {DONE, 1, 1, "n1", ERR_STALE, S_ACK, 0, 0}}},
    {"a heartbeat does not prolong a reservation",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {RENEW, 0, 0, "n1", ERR_OK, ANY, 1, 0},
      {PASS, 5000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {ACK, 1, 1, "n1", ERR_STALE, S_DISP, 0, 0}}},
    {"frozen for a minute: running leases have 15 s at least, reservations what was left",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {PASS, 40000, 0, NULL, ERR_OK, ANY, 0, 1},
      {RESERVE, 2, 1, "n1", ERR_OK, S_DISP, 1, 1},
      {JUMP, 60000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {EXPIRE, 1, 1, NULL, ERR_STALE, S_ACK, ANY, 1},
      {PASS, 4999, 0, NULL, ERR_OK, ANY, 1, 1},
      {EXPIRE, 2, 1, NULL, ERR_STALE, S_DISP, 1, 1},
      {PASS, 1, 0, NULL, ERR_OK, ANY, ANY, 1},
      {EXPIRE, 2, 1, NULL, ERR_OK, S_RET, 0, 1},
      {PASS, 9999, 0, NULL, ERR_OK, ANY, 0, 1},
      {EXPIRE, 1, 1, NULL, ERR_STALE, S_ACK, 0, 1},
      {PASS, 1, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {EXPIRE, 1, 1, NULL, ERR_OK, S_RET, 0, 0}}},
    {"reserved before a restart: who knows whether it was sent, so the last attempt is not used up",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {RESERVE, 2, 1, "n1", ERR_OK, S_DISP, 2, 0},
      {PASS, 1, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {REOPEN, 0, 0, NULL, ERR_OK, ANY, 2, 0},
      {ACK, 2, 1, "n1", ERR_OK, S_ACK, 1, 1}, /* the store knows that lease again */
      {EXPIRE, 1, 1, NULL, ERR_STALE, S_DISP, 1, 1},
      {PASS, 5000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {EXPIRE, 1, 1, NULL, ERR_OK, S_RET, 0, 1},
      {RESERVE, 1, 2, "n1", ERR_OK, S_DISP, 1, 1},
      {PASS, 1, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {REOPEN, 0, 0, NULL, ERR_OK, ANY, 1, 1},
      {PASS, 5000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {EXPIRE, 1, 2, NULL, ERR_OK, S_SEL, 0, 1},
      {RESERVE, 1, 2, "n1", ERR_OK, S_DISP, 1, 1},
      {PASS, 5000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {EXPIRE, 1, 2, NULL, ERR_OK, S_FAIL, 0, 1}}},
    {"frozen for six seconds: what was left of the lease is left",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {JUMP, 6000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {EXPIRE, 1, 1, NULL, ERR_STALE, S_ACK, 0, 1},
      {PASS, 44999, 0, NULL, ERR_OK, ANY, 0, 1},
      {EXPIRE, 1, 1, NULL, ERR_STALE, S_ACK, 0, 1},
      {PASS, 1, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {EXPIRE, 1, 1, NULL, ERR_OK, S_RET, 0, 0}}},
    {"frozen for a minute: a hold has what was left",
     {{PUT, 1, 1, NULL, ERR_OK, S_NEW, 0, 0},
      {JUMP, 60000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {DUE, 1, 0, NULL, ERR_STALE, S_NEW, 0, 0},
      {PASS, 14999, 0, NULL, ERR_OK, ANY, 0, 0},
      {DUE, 1, 0, NULL, ERR_STALE, S_NEW, 0, 0},
      {PASS, 1, 0, NULL, ERR_OK, ANY, 0, 0},
      {DUE, 1, 0, NULL, ERR_OK, S_NEW, 0, 0}}},
    {"the clock is set back: terms keep what they had left",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {JUMP, -600000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {RENEW, 0, 0, "n1", ERR_OK, ANY, 1, 0},
      {PASS, 4999, 0, NULL, ERR_OK, ANY, 1, 0},
      {EXPIRE, 1, 1, NULL, ERR_STALE, S_DISP, 1, 0},
      {PASS, 1, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {EXPIRE, 1, 1, NULL, ERR_OK, S_RET, 0, 0}}},
    {"cancel while it waits",
     {{PUT, 1, 1, NULL, ERR_OK, S_NEW, 0, 0},
      {CANCEL, 1, 0, NULL, ERR_OK, S_FAIL, 0, 0},
      {CANCEL, 1, 0, NULL, DUP, S_FAIL, 0, 0},
      {RESERVE, 1, 1, "n1", ERR_STALE, S_FAIL, 0, 0}}},
    {"cancel before the ACK frees the slot and refuses the ACK",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {CANCEL, 1, 0, NULL, ERR_OK, S_FAIL, 0, 0},
      {ACK, 1, 1, "n1", ERR_STALE, S_FAIL, 0, 0}}},
    {"cancel while it runs: the slot is kept until the node says so",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {CANCEL, 1, 0, NULL, ERR_OK, S_FAIL, 0, 1},
      {ACK, 1, 1, "n1", ERR_STALE, S_FAIL, 0, 1},
      {FAIL, 1, 1, "n2", ERR_STALE, S_FAIL, 0, 1},
      {FAIL, 1, 1, "n1", ERR_OK, S_FAIL, 0, 0},
      {FAIL, 1, 1, "n1", DUP, S_FAIL, 0, 0},
      {DONE, 1, 1, "n1", ERR_STALE, S_FAIL, 0, 0},
      {CANCEL, 1, 0, NULL, DUP, S_FAIL, 0, 0}}},
    {"cancel while it runs: a DONE that comes first to the node ends it too",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {CANCEL, 1, 0, NULL, ERR_OK, S_FAIL, 0, 1},
      {DONE, 1, 1, "n1", ERR_OK, S_FAIL, 0, 0},
      {DONE, 1, 1, "n1", DUP, S_FAIL, 0, 0}}},
    {"cancel while it runs, and the node is never heard of again",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {CANCEL, 1, 0, NULL, ERR_OK, S_FAIL, 0, 1},
      {EXPIRE, 1, 1, NULL, ERR_STALE, S_FAIL, 0, 1},
      {PASS, 45000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {FAIL, 1, 1, "n1", ERR_STALE, S_FAIL, 0, 0},
      {EXPIRE, 1, 1, NULL, ERR_OK, S_FAIL, 0, 0}}},
    {"cancel of a running job whose lease ran out",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {PASS, 45000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {CANCEL, 1, 0, NULL, ERR_OK, S_FAIL, 0, 0},
      {EXPIRE, 1, 0, NULL, ERR_STALE, S_FAIL, 0, 0}}},
    {"a job that waits: put, its hold lapses, whoever looks finds it",
     {{PUT, 1, 1, NULL, ERR_OK, S_NEW, 0, 0},
      {PUT, 1, 1, NULL, DUP, S_NEW, 0, 0},
      {DUE, 1, 0, NULL, ERR_STALE, S_NEW, 0, 0},
      {PASS, 15000, 0, NULL, ERR_OK, ANY, 0, 0},
      {DUE, 1, 0, NULL, ERR_OK, S_NEW, 0, 0},
      {RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {DUE, 1, 0, NULL, ERR_STALE, S_DISP, 1, 0}}},
    {"a time-out of the queue does not touch what left it",
     {{PUT, 1, 1, NULL, ERR_OK, S_NEW, 0, 0},
      {RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {QUEUE_TIMEOUT, 1, 0, NULL, ERR_STALE, S_DISP, 1, 0},
      {NO_CANDIDATE, 1, 0, NULL, ERR_STALE, S_DISP, 1, 0}}},
    {"a retry that finds nobody",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {FAIL, 1, 1, "n1", ERR_OK, S_RET, 0, 0},
      {NO_CANDIDATE, 1, 3, NULL, ERR_STALE, S_RET, 0, 0},
      {NO_CANDIDATE, 1, 2, NULL, ERR_OK, S_FAIL, 0, 0},
      {NO_CANDIDATE, 1, 2, NULL, DUP, S_FAIL, 0, 0},
      {FAIL, 1, 1, "n1", DUP, S_FAIL, 0, 0}}},
    {"a refused job that finds nobody",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {REFUSED, 1, 1, "n1", ERR_OK, S_SEL, 0, 0},
      {NO_CANDIDATE, 1, 1, NULL, ERR_OK, S_FAIL, 0, 0}}},
    {"the node is lost: nothing counts, late ends still end the job",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {RESERVE, 2, 1, "n1", ERR_OK, S_DISP, 2, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 1, 1},
      {EPOCH, 0, 0, "n1", ERR_OK, ANY, 0, 0},
      {RESERVE, 3, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {DONE, 1, 1, "n1", ERR_OK, S_DONE, 1, 0},
      {DONE, 1, 1, "n1", DUP, S_DONE, 1, 0},
      {ACK, 2, 1, "n1", ERR_STALE, S_DISP, 1, 0},
      {ACK, 3, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {PASS, 5000, 0, NULL, ERR_OK, ANY, 0, 1},
      {FAIL, 2, 1, "n1", ERR_STALE, S_DISP, 0, 1},
      {EXPIRE, 2, 1, NULL, ERR_OK, S_RET, 0, 1}}},
    {"the node is lost: the sweep need not wait, and then late ends are too late",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {EXPIRE, 1, 1, NULL, ERR_STALE, S_ACK, 0, 1},
      {EPOCH, 0, 0, "n1", ERR_OK, ANY, 0, 0},
      {EXPIRE, 1, 1, NULL, ERR_OK, S_RET, 0, 0},
      {DONE, 1, 1, "n1", ERR_STALE, S_RET, 0, 0},
      {RESERVE, 1, 2, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 2, "n1", ERR_OK, S_ACK, 0, 1}}},
    {"a restart: what an older epoch ran is due, and may still end",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {RESERVE, 2, 1, "n1", ERR_OK, S_DISP, 1, 1},
      {ACK, 2, 1, "n1", ERR_OK, S_ACK, 0, 2},
      {CANCEL, 2, 0, NULL, ERR_OK, S_FAIL, 0, 2},
      {EPOCH, 0, 0, "n1", ERR_OK, ANY, 0, 0},
      {REOPEN, 0, 0, NULL, ERR_OK, ANY, 0, 0},
      {FAIL, 2, 1, "n1", ERR_OK, S_FAIL, 0, 0},
      {EXPIRE, 1, 1, NULL, ERR_OK, S_RET, 0, 0}}},
    {"a heartbeat does not renew what an older epoch ran",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {EPOCH, 0, 0, "n1", ERR_OK, ANY, 0, 0},
      {PASS, 40000, 0, NULL, ERR_OK, ANY, 0, 0},
      {RENEW, 0, 0, "n1", ERR_OK, ANY, 0, 0},
      {PASS, 5000, 0, NULL, ERR_OK, ANY, 0, 0},
      {EXPIRE, 1, 1, NULL, ERR_OK, S_RET, 0, 0}}},
    {"max lowered below the load: nothing is killed, nothing new comes",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {RESERVE, 2, 1, "n1", ERR_OK, S_DISP, 2, 0},
      {MAX, 1, 0, "n1", ERR_OK, ANY, 2, 0},
      {RESERVE, 3, 1, "n1", ERR_ALL_FULL, ANY, 2, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 1, 1},
      {DONE, 1, 1, "n1", ERR_OK, S_DONE, 1, 0},
      {RESERVE, 3, 1, "n1", ERR_ALL_FULL, ANY, 1, 0},
      {DONE, 2, 1, "n1", ERR_OK, S_DONE, 0, 0},
      {RESERVE, 3, 1, "n1", ERR_OK, S_DISP, 1, 0}}},
    {"a restart: counters come back from the leases",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {RESERVE, 2, 1, "n1", ERR_OK, S_DISP, 2, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 1, 1},
      {RESERVE, 3, 1, "n2", ERR_OK, S_DISP, 1, 1},
      {DONE, 3, 1, "n2", ERR_OK, S_DONE, 1, 1},
      {REOPEN, 0, 0, NULL, ERR_OK, ANY, 1, 1},
      {RESERVE, 4, 1, "n1", ERR_ALL_FULL, ANY, 1, 1},
      {ACK, 2, 1, "n1", ERR_OK, S_ACK, 0, 2},
      {ACK, 2, 1, "n1", DUP, S_ACK, 0, 2},
      {DONE, 1, 1, "n1", ERR_OK, S_DONE, 0, 1},
      {DONE, 3, 1, "n2", DUP, S_DONE, 0, 1}}},
    {"a restart: a reservation keeps its end, a run gets a full term",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {PASS, 43000, 0, NULL, ERR_OK, ANY, 0, 1},
      {RESERVE, 2, 1, "n1", ERR_OK, S_DISP, 1, 1},
      {REOPEN, 0, 0, NULL, ERR_OK, ANY, 1, 1},
      {PASS, 4999, 0, NULL, ERR_OK, ANY, 1, 1},
      {EXPIRE, 2, 1, NULL, ERR_STALE, S_DISP, 1, 1},
      {PASS, 1, 0, NULL, ERR_OK, ANY, ANY, 1},
      {EXPIRE, 2, 1, NULL, ERR_OK, S_RET, 0, 1},
      {PASS, 39999, 0, NULL, ERR_OK, ANY, 0, 1},
      {EXPIRE, 1, 1, NULL, ERR_STALE, S_ACK, 0, 1},
      {PASS, 1, 0, NULL, ERR_OK, ANY, 0, ANY},
      {EXPIRE, 1, 1, NULL, ERR_OK, S_RET, 0, 0}}},
    {"a restart: what waited is due at once",
     {{PUT, 1, 1, NULL, ERR_OK, S_NEW, 0, 0},
      {RESERVE, 2, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {FAIL, 2, 1, "n1", ERR_OK, S_RET, 0, 0},
      {DUE, 1, 0, NULL, ERR_STALE, S_NEW, 0, 0},
      {REOPEN, 0, 0, NULL, ERR_OK, ANY, 0, 0},
      {DUE, 1, 0, NULL, ERR_OK, S_NEW, 0, 0},
      {DUE, 2, 0, NULL, ERR_OK, S_RET, 0, 0},
      {FAIL, 2, 1, "n1", DUP, S_RET, 0, 0},
      {RESERVE, 2, 2, "n1", ERR_OK, S_DISP, 1, 0}}},
    {"a restart: a cancelled job that still runs keeps its slot",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {CANCEL, 1, 0, NULL, ERR_OK, S_FAIL, 0, 1},
      {REOPEN, 0, 0, NULL, ERR_OK, ANY, 0, 1},
      {FAIL, 1, 1, "n1", ERR_OK, S_FAIL, 0, 0},
      {REOPEN, 0, 0, NULL, ERR_OK, ANY, 0, 0},
      {FAIL, 1, 1, "n1", DUP, S_FAIL, 0, 0}}},
    {"a restart: a slot that ran out and was taken belongs to who took it",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {ACK, 1, 1, "n1", ERR_OK, S_ACK, 0, 1},
      {RESERVE, 2, 1, "n1", ERR_OK, S_DISP, 1, 1},
      {ACK, 2, 1, "n1", ERR_OK, S_ACK, 0, 2},
      {CANCEL, 2, 0, NULL, ERR_OK, S_FAIL, 0, 2},
      {PASS, 45000, 0, NULL, ERR_OK, ANY, ANY, ANY},
      {RESERVE, 3, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {RESERVE, 4, 1, "n1", ERR_OK, S_DISP, 2, 0},
      {REOPEN, 0, 0, NULL, ERR_OK, ANY, 2, 0},
      {DONE, 1, 1, "n1", ERR_STALE, S_ACK, 2, 0},
      {EXPIRE, 1, 1, NULL, ERR_OK, S_RET, 2, 0},
      {FAIL, 2, 1, "n1", ERR_STALE, S_FAIL, 2, 0}}},
    {"a restart: the epoch is kept",
     {{RESERVE, 1, 1, "n1", ERR_OK, S_DISP, 1, 0},
      {EPOCH, 0, 0, "n1", ERR_OK, ANY, 0, 0},
      {REOPEN, 0, 0, NULL, ERR_OK, ANY, 0, 0},
      {ACK, 1, 1, "n1", ERR_STALE, S_DISP, 0, 0},
      {DONE, 1, 1, "n1", ERR_OK, S_DONE, 0, 0}}},
};

const size_t contract_story_count = COUNT_OF(stories);

const char *contract_story_name(size_t at)
{
    return stories[at].name;
}

static uint64_t job_of(const struct step *step)
{
    return 1000 + (uint64_t)step->job;
}

static enum err finish(struct rig *rig, const struct step *step, enum store_outcome outcome)
{
    return rig_finish(rig, outcome, job_of(step), step->attempt, step->node, NULL);
}

static enum err finish_last(struct rig *rig, const struct step *step, enum store_outcome outcome)
{
    struct store_op op = {.verb = STORE_FINISH,
                          .job = job_of(step),
                          .attempt = step->attempt,
                          .node = str_of(step->node)};

    op.u.settle.outcome = outcome;
    op.u.settle.owner = rig_owner(rig);
    rig->op = op;
    return rig_call(rig, &rig->op);
}

static enum err other_verb(struct rig *rig, const struct step *step)
{
    struct store_op op = {.job = job_of(step), .node = str_of(step->node)};

    if (step->act == RENEW) {
        op.verb = STORE_RENEW;
        op.u.renew.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
    } else {
        op.verb = STORE_NODE_PUT;
        op.u.node_put.own = op.u.node_put.health = NODE_READY;
        op.u.node_put.max = step->act == MAX ? step->job : 2;
        op.u.node_put.new_epoch = step->act == EPOCH;
    }
    rig->op = op;
    return rig_call(rig, &rig->op);
}

static enum err look_due(struct rig *rig, const struct step *step)
{
    struct store_due due[8];
    size_t count = rig_due(rig, due, COUNT_OF(due));

    assert_int_equal(rig_get(rig, job_of(step)), ERR_OK);
    for (size_t i = 0; i < count; i++)
        if (due[i].id == job_of(step))
            return ERR_OK;
    return ERR_STALE;
}

static enum err play(struct rig *rig, const struct step *step)
{
    switch (step->act) {
    case RESERVE:
        return rig_reserve(rig, job_of(step), step->attempt, step->node);
    case PUT:
        return rig_put(rig, job_of(step));
    case ACK:
        return rig_commit(rig, job_of(step), step->attempt, step->node);
    case DONE:
        return finish(rig, step, STORE_DONE);
    case FAIL:
        return finish(rig, step, STORE_FAIL);
    case REFUSED:
        return finish(rig, step, STORE_REFUSED);
    case REFUSED_ALL:
        return finish_last(rig, step, STORE_REFUSED);
    case SEND_FAILED:
        return finish(rig, step, STORE_SEND_FAILED);
    case SEND_FAILED_ALL:
        return finish_last(rig, step, STORE_SEND_FAILED);
    case EXPIRE:
        return finish(rig, step, STORE_EXPIRE);
    case CANCEL:
        return finish(rig, step, STORE_CANCEL);
    case QUEUE_TIMEOUT:
        return finish(rig, step, STORE_QUEUE_TIMEOUT);
    case NO_CANDIDATE:
        return finish(rig, step, STORE_NO_CANDIDATE);
    case DUE:
        return look_due(rig, step);
    case PASS:
        rig_pass(rig, step->job);
        return ERR_OK;
    case JUMP:
        rig_jump(step->job);
        return ERR_OK;
    case REOPEN:
        contract_backend->close(rig);
        contract_backend->open(rig);
        return ERR_OK;
    default:
        return other_verb(rig, step);
    }
}

static bool was_duplicate(const struct store_op *op)
{
    return op->verb == STORE_RESERVE || op->verb == STORE_PUT ? op->u.put.duplicate
                                                              : op->u.settle.duplicate;
}

/* assert_int_equal that names the step. */
static void expect(const struct story *story, const struct step *step, const char *what, int got,
                   int want)
{
    if (got != want)
        fail_msg("step %d of \"%s\": %s is %d, not %d", (int)(step - story->steps) + 1, story->name,
                 what, got, want);
}

static void check(struct rig *rig, const struct story *story, const struct step *step, enum err err)
{
    bool settles = step->act >= RESERVE && step->act <= NO_CANDIDATE;
    enum err want = step->want == DUP ? ERR_OK : (enum err)step->want;

    if (err != want)
        fail_msg("step %d of \"%s\": %s, not %s", (int)(step - story->steps) + 1, story->name,
                 err_name(err), err_name(want));
    if (settles)
        expect(story, step, "duplicate", err == ERR_OK && was_duplicate(&rig->op),
               step->want == DUP);
    if (step->state != ANY) {
        expect(story, step, "job", (int)rig->op.head.id, (int)job_of(step));
        expect(story, step, "state", rig->op.head.state, step->state);
    }
    if (step->act == JUMP)
        return; /* reading the counters would be the first call after the pause */
    if (step->reserved != ANY)
        expect(story, step, "reserved", rig_counts(rig, "n1").reserved, step->reserved);
    if (step->running != ANY)
        expect(story, step, "running", rig_counts(rig, "n1").running, step->running);
}

void contract_story(void **state)
{
    struct rig *rig = *state;
    const struct story *story = &stories[rig->story];

    for (const struct step *step = story->steps; step->act != END; step++)
        check(rig, story, step, play(rig, step));
}
