/* The format of what is kept in Redis. It is a number: another layout of a record, or another key
 * for the same thing, is another format. `meta.format` tells which one is written and which ones
 * the records there have, and every call looks at it before anything else (lua/batch.lua): who
 * cannot read them all changes nothing and says so. Which one is written is agreed upon by those
 * who are there (lua/instance.lua); what has another one is written again (lua/chores.lua). */
#ifndef STORE_FORMAT_H
#define STORE_FORMAT_H

#include "store/record.h"

/* `text` is what stands in `meta.format`; at == NULL: nothing, in a store that has data. */
bool format_is_readable(struct str text);
/* Why it is not, and what to do: a part of a sentence. */
void format_explain(struct str text, char *to, size_t size);

#endif
