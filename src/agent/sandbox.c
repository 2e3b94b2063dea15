/* See sandbox.h. */
#include "agent/sandbox.h"

#include <errno.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

bool privileges_survive(void)
{
    return prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0;
}

static int set_capabilities(uint64_t capabilities)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3] = {{0}};

    for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
        caps[i].permitted = caps[i].effective = (uint32_t)(capabilities >> (32 * i));
    return syscall(SYS_capset, &header, caps) == 0 ? 0 : errno;
}

bool privileges_keep(uint64_t capabilities)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3] = {{0}};
    uint64_t permitted = 0;

    if (syscall(SYS_capget, &header, caps) != 0)
        return false;
    for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
        permitted |= (uint64_t)caps[i].permitted << (32 * i);
    return set_capabilities(permitted & capabilities) == 0;
}

void privileges_bound(void)
{
    for (unsigned long i = 0; i < 64; i++)
        prctl(PR_CAPBSET_DROP, i, 0, 0, 0); /* behind the last one there is it fails */
}

int privileges_give_up(void)
{
    int error = set_capabilities(0);

    if (error == 0 && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0)
        error = errno == EINVAL ? 0 : errno; /* a kernel that knows none */
    if (error == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        error = errno;
    return error;
}
