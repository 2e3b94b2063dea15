/* Messages to a service manager, whose socket the test opens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/notify.h"

/* Runs in a child process, since the environment is read only once. */
static bool in_child(bool (*holds)(void))
{
    int pid = fork(), status;

    if (pid == 0)
        _exit(holds() ? 0 : 1);
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool speaks(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    char text[64], socket_name[64];
    ssize_t got;

    /* An abstract name leaves no file behind. */
    int len = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "berth-notify-%d", getpid());
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
    if (bind(manager, (struct sockaddr *)&name, size) != 0)
        return false;
    snprintf(socket_name, sizeof socket_name, "@berth-notify-%d", getpid());
    setenv("NOTIFY_SOCKET", socket_name, 1);
    setenv("WATCHDOG_USEC", "30000000", 1);
    notify_init();
    if (!notify_send("READY=1") || getenv("NOTIFY_SOCKET") || getenv("WATCHDOG_USEC"))
        return false;
    got = recv(manager, text, sizeof text, MSG_DONTWAIT);
    return got == 7 && memcmp(text, "READY=1", 7) == 0 && notify_watchdog_ms() == 30000;
}

static void test_a_manager_hears(void **state)
{
    assert_true(in_child(speaks));
}

static bool says_nothing(void)
{
    notify_init();
    return !notify_send("READY=1") && notify_watchdog_ms() == 0;
}

static void test_nobody_is_there(void **state)
{
    static const char *const names[] = {"", "relative", "/", "@", "/nowhere/at/all"};
    char long_name[200] = "/";

    unsetenv("NOTIFY_SOCKET");
    assert_true(in_child(says_nothing));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        setenv("NOTIFY_SOCKET", names[i], 1);
        assert_true(in_child(says_nothing));
    }
    memset(long_name + 1, 'a', sizeof long_name - 2);
    setenv("NOTIFY_SOCKET", long_name, 1);
    assert_true(in_child(says_nothing));
}

static bool watchdog_is_not_ours(void)
{
    notify_init();
    return notify_watchdog_ms() == 0;
}

static void test_a_watchdog_of_another_or_of_nonsense(void **state)
{
    static const struct {
        const char *usec, *pid;
    } rows[] = {{"1000000", "1"}, {"0", NULL}, {"-5", NULL}, {"soon", NULL}, {"", NULL}};

    setenv("NOTIFY_SOCKET", "/nowhere/at/all", 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        setenv("WATCHDOG_USEC", rows[i].usec, 1);
        if (rows[i].pid)
            setenv("WATCHDOG_PID", rows[i].pid, 1);
        else
            unsetenv("WATCHDOG_PID");
        assert_true(in_child(watchdog_is_not_ours));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_manager_hears),
        cmocka_unit_test(test_nobody_is_there),
        cmocka_unit_test(test_a_watchdog_of_another_or_of_nonsense),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
