/* The grammar of selectors, the meaning of their terms, and how a mismatch is explained. To add an
 * operator, add a row to `ops`. Choosing what is matched is the caller's job. */
#include "model/selector.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* --- numbers --- */

/* Decimals of any length, compared exactly: no label is rounded. */
struct decimal {
    bool negative;
    struct str whole;    /* without leading zeros */
    struct str fraction; /* without trailing zeros */
};

static size_t digits_at(struct str text, size_t at)
{
    size_t count = 0;

    while (at + count < text.len && text.at[at + count] >= '0' && text.at[at + count] <= '9')
        count++;
    return count;
}

/* -?[0-9]+(\.[0-9]+)? */
static bool decimal_read(struct str text, struct decimal *ret)
{
    size_t at = text.len > 0 && text.at[0] == '-';
    struct str whole = {.at = text.at + at, .len = digits_at(text, at)}, fraction = {0};
    bool negative = at > 0;

    if (whole.len == 0)
        return false;
    at += whole.len;
    if (at < text.len && text.at[at] == '.') {
        fraction = (struct str){.at = text.at + at + 1, .len = digits_at(text, at + 1)};
        if (fraction.len == 0)
            return false;
        at += 1 + fraction.len;
    }
    if (at != text.len)
        return false;
    while (whole.len > 0 && whole.at[0] == '0')
        whole = str_from(whole, 1);
    while (fraction.len > 0 && fraction.at[fraction.len - 1] == '0')
        fraction.len--;
    *ret = (struct decimal){
        .negative = negative && whole.len + fraction.len > 0, .whole = whole, .fraction = fraction};
    return true;
}

/* --- what operators mean --- */

static bool one_of(struct str values, struct str value)
{
    while (values.at)
        if (str_eq(str_trim(str_cut(&values, ',')), value))
            return true;
    return false;
}

/* False: one of them is not a number, so they cannot be compared. */
static bool compare(struct str value, struct str limit, int *ret_order)
{
    struct decimal a, b;
    int order;

    if (!decimal_read(value, &a) || !decimal_read(limit, &b))
        return false;
    if (a.negative != b.negative)
        order = 1; /* reversed below when `a` is the negative one */
    else if (a.whole.len != b.whole.len)
        order = a.whole.len < b.whole.len ? -1 : 1;
    else if ((order = str_cmp(a.whole, b.whole)) == 0)
        order = str_cmp(a.fraction, b.fraction);
    *ret_order = a.negative ? (order < 0) - (order > 0) : order;
    return true;
}

enum takes { TAKES_NONE, TAKES_WORD, TAKES_NUMBER, TAKES_LIST };
enum { BELOW = 1, EQUAL = 2, ABOVE = 4 };

static const struct {
    const char *sign; /* after the key */
    const char *alias;
    enum takes takes;
    unsigned sides; /* TAKES_NUMBER: which side of the limit the label's number may be on */
    bool negated;   /* holds where its opposite does not, so also without the label */
} ops[] = {
    [SELECTOR_HAS] = {.sign = ""},
    [SELECTOR_LACKS] = {.sign = "", .negated = true},
    [SELECTOR_IS] = {.sign = "=", .alias = "==", .takes = TAKES_WORD},
    [SELECTOR_NOT] = {.sign = "!=", .takes = TAKES_WORD, .negated = true},
    [SELECTOR_IN] = {.sign = "in", .takes = TAKES_LIST},
    [SELECTOR_NOTIN] = {.sign = "notin", .takes = TAKES_LIST, .negated = true},
    [SELECTOR_MORE] = {.sign = ">", .takes = TAKES_NUMBER, .sides = ABOVE},
    [SELECTOR_MORE_EQ] = {.sign = ">=", .takes = TAKES_NUMBER, .sides = ABOVE | EQUAL},
    [SELECTOR_LESS] = {.sign = "<", .takes = TAKES_NUMBER, .sides = BELOW},
    [SELECTOR_LESS_EQ] = {.sign = "<=", .takes = TAKES_NUMBER, .sides = BELOW | EQUAL},
};

/* For a label that exists, with this value. */
static bool holds(enum selector_op op, struct str values, struct str value)
{
    int order;

    switch (ops[op].takes) {
    case TAKES_WORD:
        return str_eq(values, value) != ops[op].negated;
    case TAKES_LIST:
        return one_of(values, value) != ops[op].negated;
    case TAKES_NUMBER:
        return compare(value, values, &order) && ops[op].sides & (order < 0   ? BELOW
                                                                  : order > 0 ? ABOVE
                                                                              : EQUAL);
    default:
        return !ops[op].negated;
    }
}

