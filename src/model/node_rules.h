/* What the configuration says of nodes, whatever they say of themselves: rows of node ids and facts
 * (`nodes`). Pure, no allocation. */
#ifndef MODEL_NODE_RULES_H
#define MODEL_NODE_RULES_H

#include "base/json.h"

enum { NODE_RULES_MAX = 1024 };

struct node_rule {
    struct str pattern;       /* of node ids; each * stands for any text */
    const struct json *facts; /* an object with members of a registration, and `namespaces` */
};

struct node_rules {
    const struct node_rule *rows;
    size_t count;
    bool namespaces; /* some row keeps nodes for some of them */
};

/* The facts of the first row whose pattern the id fits; NULL: there is none. */
const struct json *node_rules_find(const struct node_rules *rules, struct str node_id);
/* Is this member of its registration not the node's to say? */
bool node_rules_fix(const struct node_rules *rules, struct str node_id, const char *member);
/* The namespaces whose work it takes, a list; NULL: all. Nothing it could say itself. */
const struct json *node_rules_namespaces(const struct node_rules *rules, struct str node_id);

#endif
