/* Time and chance. Rules never call these: they take `now_ms` and `struct rnd *`, so that a test
 * can replay any hour of any day. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

int64_t clock_wall_ms(void); /* since 1970, for records that people read */
int64_t clock_mono_ms(void); /* for intervals; never jumps */
int64_t clock_mono_us(void);
/* For leases: the same, but includes time the machine spent suspended, unless the store that judges
 * the leases is suspended with it. */
int64_t clock_lease_ms(void);
/* From now on clock_lease_ms() leaves suspended time out, because the store is suspended with this
 * machine. Call once, before the first clock_lease_ms(). */
void clock_leases_sleep(void);
clockid_t clock_lease_id(void);

/* How far clock_wall_ms() is ahead of clock_mono_ms(): changes only when somebody sets the clock or
 * the machine was suspended. */
int64_t clock_wall_ahead_ms(void);

enum { CLOCK_ISO_BYTES = 25 }; /* with the NUL */
/* "2026-11-15T19:33:00.123Z"; years 1970 to 9999. Takes no lock, unlike gmtime_r. */
void clock_iso(int64_t wall_ms, char text[CLOCK_ISO_BYTES]);

struct rnd {
    uint64_t s[4];
};

void rnd_seed(struct rnd *rnd, uint64_t seed);
void rnd_seed_os(struct rnd *rnd); /* from the kernel */
uint64_t rnd_next(struct rnd *rnd);
uint32_t rnd_below(struct rnd *rnd, uint32_t bound); /* uniform in [0, bound), bound > 0 */

#endif
