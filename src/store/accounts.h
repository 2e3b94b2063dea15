/* Who has how much waiting: jobs and their bytes, by the name of an account. One is there while a
 * job of it waits. */
#ifndef STORE_ACCOUNTS_H
#define STORE_ACCOUNTS_H

#include "base/map.h"

#include <stdint.h>

struct account {
    struct str name; /* in `text` */
    int64_t jobs;
    int64_t bytes;
    char text[];
};

struct accounts {
    struct map by_name;
};

/* One job more. The account is good until that job leaves it. */
struct account *accounts_enter(struct accounts *accounts, struct str name, int64_t bytes);
void accounts_leave(struct accounts *accounts, struct account *account, int64_t bytes);
void accounts_free(struct accounts *accounts);

#endif
