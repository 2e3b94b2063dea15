/* Switches the terminal to a picture mode and back again, however the process ends; draws from the
 * upper left corner over the previous picture, so that nothing flickers. A progress line overwrites
 * itself. */
#include "cli/screen.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"

/* --- pictures --- */

/* Alternate screen, no cursor, no wrapping: long lines end at the edge. */
#define SCREEN_ON  "\033[?1049h\033[?25l\033[?7l\033[H\033[J"
#define SCREEN_OFF "\033[?7h\033[?25h\033[?1049l"

enum { COLUMNS_DEFAULT = 80, ROWS_DEFAULT = 24, SIDE_MAX = 1000 };

/* One terminal per process; signal handlers need access to it. */
static struct {
    volatile sig_atomic_t on;
    int out_fd;
    bool keys; /* standard input is also the terminal: `q` can be read */
    struct termios before;
    struct termios during;
} screen;

static void screen_write(const char *codes)
{
    size_t len = strlen(codes);

    while (len > 0) {
        ssize_t done = write(screen.out_fd, codes, len);

        if (done < 0 && errno != EINTR)
            return; /* the terminal is gone */
        codes += done > 0 ? done : 0;
        len -= done > 0 ? (size_t)done : 0;
    }
}

/* Uses only calls that are safe in a signal handler. */
static void screen_enter(void)
{
    if (screen.keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &screen.during);
    screen_write(SCREEN_ON);
    screen.on = 1;
}

static void screen_leave(void)
{
    if (!screen.on)
        return;
    screen.on = 0;
    screen_write(SCREEN_OFF);
    if (screen.keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &screen.before);
}

static void on_interrupt(int number)
{
    screen_leave();
    _exit(CLI_OK); /* Ctrl-C is the normal way out */
}

static void on_end(int number)
{
    screen_leave();
    signal(number, SIG_DFL);
    raise(number);
}

/* Ctrl-Z: restores the terminal for the shell; `fg` draws again. */
static void on_suspend(int number)
{
    int saved = errno;

    screen_leave();
    raise(SIGSTOP);
    screen_enter();
    errno = saved;
}

static void on_resize(int number)
{
    /* nothing: poll() ends, and the next picture has the new size */
}

static const struct {
    int number;
    void (*handler)(int number);
} signals[] = {
    {SIGINT, on_interrupt}, {SIGTERM, on_end},     {SIGHUP, on_end},      {SIGQUIT, on_end},
    {SIGABRT, on_end},      {SIGTSTP, on_suspend}, {SIGWINCH, on_resize},
};

static void signals_set(bool ours)
{
    for (size_t i = 0; i < COUNT_OF(signals); i++) {
        struct sigaction action = {.sa_handler = ours ? signals[i].handler : SIG_DFL};

        sigemptyset(&action.sa_mask);
        sigaction(signals[i].number, &action, NULL);
    }
}

static size_t side(const struct cli *cli, bool columns, size_t otherwise)
{
    const char *text = getenv(columns ? "COLUMNS" : "LINES");
    int fd = fileno(cli->out);
    struct winsize size = {0};
    int64_t value = 0;

    if (fd >= 0 && ioctl(fd, TIOCGWINSZ, &size) == 0)
        value = columns ? size.ws_col : size.ws_row;
    if (value == 0 && (!text || !str_int(str_of(text), &value)))
        value = 0;
    return value > 0 && value <= SIDE_MAX ? (size_t)value : otherwise;
}

size_t screen_columns(const struct cli *cli)
{
    return side(cli, true, COLUMNS_DEFAULT);
}

size_t screen_rows(const struct cli *cli)
{
    return side(cli, false, ROWS_DEFAULT);
}

bool screen_unicode(const struct cli *cli)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};

    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *value = getenv(names[i]);

        if (value && *value)
            return cli->colour && (strcasestr(value, "UTF-8") || strcasestr(value, "UTF8"));
    }
    return false;
}

/* As many lines as the screen has; the previous picture is erased. The last line shows an error, or
 * that there is more. */
static void show_picture(struct screen *live, struct str picture, struct str trouble)
{
    size_t rows = screen_rows(live->cli);
    struct buf text = {0};

    buf_str(&text, STR("\033[H"));
    for (size_t i = 1; i < rows && picture.len > 0; i++) {
        struct str line = str_cut(&picture, '\n');

        buf_fmt(&text, STR_FMT "\033[K\r\n", STR_ARG(line));
    }
    if (trouble.len > 0)
        buf_str(&text, str_cut(&trouble, '\n'));
    else if (picture.len > 0)
        buf_str(&text, STR("(there is more: make the window larger)"));
    buf_str(&text, STR("\033[J"));
    fwrite(text.at, 1, text.len, live->cli->out);
    fflush(live->cli->out);
    buf_free(&text);
}

