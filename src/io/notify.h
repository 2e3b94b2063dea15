/* Messages to the service manager that started this process (systemd's sd_notify protocol: a
 * datagram of KEY=VALUE lines to the socket named in the environment). Without a manager these
 * calls do nothing. */
#ifndef IO_NOTIFY_H
#define IO_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

/* Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID and removes them from the environment: child
 * processes must not speak for this one. Call once, before the threads start. */
void notify_init(void);
/* "READY=1\nSTATUS=..." Any thread; never blocks. False: not delivered. */
bool notify_send(const char *lines);
/* The longest interval at which the manager expects WATCHDOG=1; 0: it does not. */
int64_t notify_watchdog_ms(void);

#endif
