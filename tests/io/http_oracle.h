/* http-parser as a reference for requests. It accepts more than we do, so it cannot say what to
 * refuse; but it must accept all that we accept, and read the same from it. */
#ifndef TESTS_IO_HTTP_ORACLE_H
#define TESTS_IO_HTTP_ORACLE_H

#include "base/str.h"

/* Appends one line for each complete request in `bytes`: method, query, names and values of the
 * headers (trimmed, without Host), body. */
void http_oracle(struct str bytes, struct buf *ret_lines);

/* Parts of such a line, so that our reader can write the same. */
void http_oracle_line(struct buf *lines, const char *method, struct str query);
void http_oracle_header(struct buf *lines, struct str name, struct str value);
void http_oracle_body(struct buf *lines, struct str body); /* ends the line */

#endif
