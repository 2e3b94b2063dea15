/* Measures the machine, applies an agent's admission rules and waits. Owns the messages and the
 * waiting; protect.c owns the rules. A slot is a file (`slot-0` and so on) that is kept and reused;
 * flock() marks it taken, and the kernel releases the lock when the last holder dies, however it
 * dies. Single-threaded; once the command runs, only the slot remains. */
#include "agent/admit.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/dir_tree.h"
#include "agent/fd.h"
#include "agent/protect.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum { ADMIT_SLOTS_MAX = 4096 };

struct admit_slots {
    int dir_fd;
    int gate_fd; /* locked during a decision */
};

/* Nothing measures what a command uses. */
static const struct protect_task unmeasured = {.memory_kib = USAGE_NONE,
                                               .swap_kib = USAGE_NONE,
                                               .cpu_permille = USAGE_NONE,
                                               .vram_kib = USAGE_NONE};

/* --- slots --- */

enum {
    PATH_MAX_BYTES = 4096,
    LINE_MAX_BYTES = 160,
    NAME_MAX_BYTES = 24,
    TYPE_MAX = 64,
    LOCK_TRIES = 100,
    LOCK_PAUSE_MS = 10,
    SLOT_FD_MIN = 200, /* scripts use the low ones themselves: `exec 3>file` would free the slot */
};

static enum err cannot(struct problem *why, const char *what, const char *path)
{
    return problem_set(why, ERR_IO, "", "Cannot %s %s: %s.", what, path, strerror(errno));
}

/* Below $XDG_RUNTIME_DIR, else /tmp; created if missing, refused if another user owns it. */
static enum err admit_slots_open(struct admit_slots *ret_slots, struct problem *why)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct admit_slots slots = {.dir_fd = -1, .gate_fd = -1};
    char path[PATH_MAX_BYTES];
    int len = runtime && runtime[0] == '/'
                  ? snprintf(path, sizeof path, "%s/berth-run", runtime)
                  : snprintf(path, sizeof path, "/tmp/berth-run-%u", (unsigned)geteuid());
    struct stat st;
    enum err err;

    if (len < 0 || (size_t)len >= sizeof path)
        return problem_set(why, ERR_BAD_CONFIG, "", "XDG_RUNTIME_DIR is too long.");
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return cannot(why, "make", path);
    slots.dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (slots.dir_fd < 0)
        return cannot(why, "open", path);
    if (fstat(slots.dir_fd, &st) != 0) {
        err = cannot(why, "look at", path);
        goto fail;
    }
    /* In /tmp another user could have created it first. */
    if (st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        err = problem_set(why, ERR_FORBIDDEN, "", "%s belongs to somebody else.", path);
        goto fail;
    }
    slots.gate_fd =
        openat(slots.dir_fd, "gate", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (slots.gate_fd < 0) {
        err = cannot(why, "open the gate in", path);
        goto fail;
    }
    *ret_slots = slots;
    return ERR_OK;

fail:
    close(slots.dir_fd);
    return err;
}

/* Held for milliseconds during a decision, so that two processes never take the last slot together.
 * ERR_BUSY: another process has held it for too long. */
static enum err admit_slots_lock(struct admit_slots *slots, struct problem *why)
{
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(slots->gate_fd, LOCK_EX | LOCK_NB) == 0)
            return ERR_OK;
        if (errno != EWOULDBLOCK && errno != EINTR)
            return cannot(why, "lock", "the gate");
        poll(NULL, 0, LOCK_PAUSE_MS);
    }
    return problem_set(why, ERR_BUSY, "", "Another `berth run` has been deciding for long.");
}

static int open_slot(const struct admit_slots *slots, const char *name, int more)
{
    return openat(slots->dir_fd, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | more, S_IRUSR | S_IWUSR);
}

/* Call with the lock held. Lists the taken slots, unordered, at most `max`. Types are in the
 * arena. */
static size_t admit_slots_list(struct admit_slots *slots, struct protect_task *tasks, size_t max,
                               struct arena *arena)
{
    DIR *dir = dir_tree_list(slots->dir_fd);
    struct dirent *entry;
    size_t count = 0;

