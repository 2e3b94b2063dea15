/* The GPU command: how its output is read, and that nothing waits for it. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct usage_gpus gpus;
        int64_t permille = 7;

        assert_int_equal(usage_gpu_parse(str_of(rows[i].text), &gpus, &permille),
                         rows[i].permille != USAGE_NONE);
        assert_int_equal(permille, rows[i].permille);
        assert_int_equal(gpus.count, 0); /* a utilisation alone names no GPU */
    }
}

#define L4 "{\"id\":0,\"model\":\"L4\",\"vram_mb\":23034,\"vram_free_mb\":20000.5,\"util\":40}"

/* The JSON of a wrapper: each GPU with its memory, and the processes that use it. */
static void test_gpu_json(void **state)
{
    static const char *const wrong[] = {
        "[",
        "[0]",
        "[{}]",
        "{\"id\":0}",
        "[" L4 "," L4 "]", /* a duplicate */
        "[{\"id\":64,\"vram_mb\":1,\"vram_free_mb\":1}]",
        "[{\"id\":0,\"vram_mb\":1}]",
        "[{\"id\":0,\"vram_mb\":-1,\"vram_free_mb\":1}]",
        "[{\"id\":0,\"vram_mb\":\"1\",\"vram_free_mb\":1}]",
        "[{\"id\":0,\"vram_mb\":1,\"vram_free_mb\":1,\"processes\":{}}]",
        "[{\"id\":0,\"vram_mb\":1,\"vram_free_mb\":1,\"processes\":[{\"pid\":1}]}]",
    };
    struct usage_gpus gpus;
    int64_t permille;

    assert_true(usage_gpu_parse(STR(" [" L4 ",\n{\"id\":3,\"vram_mb\":100,\"vram_free_mb\":200,"
                                    "\"util\":60,\"processes\":[{\"pid\":12,\"vram_mb\":7}]}]"),
                                &gpus, &permille));
    assert_int_equal(permille, 500);
    assert_int_equal(gpus.count, 2);
    assert_int_equal(gpus.cards[0].vram_mb, 23034);
    assert_int_equal(gpus.cards[0].vram_free_mb, 20000);
    assert_string_equal(gpus.cards[0].model, "L4");
    assert_false(gpus.cards[0].listed);
    assert_int_equal(gpus.cards[1].id, 3);
    assert_int_equal(gpus.cards[1].vram_free_mb, 100); /* capped at the total */
    assert_true(gpus.cards[1].listed);
    assert_int_equal(gpus.process_count, 1);
    assert_int_equal(gpus.processes[0].card, 1);
    assert_int_equal(gpus.processes[0].pid, 12);
    assert_int_equal(gpus.processes[0].vram_mb, 7);
    assert_true(usage_gpu_parse(STR("[]"), &gpus, &permille)); /* no GPU, as a known fact */
    assert_int_equal(gpus.count, 0);
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        if (usage_gpu_parse(str_of(wrong[i]), &gpus, &permille))
            fail_msg("%s", wrong[i]);
}

/* Output of nvidia-smi, also where a driver does not report everything. */
static void test_gpu_smi(void **state)
{
    struct usage_gpus gpus;
    int64_t permille;

    assert_true(usage_gpu_parse(STR("0, GPU-aa, NVIDIA L4, 23034, 22000, 5\n"
                                    "1, GPU-bb, NVIDIA L4, 23034, 1000, [N/A]\n"
                                    "2, GPU-cc, NVIDIA GB10, [N/A], [N/A], 3\n"
                                    "GPU-bb, 4711, 20000\nGPU-bb, 4712, [N/A]\nGPU-dd, 5, 6\n"),
                                &gpus, &permille));
    assert_int_equal(gpus.count, 2); /* the third has no memory figures */
    assert_string_equal(gpus.cards[1].model, "NVIDIA L4");
    assert_int_equal(gpus.cards[1].vram_free_mb, 1000);
    assert_int_equal(gpus.cards[1].permille, USAGE_NONE);
    assert_int_equal(permille, 50);
    assert_false(gpus.cards[0].listed);
    assert_true(gpus.cards[1].listed);
    assert_int_equal(gpus.process_count, 1);
    assert_int_equal(gpus.processes[0].pid, 4711);
    assert_int_equal(gpus.processes[0].card, 1);
}

/* Steps until the command has ended; its pipe wakes it, time is the test's own. */
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
    /* An empty command disables it. */
    assert_int_equal(usage_gpu_step(&gpu, INT64_MAX - 1), INT64_MAX);
    assert_int_equal(gpu.pid, 0);
    usage_gpu_done(&gpu);
}

/* While work waits for GPUs they are read every second, and a result is valid only for a while. */
static void test_gpu_is_seen_for_a_while(void **state)
{
    char path[] = "/tmp/berth-gpu-XXXXXX", command[64];
    int fd = mkstemp(path);
    struct usage_gpu gpu;

    assert_true(fd >= 0 && write(fd, "[" L4 "]", sizeof L4 + 1) == sizeof L4 + 1);
    close(fd);
    snprintf(command, sizeof command, "cat %s", path);
    usage_gpu_init(&gpu, command);
    assert_true(usage_gpu_is_new(&gpu));
    assert_null(usage_gpu_seen(&gpu, 0));
    usage_gpu_step(&gpu, 0);
    gpu_until_idle(&gpu, 100);
    assert_false(usage_gpu_is_new(&gpu));
    assert_int_equal(gpu.next_ms, 1100);
    assert_int_equal(usage_gpu_seen(&gpu, 100)->count, 1);
    unlink(path);
    usage_gpu_step(&gpu, 1100);
    gpu_until_idle(&gpu, 1200);
    assert_true(gpu.next_ms < 10000);                        /* again soon */
    assert_int_equal(usage_gpu_seen(&gpu, 10000)->count, 1); /* the next run may be slow */
    assert_null(usage_gpu_seen(&gpu, 10101));
    usage_gpu_done(&gpu);
}

static void test_gpu_that_hangs_or_floods(void **state)
{
    struct usage_gpu gpu;

    usage_gpu_init(&gpu, "echo 40; exec cat /dev/zero >/dev/null");
    usage_gpu_step(&gpu, 0);
    assert_true(gpu.pid > 0);
    usage_gpu_step(&gpu, 1999);
    assert_int_equal(gpu.next_ms, 0); /* not timed out yet */
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
        cmocka_unit_test(test_gpu_json),
        cmocka_unit_test(test_gpu_smi),
        cmocka_unit_test(test_gpu_command),
        cmocka_unit_test(test_gpu_is_seen_for_a_while),
        cmocka_unit_test(test_gpu_that_hangs_or_floods),
    };

    return cmocka_run_group_tests_name("usage_gpu", tests, NULL, NULL);
}
