/* The user that work runs as. Anybody who may submit jobs controls what they do, so a job runs
 * neither as its agent's user nor as root: an agent that can choose (it is root, or its spawner is)
 * starts work as a user that owns nothing, `berth-job` of the package or else `nobody`, unless its
 * settings name another.
 *
 * Two jobs of one user could read and kill each other. So there may be users NAME-1, NAME-2 and so
 * on in addition to the user NAME: each job gets one of them to itself while there are enough. */
#ifndef AGENT_JOB_USER_H
#define AGENT_JOB_USER_H

#include <sys/types.h>

#include "base/err.h"
#include "base/str.h"

enum {
    JOB_USER_GROUPS_MAX = 256,
    JOB_USER_NAME_MAX = 64,
    JOB_USER_BASE_MAX = 60, /* of a user that has numbered users */
    JOB_USER_HOME_MAX = 512,
    JOB_USER_POOL_MAX = 64 /* numbered users per user */
};

struct job_user {
    uid_t uid;
    gid_t gid;
    gid_t groups[JOB_USER_GROUPS_MAX];
    int group_count;
    char name[JOB_USER_NAME_MAX + 1];
    char home[JOB_USER_HOME_MAX]; /* "": none, or it does not exist */
};

/* An empty name is the default user. Root only if that is allowed. */
enum err job_user_find(struct str name, bool allow_root, struct job_user *ret_user,
                       struct problem *why);
/* The numbered users of `name`, from 1; an empty name is the default user. */
struct str job_user_beside(struct str name, size_t number, char text[JOB_USER_NAME_MAX + 1]);
size_t job_user_pool(struct str name);                      /* how many there are */
size_t job_user_number(struct str name, struct str beside); /* 0: not one of them */
/* Can the user pass through all directories above this absolute path? Checks their modes. */
bool job_user_reaches(const struct job_user *user, struct str path);
/* From now on all file accesses of this thread are the user's, until `job_user_leave_files`. Does
 * nothing if user is NULL. Needs CAP_SETUID and CAP_SETGID. */
void job_user_enter_files(const struct job_user *user);
void job_user_leave_files(const struct job_user *user);

#endif
