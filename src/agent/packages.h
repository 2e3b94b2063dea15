/* Packages that deployments name: each version is installed once on this machine, by a command from
 * the agent's configuration, into its own directory. The caller asks repeatedly until it is there.
 * One loop. */
#ifndef AGENT_PACKAGES_H
#define AGENT_PACKAGES_H

#include "agent/config.h"
#include "agent/run.h"

struct packages;

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

/* Begins what is to be done. *ret_dir (its own memory) is where it is; NULL when nothing is
 * installed for it, because no command is configured or no package is named. */
enum package_state packages_need(struct packages *packages, struct str name, struct str version,
                                 const char **ret_dir);
/* Every tick while this node has a good lease, so that what it should run is known; `sure` is false
 * when it has none. What nothing has used for packages_unused_ms goes, except the last few. */
void packages_trim(struct packages *packages, bool sure);
/* Where it is, if it is there; else NULL. Begins nothing. */
const char *packages_dir(const struct packages *packages, struct str name, struct str version);
/* Why it is not there, for a person. */
const char *packages_reason(const struct packages *packages, struct str name, struct str version);
/* {name}, {version} and {dir} ("" for NULL) in the arguments of a command that is a list; in the
 * arena. A text for the shell is left alone: what it needs is in its environment, where nothing can
 * be taken for a command. False: it is no command. */
bool packages_words(const struct json *command, struct str name, struct str version,
                    const char *dir, struct arena *arena, struct strs *ret_words);
/* How often in a row it could not be installed. */
int64_t packages_failures(const struct packages *packages, struct str name, struct str version);
/* The run of its last try, for its output; NULL: none. */
struct run *packages_run(const struct packages *packages, struct str name, struct str version);

#endif
