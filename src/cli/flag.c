/* Parses flags by the tables of a command. Knows nothing about their meaning. */
#include "cli/flag.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

enum { FLAG_NAMES_MAX = 64, FLAG_WORD_MAX = 32 };

struct reader {
    const struct flag_set *sets;
    size_t set_count;
    int argc;
    char **argv;
    int at;
    struct arena *arena;
    struct problem *why;
};

/* By its letter, or by its name if that is 0. */
static const struct flag *find(const struct reader *r, char letter, struct str name)
{
    for (size_t s = 0; s < r->set_count; s++)
        for (size_t i = 0; i < r->sets[s].count; i++) {
            const struct flag *flag = &r->sets[s].flags[i];

            if (letter ? flag->letter == letter : str_is(name, flag->name))
                return flag;
        }
    return NULL;
}

static enum err unknown(const struct reader *r, const char *typed, struct str name)
{
    const char *names[FLAG_NAMES_MAX];
    const char *near;
    size_t count = 0;

    for (size_t s = 0; s < r->set_count; s++)
        for (size_t i = 0; i < r->sets[s].count && count < FLAG_NAMES_MAX; i++)
            names[count++] = r->sets[s].flags[i].name;
    near = flag_nearest(arena_cstr(r->arena, name), names, count);
    if (near)
        return problem_set(r->why, ERR_BAD_REQUEST, "flag", "unknown flag %s; did you mean --%s?",
                           typed, near);
    return problem_set(r->why, ERR_BAD_REQUEST, "flag", "unknown flag %s", typed);
}

/* A bound as it could be typed: a time in the largest unit that divides it. */
static const char *bound_text(const struct reader *r, const struct flag *flag, int64_t value)
{
    static const struct {
        int64_t ms;
        const char *unit;
    } units[] = {{86400000, "d"}, {3600000, "h"}, {60000, "m"}, {1000, "s"}, {1, "ms"}};
    size_t at = 0;

    if (flag->type == FLAG_INT || value == 0)
        return arena_fmt(r->arena, "%" PRId64, value).at;
    while (value % units[at].ms != 0)
        at++;
    assert(at < COUNT_OF(units));
    return arena_fmt(r->arena, "%" PRId64 "%s", value / units[at].ms, units[at].unit).at;
}

static bool repeats(const struct flag *flag)
{
    return flag->type == FLAG_LIST || flag->type == FLAG_TERMS;
}

/* The value after '=', or the next word. An optional value is taken from the next word only if that
 * parses as a time, so that both `--wait -- command` and `--wait 30s` work as expected. */
static enum err read_value(struct reader *r, struct flag_given *given, const char *inline_value)
{
    const struct flag *flag = given->flag;
    const char *next = r->at + 1 < r->argc ? r->argv[r->at + 1] : NULL;
    bool is_time = flag->type != FLAG_INT;
    struct str text;
    int64_t ms;

    given->num = -1;
    given->text = inline_value;
    if (flag->type == FLAG_SWITCH) {
        if (inline_value)
            return problem_set(r->why, ERR_BAD_REQUEST, "flag", "--%s takes no value", flag->name);
        return ERR_OK;
    }
    if (!given->text && flag->type == FLAG_MS_MAYBE) {
        if (!next || !str_duration_ms(str_of(next), &ms))
            return ERR_OK;
    }
    if (!given->text) {
        if (!next)
            return problem_set(r->why, ERR_BAD_REQUEST, "flag", "--%s needs a value (%s)",
                               flag->name, flag->value);
        given->text = next;
        r->at++;
    }
    if (flag->type == FLAG_TEXT || repeats(flag))
        return ERR_OK;
    text = str_of(given->text);
    if (!(is_time ? str_duration_ms(text, &given->num) : str_int(text, &given->num)))
        return problem_set(r->why, ERR_BAD_REQUEST, "flag",
                           is_time ? "--%s takes a time like 30s, 500ms or 2m, not \"%s\""
                                   : "--%s takes a whole number, not \"%s\"",
                           flag->name, given->text);
    if ((flag->min || flag->max) && (given->num < flag->min || given->num > flag->max))
        return problem_set(r->why, ERR_BAD_REQUEST, "flag", "--%s must be from %s to %s, not %s",
                           flag->name, bound_text(r, flag, flag->min),
                           bound_text(r, flag, flag->max), given->text);
    return ERR_OK;
}

static enum err read_flag(struct reader *r, struct flag_line *line)
{
    char *typed = r->argv[r->at];
    const char *inline_value = strchr(typed, '=');
    struct str name = {.at = typed + 2};
    struct flag_given *given = &line->given[line->given_count];

    assert(typed[0] == '-' && typed[1] != 0);
    if (typed[1] != '-') {
        given->flag = find(r, typed[1], STR_NONE);
        inline_value = typed[2] == '=' ? typed + 3 : typed[2] ? typed + 2 : NULL;
        name = (struct str){.at = typed + 1, .len = strlen(typed + 1)};
    } else {
        name.len = inline_value ? (size_t)(inline_value - name.at) : strlen(name.at);
        inline_value = inline_value ? inline_value + 1 : NULL;
        given->flag = find(r, 0, name);
    }
    if (!given->flag)
        return unknown(r, typed, name);
    if (!repeats(given->flag))
        for (size_t i = 0; i < line->given_count; i++)
            if (line->given[i].flag == given->flag)
                return problem_set(r->why, ERR_BAD_REQUEST, "flag", "--%s was given twice",
                                   given->flag->name);
    line->given_count++;
    assert(line->given_count <= (size_t)r->argc);
    return read_value(r, given, inline_value);
}

enum err flag_parse(const struct flag_set *sets, size_t set_count, int argc, char **argv,
                    struct arena *arena, struct flag_line *ret_line, struct problem *why)
{
    struct reader r = {.sets = sets,
                       .set_count = set_count,
                       .argc = argc,
                       .argv = argv,
                       .arena = arena,
                       .why = why};
    struct flag_line line = {.given = arena_array(arena, struct flag_given, (size_t)argc + 1),
                             .args = arena_array(arena, char *, (size_t)argc + 1)};

    assert(argc >= 0 && set_count > 0);
    for (r.at = 0; r.at < argc; r.at++) {
        char *word = argv[r.at];
        enum err err;

        if (strcmp(word, "--") == 0) {
            line.rest = argv + r.at + 1;
            line.rest_count = argc - r.at - 1;
            break;
        }
        if (word[0] != '-' || word[1] == 0) { /* "-" alone is an argument: standard input */
            line.args[line.arg_count++] = word;
            continue;
        }
        err = read_flag(&r, &line);
        if (err)
            return err;
    }
    assert(line.arg_count + line.rest_count <= argc);
    *ret_line = line;
    return ERR_OK;
}

const char *flag_nearest(const char *typed, const char *const *names, size_t count)
{
    const char *best = NULL;
    size_t best_far = SIZE_MAX, len = strlen(typed);

    if (len == 0 || len > FLAG_WORD_MAX)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t near_enough = len < 3 ? 1 : len < 6 ? 2 : 3;
        size_t far;

        if (strlen(names[i]) > FLAG_WORD_MAX)
            continue;
        far = str_distance(str_of(typed), str_of(names[i]));
        if (len >= 2 && strncmp(names[i], typed, len) == 0 && far > 1)
            far = 1; /* the beginning of a name: the most likely match */
        if (far <= near_enough && far < best_far && far < strlen(names[i])) {
            best = names[i];
            best_far = far;
        }
    }
    return best;
}
