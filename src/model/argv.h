/* What a process is started with, as people write it in files and specs: what to run, with which
 * arguments and which environment. */
#ifndef MODEL_ARGV_H
#define MODEL_ARGV_H

#include "base/schema.h"

enum {
    ARGV_BYTES_EACH = 131071, /* of one argument, and of "NAME=value" */
    ARGV_SECRETS_MAX = 32,
    ARGV_SECRET_NAME_MAX = 64
};

/* All four are false when the value is not such a list; absent is none. Strings live in the arena.
 */

/* A list of texts and numbers. Any text without a NUL: a script may have several lines. */
bool argv_list(const struct json *list, struct arena *arena, struct strs *ret_words);
/* {NAME: value} to "NAME=value"; a name is any text without "=", as for execve; a value is a text,
 * a number, true or false. */
bool argv_env(const struct json *obj, struct arena *arena, struct strs *ret_words);
/* A text is for the shell, a list of texts the program and its arguments. Never empty. */
bool argv_command(const struct json *command, struct arena *arena, struct strs *ret_words);
/* Names of secrets, never what they hold: [name, ...] to "name", {VARIABLE: name} to
 * "VARIABLE=name". A name is an id; a variable is one that a shell can use, and not berth's own. */
#define ARGV_SECRETS_RULE                                                                          \
    "secrets must be a list of at most 32 names, or an object {VARIABLE: name}; no variable that " \
    "begins with BERTH_."
bool argv_secrets(const struct json *given, struct arena *arena, struct strs *ret_words);

#endif
