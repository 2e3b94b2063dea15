/* Asking the server one thing and printing its answer in the form that was asked for. */
#ifndef CLI_ANSWER_H
#define CLI_ANSWER_H

#include "cli/cli.h"
#include "cli/request.h"

/* GETs one thing: a field a line, its JSON, or with -o name its member `id`. */
int answer_show(struct cli *cli, const char *path, const char *id);
/* POSTs a body (freed; NULL: {}) and says what that did: the sentence, the JSON that came back, or
 * with -o name the command's first argument. */
__attribute__((format(printf, 4, 5))) int answer_post(struct cli *cli, const char *path,
                                                      struct buf *body, const char *fmt, ...);
/* The same for any call. */
__attribute__((format(printf, 3, 4))) int answer_done(struct cli *cli, struct ask *ask,
                                                      const char *fmt, ...);
/* "/v1/nodes/" and the command's first argument, escaped, and what follows. */
const char *answer_path(struct cli *cli, const char *collection, const char *suffix);

#endif
