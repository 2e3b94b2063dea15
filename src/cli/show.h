/* JSON of the server as text for a person. */
#ifndef CLI_SHOW_H
#define CLI_SHOW_H

#include "base/json.h"
#include "cli/cli.h"
#include "cli/table.h"

/* A member as one cell: strings bare, lists joined with commas, null and absent empty. Harmless to
 * a terminal (table_harmless): whatever is shown of an answer goes through here. */
struct str show_text(struct cli *cli, const struct json *value);
struct str show_member(struct cli *cli, const struct json *obj, const char *name);
int64_t show_int(const struct json *obj, const char *name, int64_t fallback);
/* How long ago a wall time in ms was: "3s", "5m", "2h", "9d"; "" for 0 or absent. */
struct str show_age(struct cli *cli, const struct json *obj, const char *name, int64_t now_ms);
/* How long until then; "" for 0, absent or past. */
struct str show_until(struct cli *cli, const struct json *obj, const char *name, int64_t now_ms);
/* One "name: value" a line, in the order the server sent them; times also as an age. */
void show_object(struct cli *cli, const struct json *obj);
/* What became of one of a job's attempts: "attempt 1 on us: refuse, TYPE_NOT_ALLOWED". */
struct str show_attempt(struct cli *cli, const struct json *attempt);
/* What -o name prints: one id a line. */
void show_name(struct cli *cli, struct str id, FILE *to);
/* The answer as it came, with a newline. */
void show_raw(struct cli *cli, struct str reply);
/* JSON as it came, with a newline; in one line if `one_line`. What a terminal might obey can only
 * stand in strings, and is escaped there: it is the same JSON. */
void show_json(struct cli *cli, struct str json, bool one_line, FILE *to);

enum table_colour show_state_colour(struct str state);   /* of a job */
enum table_colour show_health_colour(struct str health); /* of a node */

#endif
