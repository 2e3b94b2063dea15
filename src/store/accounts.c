/* Counts what accounts have waiting. */
#include "store/accounts.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static struct account *account_new(struct accounts *accounts, struct str name)
{
    struct account *account = mem_alloc(sizeof *account + name.len);

    *account = (struct account){.name = {.at = account->text, .len = name.len}};
    memcpy(account->text, name.at, name.len);
    map_put(&accounts->by_name, account->name, account);
    return account;
}

struct account *accounts_enter(struct accounts *accounts, struct str name, int64_t bytes)
{
    struct account *account = map_get(&accounts->by_name, name);

    assert(name.len > 0 && bytes >= 0);
    if (!account)
        account = account_new(accounts, name);
    account->jobs++;
    account->bytes += bytes;
    return account;
}

void accounts_leave(struct accounts *accounts, struct account *account, int64_t bytes)
{
    assert(account->jobs > 0 && account->bytes >= bytes);
    account->jobs--;
    account->bytes -= bytes;
    if (account->jobs > 0)
        return;
    assert(account->bytes == 0);
    map_del(&accounts->by_name, account->name);
    free(account);
}

void accounts_free(struct accounts *accounts)
{
    struct account *account;

    for (size_t at = 0; (account = map_next(&accounts->by_name, &at));)
        free(account);
    map_free(&accounts->by_name);
}
