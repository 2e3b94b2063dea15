/* A short text that one thread writes and any thread reads, without a lock. Who reads while it is
 * written may get half of the old and half of the new one: for texts where that harms nobody. */
#ifndef STORE_TEXTBOX_H
#define STORE_TEXTBOX_H

#include <stdatomic.h>
#include <stdint.h>

enum { TEXTBOX_WORDS = 20, TEXTBOX_SIZE = TEXTBOX_WORDS * 8 }; /* bytes, with the NUL */

struct textbox {
    _Atomic uint64_t words[TEXTBOX_WORDS];
};

void textbox_put(struct textbox *box, const char *text); /* cut if it is longer */
void textbox_get(const struct textbox *box, char to[TEXTBOX_SIZE]);

#endif
