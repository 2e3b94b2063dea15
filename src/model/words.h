/* Words for a process, as people write them in files and specs: what to run, with which arguments
 * and which environment. */
#ifndef MODEL_WORDS_H
#define MODEL_WORDS_H

#include "base/schema.h"

enum { WORDS_BYTES_EACH = 131071 }; /* of one word, and of "NAME=value" */

/* All three are false when the value is not such a list; absent is none. Strings live in the arena.
 */

/* A list of texts and numbers. Any text without a NUL: a script may have several lines. */
bool words_list(const struct json *list, struct arena *arena, struct strs *ret_words);
/* {NAME: value} to "NAME=value"; a name is any text without "=", as for execve; a value is a text,
 * a number, true or false. */
bool words_env(const struct json *obj, struct arena *arena, struct strs *ret_words);
/* A text is for the shell, a list of texts the program and its arguments. Never without a word. */
bool words_command(const struct json *command, struct arena *arena, struct strs *ret_words);

#endif
