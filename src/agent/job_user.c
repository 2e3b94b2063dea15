/* See job_user.h. */
#include "agent/job_user.h"

#include <assert.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#define JOB_USER_DEFAULT "berth-job"

/* The first one that exists. */
static const char *const defaults[] = {JOB_USER_DEFAULT, "nobody"};

static const struct passwd *find_entry(struct str name, char text[JOB_USER_NAME_MAX + 1])
{
    const struct passwd *entry = NULL;

    if (name.len > 0)
        return str_copy(name, text, JOB_USER_NAME_MAX + 1) ? getpwnam(text) : NULL;
    for (size_t i = 0; i < COUNT_OF(defaults) && !entry; i++) {
        str_copy(str_of(defaults[i]), text, JOB_USER_NAME_MAX + 1);
        entry = getpwnam(text);
    }
    return entry;
}

enum err job_user_find(struct str name, bool allow_root, struct job_user *ret_user,
                       struct problem *why)
{
    struct job_user user = {.group_count = JOB_USER_GROUPS_MAX};
    const struct passwd *entry = find_entry(name, user.name);
    struct stat info;

    if (!entry)
        return problem_set(why, ERR_NOT_FOUND, "user", "There is no user " STR_FMT " here.",
                           STR_ARG(name.len > 0 ? name : STR("berth-job or nobody")));
    if (entry->pw_uid == 0 && !allow_root)
        return problem_set(why, ERR_FORBIDDEN, "user",
                           "Nothing is run as %s without allow_root: true.", user.name);
    user.uid = entry->pw_uid;
    user.gid = entry->pw_gid;
    if (stat(entry->pw_dir, &info) != 0 || !S_ISDIR(info.st_mode) ||
        !str_copy(str_of(entry->pw_dir), user.home, sizeof user.home))
        user.home[0] = '\0';
    if (getgrouplist(user.name, user.gid, user.groups, &user.group_count) < 0)
        user.group_count = JOB_USER_GROUPS_MAX; /* as many as fit */
    *ret_user = user;
    return ERR_OK;
}

struct str job_user_beside(struct str name, size_t number, char text[JOB_USER_NAME_MAX + 1])
{
    int len = snprintf(text, JOB_USER_NAME_MAX + 1, STR_FMT "-%zu",
                       STR_ARG(name.len > 0 ? name : STR(JOB_USER_DEFAULT)), number);

    assert(name.len <= JOB_USER_BASE_MAX && number <= JOB_USER_POOL_MAX);
    return (struct str){.at = text, .len = (size_t)len};
}

size_t job_user_pool(struct str name)
{
    char text[JOB_USER_NAME_MAX + 1];
    size_t count = 0;

    while (count < JOB_USER_POOL_MAX && getpwnam(job_user_beside(name, count + 1, text).at))
        count++;
    return count;
}

size_t job_user_number(struct str name, struct str beside)
{
    char text[JOB_USER_NAME_MAX + 1];

    for (size_t i = 1; i <= JOB_USER_POOL_MAX; i++)
        if (str_eq(job_user_beside(name, i, text), beside))
            return i;
    return 0;
}

static bool may_pass(const struct job_user *user, const struct stat *dir)
{
    bool group = dir->st_gid == user->gid;

    if (user->uid == 0)
        return true;
    for (int i = 0; i < user->group_count && !group; i++)
        group = dir->st_gid == user->groups[i];
    return dir->st_mode & (dir->st_uid == user->uid ? S_IXUSR : group ? S_IXGRP : S_IXOTH);
}

bool job_user_reaches(const struct job_user *user, struct str path)
{
    char dir[PATH_MAX];
    struct stat info;

    assert(path.len > 0 && path.at[0] == '/');
    if (!str_copy(path, dir, sizeof dir))
        return false;
    for (char *at = dir + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        if (stat(dir, &info) != 0 || !may_pass(user, &info))
            return false;
        *at = '/';
    }
    return true;
}

void job_user_enter_files(const struct job_user *user)
{
    if (!user)
        return;
    setfsgid(user->gid); /* first: the next call may drop the privilege it needs */
    setfsuid(user->uid);
}

void job_user_leave_files(const struct job_user *user)
{
    if (!user)
        return;
    setfsuid(geteuid());
    setfsgid(getegid());
}