/* --- reading --- */

struct reader {
    struct str text;
    enum selector_form form;
    size_t at;
    const char *expected; /* at `at`: set when something else was found there */
};

static bool wrong(struct reader *r, const char *expected)
{
    r->expected = expected;
    return false;
}

static bool is_word_char(char c)
{
    static const bool in_words[256] = {['0' ... '9'] = true, ['A' ... 'Z'] = true,
                                       ['a' ... 'z'] = true, ['_'] = true,
                                       ['.'] = true,         ['-'] = true};

    return in_words[(unsigned char)c];
}

static char peek(const struct reader *r)
{
    return r->at < r->text.len ? r->text.at[r->at] : '\0';
}

static bool at_end(const struct reader *r)
{
    return r->at == r->text.len;
}

static void skip_blanks(struct reader *r)
{
    while (r->form == SELECTOR_FULL && peek(r) == ' ')
        r->at++;
}

static bool take_word(struct reader *r, const char *expected, struct str *ret_word)
{
    struct str word = {.at = r->text.at + r->at};

    if (!is_word_char(peek(r)))
        return wrong(r, expected);
    for (; is_word_char(peek(r)); r->at++)
        if (++word.len > SELECTOR_WORD_MAX)
            return wrong(r, "a word of at most 64 characters to end");
    *ret_word = word;
    return true;
}

/* "(a, b)"; the text between the brackets is kept as it is. */
static bool take_list(struct reader *r, struct str *ret_values)
{
    struct str word;
    size_t begun, count = 0;

    if (peek(r) != '(')
        return wrong(r, "\"(\"");
    begun = r->at + 1;
    do {
        r->at++; /* the bracket or the comma */
        skip_blanks(r);
        if (count++ == SELECTOR_VALUES_MAX)
            return wrong(r, "no more than 256 values");
        if (!take_word(r, "a value", &word))
            return false;
        skip_blanks(r);
    } while (peek(r) == ',');
    if (peek(r) != ')')
        return wrong(r, "\",\" or \")\"");
    *ret_values = (struct str){.at = r->text.at + begun, .len = r->at - begun};
    r->at++;
    return true;
}

/* A whole word, or a sign: one character, optionally followed by '='. */
static bool take_op(struct reader *r, enum selector_op *ret_op)
{
    struct str sign = {.at = r->text.at + r->at, .len = !at_end(r)};

    if (r->form == SELECTOR_EQUALITY && peek(r) != '=')
        return wrong(r, "\"=\"");
    if (is_word_char(peek(r)))
        while (r->at + sign.len < r->text.len && is_word_char(sign.at[sign.len]))
            sign.len++;
    else if (r->form == SELECTOR_FULL && r->at + 1 < r->text.len && sign.at[1] == '=')
        sign.len = 2;
    for (size_t i = 0; i < COUNT_OF(ops); i++)
        if (ops[i].takes != TAKES_NONE &&
            (str_is(sign, ops[i].sign) || (ops[i].alias && str_is(sign, ops[i].alias)))) {
            r->at += sign.len;
            *ret_op = (enum selector_op)i;
            return true;
        }
    return wrong(r, "one of = != in notin > >= < <=, \",\" or the end");
}

static bool take_term(struct reader *r, struct selector_term *ret_term)
{
    struct selector_term term = {.op = SELECTOR_HAS, .text = {.at = r->text.at + r->at}};
    struct decimal unused;
    size_t begun;
    bool ok = true;

    if (r->form == SELECTOR_FULL && peek(r) == '!') {
        term.op = SELECTOR_LACKS;
        r->at++;
        skip_blanks(r);
    }
    if (!take_word(r, "a key", &term.key))
        return false;
    term.text.len = (size_t)(r->text.at + r->at - term.text.at);
    skip_blanks(r);
    if (term.op == SELECTOR_LACKS || (r->form == SELECTOR_FULL && (at_end(r) || peek(r) == ','))) {
        *ret_term = term;
        return true;
    }
    if (!take_op(r, &term.op))
        return false;
    skip_blanks(r);
    begun = r->at;
    if (ops[term.op].takes == TAKES_LIST)
        ok = take_list(r, &term.values);
    else
        ok =
            take_word(r, ops[term.op].takes == TAKES_NUMBER ? "a number" : "a value", &term.values);
    if (!ok)
        return false;
    if (ops[term.op].takes == TAKES_NUMBER && !decimal_read(term.values, &unused)) {
        r->at = begun;
        return wrong(r, "a number");
    }
    term.text.len = (size_t)(r->text.at + r->at - term.text.at);
    *ret_term = term;
    return true;
}

