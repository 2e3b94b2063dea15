/* A .tar.gz made of texts, in memory first: each file's size stands before it. */
#ifndef CLI_TARBALL_H
#define CLI_TARBALL_H

#include "base/err.h"
#include "base/str.h"

struct tarball {
    struct buf tar; /* not packed yet */
    int64_t mtime_s;
};

void tarball_add(struct tarball *tarball, const char *name, struct str text); /* name: < 100 */
enum err tarball_pack(struct tarball *tarball, struct buf *ret_gz);
void tarball_free(struct tarball *tarball);

#endif