    while (dir && count < max && (entry = readdir(dir)) != NULL) {
        int fd;

        if (strncmp(entry->d_name, "slot-", 5) != 0)
            continue;
        fd = open_slot(slots, entry->d_name, 0);
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_SH | LOCK_NB) != 0) {
            /* "STARTED_MONO_MS PRIORITY TYPE"; a slot with an unreadable line still counts as
             * taken. */
            struct protect_task *task = &tasks[count++];
            char line[LINE_MAX_BYTES] = "", type[TYPE_MAX + 1];
            ssize_t len = pread(fd, line, sizeof line - 1, 0);

            *task = unmeasured;
            task->id = STR("run");
            task->type = STR("");
            if (len > 0 && sscanf(line, "%" SCNd64 " %" SCNd64 " %64s", &task->started_ms,
                                  &task->priority, type) == 3)
                task->type = arena_str(arena, str_of(type));
        }
        close(fd); /* this also drops our own lock */
    }
    if (dir)
        closedir(dir);
    assert(count <= max);
    return count;
}

/* Call with the lock held. *ret_fd holds the slot as long as it, or a copy of it, is open: it stays
 * open across exec. `task` is what other processes see of the slot. */
static enum err admit_slots_take(struct admit_slots *slots, const struct protect_task *task,
                                 int *ret_fd, struct problem *why)
{
    int fd = -1, high;
    char line[LINE_MAX_BYTES], name[NAME_MAX_BYTES];
    int len = snprintf(line, sizeof line, "%" PRId64 " %" PRId64 " " STR_FMT "\n", task->started_ms,
                       task->priority, STR_ARG(task->type));

    assert(task->type.len > 0 && task->type.len <= TYPE_MAX && len < LINE_MAX_BYTES);
    for (int i = 0; fd < 0 && i < ADMIT_SLOTS_MAX; i++) { /* the lowest free slot */
        snprintf(name, sizeof name, "slot-%d", i);
        fd = open_slot(slots, name, O_CREAT);
        if (fd < 0)
            return cannot(why, "take", "a slot");
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            close(fd);
            fd = -1;
        }
    }
    if (fd < 0) {
        errno = EAGAIN;
        return cannot(why, "take", "a slot");
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, line, (size_t)len, 0) != len) {
        cannot(why, "write", "a slot");
        close(fd);
        return ERR_IO;
    }
    high = fcntl(fd, F_DUPFD, SLOT_FD_MIN); /* the copy is deliberately not close-on-exec */
    if (high < 0)
        high = fcntl(fd, F_DUPFD, 0); /* the descriptor limit is low here */
    close(fd);
    if (high < 0)
        return cannot(why, "keep", "a slot");
    *ret_fd = high;
    return ERR_OK;
}

/* --- admission --- */

enum {
    FIRST_LOOK_MS = 250, /* between the first two samples: rates need two */
    WHY_BYTES = 320,
};

struct admit {
    const struct admit_request *request;
    FILE *err;
    struct config_source source;
    const struct config *config;
    struct protect protect;
    struct usage_meter *meter;
    struct admit_slots slots;
    int slot_fd;                /* < 0: none yet */
    struct protect_task *tasks; /* room for ADMIT_SLOTS_MAX */
    int64_t begun_ms;
    char why[WHY_BYTES];     /* why it cannot start now */
    char printed[WHY_BYTES]; /* the last `why` that was printed */
    bool never;              /* waiting cannot help */
};

/* Other users' commands are not ours to kill; the rules below still protect the machine. */
static void no_kill(struct protect *protect, const struct protect_kill *kill)
{
    assert(!"berth run ends nobody");
}

/* The settings of this machine's agent, except for its token: a user who may run a command need not
 * be able to read it. A token in the environment belongs to the command and stays there. */
static enum err load(struct admit *admit, struct problem *why)
{
    char *argv[] = {(char *)"--token-file=", (char *)"--config", (char *)admit->request->config};
    static struct str everybody = {.at = "*", .len = 1};
    struct protect_rules rules;
    enum err err = config_load(&admit->source, admit->request->config ? 3 : 1, argv, why);

