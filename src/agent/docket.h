/* The table of deployments as a claimer needs it: who owns what, whose lease is good, and what
 * failed where. Read page by page, and kept while its version stays the same. */
#ifndef AGENT_DOCKET_H
#define AGENT_DOCKET_H

#include "base/json.h"
#include "model/deploy.h"

struct docket {
    int64_t version; /* of the rows; -1: they are not whole */
    struct deploy_row *rows;
    size_t row_count;
    enum deploy_mode mode;
    bool approved;       /* an operator lets nodes claim although most of them are gone */
    size_t page;         /* how many of this reading came, */
    int64_t oldest_page; /* and the oldest version among them */
    int64_t facts;       /* the number of leases and failures; -1: the server has none for them */
    int64_t facts_ms, now_ms; /* the database's clock when they came, and now */
    const struct json *leases;
    const struct json *failures;
    struct arena arena;       /* of the rows */
    struct arena marks_arena; /* which rows failed where */
    struct arena facts_arena; /* of leases and failures: those change without a new version */
};

void docket_init(struct docket *docket);
void docket_done(struct docket *docket);
/* What is known may be wrong: all of it is read again. */
void docket_forget(struct docket *docket);
/* A reading begins: if_version and if_facts, into an open object. */
void docket_write(struct docket *docket, struct jsonw *w);
/* A page of it. *ret_cursor (in `arena`) is for the next one; empty: that was the last, and the
 * rows are whole. */
void docket_take(struct docket *docket, const struct json *reply, struct arena *arena,
                 struct str *ret_cursor);
/* How long its lease was still good when the reading came; negative: it was not, as far as this
 * node knows. The server has the last word; this saves the question. */
int64_t docket_left_ms(const struct docket *docket, struct str address);
/* Did it stop in peace? */
bool docket_goodbye(const struct docket *docket, struct str address);

#endif
