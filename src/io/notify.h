/* Words to the service manager that started this process (systemd's sd_notify protocol: a datagram
 * of KEY=VALUE lines to the socket it named in the environment). Without one all of it does
 * nothing. */
#ifndef IO_NOTIFY_H
#define IO_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

/* Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID and takes them out of the environment: what
 * this process starts must not speak for it. Call once, before the threads start. */
void notify_init(void);
/* "READY=1\nSTATUS=..." Any thread; never blocks. False: nobody listens. */
bool notify_send(const char *lines);
/* How often the manager wants to hear WATCHDOG=1 at the latest; 0: it does not. */
int64_t notify_watchdog_ms(void);

#endif