    if (err)
        return err;
    admit->config = &admit->source.config;
    if (admit->config->token.at)
        setenv("BERTH_TOKEN", arena_cstr(&admit->source.arena, admit->config->token), 1);
    err = agent_rules(admit->config, &rules, why);
    if (err)
        return err;
    rules.kill.protected = (struct strs){.at = &everybody, .count = 1};
    protect_init(&admit->protect, &rules, no_kill, admit);
    admit->meter = usage_meter_new(arena_cstr(&admit->source.arena, admit->config->host_root));
    return ERR_OK;
}

static const char *reason_of(const struct slots *slots, enum slots_step step)
{
    for (size_t i = 0; i < slots->count; i++)
        if (slots->chain[i].step == step)
            return slots->chain[i].reason;
    return NULL;
}

/* True if waiting cannot help: even an idle machine has no slot for it. */
static bool explain_never(struct admit *admit)
{
    const struct slots_rules *rules = &admit->protect.rules.slots;
    const struct slots *slots = &admit->protect.slots;
    const char *fixed = reason_of(slots, SLOTS_FIXED), *max = reason_of(slots, SLOTS_MAX);
    int64_t most = slots->max;

    if (rules->max_concurrent_jobs != SLOTS_NONE && rules->max_concurrent_jobs < most)
        most = rules->max_concurrent_jobs;
    if (most > (admit->request->interactive ? 0 : rules->reserved_slots))
        return false;
    admit->never = true;
    snprintf(admit->why, sizeof admit->why, "this machine never has a slot for it: %s",
             most > 0         ? "all are kept for interactive work (reserved_slots)"
             : slots->max > 0 ? "max_concurrent_jobs is 0"
             : fixed          ? fixed
                              : max);
    return true;
}

/* A level falls only after a calm period, so the current reading may look harmless. */
static void explain_level(struct admit *admit)
{
    const struct level_state *state = &admit->protect.level;
    bool held = state->now.level < state->level;
    enum level level = level_gate(state);
    enum level_signal by = held ? state->by : state->now.by;
    struct level_figures figures;
    int64_t ppm;

    usage_figures(&admit->protect.usage, &figures);
    ppm = figures.ppm[by] == LEVEL_UNKNOWN ? 0 : figures.ppm[by];
    snprintf(admit->why, sizeof admit->why, "this machine %s level %s by %s (%" PRId64 "%% %s%s)%s",
             held ? "still counts as at" : "is at", level_name(level), level_signal_name(by),
             ppm / 10000, by == LEVEL_MEMORY ? "free" : "in use", held ? " now" : "",
             level == LEVEL_WARNING ? ": only high priority starts" : "");
}

/* True: we hold a slot. False: admit->why says what is in the way. */
static bool take_slot(struct admit *admit, const struct usage *usage)
{
    const struct admit_request *request = admit->request;
    struct protect_task own = unmeasured;
    const struct slots_clamp *zero;
    struct arena arena = {0};
    struct problem why = {0};
    enum protect_answer answer;
    bool taken = false;
    int64_t now_ms;
    size_t count;

    own.type = str_of(request->type);
    own.priority = request->priority;
    admit->never = false;
    if (admit_slots_lock(&admit->slots, &why)) {
        snprintf(admit->why, sizeof admit->why, "%s", why.detail);
        return false;
    }
    now_ms = own.started_ms = clock_mono_ms();
    count = admit_slots_list(&admit->slots, admit->tasks, ADMIT_SLOTS_MAX, &arena);
    protect_sample(&admit->protect, now_ms, usage, admit->tasks, count);
    answer = protect_admits(&admit->protect, now_ms, own.type, own.priority, request->interactive,
                            1, NULL);
    assert(answer != PROTECT_TYPE && answer != PROTECT_STALE);
    if (answer != PROTECT_ADMIT && explain_never(admit))
        taken = false;
    else if (answer == PROTECT_LEVEL)
        explain_level(admit);
    else if (answer == PROTECT_FULL) {
        zero = slots_zero(&admit->protect.slots);
        snprintf(admit->why, sizeof admit->why, "no slot is free: %s is 0, %s; level %s",
                 zero ? slots_step_name(zero->step) : "room",
                 zero ? zero->reason : "nothing is left",
                 level_name(level_gate(&admit->protect.level)));
    } else if (admit_slots_take(&admit->slots, &own, &admit->slot_fd, &why))
        snprintf(admit->why, sizeof admit->why, "%s", why.detail);
    else
        taken = true;
    flock(admit->slots.gate_fd, LOCK_UN);
    arena_free(&arena);
    return taken;
}

