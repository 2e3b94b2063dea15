/* The GPUs, from nvidia-smi or a configured command. The command runs in the background: its output
 * is read as it arrives, and a late one is killed. One that cannot even be killed (a hanging
 * driver) is left alone, and no other is started. */
#include "agent/usage_gpu.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/fd.h"
#include "agent/usage.h"

enum {
    EVERY_MS = 1000,       /* while it lists GPUs whose memory is handed out */
    SHARE_EVERY_MS = 5000, /* each run takes a good part of a second */
    DEADLINE_MS = 2000,
    AGAIN_MS = 60000,     /* after it failed, */
    GONE_AGAIN_MS = 5000, /* unless work waits for GPUs it listed before */
    STALE_MS = 10000,     /* its figures are valid this long, then unknown */
    LOOK_MS = 100,        /* between checks whether one without output has ended */
    OUTPUT_BYTES_MAX = 32 * 1024,
    NOT_THERE = 127, /* exit code of a shell that does not find a program */
};

/* The GPUs, and the processes that use them. An empty second half is fine: some drivers do not
 * report processes. */
#define SMI                                                                                        \
    "command -v nvidia-smi >/dev/null || exit 127; "                                               \
    "nvidia-smi --query-gpu=index,uuid,name,memory.total,memory.free,utilization.gpu "             \
    "--format=csv,noheader,nounits || exit 1; "                                                    \
    "nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv,noheader,nounits; "     \
    "exit 0"

void usage_gpu_init(struct usage_gpu *gpu, const char *command)
{
    *gpu = (struct usage_gpu){
        .command = command, .fd = -1, .permille = USAGE_NONE, .seen_ms = INT64_MIN};
    if (command && !command[0])
        gpu->next_ms = INT64_MAX;
}

/* --- parsing the output --- */

static struct usage_gpu_card *add_card(struct usage_gpus *gpus, int64_t id)
{
    struct usage_gpu_card *card = &gpus->cards[gpus->count];

    if (id < 0 || id >= RESOURCES_GPU_IDS || gpus->count == RESOURCES_GPUS_MAX)
        return NULL;
    for (size_t i = 0; i < gpus->count; i++)
        if (gpus->cards[i].id == id)
            return NULL;
    *card = (struct usage_gpu_card){.id = (int32_t)id, .permille = USAGE_NONE};
    gpus->count++;
    return card;
}

static void add_process(struct usage_gpus *gpus, size_t card, int64_t pid, int32_t vram_mb)
{
    if (gpus->process_count < USAGE_GPU_PROCESSES_MAX && pid > 0 && pid <= INT32_MAX)
        gpus->processes[gpus->process_count++] =
            (struct usage_gpu_process){.card = card, .pid = (int)pid, .vram_mb = vram_mb};
}

/* A number of MB, rounded down: the output of a wrapper may have fractions. */
static bool read_mb(const struct json *value, int32_t *ret_mb)
{
    double mb;

    if (json_type(value) != JSON_NUM || !json_double(value, &mb) || !(mb >= 0) ||
        mb > DEMAND_AMOUNT_MAX)
        return false;
    *ret_mb = (int32_t)floor(mb);
    return true;
}

static bool read_card(const struct json *item, struct arena *arena, struct usage_gpus *gpus)
{
    const struct json *list = json_get(item, "processes"), *process;
    struct usage_gpu_card *card;
    int64_t id;
    double util;

    if (json_type(item) != JSON_OBJ || !json_int(json_get(item, "id"), &id))
        return false;
    card = add_card(gpus, id);
    if (!card || !read_mb(json_get(item, "vram_mb"), &card->vram_mb) ||
        !read_mb(json_get(item, "vram_free_mb"), &card->vram_free_mb))
        return false;
    if (card->vram_free_mb > card->vram_mb)
        card->vram_free_mb = card->vram_mb;
    str_copy(json_str(json_get(item, "model"), arena), card->model, sizeof card->model);
    if (json_double(json_get(item, "util"), &util) && util >= 0 && util <= 100)
        card->permille = (int64_t)(util * 10);
    if (json_is_null(list))
        return true;
    if (json_type(list) != JSON_ARR)
        return false;
    for (process = json_items(list); process; process = json_after(list, process)) {
        int32_t vram_mb;
        int64_t pid;

        if (!json_int(json_get(process, "pid"), &pid) ||
            !read_mb(json_get(process, "vram_mb"), &vram_mb))
            return false;
        card->listed = true;
        add_process(gpus, gpus->count - 1, pid, vram_mb);
    }
    return true;
}

