/* Label selectors: `key=value[,key=value]*`, all must match. */
#ifndef MODEL_SELECTOR_H
#define MODEL_SELECTOR_H

#include "base/json.h"

enum { SELECTOR_WORD_MAX = 64 };

/* Keys and values are 1 to 64 of [A-Za-z0-9_.-], no key twice; empty is valid. */
bool selector_valid(struct str selector);
/* `labels` is a JSON object of texts (NULL: none). An empty selector matches all, an invalid one
 * nothing. */
bool selector_match(struct str selector, const struct json *labels);
/* Appends a valid one with its terms in an order of ours: those that ask for the same are equal. */
void selector_sorted(struct str selector, struct buf *to);

#endif
