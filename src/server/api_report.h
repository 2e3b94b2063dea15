/* The performance report: what the keeper tallied hour by hour, kept in files so that a restart
 * loses nothing, and told to whoever asks. The files: one for each hour below DATA_DIR/archive,
 * lines of JSON. Each instance has what it saw itself. */
#ifndef SERVER_API_REPORT_H
#define SERVER_API_REPORT_H

#include "server/rpc.h"

struct archive;

/* Reads the files into the keeper's hours; before the threads start. Without a directory it could
 * use the report is kept in memory only, which is logged. */
struct archive *archive_new(struct server *server);
void archive_tick(struct archive *archive); /* on the keeper's loop: saves now and then */
/* On the keeper of an instance that another one asks ("SINCE UNTIL"): its part, as lines of a
 * tally. */
void archive_answer(struct rpc *rpc);
/* After the threads ended: what they had not handed over yet is added, and all is saved. */
void archive_close(struct archive *archive);

#endif