/* True: continue. Other signals only end the wait early, so the next picture is drawn sooner. */
static bool wait_for(struct screen *live, bool on_screen)
{
    struct pollfd keys = {.fd = on_screen && screen.keys ? STDIN_FILENO : -1, .events = POLLIN};
    int64_t until_ms = clock_mono_ms() + live->interval_ms;
    int64_t left_ms;

    while ((left_ms = until_ms - clock_mono_ms()) > 0) {
        int ready = poll(&keys, 1, (int)left_ms);
        char key;

        if (ready < 0)
            return true;
        if (ready == 0)
            continue;
        if (read(STDIN_FILENO, &key, 1) <= 0 || key == 'q' || key == 'Q' || key == 4)
            return false;
        if (live->key && live->key(live, key))
            return true;
    }
    return true;
}

/* One picture with its own memory. *picture is replaced only if drawing succeeded. */
static int draw_one(struct screen *live, struct buf *picture, struct buf *trouble)
{
    struct cli *cli = live->cli;
    struct arena kept = cli->arena;
    FILE *kept_err = cli->err;
    char *text = NULL, *said = NULL;
    size_t len = 0, said_len = 0;
    FILE *to = open_memstream(&text, &len);
    int code;

    assert(to != NULL);
    cli->arena = (struct arena){0};
    cli->err = open_memstream(&said, &said_len);
    assert(cli->err != NULL);
    code = live->draw(live, to);
    fclose(to);
    fclose(cli->err);
    arena_free(&cli->arena);
    cli->arena = kept;
    cli->err = kept_err;
    buf_clear(trouble);
    buf_add(trouble, said, said_len);
    if (code == CLI_OK) {
        buf_clear(picture);
        buf_add(picture, text, len);
    }
    free(text);
    free(said);
    return code;
}

static bool is_terminal(FILE *stream)
{
    const char *term = getenv("TERM");
    int fd = fileno(stream);

    return fd >= 0 && isatty(fd) && term && strcmp(term, "dumb") != 0;
}

bool screen_is_terminal(const struct cli *cli)
{
    return !cli->json && is_terminal(cli->out);
}

int screen_run(struct screen *live)
{
    struct cli *cli = live->cli;
    struct buf picture = {0}, trouble = {0};
    bool on_screen = !live->once && screen_is_terminal(cli), first = true;
    int code;

    assert(live->interval_ms > 0);
    live->on_screen = on_screen;
    for (;; first = false) {
        code = draw_one(live, &picture, &trouble);
        if (first && code == CLI_OK && on_screen) {
            assert(!screen.on);
            screen.out_fd = fileno(cli->out);
            screen.keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &screen.before) == 0;
            screen.during = screen.before;
            screen.during.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
            signals_set(true);
            screen_enter();
        }
        if (on_screen && screen.on) {
            show_picture(live, buf_view(&picture), buf_view(&trouble));
        } else if (code == CLI_OK) {
            if (!first && !cli->json)
                fputc('\n', cli->out);
            fwrite(picture.at, 1, picture.len, cli->out);
            fflush(cli->out);
        }
        if (!(on_screen && screen.on) && trouble.len > 0)
            fwrite(trouble.at, 1, trouble.len, cli->err);
        if ((first && code != CLI_OK) || live->once || ferror(cli->out))
            break;
        if (!wait_for(live, on_screen)) {
            code = CLI_OK; /* q was pressed */
            break;
        }
    }
    if (on_screen) {
        screen_leave();
        signals_set(false);
    }
    buf_free(&picture);
    buf_free(&trouble);
    return code;
}

/* --- progress --- */

bool progress_wanted(const struct cli *cli)
{
    return is_terminal(cli->err);
}

void progress_tell(struct cli *cli, const char *fmt, ...)
{
    va_list args;

    if (!progress_wanted(cli))
        return;
    fputs("\r\033[K", cli->err);
    va_start(args, fmt);
    vfprintf(cli->err, fmt, args);
    va_end(args);
    fflush(cli->err);
}

void progress_clear(struct cli *cli)
{
    if (progress_wanted(cli))
        fputs("\r\033[K", cli->err);
}
