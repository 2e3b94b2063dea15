/* The bodies of all requests and answers by name: the rows of their fields. Requests are read by
 * the same rows, the OpenAPI document (openapi.c) is generated from them, and end-to-end tests
 * check every answer, PROTOCOL.md's lists and the command line's columns against that document.
 *
 * A row's shape describes its value where its type does not say enough:
 *   string integer number boolean null any    as in JSON Schema
 *   id sha256 quota                           texts of a form
 *   [T] {T}                                   a list, an object with any names
 *   Name                                      another message
 *   =word                                     just this
 *   A|B                                       either
 */
#ifndef SERVER_MESSAGES_H
#define SERVER_MESSAGES_H

#include "base/schema.h"

/* A selection of a table's rows. The masks are of enum field_flag and the table's own flags. */
struct message_rows {
    const struct schema *schema;
    unsigned only;     /* rows with one of these flags; 0: all */
    unsigned except;   /* without rows that have one of these */
    unsigned required; /* always there; 0: FIELD_REQUIRED and FIELD_SENDER */
    unsigned nullable; /* flags of fields that may be null, unless they are integers */
    unsigned by_alias; /* flags of fields that are called by their alias */
};

struct message_type {
    const char *name;
    struct message_rows rows, more;
    bool request;      /* null is treated as absent */
    bool open;         /* may have other members */
    const char *shape; /* instead of rows */
    const char *(*word)(
        size_t index); /* instead of rows: one of these words; NULL after the last */
    const char *help;
    const char *example; /* JSON text, or NULL */
};

/* Answers that schema_write() writes by their rows; the structs are in store/deploys.h and
 * model/deploy.h. */
extern const struct schema copy_schema;          /* deploys_copy */
extern const struct schema indexed_copy_schema;  /* the same, for a deployment with several */
extern const struct schema failed_on_schema;     /* deploys_failure */
extern const struct schema history_entry_schema; /* deploys_event */
extern const struct schema held_schema;          /* deploys_held */
extern const struct schema view_row_schema;      /* deploy_row */

const struct message_type *message_type_at(size_t index); /* NULL after the last */
const struct message_type *message_type_find(struct str name);
/* The name of a field in this message; NULL: the message does not have it. */
const char *message_name(const struct message_rows *rows, const struct field *field);

#endif
