/* The columns of lists compared with the server's rows: each shows a member of what the list's
 * route answers, once, and each filter is a parameter of the route. */
#include "cli/list.h"

#include <string.h>

#include "../unit.h"
#include "cli/command.h"
#include "server/messages.h"
#include "server/route.h"

static const struct route *route_of(const struct listing *list)
{
    const struct route *route;

    for (size_t i = 0; (route = route_at(i)); i++)
        if (route->method == HTTP_M_GET && strcmp(route->path, list->path) == 0)
            return route;
    fail_msg("there is no route %s", list->path);
    return NULL;
}

/* The row of a member; NULL: there is no such member. */
static const struct field *message_member(const struct message_type *type, const char *name)
{
    const struct message_rows *const parts[] = {&type->rows, &type->more};

    for (size_t p = 0; p < COUNT_OF(parts); p++)
        for (size_t i = 0; parts[p]->schema && i < parts[p]->schema->count; i++) {
            const struct field *field = &parts[p]->schema->fields[i];
            const char *own = message_name(parts[p], field);

            if (own && strcmp(own, name) == 0)
                return field;
        }
    return NULL;
}

/* The type of the items: Node for "[Node]". */
static const struct message_type *item_of(const struct listing *list)
{
    const struct message_type *answer = message_type_find(str_of(route_of(list)->out));
    const struct field *items = message_member(answer, list->name);

    if (!items || !items->shape || items->shape[0] != '[')
        fail_msg("%s is no list in %s", list->name, answer->name);
    struct str name = {.at = items->shape + 1, .len = strlen(items->shape) - 2};
    return message_type_find(name);
}

static void check_columns(const struct listing *list)
{
    const struct message_type *item = item_of(list);

    assert_non_null(item);
    assert_non_null(message_member(item, list->id));
    if (list->id_rest)
        assert_non_null(message_member(item, list->id_rest));
    for (size_t i = 0; i < list->column_count; i++) {
        const struct list_column *column = &list->columns[i];

        if (!column->member && !column->put)
            fail_msg("%s: column %s shows nothing", list->path, column->title);
        if (column->member && !message_member(item, column->member))
            fail_msg("%s: column %s shows %s, which %s does not have", list->path, column->title,
                     column->member, item->name);
        for (size_t j = 0; column->member && j < i; j++)
            if (list->columns[j].member && strcmp(list->columns[j].member, column->member) == 0)
                fail_msg("%s: columns %s and %s both show %s", list->path, list->columns[j].title,
                         column->title, column->member);
    }
}

static void check_filters(const struct command *command)
{
    for (size_t i = 0; command->flags && i < command->flags->count; i++) {
        const char *param = command->flags->flags[i].param;
        struct str rest = str_of(route_of(command->list)->query);
        bool read = false;

        while (param && rest.len)
            read |= str_is(str_cut(&rest, ' '), param);
        if (param && !read)
            fail_msg("%s does not read %s", command->list->path, param);
    }
}

static void columns_are_members_of_the_answer(void **state)
{
    const struct command *command;
    size_t lists = 0;

    for (size_t i = 0; (command = command_at(i)); i++) {
        if (!command->list)
            continue;
        check_columns(command->list);
        check_filters(command);
        lists++;
    }
    assert_true(lists > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_are_members_of_the_answer),
    };

    return cmocka_run_group_tests_name("cli/columns", tests, NULL, NULL);
}
