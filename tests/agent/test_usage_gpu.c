/* The GPU's command: what it says, and that nobody waits for it. */
#include "../unit.h"
#include "agent/usage.h"
#include "agent/usage_gpu.h"
#include "base/clock.h"

static void test_gpu_text(void **state)
{
    static const struct {
        const char *text;
        int64_t permille;
    } rows[] = {
        {"40\n", 400},         {"0\n", 0},
        {"100\n", 1000},       {"40\n60\n", 500},
        {"12.5 %\n", 125},     {" 33%\n\n", 330},
        {"33", 330},           {"", USAGE_NONE},
        {"\n", USAGE_NONE},    {"[N/A]\n", USAGE_NONE},
        {"101\n", USAGE_NONE}, {"No devices were found\n", USAGE_NONE},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(usage_gpu_parse(str_of(rows[i].text)), rows[i].permille);
}

/* Steps until the command is gone; the kernel's word wakes it, time is the test's own. */
static void gpu_until_idle(struct usage_gpu *gpu, int64_t now_ms)
{
    int64_t give_up_ms = clock_mono_ms() + 10000;

    while (gpu->pid > 0) {
        if (gpu->fd >= 0)
            usage_gpu_readable(gpu, now_ms);
        usage_gpu_step(gpu, now_ms);
        assert_true(clock_mono_ms() < give_up_ms);
    }
}

static void test_gpu_command(void **state)
{
    struct usage_gpu gpu;

    usage_gpu_init(&gpu, "echo 40; echo 20");
    assert_int_equal(gpu.permille, USAGE_NONE);
    assert_true(usage_gpu_step(&gpu, 0) > 0);
    gpu_until_idle(&gpu, 100);
    assert_int_equal(gpu.permille, 300);
    assert_int_equal(usage_gpu_step(&gpu, 101), gpu.next_ms); /* not again at once */
    assert_int_equal(gpu.pid, 0);
    usage_gpu_done(&gpu);

    usage_gpu_init(&gpu, "echo 40; exit 3");
    usage_gpu_step(&gpu, 0);
    gpu_until_idle(&gpu, 100);
    assert_int_equal(gpu.permille, USAGE_NONE);
    usage_gpu_done(&gpu);

    usage_gpu_init(&gpu, "");
    assert_int_equal(usage_gpu_step(&gpu, INT64_MAX - 1), INT64_MAX); /* off is off */
    assert_int_equal(gpu.pid, 0);
    usage_gpu_done(&gpu);
}

static void test_gpu_that_hangs_or_floods(void **state)
{
    struct usage_gpu gpu;

    usage_gpu_init(&gpu, "echo 40; exec cat /dev/zero >/dev/null");
    usage_gpu_step(&gpu, 0);
    assert_true(gpu.pid > 0);
    usage_gpu_step(&gpu, 1999);
    assert_int_equal(gpu.next_ms, 0); /* it still has time */
    usage_gpu_step(&gpu, 2000);
    assert_int_equal(gpu.fd, -1);
    gpu_until_idle(&gpu, 2001);
    assert_int_equal(gpu.permille, USAGE_NONE);
    assert_true(gpu.next_ms > 30000);
    usage_gpu_done(&gpu);

    usage_gpu_init(&gpu, "exec cat /dev/zero");
    usage_gpu_step(&gpu, 0);
    gpu_until_idle(&gpu, 100);
    assert_int_equal(gpu.permille, USAGE_NONE);
    assert_true(gpu.output.cap < 100000);
    usage_gpu_done(&gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpu_text),
        cmocka_unit_test(test_gpu_command),
        cmocka_unit_test(test_gpu_that_hangs_or_floods),
    };

    return cmocka_run_group_tests_name("usage_gpu", tests, NULL, NULL);
}
