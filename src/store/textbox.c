/* Texts in words of eight bytes, each written and read at once. */
#include "store/textbox.h"

#include "base/str.h"

#include <string.h>

void textbox_put(struct textbox *box, const char *text)
{
    char bytes[TEXTBOX_SIZE] = "";
    size_t len = strnlen(text, sizeof bytes - 1);

    memcpy(bytes, text, len);
    for (size_t i = 0; i < TEXTBOX_WORDS; i++) {
        uint64_t word;

        memcpy(&word, bytes + i * 8, 8);
        atomic_store_explicit(&box->words[i], word, memory_order_relaxed);
    }
}

void textbox_get(const struct textbox *box, char to[TEXTBOX_SIZE])
{
    for (size_t i = 0; i < TEXTBOX_WORDS; i++) {
        uint64_t word = atomic_load_explicit(&box->words[i], memory_order_relaxed);

        memcpy(to + i * 8, &word, 8);
    }
    to[TEXTBOX_SIZE - 1] = '\0';
}
