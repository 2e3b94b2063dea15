/* One field of a schema: reading it, saying what it expects, showing it. For schema.c and conf.c.
 */
#ifndef BASE_FIELD_H
#define BASE_FIELD_H

#include "base/schema.h"

/* Both store at `out + field->offset`, and leave it alone when they return false because the value
 * is not what field_expect() says. FIELD_OBJ is not read here: it has fields of its own. */
bool field_from_json(const struct field *field, const struct json *value, void *out,
                     struct arena *arena);
/* A preset, a flag or an environment variable; strings point into `text`. */
bool field_from_text(const struct field *field, struct str text, void *out, struct arena *arena);

bool field_takes_null(const struct field *field);                   /* null is a value: off */
void field_expect(const struct field *field, struct buf *ret_text); /* "must be true or false" */
void field_show(const struct field *field, const void *out, struct jsonw *w);
/* Have both structs the same value? Inside FIELD_OBJ secrets all look the same. */
bool field_same(const struct field *field, const void *a, const void *b);
void field_copy(const struct field *field, const void *from, void *to);

#endif
