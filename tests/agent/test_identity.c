/* The identity of an agent: the same after a restart, another one in any copy of its directory. */
#include "agent/identity.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "unit.h"

static struct str instance_in(const char *dir, struct arena *arena)
{
    struct problem why;
    struct str instance;

    assert_int_equal(identity_instance(dir, arena, &instance, &why), ERR_OK);
    assert_int_equal(instance.len, 32);
    assert_true(str_is_id(instance, 32));
    return instance;
}

static void run(const char *format, const char *dir)
{
    char command[256];

    snprintf(command, sizeof command, format, dir);
    assert_int_equal(system(command), 0);
}

static void test_instance(void **state)
{
    char dir[] = "/tmp/berth-identity-XXXXXX", copy[64];
    struct arena arena = {0};
    struct problem why;
    struct str first, none;

    (void)state;
    assert_non_null(mkdtemp(dir));
    first = instance_in(dir, &arena);
    assert_str(instance_in(dir, &arena), arena_cstr(&arena, first));
    run("cp -a %1$s %1$s.copy", dir);
    snprintf(copy, sizeof copy, "%s.copy", dir);
    assert_false(str_eq(instance_in(copy, &arena), first));
    run("sed -i s/^./X/ %s/instance", dir); /* as if written before a reboot */
    assert_false(str_eq(instance_in(dir, &arena), first));
    run("echo half > %s/instance", dir);
    first = instance_in(dir, &arena);
    assert_str(instance_in(dir, &arena), arena_cstr(&arena, first));
    run("rm -r %1$s %1$s.copy", dir);
    assert_int_equal(identity_instance(dir, &arena, &none, &why), ERR_IO);
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_instance)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
