/* How a process is started, as people write it in files and specs: the program, its arguments and
 * its environment. */
#ifndef MODEL_ARGV_H
#define MODEL_ARGV_H

#include "base/schema.h"

enum {
    ARGV_BYTES_EACH = 131071, /* of one argument, and of "NAME=value" */
    ARGV_SECRETS_MAX = 32,
    ARGV_SECRET_NAME_MAX = 64
};

/* All four return false when the value has the wrong form; an absent value counts as empty. Strings
 * live in the arena. */

/* A list of texts and numbers. A text may be anything without a NUL, such as a script of several
 * lines. */
bool argv_list(const struct json *list, struct arena *arena, struct strs *ret_words);
/* {NAME: value} to "NAME=value"; a name is any text without "=", as for execve; a value is a text,
 * a number, true or false. */
bool argv_env(const struct json *obj, struct arena *arena, struct strs *ret_words);
/* A text is a shell command; a list of texts is a program and its arguments. Never empty. */
bool argv_command(const struct json *command, struct arena *arena, struct strs *ret_words);
/* Names of secrets, never their contents: [name, ...] becomes "name", {VARIABLE: name} becomes
 * "VARIABLE=name". A name is an id; a variable must be usable in a shell and not reserved by
 * berth. */
#define ARGV_SECRETS_RULE                                                                          \
    "secrets must be a list of at most 32 names, or an object {VARIABLE: name}; no variable that " \
    "begins with BERTH_."
bool argv_secrets(const struct json *given, struct arena *arena, struct strs *ret_words);

#endif