static bool parse_json(struct str text, struct usage_gpus *gpus)
{
    struct arena arena = {0};
    const struct json *root, *item;
    bool ok = json_parse(text, &arena, &root, NULL) == ERR_OK && json_type(root) == JSON_ARR;

    for (item = ok ? json_items(root) : NULL; ok && item; item = json_after(root, item))
        ok = read_card(item, &arena, gpus);
    arena_free(&arena);
    return ok;
}

/* "0, GPU-1234, NVIDIA L4, 23034, 22000, 5" for each GPU, then "GPU-1234, 4711, 1024" for each
 * process. Unknown figures are words in brackets. */
static bool parse_smi(struct str text, struct usage_gpus *gpus)
{
    enum { INDEX, UUID, NAME, TOTAL, FREE, UTIL, CARD_FIELDS, PID = 1, USED, PROCESS_FIELDS };
    struct str uuids[RESOURCES_GPUS_MAX];

    while (text.len) {
        struct str line = str_cut(&text, '\n'), fields[CARD_FIELDS];
        size_t count = 0, at = 0;
        int64_t first, total, free, pid;

        while (line.len && count < CARD_FIELDS)
            fields[count++] = str_trim(str_cut(&line, ','));
        if (count == PROCESS_FIELDS) {
            while (at < gpus->count && !str_eq(uuids[at], fields[0]))
                at++;
            if (at < gpus->count && str_int(fields[PID], &pid) && str_int(fields[USED], &total) &&
                total >= 0 && total <= DEMAND_AMOUNT_MAX) {
                gpus->cards[at].listed = true;
                add_process(gpus, at, pid, (int32_t)total);
            }
            continue;
        }
        if (count != CARD_FIELDS)
            continue;
        if (!str_int(fields[INDEX], &first))
            return false;
        if (!str_int(fields[TOTAL], &total) || !str_int(fields[FREE], &free) || free < 0 ||
            free > total || total > DEMAND_AMOUNT_MAX)
            continue; /* without figures its memory cannot be handed out */
        struct usage_gpu_card *card = add_card(gpus, first);
        if (!card)
            continue;
        uuids[gpus->count - 1] = fields[UUID];
        card->vram_mb = (int32_t)total;
        card->vram_free_mb = (int32_t)free;
        str_copy(fields[NAME], card->model, sizeof card->model);
        if (str_int(fields[UTIL], &first) && first >= 0 && first <= 100)
            card->permille = first * 10;
    }
    return true;
}

/* The mean of the percentages in the text, one per line; USAGE_NONE if there are none. */
static int64_t parse_shares(struct str text)
{
    int64_t sum = 0, count = 0;

    while (text.len) {
        struct str line = str_cut(&text, '\n');
        struct str word = usage_word(&line);
        int64_t centi;

        if (word.len && word.at[word.len - 1] == '%')
            word.len--;
        if (!word.len)
            continue;
        if (!usage_centi(word, &centi) || centi > 10000)
            return USAGE_NONE; /* "[N/A]" or something else that is not a percentage */
        sum += centi;
        count++;
    }
    return count ? sum / count / 10 : USAGE_NONE;
}

bool usage_gpu_parse(struct str text, struct usage_gpus *ret_gpus, int64_t *ret_permille)
{
    struct usage_gpus gpus = {.count = 0};
    struct str rest = text;
    struct str first = usage_word(&rest);
    int64_t sum = 0, known = 0;

    *ret_gpus = gpus;
    *ret_permille = USAGE_NONE;
    if (!str_starts(first, STR("[")) && !memchr(text.at ? text.at : "", ',', text.len)) {
        *ret_permille = parse_shares(text);
        return *ret_permille != USAGE_NONE;
    }
    if (!(str_starts(first, STR("[")) ? parse_json(text, &gpus) : parse_smi(text, &gpus)))
        return false;
    for (size_t i = 0; i < gpus.count; i++)
        if (gpus.cards[i].permille != USAGE_NONE) {
            sum += gpus.cards[i].permille;
            known++;
        }
    if (known)
        *ret_permille = sum / known;
    *ret_gpus = gpus;
    return true;
}

/* --- the command --- */

/* In its own process group, so that all of it can be killed; with default signal handling, as
 * programs expect. */
