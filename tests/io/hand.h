/* A loop that the test itself turns, for the client's side: everything on one thread. */
#ifndef TESTS_IO_HAND_H
#define TESTS_IO_HAND_H

#include "io/loop.h"

/* Turns the loop until *done is not zero; fails the test when that takes too long. */
void hand_run(struct loop *loop, const int *done);

#endif
