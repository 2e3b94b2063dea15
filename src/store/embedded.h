/* The in-process store: one thread decides and writes, another reads. */
#ifndef STORE_EMBEDDED_H
#define STORE_EMBEDDED_H

#include "store/store.h"

extern const struct store_backend embedded_backend;

/* For tests: checks every list, map and counter after each batch, and aborts on a contradiction. */
void embedded_check_always(struct store *store);

#endif