static int start(struct usage_gpu *gpu)
{
    char *const shell[] = {"/bin/sh", "-c", (char *)(gpu->command ? gpu->command : SMI), NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    int ends[2], error;

    assert(gpu->pid == 0 && gpu->fd < 0); /* one at a time */
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return errno;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, ends[1], 1);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                        POSIX_SPAWN_SETSIGDEF);
    error = posix_spawn(&gpu->pid, shell[0], &files, &attr, shell, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    close(ends[1]);
    if (error) {
        close(ends[0]);
        gpu->pid = 0;
        return error;
    }
    gpu->fd = ends[0];
    return 0;
}

static void stop_reading(struct usage_gpu *gpu)
{
    fd_close(gpu->fd);
    gpu->fd = -1;
}

static void give_up(struct usage_gpu *gpu, int64_t now_ms)
{
    stop_reading(gpu);
    buf_clear(&gpu->output);
    gpu->permille = USAGE_NONE; /* an outdated figure is useless */
    gpu->next_ms = now_ms + (gpu->seen_ms == INT64_MIN ? AGAIN_MS : GONE_AGAIN_MS);
    gpu->looks++;
}

/* Never blocks: if the process has not ended, it is checked again later. */
static void reap(struct usage_gpu *gpu, int64_t now_ms)
{
    struct usage_gpus gpus;
    int64_t permille;
    int status = 0;
    pid_t pid = waitpid(gpu->pid, &status, WNOHANG);

    assert(gpu->fd < 0); /* its output was read to the end, or is not wanted */
    if (pid == 0 || (pid < 0 && errno == EINTR))
        return;
    gpu->pid = 0;
    if (gpu->next_ms > now_ms) /* it was given up earlier */
        return;
    if (pid < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0 ||
        !usage_gpu_parse(buf_view(&gpu->output), &gpus, &permille)) {
        give_up(gpu, now_ms);
        if (!gpu->command && pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == NOT_THERE)
            gpu->next_ms = INT64_MAX; /* there is no nvidia-smi here: do not try again */
        return;
    }
    buf_clear(&gpu->output);
    gpu->looks++;
    gpu->permille = permille;
    gpu->gpus = gpus;
    if (gpus.count > 0)
        gpu->seen_ms = now_ms;
    gpu->next_ms = now_ms + (gpu->seen_ms != INT64_MIN ? EVERY_MS : SHARE_EVERY_MS);
}

bool usage_gpu_is_new(const struct usage_gpu *gpu)
{
    return gpu->looks == 0 && gpu->next_ms != INT64_MAX;
}

const struct usage_gpus *usage_gpu_seen(const struct usage_gpu *gpu, int64_t now_ms)
{
    return gpu->seen_ms != INT64_MIN && now_ms - gpu->seen_ms <= STALE_MS ? &gpu->gpus : NULL;
}

int64_t usage_gpu_step(struct usage_gpu *gpu, int64_t now_ms)
{
    if (gpu->pid > 0 && gpu->fd < 0)
        reap(gpu, now_ms);
    if (gpu->pid > 0 && gpu->next_ms <= now_ms && now_ms >= gpu->deadline_ms) {
        kill(-gpu->pid, SIGKILL);
        give_up(gpu, now_ms);
    }
    if (gpu->pid == 0 && gpu->next_ms <= now_ms) {
        if (start(gpu) == 0)
            gpu->deadline_ms = now_ms + DEADLINE_MS;
        else
            give_up(gpu, now_ms);
    }
    if (gpu->pid == 0)
        return gpu->next_ms;
    if (gpu->fd >= 0)
        return gpu->deadline_ms;
    return now_ms + LOOK_MS;
}

void usage_gpu_readable(struct usage_gpu *gpu, int64_t now_ms)
{
    char bytes[4096];
    ssize_t got;

    assert(gpu->fd >= 0 && gpu->pid > 0);
    got = read(gpu->fd, bytes, sizeof bytes);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got > 0 && gpu->output.len < OUTPUT_BYTES_MAX) {
        buf_add(&gpu->output, bytes, (size_t)got);
        return;
    }
    if (got > 0) { /* it prints without end */
        kill(-gpu->pid, SIGKILL);
        give_up(gpu, now_ms);
        return;
    }
    stop_reading(gpu);
}

void usage_gpu_done(struct usage_gpu *gpu)
{
    stop_reading(gpu);
    if (gpu->pid > 0) {
        kill(-gpu->pid, SIGKILL);
        waitpid(gpu->pid, NULL, WNOHANG);
    }
    buf_free(&gpu->output);
}
