/* Time and chance. Rules never call these: they take `now_ms` and `struct rnd *`, so that a test
 * can replay any hour of any day. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

int64_t clock_wall_ms(void); /* since 1970, for records that people read */
int64_t clock_mono_ms(void); /* for intervals; never jumps */
int64_t clock_mono_us(void);
int64_t clock_boot_ms(void); /* likewise, but the time a machine slept counts: for leases */

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
