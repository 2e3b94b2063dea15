/* Patterns of node ids, in the order of the configuration. */
#include "model/node_rules.h"

/* When a text does not go on as the pattern does, the last * takes one character more. */
static bool fits(struct str text, struct str pattern)
{
    size_t at = 0, next = 0, star = SIZE_MAX, from = 0;

    while (at < text.len) {
        if (next < pattern.len && pattern.at[next] == '*') {
            star = next++;
            from = at;
        } else if (next < pattern.len && pattern.at[next] == text.at[at]) {
            next++;
            at++;
        } else if (star != SIZE_MAX) {
            next = star + 1;
            at = ++from;
        } else {
            return false;
        }
    }
    while (next < pattern.len && pattern.at[next] == '*')
        next++;
    return next == pattern.len;
}

const struct json *node_rules_find(const struct node_rules *rules, struct str node_id)
{
    for (size_t i = 0; i < rules->count; i++)
        if (fits(node_id, rules->rows[i].pattern))
            return rules->rows[i].facts;
    return NULL;
}

bool node_rules_fix(const struct node_rules *rules, struct str node_id, const char *member)
{
    return json_get(node_rules_find(rules, node_id), member) != NULL;
}

const struct json *node_rules_namespaces(const struct node_rules *rules, struct str node_id)
{
    return json_get(node_rules_find(rules, node_id), "namespaces");
}
