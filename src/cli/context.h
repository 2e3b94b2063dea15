/* Contexts: servers by name, in ~/.config/berth/config.yaml ($XDG_CONFIG_HOME):
 *
 *   current: prod
 *   contexts:
 *     prod: {addr: "https://berth.example.net:7420", token_file: ~/prod.token}
 *
 * A flag wins over the environment, that over the context. A context's token and certificate go to
 * its own address only. */
#ifndef CLI_CONTEXT_H
#define CLI_CONTEXT_H

#include "cli/cli.h"

enum { CONTEXTS_MAX = 100, CONTEXT_NAME_MAX = 64 };

struct context {
    struct str name;
    struct str addr;
    struct str token_file; /* at == NULL, also for those below: none */
    struct str ca_file;
    struct str cert_file;
    struct str key_file;
};

struct contexts {
    const char *path;
    struct str current; /* at == NULL: none */
    struct context at[CONTEXTS_MAX];
    size_t count;
};

/* CLI_OK without a file: there are none. Otherwise reports what is wrong. In the cli's arena. */
int contexts_load(struct cli *cli, struct contexts **ret_contexts);
/* The one named by --context, BERTH_CONTEXT or `current`; NULL in *ret_context: none. */
int contexts_chosen(struct cli *cli, const struct context **ret_context);
/* A path from a context file: ~/ is the user's home. */
const char *context_path(struct cli *cli, struct str path);

#endif
