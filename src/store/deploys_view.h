/* What claimers see. */
#ifndef STORE_DEPLOYS_VIEW_H
#define STORE_DEPLOYS_VIEW_H

#include "store/deploys_row.h"

void deploys_table_done(struct deploys_table *table);

#endif
