/* A loop on the test's own thread, for the client's side. */
#ifndef TESTS_IO_HAND_H
#define TESTS_IO_HAND_H

#include "io/loop.h"

/* Runs the loop until *done is not zero; fails the test if that takes too long. */
void hand_run(struct loop *loop, const int *done);

#endif
