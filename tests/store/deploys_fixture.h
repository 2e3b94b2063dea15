/* An empty database for each test; all tests run on SQLite first, then on a real PostgreSQL. */
#ifndef TESTS_STORE_DEPLOYS_FIXTURE_H
#define TESTS_STORE_DEPLOYS_FIXTURE_H

#include "deploys_rig.h"
#include "pg_rig.h"

enum { LEASE_MS = 60000 };

extern struct pg_server pg;
extern bool on_pg; /* PostgreSQL, not SQLite */

void run_sql(const char *url, const char *sql);
const char *fresh_url(void); /* of an empty database */
/* *state is a struct deploys_rig. */
int deploys_setup(void **state);
int deploys_teardown(void **state);
/* Runs the tests on both databases and returns the exit code. */
int deploys_main(const char *name, const struct CMUnitTest *tests, size_t count);

#define DEPLOYS_TEST(name) cmocka_unit_test_setup_teardown(name, deploys_setup, deploys_teardown)

#endif
