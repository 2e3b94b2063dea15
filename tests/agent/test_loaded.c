/* The file of what is loaded: how it is read, and what a hostile file in its place cannot do. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../unit.h"
#include "agent/loaded.h"
#include "base/mem.h"

struct fixture {
    struct loop loop;
    struct loaded loaded;
    int changes;
    char dir[64], path[80];
};

static void on_changed(struct loaded *loaded)
{
    container_of(loaded, struct fixture, loaded)->changes++;
}

static int set_up(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);

    snprintf(fixture->dir, sizeof fixture->dir, "/tmp/berth-loaded-XXXXXX");
    assert_non_null(mkdtemp(fixture->dir));
    snprintf(fixture->path, sizeof fixture->path, "%s/loaded", fixture->dir);
    assert_int_equal(loop_init(&fixture->loop, 0), ERR_OK);
    loaded_init(&fixture->loaded, &fixture->loop, on_changed);
    *state = fixture;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;

    loop_done(&fixture->loop);
    loaded_done(&fixture->loaded);
    unlink(fixture->path);
    rmdir(fixture->dir);
    free(fixture);
    return 0;
}

static void put(struct fixture *fixture, const char *text)
{
    FILE *file = fopen(fixture->path, "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* Reads the file once, and waits for the result. */
static void look(struct fixture *fixture, const char *path)
{
    loaded_look(&fixture->loaded, str_of(path));
    while (fixture->loaded.busy)
        uv_run(&fixture->loop.uv, UV_RUN_ONCE);
}

static void assert_loaded(struct fixture *fixture, const char *want)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    jsonw_obj(&w);
    loaded_write(&fixture->loaded, &w);
    jsonw_end_obj(&w);
    buf_char(&buf, 0);
    assert_string_equal(buf.at, want);
    buf_free(&buf);
}

static void test_lines_become_a_list(void **state)
{
    struct fixture *fixture = *state;

    assert_loaded(fixture, "{}"); /* not read yet */
    look(fixture, NULL);
    assert_loaded(fixture, "{\"loaded\":[]}");
    look(fixture, fixture->path); /* no such file */
    assert_loaded(fixture, "{\"loaded\":[]}");
    put(fixture, "whisper-v3\n\n  llama-3:8b \n");
    look(fixture, fixture->path);
    assert_loaded(fixture, "{\"loaded\":[\"whisper-v3\",\"llama-3:8b\"]}");
    assert_int_equal(fixture->changes, 2);
    look(fixture, fixture->path);
    assert_int_equal(fixture->changes, 2); /* unchanged */
    put(fixture, "whisper-v3\nllama-3:8b");
    look(fixture, fixture->path);
    assert_int_equal(fixture->changes, 2); /* other text, same list */
    unlink(fixture->path);
    look(fixture, fixture->path);
    assert_loaded(fixture, "{\"loaded\":[]}");
    put(fixture, "a");
    look(fixture, fixture->path);
    look(fixture, NULL); /* the setting was removed */
    assert_loaded(fixture, "{\"loaded\":[]}");
}

/* A file with any error is ignored as a whole, and the previous list stays. */
static void test_what_is_wrong_changes_nothing(void **state)
{
    struct fixture *fixture = *state;
    static const char *const rows[] = {"b c\n", "b\n\"\n", "\xc3\xa9\n"};
    char many[65 * 3 + 1] = "", lengthy[64 * 65 + 1] = "", large[LOADED_FILE_BYTES_MAX + 2];

    put(fixture, "a\n");
    look(fixture, fixture->path);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        put(fixture, rows[i]);
        look(fixture, fixture->path);
        assert_loaded(fixture, "{\"loaded\":[\"a\"]}");
    }
    for (int i = 0; i < 65; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "%02d\n", i);
    put(fixture, many);
    look(fixture, fixture->path);
    assert_loaded(fixture, "{\"loaded\":[\"a\"]}");
    for (int i = 0; i < 64; i++)
        snprintf(lengthy + strlen(lengthy), sizeof lengthy - strlen(lengthy), "%064d\n", i);
    put(fixture, lengthy);
    look(fixture, fixture->path);
    assert_loaded(fixture, "{\"loaded\":[\"a\"]}");
    memset(large, '\n', sizeof large - 1);
    large[sizeof large - 1] = 0;
    put(fixture, large);
    look(fixture, fixture->path);
    assert_loaded(fixture, "{\"loaded\":[\"a\"]}");
    assert_int_equal(fixture->changes, 1);
    put(fixture, "b\n");
    look(fixture, fixture->path);
    assert_loaded(fixture, "{\"loaded\":[\"b\"]}");
}

/* A job may be able to write there: it must not make the agent read a file that the job cannot, nor
 * block it. */
static void test_no_link_and_no_pipe(void **state)
{
    struct fixture *fixture = *state;

    put(fixture, "a\n");
    look(fixture, fixture->path);
    unlink(fixture->path);
    assert_int_equal(symlink("/etc/hostname", fixture->path), 0);
    look(fixture, fixture->path);
    assert_loaded(fixture, "{\"loaded\":[\"a\"]}");
    unlink(fixture->path);
    assert_int_equal(mkfifo(fixture->path, 0600), 0);
    look(fixture, fixture->path);
    assert_loaded(fixture, "{\"loaded\":[\"a\"]}");
    look(fixture, fixture->dir);
    assert_loaded(fixture, "{\"loaded\":[\"a\"]}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lines_become_a_list, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_wrong_changes_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_link_and_no_pipe, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
