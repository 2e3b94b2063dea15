/* The performance report: what the keeper tallied hour by hour, kept in files so that a restart
 * loses nothing, and returned to callers. Files: one per hour below DATA_DIR/report, as lines of
 * JSON. Each instance has what it saw itself. */
#ifndef SERVER_API_REPORT_H
#define SERVER_API_REPORT_H

#include "server/rpc.h"

struct archive;

/* Reads the files into the keeper's hours; call before the threads start. Without a usable
 * directory the report is kept in memory only, which is logged. */
struct archive *archive_new(struct server *server);
void archive_tick(struct archive *archive); /* on the keeper's loop: saves now and then */
/* On the keeper, when another instance asks for our part ("SINCE UNTIL"): answers with lines of a
 * tally. */
void archive_answer(struct rpc *rpc);
/* After the threads ended: adds what they had not handed over yet, and saves everything. */
void archive_close(struct archive *archive);

#endif
