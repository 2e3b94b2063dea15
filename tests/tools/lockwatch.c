/* Preloaded into a program: counts for each thread how often it takes or waits for a lock, and how
 * often it allocates memory. The counts are in a file (LOCKWATCH), a row for each thread: its name
 * (16 bytes), locks (8), allocations (8). Every call counts, also one that finds the lock free. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { ROWS = 256 };

struct row {
    char name[16];
    uint64_t locks;
    uint64_t allocations;
};

static struct row *rows;
static _Atomic int next;
static _Thread_local struct row *own;

__attribute__((constructor)) static void open_rows(void)
{
    const char *path = getenv("LOCKWATCH");
    int fd = path ? open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    void *at = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, ROWS * sizeof *rows) == 0)
        at = mmap(NULL, ROWS * sizeof *rows, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (at != MAP_FAILED)
        rows = at;
}

/* A thread gets its row with its first call. Its name may be set later, so it is read each time. */
static struct row *row(void)
{
    static struct row nobody;

    if (!rows)
        return &nobody;
    if (!own) {
        int mine = atomic_fetch_add(&next, 1);

        own = &rows[mine < ROWS ? mine : ROWS - 1];
    }
    prctl(PR_GET_NAME, own->name);
    return own;
}

/* glibc's own names, since dlsym() itself allocates memory. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t number, size_t size);
void *__libc_realloc(void *mem, size_t size);

void *malloc(size_t size)
{
    row()->allocations++;
    return __libc_malloc(size);
}

void *calloc(size_t number, size_t size)
{
    row()->allocations++;
    return __libc_calloc(number, size);
}

void *realloc(void *mem, size_t size)
{
    row()->allocations++;
    return __libc_realloc(mem, size);
}

#define WATCH(name, params, args)                                                                  \
    int name params                                                                                \
    {                                                                                              \
        static int(*real) params;                                                                  \
                                                                                                   \
        if (!real)                                                                                 \
            real = (int(*) params)dlsym(RTLD_NEXT, #name);                                         \
        row()->locks++;                                                                            \
        return real args;                                                                          \
    }

WATCH(pthread_mutex_lock, (pthread_mutex_t * lock), (lock))
WATCH(pthread_mutex_trylock, (pthread_mutex_t * lock), (lock))
WATCH(pthread_rwlock_rdlock, (pthread_rwlock_t * lock), (lock))
WATCH(pthread_rwlock_wrlock, (pthread_rwlock_t * lock), (lock))
WATCH(pthread_spin_lock, (pthread_spinlock_t * lock), (lock))
WATCH(sem_wait, (sem_t * sem), (sem))
WATCH(sem_timedwait, (sem_t * sem, const struct timespec *until), (sem, until))
