/* Runs a fuzz target over stored inputs without a fuzzer; each argument is a file or a directory of
 * files. */
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int replayed;

/* The input is in memory of exactly its size, so that the sanitiser catches a read beyond the
 * end. */
static void replay_file(const char *path)
{
    FILE *file = fopen(path, "rbe");
    struct stat info;
    uint8_t *data;

    if (!file || fstat(fileno(file), &info) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(1);
    }
    data = malloc((size_t)info.st_size + !info.st_size);
    if (!data || fread(data, 1, (size_t)info.st_size, file) != (size_t)info.st_size) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(1);
    }
    fclose(file);
    LLVMFuzzerTestOneInput(data, (size_t)info.st_size);
    free(data);
    replayed++;
}

static void replay_dir(const char *path, DIR *dir)
{
    char file[4096];

    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        replay_file(file);
    }
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);

        if (dir) {
            replay_dir(argv[i], dir);
            closedir(dir);
        } else {
            replay_file(argv[i]);
        }
    }
    printf("%d inputs\n", replayed);
    return replayed > 0 ? 0 : 1; /* a missing corpus must not pass */
}
