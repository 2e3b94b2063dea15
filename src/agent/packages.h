/* Packages that deployments name: each version is installed once on this machine, by a command from
 * the agent's configuration, into its own directory. The caller asks repeatedly until it is there.
 * One loop. */
#ifndef AGENT_PACKAGES_H
#define AGENT_PACKAGES_H

#include "agent/config.h"
#include "agent/run.h"

struct packages;

struct package {
    struct packages *packages;
    struct arena arena;
    struct str key; /* a file name: the valid part of the package's name, and a hash */
    struct str name, version;
    const char *dir;
    const char *mark; /* a file in it: installed; its time is the last use, for later agents */
    bool ready;
    int64_t failures;
    int64_t next_ms;   /* CLOCK_MONOTONIC: no attempt before */
    int64_t needed_ms; /* CLOCK_MONOTONIC: last requested */
    struct run *run;   /* the last attempt; NULL: none */
    char reason[512];  /* why it is not ready */
};

enum package_state {
    PACKAGE_READY,
    PACKAGE_BUSY,   /* its command runs */
    PACKAGE_FAILED, /* will be tried again after a pause */
};

/* `config` and what it points to must outlive it. */
struct packages *packages_new(struct loop *loop, const struct config *config, const char *data_dir,
                              struct runs *runs);
void packages_free(struct packages *packages);
bool packages_adopt(struct packages *packages, struct run *run); /* see copies_adopt */

/* Starts what has to be done. *ret_dir (owned by packages) is the directory; NULL if nothing is
 * installed, because no command is configured or no package is named. */
enum package_state packages_need(struct packages *packages, struct str name, struct str version,
                                 const char **ret_dir);
/* Call on every tick; `sure` is true while this node has a valid lease, so that what it should run
 * is known. Removes what has not been used for packages_unused_ms, except the last few. */
void packages_trim(struct packages *packages, bool sure);
/* NULL: not requested yet. Starts nothing. */
const struct package *packages_find(const struct packages *packages, struct str name,
                                    struct str version);
/* Replaces {name}, {version} and {dir} ("" for NULL) in the arguments of a command that is a list;
 * in the arena. A shell command is left alone: it gets the values in its environment, where nothing
 * can be taken for a command. False: not a command. */
bool packages_words(const struct json *command, struct str name, struct str version,
                    const char *dir, struct arena *arena, struct strs *ret_words);

#endif