/* Does it allow only one value? A list may repeat it. */
static bool pins(const struct selector_term *term)
{
    struct str rest = term->values, first = str_trim(str_cut(&rest, ','));

    if (term->op != SELECTOR_IS && term->op != SELECTOR_IN)
        return false;
    while (rest.at)
        if (!str_eq(str_trim(str_cut(&rest, ',')), first))
            return false;
    return true;
}

/* One key with two values: no node has both, so it must be a mistake. */
static bool has_value(const struct selector_term *terms, size_t count,
                      const struct selector_term *one)
{
    if (!pins(one))
        return false;
    for (size_t i = 0; i < count; i++)
        if (str_eq(terms[i].key, one->key) && pins(&terms[i]))
            return true;
    return false;
}

/* Into `terms`, which have room for SELECTOR_TERMS_MAX. False: r->expected is not at r->at. */
static bool read_terms(struct reader *r, struct selector_term *terms, size_t *ret_count)
{
    size_t count = 0, begun;

    if (r->text.len > SELECTOR_BYTES_MAX) {
        r->at = SELECTOR_BYTES_MAX;
        return wrong(r, "a selector of at most 4096 characters to end");
    }
    skip_blanks(r);
    *ret_count = 0;
    if (at_end(r))
        return true;
    for (;; r->at++) {
        skip_blanks(r);
        begun = r->at;
        if (count == SELECTOR_TERMS_MAX)
            return wrong(r, "no more than 128 terms");
        if (!take_term(r, &terms[count]))
            return false;
        if (has_value(terms, count, &terms[count])) {
            r->at = begun;
            return wrong(r, "another key: this one has a value already");
        }
        count++;
        skip_blanks(r);
        if (at_end(r))
            break;
        if (peek(r) != ',')
            return wrong(r, "\",\" or the end");
    }
    assert(count > 0 && count <= SELECTOR_TERMS_MAX);
    *ret_count = count;
    return true;
}

/* All before it is ASCII: a byte is a character. */
static enum err set_problem(const struct reader *r, const char *field, struct problem *why)
{
    struct str rest = str_from(r->text, r->at);
    struct str found = {.at = rest.at, .len = str_utf8_len(rest)};
    bool shown = found.len > 0 && str_is_text(found);
    enum err err;

    assert(r->expected);
    if (rest.len == 0)
        err = problem_set(why, ERR_BAD_FIELD, field,
                          "%s, character %zu: expected %s, but it ends there.", field, r->at + 1,
                          r->expected);
    else
        err = problem_set(
            why, ERR_BAD_FIELD, field, "%s, character %zu: expected %s, not %s" STR_FMT "%s.",
            field, r->at + 1, r->expected, shown ? "\"" : "",
            STR_ARG(shown ? found : STR("a byte that is no text")), shown ? "\"" : "");
    if (why)
        why->column = (int)r->at + 1;
    return err;
}

enum err selector_read(struct str text, const char *field, struct arena *arena,
                       struct selector *ret_selector, struct problem *why)
{
    struct selector_term terms[SELECTOR_TERMS_MAX], *kept;
    struct reader r = {.text = text};
    size_t count;

    if (!read_terms(&r, terms, &count))
        return set_problem(&r, field, why);
    kept = count ? arena_raw(arena, count * sizeof *kept) : NULL;
    if (count)
        memcpy(kept, terms, count * sizeof *kept);
    *ret_selector = (struct selector){.terms = kept, .count = count};
    return ERR_OK;
}

enum err selector_check(struct str text, enum selector_form form, const char *field,
                        struct problem *why)
{
    struct selector_term terms[SELECTOR_TERMS_MAX];
    struct reader r = {.text = text, .form = form};
    size_t count;

    return read_terms(&r, terms, &count) ? ERR_OK : set_problem(&r, field, why);
}

/* --- matching --- */

/* A node's value for this key; false: none. A text with an escape is returned as it was sent: it
 * exists, but equals no word of a selector. */
static bool value_of(const struct selector_facts *facts, struct str key, struct str *ret_value)
{
    const struct json *name;

    /* Other facts come before labels: a node chooses its labels itself. */
    if (str_is(key, "name") && facts->id.at) {
        *ret_value = facts->id;
        return true;
    }
    for (name = json_keys(facts->labels); name; name = json_after(facts->labels, name)) {
        if (!str_eq((struct str){.at = name->at, .len = name->len}, key))
            continue;
        *ret_value = (struct str){.at = name[1].at, .len = name[1].len};
        return json_type(name + 1) == JSON_STR;
    }
    return false;
}

