/* Matching labels, without allocation: a selector is read again each time, it is short. */
#include "model/selector.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static bool word_valid(struct str word)
{
    if (word.len < 1 || word.len > SELECTOR_WORD_MAX)
        return false;
    for (size_t i = 0; i < word.len; i++) {
        char c = word.at[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '.' || c == '-'))
            return false;
    }
    return true;
}

/* Takes one term off the front. False: it is not a term. */
static bool take_term(struct str *rest, struct str *ret_key, struct str *ret_value)
{
    struct str term = str_cut(rest, ',');

    if (!term.len || !memchr(term.at, '=', term.len))
        return false;
    *ret_key = str_cut(&term, '=');
    *ret_value = term;
    return word_valid(*ret_key) && word_valid(*ret_value);
}

static bool key_stands_in(struct str key, struct str terms)
{
    struct str other, value;

    while (terms.len)
        if (take_term(&terms, &other, &value) && str_eq(other, key))
            return true;
    return false;
}

bool selector_valid(struct str selector)
{
    struct str rest = selector, key, value;

    if (selector.len && selector.at[selector.len - 1] == ',')
        return false;
    while (rest.len)
        if (!take_term(&rest, &key, &value) || key_stands_in(key, rest))
            return false;
    return true;
}

static bool label_is(const struct json *labels, struct str key, struct str value)
{
    const struct json *name = json_first(labels);

    for (uint32_t i = 0; labels && i < labels->count; i++, name = json_next(name + 1))
        if (str_eq((struct str){.at = name->at, .len = name->len}, key))
            return json_type(name + 1) == JSON_STR && !name[1].escaped &&
                   str_eq((struct str){.at = name[1].at, .len = name[1].len}, value);
    return false;
}

bool selector_match(struct str selector, const struct json *labels)
{
    struct str rest = selector, key, value;

    if (!selector_valid(selector))
        return false;
    while (rest.len)
        if (!take_term(&rest, &key, &value) || !label_is(labels, key, value))
            return false;
    return true;
}

/* No key stands there twice: all that matters is that it is always the same order. */
static int by_text(const void *a, const void *b)
{
    return str_cmp(*(const struct str *)a, *(const struct str *)b);
}

void selector_sorted(struct str selector, struct buf *to)
{
    struct str rest = selector, *terms;
    size_t count = 0;

    assert(selector_valid(selector));
    terms = mem_alloc((selector.len / 4 + 1) * sizeof *terms); /* "k=v," */
    while (rest.len)
        terms[count++] = str_cut(&rest, ',');
    qsort(terms, count, sizeof *terms, by_text);
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            buf_char(to, ',');
        buf_str(to, terms[i]);
    }
    free(terms);
}
