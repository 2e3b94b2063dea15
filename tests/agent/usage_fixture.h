/* A meter on a machine that is a directory tree. */
#ifndef TESTS_AGENT_USAGE_FIXTURE_H
#define TESTS_AGENT_USAGE_FIXTURE_H

#include "../unit.h"
#include "agent/usage.h"
#include "machine.h"

struct fixture {
    struct machine machine;
    struct usage_meter *meter;
};

static int set_up(void **state)
{
    static struct fixture fixture;

    machine_init(&fixture.machine);
    fixture.meter = usage_meter_new(fixture.machine.root);
    *state = &fixture;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;

    usage_meter_free(fixture->meter);
    machine_done(&fixture->machine);
    return 0;
}

static struct usage look(struct fixture *fixture, int64_t at_ms)
{
    struct problem why = {0};
    struct usage usage;

    if (usage_measure(fixture->meter, at_ms, 1700000000000 + at_ms, &usage, &why) != ERR_OK)
        fail_msg("%s", why.detail);
    return usage;
}

#endif