static bool term_holds(const struct selector_term *term, const struct selector_facts *facts)
{
    struct str value;

    assert((size_t)term->op < COUNT_OF(ops));
    return value_of(facts, term->key, &value) ? holds(term->op, term->values, value)
                                              : ops[term->op].negated;
}

bool selector_fits(const struct selector *selector, const struct selector_facts *facts)
{
    if (selector->count > 0 && !facts->labels)
        return false; /* "without this label" must not hold for an unknown node */
    for (size_t i = 0; i < selector->count; i++)
        if (!term_holds(&selector->terms[i], facts))
            return false;
    return true;
}

bool selector_match(struct str text, const struct selector_facts *facts)
{
    struct selector_term terms[SELECTOR_TERMS_MAX];
    struct reader r = {.text = text};
    struct selector selector = {.terms = terms};

    return read_terms(&r, terms, &selector.count) && selector_fits(&selector, facts);
}

bool selector_explain(const struct selector *selector, const struct selector_facts *facts,
                      struct buf *to)
{
    struct str value;

    for (size_t i = 0; i < selector->count; i++) {
        const struct selector_term *term = &selector->terms[i];

        if (term_holds(term, facts))
            continue;
        buf_str(to, term->text);
        if (value_of(facts, term->key, &value))
            buf_fmt(to, ": " STR_FMT " is " STR_FMT, STR_ARG(term->key), STR_ARG(value));
        else
            buf_fmt(to, ": it has no " STR_FMT, STR_ARG(term->key));
        return true;
    }
    return false;
}

/* --- canonical text --- */

static int by_text(const void *a, const void *b)
{
    return str_cmp(*(const struct str *)a, *(const struct str *)b);
}

/* Sorts them and removes duplicates. */
static size_t tidy(struct str *texts, size_t count)
{
    size_t kept = 0;

    qsort(texts, count, sizeof *texts, by_text);
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || !str_eq(texts[kept - 1], texts[i]))
            texts[kept++] = texts[i];
    return kept;
}

static void write_joined(const struct str *texts, size_t count, struct buf *to)
{
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            buf_char(to, ',');
        buf_str(to, texts[i]);
    }
}

/* A list of one value is written as that value; a number as its shortest text. */
static void write_term(const struct selector_term *term, struct buf *to)
{
    struct str values[SELECTOR_VALUES_MAX], rest = term->values;
    struct decimal number;
    size_t count = 0;

    if (term->op == SELECTOR_LACKS)
        buf_char(to, '!');
    buf_str(to, term->key);
    if (ops[term->op].takes == TAKES_LIST) {
        while (rest.at)
            values[count++] = str_trim(str_cut(&rest, ','));
        count = tidy(values, count);
        if (count > 1) {
            buf_fmt(to, " %s (", ops[term->op].sign);
            write_joined(values, count, to);
            buf_char(to, ')');
            return;
        }
        buf_str(to, str_of(ops[term->op == SELECTOR_IN ? SELECTOR_IS : SELECTOR_NOT].sign));
        buf_str(to, values[0]);
        return;
    }
    buf_str(to, str_of(ops[term->op].sign));
    if (ops[term->op].takes != TAKES_NUMBER || !decimal_read(term->values, &number)) {
        buf_str(to, term->values);
        return;
    }
    if (number.negative)
        buf_char(to, '-');
    buf_str(to, number.whole.len ? number.whole : STR("0"));
    if (number.fraction.len > 0) {
        buf_char(to, '.');
        buf_str(to, number.fraction);
    }
}

void selector_canonical(const struct selector *selector, struct buf *to)
{
    struct str texts[SELECTOR_TERMS_MAX];
    struct buf all = {0};
    size_t begun = 0;

    assert(selector->count <= SELECTOR_TERMS_MAX);
    for (size_t i = 0; i < selector->count; i++, begun = all.len) {
        write_term(&selector->terms[i], &all);
        texts[i] = (struct str){.len = all.len - begun};
    }
    begun = 0; /* it has stopped growing: the texts no longer move */
    for (size_t i = 0; i < selector->count; begun += texts[i++].len)
        texts[i].at = all.at + begun;
    write_joined(texts, tidy(texts, selector->count), to);
    buf_free(&all);
}