static int run_command(struct admit *admit)
{
    char **argv = admit->request->argv;
    int64_t waited_ms = clock_mono_ms() - admit->begun_ms;

    if (admit->printed[0])
        fprintf(admit->err, "berth: starts after %" PRId64 " s\n", (waited_ms + 500) / 1000);
    fflush(admit->err);
    execvp(argv[0], argv);
    fprintf(admit->err, "berth: cannot run %s: %s\n", argv[0], strerror(errno));
    return errno == ENOENT ? ADMIT_NO_SUCH : ADMIT_NO_START;
}

static int give_up(struct admit *admit, int code)
{
    fprintf(admit->err, "berth: %s%s\n", code == ADMIT_TIMEOUT ? "no longer waiting: " : "",
            admit->why);
    return code;
}

static int run(struct admit *admit, struct problem *why)
{
    const struct admit_request *request = admit->request;
    int null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);

    if (null_fd >= 0) /* the output is for a person: no log events */
        log_setup(LOG_ERROR, LOG_LOGFMT, null_fd);
    if (load(admit, why) || admit_slots_open(&admit->slots, why))
        return ADMIT_BAD;
    if (!config_allows(admit->config, str_of(request->type))) {
        fprintf(admit->err, "berth: work of type %s is not allowed here (TYPE_NOT_ALLOWED)\n",
                request->type);
        return ADMIT_REFUSED;
    }
    /* Samples repeatedly; the first sample has no rates, which need two. */
    for (int looks = 1;; looks++) {
        int64_t now_ms = clock_mono_ms(), pause_ms = FIRST_LOOK_MS;
        struct usage usage;

        if (usage_measure(admit->meter, now_ms, clock_wall_ms(), &usage, why))
            return ADMIT_BAD;
        if (looks > 1) {
            if (take_slot(admit, &usage))
                return run_command(admit);
            if (request->wait_ms == 0 || admit->never)
                return give_up(admit, ADMIT_REFUSED);
            pause_ms = admit->config->monitor_interval_ms;
            if (request->wait_ms > 0) {
                int64_t left_ms = request->wait_ms - (clock_mono_ms() - admit->begun_ms);

                if (left_ms <= 0)
                    return give_up(admit, ADMIT_TIMEOUT);
                pause_ms = left_ms < pause_ms ? left_ms : pause_ms;
            }
            /* Printed once per reason; changed figures alone are not a new reason. */
            if (strncmp(admit->why, admit->printed, strcspn(admit->why, "(0123456789") + 1) != 0) {
                fprintf(admit->err, "berth: waiting: %s\n", admit->why);
                fflush(admit->err);
                memcpy(admit->printed, admit->why, sizeof admit->printed);
            }
        }
        poll(NULL, 0, (int)pause_ms);
    }
}

int admit_run(const struct admit_request *request, FILE *err)
{
    struct admit admit = {.request = request,
                          .err = err,
                          .slots = {.dir_fd = -1, .gate_fd = -1},
                          .slot_fd = -1,
                          .tasks = mem_array(struct protect_task, ADMIT_SLOTS_MAX),
                          .begun_ms = clock_mono_ms()};
    struct problem why = {0};
    int code;

    assert(request->type && request->argv && request->argv[0]);
    code = run(&admit, &why);
    if (code == ADMIT_BAD)
        fprintf(err, "berth: %s\n", why.detail);
    usage_meter_free(admit.meter);
    if (admit.protect.kill)
        protect_done(&admit.protect);
    config_done(&admit.source);
    free(admit.tasks);
    fd_close(admit.slot_fd); /* it did not start after all */
    if (admit.slots.dir_fd >= 0)
        close(admit.slots.gate_fd);
    close(admit.slots.dir_fd);
    return code;
}
