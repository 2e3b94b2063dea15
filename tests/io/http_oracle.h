/* http-parser as the second opinion on requests. It reads more than we do, so it cannot say what to
 * refuse; but what we accept it must accept too, and see the same in it. */
#ifndef TESTS_IO_HTTP_ORACLE_H
#define TESTS_IO_HTTP_ORACLE_H

#include "base/str.h"

/* Appends one line for each whole request in `bytes`:
 * method, query, names and values of the headers (trimmed, without Host), body. */
void http_oracle(struct str bytes, struct buf *ret_lines);

/* Parts of such a line, so that others can write the same. */
void http_oracle_line(struct buf *lines, const char *method, struct str query);
void http_oracle_header(struct buf *lines, struct str name, struct str value);
void http_oracle_body(struct buf *lines, struct str body); /* ends the line */

#endif
