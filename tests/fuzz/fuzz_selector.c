/* Any bytes as a selector. A refusal names a column of it. A selector that can be read has one
 * canonical text, which reads back as itself and matches the same nodes. */
#include "model/selector.h"

#include <stdio.h>
#include <stdlib.h>

#include "fuzz.h"

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

static struct selector_facts nodes[4];

static void read_nodes(struct arena *arena)
{
    static const char *const labels[] = {"{}", "{\"zone\":\"eu\",\"a\":\"5\",\"k\":\"-2.50\"}",
                                         "{\"zone\":\"us\",\"spot\":\"yes\",\"a\":\"x\"}"};

    for (size_t i = 0; i < COUNT_OF(labels); i++) {
        nodes[i].id = STR("n1");
        must(!json_parse(str_of(labels[i]), arena, &nodes[i].labels, NULL), "our own labels");
    }
    nodes[COUNT_OF(labels)] = (struct selector_facts){.id = STR("n2")}; /* labels unknown */
}

static void check_refusal(struct str text, struct arena *arena, const struct problem *why)
{
    struct selector_facts none = nodes[0];

    must(why->column >= 1 && (size_t)why->column <= text.len + 1, "refused outside of the text");
    must(why->detail[0] != 0, "refused without a word");
    must(!selector_match(text, &none), "it matches and cannot be read");
    must(selector_check(text, SELECTOR_EQUALITY, "x", NULL) != ERR_OK,
         "equality alone says more than the whole");
}

static void check_same(struct str text, const struct selector *selector, struct arena *arena)
{
    struct buf first = {0}, second = {0}, why = {0};
    struct selector again;

    selector_canonical(selector, &first);
    must(!selector_read(buf_view(&first), "x", arena, &again, NULL),
         "what was written cannot be read");
    selector_canonical(&again, &second);
    must(str_eq(buf_view(&first), buf_view(&second)), "what was read is not what was written");
    for (size_t i = 0; i < COUNT_OF(nodes); i++) {
        bool fits = selector_fits(selector, &nodes[i]);

        must(fits == selector_match(text, &nodes[i]), "read once or each time is not the same");
        must(fits == selector_fits(&again, &nodes[i]), "the same in other words matches others");
        must(!nodes[i].labels || fits != selector_explain(selector, &nodes[i], &why),
             "it does not match, and nothing says why");
    }
    buf_free(&first);
    buf_free(&second);
    buf_free(&why);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str text = {.at = (const char *)data, .len = size};
    struct arena arena = {0};
    struct selector selector;
    struct problem why = {0};

    read_nodes(&arena);
    if (selector_read(text, "x", &arena, &selector, &why))
        check_refusal(text, &arena, &why);
    else
        check_same(text, &selector, &arena);
    arena_free(&arena);
    return 0;
}
